//! Script processes of one worker process: programs beside the server that run its scripts, each at the other end of a socket of one
//! or more event loops.
//!
//! ```text
//! missing ─ spawn ─► running ─ ends ─► missing      again at once, or later if it has lived for too short a time
//!                       └─ WorkerReply::ScriptsHang ─ KILL ─► ends
//! ```
//! Script processes end with the worker process, whose end closes their sockets. A set of them replaces another one when a reload changes
//! their number or that of the loops: those of the old set end when the loops have closed their sockets, which they also do after a reload to a
//! configuration without scripts.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use tailwater_commands::configuration::user::Identity;
use tailwater_commands::output::console::Console;
use tw_app::Config;
use tw_base::Errno;
use tw_js::ScriptUse;
use tw_log::Level;

use super::child::ProcessEnd;

/// A process that ends earlier has not served: the next one is started later.
const SHORT_LIFE: Duration = Duration::from_millis(200);
/// First and longest delay of such a start. Each delay is twice the one before.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Identity of `nobody`, for a server that runs as root.
const NOBODY: u32 = 65534;

/// Script processes that a configuration needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptNeeds {
    program: PathBuf,
    /// Number of processes.
    processes: usize,
    /// Number of event loops.
    loops: usize,
    /// User and group of the processes; `None` to keep those of the master, who is not root.
    identity: Option<(u32, u32)>,
}

/// Link of one process to one loop that is about to be handed over.
pub(super) struct NewLink {
    /// Number of the loop.
    pub(super) event_loop: usize,
    /// The end of the loop.
    pub(super) socket: OwnedFd,
}

/// Process that was started, with its links.
pub(super) struct NewProcess {
    pub(super) set: u64,
    pub(super) pid: Pid,
    pub(super) links: Vec<NewLink>,
}

/// Script processes of one worker process.
#[derive(Debug, Default)]
pub(super) struct ScriptProcesses {
    needs: Option<ScriptNeeds>,
    /// Number of the current set.
    set: u64,
    /// Processes of the current set by their number in it.
    current: Vec<Place>,
    /// Processes of earlier sets.
    retired: Vec<Pid>,
    /// True if the configuration needs no scripts any more: the processes serve requests of the ones before, and end when those are gone.
    is_draining: bool,
}

/// State of the worker process of script processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerState {
    Serving,
    /// The worker process takes no new requests, and ends when it has served those that it has.
    Leaving,
}

/// Place of one process in a set.
#[derive(Debug)]
struct Place {
    running: Option<(Pid, Instant)>,
    /// Time of the next start of a process that is missing.
    due: Instant,
    /// Delay of the next start, if the process lives for too short a time.
    delay: Duration,
}

impl ScriptNeeds {
    /// Needs of a configuration; `None` without scripts.
    pub(super) fn of(config: &Config, identity: Option<&Identity>) -> Option<Self> {
        let scripts = config.shared_objects.find::<ScriptUse>(tw_js::SCRIPT_USE)?;
        if !scripts.is_used() {
            return None;
        }
        let loops = config.main.worker_count();
        let identity = match identity {
            Some(identity) if identity.uid != 0 => Some((identity.uid, identity.gid)),
            _ if rustix::process::geteuid().is_root() => Some((NOBODY, NOBODY)),
            _ => None,
        };
        let processes = scripts.processes().unwrap_or(loops);
        Some(Self { program: scripts.program(), processes, loops, identity })
    }
}

impl ScriptProcesses {
    /// Adopts the needs of the configuration that is served now. Processes that fit go on; without needs all of them go on until the loops
    /// close their sockets, because requests of the configuration before may run.
    pub(super) fn follow(&mut self, needs: Option<&ScriptNeeds>, now: Instant) {
        let was_draining = std::mem::replace(&mut self.is_draining, needs.is_none());
        if needs.is_none() || self.needs.as_ref() == needs && !was_draining {
            return;
        }
        // After draining, the loops may have closed the sockets of the old set already.
        self.needs = needs.cloned();
        self.set += 1;
        self.retired.extend(self.current.drain(..).filter_map(|place| Some(place.running?.0)));
        let count = needs.map_or(0, |needs| needs.processes);
        let missing = || Place { running: None, due: now, delay: DELAY_MIN };
        self.current = std::iter::repeat_with(missing).take(count).collect();
    }

    /// Starts the processes that are missing and due.
    pub(super) fn start_missing(&mut self, now: Instant, console: &Console) -> Vec<NewProcess> {
        let Some(needs) = &self.needs else { return Vec::new() };
        let mut started = Vec::new();
        for (index, place) in self.current.iter_mut().enumerate() {
            if place.running.is_some() || place.due > now {
                continue;
            }
            match needs.start(index) {
                Ok((pid, links)) => {
                    place.running = Some((pid, now));
                    started.push(NewProcess { set: self.set, pid, links });
                }
                Err(error) => {
                    let program = needs.program.display();
                    let errno = Errno::from(&error);
                    console.report(
                        Level::Alert,
                        format_args!("execve() \"{program}\" failed while spawning script process ({errno})"),
                    );
                    place.put_off(now);
                }
            }
        }
        started
    }

    /// Takes note of the end of a process; `false` if it was none of these.
    pub(super) fn ended(
        &mut self,
        pid: Pid,
        end: ProcessEnd,
        worker: WorkerState,
        now: Instant,
        console: &Console,
    ) -> bool {
        if let Some(at) = self.retired.iter().position(|retired| *retired == pid) {
            self.retired.swap_remove(at);
            console.report(Level::Info, format_args!("script process {pid} {end}"));
            return true;
        }
        let is_own = |place: &Place| place.running.is_some_and(|(own, _)| own == pid);
        let Some(at) = self.current.iter().position(is_own) else { return false };
        // The loops have closed its sockets.
        if end.is_clean() && (worker == WorkerState::Leaving || self.is_draining) {
            console.report(Level::Info, format_args!("script process {pid} {end}"));
            self.current.swap_remove(at);
            return true;
        }
        let Some(place) = self.current.get_mut(at) else { return false };
        let Some((_, since)) = place.running.take() else { return false };
        if end.is_clean() {
            // The worker process has ended, which will be known before the delay is over, or has found the process faulty.
            console.report(Level::Info, format_args!("script process {pid} {end}"));
            place.put_off(now);
            return true;
        }
        console.report(Level::Warn, format_args!("script process {pid} {end}, starting another one"));
        if now.duration_since(since) < SHORT_LIFE {
            place.put_off(now);
        } else {
            place.due = now;
            place.delay = DELAY_MIN;
        }
        true
    }

    /// Ends a process that does not answer. Numbers of other processes are ignored.
    pub(super) fn kill(&mut self, pid: u32, console: &Console) {
        let all = self
            .current
            .iter()
            .filter_map(|place| Some(place.running?.0))
            .chain(self.retired.iter().copied());
        let Some(own) = all.into_iter().find(|own| own.as_raw_nonzero().get().cast_unsigned() == pid) else {
            return;
        };
        console.report(Level::Alert, format_args!("script process {pid} does not answer, killing it"));
        end(own);
    }

    /// Time of the next start.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.needs.as_ref()?;
        self.current.iter().filter(|place| place.running.is_none()).map(|place| place.due).min()
    }
}

impl Place {
    /// Delays the next start.
    fn put_off(&mut self, now: Instant) {
        self.due = now + self.delay;
        self.delay = (self.delay * 2).min(DELAY_MAX);
    }
}

impl ScriptNeeds {
    /// Loops that process number `index` serves: with as many processes as loops, each has one. With more processes, a loop has several.
    fn loops_of(&self, index: usize) -> impl Iterator<Item = usize> {
        let processes = self.processes.max(1);
        let loops = self.loops.max(1);
        let links = loops.max(processes);
        (index..links).step_by(processes).map(move |link| link % loops)
    }

    fn start(&self, index: usize) -> io::Result<(Pid, Vec<NewLink>)> {
        let mut links = Vec::new();
        let mut theirs = Vec::new();
        for event_loop in self.loops_of(index) {
            let (our, their) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            rustix::io::ioctl_fionbio(&our, true)?;
            links.push(NewLink { event_loop, socket: our });
            theirs.push(their);
        }
        let mut command = Command::new(&self.program);
        // A signal of a terminal reaches the master, who decides when script processes end.
        command.process_group(0);
        command.env_clear().current_dir(Path::new("/")).stdin(Stdio::null()).stdout(Stdio::null());
        command.arg("serve");
        if let Some((uid, gid)) = self.identity {
            // Other groups are given up, too.
            command.uid(uid).gid(gid);
        }
        for socket in &theirs {
            command.arg(socket.as_raw_fd().to_string());
            // No other thread of the master starts programs.
            fcntl_setfd(socket, FdFlags::empty())?;
        }
        let child = command.spawn()?;
        Ok((Pid::from_child(&child), links))
    }
}

impl Drop for ScriptProcesses {
    fn drop(&mut self) {
        let current = self.current.iter().filter_map(|place| Some(place.running?.0));
        current.chain(self.retired.iter().copied()).for_each(end);
    }
}

/// Ends a process, which has not been waited for.
fn end(pid: Pid) {
    // The process may have ended; its number is not used again before it is waited for.
    let _ = kill_process(pid, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(processes: usize, loops: usize) -> ScriptNeeds {
        ScriptNeeds { program: PathBuf::from("/nowhere/tailwater-scripts"), processes, loops, identity: None }
    }

    #[test]
    fn every_loop_has_a_process_and_every_process_a_loop() {
        for (processes, loops, expected) in [
            (2, 2, vec![vec![0], vec![1]]),
            (1, 3, vec![vec![0, 1, 2]]),
            (2, 3, vec![vec![0, 2], vec![1]]),
            (3, 2, vec![vec![0], vec![1], vec![0]]),
        ] {
            let needs = needs(processes, loops);
            let all: Vec<Vec<usize>> = (0..processes).map(|index| needs.loops_of(index).collect()).collect();
            assert_eq!(all, expected, "{processes} processes, {loops} loops");
        }
    }

    /// Script processes with one that runs under the number 1000.
    fn with_one_running(start: Instant) -> (ScriptProcesses, Pid) {
        let pid = Pid::from_raw(1000).unwrap();
        let mut scripts = ScriptProcesses::default();
        scripts.follow(Some(&needs(1, 1)), start);
        scripts.current[0].running = Some((pid, start));
        (scripts, pid)
    }

    #[test]
    fn process_whose_sockets_were_closed_is_replaced_only_for_a_worker_that_serves() {
        let console = Console::quiet();
        let start = Instant::now();
        let later = start + SHORT_LIFE;
        let clean = ProcessEnd { signal: None, code: Some(0), has_core: false };
        let killed = ProcessEnd { signal: Some(9), code: None, has_core: false };
        for (end, worker, is_draining, expected) in [
            (clean, WorkerState::Serving, false, Some(later + DELAY_MIN)),
            (clean, WorkerState::Serving, true, None),
            (clean, WorkerState::Leaving, false, None),
            (killed, WorkerState::Leaving, false, Some(later)),
            (killed, WorkerState::Serving, true, Some(later)),
        ] {
            let (mut scripts, pid) = with_one_running(start);
            if is_draining {
                scripts.follow(None, start);
            }
            assert!(scripts.ended(pid, end, worker, later, &console));
            assert_eq!(scripts.deadline(), expected, "{worker:?} {is_draining}");
            // The number is not that of a running process of this test.
            scripts.retired.clear();
        }
    }

    #[test]
    fn processes_of_a_configuration_that_comes_back_are_new_ones() {
        let start = Instant::now();
        let (mut scripts, pid) = with_one_running(start);
        scripts.follow(Some(&needs(1, 1)), start);
        assert!(scripts.retired.is_empty() && scripts.set == 1, "the same needs change nothing");
        scripts.follow(None, start);
        scripts.follow(Some(&needs(1, 1)), start);
        assert_eq!((scripts.set, scripts.deadline()), (2, Some(start)));
        assert_eq!(std::mem::take(&mut scripts.retired), [pid]);
    }

    #[test]
    fn program_that_cannot_be_started_is_tried_again_later_and_later() {
        let console = Console::quiet();
        let mut scripts = ScriptProcesses::default();
        let start = Instant::now();
        assert_eq!(scripts.deadline(), None);
        scripts.follow(Some(&needs(1, 1)), start);
        assert_eq!(scripts.deadline(), Some(start));
        let mut now = start;
        let mut delays = Vec::new();
        for _ in 0..10 {
            assert!(scripts.start_missing(now, &console).is_empty());
            let due = scripts.deadline().unwrap();
            delays.push((due - now).as_millis());
            now = due;
        }
        assert_eq!(delays, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000]);
    }
}
