//! The worker processes: one that serves, and those that finish what they have begun.
//!
//! ```text
//! start ─► current ─ Configure ─► current            a reload in place
//!             ├───── Quit ──────► leaving ─► ended   WINCH, QUIT, or another process takes over
//!             └ dies ─► another one, with the same sockets
//! ```

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitStatus};
use tw_conf::MemoryFiles;
use tw_log::{Errno, Level};
use tw_server::core::main::MainSettings;

use super::child::{Child, End};
use crate::channel::{Arrived, Configure, Order, Text};
use crate::conf::Source;
use crate::console::{Console, Fault};
use crate::sockets::Sockets;
use crate::user::Identity;
use crate::worker::END_PATIENCE;
use crate::worker::sandbox::Rules;

/// How long a worker process may take to load a configuration. A large one needs a second.
const LOAD_PATIENCE: Duration = Duration::from_secs(120);
/// After two worker processes in a row that lived shorter than this, the next one waits as long.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// What a worker process is to serve, kept for the next one.
#[derive(Debug)]
pub(super) struct Handover {
    /// Where the configuration comes from.
    pub(super) source: Source,
    /// Every file of it.
    pub(super) files: MemoryFiles,
    /// Where it listens.
    pub(super) sockets: Arc<Sockets>,
    /// Its log files.
    pub(super) logs: Vec<(PathBuf, OwnedFd)>,
    /// Its environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Whom it becomes.
    pub(super) identity: Option<Identity>,
    /// Whether nobody looks at standard error.
    pub(super) is_daemon: bool,
    /// What it has to be able to do.
    pub(super) rules: Rules,
    /// How often it has to say that its loops turn.
    pub(super) sign_interval: Option<Duration>,
}

/// How a configuration is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By the process that runs.
    InPlace,
    /// By another process, because this one cannot change as far as that.
    NewProcess,
}

/// All worker processes.
#[derive(Debug)]
pub(super) struct Workers {
    current: Option<Child>,
    leaving: Vec<Child>,
    handover: Handover,
    /// What the one that serves can do: what it has had to since it was started.
    rules: Rules,
    /// Whether the last one lived too short.
    short_life: bool,
    /// When the next one is started, if not at once.
    again_at: Option<Instant>,
}

impl Workers {
    /// Starts the first one, and waits until it serves.
    pub(super) fn start(handover: Handover, console: &Console) -> Result<Self, Fault> {
        let child = begin(&handover, console)?;
        let rules = handover.rules.clone();
        Ok(Self {
            current: Some(child),
            leaving: Vec::new(),
            handover,
            rules,
            short_life: false,
            again_at: None,
        })
    }

    /// Makes the worker serve `handover`, and waits until it does. On an error the one that runs goes on as before.
    pub(super) fn change(&mut self, handover: Handover, way: Way, console: &Console) -> Result<(), Fault> {
        match &self.current {
            Some(child) if way == Way::InPlace && self.rules.covers(&handover.rules) => {
                configure(child, &handover)?;
            }
            _ => {
                let child = begin(&handover, console)?;
                self.release();
                self.current = Some(child);
                self.rules = handover.rules.clone();
            }
        }
        self.again_at = None;
        self.handover = handover;
        Ok(())
    }

    /// Starts one again if none serves, with what the last one had.
    pub(super) fn resume(&mut self, console: &Console) {
        if self.current.is_some() {
            return;
        }
        self.again_at = None;
        match begin(&self.handover, console) {
            Ok(child) => {
                self.current = Some(child);
                self.rules = self.handover.rules.clone();
            }
            Err(fault) => {
                console.fault(&fault);
                self.again_at = Some(Instant::now() + SHORT_LIFE);
            }
        }
    }

    /// The log files in use.
    pub(super) fn logs(&self) -> impl Iterator<Item = &(PathBuf, OwnedFd)> {
        self.handover.logs.iter()
    }

    /// Goes on in these log files.
    pub(super) fn reopen(&mut self, logs: Vec<(PathBuf, OwnedFd)>, console: &Console) {
        self.handover.logs = logs;
        let names = self.handover.logs.iter().map(|(name, _)| name.as_os_str().as_bytes().to_vec());
        let order = Order::Reopen(names.collect());
        let fds: Vec<_> = self.handover.logs.iter().map(|(_, file)| file.as_fd()).collect();
        for child in self.current.iter().chain(&self.leaving) {
            if let Err(error) = child.order(&order, &fds) {
                let (pid, errno) = (child.pid(), Errno::from(&error));
                console.say(Level::Alert, format_args!("worker process {pid} cannot be told ({errno})"));
            }
        }
    }

    /// Lets the one that serves finish what it does, accepting nothing more.
    pub(super) fn release(&mut self) {
        self.again_at = None;
        self.leaving.extend(self.current.take().map(|child| dismiss(child, &Order::Quit, None)));
    }

    /// Ends all of them.
    pub(super) fn stop(&mut self) {
        self.release();
        // They write their logs to the end.
        let until = Some(Instant::now() + END_PATIENCE + SHORT_LIFE);
        let all = self.leaving.drain(..).map(|child| dismiss(child, &Order::Stop, until));
        self.leaving = all.collect();
    }

    /// Lets go of the sockets.
    pub(super) fn close_sockets(&mut self) {
        self.handover.sockets = Arc::default();
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && self.leaving.is_empty() && self.again_at.is_none()
    }

    /// Takes note of the end of a process; `false` if it was none of ours.
    pub(super) fn ended(&mut self, pid: Pid, status: WaitStatus, console: &Console) -> bool {
        let end = End(status);
        if let Some(at) = self.leaving.iter().position(|child| child.pid() == pid) {
            self.leaving.swap_remove(at);
            console.say(level_of(status), format_args!("worker process {pid} {end}"));
            return true;
        }
        let Some(child) = self.current.take_if(|child| child.pid() == pid) else { return false };
        console.say(Level::Alert, format_args!("worker process {pid} {end}"));
        let now = Instant::now();
        let lived_short = now.duration_since(child.since) < SHORT_LIFE;
        if std::mem::replace(&mut self.short_life, lived_short) && lived_short {
            console.say(
                Level::Alert,
                format_args!("worker processes do not live long, the next one starts in a second"),
            );
            self.again_at = Some(now + SHORT_LIFE);
        } else {
            self.resume(console);
        }
        true
    }

    /// Does what is due: starts a worker again, ends those that do not end.
    pub(super) fn expire(&mut self, now: Instant, console: &Console) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.resume(console);
        }
        for child in &mut self.leaving {
            if child.until.take_if(|until| *until <= now).is_some() {
                console.say(
                    Level::Alert,
                    format_args!("worker process {} does not end, killing it", child.pid()),
                );
                child.kill();
            }
        }
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.leaving.iter().filter_map(|child| child.until).chain(self.again_at).min()
    }

    /// Reads what the one that serves says by itself. Whether its loops turn.
    pub(super) fn listen(&mut self) -> bool {
        let Some(child) = &self.current else { return false };
        match child.listen() {
            Arrived::Message(_) => true,
            Arrived::Nothing => false,
            // Its end is told by a signal. One that closes the channel and lives on cannot be told anything.
            Arrived::Gone => {
                child.kill();
                false
            }
        }
    }

    /// Readable when [`listen`](Self::listen) has something.
    pub(super) fn voice(&self) -> Option<BorrowedFd<'_>> {
        self.current.as_ref().map(AsFd::as_fd)
    }
}

/// The environment of a worker process: the time zone, and what `env` names.
pub(super) fn environment(main: &MainSettings) -> Vec<(OsString, OsString)> {
    let named = main.env.iter().map(|(name, value)| (&**name, value.as_deref()));
    let value = |(name, value): (&str, Option<&str>)| {
        Some((name.into(), value.map_or_else(|| std::env::var_os(name), |value| Some(value.into()))?))
    };
    [("TZ", None)].into_iter().chain(named).filter_map(value).collect()
}

/// Starts a worker process and waits until it serves.
fn begin(handover: &Handover, console: &Console) -> Result<Child, Fault> {
    let child = Child::start(&handover.env)?;
    console.say(Level::Notice, format_args!("start worker process {}", child.pid()));
    configure(&child, handover).inspect_err(|_| child.kill())?;
    Ok(child)
}

fn configure(child: &Child, handover: &Handover) -> Result<(), Fault> {
    let (mut fds, sockets) = handover.sockets.fds();
    fds.extend(handover.logs.iter().map(|(_, file)| file.as_fd()));
    let text = |(name, text): (&[u8], &[u8])| Text { name: name.to_vec(), text: text.to_vec() };
    let order = Order::Configure(Box::new(Configure {
        source: handover.source.clone(),
        files: handover.files.iter().map(text).collect(),
        sockets,
        logs: handover.logs.iter().map(|(name, _)| name.as_os_str().as_bytes().to_vec()).collect(),
        identity: handover.identity.clone(),
        is_daemon: handover.is_daemon,
        sign_interval: handover.sign_interval,
    }));
    child.order(&order, &fds).map_err(|error: io::Error| {
        let (pid, errno) = (child.pid(), Errno::from(&error));
        Fault::emerg(format!("worker process {pid} cannot be told ({errno})"))
    })?;
    child.wait_answer(Instant::now() + LOAD_PATIENCE)
}

/// Tells a process to end. One that cannot be told is ended.
fn dismiss(mut child: Child, order: &Order, until: Option<Instant>) -> Child {
    if child.order(order, &[]).is_err() {
        child.kill();
    }
    child.until = until;
    child
}

fn level_of(status: WaitStatus) -> Level {
    if status.exit_status() == Some(0) { Level::Notice } else { Level::Alert }
}
