//! Child process that is killed, with all processes it started, when the value that holds it is dropped.

use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::wait;

/// Child that leads a process group of its own (`Command::process_group(0)`). Dropping it kills the group.
///
/// The child is never reaped before the rest of its group has been killed: as long as it is a zombie the kernel does
/// not reuse its id, so no signal can hit an unrelated process.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    status: Option<ExitStatus>,
}

/// Depth of the process tree searched for threads: a program that runs the server, its master, its worker process.
const GENERATIONS: u32 = 3;

fn has_thread(pid: u32, name: &str, generations: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_named = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    if tasks.into_iter().any(is_named) {
        return true;
    }
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
    generations > 1 && children.any(|child| has_thread(child, name, generations - 1))
}

impl Group {
    /// Takes the child over.
    #[must_use]
    pub fn new(leader: Child) -> Self {
        Self { leader, status: None }
    }

    /// Process id of the child, and id of the group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.leader.id()
    }

    /// Sends a signal to the child alone.
    ///
    /// # Errors
    /// The error of `kill`; `NotFound` once the end of the child has been waited for.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match self.status {
            None => Ok(kill_process(Pid::from_child(&self.leader), signal)?),
            Some(status) => Err(io::Error::new(io::ErrorKind::NotFound, format!("has ended: {status}"))),
        }
    }

    /// Returns `true` if the child has ended. Does not wait.
    #[must_use]
    pub fn ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.status.is_some() || !matches!(waitid(WaitId::Pid(Pid::from_child(&self.leader)), look), Ok(None))
    }

    /// Returns `true` if the child or a descendant has a thread whose name begins so.
    #[must_use]
    pub fn has_thread(&self, name: &str) -> bool {
        has_thread(self.pid(), name, GENERATIONS)
    }

    /// Waits for the end of the child, then kills the rest of the group. A child that computes may need `within` of
    /// processor time; time without a processor does not count.
    ///
    /// # Errors
    /// `TimedOut` if the child has not ended by itself; it is killed then.
    pub fn wait(&mut self, within: Duration) -> io::Result<ExitStatus> {
        let first = self.computed();
        let mut last = first;
        let ended = loop {
            if wait::until(within, || self.ended()) {
                break true;
            }
            let now = self.computed();
            if !computes(now.saturating_sub(last), now.saturating_sub(first), within) {
                break false;
            }
            last = now;
        };
        let status = self.kill()?;
        if ended {
            Ok(status)
        } else {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("still running after {within:?}")))
        }
    }

    /// Processor time of the child.
    fn computed(&self) -> Duration {
        let ticks = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
            // The fields follow the name, which may have any bytes: the twelfth and thirteenth are the times in user
            // mode and in the kernel.
            let mut times =
                stat.rsplit_once(") ")?.1.split(' ').skip(11).map_while(|field| field.parse::<u64>().ok());
            Some(times.next()? + times.next()?)
        };
        Duration::from_millis(ticks().unwrap_or(0) * 1000 / clock_ticks_per_second())
    }

    /// Kills the whole group and reaps the child.
    ///
    /// # Errors
    /// The error of `wait`; `TimedOut` if the kernel does not let the child end, as while a disk holds an operation
    /// of it.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        // This fails only if no process but the zombie is in the group, which is what is wanted.
        let _ = kill_process_group(Pid::from_child(&self.leader), Signal::KILL);
        if !wait::until(wait::TIMEOUT, || self.ended()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "killed, and still there"));
        }
        let status = self.leader.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

/// Returns `true` if a child that has not ended in time is still working: it used a twentieth of a core lately, which
/// a waiting process does not, and has not used up all of its time.
fn computes(lately: Duration, in_all: Duration, within: Duration) -> bool {
    lately >= within / 20 && in_all < within
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nothing can be done about a child that cannot be waited for.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    fn sleeper() -> Group {
        Group::new(Command::new("/bin/sleep").arg("600").process_group(0).spawn().unwrap())
    }

    fn alive(pid: u32) -> bool {
        fs::exists(format!("/proc/{pid}")).unwrap()
    }

    #[test]
    fn computing_child_is_waited_for_within_limits() {
        let second = Duration::from_secs;
        for (lately, in_all, expected) in [
            (Duration::ZERO, second(5), false),
            (Duration::from_millis(499), second(5), false),
            (Duration::from_millis(500), second(5), true),
            (second(1), second(9), true),
            (second(1), second(10), false),
        ] {
            assert_eq!(computes(lately, in_all, second(10)), expected, "{lately:?} {in_all:?}");
        }
        let spin = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).process_group(0).spawn();
        let mut group = Group::new(spin.unwrap());
        assert!(wait::until(wait::TIMEOUT, || group.computed() >= Duration::from_millis(50)));
        assert_eq!(group.wait(Duration::from_millis(20)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn dropping_the_group_kills_the_child() {
        let group = sleeper();
        let pid = group.pid();
        assert!(alive(pid) && !group.ended());
        drop(group);
        assert!(!alive(pid));
    }

    #[test]
    fn exit_is_seen_reported_and_remembered() {
        let mut group = sleeper();
        group.signal(Signal::TERM).unwrap();
        let status = group.wait(wait::TIMEOUT).unwrap();
        assert!(!status.success());
        assert!(group.ended());
        assert_eq!(group.kill().unwrap(), status);
        assert_eq!(group.signal(Signal::TERM).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_after_the_deadline() {
        let mut group = sleeper();
        let pid = group.pid();
        assert_eq!(group.wait(Duration::from_millis(5)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(!alive(pid));
    }
}
