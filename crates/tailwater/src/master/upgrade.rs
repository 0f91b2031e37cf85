//! USR2: the program file that has our name by now is started beside us, on the same sockets.
//!
//! ```text
//!        USR2                                  QUIT to the old one
//! old ───┬──────────────────────────────────────────────────────► end          the new one stays
//!        │   pid file → .oldbin    WINCH: no worker, HUP: again
//!        └── new ── sockets from NGINX ── pid file ── serving ─────────────────►
//!                                                      └ QUIT, TERM, a crash ─► the old one has its pid file again, and
//!                                                                               serves again if it had been told not to
//! ```
//! The protocol is nginx's, so that either of the two may be the old one and the new one. The old one is the parent of the
//! new one, sees how it ends, and says so. One that hangs is reported and left alone: it may only be slow.

use std::env::{args_os, vars_os};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::io::{FdFlags, fcntl_setfd, pwrite};
use rustix::process::{Pid, WaitStatus, getppid};
use tw_base::Errno;
use tw_log::Level;

use super::Master;
use super::child::ProcessEnd;
use super::control_api::ControlApi;
use super::notify::WATCHDOG_PID;
use super::processes::Processes;
use crate::ipc::channel::Keys;
use crate::ipc::packet;
use crate::sockets::inherited::{CONTROL, KEYS, LOCKS, PROCESSES, SESSIONS, UPGRADE, VARIABLES};

/// Longest time until a new binary writes its pid file. A large configuration needs a second or two.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The other processes that may have our sockets.
#[derive(Debug)]
pub(super) struct Binaries {
    /// The one that started us.
    old: Option<Pid>,
    new: Option<NewBinary>,
}

/// New binary that this process has started.
#[derive(Debug)]
struct NewBinary {
    pid: Pid,
    /// Time of the check for its pid file.
    look_at: Option<Instant>,
    /// Way of sessions over datagrams to its worker process, until one has it.
    sessions: Option<OwnedFd>,
}

impl Binaries {
    /// Of a process that was started by `old`.
    pub(super) fn of(old: Option<Pid>) -> Self {
        Self { old, new: None }
    }

    /// The new binary.
    pub(super) fn new_one(&self) -> Option<Pid> {
        self.new.as_ref().map(|new| new.pid)
    }

    /// Returns `true` if neither an old nor a new binary runs, unless the old one only waits for its last clients. A process whose
    /// parent has changed has lost the old one.
    // DIFF(nginx): a master in the foreground has a parent that is no old binary, and changes its binary, too.
    pub(super) fn is_alone(&self, is_old_leaving: bool) -> bool {
        self.new.is_none() && (is_old_leaving || !self.has_old())
    }

    /// Returns `true` if the old binary, which started this one, runs.
    pub(super) fn has_old(&self) -> bool {
        self.old.is_some() && self.old == getppid()
    }

    /// Way of sessions over datagrams to the new binary. It is used once.
    pub(super) fn take_sessions(&mut self) -> Option<OwnedFd> {
        self.new.as_mut()?.sessions.take()
    }

    /// Time of the next [`Master::watch_new_binary`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.new.as_ref()?.look_at
    }
}

impl NewBinary {
    fn start(pid: Pid, now: Instant, sessions: Option<OwnedFd>) -> Self {
        Self { pid, look_at: now.checked_add(READY_TIMEOUT), sessions }
    }

    /// Returns `true`, once, when the new binary should be ready.
    fn is_time(&mut self, now: Instant) -> bool {
        self.look_at.take_if(|at| *at <= now).is_some()
    }
}

impl Master {
    /// Starts the new binary. After a fault, which is said, everything is as before.
    pub(super) fn change_binary(&mut self) {
        let mut words = args_os();
        let Some(program) = words.next() else {
            return self.alert("the command line does not name the program".to_owned());
        };
        let shown = program.to_string_lossy().into_owned();
        if let Some(Err(message)) = self.pid.as_mut().map(|pid| pid.step_aside()) {
            return self.alert(format!("{message} before executing new binary process \"{shown}\""));
        }
        let (sockets, _) = self.sockets.fds();
        let mut command = Command::new(&program);
        command.args(words).env_clear().envs(environment()).env(UPGRADE, numbers(&sockets));
        let keys = self.keys();
        let keys_file = keys.as_ref().map(|file| file.as_fd());
        // Without this pair, sessions over datagrams end with the processes of this binary.
        let (sessions, theirs) = packet::pair().ok().unzip();
        // Without a link, connections over QUIC end with the processes of this binary.
        let link = self.serving.links().and_then(Processes::link_to_new);
        let handed: Vec<_> = sockets
            .iter()
            .copied()
            .chain(keys_file)
            .chain(self.locks.descriptors())
            .chain(theirs.as_ref().map(AsFd::as_fd))
            .chain(self.control_api.as_ref().map(ControlApi::listener))
            .chain(link.as_ref().map(AsFd::as_fd))
            .collect();
        command.env(LOCKS, self.locks.numbers());
        if let Some(file) = &keys {
            command.env(KEYS, file.as_raw_fd().to_string());
        }
        if let Some(socket) = &theirs {
            command.env(SESSIONS, socket.as_raw_fd().to_string());
        }
        if let Some(api) = &self.control_api {
            command.env(CONTROL, api.listener().as_raw_fd().to_string());
        }
        if let Some(socket) = &link {
            command.env(PROCESSES, socket.as_raw_fd().to_string());
        }
        let started = Inheritable::new(&handed).and_then(|_inheritable| command.spawn());
        match started {
            Ok(child) => {
                let pid = Pid::from_child(&child);
                self.console.report(Level::Notice, format_args!("start new binary process {pid}"));
                self.binaries.new = Some(NewBinary::start(pid, Instant::now(), sessions));
            }
            Err(error) => {
                let errno = Errno::from(&error);
                self.alert(format!(
                    "execve() failed while executing new binary process \"{shown}\" ({errno})"
                ));
                self.forget_link();
                self.step_back("after an attempt to execute");
            }
        }
    }

    /// A file in memory with the keys of session tickets, so that clients can take their sessions up with the new binary. If
    /// there can be none, they shake hands anew.
    fn keys(&self) -> Option<OwnedFd> {
        match file_of(&self.serving.keys()) {
            Ok(file) => file,
            Err(error) => {
                let errno = Errno::from(&error);
                self.alert(format!("the keys of session tickets cannot be handed over ({errno})"));
                None
            }
        }
    }

    /// The new binary has ended: this one is the only one again.
    pub(super) fn new_binary_ended(&mut self, status: WaitStatus) {
        let Some(NewBinary { pid, .. }) = self.binaries.new.take() else { return };
        let level = if status.exit_status() == Some(0) { Level::Notice } else { Level::Alert };
        self.console.report(level, format_args!("new binary process {pid} {}", ProcessEnd::from(status)));
        self.forget_link();
        self.step_back("after the end of");
    }

    fn forget_link(&mut self) {
        if let Some(links) = self.serving.links() {
            links.forget_new();
        }
    }

    /// Says so when the new binary does not get ready.
    pub(super) fn watch_new_binary(&mut self) {
        let Some(new) = &mut self.binaries.new else { return };
        let pid = new.pid;
        let Some(file) = self.pid.as_ref().filter(|_| new.is_time(Instant::now())) else { return };
        if file.owner() != Some(pid) {
            let seconds = READY_TIMEOUT.as_secs();
            self.alert(format!(
                "new binary process {pid} has not written the pid file for {seconds} seconds, still waiting"
            ));
        }
    }

    fn step_back(&mut self, when: &str) {
        if let Some(Err(message)) = self.pid.as_mut().map(|pid| pid.step_back()) {
            self.alert(format!("{message} {when} new binary process"));
        }
    }

    fn alert(&self, message: String) {
        self.console.report(Level::Alert, format_args!("{message}"));
    }
}

/// Environment of this process, without the variables meant for it alone.
// DIFF(nginx): a new binary has the whole environment, as if it had been started again; nginx's has what `env` names.
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    vars_os().filter(|(name, _)| VARIABLES.iter().chain(&[WATCHDOG_PID]).all(|variable| name != variable))
}

/// File with the keys; `None` without keys.
fn file_of(keys: &Keys) -> io::Result<Option<OwnedFd>> {
    if keys.0.is_empty() {
        return Ok(None);
    }
    let file = rustix::fs::memfd_create("keys", MemfdFlags::CLOEXEC)?;
    match pwrite(&file, &keys.0, 0)? {
        written_len if written_len == keys.0.len() => Ok(Some(file)),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn numbers(sockets: &[BorrowedFd<'_>]) -> String {
    sockets.iter().map(|socket| format!("{};", socket.as_raw_fd())).collect()
}

/// Sockets that a process gets which is started now. No other one is, because only this thread starts processes.
struct Inheritable<'a>(&'a [BorrowedFd<'a>]);

impl<'a> Inheritable<'a> {
    fn new(sockets: &'a [BorrowedFd<'a>]) -> io::Result<Self> {
        let this = Self(sockets);
        sockets.iter().try_for_each(|socket| fcntl_setfd(socket, FdFlags::empty()))?;
        Ok(this)
    }
}

impl Drop for Inheritable<'_> {
    fn drop(&mut self) {
        for socket in self.0 {
            // Cannot fail for an open descriptor.
            let _ = fcntl_setfd(socket, FdFlags::CLOEXEC);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    #[test]
    fn sockets_are_inherited_only_while_a_process_is_started() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let flags = || rustix::io::fcntl_getfd(&socket).unwrap();
        let sockets = [socket.as_fd()];
        let inheritable = Inheritable::new(&sockets).unwrap();
        assert!(!flags().contains(FdFlags::CLOEXEC));
        assert_eq!(numbers(&sockets), format!("{};", socket.as_raw_fd()));
        drop(inheritable);
        assert!(flags().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn a_new_binary_is_looked_after_once() {
        let now = Instant::now();
        let mut binaries = Binaries::of(None);
        assert_eq!(binaries.deadline(), None);
        let new = binaries.new.insert(NewBinary::start(rustix::process::getpid(), now, None));
        assert!(!new.is_time(now));
        assert!(new.is_time(now + READY_TIMEOUT) && !new.is_time(now + READY_TIMEOUT));
        assert_eq!(binaries.deadline(), None);
    }

    #[test]
    fn other_binaries_are_detected() {
        let mut binaries = Binaries::of(None);
        assert!(binaries.is_alone(false));
        binaries.new = Some(NewBinary { pid: rustix::process::getpid(), look_at: None, sessions: None });
        assert!(!binaries.is_alone(true));
        assert!(!Binaries::of(getppid()).is_alone(false));
        assert!(Binaries::of(getppid()).is_alone(true), "the old one leaves");
        // The old binary is not our parent any more, so it is gone.
        assert!(Binaries::of(Some(rustix::process::getpid())).is_alone(false));
    }
}
