//! One worker process, as its master sees it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitStatus, kill_process, pidfd_open,
    waitid,
};
use tailwater_commands::cli::Purge;
use tailwater_commands::output::console::{Console, Fault};
use tw_app::cache::PURGES_MAX;
use tw_base::Errno;
use tw_log::Level;
use tw_rt::signal::ReceivedSignal;

use super::control::Client;
use super::liveness::LivenessTimer;
use super::processes::{Processes, ToldProcesses};
use super::script_processes::{NewProcess, ScriptProcesses};
use super::signal_queue::SignalQueue;
use crate::ipc::channel::{Channel, Keys, ReadResult, WorkerCommand, WorkerReply};
use crate::worker::process::TITLE;

/// The file this process runs, whatever has its name now.
const OURSELVES: &str = "/proc/self/exe";
/// Time between the end of a process's channel and its own end, after which the reason is reported as unknown.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
// DIFF(nginx): a worker process that the kernel holds is not waited for.
/// Interval of looks whether a process that leaves has ended except for threads that wait in the kernel, for a disk or
/// another machine. Nothing ends those.
const STUCK_INTERVAL: Duration = Duration::from_secs(1);
/// Looks in a row that have to find that before it is no longer waited for.
const STUCK_LOOKS: u32 = 3;
/// Most messages of a worker process within [`TALK_SPAN`]. It sends one every few seconds.
const TALK_MAX: u32 = 100;
/// See [`TALK_MAX`].
const TALK_SPAN: Duration = Duration::from_secs(1);

/// A worker process that has not been waited for.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    channel: Channel,
    /// Time of the start.
    pub(super) since: Instant,
    /// Time at which it is ended by force.
    pub(super) until: Option<Instant>,
    /// True if it was told to serve: it gives signs of life.
    serves: bool,
    /// Set if it was given a configuration and has not answered.
    pub(super) owes_answer: bool,
    /// Set if it never served and is not needed any more.
    pub(super) is_discarded: bool,
    /// Set if another process has replaced it because it was silent.
    pub(super) is_silent: bool,
    /// Duration of its silence.
    pub(super) silence: LivenessTimer,
    /// Time of the next look whether it is stuck, and how often that was found.
    stuck: (Instant, u32),
    is_killed: bool,
    talk: MessageRate,
    /// Knowledge of other worker processes.
    pub(super) links: ToldProcesses,
    /// Script processes, which end with the worker process.
    pub(super) scripts: ScriptProcesses,
    /// Keys of session tickets as it sent them last, or those of an earlier process.
    keys: Rc<RefCell<Keys>>,
    /// Clients that wait for the end of a purge, by its number. Without an answer their connections are closed.
    purges: HashMap<u64, Client>,
    last_purge: u64,
}

/// Reason why a process does not serve.
#[derive(Debug)]
pub(super) enum Failure {
    /// Refused with a reason. The process is as before.
    Refused(Fault),
    /// Too many files are open. The process is as before.
    Full(Fault),
    /// No answer in time; it may serve the old or the new configuration.
    Silent(Fault),
    /// The process serves and has given no sign of life for too long, and may serve the one or the other.
    Unresponsive(Fault),
    /// The channel is closed.
    Lost(Fault),
    /// There was no time to wait for it.
    Interrupted(ReceivedSignal),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(fault)
            | Failure::Full(fault)
            | Failure::Silent(fault)
            | Failure::Unresponsive(fault)
            | Failure::Lost(fault) => fault,
            Failure::Interrupted(received) => Self {
                level: Level::Warn,
                ..Self::emerg(format!("{received} while a worker process was loading the configuration"))
            },
        }
    }
}

impl Child {
    /// Starts one, which waits for its orders. `env` is its whole environment, `keys` is where those that it makes are kept.
    pub(super) fn start(env: &[(OsString, OsString)], keys: Rc<RefCell<Keys>>) -> Result<Self, Fault> {
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
        // The master waits for the process by its number, as for every other child.
        Ok(Self::of(Pid::from_child(&child), channel, keys))
    }

    fn of(pid: Pid, channel: Channel, keys: Rc<RefCell<Keys>>) -> Self {
        let since = Instant::now();
        Self {
            pid,
            channel,
            since,
            until: None,
            serves: false,
            owes_answer: false,
            is_discarded: false,
            is_silent: false,
            silence: LivenessTimer::begin(since),
            stuck: (since, 0),
            is_killed: false,
            talk: MessageRate { since, count: 0 },
            links: ToldProcesses::default(),
            scripts: ScriptProcesses::default(),
            keys,
            purges: HashMap::new(),
            last_purge: 0,
        }
    }

    /// Process number.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Gives an order. An error means that it can be told nothing any more.
    pub(super) fn order(&self, order: &WorkerCommand, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.channel.send(order, fds)
    }

    /// Tells it of other worker processes, as far as it does not know them. One that cannot be told is about to end.
    pub(super) fn tell_of_processes(&mut self, processes: &Processes) {
        for (order, socket) in self.links.next_orders(processes) {
            let _ = self.channel.send(&order, socket.as_slice());
        }
    }

    /// Starts script processes that are missing, and gives their sockets to the worker process. One that cannot be told is about to end.
    pub(super) fn start_scripts(&mut self, now: Instant, console: &Console) {
        for NewProcess { set, pid, links } in self.scripts.start_missing(now, console) {
            let loops = links.iter().map(|link| link.event_loop).collect();
            let sockets: Vec<_> = links.iter().map(|link| link.socket.as_fd()).collect();
            let pid = pid.as_raw_nonzero().get().cast_unsigned();
            let _ = self.channel.send(&WorkerCommand::AddScriptProcess { set, pid, loops }, &sockets);
        }
    }

    /// Lets it purge for a client, who gets its answer.
    pub(super) fn purge(&mut self, client: Client, order: Purge) {
        if self.purges.len() >= PURGES_MAX {
            return client.respond(false, &[Fault::emerg("too many purges wait for a disk")]);
        }
        self.last_purge += 1;
        match self.order(&WorkerCommand::Purge(self.last_purge, order), &[]) {
            Ok(()) => drop(self.purges.insert(self.last_purge, client)),
            Err(error) => {
                let text = format!(
                    "no message can be sent to worker process {} ({})",
                    self.pid,
                    Errno::from(&error)
                );
                client.respond(false, &[Fault::emerg(text)]);
            }
        }
    }

    /// Sends an order, waiting until then for a process that reads late. Several orders share one deadline.
    pub(super) fn order_until(
        &self,
        until: Instant,
        order: &WorkerCommand,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.channel.send_until(until, order, fds)
    }

    /// Lets a started process serve. From here on it may have clients: it is told to end, not killed.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        let pid = self.pid;
        self.order(&WorkerCommand::Begin, &[]).map_err(|error| {
            let errno = Errno::from(&error);
            Failure::Lost(Fault::emerg(format!("worker process {pid} cannot be started ({errno})")))
        })?;
        self.serves = true;
        Ok(())
    }

    /// Orders it to serve a configuration.
    pub(super) fn order_configuration(
        &mut self,
        order: &WorkerCommand,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Failure> {
        let pid = self.pid;
        if let Err(error) = self.order(order, fds) {
            let mode = match error.kind() {
                io::ErrorKind::BrokenPipe => self.exit_reason(),
                _ => format!("cannot be told ({})", Errno::from(&error)),
            };
            return Err(Failure::Lost(Fault::emerg(format!("worker process {pid} {mode}"))));
        }
        self.owes_answer = true;
        Ok(())
    }

    /// Waits until it serves the configuration it was ordered to serve, or only has to [begin](Self::begin), at most until
    /// `deadline`. One that serves gives signs of life while it loads, and is not waited for without them.
    pub(super) fn wait_until_configured(
        &mut self,
        deadline: Instant,
        inbox: &SignalQueue,
        is_daemon: bool,
    ) -> Result<(), Failure> {
        let pid = self.pid;
        loop {
            match self.listen() {
                ReadResult::Message(WorkerReply::Serving) => return Ok(()),
                ReadResult::Message(WorkerReply::Refused { message, hint }) => {
                    let hint = hint.as_deref().map(without_controls);
                    let fault = Fault { hint, ..Fault::emerg(without_controls(&message)) };
                    return Err(Failure::Refused(fault));
                }
                ReadResult::Message(WorkerReply::Full) => {
                    let text = format!("worker process {pid} has too many open files");
                    return Err(Failure::Full(Fault::emerg(text)));
                }
                ReadResult::Message(_) => {}
                ReadResult::Nothing => {
                    if let Some(received) = inbox.interruption(is_daemon).ok().flatten() {
                        return Err(Failure::Interrupted(received));
                    }
                    let now = Instant::now();
                    if self.serves && self.silence.is_too_long(now) {
                        let fault = Fault::emerg(format!("worker process {pid} gives no sign of life"));
                        return Err(Failure::Unresponsive(fault));
                    }
                    if !self.wait(inbox, deadline) {
                        let fault = Fault::emerg(format!("worker process {pid} does not answer"));
                        return Err(Failure::Silent(fault));
                    }
                }
                ReadResult::Gone => {
                    let mode = self.exit_reason();
                    return Err(Failure::Lost(Fault::emerg(format!("worker process {pid} {mode}"))));
                }
                ReadResult::Malformed => {
                    return Err(Failure::Lost(Fault::emerg(format!(
                        "worker process {pid} answers nonsense"
                    ))));
                }
            }
        }
    }

    /// Waits until it or a signal has something to say; false if that is not before `deadline`.
    fn wait(&self, inbox: &SignalQueue, deadline: Instant) -> bool {
        let now = Instant::now();
        let until = if self.serves { deadline.min(self.silence.next_look()) } else { deadline };
        let timeout = Timespec::try_from(until.saturating_duration_since(now)).ok();
        let mut fds = [PollFd::new(self, PollFlags::IN), PollFd::new(inbox, PollFlags::IN)];
        // If polling fails, the next read from the descriptors reports why, or the deadline passes.
        let _ = poll(&mut fds, timeout.as_ref());
        now < deadline
    }

    /// Reads one message. Messages cannot block the master or make it grow; a process that sends too many is faulty.
    pub(super) fn listen(&mut self) -> ReadResult<WorkerReply> {
        let arrived = self.channel.answer();
        let now = Instant::now();
        if let ReadResult::Message(_) = arrived {
            self.silence = LivenessTimer::begin(now);
        }
        if let ReadResult::Message(WorkerReply::Purged { number, is_done, said }) = &arrived
            && let Some(client) = self.purges.remove(number)
        {
            let level = if *is_done { Level::Notice } else { Level::Error };
            let said = said.iter().map(|said| Fault { level, ..Fault::emerg(without_controls(said)) });
            client.respond(*is_done, &said.collect::<Vec<_>>());
            return ReadResult::Nothing;
        }
        if let ReadResult::Message(WorkerReply::Keys(keys)) = arrived {
            if self.talk.is_too_much(now) {
                return ReadResult::Malformed;
            }
            self.keys.replace(keys);
            return ReadResult::Nothing;
        }
        match &arrived {
            ReadResult::Message(WorkerReply::Serving | WorkerReply::Refused { .. } | WorkerReply::Full)
                if self.owes_answer =>
            {
                self.owes_answer = false;
            }
            ReadResult::Message(_) if self.talk.is_too_much(now) => return ReadResult::Malformed,
            _ => {}
        }
        arrived
    }

    /// Closes the channel for commands; the worker takes that as the end of its master and finishes its requests.
    pub(super) fn hang_up(&self) {
        self.channel.stop_talking();
    }

    /// Hears nothing more from it.
    pub(super) fn stop_listening(&mut self) {
        self.purges.clear();
        self.channel.stop_listening();
    }

    /// Ends it by force.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        // The process may have ended, but its number is not reused before it is waited for.
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Returns the time of the next look of [`is_stuck`](Self::is_stuck).
    pub(super) fn next_look(&self) -> Instant {
        self.stuck.0
    }

    /// Returns true if it has ended, or was killed, some time ago, and the kernel still holds threads of it.
    pub(super) fn is_stuck(&mut self, now: Instant) -> bool {
        let (next, looks) = &mut self.stuck;
        if now < *next {
            return false;
        }
        *next = now + STUCK_INTERVAL;
        *looks = if self.is_killed || is_first_thread_over(self.pid) { *looks + 1 } else { 0 };
        *looks > STUCK_LOOKS
    }

    /// For one that closed its channel instead of serving.
    fn exit_reason(&self) -> String {
        let end = self.end().map_or_else(|| "closed its channel".to_owned(), |end| end.to_string());
        format!("{end} before it served the configuration")
    }

    /// Exit status, if it ends within a moment. It has to be waited for all the same.
    fn end(&self) -> Option<ProcessEnd> {
        let process = pidfd_open(self.pid, PidfdFlags::empty()).ok()?;
        let timeout = Timespec::try_from(EXIT_TIMEOUT).ok();
        poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref()).ok()?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid), look).ok()?.map(|status| ProcessEnd::from(&status))
    }
}

/// Returns true if the first thread of a process has ended. The process has, too, as soon as the others have.
fn is_first_thread_over(pid: Pid) -> bool {
    // `123 (name) Z …`; without procfs it is unknown.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

/// Removes controls from the text of a worker process, which is shown on the terminal that ordered a reload: no line
/// that looks like another process's, no control sequence.
fn without_controls(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Readable when [`Child::listen`] has something.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Number of its recent messages.
#[derive(Debug)]
struct MessageRate {
    since: Instant,
    count: u32,
}

impl MessageRate {
    /// Counts one more message.
    fn is_too_much(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= TALK_SPAN {
            *self = Self { since: now, count: 0 };
        }
        self.count += 1;
        self.count > TALK_MAX
    }
}

/// Exit status of a process, as nginx words it: `exited on signal 9`, `exited with code 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessEnd {
    pub(super) signal: Option<i32>,
    pub(super) code: Option<i32>,
    pub(super) has_core: bool,
}

impl ProcessEnd {
    /// Returns `true` if it ended without an error.
    pub(super) fn is_clean(self) -> bool {
        self.code == Some(0)
    }
}

impl From<WaitStatus> for ProcessEnd {
    fn from(status: WaitStatus) -> Self {
        Self {
            signal: status.terminating_signal(),
            code: status.exit_status(),
            has_core: status.as_raw() & CORE_DUMPED != 0,
        }
    }
}

impl From<&WaitIdStatus> for ProcessEnd {
    fn from(status: &WaitIdStatus) -> Self {
        Self { signal: status.terminating_signal(), code: status.exit_status(), has_core: status.dumped() }
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.signal, self.code) {
            (Some(signal), _) => {
                let core = if self.has_core { " (core dumped)" } else { "" };
                write!(f, "exited on signal {signal}{core}")
            }
            (None, Some(code)) => write!(f, "exited with code {code}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

/// `WCOREFLAG`
const CORE_DUMPED: i32 = 0x80;

#[cfg(test)]
pub(super) mod tests;
