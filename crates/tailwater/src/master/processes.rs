//! Worker processes of the instance, with the sockets that reach them: those of this master, and those of the binaries before and after it.
//!
//! ```text
//! old binary: master ◄── links ──► master ◄── links ──► master :new binary        each master tells of its worker processes
//!               │                    │                    │
//!             worker ◄─ datagrams ── worker ─ datagrams ► worker                  each worker process can reach each other one
//! ```
//! A worker process has an identity, which its connection IDs contain, and a pair of sockets: it reads one end, and the others write to the other one. Of
//! all that serve, the one that was started last receives the datagrams of connections over QUIC. A descriptor goes from masters to worker processes
//! only. The kernel tells the end of a process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::time::{ClockId, clock_gettime};
use tw_core::event_loop::PROCESSES_MAX;

use crate::ipc::channel::WorkerCommand;
use crate::ipc::packet;

/// First byte of a message about a process: identity, start, state; its socket.
const PROCESS: u8 = 1;
/// First byte of a message about the master itself.
const MASTER: u8 = 2;
/// Bytes of a message.
const MESSAGE_SIZE: usize = 1 + 4 + 8 + 1;
/// Messages of one master that are read before something else is done.
const MESSAGES_AT_ONCE: usize = 256;

/// Worker processes that can pass datagrams to each other.
#[derive(Debug, Default)]
pub(super) struct Processes {
    all: Vec<KnownProcess>,
    /// Link to the binary that started this one.
    old: Option<MasterLink>,
    /// Link to the binary that this one has started.
    new: Option<MasterLink>,
}

/// A worker process of any binary.
#[derive(Debug)]
struct KnownProcess {
    /// Identity in connection IDs.
    id: u32,
    /// Start, in nanoseconds of the system's monotonic clock.
    born: u64,
    state: ProcessState,
    /// End of its pair that others write to, until it has ended.
    socket: Option<OwnedFd>,
}

/// State of a process. It only moves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProcessState {
    Starting,
    Serving,
    /// Finishes what it does.
    Leaving,
    Gone,
}

/// Knowledge that a worker process of this master has of the others.
#[derive(Debug, Default)]
pub(super) struct ToldProcesses {
    /// Identity of the process itself, if others can reach it.
    pub(super) own: Option<u32>,
    announced_numbers: Vec<u32>,
    is_received_elsewhere: bool,
}

/// Link to another master.
#[derive(Debug)]
struct MasterLink {
    socket: OwnedFd,
    /// True once it has said something: another server would not.
    is_heard: bool,
    /// True if it only waits for its worker processes.
    is_leaving: bool,
}

impl KnownProcess {
    /// End of its pair that others write to; `None` if it has ended.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    fn message(&self) -> [u8; MESSAGE_SIZE] {
        let mut message = [0; MESSAGE_SIZE];
        let fields = [&[PROCESS][..], &self.id.to_le_bytes(), &self.born.to_le_bytes(), &[self.state as u8]];
        message.iter_mut().zip(fields.concat()).for_each(|(to, from)| *to = from);
        message
    }

    /// Reads a message; `None` if it is about something else.
    fn read(message: &[u8; MESSAGE_SIZE], socket: Option<OwnedFd>) -> Option<Self> {
        let [PROCESS, a, b, c, d, born @ .., state] = *message else { return None };
        let state = match state {
            0 => ProcessState::Starting,
            1 => ProcessState::Serving,
            2 => ProcessState::Leaving,
            3 => ProcessState::Gone,
            _ => return None,
        };
        let id = u32::from_le_bytes([a, b, c, d]);
        let born = u64::from_le_bytes(born);
        Some(Self { id, born, state, socket: socket.filter(|_| state != ProcessState::Gone) })
    }
}

impl ToldProcesses {
    /// Of a process with this identity, which knows no other.
    pub(super) fn of(own: u32) -> Self {
        Self { own: Some(own), ..Self::default() }
    }

    /// Orders, each with its descriptor, by which it knows all that is to be known.
    pub(super) fn next_orders<'p>(
        &mut self,
        processes: &'p Processes,
    ) -> Vec<(WorkerCommand, Option<BorrowedFd<'p>>)> {
        let Some(own) = self.own else { return Vec::new() };
        let new = processes
            .all
            .iter()
            .filter(|process| process.id != own && !self.announced_numbers.contains(&process.id));
        let mut orders: Vec<_> =
            new.map(|process| (WorkerCommand::AddProcess(process.id), process.socket())).collect();
        self.announced_numbers = processes.all.iter().map(|process| process.id).collect();
        let has_begun =
            processes.all.iter().any(|process| process.id == own && process.state != ProcessState::Starting);
        if let Some(receiver) = processes.receiver().filter(|_| has_begun) {
            let is_elsewhere = receiver != own;
            if std::mem::replace(&mut self.is_received_elsewhere, is_elsewhere) != is_elsewhere {
                orders.push((WorkerCommand::ReceiveDatagrams(!is_elsewhere), None));
            }
        }
        orders
    }
}

impl MasterLink {
    fn new(socket: OwnedFd) -> Self {
        let link = Self { socket, is_heard: false, is_leaving: false };
        link.tell_of_master(false);
        link
    }

    /// A master that does not read, because it is another server, is told nothing.
    fn send(&self, message: &[u8; MESSAGE_SIZE], socket: Option<BorrowedFd<'_>>) {
        let _ = packet::send(&self.socket, message, socket, SendFlags::DONTWAIT);
    }

    fn tell_of_master(&self, is_leaving: bool) {
        let mut message = [0; MESSAGE_SIZE];
        let [first, second, ..] = &mut message;
        (*first, *second) = (MASTER, u8::from(is_leaving));
        self.send(&message, None);
    }

    /// Reads what the other master says about processes. `None` once it is gone.
    fn read(&mut self) -> Option<Vec<KnownProcess>> {
        let mut process = Vec::new();
        for _ in 0..MESSAGES_AT_ONCE {
            let mut message = [0; MESSAGE_SIZE];
            match packet::receive(&self.socket, &mut message) {
                Ok((MESSAGE_SIZE, socket)) => {
                    self.is_heard = true;
                    if let [MASTER, is_leaving, ..] = message {
                        self.is_leaving = is_leaving != 0;
                    }
                    process.extend(KnownProcess::read(&message, socket));
                }
                Ok((0, _)) => return None,
                // A message of another version is ignored.
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return None,
            }
        }
        Some(process)
    }
}

impl Processes {
    /// Processes that the old binary has told of, which has started this one.
    pub(super) fn of(old: Option<OwnedFd>) -> Self {
        let mut this = Self { old: old.map(MasterLink::new), ..Self::default() };
        this.follow();
        this
    }

    /// Adds a process that is about to be started. Returns its identity and the socket that it reads; `None` if it has to do without.
    pub(super) fn add(&mut self) -> Option<(u32, OwnedFd)> {
        let living = self.all.iter().filter(|process| process.state != ProcessState::Gone);
        if living.count() >= PROCESSES_MAX {
            return None;
        }
        let (theirs, socket) = packet::pair().ok()?;
        let id = self.free_id()?;
        let born = monotonic();
        let process = KnownProcess { id, born, state: ProcessState::Starting, socket: Some(socket) };
        self.know(process, None);
        Some((id, theirs))
    }

    /// An identity that no process has. 0 is that of processes without links.
    fn free_id(&self) -> Option<u32> {
        loop {
            let mut id = [0; 4];
            rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).ok()?;
            let id = u32::from_le_bytes(id);
            if id != 0 && self.all.iter().all(|process| process.id != id) {
                return Some(id);
            }
        }
    }

    /// Records the state of a process, and tells the other masters.
    pub(super) fn set_state(&mut self, id: Option<u32>, state: ProcessState) {
        if let Some(at) = self.all.iter().position(|process| Some(process.id) == id) {
            self.change(at, state, None);
        }
    }

    fn change(&mut self, at: usize, state: ProcessState, from: Option<Side>) {
        let Some(process) = self.all.get_mut(at).filter(|process| process.state < state) else { return };
        process.state = state;
        if state == ProcessState::Gone {
            process.socket = None;
        }
        self.tell(at, from);
    }

    /// Takes over what is said about a process.
    fn know(&mut self, process: KnownProcess, from: Option<Side>) {
        if let Some(at) = self.all.iter().position(|known_process| known_process.id == process.id) {
            return self.change(at, process.state, from);
        }
        if process.socket.is_none() && process.state != ProcessState::Gone {
            // This process may open no more descriptors.
            return;
        }
        if self.all.len() >= PROCESSES_MAX {
            let oldest = self.all.iter().position(|known_process| known_process.state == ProcessState::Gone);
            let Some(oldest) = oldest else { return };
            self.all.remove(oldest);
        }
        self.all.push(process);
        self.tell(self.all.len() - 1, from);
    }

    /// Tells the other masters of a process, but not the one that has told of it.
    fn tell(&self, at: usize, from: Option<Side>) {
        let Some(process) = self.all.get(at) else { return };
        let sides = [(Side::Old, &self.old), (Side::New, &self.new)];
        for link in sides.iter().filter(|(side, _)| Some(*side) != from).filter_map(|(_, link)| link.as_ref())
        {
            link.send(&process.message(), process.socket());
        }
    }

    /// Makes the link to a binary that is about to be started, and returns its end.
    pub(super) fn link_to_new(&mut self) -> Option<OwnedFd> {
        let (ours, theirs) = packet::pair().ok()?;
        let link = MasterLink::new(ours);
        for process in &self.all {
            link.send(&process.message(), process.socket());
        }
        self.new = Some(link);
        Some(theirs)
    }

    /// Gives up the link to the new binary, which has ended.
    pub(super) fn forget_new(&mut self) {
        self.new = None;
    }

    /// Tells the new binary that this one only waits for its worker processes.
    pub(super) fn leave(&self) {
        if let Some(new) = &self.new {
            new.tell_of_master(true);
        }
    }

    /// Returns true if the old binary only waits for its worker processes.
    pub(super) fn is_old_leaving(&self) -> bool {
        self.old.as_ref().is_some_and(|old| old.is_leaving)
    }

    /// Returns true if the new binary tells of its worker processes.
    pub(super) fn has_new(&self) -> bool {
        self.new.as_ref().is_some_and(|new| new.is_heard)
    }

    /// Takes note of what other masters say, and of processes that have ended.
    pub(super) fn follow(&mut self) {
        for side in [Side::Old, Side::New] {
            let slot = match side {
                Side::Old => &mut self.old,
                Side::New => &mut self.new,
            };
            let Some(link) = slot else { continue };
            match link.read() {
                Some(known_process) => {
                    known_process.into_iter().for_each(|process| self.know(process, Some(side)))
                }
                None => *slot = None,
            }
        }
        for at in 0..self.all.len() {
            if self.all.get(at).and_then(KnownProcess::socket).is_some_and(has_hung_up) {
                self.change(at, ProcessState::Gone, None);
            }
        }
    }

    // DIFF(nginx): one process receives the datagrams of QUIC, and passes on those of connections of others.
    /// The process that receives the datagrams of connections: of those that serve, the one that was started last.
    pub(super) fn receiver(&self) -> Option<u32> {
        let serving = self.all.iter().filter(|process| process.state == ProcessState::Serving);
        serving.max_by_key(|process| (process.born, process.id)).map(|process| process.id)
    }

    /// Ready when [`follow`](Self::follow) has something.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let links = self.old.iter().chain(&self.new).map(|link| PollFd::new(&link.socket, PollFlags::IN));
        // The end of a socket is always reported.
        let ends = self.all.iter().filter_map(|process| process.socket.as_ref());
        links.chain(ends.map(|socket| PollFd::new(socket, PollFlags::empty())))
    }
}

/// Another master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

/// Returns true if the process that reads the other end has ended.
fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let now = Timespec::try_from(Duration::ZERO).ok();
    poll(&mut fds, now.as_ref()).is_ok_and(|count| count > 0)
}

/// Nanoseconds of the clock that all processes of the system share.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving(processes: &mut Processes) -> (u32, OwnedFd) {
        let (id, socket) = processes.add().unwrap();
        processes.set_state(Some(id), ProcessState::Serving);
        (id, socket)
    }

    fn ids(processes: &Processes, own: u32) -> Vec<u32> {
        processes.all.iter().map(|process| process.id).filter(|id| *id != own).collect()
    }

    fn ended_processes(processes: &Processes) -> Vec<u32> {
        let removed_values = processes.all.iter().filter(|process| process.socket.is_none());
        removed_values.map(|process| process.id).collect()
    }

    #[test]
    fn newest_process_that_serves_receives() {
        let mut processes = Processes::default();
        assert_eq!(processes.receiver(), None);
        let (one, of_one) = serving(&mut processes);
        let (two, of_two) = serving(&mut processes);
        let (three, _of_three) = processes.add().unwrap();
        assert_eq!((processes.receiver(), ids(&processes, one)), (Some(two), vec![two, three]));
        processes.set_state(Some(two), ProcessState::Leaving);
        processes.set_state(Some(two), ProcessState::Serving);
        assert_eq!(processes.receiver(), Some(one), "a state only moves on");
        processes.set_state(Some(three), ProcessState::Serving);
        assert_eq!(processes.receiver(), Some(three));
        drop((of_one, of_two));
        processes.follow();
        assert_eq!(ended_processes(&processes), [one, two]);
    }

    /// The processes of a binary that was started by that of `old`.
    fn new_binary(old: &mut Processes) -> Processes {
        Processes::of(old.link_to_new())
    }

    #[test]
    fn masters_tell_each_other_of_their_processes() {
        let mut first = Processes::default();
        let (one, of_one) = serving(&mut first);
        let mut second = new_binary(&mut first);
        assert_eq!(second.receiver(), Some(one));
        assert!(!first.has_new());
        let (two, _of_two) = serving(&mut second);
        first.follow();
        assert!(first.has_new() && first.receiver() == Some(two));
        // A datagram reaches the process of another binary.
        let socket = second.all[0].socket().unwrap();
        packet::send(socket, b"x", None, SendFlags::DONTWAIT).unwrap();
        assert_eq!(packet::receive(&of_one, &mut [0; 9]).unwrap().0, 1);
        // Messages of the first binary still arrive by way of a third one.
        let mut third = new_binary(&mut second);
        let (three, of_three) = serving(&mut third);
        second.follow();
        first.follow();
        assert_eq!((ids(&first, one), first.receiver()), (vec![two, three], Some(three)));
        assert!(!third.is_old_leaving());
        second.leave();
        drop(of_one);
        first.follow();
        second.follow();
        third.follow();
        assert!(third.is_old_leaving());
        assert_eq!(ended_processes(&third), [one]);
        // When the third binary ends together with its process, the second one receives again.
        drop((third, of_three));
        second.follow();
        assert_eq!(second.receiver(), Some(two));
    }

    #[test]
    fn worker_process_is_told_of_others_once() {
        let mut processes = Processes::default();
        let (one, of_one) = serving(&mut processes);
        let mut told_processes = ToldProcesses::of(one);
        assert!(told_processes.next_orders(&processes).is_empty());
        let (two, of_two) = processes.add().unwrap();
        let mut of_new = ToldProcesses::of(two);
        let orders = of_new.next_orders(&processes);
        assert!(matches!(orders[..], [(WorkerCommand::AddProcess(id), Some(_))] if id == one));
        // Before the new process serves, the other one receives.
        let orders = told_processes.next_orders(&processes);
        assert!(matches!(orders[..], [(WorkerCommand::AddProcess(id), Some(_))] if id == two));
        processes.set_state(Some(two), ProcessState::Serving);
        assert!(of_new.next_orders(&processes).is_empty());
        let orders = told_processes.next_orders(&processes);
        assert!(matches!(orders[..], [(WorkerCommand::ReceiveDatagrams(false), None)]));
        drop(of_two);
        processes.follow();
        let orders = told_processes.next_orders(&processes);
        assert!(matches!(orders[..], [(WorkerCommand::ReceiveDatagrams(true), None)]));
        // The next one knows that it is gone.
        let (three, _of_three) = processes.add().unwrap();
        let mut of_third = ToldProcesses::of(three);
        assert_eq!(of_third.next_orders(&processes).iter().filter(|(_, socket)| socket.is_none()).count(), 1);
        drop(of_one);
    }

    #[test]
    fn unknown_messages_of_another_master_are_ignored() {
        let mut first = Processes::default();
        let theirs = first.link_to_new().unwrap();
        let mut message = [0xff; MESSAGE_SIZE];
        for bytes in [&message[..], &message[..3]] {
            packet::send(&theirs, bytes, None, SendFlags::DONTWAIT).unwrap();
        }
        // A process without a socket.
        message = KnownProcess { id: 7, born: 1, state: ProcessState::Serving, socket: None }.message();
        packet::send(&theirs, &message, None, SendFlags::DONTWAIT).unwrap();
        first.follow();
        assert!(first.all.is_empty() && first.has_new());
        drop(theirs);
        first.follow();
        assert!(!first.has_new());
    }

    #[test]
    fn processes_that_have_ended_make_room() {
        let mut processes = Processes::default();
        let kept: Vec<_> = (0..3).map(|_| serving(&mut processes)).collect();
        for _ in 0..2 * PROCESSES_MAX {
            drop(processes.add().unwrap());
            processes.follow();
        }
        assert_eq!(processes.all.len(), PROCESSES_MAX);
        let living: Vec<_> = processes.all.iter().filter(|process| process.socket.is_some()).collect();
        assert_eq!(living.len(), kept.len());
    }
}
