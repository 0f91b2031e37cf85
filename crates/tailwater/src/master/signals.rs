//! The life of the main thread: it waits for signals, loops and processes that end, and does what they ask for.
//!
//! ```text
//! serving ── QUIT ──► draining ── last connection, or worker_shutdown_timeout ──► end
//!    └──── TERM, INT ────┴──────────────────────────────────────────────────────► end
//! ```

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tw_log::{Errno, Level, open_log};
use tw_rt::signal::{Received, Signal};

use super::control::{Client, Control};
use super::logs::LogFiles;
use super::serving::Serving;
use super::{Master, Mode};
use crate::console::Fault;

/// Whether connections are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Serving,
    Draining,
    Ended,
}

impl Master {
    /// Serves until a signal ends it.
    pub(crate) fn run(mut self) {
        let mut state = State::Serving;
        while state != State::Ended {
            if let Err(error) = self.wait() {
                // A wait that fails would fail again at once: better an end than a spin.
                let errno = Errno::from(&error);
                self.console.say(Level::Alert, format_args!("poll() failed ({errno}), exiting"));
                break;
            }
            while let Some(received) = self.next_signal() {
                state = self.on_signal(received, state);
            }
            while let Some(client) = self.control.as_ref().and_then(Control::next) {
                self.obey(client, state);
            }
            self.serving.look_after(&self.console);
            if state == State::Draining && self.serving.is_over() {
                state = State::Ended;
            }
        }
        self.end();
    }

    /// Waits for a signal, for who serves, or until something is due.
    pub(super) fn wait(&self) -> io::Result<()> {
        let left = self.serving.deadline().map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let voice = self.serving.voice();
        fds.extend(voice.as_ref().map(|voice| PollFd::new(voice, PollFlags::IN)));
        fds.extend(self.control.as_ref().map(|control| PollFd::new(control, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next signal that waits.
    pub(super) fn next_signal(&self) -> Option<Received> {
        self.signals.wait(Some(Duration::ZERO)).unwrap_or_else(|error| {
            let errno = Errno::from(&error);
            self.console.say(Level::Alert, format_args!("read() of signals failed ({errno})"));
            None
        })
    }

    fn on_signal(&mut self, received: Received, state: State) -> State {
        let signal = match received.signal {
            // Its terminal is gone.
            Signal::Hup if self.mode == Mode::Session => Signal::Term,
            signal => signal,
        };
        let ends_softly = self.mode == Mode::Session && signal == Signal::Int && state == State::Serving;
        let action = match signal {
            _ if ends_softly => ", shutting down",
            Signal::Term | Signal::Int => ", exiting",
            Signal::Quit => ", shutting down",
            Signal::Hup => ", reconfiguring",
            Signal::Usr1 => ", reopening logs",
            // DIFF(nginx): there is no upgrade of the binary without a restart yet.
            Signal::Usr2 => ", ignoring: this version cannot change its binary while it runs",
            Signal::Winch if self.mode == Mode::Background => ", stop accepting connections",
            Signal::Winch | Signal::Chld => "",
        };
        let from = match received.pid {
            0 => String::new(),
            pid => format!(" from {pid}"),
        };
        let (number, name) = (signal.number(), signal.name());
        self.notice(format_args!("signal {number} ({name}) received{from}{action}"));
        match signal {
            _ if ends_softly => self.drain(state),
            Signal::Term | Signal::Int => State::Ended,
            Signal::Quit => self.drain(state),
            Signal::Hup if state == State::Serving => {
                self.notice(format_args!("reconfiguring"));
                self.reload();
                state
            }
            Signal::Usr1 => {
                self.notice(format_args!("reopening logs"));
                self.reopen_logs();
                state
            }
            Signal::Winch if self.mode == Mode::Background => {
                self.serving.release();
                state
            }
            Signal::Chld => {
                self.reap();
                state
            }
            Signal::Hup | Signal::Usr2 | Signal::Winch => state,
        }
    }

    /// `-s reload`: as HUP, with an answer.
    fn obey(&mut self, client: Client, state: State) {
        if state != State::Serving {
            return client.answer(false, &[Fault::emerg("the server is shutting down")]);
        }
        self.notice(format_args!("reload ordered by process {}, reconfiguring", client.pid));
        self.console.begin_record();
        let is_done = self.reload();
        client.answer(is_done, &self.console.end_record());
    }

    fn drain(&mut self, state: State) -> State {
        if state == State::Serving {
            self.notice(format_args!("gracefully shutting down"));
            self.quit();
            if self.mode == Mode::Session && self.serving.connections() > 0 {
                crate::serve::say_draining();
            }
        }
        State::Draining
    }

    /// Opens all logs again. Where that fails, the old file goes on.
    fn reopen_logs(&mut self) {
        if let Serving::There(workers) = &mut self.serving {
            let logs = workers.logs().filter_map(|(path, old)| {
                let new = open_log(path).map_err(|error| Fault::emerg(error.to_string()));
                let log = new.inspect_err(|fault| self.console.fault(fault)).or_else(|_| old.try_clone());
                Some((path.clone(), log.ok()?))
            });
            let logs: LogFiles = logs.collect();
            self.sinks
                .hand_over(logs.iter().filter_map(|(path, log)| Some((path.clone(), log.try_clone().ok()?))));
            workers.reopen(logs, &self.console);
        }
        self.sinks.reopen();
    }

    fn notice(&self, message: std::fmt::Arguments<'_>) {
        self.console.say(Level::Notice, message);
    }
}
