//! The life of the main thread: it waits for signals and for loops that end, and does what they ask for.
//!
//! ```text
//! serving ── QUIT ──► draining ── last connection, or worker_shutdown_timeout ──► end
//!    └──── TERM, INT ────┴──────────────────────────────────────────────────────► end
//! ```

use std::io;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tw_log::{Errno, Level};
use tw_rt::signal::{Received, Signal, Signals};

use crate::instance::{Instance, Mode};
use crate::reload::reload;

/// Whether connections are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Serving,
    Draining,
    Ended,
}

/// Serves until a signal ends it.
pub(crate) fn run(mut instance: Instance, signals: &Signals) {
    let mut state = State::Serving;
    while state != State::Ended {
        if let Err(error) = wait(&instance, signals) {
            // A wait that fails would fail again at once: better an end than a spin.
            let errno = Errno::from(&error);
            instance.console.say(Level::Alert, format_args!("poll() failed ({errno}), exiting"));
            break;
        }
        while let Some(received) = next(signals, &instance) {
            state = on_signal(received, state, &mut instance);
        }
        instance.reap();
        instance.workers.expire(Instant::now());
        if state == State::Draining && instance.workers.is_empty() {
            state = State::Ended;
        }
    }
    instance.end();
}

/// Waits for a signal, the end of a loop, or the end of a loop's patience.
fn wait(instance: &Instance, signals: &Signals) -> io::Result<()> {
    let left = instance.workers.deadline().map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&instance.workers, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The next signal that waits.
fn next(signals: &Signals, instance: &Instance) -> Option<Received> {
    signals.wait(Some(std::time::Duration::ZERO)).unwrap_or_else(|error| {
        let errno = Errno::from(&error);
        instance.console.say(Level::Alert, format_args!("read() of signals failed ({errno})"));
        None
    })
}

fn on_signal(received: Received, state: State, instance: &mut Instance) -> State {
    let signal = match received.signal {
        // Its terminal is gone.
        Signal::Hup if instance.mode == Mode::Session => Signal::Term,
        signal => signal,
    };
    let ends_softly = instance.mode == Mode::Session && signal == Signal::Int && state == State::Serving;
    let action = match signal {
        _ if ends_softly => ", shutting down",
        Signal::Term | Signal::Int => ", exiting",
        Signal::Quit => ", shutting down",
        Signal::Hup => ", reconfiguring",
        Signal::Usr1 => ", reopening logs",
        // DIFF(nginx): there is no upgrade of the binary without a restart yet.
        Signal::Usr2 => ", ignoring: this version cannot change its binary while it runs",
        Signal::Winch if instance.mode == Mode::Background => ", stop accepting connections",
        Signal::Winch | Signal::Chld => "",
    };
    let from = match received.pid {
        0 => String::new(),
        pid => format!(" from {pid}"),
    };
    let (number, name) = (signal.number(), signal.name());
    let notice = |message: std::fmt::Arguments<'_>| instance.console.say(Level::Notice, message);
    notice(format_args!("signal {number} ({name}) received{from}{action}"));
    match signal {
        _ if ends_softly => drain(state, instance),
        Signal::Term | Signal::Int => State::Ended,
        Signal::Quit => drain(state, instance),
        Signal::Hup if state == State::Serving => {
            notice(format_args!("reconfiguring"));
            reload(instance);
            state
        }
        Signal::Usr1 => {
            notice(format_args!("reopening logs"));
            instance.reopen_logs();
            state
        }
        Signal::Winch if instance.mode == Mode::Background => {
            instance.release_loops();
            state
        }
        Signal::Hup | Signal::Usr2 | Signal::Winch | Signal::Chld => state,
    }
}

fn drain(state: State, instance: &mut Instance) -> State {
    if state == State::Serving {
        instance.console.say(Level::Notice, format_args!("gracefully shutting down"));
        instance.quit();
        if instance.mode == Mode::Session && instance.connections() > 0 {
            crate::serve::say_draining();
        }
    }
    State::Draining
}
