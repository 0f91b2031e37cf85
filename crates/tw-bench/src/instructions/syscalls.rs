//! System calls of a running server, counted by strace.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tw_testkit::process::Group;
use tw_testkit::{Signal, wait};

use crate::Outcome;
use crate::contestant::{Running, find_program};

/// Counts the system calls of all threads of a server during some work.
pub(super) fn count(server: &Running, work: impl FnOnce() -> Outcome) -> Outcome<BTreeMap<String, u64>> {
    let strace = find_program("strace").ok_or("no strace on the PATH: apt-get install strace")?;
    let out = server.prefix.join("syscalls");
    let mut command = Command::new(strace);
    command.args(["-c", "-f", "-p", &server.pid().to_string(), "-o"]).arg(&out);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut group = Group::new(command.spawn()?);
    if !wait::until(wait::TIMEOUT, || group.ended() || is_traced(server.pid())) || group.ended() {
        return Err("strace cannot trace the server".into());
    }
    work()?;
    // Children of this process inherit that it blocks the other signals that end strace.
    group.signal(Signal::QUIT)?;
    group.wait(wait::TIMEOUT)?;
    let text = fs::read_to_string(&out)?;
    Ok(parse(&text).ok_or_else(|| format!("unknown output of strace: {text}"))?)
}

/// Returns `true` if all threads of a process have a tracer.
fn is_traced(pid: u32) -> bool {
    let is_traced = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        status.lines().filter_map(|line| line.strip_prefix("TracerPid:")).all(|pid| pid.trim() != "0")
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).all(|task| is_traced(&task))
}

/// Reads the table of `strace -c`: share, seconds, time of a call, calls, errors or nothing, name.
fn parse(text: &str) -> Option<BTreeMap<String, u64>> {
    let mut lines = text.lines();
    lines.find(|line| line.starts_with("------"))?;
    let rows = lines.take_while(|line| !line.starts_with("------"));
    rows.map(|row| {
        let words: Vec<_> = row.split_ascii_whitespace().collect();
        Some(((*words.last()?).to_owned(), words.get(3)?.parse().ok()?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_strace_is_read() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n \
            60.00    0.003000           6       500           sendto\n \
            40.00    0.002000           2      1000       500 recvfrom\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.005000           3      1500       500 total\n";
        let expected = [("recvfrom".to_owned(), 1000), ("sendto".to_owned(), 500)];
        assert_eq!(parse(text), Some(expected.into()));
        assert_eq!(parse("strace: attach: Operation not permitted"), None);
    }
}
