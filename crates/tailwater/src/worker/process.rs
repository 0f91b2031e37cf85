//! The main loop of a worker process: it obeys its master, and ends when the master is gone.
//!
//! ```text
//! exec ─ Configure ─► ready ─ Begin ─► serving ─ Configure ─► serving          a reload; refused, it serves as before
//!                                         ├─ Quit, QUIT, master gone ─► draining ─ last connection ─► end
//!                                         └─ Stop, TERM, INT ─────────────────────────────────────► end
//! ```
//! No client is served before the master has sent `Begin`: until then it may kill this process, and nothing is lost. It
//! is started from the same program file as the master, even if another one is installed meanwhile, with memory of its
//! own at addresses of its own: it contains only data of the master that was sent to it.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use tailwater_commands::configuration::process;
use tailwater_commands::output::console::{Console, Fault};
use tw_base::Errno;
use tw_core::event_loop::{PACKET_SIZE_MAX, Reloads};
use tw_core::shared_objects::SharedObjects;
use tw_js::ScriptLink;
use tw_log::{Level, Sinks};
use tw_rt::signal::{Signal, Signals};

use crate::ipc::channel::{Channel, Configure, Keys, Text, WorkerCommand, WorkerReply};

use super::life_signs::LifeSigns;
use super::purging::PurgeOutcome;
use super::session_handover::{Incoming, IncomingSessions};
use super::start::{
    Started, Taken, close_inherited, configuration_files, load, memory_files, named, start, take,
};
use super::{Server, say_exit};

/// Title of the process, by which it knows its role.
pub(crate) const TITLE: &str = "tailwater: worker process";
/// Name for `pgrep`, `killall` and `top`.
const NAME: &CStr = c"tailwater";

/// Time for the logs to take the reason of a start that failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Datagrams of other processes that are taken before something else is done.
const DATAGRAMS_AT_ONCE: usize = 256;

/// Too many files are open in this process.
const MFILE: Errno = Errno(rustix::io::Errno::MFILE.raw_os_error());

/// State of accepting connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Serving,
    Draining,
    Ended,
}

/// A worker process.
struct Worker {
    /// `None` once the master is gone.
    master: Option<Arc<Channel>>,
    signals: Signals,
    sinks: Sinks,
    console: Console,
    server: Server,
    /// Schedule of signs of life, if there is a master.
    signs: Option<LifeSigns>,
    /// Keys of session tickets, as the master was told.
    keys: Keys,
    state: State,
    /// Set if standard error is not read.
    is_daemon: bool,
    /// Sessions that the process before hands over.
    incoming: Option<IncomingSessions>,
    /// Way to the process that takes over the sessions of this one.
    next: Option<OwnedFd>,
    /// Socket on which other worker processes pass datagrams of connections of this one.
    passed: Option<OwnedFd>,
}

/// Runs a worker process to its end.
pub(crate) fn run() -> ExitCode {
    let console = Console::new();
    // Otherwise the process would be named after the link that started it. An error is harmless.
    let _ = rustix::thread::set_name(NAME);
    close_inherited();
    let started = Channel::of_stdin().and_then(|channel| Ok((channel, Signals::take()?)));
    let (channel, signals) = match started {
        Ok(started) => started,
        Err(error) => {
            console
                .fault(&Fault::emerg(format!("a worker process needs a master ({})", Errno::from(&error))));
            return ExitCode::FAILURE;
        }
    };
    let sinks = Sinks::new();
    match start(&channel, &sinks) {
        Ok(Some(Started { server, console, signs, is_daemon })) => {
            // First, so that the master never knows less than clients do.
            let keys = Keys(tw_tls_settings::export_keys());
            answer(&channel, &WorkerReply::Keys(keys.clone()));
            if answer(&channel, &WorkerReply::Serving) {
                let worker = Worker {
                    master: Some(Arc::new(channel)),
                    signals,
                    sinks,
                    console,
                    server,
                    signs,
                    keys,
                    state: State::Serving,
                    is_daemon,
                    incoming: None,
                    next: None,
                    passed: None,
                };
                worker.serve();
            }
            ExitCode::SUCCESS
        }
        // The master ended before it sent a configuration.
        Ok(None) => ExitCode::FAILURE,
        Err(fault) => {
            answer(&channel, &refusal(fault));
            // Lines that were logged until then are written.
            let _ = sinks.flush_and_close(Instant::now() + LAST_WORDS);
            ExitCode::FAILURE
        }
    }
}

fn refusal(Fault { message, hint, .. }: Fault) -> WorkerReply {
    WorkerReply::Refused { message, hint }
}

/// Returns `true` if the answer was sent; the master may have ended.
fn answer(channel: &Channel, answer: &WorkerReply) -> bool {
    channel.send(answer, &[]).is_ok()
}

impl Worker {
    fn serve(mut self) {
        while self.state != State::Ended {
            match self.wait() {
                Ok(true) => self.obey(),
                Ok(false) => {}
                Err(error) => {
                    // A wait that fails would fail again at once: better an end than a spin.
                    let errno = Errno::from(&error);
                    self.console.report(Level::Alert, format_args!("poll() failed ({errno}), exiting"));
                    break;
                }
            }
            self.report_script_processes();
            self.take_sessions();
            self.take_datagrams();
            self.server.hand_over();
            self.take_signals();
            self.show_life(Instant::now());
            self.server.reap(&self.console);
            if self.state == State::Draining && self.server.is_idle() {
                self.state = State::Ended;
            }
        }
        self.server.stop();
        say_exit(&self.sinks, &self.console);
    }

    /// Waits for an order, a signal, the end of a loop or of a loop's patience. Whether there is an order.
    fn wait(&self) -> io::Result<bool> {
        let signs = self.signs.map(|signs| signs.next);
        let until = self.server.deadline().into_iter().chain(signs).min();
        let remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
        let mut fds =
            vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.server, PollFlags::IN)];
        // The master is the third one, if there is one.
        fds.extend(self.master.as_ref().map(|master| PollFd::new(&**master, PollFlags::IN)));
        let has_master = self.master.is_some();
        fds.extend(self.incoming.as_ref().map(|incoming| PollFd::new(incoming, PollFlags::IN)));
        fds.extend(self.passed.as_ref().map(|passed| PollFd::new(passed, PollFlags::IN)));
        fds.extend(tw_js::silence_fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.server.next_process().map(|next| PollFd::from_borrowed_fd(next, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                Ok(has_master && fds.get(2).is_some_and(|order| !order.revents().is_empty()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reports script processes that do not answer to the master, which ends them.
    fn report_script_processes(&self) {
        for pid in tw_js::take_silent() {
            if let Some(master) = &self.master {
                answer(master, &WorkerReply::ScriptProcessHangs(pid));
            }
        }
    }

    /// Gives sessions of the process before to the loops.
    fn take_sessions(&mut self) {
        let Some(incoming) = &mut self.incoming else { return };
        let server = &self.server;
        if incoming.receive(|loop_index, session| server.take_over(loop_index, session)) == Incoming::Over {
            self.incoming = None;
        }
    }

    /// Gives datagrams that other worker processes pass on to the loops.
    fn take_datagrams(&mut self) {
        let mut buffer = [0; PACKET_SIZE_MAX];
        for _ in 0..DATAGRAMS_AT_ONCE {
            let Some(passed) = &self.passed else { return };
            match recv(passed, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, size @ 1..)) => {
                    self.server.take_from_process(buffer.get(..size).unwrap_or_default());
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                // The other end is closed, so nothing can arrive any more.
                Ok(_) | Err(_) => self.passed = None,
            }
        }
    }

    fn obey(&mut self) {
        let Some(master) = &self.master else { return };
        match master.receive() {
            Ok(Some((WorkerCommand::Configure(_), _))) if self.state != State::Serving => {
                answer(master, &refusal(Fault::emerg("the worker process is shutting down")));
            }
            Ok(Some((WorkerCommand::Configure(order), fds))) => {
                let say = self
                    .change(order, fds)
                    .map_or_else(|fault| self.say_why_not(fault), |()| WorkerReply::Serving);
                self.send_ticket_keys(Instant::now());
                if let Some(master) = &self.master {
                    answer(master, &say);
                }
            }
            Ok(Some((WorkerCommand::Reopen(names), fds))) => {
                self.sinks.hand_over(named(&names, fds.into_iter()));
                self.sinks.reopen();
                self.server.close_files();
            }
            Ok(Some((WorkerCommand::Renew(texts), _))) => self.renew(&texts),
            Ok(Some((WorkerCommand::Begin, _))) => self.server.begin(&self.console),
            Ok(Some((WorkerCommand::Purge(number, order), _))) => {
                // A reply is one packet, whichever thread sends it.
                let master = master.clone();
                self.server.purge(order, move |PurgeOutcome { is_done, said }| {
                    answer(&master, &WorkerReply::Purged { number, is_done, said });
                });
            }
            Ok(Some((WorkerCommand::SendMetrics, fds))) => {
                fds.into_iter().for_each(|client| self.server.send_metrics(client));
            }
            Ok(Some((WorkerCommand::SendFleetStatus, fds))) => {
                fds.into_iter().for_each(|client| self.server.send_fleet_status(client));
            }
            Ok(Some((WorkerCommand::Reloads { succeeded, failed, has_last_failed, last_success }, _))) => {
                self.server.set_reloads(Reloads { succeeded, failed, has_last_failed, last_success });
            }
            Ok(Some((WorkerCommand::JoinProcesses(own), fds))) => {
                self.server.links().set_own(own);
                self.passed = fds.into_iter().next();
            }
            Ok(Some((WorkerCommand::AddProcess(other), fds))) => {
                self.server.links().add(other, fds.into_iter().next());
            }
            Ok(Some((WorkerCommand::ReceiveDatagrams(receives), _))) => {
                self.server.set_received_elsewhere(!receives);
            }
            Ok(Some((WorkerCommand::AddScriptProcess { set, pid, loops }, fds))) => {
                for (event_loop, socket) in loops.into_iter().zip(fds) {
                    tw_js::hand_over(ScriptLink { set, pid, event_loop, socket });
                }
            }
            Ok(Some((WorkerCommand::TakeSessions, fds))) => {
                self.incoming = fds.into_iter().next().map(IncomingSessions::new);
            }
            Ok(Some((WorkerCommand::HandOverSessions, fds))) => self.next = fds.into_iter().next(),
            Ok(Some((WorkerCommand::Quit { is_replaced }, _))) => {
                if is_replaced {
                    self.server.set_replaced();
                }
                self.drain();
            }
            Ok(Some((WorkerCommand::Stop, _))) => self.state = State::Ended,
            Ok(None) => self.shut_down_without_master("the master process has ended"),
            Err(error) if Errno::from(&error) == MFILE => {
                answer(master, &self.say_full(&format!("recvmsg() failed ({MFILE})")));
            }
            Err(error) => {
                self.shut_down_without_master(&format!(
                    "no order can be read from the master ({})",
                    Errno::from(&error)
                ));
            }
        }
    }

    /// Takes over another configuration. On an error everything is as before.
    fn change(&mut self, order: Box<Configure>, mut fds: Vec<OwnedFd>) -> Result<(), Fault> {
        let mut signs = self.signs;
        let every = signs.map_or(Duration::MAX, |signs| signs.every);
        let show_life = || {
            if let (Some(signs), Some(master)) = (&mut signs, &self.master) {
                signs.show(&self.server, master, Instant::now());
            }
        };
        let files = configuration_files(&order, &mut fds);
        let load = move |previous: &SharedObjects| {
            let config = load(&order, files, previous);
            (order, config)
        };
        let (order, config) = self.server.load_while(load, every, show_life);
        self.signs = signs;
        let config = config?;
        let Taken { sockets, affinity } = take(&order, fds, &config, &self.sinks)?;
        process::keep_secrets(&config, &self.console);
        let every = order.sign_interval;
        self.signs =
            Some(self.signs.map_or_else(|| LifeSigns::every(every), |signs| signs.at(every, Instant::now())));
        self.server.change(config, Arc::new(sockets), affinity, &self.sinks, &self.console)?;
        self.console.log_to((*self.server.generation().error_log).clone());
        // As in nginx: a log that was moved away is created again.
        self.sinks.reopen();
        Ok(())
    }

    /// Uses other files of certificates. The master has seen that they fit.
    fn renew(&self, texts: &[Text]) {
        match self.server.renew(memory_files(texts)) {
            Ok(()) => {}
            Err(why) => {
                self.console.report(Level::Error, format_args!("{why}, the certificate stays as it was"))
            }
        }
    }

    /// The answer to a configuration that is not served.
    fn say_why_not(&self, fault: Fault) -> WorkerReply {
        // All messages have nginx's text for the error.
        match fault.message.contains(&format!("({MFILE})")) {
            true => self.say_full(&fault.message),
            false => refusal(fault),
        }
    }

    /// Connections may take all descriptors there are. Another process has some left.
    fn say_full(&self, message: &str) -> WorkerReply {
        let text = format_args!("{message}, so another worker process is needed");
        self.console.report(Level::Alert, text);
        WorkerReply::Full
    }

    /// Tells the master that all loops turn, if they do and it is time to.
    fn show_life(&mut self, now: Instant) {
        let (Some(signs), Some(master)) = (&mut self.signs, &self.master) else { return };
        if signs.show(&self.server, master, now) {
            self.send_ticket_keys(now);
        }
    }

    /// Gives the keys of session tickets to the master, if they have changed: for the next process.
    fn send_ticket_keys(&mut self, until: Instant) {
        let Some(master) = &self.master else { return };
        let keys = Keys(tw_tls_settings::export_keys());
        if keys != self.keys && master.send_until(until, &WorkerReply::Keys(keys.clone()), &[]).is_ok() {
            self.keys = keys;
        }
    }

    // DIFF(nginx): a worker process does not go on serving without its master.
    /// Begins a graceful shutdown without a master: no process could stop this one any more.
    fn shut_down_without_master(&mut self, why: &str) {
        self.master = None;
        self.signs = None;
        self.console.report(Level::Alert, format_args!("{why}, shutting down"));
        self.drain();
    }

    fn drain(&mut self) {
        if self.state == State::Serving {
            self.console.report(Level::Notice, format_args!("gracefully shutting down"));
            // Sessions that arrive from now on are refused.
            self.incoming = None;
            self.server.release_loops(self.next.take());
            self.server.close_sockets();
            self.state = State::Draining;
        }
    }

    /// Signals are for the master; those that end a process end this one, too.
    // DIFF(nginx): USR1 to a worker process does nothing. It can open no log; the master does, and hands it over.
    fn take_signals(&mut self) {
        while let Ok(Some(received)) = self.signals.wait(Some(Duration::ZERO)) {
            let action = match received.signal {
                Signal::Term | Signal::Int => ", exiting",
                Signal::Quit => ", shutting down",
                // A terminal that changes its size sends this signal, too, unless the server runs in the background.
                Signal::Winch if self.is_daemon => ", shutting down",
                Signal::Winch | Signal::Chld => "",
                Signal::Hup | Signal::Usr1 | Signal::Usr2 => ", ignoring",
            };
            self.console.report(Level::Notice, format_args!("{received}{action}"));
            match received.signal {
                Signal::Term | Signal::Int => self.state = State::Ended,
                Signal::Quit => self.leave(),
                Signal::Winch if self.is_daemon => self.leave(),
                Signal::Hup | Signal::Usr1 | Signal::Usr2 | Signal::Winch | Signal::Chld => {}
            }
        }
    }

    /// As the master orders it, but without an order: it starts another one.
    fn leave(&mut self) {
        if let Some(master) = self.master.as_ref().filter(|_| self.state == State::Serving) {
            answer(master, &WorkerReply::Leaving);
        }
        self.drain();
    }
}
