//! Processor time and memory of a process and its descendants, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::Outcome;

/// Memory of a process tree as the kernel counts it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Pages that only this tree has and that it has written, without those of mapped files: the heap and the stacks. Tailwater
    /// copies the pages of its program and libraries, so that they cannot be evicted; these are in `resident`.
    pub(super) private_dirty: u64,
    /// All resident pages, shared ones once for each process.
    pub(super) resident: u64,
    /// All resident pages, each once: a page that two processes share is half a page of each.
    pub(super) shared_once: u64,
}

/// Processor time of a process and of all below it, user and system, from its beginning.
///
/// From `schedstat` of each thread, in nanoseconds: `utime` and `stime` have a resolution of 10 ms. A thread that ends
/// takes its time with it.
pub(super) fn cpu_time(pid: u32) -> Outcome<Duration> {
    Ok(thread_times(pid)?.values().sum())
}

/// Processor time of each thread of a process and of all below it, by process and thread.
pub(super) fn thread_times(pid: u32) -> Outcome<BTreeMap<PathBuf, Duration>> {
    let mut times = BTreeMap::new();
    for pid in tree(pid)? {
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let path = task?.path();
            // A thread that has ended since is not an error.
            if let Ok(line) = fs::read_to_string(path.join("schedstat")) {
                let ns = parse_schedstat(&line).ok_or("unknown format of schedstat")?;
                times.insert(path, Duration::from_nanos(ns));
            }
        }
    }
    Ok(times)
}

/// Memory of a process and of all below it.
pub(super) fn memory(pid: u32) -> Outcome<Memory> {
    let mut sum = Memory::default();
    for pid in tree(pid)? {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let mappings = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        sum.private_dirty += anonymous_dirty(&mappings).ok_or("no Private_Dirty in smaps")?;
        sum.resident += kilobytes(&rollup, "Rss:").ok_or("no Rss in smaps_rollup")?;
        sum.shared_once += kilobytes(&rollup, "Pss:").ok_or("no Pss in smaps_rollup")?;
    }
    Ok(sum)
}

/// The most memory that a process and all below it ever had resident, in bytes; shared pages once for each process.
pub(super) fn peak(pid: u32) -> Outcome<u64> {
    let mut sum = 0;
    for pid in tree(pid)? {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        sum += kilobytes(&status, "VmHWM:").ok_or("no VmHWM in status")?;
    }
    Ok(sum)
}

/// Time a core has spent not idle since the start of the machine; resolution 10 ms.
pub(super) fn core_busy(cpu: usize) -> Outcome<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    parse_core_busy(&stat, cpu).ok_or_else(|| format!("no core {cpu} in /proc/stat").into())
}

/// A process and all below it, the process first.
pub(super) fn tree(pid: u32) -> Outcome<Vec<u32>> {
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(&pid) = pids.get(next) {
        next += 1;
        let tasks = match fs::read_dir(format!("/proc/{pid}/task")) {
            Ok(tasks) => tasks,
            Err(e) if next == 1 => return Err(format!("process {pid}: {e}").into()),
            Err(_) => continue,
        };
        for task in tasks {
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            pids.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    Ok(pids)
}

/// First number: nanoseconds on a core.
pub(super) fn parse_schedstat(line: &str) -> Option<u64> {
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn kilobytes(rollup: &str, key: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// Sum of the `Private_Dirty` of the mappings in `smaps` that are of no file; `None` if there is none.
fn anonymous_dirty(smaps: &str) -> Option<u64> {
    let mut is_of_file = false;
    let mut sum = None;
    for line in smaps.lines() {
        match line.strip_prefix("Private_Dirty:") {
            Some(_) if is_of_file => {}
            Some(_) => sum = Some(sum.unwrap_or(0) + kilobytes(line, "Private_Dirty:")?),
            // `START-END FLAGS OFFSET DEVICE INODE PATH` begins the lines of a mapping; the names of other lines end in
            // a colon.
            None => {
                let mut words = line.split_ascii_whitespace();
                if words.next().is_some_and(|first| !first.ends_with(':')) {
                    is_of_file = words.nth(4).is_some_and(|path| path.starts_with('/'));
                }
            }
        }
    }
    sum
}

/// `cpuN user nice system idle iowait irq softirq steal …` in ticks of 10 ms; idle and iowait do not count.
fn parse_core_busy(stat: &str, cpu: usize) -> Option<Duration> {
    const TICK_MS: u64 = 10;
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(name.as_str()))?;
    let ticks: u64 = line
        .split_ascii_whitespace()
        .take(8)
        .enumerate()
        .filter(|(column, _)| !matches!(column, 3 | 4))
        .filter_map(|(_, ticks)| ticks.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(ticks * TICK_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formats_of_proc_are_read() {
        assert_eq!(parse_schedstat("21806434 1034 17\n"), Some(21_806_434));
        let rollup = "55-7f ---p 0 00:00 0 [rollup]\nRss:            1234 kB\nPrivate_Dirty:     12 kB\n";
        assert_eq!(kilobytes(rollup, "Private_Dirty:"), Some(12 * 1024));
        assert_eq!(kilobytes(rollup, "Pss:"), None);
        let smaps = "55-7f r-xp 00000000 fe:00 12 /usr/bin/server\nPrivate_Dirty:    100 kB\nVmFlags: rd ex\n\
                     7f-80 rw-p 00000000 00:00 0\nRss:     8 kB\nPrivate_Dirty:      5 kB\n\
                     80-81 rw-p 00000000 00:00 0                [stack]\nPrivate_Dirty:      2 kB\n";
        assert_eq!(anonymous_dirty(smaps), Some(7 * 1024));
        assert_eq!(anonymous_dirty("55-7f r-xp 00000000 fe:00 12 /usr/bin/server\n"), None);
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 400 500 6 7 8 90 100\n";
        assert_eq!(parse_core_busy(stat, 0), Some(Duration::from_millis(270)));
        assert_eq!(parse_core_busy(stat, 1), None);
    }

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(cpu_time(pid).unwrap() > Duration::ZERO);
        let memory = memory(pid).unwrap();
        assert!(memory.private_dirty > 0 && memory.resident > memory.private_dirty);
        assert!(peak(pid).unwrap() > 0);
    }
}
