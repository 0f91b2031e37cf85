//! State and stack of every thread of the process, as far as they can be read.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::time::Duration;

use tw_sys::nr;
use tw_sys::stack::{self, Frames, NoStack};

use super::symbols::Names;

/// The threads of this process, as files.
const TASKS: &str = "/proc/self/task";
/// Longest wait for the stack of a thread. One that runs or sleeps answers at once, unless the machine is busy.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for a thread in an uninterruptible wait, which most probably does not answer at all.
const DISK_TIMEOUT: Duration = Duration::from_millis(20);

/// One thread.
pub(super) struct Thread {
    id: i32,
    name: String,
    /// State in the kernel: state, system call, function it waits in.
    state: String,
    stack: Result<Frames, NoStack>,
}

/// Threads of one name that do the same.
struct ThreadGroup {
    ids: Vec<i32>,
    name: String,
    state: String,
    stack: String,
}

/// Looks at threads, one after the other.
pub(super) fn inspect(ids: &[i32]) -> Vec<Thread> {
    ids.iter().copied().map(Thread::inspect).collect()
}

/// A line for each thread; those that do the same share one.
pub(super) fn lines(threads: Vec<Thread>, names: &Names<'_>) -> Vec<String> {
    let mut alike: Vec<ThreadGroup> = Vec::new();
    let mut known_values: BTreeMap<Vec<usize>, String> = BTreeMap::new();
    for thread in threads {
        let stack = match &thread.stack {
            Ok(frames) => {
                let described = || names.line(frames.addresses());
                known_values.entry(frames.addresses().to_vec()).or_insert_with(described).clone()
            }
            Err(NoStack::Silent) => "does not answer".to_owned(),
            Err(NoStack::Gone(_)) => continue,
        };
        let same = |other: &&mut ThreadGroup| {
            (&other.name, &other.state, &other.stack) == (&thread.name, &thread.state, &stack)
        };
        match alike.iter_mut().find(same) {
            Some(other) => other.ids.push(thread.id),
            None => alike.push(ThreadGroup {
                ids: vec![thread.id],
                name: thread.name,
                state: thread.state,
                stack,
            }),
        }
    }
    alike.iter().map(ToString::to_string).collect()
}

/// The threads of this process without `these` and the calling one; none without `/proc`.
pub(super) fn others(these: &[i32]) -> Vec<i32> {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let tasks = fs::read_dir(TASKS).into_iter().flatten().flatten();
    let ids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    ids.filter(|id| *id != me && !these.contains(id)).collect()
}

impl Thread {
    fn inspect(id: i32) -> Self {
        let file = |name: &str| fs::read_to_string(format!("{TASKS}/{id}/{name}")).ok();
        let name = file("comm").unwrap_or_default();
        // The state is read from the kernel before the signal is sent, because that wakes the thread.
        let (state, is_deaf) = kernel_state(file("stat"), file("syscall"), file("wchan"));
        let stack = stack::of_thread(id, if is_deaf { DISK_TIMEOUT } else { TIMEOUT });
        Self { id, name: name.trim_end().to_owned(), state, stack }
    }
}

/// `sleeps in futex, futex_wait_queue`, and whether a signal will most probably not be heard.
fn kernel_state(stat: Option<String>, call: Option<String>, wchan: Option<String>) -> (String, bool) {
    // proc_pid_stat(5): the name in parentheses may hold any character, then comes the state.
    let letter =
        stat.as_deref().and_then(|stat| stat.rsplit_once(") ")).and_then(|(_, rest)| rest.chars().next());
    let mut text = match letter {
        Some('R') => "runs",
        Some('S') => "sleeps",
        Some('D') => "waits uninterruptibly",
        Some('T' | 't') => "is stopped",
        Some(_) => "ends",
        None => "does something",
    }
    .to_owned();
    // proc_pid_syscall(5): `running`, or the number and the arguments; -1 outside of a call.
    let number = call.as_deref().and_then(|call| call.split(' ').next()?.trim_end().parse::<i64>().ok());
    // A string takes everything.
    let _ = match number {
        Some(number) if number >= 0 => match nr::name(number) {
            Some(name) => write!(text, " in {name}"),
            None => write!(text, " in system call {number}"),
        },
        _ => Ok(()),
    };
    if let Some(wchan) = wchan.as_deref().map(str::trim_end).filter(|wchan| !matches!(*wchan, "" | "0")) {
        let _ = write!(text, ", {wchan}");
    }
    (text, letter == Some('D'))
}

impl fmt::Display for ThreadGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ids, name, state, stack } = self;
        match ids[..] {
            [id] => write!(f, "thread {id} \"{name}\" {state}: {stack}"),
            _ => {
                let list: Vec<_> = ids.iter().map(ToString::to_string).collect();
                write!(f, "{} threads \"{name}\" ({}), each {state}: {stack}", ids.len(), list.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_states_follow_those_of_the_kernel() {
        for (stat, call, wchan, expected) in [
            (
                Some("7 (a) b) S 1 2"),
                Some("202 0x1 0x2"),
                Some("futex_wait_queue"),
                "sleeps in futex, futex_wait_queue",
            ),
            (Some("7 (w) R 1"), Some("running\n"), Some("0"), "runs"),
            (Some("7 (w) D 1"), Some("9999 0x1"), None, "waits uninterruptibly in system call 9999"),
            (Some("7 (w) R 1"), Some("-1 0x7f 0x7e"), None, "runs"),
            (None, None, None, "does something"),
        ] {
            let text = |text: Option<&str>| text.map(str::to_owned);
            let (described, is_deaf) = kernel_state(text(stat), text(call), text(wchan));
            assert_eq!((&*described, is_deaf), (expected, expected.contains("uninterruptibly")));
        }
    }

    #[test]
    fn threads_that_do_the_same_share_a_line() {
        let mut alike =
            ThreadGroup { ids: vec![7], name: "a".into(), state: "sleeps".into(), stack: "f < g".into() };
        assert_eq!(alike.to_string(), "thread 7 \"a\" sleeps: f < g");
        alike.ids.push(9);
        assert_eq!(alike.to_string(), "2 threads \"a\" (7 9), each sleeps: f < g");
    }
}
