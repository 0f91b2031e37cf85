//! States and processor times of a server's loops, sampled while it is under load.
//!
//! A loop in state D sleeps in the kernel and cannot be interrupted: it waits for a disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tw_testkit::wait;

use super::Outcome;
use super::exec::pin;
use super::usage;

/// Time between two samples of a state: short beside a read from a slow disk.
const TICK: Duration = Duration::from_millis(2);

/// Thread that samples until it is finished.
pub(super) struct Sampler {
    thread: JoinHandle<Vec<Watched>>,
    is_over: Arc<AtomicBool>,
    began: Instant,
}

/// Samples of all loops of a server.
pub(super) struct LoopSamples {
    loops: Vec<Watched>,
    began: Instant,
}

/// A loop and its samples.
struct Watched {
    stat: File,
    schedstat: File,
    /// Moment, and `true` in state D.
    states: Vec<(Instant, bool)>,
    /// Processor time at the beginning and at the end.
    cpu: (Duration, Duration),
}

impl Watched {
    fn open(task: &Path) -> Option<Self> {
        let file = |name| File::open(task.join(name)).ok();
        let mut one = Self {
            stat: file("stat")?,
            schedstat: file("schedstat")?,
            states: Vec::new(),
            cpu: (Duration::ZERO, Duration::ZERO),
        };
        one.cpu.0 = one.cpu_time()?;
        Some(one)
    }

    fn cpu_time(&self) -> Option<Duration> {
        read(&self.schedstat).and_then(|line| usage::parse_schedstat(&line)).map(Duration::from_nanos)
    }

    fn look(&mut self) {
        if let Some(sleeps) = read(&self.stat).as_deref().and_then(is_in_d_state) {
            self.states.push((Instant::now(), sleeps));
        }
    }

    /// Share of the samples of a time that were in state D.
    fn disk_share(&self, from: Instant, to: Instant) -> f64 {
        let all = || self.states.iter().filter(|(at, _)| (from..to).contains(at));
        all().filter(|(_, sleeps)| *sleeps).count() as f64 / all().count() as f64
    }
}

/// Text of a file of the kernel, which makes it again for each read from its beginning.
fn read(file: &File) -> Option<String> {
    let mut bytes = [0; 1024];
    let len = file.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

/// Returns `true` for state D, which follows the name in parentheses.
fn is_in_d_state(stat: &str) -> Option<bool> {
    Some(stat.rsplit_once(") ")?.1.starts_with('D'))
}

impl Sampler {
    /// Begins to sample the loops of a server from a core that it does not use.
    pub(super) fn start(pid: u32, cpu: usize) -> Outcome<Self> {
        let mut loops: Vec<Watched> =
            loops_of(pid)?.iter().filter_map(|task| Watched::open(Path::new(task))).collect();
        if loops.is_empty() {
            return Err(format!("process {pid} has no loops").into());
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            // Anywhere, if it may not choose its core.
            let _ = pin(cpu);
            while !its.load(Relaxed) {
                loops.iter_mut().for_each(Watched::look);
                wait::pause(TICK);
            }
            for one in &mut loops {
                one.cpu.1 = one.cpu_time().unwrap_or_default();
            }
            loops
        });
        Ok(Self { thread, is_over, began: Instant::now() })
    }

    pub(super) fn finish(self) -> Outcome<LoopSamples> {
        self.is_over.store(true, Relaxed);
        let loops = self.thread.join().map_err(|_| "the sampler panicked")?;
        Ok(LoopSamples { loops, began: self.began })
    }
}

/// Directories in `/proc` of the loops of a server: threads of Tailwater that are called so, or the worker processes
/// of nginx.
fn loops_of(pid: u32) -> Outcome<Vec<String>> {
    let mut loops = Vec::new();
    let mut processes = Vec::new();
    for pid in usage::tree(pid)? {
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let path = task.path().display().to_string();
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("loop-") {
                loops.push(path);
            } else if name.starts_with("nginx") && task.file_name().to_string_lossy() == pid.to_string() {
                processes.push(path);
            }
        }
    }
    if loops.is_empty() {
        // The first one is the master of the others.
        loops = if processes.len() > 1 { processes.split_off(1) } else { processes };
    }
    loops.sort();
    Ok(loops)
}

impl LoopSamples {
    /// Percentage of a time, in seconds from the beginning, that each loop was in state D.
    pub(super) fn disk_shares(&self, from: f64, to: f64) -> Vec<f64> {
        let at = |second| self.began + Duration::from_secs_f64(second);
        self.loops.iter().map(|one| one.disk_share(at(from), at(to)) * 100.0).collect()
    }

    /// Mean of these percentages in each bin of a time.
    pub(super) fn disk_series(&self, bin: f64, to: f64) -> Vec<(f64, f64)> {
        let bins = (to / bin) as usize;
        let mean = |shares: Vec<f64>| shares.iter().sum::<f64>() / shares.len() as f64;
        (0..bins)
            .map(|nth| nth as f64 * bin)
            .map(|from| (from + bin / 2.0, mean(self.disk_shares(from, from + bin))))
            .filter(|(_, share)| share.is_finite())
            .collect()
    }

    /// Percentage of the processor time of all loops that each has used.
    pub(super) fn cpu_shares(&self) -> Vec<f64> {
        let used = |one: &Watched| one.cpu.1.saturating_sub(one.cpu.0).as_secs_f64();
        let all: f64 = self.loops.iter().map(used).sum();
        self.loops.iter().map(|one| used(one) / all * 100.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_the_name() {
        for (stat, expected) in
            [("12 (nginx) D 1 2 3", Some(true)), ("12 (a) D b) S 1 2 3", Some(false)), ("12", None)]
        {
            assert_eq!(is_in_d_state(stat), expected, "{stat}");
        }
    }

    #[test]
    fn shares_are_those_of_a_time() {
        let stat = || File::open("/proc/self/stat").unwrap();
        let began = Instant::now();
        let states =
            (0..100).map(|ms| (began + Duration::from_millis(10 * ms), ms >= 50)).collect::<Vec<_>>();
        let cpu = (Duration::ZERO, Duration::from_secs(3));
        let one = Watched { stat: stat(), schedstat: stat(), states, cpu };
        let other = Watched {
            stat: stat(),
            schedstat: stat(),
            states: Vec::new(),
            cpu: (cpu.0, Duration::from_secs(1)),
        };
        let samples = LoopSamples { loops: vec![one], began };
        assert_eq!(samples.disk_shares(0.0, 1.0), [50.0]);
        assert_eq!(samples.disk_series(0.5, 1.0), [(0.25, 0.0), (0.75, 100.0)]);
        let samples = LoopSamples { loops: samples.loops.into_iter().chain([other]).collect(), began };
        assert_eq!(samples.cpu_shares(), [75.0, 25.0]);
    }
}
