//! HUP: the configuration is read again and replaces the old one, or nothing changes.
//!
//! Everything that can fail is done first, beside the running server: loading, logs, directories, sockets, and in the
//! worker process pools and new loops. Then the loops switch. A request keeps the configuration it began with; the next
//! one of its connection has the new one. A change that a running process cannot make is served by a new process, while
//! the old one finishes.

use std::sync::Arc;

use tw_app::Config;
use tw_core::process::MainSettings;
use tw_log::Level;

use super::control_api::config_files;
use super::handover::{Handover, Opened};
use super::notify::{self, Reloaded};
use super::pid::PidFile;
use super::serving::Serving;
use super::workers::AdoptionMode;
use super::{Master, Mode, logs};
use crate::configuration::bytes_path::path;
use crate::configuration::conf::Loaded;
use crate::configuration::created_files;
use crate::configuration::directories::DirectoryLocks;
use crate::configuration::member_directories;
use crate::configuration::owned_files;
use crate::configuration::process::{self, Privileges, Process};
use crate::ipc::channel::Keys;
use crate::output::console::{Console, Fault};
use crate::sockets::Sockets;
use crate::worker::sandbox::{ProcessRole, SandboxRules};

impl Master {
    // DIFF(nginx): connections outlive a reload, so worker_shutdown_timeout does not end them then.
    /// Reads the configuration again. Returns true and the messages if it was taken over; after a fault everything is
    /// as before.
    pub(super) fn reload(&mut self) -> (bool, Vec<Fault>) {
        self.notify.reloading();
        self.console.begin_record();
        let done = if self.main.master_process { self.reload_there() } else { self.reload_here() };
        match &done {
            Ok(()) => {
                let addresses = notify::addresses(self.addresses().count());
                let text = format_args!("the configuration is taken over, serving on {addresses}");
                self.console.report(Level::Notice, text);
            }
            Err(fault) => {
                if let Some(fault) = fault {
                    self.console.fault(fault);
                }
                self.console.report(Level::Notice, format_args!("the configuration stays as it was"));
            }
        }
        self.count_reload(done.is_ok());
        let said = self.console.end_record();
        let why =
            said.iter().min_by_key(|fault| fault.level).map_or("see the error log", |fault| &fault.message);
        self.notify.reloaded(match &done {
            Ok(()) => Reloaded::Taken(self.addresses().count()),
            Err(_) => Reloaded::Refused(why),
        });
        (done.is_ok(), said)
    }

    /// Counts a reload, for metrics.
    pub(super) fn count_reload(&mut self, is_taken_over: bool) {
        self.reloads.add(is_taken_over, tw_rt::clock::unix().secs.unsigned_abs());
        self.serving.set_reloads(self.reloads);
    }

    /// With a worker process. The error is a fault that has not been said yet.
    fn reload_there(&mut self) -> Result<(), Option<Fault>> {
        let console = &self.console;
        let Serving::Workers(workers) = &mut self.serving else { return Ok(()) };
        let (loaded, files) = self.source.load_and_record(console).ok_or(None)?;
        loaded.check_directories(console).ok_or(None)?;
        let process = Process::of(&loaded, Privileges::GiveUp, console).ok_or(None)?;
        let texts = self.control_api.as_ref().map(|_| config_files(loaded.sources()));
        let Loaded { config, .. } = loaded;
        created_files::make_directories(&config, self.source.prefix())?;
        let logs = logs::open_files(config.logs.paths())?;
        let log = logs::of_master(&config.main.error_log, &logs, &self.sinks)?;
        let given = owned_files::make_temp_paths(config.temp_paths(), process.identity.as_ref())?;
        member_directories::make(&config, process.identity.as_ref(), console);
        let locks = DirectoryLocks::take(&config, &self.locks, console)?;
        let (sockets, pid) = open(&self.sockets, &self.main, self.pid.as_ref(), &config, console)?;
        let main = config.main.clone();
        let source = self.source.clone();
        let way = if needs_new_process(&self.main, &main) {
            AdoptionMode::NewProcess
        } else {
            AdoptionMode::InPlace
        };
        let keys = Keys::default();
        let opened = Opened { config, process, sockets: sockets.clone(), files, logs, keys };
        let is_daemon = self.mode == Mode::Background;
        let handover = Handover::of(opened, source, is_daemon, self.notify.sign_interval());
        workers
            .change(handover, way, console)
            .inspect_err(|_| sockets.remove_files_but(&self.sockets, console))?;

        // No step fails from here on.
        given.keep();
        self.console.log_to(log.clone());
        self.sinks.report_to(log);
        // As in nginx: a log that was moved away is created again.
        self.sinks.reopen();
        self.locks = locks;
        self.take_over(main, sockets, pid, texts);
        Ok(())
    }

    /// Under `master_process off`.
    fn reload_here(&mut self) -> Result<(), Option<Fault>> {
        let console = &self.console;
        let Serving::InProcess(server, rules) = &mut self.serving else { return Ok(()) };
        let source = self.source.clone();
        let speaker = console.clone();
        let (loaded, said) = server.load(move |previous| {
            let loaded = source.load(previous, &speaker);
            (loaded, speaker.end_record())
        });
        console.go_on_recording(said);
        let loaded = loaded.ok_or(None)?;
        loaded.check_directories(console).ok_or(None)?;
        let process = Process::of(&loaded, Privileges::Keep, console).ok_or(None)?;
        let texts = self.control_api.as_ref().map(|_| config_files(loaded.sources()));
        let Loaded { config, .. } = loaded;
        // DIFF(nginx): rights only become fewer: what this configuration needs more of, another process would have.
        if let Some(what) = rules.lacks(&SandboxRules::of(&config, ProcessRole::Alone)) {
            let fault = Fault::emerg(format!("the sandbox of the running process does not allow {what}"));
            return Err(Some(fault.hint("restart the server, or start it with \"sandbox off\"")));
        }
        if self.mode != Mode::Session {
            created_files::make_directories(&config, self.source.prefix())?;
        }
        logs::open_here(&config, &self.sinks)?;
        if self.mode != Mode::Session {
            // The user cannot change on reload.
            owned_files::make_temp_paths(config.temp_paths(), process.identity.as_ref())?.keep();
            member_directories::make(&config, process.identity.as_ref(), console);
        }
        let locks = DirectoryLocks::take(&config, &self.locks, console)?;
        let (sockets, pid) = open(&self.sockets, &self.main, self.pid.as_ref(), &config, console)?;
        process::set_limits(&config.main, console);
        let main = config.main.clone();
        server
            .change(config, sockets.clone(), process.affinity, &self.sinks, console)
            .inspect_err(|_| sockets.remove_files_but(&self.sockets, console))?;

        // No step fails from here on.
        self.console.log_to((*server.generation().error_log).clone());
        if needs_new_process(&self.main, &main) {
            let text = "a change of \"user\", \"working_directory\" or \"env\" takes effect when the server is started";
            self.console.report(Level::Warn, format_args!("{text}"));
        }
        self.locks = locks;
        self.take_over(main, sockets, pid, texts);
        Ok(())
    }

    /// Puts what was opened in the place of what there was.
    fn take_over(
        &mut self,
        main: MainSettings,
        sockets: Arc<Sockets>,
        pid: Option<PidFile>,
        texts: Option<Vec<(String, String)>>,
    ) {
        if let (Some(api), Some(texts)) = (&mut self.control_api, texts) {
            api.set_files(texts);
        }
        for (name, _) in [
            ("daemon", self.main.daemon != main.daemon),
            ("master_process", self.main.master_process != main.master_process),
        ]
        .iter()
        .filter(|(_, changed)| *changed)
        {
            let text = format_args!("\"{name}\" takes effect when the server is started, not on reload");
            self.console.report(Level::Warn, text);
        }
        self.left.add(sockets.replace(&self.sockets, &self.console));
        self.sockets = sockets;
        if let Some(pid) = pid {
            self.pid = Some(pid);
        }
        // Settings that cannot change on reload keep their values.
        self.main = MainSettings { master_process: self.main.master_process, ..main };
        self.watch.follow(self.serving.used(), &self.console);
    }
}

/// Opens sockets for a configuration, and the pid file if it has another name.
fn open(
    sockets: &Sockets,
    main: &MainSettings,
    pid: Option<&PidFile>,
    config: &Config,
    console: &Console,
) -> Result<(Arc<Sockets>, Option<PidFile>), Option<Fault>> {
    let next = sockets.next(&config.listens, config.main.worker_count(), console).ok_or(None)?;
    let moved = pid.is_some() && *config.main.pid != *main.pid;
    let pid = moved.then(|| PidFile::create(path(&config.main.pid), "", console)).transpose();
    let pid = pid.inspect_err(|_| next.remove_files_but(sockets, console))?;
    Ok((Arc::new(next), pid))
}

/// Returns `true` if a running process cannot adopt the difference: its user, its rights.
fn needs_new_process(old: &MainSettings, new: &MainSettings) -> bool {
    let fixed = |main: &MainSettings| {
        (
            main.user.clone(),
            main.working_directory.clone(),
            main.env.clone(),
            main.rlimit_nofile,
            main.rlimit_core,
            main.priority,
            main.memory_lock,
        )
    };
    fixed(old) != fixed(new)
}
