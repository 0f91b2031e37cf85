//! The worker processes: one that serves, and those that finish open requests.
//!
//! ```text
//! start ─ Begin ─► current ─ Configure ─► current            a reload in place
//!                     ├───── Quit ──────► leaving ─► ended   WINCH, QUIT, or another process takes over
//!                     └ dies, leaves by itself, talks nonsense, cannot be told anything, gives no sign of life
//!                                                            └─► another one, with the same sockets
//! ```
//! A silent process may be stopped or hang. The master orders it to leave, which it does when it continues; if a
//! second one is silent, the first is killed.
//!
//! Whatever a worker process does, the master stays in control: it waits for answers only, at most [`LOAD_TIMEOUT`],
//! and not when a signal orders an end meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitStatus};
use tw_base::Errno;
use tw_conf::MemoryFiles;
use tw_core::event_loop::Reloads;
use tw_log::Level;

use super::child::{Child, Failure, ProcessEnd};
use super::control::Client;
use super::handover::Handover;
use super::liveness::{LIVENESS_TIMEOUT, LivenessTimer};
use super::processes::{ProcessState, Processes, ToldProcesses};
use super::signal_queue::SignalQueue;
use crate::certificate_watch::WatchedCertificates;
use crate::channel::{Configure, Keys, Purge, ReadResult, SEND_TIMEOUT, Text, WorkerCommand, WorkerReply};
use crate::console::{Console, Fault};
use crate::packet;
use crate::worker::SHUTDOWN_TIMEOUT;
use crate::worker::sandbox::SandboxRules;

/// Longest time to load a configuration. A large one needs a second.
pub(super) const LOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// After two worker processes in a row that lived shorter than this, the next one waits as long.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Longest time to end after the limit. The process writes its logs to the end.
const STOP_TIMEOUT: Duration = SHUTDOWN_TIMEOUT.saturating_add(Duration::from_secs(1));

/// Way of adopting a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdoptionMode {
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
    /// Rights of the serving process: those it needed since its start.
    rules: SandboxRules,
    /// Set if the last process ended too soon.
    short_life: bool,
    /// Time of the next start, if it is delayed.
    again_at: Option<Instant>,
    /// Numbers of reloads, which every process that serves gets.
    reloads: Reloads,
    /// Signals that may be more urgent than the answer of a worker process.
    inbox: Rc<SignalQueue>,
    /// Worker processes of all binaries, which pass datagrams to each other.
    pub(super) links: Processes,
}

impl Workers {
    /// Starts the first one, and waits until it serves. There is none when a signal came that orders the end.
    pub(super) fn start(
        handover: Handover,
        inbox: Rc<SignalQueue>,
        mut links: Processes,
        console: &Console,
    ) -> Result<Self, Fault> {
        let mut leaving = Vec::new();
        let current = match begin(&handover, &mut leaving, (&inbox, &mut links), console) {
            Ok(child) => Some(child),
            // Who looks for signals next finds it.
            Err(Failure::Interrupted(_)) => None,
            Err(failure) => return Err(failure.into()),
        };
        let rules = handover.rules.clone();
        let (short_life, reloads) = (false, Reloads::default());
        let mut this =
            Self { current, leaving, handover, rules, short_life, again_at: None, reloads, inbox, links };
        this.begins(this.current.as_ref().and_then(|child| child.links.own));
        Ok(this)
    }

    /// Makes the worker serve `handover`, and waits until it does. On an error the one that runs goes on as before.
    pub(super) fn change(
        &mut self,
        handover: Handover,
        way: AdoptionMode,
        console: &Console,
    ) -> Result<(), Fault> {
        let handover = Handover { keys: self.handover.keys.clone(), ..handover };
        let can_follow = way == AdoptionMode::InPlace && self.can_follow(&handover);
        let followed = match self.current.as_mut().filter(|_| can_follow) {
            Some(child) => configure(child, &handover, &self.inbox).map(|()| true),
            None => Ok(false),
        };
        match followed {
            Ok(true) => {}
            Ok(false) | Err(Failure::Full(_)) => {
                let child = begin(&handover, &mut self.leaving, (&self.inbox, &mut self.links), console)?;
                self.replace_by(child, handover.rules.clone());
            }
            Err(Failure::Unresponsive(_)) => self.replace_silent(Some(&handover), console)?,
            Err(failure) => {
                if let Failure::Lost(_) = failure {
                    self.remove_current(|child| child.kill(), console);
                }
                return Err(failure.into());
            }
        }
        self.again_at = None;
        self.handover = handover;
        Ok(())
    }

    /// Lets another process take the place of the one that serves.
    fn replace_by(&mut self, child: Child, rules: SandboxRules) {
        // First, so that the other one leaves receiving to this one.
        self.begins(child.links.own);
        self.release(true, sessions_to(&child));
        self.current = Some(child);
        self.rules = rules;
        self.send_reloads();
    }

    /// Takes note that the process with this identity serves.
    fn begins(&mut self, own: Option<u32>) {
        self.links.set_state(own, ProcessState::Serving);
        self.tell_of_processes();
    }

    /// Tells the worker processes of others that they do not know.
    fn tell_of_processes(&mut self) {
        for child in self.leaving.iter_mut().chain(&mut self.current) {
            child.tell_of_processes(&self.links);
        }
    }

    /// Takes note of processes of other binaries, and of those that have ended.
    pub(super) fn follow_processes(&mut self) {
        self.links.follow();
        self.tell_of_processes();
    }

    /// Replaces the process for the configuration that is served already. If no other process can be started, the
    /// serving one continues.
    fn replace(&mut self, console: &Console) {
        match begin(&self.handover, &mut self.leaving, (&self.inbox, &mut self.links), console) {
            Ok(child) => self.replace_by(child, self.handover.rules.clone()),
            Err(failure) => console.fault(&failure.into()),
        }
    }

    /// Returns `true` if the serving process can serve `handover` as well: it has the user and the rights, and is known
    /// to serve the configuration that the master has.
    fn can_follow(&self, handover: &Handover) -> bool {
        let fixed = |handover: &Handover| (handover.identity.clone(), handover.env.clone());
        fixed(&self.handover) == fixed(handover)
            && self.rules.covers(&handover.rules)
            && self.current.as_ref().is_some_and(|child| !child.owes_answer)
    }

    /// Replaces the current worker after it has given no sign of life. The new one serves `handover`, or the current
    /// configuration.
    fn replace_silent(&mut self, handover: Option<&Handover>, console: &Console) -> Result<(), Failure> {
        let Some(pid) = self.current.as_ref().map(Child::pid) else { return Ok(()) };
        let timeout = LIVENESS_TIMEOUT.as_secs();
        console.report(
            Level::Alert,
            format_args!(
                "worker process {pid} has given no sign of life for {timeout} s, another one takes its place"
            ),
        );
        self.end_silent(console);
        let handover = handover.unwrap_or(&self.handover);
        let rules = handover.rules.clone();
        let another = begin(handover, &mut self.leaving, (&self.inbox, &mut self.links), console);
        if let Some(child) = &mut self.current {
            child.is_silent = another.is_ok();
            // Without another one it keeps its place, for as long again.
            child.silence = LivenessTimer::begin(Instant::now());
        }
        self.replace_by(another?, rules);
        Ok(())
    }

    /// Ends those that were replaced because they gave no sign of life: they have had their time to go on.
    fn end_silent(&mut self, console: &Console) {
        for child in self.leaving.iter_mut().filter(|child| child.is_silent) {
            let pid = child.pid();
            console.report(Level::Alert, format_args!("worker process {pid} was silent, too, killing it"));
            child.kill();
        }
    }

    /// Starts one again if none serves, with what the last one had.
    pub(super) fn resume(&mut self, console: &Console) {
        if self.current.is_some() {
            return;
        }
        self.again_at = None;
        match begin(&self.handover, &mut self.leaving, (&self.inbox, &mut self.links), console) {
            Ok(child) => {
                self.begins(child.links.own);
                self.current = Some(child);
                self.rules = self.handover.rules.clone();
                self.send_reloads();
            }
            Err(failure) => {
                console.fault(&failure.into());
                self.again_at = Some(Instant::now() + SHORT_LIFE);
            }
        }
    }

    /// Lets the one that serves purge for a client, who gets its answer.
    pub(super) fn purge(&mut self, client: Client, order: Purge) {
        match &mut self.current {
            Some(child) => child.purge(client, order),
            None => client.respond(false, &[Fault::emerg("no worker process serves")]),
        }
    }

    /// Passes a client of the control API on to the one that serves.
    pub(super) fn send_metrics(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        match &self.current {
            Some(child) => child.order(&WorkerCommand::SendMetrics, &[client]),
            None => Err(io::Error::other("no worker process serves")),
        }
    }

    /// Certificates that are followed, as they were when the configuration was read.
    pub(super) fn used(&self) -> WatchedCertificates {
        self.handover.used.clone()
    }

    /// Has the one that serves use other files of a certificate, and the next one, too.
    pub(super) fn renew(&mut self, files: &MemoryFiles, console: &Console) {
        self.handover.renew(files);
        let Some(child) = &self.current else { return };
        if let Err(error) = child.order(&WorkerCommand::Renew(texts(files)), &[]) {
            let (pid, errno) = (child.pid(), Errno::from(&error));
            console.report(Level::Alert, format_args!("worker process {pid} cannot be told ({errno})"));
            self.remove_current(|child| child.hang_up(), console);
        }
    }

    /// All processes, and whether each is about to end.
    pub(super) fn processes(&self) -> Vec<(Pid, bool)> {
        let current = self.current.iter().map(|child| (child.pid(), false));
        current.chain(self.leaving.iter().map(|child| (child.pid(), true))).collect()
    }

    /// Sets the numbers of reloads.
    pub(super) fn set_reloads(&mut self, reloads: Reloads) {
        self.reloads = reloads;
        self.send_reloads();
    }

    /// Sends the numbers of reloads to the process that serves. A process that cannot be reached is noticed by what it has to answer.
    fn send_reloads(&self) {
        let Reloads { succeeded, failed, has_last_failed, last_success } = self.reloads;
        let order = WorkerCommand::Reloads { succeeded, failed, has_last_failed, last_success };
        if let Some(child) = self.current.as_ref().filter(|_| self.reloads != Reloads::default()) {
            let _ = child.order(&order, &[]);
        }
    }

    /// Keys of session tickets, for another binary.
    pub(super) fn keys(&self) -> Keys {
        self.handover.keys.borrow().clone()
    }

    /// The log files in use.
    pub(super) fn logs(&self) -> impl Iterator<Item = &(PathBuf, OwnedFd)> {
        self.handover.logs.iter()
    }

    /// Goes on in these log files.
    pub(super) fn reopen(&mut self, logs: Vec<(PathBuf, OwnedFd)>, console: &Console) {
        self.handover.logs = logs;
        let names = self.handover.logs.iter().map(|(name, _)| name.as_os_str().as_bytes().to_vec());
        let order = WorkerCommand::Reopen(names.collect());
        let fds: Vec<_> = self.handover.logs.iter().map(|(_, file)| file.as_fd()).collect();
        let (mut is_lost, until) = (false, Instant::now() + SEND_TIMEOUT);
        for child in self.leaving.iter().chain(&self.current) {
            if let Err(error) = child.order_until(until, &order, &fds) {
                let (pid, errno) = (child.pid(), Errno::from(&error));
                console.report(Level::Alert, format_args!("worker process {pid} cannot be told ({errno})"));
                is_lost = self.current.as_ref().is_some_and(|current| current.pid() == pid);
            }
        }
        if is_lost {
            self.remove_current(|child| child.hang_up(), console);
        }
    }

    /// Lets the one that serves take over sessions over datagrams. Without them it serves all the same.
    pub(super) fn take_sessions(&self, from: &OwnedFd) {
        if let Some(child) = &self.current {
            let _ = child.order(&WorkerCommand::TakeSessions, &[from.as_fd()]);
        }
    }

    /// Lets the one that serves finish what it does, accepting nothing more. `is_replaced` if another process has its sockets, or will have
    /// them. It hands over its sessions over datagrams to the process at the other end of `next`.
    pub(super) fn release(&mut self, is_replaced: bool, next: Option<OwnedFd>) {
        self.again_at = None;
        // It keeps the time itself, unless it hangs.
        let timeout = self.handover.shutdown_timeout.map(|timeout| timeout.saturating_add(STOP_TIMEOUT));
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(mut child) = self.current.take() {
            self.links.set_state(child.links.own, ProcessState::Leaving);
            child.tell_of_processes(&self.links);
            let receiver = self.links.receiver().filter(|_| child.links.own.is_some());
            let is_replaced = is_replaced && receiver.is_none() && !self.links.has_new();
            let is_told =
                next.map_or(Ok(()), |next| child.order(&WorkerCommand::HandOverSessions, &[next.as_fd()]));
            if is_told.and_then(|()| child.order(&WorkerCommand::Quit { is_replaced }, &[])).is_err() {
                child.hang_up();
            }
            child.stop_listening();
            child.until = until;
            self.leaving.push(child);
        }
    }

    /// Ends all of them.
    pub(super) fn stop(&mut self) {
        self.again_at = None;
        self.leaving.extend(self.current.take());
        let now = Instant::now();
        for child in &mut self.leaving {
            if child.order_until(now + SEND_TIMEOUT, &WorkerCommand::Stop, &[]).is_err() {
                child.kill();
            }
            child.until = Some(now + STOP_TIMEOUT);
        }
    }

    /// Lets go of the sockets.
    pub(super) fn close_sockets(&mut self) {
        self.handover.sockets = Arc::default();
    }

    /// Returns `true` if there is no process.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && self.leaving.is_empty() && self.again_at.is_none()
    }

    /// Takes note of the end of a process; `false` if it was none of ours.
    pub(super) fn ended(&mut self, pid: Pid, status: WaitStatus, console: &Console) -> bool {
        let end = ProcessEnd::from(status);
        let reply = |is_discarded: bool| {
            let level = if end.is_clean() || is_discarded { Level::Notice } else { Level::Alert };
            console.report(level, format_args!("worker process {pid} {end}"));
        };
        if let Some(at) = self.leaving.iter().position(|child| child.pid() == pid) {
            self.follow_processes();
            reply(self.leaving.swap_remove(at).is_discarded);
            return true;
        }
        let Some(child) = self.current.take_if(|child| child.pid() == pid) else { return false };
        reply(false);
        self.links.set_state(child.links.own, ProcessState::Gone);
        self.start_another(child.since, console);
        true
    }

    /// Removes a process that does not serve any more without an order to leave.
    fn remove_current(&mut self, end: impl FnOnce(&mut Child), console: &Console) {
        if let Some(mut child) = self.current.take() {
            let since = child.since;
            end(&mut child);
            child.stop_listening();
            self.links.set_state(child.links.own, ProcessState::Leaving);
            self.leaving.push(child);
            self.start_another(since, console);
        }
    }

    /// Starts one in the place of one that lived `since` then.
    fn start_another(&mut self, since: Instant, console: &Console) {
        let now = Instant::now();
        let lived_short = now.duration_since(since) < SHORT_LIFE;
        if std::mem::replace(&mut self.short_life, lived_short) && lived_short {
            console.report(
                Level::Alert,
                format_args!("worker processes do not live long, the next one starts in a second"),
            );
            self.again_at = Some(now + SHORT_LIFE);
        } else {
            self.resume(console);
        }
    }

    /// Does what is due: starts a worker again, replaces one that is silent, ends those that do not end.
    pub(super) fn expire(&mut self, now: Instant, console: &Console) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.resume(console);
        }
        if self.current.as_mut().is_some_and(|child| child.silence.is_too_long(now)) {
            let replaced = self.replace_silent(None, console);
            replaced.unwrap_or_else(|failure| console.fault(&failure.into()));
        }
        for child in &mut self.leaving {
            if child.until.take_if(|until| *until <= now).is_some() {
                console.report(
                    Level::Alert,
                    format_args!("worker process {} does not end, killing it", child.pid()),
                );
                child.kill();
            }
        }
        self.leaving.retain_mut(|child| {
            let is_stuck = child.is_stuck(now);
            if is_stuck {
                let pid = child.pid();
                let why = "has ended except for threads that a disk holds, it is not waited for";
                console.report(Level::Alert, format_args!("worker process {pid} {why}"));
            }
            !is_stuck
        });
    }

    /// Time of the next [`expire`](Self::expire).
    pub(super) fn deadline(&self) -> Option<Instant> {
        let look = self.current.as_ref().map(|child| child.silence.next_look());
        let stuck = self.leaving.iter().map(Child::next_look);
        self.leaving
            .iter()
            .filter_map(|child| child.until)
            .chain(stuck)
            .chain(self.again_at)
            .chain(look)
            .min()
    }

    /// Reads unrequested messages of the current worker. Returns true if its loops have turned.
    pub(super) fn listen(&mut self, console: &Console) -> bool {
        let Some(child) = &mut self.current else { return false };
        let (pid, owed_answer) = (child.pid(), child.owes_answer);
        let alert = |what: &str| console.report(Level::Alert, format_args!("worker process {pid} {what}"));
        match child.listen() {
            ReadResult::Message(WorkerReply::Turning) => return true,
            ReadResult::Nothing => {}
            ReadResult::Message(WorkerReply::Refused { .. }) if owed_answer => {}
            ReadResult::Message(WorkerReply::Serving) if owed_answer => {
                alert("took a configuration too late, another one takes its place");
                self.remove_current(|child| child.hang_up(), console);
            }
            // It has got no log files, and would go on in those that were moved away.
            ReadResult::Message(WorkerReply::Full) => self.replace(console),
            ReadResult::Message(WorkerReply::Leaving) => self.remove_current(|_| {}, console),
            // It is about to end, and a signal will tell how. One that only says nothing more is ended.
            ReadResult::Gone => {
                self.remove_current(|child| child.until = Some(Instant::now() + SHORT_LIFE), console)
            }
            ReadResult::Message(
                WorkerReply::Serving
                | WorkerReply::Refused { .. }
                | WorkerReply::Purged { .. }
                | WorkerReply::Keys(_),
            )
            | ReadResult::Nonsense => {
                alert("says what no worker process says, killing it");
                self.remove_current(|child| child.kill(), console);
            }
        }
        false
    }

    /// Readable when [`listen`](Self::listen) has something.
    pub(super) fn voice(&self) -> Option<BorrowedFd<'_>> {
        self.current.as_ref().map(AsFd::as_fd)
    }
}

/// Way of the sessions over datagrams of another process to `child`; `None` if there is none: they end in the other process.
fn sessions_to(child: &Child) -> Option<OwnedFd> {
    let (ours, theirs) = packet::pair().ok()?;
    child.order(&WorkerCommand::TakeSessions, &[theirs.as_fd()]).ok()?;
    Some(ours)
}

/// Starts a worker process, waits until it can serve, and lets it. One that does not is among those that leave; it has
/// served nobody.
fn begin(
    handover: &Handover,
    leaving: &mut Vec<Child>,
    (inbox, processes): (&SignalQueue, &mut Processes),
    console: &Console,
) -> Result<Child, Failure> {
    let mut child = Child::start(&handover.env, handover.keys.clone()).map_err(Failure::Refused)?;
    console.report(Level::Notice, format_args!("start worker process {}", child.pid()));
    let begun = configure(&mut child, handover, inbox).and_then(|()| {
        join(&mut child, processes);
        child.begin()
    });
    match begun {
        Ok(()) => Ok(child),
        Err(failure) => {
            child.is_discarded = true;
            match failure {
                // It ends by itself.
                Failure::Refused(_) => child.until = Some(Instant::now() + STOP_TIMEOUT),
                _ => child.kill(),
            }
            leaving.push(child);
            Err(failure)
        }
    }
}

/// Lets a process that is about to serve pass datagrams to others, and get those of its connections. It does without if that fails.
fn join(child: &mut Child, processes: &mut Processes) {
    let Some((own, socket)) = processes.add() else { return };
    if child.order(&WorkerCommand::JoinProcesses(own), &[socket.as_fd()]).is_ok() {
        child.links = ToldProcesses::of(own);
        child.tell_of_processes(processes);
    }
}

fn configure(child: &mut Child, handover: &Handover, inbox: &SignalQueue) -> Result<(), Failure> {
    let (mut fds, sockets) = handover.sockets.fds();
    fds.extend(handover.logs.iter().map(|(_, file)| file.as_fd()));
    let order = WorkerCommand::Configure(Box::new(Configure {
        source: handover.source.clone(),
        files: texts(&handover.files),
        sockets,
        logs: handover.logs.iter().map(|(name, _)| name.as_os_str().as_bytes().to_vec()).collect(),
        keys: handover.keys.borrow().clone(),
        identity: handover.identity.clone(),
        is_daemon: handover.is_daemon,
        sign_interval: handover.sign_interval,
    }));
    let deadline = Instant::now() + LOAD_TIMEOUT;
    child.order_configuration(&order, &fds)?;
    drop(order);
    handover.checked.free();
    child.wait_until_configured(deadline, (inbox, handover.is_daemon))
}

fn texts(files: &MemoryFiles) -> Vec<Text> {
    let text = |(name, text): (&[u8], &[u8])| Text { name: name.to_vec(), text: text.to_vec() };
    files.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use crate::conf::Source;
    use crate::master::child::tests::{actor, inbox};
    use crate::master::handover::CheckedConfig;
    use crate::master::liveness::SIGN_INTERVAL;
    use crate::worker::sandbox::ProcessRole;
    use tw_core::shared_objects::SharedObjects;
    use tw_testkit::process::Group;
    use tw_testkit::wait;

    fn handover() -> Handover {
        let source = Source::text(b"/".to_vec(), "conf", b"events { }".to_vec());
        let config = source.load(&SharedObjects::default(), &Console::quiet()).unwrap().config;
        Handover {
            checked: CheckedConfig::default(),
            rules: SandboxRules::of(&config, ProcessRole::Worker),
            source,
            files: MemoryFiles::default(),
            concealed: Vec::new(),
            used: WatchedCertificates::new(),
            sockets: Arc::default(),
            logs: Vec::new(),
            keys: Rc::default(),
            env: Vec::new(),
            identity: None,
            is_daemon: false,
            sign_interval: SIGN_INTERVAL,
            shutdown_timeout: None,
        }
    }

    /// Workers with one that serves and one that leaves. The next one would be started later, not at once.
    fn workers(current: Child, leaving: Child) -> Workers {
        let handover = handover();
        Workers {
            current: Some(current),
            leaving: vec![leaving],
            rules: handover.rules.clone(),
            handover,
            short_life: true,
            again_at: None,
            reloads: Reloads::default(),
            inbox: Rc::new(inbox()),
            links: Processes::default(),
        }
    }

    /// Fate of the serving process.
    #[derive(Debug, PartialEq, Eq)]
    enum Fate {
        Serves,
        Leaves,
        Killed,
    }

    #[test]
    fn worker_with_an_invalid_message_is_ended_and_no_other() {
        let refused = || WorkerReply::Refused { message: "no".into(), hint: None };
        let reply = |answer: WorkerReply| move |worker: &Channel| worker.send(&answer, &[]).unwrap();
        type Act = Box<dyn Fn(&Channel)>;
        let table: [(&str, bool, Act, Fate); 8] = [
            ("turns", false, Box::new(reply(WorkerReply::Turning)), Fate::Serves),
            ("leaves", false, Box::new(reply(WorkerReply::Leaving)), Fate::Leaves),
            ("serves unasked", false, Box::new(reply(WorkerReply::Serving)), Fate::Killed),
            ("refuses unasked", false, Box::new(reply(refused())), Fate::Killed),
            (
                "nonsense",
                false,
                Box::new(|worker: &Channel| worker.send(&200_u32, &[]).unwrap()),
                Fate::Killed,
            ),
            ("closed", false, Box::new(Channel::stop_talking), Fate::Leaves),
            ("serves too late", true, Box::new(reply(WorkerReply::Serving)), Fate::Leaves),
            ("refuses too late", true, Box::new(reply(refused())), Fate::Serves),
        ];
        let console = Console::quiet();
        for (what, owes_answer, act, expected) in table {
            let ((mut current, worker, process), (leaving, _other, other_process)) = (actor(), actor());
            let pid = current.pid();
            current.owes_answer = owes_answer;
            let mut workers = workers(current, leaving);
            assert_eq!(workers.can_follow(&handover()), !owes_answer);
            act(&worker);
            assert_eq!(workers.listen(&console), what == "turns");
            let killed = |process: &Group| wait::until(wait::TIMEOUT, || process.ended());
            let fate = match workers.current {
                Some(_) => Fate::Serves,
                None if expected == Fate::Killed && killed(&process) => Fate::Killed,
                None => Fate::Leaves,
            };
            assert_eq!(fate, expected, "{what}");
            assert_eq!(process.ended(), expected == Fate::Killed, "{what}");
            assert_eq!(workers.again_at.is_some(), expected != Fate::Serves, "{what}");
            let is_leaving = workers.leaving.iter().any(|child| child.pid() == pid);
            assert_eq!(is_leaving, expected != Fate::Serves, "{what}");
            assert!(!other_process.ended(), "{what}");
            // Until it is waited for, there is nothing to listen to, and nothing to spin on.
            assert_eq!(workers.voice().is_some(), expected == Fate::Serves, "{what}");
            if what == "closed" {
                // It gets a moment to end by itself.
                workers.again_at = None;
                workers.expire(Instant::now() + SHORT_LIFE, &console);
                assert!(killed(&process));
            }
            if what == "serves too late" {
                assert!(worker.receive::<WorkerCommand>().unwrap().is_none(), "it is told to finish");
            }
        }
    }

    #[test]
    fn a_worker_process_has_its_time_to_finish() {
        let ((current, worker, _process), (leaving, ..)) = (actor(), actor());
        let mut workers = workers(current, leaving);
        workers.handover.shutdown_timeout = Some(Duration::from_secs(5));
        workers.release(false, None);
        assert!(matches!(
            worker.receive::<WorkerCommand>(),
            Ok(Some((WorkerCommand::Quit { is_replaced: false }, _)))
        ));
        let until = |workers: &Workers| workers.leaving.iter().filter_map(|child| child.until).min();
        assert!(until(&workers).is_some_and(|until| until > Instant::now() + Duration::from_secs(5)));
        workers.stop();
        assert!(matches!(worker.receive::<WorkerCommand>(), Ok(Some((WorkerCommand::Stop, _)))));
        assert!(until(&workers).is_some_and(|until| until <= Instant::now() + STOP_TIMEOUT));
        assert!(!workers.is_empty());
    }

    #[test]
    fn a_process_that_a_disk_holds_is_not_waited_for() {
        let ((current, _worker, _process), (mut killed, ..), (leaves, _other, _others)) =
            (actor(), actor(), actor());
        // Its end is not noted, as if it did not come.
        killed.kill();
        let (pid, other) = (killed.pid(), leaves.pid());
        let mut workers = workers(current, killed);
        workers.leaving.push(leaves);
        let has = |workers: &Workers, pid| workers.leaving.iter().any(|child| child.pid() == pid);
        let (console, mut looks) = (Console::quiet(), 0);
        while has(&workers, pid) {
            let due = workers.leaving.iter().map(Child::next_look).min().unwrap();
            workers.expire(due, &console);
            looks += 1;
        }
        assert!(looks > 3 && has(&workers, other), "{looks}");
        assert!(workers.deadline().is_some());
    }

    #[test]
    fn silent_worker_with_a_silent_successor_is_ended() {
        let ((current, ..), (mut silent, _, process), (leaves, _, other)) = (actor(), actor(), actor());
        silent.is_silent = true;
        let mut workers = workers(current, silent);
        workers.leaving.push(leaves);
        workers.end_silent(&Console::quiet());
        assert!(wait::until(wait::TIMEOUT, || process.ended()));
        assert!(!other.ended() && workers.current.is_some());
    }

    #[test]
    fn a_sign_of_life_ends_a_silence() {
        let ((current, worker, _process), (leaving, ..)) = (actor(), actor());
        let mut workers = workers(current, leaving);
        let console = Console::quiet();
        // Each look is in time, whatever has passed since the silence began.
        let is_too_long = |workers: &mut Workers, looks: u32| {
            let silence = &mut workers.current.as_mut().unwrap().silence;
            (0..looks).fold(false, |_, _| silence.is_too_long(silence.next_look()))
        };
        assert!(!is_too_long(&mut workers, 3));
        worker.send(&WorkerReply::Turning, &[]).unwrap();
        assert!(workers.listen(&console));
        assert!(!is_too_long(&mut workers, 3));
        assert!(is_too_long(&mut workers, 4));
    }

    /// Worker process that does not read.
    fn deaf() -> (Child, Channel, Group) {
        let actor = actor();
        while actor.0.order_until(Instant::now(), &WorkerCommand::Quit { is_replaced: false }, &[]).is_ok() {}
        actor
    }

    #[test]
    fn all_that_are_deaf_are_waited_for_together() {
        // One after the other would take a second each.
        const COUNT: u64 = 2 * wait::TIMEOUT.as_secs();
        let (sender, receiver) = std::sync::mpsc::channel();
        let master = std::thread::spawn(move || {
            let ((current, worker, _process), (leaving, ..)) = (actor(), actor());
            let mut workers = workers(current, leaving);
            let deaf = (0..COUNT).map(|_| deaf());
            let (children, _ends): (Vec<_>, Vec<_>) =
                deaf.map(|(child, channel, process)| (child, (channel, process))).unzip();
            workers.leaving = children;
            sender.send(true).unwrap();
            workers.reopen(Vec::new(), &Console::quiet());
            // The last one of all, who reads.
            sender
                .send(matches!(worker.receive::<WorkerCommand>(), Ok(Some((WorkerCommand::Reopen(_), _)))))
                .unwrap();
        });
        // To start so many processes has its time, too, but is not what is measured.
        assert_eq!(receiver.recv(), Ok(true));
        assert_eq!(receiver.recv_timeout(wait::TIMEOUT), Ok(true));
        // A thread that outlives its test would leave its processes behind.
        master.join().unwrap();
    }

    #[test]
    fn unreachable_worker_is_replaced() {
        let ((current, worker, process), (leaving, other, _other_process)) = (actor(), actor());
        drop(worker);
        let mut workers = workers(current, leaving);
        // The other process has its end, too, for a moment: its starter goes on before that is closed by exec().
        let is_lost = wait::until(wait::TIMEOUT, || {
            workers.reopen(Vec::new(), &Console::quiet());
            workers.current.is_none()
        });
        assert!(is_lost && workers.again_at.is_some() && !process.ended());
        assert!(matches!(other.receive::<WorkerCommand>(), Ok(Some((WorkerCommand::Reopen(_), _)))));
    }
}
