//! Sockets to script processes on their way to the event loops of this process.
//!
//! ```text
//! master ─ socket ─► main thread ─ hand_over ─► poll_link, one loop ─► its connection
//!                    take_silent ◄─ report_silent ─────────────────────┘  a process that does not answer
//! ```
//! There is one such list in a process, because it has one master.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use rustix::event::{EventfdFlags, eventfd};
use tw_base::FatalMutex;

use crate::script_set::are_there_scripts;

/// Socket to a script process.
#[derive(Debug)]
pub struct ScriptLink {
    /// Number of the set of processes. Those of a set replace those of the sets before.
    pub set: u64,
    /// Number of the process, for messages.
    pub pid: u32,
    /// Loop that uses the socket.
    pub event_loop: usize,
    /// The socket, which does not block.
    pub socket: OwnedFd,
}

/// Links that no loop has taken yet, and processes that do not answer.
struct Links {
    handed: Vec<ScriptLink>,
    waiting: Vec<(usize, Waker)>,
    silent: Vec<u32>,
    /// Processes with links, and the number of links of each.
    running: Vec<(u32, u32)>,
    counts: ProcessCounts,
}

static LINKS: FatalMutex<Links> = FatalMutex::new(Links {
    handed: Vec::new(),
    waiting: Vec::new(),
    silent: Vec::new(),
    running: Vec::new(),
    counts: ProcessCounts { running: 0, started: 0, replaced: 0 },
});

/// Script processes of this worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessCounts {
    /// Processes that serve loops.
    pub(crate) running: u64,
    /// Processes since the worker process was started.
    pub(crate) started: u64,
    /// Processes that have ended although they were to serve on.
    pub(crate) replaced: u64,
}

impl Links {
    fn begin_link(&mut self, pid: u32) {
        match self.running.iter_mut().find(|(known, _)| *known == pid) {
            Some((_, links)) => *links += 1,
            None => {
                self.running.push((pid, 1));
                self.counts.started += 1;
            }
        }
    }

    fn end_link(&mut self, pid: u32, is_expected: bool) {
        let Some((_, links)) = self.running.iter_mut().find(|(known, _)| *known == pid) else { return };
        *links -= 1;
        if *links == 0 {
            self.running.retain(|(known, _)| *known != pid);
            self.counts.replaced += u64::from(!is_expected);
        }
    }
}

/// Number of processes now, and of those before.
pub(crate) fn counts() -> ProcessCounts {
    let links = LINKS.lock();
    ProcessCounts { running: links.running.len() as u64, ..links.counts }
}

/// Notes the end of a link that a loop has taken. `is_expected` is true if the process was not to serve on.
pub(crate) fn end_link(pid: u32, is_expected: bool) {
    LINKS.lock().end_link(pid, is_expected);
}

/// Hands a link over to its loop. Links of earlier sets that no loop has taken are closed, and so is this one if no configuration has scripts
/// any more.
pub fn hand_over(link: ScriptLink) {
    if are_there_scripts() {
        keep(link);
    }
}

fn keep(link: ScriptLink) {
    let mut links = LINKS.lock();
    let (kept, closed) =
        std::mem::take(&mut links.handed).into_iter().partition(|known| known.set >= link.set);
    links.handed = kept;
    let closed: Vec<ScriptLink> = closed;
    closed.iter().for_each(|link| links.end_link(link.pid, true));
    links.begin_link(link.pid);
    links.handed.push(link);
    let waiting = std::mem::take(&mut links.waiting);
    drop(links);
    waiting.into_iter().for_each(|(_, waker)| waker.wake());
}

/// Closes links that no loop has taken, and wakes the loops: no configuration has scripts any more.
pub(crate) fn release() {
    let mut links = LINKS.lock();
    links.handed.clear();
    let waiting = std::mem::take(&mut links.waiting);
    drop(links);
    waiting.into_iter().for_each(|(_, waker)| waker.wake());
}

/// The next link of a loop. One task of each loop may wait for it.
pub(crate) fn poll_link(event_loop: usize, cx: &mut Context<'_>) -> Poll<ScriptLink> {
    let mut links = LINKS.lock();
    if let Some(at) = links.handed.iter().position(|link| link.event_loop == event_loop) {
        return Poll::Ready(links.handed.remove(at));
    }
    links.waiting.retain(|(waiting, _)| *waiting != event_loop);
    links.waiting.push((event_loop, cx.waker().clone()));
    Poll::Pending
}

/// Reports a process that does not answer, or says something invalid: the master ends it.
pub(crate) fn report_silent(pid: u32) {
    LINKS.lock().silent.push(pid);
    if let Some(wake) = wake() {
        // A counter at its maximum wakes the main thread as well.
        let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
    }
}

/// Takes the processes that were reported.
pub fn take_silent() -> Vec<u32> {
    if let Some(wake) = wake() {
        // The read only resets the counter, which may be zero already.
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
    std::mem::take(&mut LINKS.lock().silent)
}

/// Readable when [`take_silent`] has something; `None` if no descriptor is to be had.
pub fn silence_fd() -> Option<BorrowedFd<'static>> {
    wake().map(AsFd::as_fd)
}

fn wake() -> Option<&'static OwnedFd> {
    static WAKE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    WAKE.get_or_init(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(set: u64, pid: u32, event_loop: usize) -> ScriptLink {
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        ScriptLink { set, pid, event_loop, socket: socket.into() }
    }

    fn next(event_loop: usize) -> Option<u32> {
        match poll_link(event_loop, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(link) => Some(link.pid),
            Poll::Pending => None,
        }
    }

    #[test]
    fn links_reach_their_loop_unless_a_later_set_replaces_them() {
        assert_eq!(next(0), None);
        keep(link(1, 10, 0));
        keep(link(1, 11, 1));
        keep(link(1, 12, 0));
        assert_eq!((next(1), next(1), next(0)), (Some(11), None, Some(10)));
        keep(link(2, 20, 1));
        assert_eq!((next(0), next(1)), (None, Some(20)), "the other link of the first set is closed");
        let counts = |running, started, replaced| ProcessCounts { running, started, replaced };
        assert_eq!(super::counts(), counts(3, 4, 0), "the process of the closed link has ended as it was to");
        end_link(20, false);
        end_link(11, true);
        end_link(99, false);
        assert_eq!(super::counts(), counts(1, 4, 1));
        report_silent(10);
        assert_eq!((take_silent(), take_silent()), (vec![10], vec![]));
    }
}
