//! The main loop of the master: it waits for signals, loops and processes that end, and acts on them.
//!
//! ```text
//! serving ── QUIT ──► draining ── last connection, or worker_shutdown_timeout ──► end
//!    └──── TERM, INT ────┴──────────────────────────────────────────────────────► end
//! ```

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tailwater_commands::configuration::certificate_watch::CertificateChange;
use tailwater_commands::output::console::Fault;
use tw_base::Errno;
use tw_log::Level;
use tw_rt::signal::{ReceivedSignal, Signal};

use super::control::{Client, ClientRequest, Control};
use super::control_api::ControlApi;
use super::{Master, Mode};
use crate::worker::SHUTDOWN_TIMEOUT;

/// Message of nginx.
const CHANGE_IGNORED: &str = "the changing binary signal is ignored: you should shutdown or terminate before either old \
    or new binary's process";

/// State of the server: accepting, or shutting down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
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
                self.console.report(Level::Alert, format_args!("poll() failed ({errno}), exiting"));
                break;
            }
            while state != State::Ended
                && let Some(received) = self.next_signal()
            {
                state = self.on_signal(received, state);
            }
            while let Some(client) = self.control.as_ref().and_then(Control::next) {
                self.obey(client, state);
            }
            let is_heard = self.serving.tick(&self.console);
            self.serve_control_api(state);
            self.show_life(is_heard, Instant::now());
            while let Some(certificate_change) = self.watch.next() {
                self.renew(certificate_change);
            }
            self.watch_new_binary();
            self.leftover_files.remove(&self.console);
            if state == State::Draining && self.serving.is_over() {
                state = State::Ended;
            }
        }
        self.end();
    }

    /// Waits for a signal, for who serves, or until something is due.
    pub(super) fn wait(&self) -> io::Result<()> {
        let api = self.control_api.as_ref();
        let deadlines = [
            self.serving.deadline(),
            self.binaries.deadline(),
            self.notify.deadline(),
            api.and_then(ControlApi::deadline),
        ];
        let until = deadlines.into_iter().flatten().min();
        let remaining = if self.inbox.has_some() {
            Some(Duration::ZERO)
        } else {
            until.map(|until| until.saturating_duration_since(Instant::now()))
        };
        let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
        let mut fds = vec![PollFd::new(&*self.inbox, PollFlags::IN)];
        let poll_fd = self.serving.poll_fd();
        fds.extend(poll_fd.as_ref().map(|poll_fd| PollFd::new(poll_fd, PollFlags::IN)));
        let changes = self.watch.poll_fd();
        fds.extend(changes.as_ref().map(|changes| PollFd::new(changes, PollFlags::IN)));
        fds.extend(self.control.as_ref().map(|control| PollFd::new(control, PollFlags::IN)));
        fds.extend(api.into_iter().flat_map(|api| api.events(self.binaries.new_one().is_some())));
        fds.extend(self.serving.poll_fds_of_links());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next signal that waits.
    pub(super) fn next_signal(&self) -> Option<ReceivedSignal> {
        self.inbox.next().unwrap_or_else(|error| {
            let errno = Errno::from(&error);
            self.console.report(Level::Alert, format_args!("read() of signals failed ({errno})"));
            None
        })
    }

    fn on_signal(&mut self, received: ReceivedSignal, state: State) -> State {
        let signal = match received.signal {
            // The terminal of the command is gone.
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
            Signal::Usr2 if !self.main.master_process => ", ignoring: there is no master process",
            Signal::Usr2 if self.may_change_binary(state) => ", changing binary",
            Signal::Usr2 => ", ignoring",
            Signal::Winch if self.mode == Mode::Background => ", stop accepting connections",
            Signal::Winch | Signal::Chld => "",
        };
        // DIFF(nginx): the action is said once, not in a line of its own as well.
        self.notice(format_args!("{}{action}", ReceivedSignal { signal, ..received }));
        match signal {
            _ if ends_softly => self.drain(state),
            Signal::Term | Signal::Int => {
                if state == State::Serving {
                    self.notify_end(None);
                }
                State::Ended
            }
            Signal::Quit => self.drain(state),
            Signal::Hup if state == State::Serving && self.binaries.new_one().is_some() => {
                self.serve_again();
                state
            }
            Signal::Hup if state == State::Serving => {
                self.reload();
                state
            }
            Signal::Usr1 => {
                self.reopen_logs();
                state
            }
            Signal::Winch if self.mode == Mode::Background => {
                self.serving.release(self.binaries.new_one().is_some(), self.binaries.take_sessions());
                state
            }
            Signal::Usr2 if !self.main.master_process => state,
            Signal::Usr2 if self.may_change_binary(state) => {
                self.change_binary();
                state
            }
            Signal::Usr2 => {
                self.console.report(Level::Crit, format_args!("{CHANGE_IGNORED}"));
                state
            }
            Signal::Chld => {
                let had_new = self.binaries.new_one().is_some();
                self.reap();
                if had_new && self.binaries.new_one().is_none() && state == State::Serving {
                    // The worker may have been told to make room for the new binary, which has ended now.
                    self.serving.resume(&self.console);
                }
                state
            }
            Signal::Hup | Signal::Winch => state,
        }
    }

    // DIFF(nginx): a binary that only waits for its last clients does not keep the next one from being upgraded.
    /// Returns `true` if no other binary of the server runs, but one that only waits for its last clients.
    fn may_change_binary(&mut self, state: State) -> bool {
        let is_old_leaving = self.serving.links().is_some_and(|links| links.is_old_leaving());
        state == State::Serving && self.binaries.is_alone(is_old_leaving)
    }

    /// HUP beside a new binary: the way back.
    fn serve_again(&mut self) {
        self.notice(format_args!("a new binary runs: serving beside it, the configuration stays as it was"));
        self.serving.resume(&self.console);
    }

    /// Obeys a request with an answer: `-s reload` is as HUP.
    fn obey(&mut self, mut client: Client, state: State) {
        match client.take_request() {
            ClientRequest::Reload => {}
            ClientRequest::NotReloaded(why) => {
                why.iter().for_each(|fault| self.console.fault(fault));
                self.count_reload(false);
                let text = format_args!(
                    "process {} orders no reload for that, the configuration stays as it was",
                    client.pid
                );
                return self.notice(text);
            }
            ClientRequest::Purge(order) => {
                let name = tw_log::Text(&order.cache);
                self.notice(format_args!("purge in cache \"{name}\" ordered by process {}", client.pid));
                return self.serving.purge(client, order);
            }
            ClientRequest::FleetStatus => {
                if let Err(error) = self.serving.send_fleet_status(client.stream()) {
                    client.respond(false, &[Fault::emerg(error.to_string())]);
                }
                return;
            }
            ClientRequest::Malformed => {
                let text = "the server does not understand the command: is it another version?";
                return client.respond(false, &[Fault::emerg(text)]);
            }
        }
        if let Some(text) = self.reason_not_to_reload(state) {
            return client.respond(false, &[Fault::emerg(text)]);
        }
        self.notice(format_args!("reload ordered by process {}, reconfiguring", client.pid));
        let (is_done, said) = self.reload();
        client.respond(is_done, &said);
    }

    /// Reason why a reload cannot be ordered now.
    pub(super) fn reason_not_to_reload(&self, state: State) -> Option<&'static str> {
        if self.binaries.new_one().is_some() {
            return Some("a new binary runs, and the configuration of the old one stays as it was");
        }
        (state != State::Serving).then_some("the server is shutting down")
    }

    /// Has another certificate used, or says why not.
    fn renew(&mut self, CertificateChange { name, outcome, .. }: CertificateChange) {
        match outcome.and_then(|files| self.serving.renew(files, &self.console)) {
            Ok(()) => self.notice(format_args!("certificate \"{name}\" has changed, the new one is used")),
            Err(why) => {
                let text = format_args!("{why}, certificate \"{name}\" stays as it was");
                self.console.report(Level::Error, text);
            }
        }
    }

    fn drain(&mut self, state: State) -> State {
        if state == State::Serving {
            self.notice(format_args!("gracefully shutting down"));
            let limit = self.main.shutdown_timeout.map(|limit| limit + SHUTDOWN_TIMEOUT);
            self.notify_end(limit);
            self.quit();
            if self.mode == Mode::Session && self.serving.connections() > 0 {
                tailwater_commands::commands::session::print_draining();
            }
        }
        State::Draining
    }

    /// Notifies the service manager of the end of the server, or of the process that replaces it.
    fn notify_end(&self, limit: Option<Duration>) {
        match self.binaries.new_one() {
            Some(new) => self.notify.replaced_by(new),
            None => self.notify.stopping(limit),
        }
    }

    /// Tells the service manager that the server is alive: when the worker process `has said` that its loops turn, and when
    /// there is none, or this process serves, if it is due.
    fn show_life(&mut self, has_said: bool, now: Instant) {
        let is_due = self.notify.deadline().is_some_and(|at| at <= now);
        // As long as the old binary runs, it is the main process of the service.
        let is_main = !self.binaries.has_old();
        if is_main && (has_said || (is_due && self.serving.is_turning(now))) {
            self.notify.alive(now);
        } else if is_due {
            self.notify.put_off(now);
        }
    }

    /// Opens all logs again. Where that fails, the old file goes on.
    fn reopen_logs(&mut self) {
        self.serving.reopen_logs(&self.sinks, &self.console);
        self.sinks.reopen();
    }

    pub(super) fn notice(&self, message: std::fmt::Arguments<'_>) {
        self.console.report(Level::Notice, message);
    }
}
