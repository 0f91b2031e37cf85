//! One worker process, as its master sees it.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitStatus, kill_process};
use tw_log::Errno;

use crate::channel::{Answer, Arrived, Channel, Order};
use crate::console::Fault;
use crate::worker::process::TITLE;

/// The file this process runs, whatever has its name now.
const OURSELVES: &str = "/proc/self/exe";

/// A worker process that has not been waited for.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    channel: Channel,
    /// When it was started.
    pub(super) since: Instant,
    /// When it is ended by force.
    pub(super) until: Option<Instant>,
}

impl Child {
    /// Starts one, which waits for its orders. `env` is its whole environment.
    pub(super) fn start(env: &[(OsString, OsString)]) -> Result<Self, Fault> {
        let failed = |what: &str, error: &io::Error| {
            Fault::emerg(format!("{what} failed while spawning worker process ({})", Errno::from(error)))
        };
        let (channel, theirs) = Channel::pair().map_err(|error| failed("socketpair()", &error))?;
        let mut command = Command::new(OURSELVES);
        command.arg0(TITLE).env_clear().envs(env.iter().cloned()).stdin(Stdio::from(theirs));
        let child = command.spawn().map_err(|error| {
            let fault = failed(&format!("execve() \"{OURSELVES}\""), &error);
            let why = if Path::new("/proc/self").exists() { "" } else { ", /proc is not mounted" };
            Fault { message: fault.message + why, ..fault }
                .hint(format!("a master starts {OURSELVES}; \"master_process off\" does not"))
        })?;
        // It is waited for by its number, with every other child.
        let pid = Pid::from_child(&child);
        Ok(Self { pid, channel, since: Instant::now(), until: None })
    }

    /// Its number.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Gives an order. An error means that it will end, or has to be ended.
    pub(super) fn order(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.channel.send(order, fds)
    }

    /// Waits for the answer to a configuration.
    pub(super) fn wait_answer(&self, deadline: Instant) -> Result<(), Fault> {
        let pid = self.pid;
        loop {
            return match self.channel.wait_answer(deadline) {
                Arrived::Message(Answer::Serving) => Ok(()),
                Arrived::Message(Answer::Refused { message, hint }) => {
                    Err(Fault { hint, ..Fault::emerg(message) })
                }
                Arrived::Message(Answer::Turning) => continue,
                Arrived::Nothing => Err(Fault::emerg(format!("worker process {pid} does not answer"))),
                Arrived::Gone => Err(Fault::emerg(format!("worker process {pid} ended before it served"))),
            };
        }
    }

    /// What it says without having been asked.
    pub(super) fn listen(&self) -> Arrived<Answer> {
        self.channel.answer()
    }

    /// Ends it by force.
    pub(super) fn kill(&self) {
        // It may have ended; its number is ours until it is waited for.
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// Readable when [`Child::listen`] has something.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// How a process ended, as nginx words it: `exited on signal 9`, `exited with code 1`.
pub(super) struct End(pub(super) WaitStatus);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = self;
        match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => {
                let core = if status.as_raw() & CORE_DUMPED == 0 { "" } else { " (core dumped)" };
                write!(f, "exited on signal {signal}{core}")
            }
            (None, Some(code)) => write!(f, "exited with code {code}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

/// `WCOREFLAG`
const CORE_DUMPED: i32 = 0x80;
