//! Signals as messages to the main thread: blocked in every thread and read from a descriptor, so that no handler
//! ever interrupts a loop.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal as Number;
use tw_sys::signal::SignalFd;

/// The signals that control the server, named by what nginx does on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// TERM: stop now.
    Term,
    /// INT: stop now.
    Int,
    /// QUIT: stop when every connection is done.
    Quit,
    /// HUP: read the configuration again.
    Hup,
    /// USR1: open the logs again.
    Usr1,
    /// USR2: start a new binary.
    Usr2,
    /// WINCH: let the workers stop when their connections are done, keep the master.
    Winch,
    /// CHLD: a child process ended.
    Chld,
}

/// One arrived signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The signal.
    pub signal: Signal,
    /// Process that sent it; 0 for the kernel, as for a key on the terminal.
    pub pid: i32,
}

/// As nginx words it: `signal 15 (SIGTERM) received from 42`.
impl fmt::Display for ReceivedSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signal, pid } = self;
        write!(f, "signal {} ({}) received", signal.number(), signal.name())?;
        match pid {
            0 => Ok(()),
            pid => write!(f, " from {pid}"),
        }
    }
}

const ALL: [Signal; 8] = [
    Signal::Term,
    Signal::Int,
    Signal::Quit,
    Signal::Hup,
    Signal::Usr1,
    Signal::Usr2,
    Signal::Winch,
    Signal::Chld,
];

impl Signal {
    /// Signal number, as in `kill -N`.
    pub fn number(self) -> i32 {
        let number = match self {
            Signal::Term => Number::TERM,
            Signal::Int => Number::INT,
            Signal::Quit => Number::QUIT,
            Signal::Hup => Number::HUP,
            Signal::Usr1 => Number::USR1,
            Signal::Usr2 => Number::USR2,
            Signal::Winch => Number::WINCH,
            Signal::Chld => Number::CHILD,
        };
        number.as_raw()
    }

    /// Name of the signal as the log writes it: `SIGTERM`.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Term => "SIGTERM",
            Signal::Int => "SIGINT",
            Signal::Quit => "SIGQUIT",
            Signal::Hup => "SIGHUP",
            Signal::Usr1 => "SIGUSR1",
            Signal::Usr2 => "SIGUSR2",
            Signal::Winch => "SIGWINCH",
            Signal::Chld => "SIGCHLD",
        }
    }
}

/// The signals of this process, to be read by one thread.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Takes over the signals. The first thing `main` does: threads that exist already would still be interrupted.
    pub fn take() -> io::Result<Self> {
        SignalFd::new(&ALL.map(Signal::number)).map(Signals)
    }

    /// Waits for the next signal, at most for `timeout` when there is one; `None` when none came. For the main
    /// thread, never on a loop.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<ReceivedSignal>> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.0.read() {
                Ok(arrived) => {
                    if let Some(signal) = ALL.into_iter().find(|signal| signal.number() == arrived.signal) {
                        return Ok(Some(ReceivedSignal { signal, pid: arrived.pid }));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let remaining = end.map(|end| end.saturating_duration_since(Instant::now()));
                    if remaining == Some(Duration::ZERO) {
                        return Ok(None);
                    }
                    self.poll(remaining)?;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn poll(&self, timeout: Option<Duration>) -> io::Result<()> {
        // A timeout beyond the range of the kernel means to wait for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Readable when a signal waits: to wait for signals and for something else at once.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
