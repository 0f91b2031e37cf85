//! Gates: how a loop waits for listening sockets that other loops have, too.
//!
//! For a new connection the kernel wakes every loop that watches the socket, unless each asked to be the only one
//! (`EPOLLEXCLUSIVE`). tokio has no option for it, so a gate registers sockets with the loop's epoll descriptor itself:
//!
//! ```text
//! listening socket ─── EPOLLIN | EPOLLEXCLUSIVE ───┐
//!                                                  ├─► the loop's epoll, both under one mark ─► bell.readable()
//! bell: a socket that never has anything to read ──┘
//! ```
//!
//! To tokio that is an event of the bell, which it watches for us. The mark is learnt before the loop begins: the bell can
//! be written to, and the kernel says so once. A listening socket is reported for as long as it has a connection
//! (level-triggered), so a loop need not accept until there is none.
//!
//! If the epoll descriptor cannot be found, there are no gates, and every loop is woken.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Loops that the kernel wakes for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// All that watch the socket.
    All,
    /// One that waits, or all if none does.
    One,
}

/// A bell and its mark.
#[derive(Debug)]
struct Gate {
    bell: UnixDatagram,
    epoll: Rc<OwnedFd>,
    mark: u64,
}

thread_local! {
    /// Unused gates of this loop.
    static FREE: RefCell<Vec<Gate>> = const { RefCell::new(Vec::new()) };
}

/// A socket that the loop of this thread watches through a gate.
#[derive(Debug)]
pub struct GatedListener {
    /// Taken only when it is dropped.
    gate: Option<Gate>,
    socket: OwnedFd,
    wakes: WakeMode,
    is_open: bool,
}

/// Makes `count` gates for the loop of this thread. Before the loop watches anything, and before anybody could wake it: an
/// event that comes meanwhile is lost. Fewer, or none, where the kernel does not play along.
pub fn prepare(count: usize) {
    if let Ok(gates) = make(count) {
        FREE.set(gates);
    }
}

fn make(count: usize) -> io::Result<Vec<Gate>> {
    let owned_fd = tw_sys::epoll::find_by(&UnixDatagram::unbound()?);
    let Some(epoll) = owned_fd.map(Rc::new) else { return Ok(Vec::new()) };
    let mut gates = Vec::with_capacity(count);
    for _ in 0..count {
        // Sockets are registered one at a time, so the event reported has the mark of this one.
        let bell = UnixDatagram::unbound()?;
        let mut events = Vec::with_capacity(2);
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&*epoll, room, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let [event] = events[..] else { break };
        gates.push(Gate { bell, epoll: epoll.clone(), mark: event.data.u64() });
    }
    Ok(gates)
}

impl GatedListener {
    /// Takes a free gate for `socket`, closed at first; gives the socket back if there is none.
    pub fn new(socket: OwnedFd, wakes: WakeMode) -> Result<Self, OwnedFd> {
        match FREE.with_borrow_mut(Vec::pop) {
            Some(gate) => Ok(Self { gate: Some(gate), socket, wakes, is_open: false }),
            None => Err(socket),
        }
    }

    /// Watches the socket, or watches it no longer.
    pub fn set_open(&mut self, open: bool) -> io::Result<()> {
        let Some(gate) = &self.gate else { return Ok(()) };
        if open == self.is_open {
            return Ok(());
        }
        if open {
            let exclusive = match self.wakes {
                WakeMode::All => EventFlags::empty(),
                WakeMode::One => EventFlags::EXCLUSIVE,
            };
            epoll::add(
                &*gate.epoll,
                &self.socket,
                EventData::new_u64(gate.mark),
                EventFlags::IN | exclusive,
            )?;
        } else {
            epoll::delete(&*gate.epoll, &self.socket)?;
        }
        self.is_open = open;
        Ok(())
    }

    /// Goes to the end of the queue of those that the kernel wakes.
    pub fn to_the_end(&mut self) -> io::Result<()> {
        self.set_open(false)?;
        self.set_open(true)
    }

    /// Waits until the socket had something to take. It may be gone.
    pub async fn ready(&self) -> io::Result<()> {
        match &self.gate {
            // The kernel reports the event again as long as connections are pending.
            Some(gate) => {
                gate.bell.readable().await?;
                let heard: io::Result<()> =
                    gate.bell.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
                drop(heard);
                Ok(())
            }
            None => std::future::pending().await,
        }
    }
}

impl AsFd for GatedListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for GatedListener {
    fn drop(&mut self) {
        // The registration must not outlive its mark, and closing this descriptor does not remove it while copies are
        // open.
        let is_closed = self.set_open(false).is_ok();
        if let Some(gate) = self.gate.take() {
            if is_closed { FREE.with_borrow_mut(|free| free.push(gate)) } else { std::mem::forget(gate) }
        }
    }
}
