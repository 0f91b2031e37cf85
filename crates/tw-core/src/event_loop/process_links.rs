//! Links to the other worker processes of the instance that have connections over the same listening sockets: the process before a binary upgrade
//! or a replacement, until its last connection has ended. One process receives; what belongs to a connection of another one goes to it.
//!
//! ```text
//! datagram ─► loop of the newest process ─ process in the connection ID ─► ProcessLinks::pass ─ Unix socket ─► that process: main thread
//!                                                                        └► it is gone: stateless reset            │
//!                                                  loop of the connection ◄─ queue ◄─ Counts::take_from_process ◄──┘
//! ```
//! The sockets come from the master, so nobody else can write to them. They keep packets apart, and the kernel tells when the other end is gone. What
//! arrives is read like input of strangers (`process_packet`).
//!
//! A process that is not known is not gone for certain: its link may be on the way from another master. Its clients are told that their
//! connections are lost when [`UNKNOWN_TIME_MAX`] has passed.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tw_base::FatalMutex;

use super::datagram_queues::PassedDatagram;
use super::process_packet::{LINKED_SIZE_MAX, PacketHead};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Worker processes that pass datagrams to each other, and those that are remembered to have ended.
    pub const PROCESSES_MAX: usize = 64, count,
        "those that have ended are forgotten, the oldest first; connections over QUIC in further ones do not survive an upgrade";
    /// Datagram that is passed to another worker process.
    constant bytes LINKED_SIZE_MAX, "it is dropped, and counted; what the socket between the two does not take is dropped, too";
    /// Time for which datagrams of connections of an unknown worker process are dropped.
    const UNKNOWN_TIME_MAX: Duration = Duration::from_secs(1), time, "then their clients get a stateless reset";
}

/// Other worker processes, as loops know them.
#[derive(Default)]
pub struct ProcessLinks {
    /// Identity of this process in connection IDs; 0 if it has no links.
    own: AtomicU32,
    /// True while another process receives the datagrams of connections.
    is_received_elsewhere: AtomicBool,
    others: FatalMutex<OtherProcesses>,
}

#[derive(Default)]
struct OtherProcesses {
    /// Processes that the master has told of. One without a socket has ended.
    processes: Vec<(u32, Option<Arc<OwnedFd>>)>,
    /// Identities of other processes, or made up by strangers, with the time of the first datagram of each.
    unknown: Vec<(u32, Instant)>,
}

/// Result of passing a datagram to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkOutcome {
    /// The datagram is on its way.
    Sent,
    /// The datagram is lost: it is too large, the socket takes no more, or the process is not known yet.
    Lost,
    /// The process has ended, with its connections.
    Gone,
}

impl ProcessLinks {
    /// Identity of this process in connection IDs.
    pub fn own(&self) -> u32 {
        self.own.load(Acquire)
    }

    /// Sets the identity of this process, before it has connections.
    pub fn set_own(&self, process: u32) {
        self.own.store(process, Release);
    }

    /// Adds another process; without a socket it has ended.
    pub fn add(&self, process: u32, socket: Option<OwnedFd>) {
        let OtherProcesses { processes: known_values, unknown } = &mut *self.others.lock();
        known_values.retain(|(other, _)| *other != process);
        unknown.retain(|(other, _)| *other != process);
        if known_values.len() >= PROCESSES_MAX {
            let oldest = known_values.iter().position(|(_, socket)| socket.is_none());
            known_values.remove(oldest.unwrap_or(0));
        }
        known_values.push((process, socket.map(Arc::new)));
    }

    /// Records which process receives the datagrams of connections. Loops have to be woken.
    pub fn set_received_elsewhere(&self, is_received_elsewhere: bool) {
        self.is_received_elsewhere.store(is_received_elsewhere, Release);
    }

    /// Returns true while another process receives the datagrams of connections.
    pub(super) fn is_received_elsewhere(&self) -> bool {
        self.is_received_elsewhere.load(Acquire)
    }

    pub(super) fn is_known(&self, process: u32) -> bool {
        self.others.lock().processes.iter().any(|(other, _)| *other == process)
    }

    /// Passes a datagram to the process, for its loop with this number. Never waits.
    pub(super) fn pass(
        &self,
        process: u32,
        number: u8,
        datagram: &PassedDatagram,
        now: Instant,
    ) -> LinkOutcome {
        let socket = match self.others.lock().find(process, now) {
            Ok(socket) => socket,
            Err(outcome) => return outcome,
        };
        let Some(head) = PacketHead::of(number, datagram) else { return LinkOutcome::Lost };
        let parts = [IoSlice::new(head.bytes()), IoSlice::new(&datagram.bytes)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&*socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(_) => LinkOutcome::Sent,
            Err(Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED | Errno::NOTCONN) => {
                self.add(process, None);
                LinkOutcome::Gone
            }
            Err(_) => LinkOutcome::Lost,
        }
    }
}

impl OtherProcesses {
    /// Socket of a process, or the outcome without one.
    fn find(&mut self, process: u32, now: Instant) -> Result<Arc<OwnedFd>, LinkOutcome> {
        if let Some((_, socket)) = self.processes.iter().find(|(other, _)| *other == process) {
            return socket.clone().ok_or(LinkOutcome::Gone);
        }
        match self.unknown.iter().find(|(other, _)| *other == process) {
            Some((_, since)) if *since + UNKNOWN_TIME_MAX <= now => Err(LinkOutcome::Gone),
            Some(_) => Err(LinkOutcome::Lost),
            None => {
                if self.unknown.len() >= PROCESSES_MAX {
                    self.unknown.remove(0);
                }
                self.unknown.push((process, now));
                Err(LinkOutcome::Lost)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use tw_net::Addr;

    use super::super::process_packet::{PACKET_SIZE_MAX, read_packet};
    use super::*;

    fn datagram(content: &[u8]) -> PassedDatagram {
        let listen = "0.0.0.0:443".parse().unwrap();
        let peer = "192.0.2.1:50000".parse().unwrap();
        PassedDatagram::new(content, peer, None, Addr::Inet(listen), 2)
    }

    #[test]
    fn processes_are_found_by_their_identity() {
        let links = ProcessLinks::default();
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (one, of_one) = pair();
        let (two, of_two) = pair();
        links.add(1, Some(one));
        links.add(2, Some(two));
        links.add(3, None);
        let sent = datagram(b"content");
        let now = Instant::now();
        let pass = |process| links.pass(process, 7, &sent, now);
        assert_eq!([pass(2), pass(3)], [LinkOutcome::Sent, LinkOutcome::Gone]);
        let mut packet = [0; PACKET_SIZE_MAX];
        let (_, size) = recv(&of_two, &mut packet[..], RecvFlags::DONTWAIT).unwrap();
        let (number, read) = read_packet(&packet[..size]).unwrap();
        assert_eq!((number, &read.bytes[..]), (7, &b"content"[..]));
        assert_eq!(recv(&of_one, &mut packet[..], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        // Datagrams that a process does not read are lost, and sending them never waits.
        assert!((0..10_000).any(|_| pass(1) == LinkOutcome::Lost));
        drop((of_one, of_two));
        assert_eq!([pass(1), pass(2)], [LinkOutcome::Gone; 2]);
        assert!(links.is_known(1) && links.is_known(3));
    }

    #[test]
    fn unknown_process_is_gone_after_some_time() {
        let links = ProcessLinks::default();
        let now = Instant::now();
        let sent = datagram(b"x");
        let pass = |process, now| links.pass(process, 7, &sent, now);
        assert_eq!(pass(9, now), LinkOutcome::Lost);
        assert_eq!(pass(9, now + UNKNOWN_TIME_MAX / 2), LinkOutcome::Lost);
        assert!(!links.is_known(9));
        assert_eq!(pass(9, now + UNKNOWN_TIME_MAX), LinkOutcome::Gone);
        // Made-up identities evict no announced process, and are forgotten.
        links.add(1, None);
        (2..1000).for_each(|process| assert_eq!(pass(process, now), LinkOutcome::Lost));
        assert_eq!(links.others.lock().unknown.len(), PROCESSES_MAX);
        assert_eq!(pass(1, now), LinkOutcome::Gone);
        links.add(999, None);
        assert_eq!(links.others.lock().unknown.len(), PROCESSES_MAX - 1);
    }
}
