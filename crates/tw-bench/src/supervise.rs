//! Supervision of measurements: all that a run started or made is gone afterwards, however it ends.
//!
//! A measurement runs in a process of its own, which the supervisor starts and outlives. Processes that lose their
//! parent become children of the supervisor. After success, failure, a signal or too long a time, it kills what is
//! left of them, unmounts what they mounted, and removes cgroups, temporary files and data sets.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper};
use tw_sys::signal::SignalFd;
use tw_testkit::wait;

use super::cgroup;
use super::data::remove_tree;
use super::exec::SELF;
use super::run_name::{PREFIX, RUN};
use super::usage;
use super::{Outcome, home};

/// Pause between two looks at a measurement and at signals.
const TICK: Duration = Duration::from_millis(50);

/// End of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed,
    Interrupted,
    TooLong,
}

/// Supervisor of the measurements of this process.
pub(super) struct Supervisor {
    signals: SignalFd,
    keeps_data: bool,
}

/// Returns `true` in a process that is supervised.
pub(super) fn is_supervised() -> bool {
    env::var_os(RUN).is_some()
}

impl Supervisor {
    /// Takes over signals and orphans, and removes what killed supervisors left behind.
    pub(super) fn new(keeps_data: bool) -> Outcome<Self> {
        let signals = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
        let signals = SignalFd::new(&signals)?;
        set_child_subreaper(Some(rustix::process::getpid()))?;
        for name in left_behind() {
            remove_made(&name);
        }
        Ok(Self { signals, keeps_data })
    }

    /// Runs `bench ARGS` with more variables, for at most `time_max`.
    pub(super) fn run(
        &self,
        args: &[String],
        variables: &[(&str, String)],
        time_max: Option<Duration>,
    ) -> Outcome<End> {
        let name = format!("{PREFIX}{}", process::id());
        let dir = env::temp_dir().join(&name);
        fs::create_dir_all(&dir)?;
        let data = if self.keeps_data { Vec::new() } else { Snapshot::of_all(args) };
        let mut command = Command::new(SELF);
        command.arg("bench").args(args).envs(variables.iter().map(|(name, value)| (name, value)));
        command.env(RUN, process::id().to_string()).env("TMPDIR", &dir);
        // A group of its own: the terminal interrupts the supervisor alone, which ends the rest in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let end = match command.spawn() {
            Ok(mut child) => self.watch(&mut child, time_max),
            Err(error) => Err(error.into()),
        };
        end_descendants();
        remove_made(&name);
        for snapshot in &data {
            snapshot.restore();
        }
        end
    }

    /// Waits for the end of the child, a signal, or the end of its time; the child has ended afterwards.
    fn watch(&self, child: &mut Child, time_max: Option<Duration>) -> Outcome<End> {
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(if status.success() { End::Succeeded } else { End::Failed });
            }
            let early = if self.signals.read().is_ok() {
                eprintln!("\ninterrupted: ending what was started, removing what was made");
                Some(End::Interrupted)
            } else {
                time_max.filter(|max| began.elapsed() > *max).map(|_| End::TooLong)
            };
            if let Some(end) = early {
                child.kill()?;
                child.wait()?;
                return Ok(end);
            }
            wait::pause(TICK);
        }
    }
}

/// Ties the life of this process to its parent's.
pub(super) fn end_with_parent() -> Outcome {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Kills all processes below this one and waits for their ends.
fn end_descendants() {
    let ended = wait::until(wait::TIMEOUT, || {
        let below = usage::tree(process::id()).unwrap_or_default().split_off(1);
        for pid in below.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            // Fails only for one that has ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        below.is_empty()
    });
    if !ended {
        eprintln!("warning: processes that were killed are still there");
    }
}

/// Names of runs whose supervisor has ended without removing what they made.
fn left_behind() -> BTreeSet<String> {
    let temporary = [env::temp_dir()];
    let dirs = temporary.iter().map(PathBuf::as_path).chain(cgroup::PARENTS.iter().map(Path::new));
    let entries = dirs.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            let run = name.strip_prefix(PREFIX).and_then(|run| run.parse::<u32>().ok());
            run.is_some_and(|run| !Path::new(&format!("/proc/{run}")).exists())
        })
        .collect()
}

/// Unmounts and removes all that a run of this name has made outside of its data.
fn remove_made(name: &str) {
    let dir = env::temp_dir().join(name);
    for mount in mounts_below(&dir) {
        if let Err(error) = unmount(&mount, UnmountFlags::DETACH) {
            eprintln!("warning: {} stays mounted: {error}", mount.display());
        }
    }
    cgroup::remove(name);
    if dir.exists()
        && let Err(error) = fs::remove_dir_all(&dir)
    {
        eprintln!("warning: {} stays: {error}", dir.display());
    }
}

/// Mount points below a directory, the last mounted first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut below: Vec<_> = points.filter(|point| point.starts_with(dir)).collect();
    below.reverse();
    below
}

/// Entries of a directory of data before a run.
struct Snapshot {
    dir: PathBuf,
    /// `None` if the directory did not exist.
    entries: Option<BTreeSet<OsString>>,
}

impl Snapshot {
    /// Snapshots of the directories that a run with these arguments writes data to.
    fn of_all(args: &[String]) -> Vec<Self> {
        let given = args.iter().position(|arg| arg == "--data").and_then(|at| args.get(at + 1));
        let data = given.map_or_else(|| home().join("data"), PathBuf::from);
        [home().join("files"), home().join("texts"), data].into_iter().map(Self::of).collect()
    }

    fn of(dir: PathBuf) -> Self {
        let entries = names(&dir);
        Self { dir, entries }
    }

    /// Removes what has been added.
    fn restore(&self) {
        for name in names(&self.dir).unwrap_or_default() {
            if self.entries.as_ref().is_some_and(|entries| entries.contains(&name)) {
                continue;
            }
            let path = self.dir.join(name);
            let removed = if path.is_dir() { remove_tree(&path) } else { fs::remove_file(&path) };
            if let Err(error) = removed {
                eprintln!("warning: {} stays: {error}", path.display());
            }
        }
        if self.entries.is_none() {
            // Fails only if it is not there.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

fn names(dir: &Path) -> Option<BTreeSet<OsString>> {
    Some(fs::read_dir(dir).ok()?.flatten().map(|entry| entry.file_name()).collect())
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn snapshot_removes_what_was_added() {
        let dir = TempDir::new("snapshot").unwrap();
        dir.write("kept/a", "a").unwrap();
        let some = Snapshot::of(dir.join("kept"));
        let none = Snapshot::of(dir.join("new"));
        dir.write("kept/b", "b").unwrap();
        dir.write("kept/c/d", "d").unwrap();
        dir.write("new/e", "e").unwrap();
        some.restore();
        none.restore();
        assert_eq!(names(&dir.join("kept")).unwrap(), BTreeSet::from(["a".into()]));
        assert!(!dir.join("new").exists());
    }

    #[test]
    fn mounts_of_other_directories_are_left_alone() {
        assert!(mounts_below(Path::new("/")).contains(&PathBuf::from("/")));
        assert!(mounts_below(Path::new("/no/such/directory")).is_empty());
    }
}
