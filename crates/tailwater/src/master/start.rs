//! The start of a server, on the main thread, before there is any other.
//!
//! ```text
//! load ─► logs ─► directories ─► sockets ─► background ─► pid file ─┬─► a worker process: user, log writers, pools, loops
//!                                                                   └─► `master_process off`: the same in this process
//! ```
//! Steps that need privileges come before `user`. Threads, which a fork would lose, are started after `background`.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tailwater_commands::cli::ControlOptions;
use tailwater_commands::commands::version::{COMPILER, PROGRAM};
use tailwater_commands::configuration::bytes_path::path;
use tailwater_commands::configuration::certificate_watch::CertificateWatch;
use tailwater_commands::configuration::conf::{Loaded, Source};
use tailwater_commands::configuration::created_files;
use tailwater_commands::configuration::directories::DirectoryLocks;
use tailwater_commands::configuration::member_directories;
use tailwater_commands::configuration::owned_files;
use tailwater_commands::configuration::owned_files::OwnerChanges;
use tailwater_commands::configuration::process::{self, Privileges, Process};
use tailwater_commands::output::console::{Console, Fault};
use tw_app::Config;
use tw_base::Errno;
use tw_core::event_loop::Reloads;
use tw_core::process::MainSettings;
use tw_log::{Level, Sinks, Target};
use tw_rt::signal::Signals;
use tw_sys::daemon;
use tw_sys::program::Copier;

use super::control::Control;
use super::control_api::{ControlApi, config_files};
use super::handover::{Handover, Opened};
use super::in_process::InProcess;
use super::logs::LogFiles;
use super::notify::Notify;
use super::pid::PidFile;
use super::processes::Processes;
use super::serving::Serving;
use super::signal_queue::SignalQueue;
use super::upgrade::Binaries;
use super::workers::Workers;
use super::{Master, Mode, logs, notify, pid};
use crate::script_check;
use crate::sockets::Sockets;
use crate::sockets::inherited::Inherited;
use crate::sockets::leftover_files::LeftoverFiles;
use crate::worker::sandbox::{ProcessRole, SandboxRules};
use crate::worker::{Server, memory};

/// Time for the error log to take the reason of a start that failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A start that is under way.
struct Start {
    mode: Mode,
    source: Source,
    console: Console,
    sinks: Sinks,
    notify: Notify,
    /// Taken already, if signals that come during the start would otherwise be lost, or be the end.
    signals: Option<Signals>,
    /// Set if it continues without its starter.
    background: bool,
    /// The old binary that started this one.
    old: Option<Pid>,
    /// Way of sessions over datagrams from the old binary.
    sessions: Option<OwnedFd>,
    /// Options of the control API, if it is on.
    control_options: Option<ControlOptions>,
    /// Socket of the control API, from the old binary.
    control_socket: Option<OwnedFd>,
    /// Texts of the configuration, for the control API.
    config_files: Vec<(String, String)>,
    /// Worker processes of the old binary.
    processes: Processes,
    /// Directories of caches.
    locks: DirectoryLocks,
    /// Place that names the pid file, as the end of a message.
    pid_place: String,
}

/// Parts of a running server.
struct Launched {
    inbox: Rc<SignalQueue>,
    main: MainSettings,
    sockets: Arc<Sockets>,
    pid: Option<PidFile>,
    control: Option<Control>,
    control_api: Option<ControlApi>,
    serving: Box<dyn Serving>,
}

/// Starts the server. `None` after a fault, which has been said.
pub(crate) fn start(
    source: Source,
    mode: Mode,
    sinks: Sinks,
    control_options: Option<ControlOptions>,
) -> Option<Master> {
    let mut console = Console::new();
    if control_options.is_some() {
        console.remember_recent();
    }
    let notify = Notify::of_environment(&console);
    // The kernel drops signals that process 1 neither handles nor blocks, so an order to stop would be lost.
    let signals = if is_init() { Signals::take().ok() } else { None };
    let locks = DirectoryLocks::default();
    let pid_place = String::new();
    let mut start = Start {
        mode,
        source,
        console,
        sinks,
        notify,
        signals,
        background: false,
        old: None,
        sessions: None,
        control_options,
        control_socket: None,
        config_files: Vec::new(),
        processes: Processes::default(),
        locks,
        pid_place,
    };
    match start.run() {
        Ok(launched) => Some(start.finish(launched)),
        Err(fault) => {
            if let Some(fault) = fault {
                start.console.fault(&fault);
            }
            // A log that does not take the reason in time changes nothing.
            let _ = start.sinks.flush_and_close(Instant::now() + LAST_WORDS);
            None
        }
    }
}

impl Start {
    /// The error is a fault that has not been said yet.
    fn run(&mut self) -> Result<Launched, Option<Fault>> {
        let opened = self.open()?;
        let sockets = opened.sockets.clone();
        self.launch(opened).map_err(|fault| {
            // Sockets that were handed over are configured by their owner.
            let _ = sockets.remove_files(&self.console);
            Some(fault)
        })
    }

    /// Opens everything up to the sockets.
    fn open(&mut self) -> Result<Opened, Option<Fault>> {
        let mut inherited = if self.mode == Mode::Session { Inherited::default() } else { Inherited::take() };
        self.old = inherited.old;
        self.sessions = inherited.sessions.take();
        self.control_socket = inherited.control.take();
        self.processes = Processes::of(inherited.processes.take());
        let keys = std::mem::take(&mut inherited.keys);
        self.source
            .make_absolute()
            .map_err(|error| Fault::emerg(format!("getcwd() failed ({})", Errno::from(&error))))?;
        let (loaded, files) = self.source.load_and_record(&self.console).ok_or(None)?;
        loaded.check_directories(&self.console).ok_or(None)?;
        script_check::check(&loaded.config)?;
        let privileges = if self.mode == Mode::Session { Privileges::Keep } else { Privileges::GiveUp };
        let process = Process::of(&loaded, privileges, &self.console).ok_or(None)?;
        self.pid_place = loaded.place_of("pid");
        if self.control_options.is_some() {
            self.config_files = config_files(loaded.sources());
        }
        let Loaded { config, .. } = loaded;
        if let Some(name) = &config.main.time_zone {
            tw_log::time::set_zone(name);
        }
        if self.mode != Mode::Session {
            created_files::make_directories(&config, self.source.prefix())?;
        }
        let logs = self.open_logs(&config)?;
        inherited.log_to(&self.console);
        let given = match self.mode {
            Mode::Session => OwnerChanges::default(),
            _ => owned_files::make_temp_paths(config.temp_paths(), process.identity.as_ref())?,
        };
        if self.mode != Mode::Session {
            member_directories::make(&config, process.identity.as_ref(), &self.console);
        }
        self.locks = DirectoryLocks::take(&config, &inherited.locks, &self.console)?;
        self.background = config.main.daemon && self.mode != Mode::Session && !self.has_to_stay();
        if !self.background {
            // Signals are blocked before sockets are opened, because a process that finds them open may send signals.
            self.signals = Some(self.take_signals()?);
        }
        // Another server on our addresses is most likely the same one.
        let is_alone = self.mode != Mode::Session && self.old.is_none();
        let running = is_alone.then(|| pid::running(path(&config.main.pid))).flatten();
        let loops = config.main.worker_count();
        let sockets = match running {
            None => inherited.sockets.next(&config.listens, loops, &self.console),
            Some(pid) => inherited.sockets.next_beside(&config.listens, loops, pid, &self.console),
        };
        let sockets = Arc::new(sockets.ok_or(None)?);
        given.keep();
        sockets.adopt(&inherited.sockets, &self.console);
        Ok(Opened { config, process, sockets, files, logs, keys })
    }

    /// Opens the logs, and goes on talking to the error log, too.
    fn open_logs(&mut self, config: &Config) -> Result<LogFiles, Fault> {
        let (files, log) = if config.main.master_process {
            // The limit is raised for sockets and logs; a worker process sets its own.
            process::raise_open_files();
            let files = logs::open_files(config.logs.paths())?;
            let log = logs::of_master(&config.main.error_log, &files, &self.sinks)?;
            (files, log)
        } else {
            process::set_limits(&config.main, &self.console);
            logs::open_here(config, &self.sinks)?;
            (LogFiles::new(), (*config.error_log).clone())
        };
        self.sinks.report_to(log.clone());
        if self.mode != Mode::Session {
            self.console.log_to(log);
            if config.main.error_log.iter().any(|target| target.target == Target::Stderr) {
                self.console.leave_stderr();
            }
        }
        Ok(files)
    }

    /// Starts everything from the way to the background on.
    fn launch(&mut self, opened: Opened) -> Result<Launched, Fault> {
        let Opened { config, process, sockets, files, logs, keys } = opened;
        let background = self.background;
        // The old binary went there already, and has to remain our parent to see our end.
        let parent =
            (background && self.old.is_none()).then(daemon::detach).transpose().map_err(|error| {
                let why = match error.raw_os_error() {
                    Some(_) => Errno::from(&error).to_string(),
                    None => error.to_string(),
                };
                Fault::emerg(format!("cannot go to the background ({why})"))
                    .hint("\"daemon off\" stays in the foreground")
            })?;
        let signals = self.take_signals()?;
        if self.old.is_none() {
            self.notify.starting();
        }
        let inbox = Rc::new(SignalQueue::new(signals));
        let pid = match self.mode {
            Mode::Session => None,
            _ => Some(PidFile::create(path(&config.main.pid), &self.pid_place, &self.console)?),
        };
        // If this fails, `-s reload` sends a signal and gets no response.
        let control = pid.as_ref().and_then(|_| Control::open().ok());
        let control_api = self.open_control_api()?;
        let main = config.main.clone();
        let serving: Box<dyn Serving> = if main.master_process {
            self.sinks.start().map_err(|error| Fault::emerg(error.to_string()))?;
            describe(&self.console);
            let opened = Opened { config, process, sockets: sockets.clone(), files, logs, keys };
            let source = self.source.clone();
            let sign_interval = self.notify.sign_interval();
            let handover = Handover::of(opened, source, background, sign_interval);
            let processes = std::mem::take(&mut self.processes);
            let workers = Workers::start(handover, inbox.clone(), processes, &self.console)?;
            if let Some(sessions) = self.sessions.take() {
                workers.take_sessions(&sessions);
            }
            Box::new(workers)
        } else {
            Box::new(self.serve_in_process(config, process, sockets.clone())?)
        };
        if background {
            self.mode = Mode::Background;
            if parent.is_some() {
                // DIFF(nginx): nginx says nothing, and nobody who starts it for the first time knows whether it runs.
                let pid = rustix::process::getpid();
                self.console.plain(format_args!("started in the background, process {pid}"));
            }
            owned_files::redirect_stderr(&main);
        }
        if let Some(parent) = parent {
            parent.ready();
        }
        Ok(Launched { inbox, main, sockets, pid, control, control_api, serving })
    }

    /// Opens the control API, if it is on.
    fn open_control_api(&mut self) -> Result<Option<ControlApi>, Fault> {
        let Some(options) = &self.control_options else { return Ok(None) };
        let mut api = ControlApi::open(options, self.control_socket.take())?;
        api.set_files(std::mem::take(&mut self.config_files));
        Ok(Some(api))
    }

    /// Hears signals from here on, instead of ending by them.
    fn take_signals(&mut self) -> Result<Signals, Fault> {
        let taken = self.signals.take().map_or_else(Signals::take, Ok);
        taken.map_err(|error| Fault::emerg(format!("signalfd() failed ({})", Errno::from(&error))))
    }

    /// Returns `true` if going to the background would be taken for the end of the server.
    // DIFF(nginx): `daemon on` does not end process 1, and the container with it, nor the process a service manager waits for.
    fn has_to_stay(&self) -> bool {
        let why = match is_init() {
            true => "process 1 cannot go to the background",
            false if notify::is_awaited(self.old.is_some()) => {
                "a service that reports when it is ready cannot go to the background"
            }
            false => return false,
        };
        self.console.report(Level::Notice, format_args!("{why}, \"daemon on\" is ignored"));
        true
    }

    /// Becomes the user, and starts the loops in this process.
    fn serve_in_process(
        &self,
        config: Config,
        process: Process,
        sockets: Arc<Sockets>,
    ) -> Result<InProcess, Fault> {
        // The copier is kept for reloads, because a process that has changed its user cannot get another one.
        let copier = Copier::new().ok();
        memory::lock(&config, copier.as_ref(), &self.console);
        let rules = SandboxRules::of(&config, ProcessRole::Alone);
        if let Some(identity) = &process.identity {
            // DIFF(nginx): the one process gives up the privileges of root. Logs are given to the user, who opens them again.
            owned_files::give_logs(config.logs.paths(), identity, &self.console);
        }
        rules.become_user(process.identity.as_ref(), &self.console)?;
        process::keep_secrets(&config, &self.console);
        process::change_directory(&config.main)?;
        let report = rules.enforce()?;
        self.sinks.start().map_err(|error| Fault::emerg(error.to_string()))?;
        describe(&self.console);
        report.log_to(&self.console);
        let mut server =
            Server::start(config, sockets, process.affinity, copier, &self.sinks, &self.console)?;
        server.begin(&self.console);
        Ok(InProcess { server, rules })
    }

    fn finish(self, launched: Launched) -> Master {
        let Self { mode, source, mut console, sinks, notify, old, locks, .. } = self;
        // As long as the old binary runs, it is the service, and reports this process as its successor when it ends.
        if old.is_none() {
            notify.serving(launched.sockets.addresses().count());
        }
        let binaries = Binaries::of(old);
        let leftover_files = LeftoverFiles::default();
        let Launched { inbox, main, sockets, pid, control, control_api, serving } = launched;
        console.leave_stderr();
        if let Some(log) = serving.error_log() {
            console.log_to(log);
        }
        let mut watch = CertificateWatch::default();
        watch.follow(serving.watched_certificates(), &console);
        Master {
            mode,
            source,
            console,
            sinks,
            inbox,
            main,
            sockets,
            locks,
            leftover_files,
            pid,
            control,
            control_api,
            started: tw_rt::clock::unix().secs,
            notify,
            reloads: Reloads::default(),
            serving,
            binaries,
            watch,
        }
    }
}

/// Returns `true` if this is the first process of a container, or of a system.
fn is_init() -> bool {
    rustix::process::getpid().is_init()
}

/// Logs nginx's lines about the server and its system at the start.
fn describe(console: &Console) {
    let notice = |message: std::fmt::Arguments<'_>| console.report(Level::Notice, message);
    let system = rustix::system::uname();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    notice(format_args!("using the \"epoll\" event method"));
    notice(format_args!("{PROGRAM}"));
    notice(format_args!("built by {COMPILER}"));
    notice(format_args!("OS: {} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()));
    notice(format_args!("getrlimit(RLIMIT_NOFILE): {}:{}", number(limit.current), number(limit.maximum)));
    notice(format_args!("start worker processes"));
}
