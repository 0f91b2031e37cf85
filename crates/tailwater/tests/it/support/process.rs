//! Processes: what `/proc` says of them, their worker processes, and signals.

use std::fs;

use rustix::process::{Pid, kill_process};
use tw_testkit::{Server, Signal, wait};

/// Fields of `/proc/PID/stat`.
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    pub(crate) threads: u32,
}

/// `None` if there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse().ok();
    let state = *words.first()?.as_bytes().first()?;
    Some(Stat { state, parent: number(1)?, session: number(3)?, threads: number(17)? })
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let names = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Processes that `parent` has started and that it has not waited for, ended ones included.
pub(crate) fn all_children(parent: u32) -> Vec<u32> {
    processes().filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent)).collect()
}

/// [`all_children`] that have not ended.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    all_children(parent).into_iter().filter(|pid| !is_gone(*pid)).collect()
}

/// Returns true if the process has ended, whether its parent knows or not.
pub(crate) fn is_gone(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| stat.state == b'Z')
}

/// The worker process, once there is one and it is the only one.
pub(crate) fn worker(server: &Server) -> u32 {
    wait::some(wait::TIMEOUT, || match children(server.pid())[..] {
        [pid] => Some(pid),
        _ => None,
    })
    .expect("one worker process")
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}
