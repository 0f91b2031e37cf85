//! Sessions over datagrams on their way from a worker process that leaves to the next one, with their sockets.
//!
//! ```text
//! loops ─ OfferedSession ─► thread: some at the same time ─ number, loop, record; socket ─► next process: main thread ─► its loop
//!   ▲                        │     ▲                                                                                     │
//!   └─────── verdict ────────┘     └───────────────────── number, verdict ───────────────────────────────────────────────┘
//! ```
//! A pair of Unix sockets for packets, which the master makes and never reads. The next process says first that it takes sessions, because
//! another binary may not. The process that leaves may wait, because a thread does it; in the next process nothing waits. A session is in one of
//! the two processes at any time: the one that leaves ends it when it was accepted. What is not handed over in time, or is beyond the limits, is
//! served to its end by the process that leaves.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use tw_core::event_loop::{
    HANDOVER_SESSIONS_MAX, HANDOVER_TIME_MAX, HandedSession, HandoverOffers, HandoverPhase, HandoverVerdict,
    OfferedSession, RECORD_SIZE_MAX,
};
use tw_log::ErrorLog;

use crate::ipc::packet;

/// Largest number of sessions whose decision is waited for at the same time.
const UNDECIDED_MAX: usize = 64;
/// First packet of the next process: it takes sessions in this form.
const HELLO: [u8; 1] = [1];
/// Longest wait for the line in the log at the end of the process.
const END_TIMEOUT: Duration = Duration::from_millis(500);
/// Largest number of sessions that the next process takes before it looks at something else.
const RECEIVED_AT_ONCE_MAX: usize = 64;

/// Bytes in front of a record: number of the session, number of its loop.
const HEAD_SIZE: usize = 8 + 4;
/// Bytes of a decision: number of the session, decision.
const VERDICT_SIZE: usize = 8 + 1;

/// Limits of a handover, which tests make smaller.
#[derive(Debug, Clone, Copy)]
struct HandoverLimits {
    sessions: usize,
    time: Duration,
}

/// Outcome of a handover.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct HandoverOutcome {
    accepted: usize,
    /// Sessions that stayed.
    refused: usize,
}

/// Handover of the sessions of this process.
#[derive(Debug)]
pub(super) enum Handover {
    /// The next process has not said yet that it takes sessions.
    Waiting { next: OwnedFd, until: Instant },
    /// A thread hands them over. Nothing is ever sent: it fails when the thread has ended.
    Running { is_over: Receiver<()> },
    /// No process takes sessions.
    Closed,
}

impl Handover {
    /// Handover to the process at the other end of `next`.
    pub(super) fn new(next: OwnedFd) -> Self {
        Self::Waiting { next, until: Instant::now() + HANDOVER_TIME_MAX }
    }

    /// Returns true if the next process is waited for.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Readable when the next process has said something.
    pub(super) fn next_process(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Waiting { next, .. } => Some(next.as_fd()),
            Self::Running { .. } | Self::Closed => None,
        }
    }

    /// Time at which it is not waited for any more.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Waiting { until, .. } => Some(*until),
            Self::Running { .. } | Self::Closed => None,
        }
    }

    /// Starts the thread once the next process has said that it takes sessions, and returns what loops have to know. Never waits.
    pub(super) fn step(&mut self, log: &ErrorLog) -> HandoverPhase {
        let Self::Waiting { next, until } = self else { return HandoverPhase::Closed };
        let mut hello = [0; 8];
        let greeting = match recv(&*next, &mut hello[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < *until => return HandoverPhase::Expected,
            Ok((_, size)) => hello.get(..size),
            Err(_) => None,
        };
        let Self::Waiting { next, .. } = std::mem::replace(self, Self::Closed) else {
            return HandoverPhase::Closed;
        };
        if greeting != Some(&HELLO[..]) {
            return HandoverPhase::Closed;
        }
        match start(next, log.clone()) {
            Ok((offers, is_over)) => {
                *self = Self::Running { is_over };
                HandoverPhase::Open(offers)
            }
            Err(error) => {
                let errno = Errno::from_io_error(&error).map_or(0, Errno::raw_os_error);
                let errno = tw_base::Errno(errno);
                tw_log::alert!(
                    log,
                    "starting a thread failed ({errno}), sessions over UDP are not handed over"
                );
                HandoverPhase::Closed
            }
        }
    }

    /// Waits for the line in the log, at the end of the process: no loop offers anything any more, unless it hangs.
    pub(super) fn end(self) {
        if let Self::Running { is_over } = self {
            let _ = is_over.recv_timeout(END_TIMEOUT);
        }
    }
}

/// Starts the thread that hands over what is offered. It ends when the offers are dropped, or at the limits, and writes a line to `log`.
fn start(next: OwnedFd, log: ErrorLog) -> io::Result<(HandoverOffers, Receiver<()>)> {
    let limits = HandoverLimits { sessions: HANDOVER_SESSIONS_MAX, time: HANDOVER_TIME_MAX };
    let (sender, offers) = sync_channel(HANDOVER_SESSIONS_MAX);
    let (over, is_over) = sync_channel::<()>(0);
    let run = move || {
        let HandoverOutcome { accepted, refused } = hand_over_all(&offers, &next, limits);
        // Loops find that no more is taken.
        drop((offers, next));
        if accepted + refused > 0 {
            tw_log::notice!(
                log,
                "{accepted} sessions over UDP go on in the next worker process, {refused} end in this one"
            );
        }
        drop(over);
    };
    thread::Builder::new().name("handover".to_owned()).spawn(run)?;
    Ok((HandoverOffers::new(sender), is_over))
}

/// Hands over what is offered, until there is nothing more or a limit is reached.
fn hand_over_all(
    offers: &Receiver<OfferedSession>,
    next: &OwnedFd,
    limits: HandoverLimits,
) -> HandoverOutcome {
    let until = Instant::now() + limits.time;
    let mut outcome = HandoverOutcome::default();
    let mut undecided = HashMap::new();
    let mut numbers = 0..limits.sessions as u64;
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        let offered = match undecided.len() {
            _ if numbers.is_empty() => None,
            0 => offers.recv_timeout(remaining).ok(),
            1..UNDECIDED_MAX => offers.try_recv().ok(),
            _ => None,
        };
        let next_one = offered.and_then(|offered| Some((offered, numbers.next()?)));
        if let Some((offered, number)) = next_one {
            match send_session(number, &offered, next, until) {
                Ok(()) => drop(undecided.insert(number, offered.verdict)),
                Err(Errno::MSGSIZE) => outcome.refused += 1,
                Err(_) => {
                    outcome.refused += 1;
                    break;
                }
            }
        } else if undecided.is_empty() {
            break;
        } else {
            let Ok((number, verdict)) = receive_verdict(next, until) else { break };
            let Some(session) = undecided.remove(&number) else { continue };
            match verdict {
                HandoverVerdict::Accepted => outcome.accepted += 1,
                HandoverVerdict::Refused => outcome.refused += 1,
            }
            // A session that has ended meanwhile does not wait.
            let _ = session.send(verdict);
        }
    }
    // The others go on here.
    outcome.refused += undecided.len() + offers.try_iter().count();
    outcome
}

/// Sends one session. `MSGSIZE` if its record is too long; other errors mean that the next process takes none.
fn send_session(number: u64, offered: &OfferedSession, next: &OwnedFd, until: Instant) -> Result<(), Errno> {
    if offered.record.len() > RECORD_SIZE_MAX {
        return Err(Errno::MSGSIZE);
    }
    let loop_index = u32::try_from(offered.loop_index).unwrap_or_default();
    let packet = [&number.to_le_bytes()[..], &loop_index.to_le_bytes(), &offered.record].concat();
    set_timeout(next, sockopt::Timeout::Send, until)?;
    packet::send(next, &packet, Some(offered.socket.as_fd()), SendFlags::empty())
}

/// Waits for the next decision, about the session with this number.
fn receive_verdict(next: &OwnedFd, until: Instant) -> Result<(u64, HandoverVerdict), Errno> {
    set_timeout(next, sockopt::Timeout::Recv, until)?;
    let mut packet = [0; VERDICT_SIZE];
    let (_, size) = recv(next, &mut packet[..], RecvFlags::empty())?;
    let [a, b, c, d, e, f, g, h, verdict] = packet;
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    match verdict {
        1 if size == VERDICT_SIZE => Ok((number, HandoverVerdict::Accepted)),
        0 if size == VERDICT_SIZE => Ok((number, HandoverVerdict::Refused)),
        _ => Err(Errno::PROTO),
    }
}

/// Lets calls on `socket` fail after `until`.
fn set_timeout(socket: &OwnedFd, of: sockopt::Timeout, until: Instant) -> Result<(), Errno> {
    let remaining = until.saturating_duration_since(Instant::now());
    // A timeout of zero would mean no limit.
    if remaining.is_zero() {
        return Err(Errno::TIMEDOUT);
    }
    sockopt::set_socket_timeout(socket, of, Some(remaining.max(Duration::from_millis(1))))
}

/// Sessions that the process before this one hands over.
#[derive(Debug)]
pub(super) struct IncomingSessions {
    socket: Arc<OwnedFd>,
    received: usize,
}

/// Result of a look at the sessions that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// More may arrive.
    Open,
    /// The other process is gone, or says what cannot be read.
    Over,
}

impl IncomingSessions {
    /// Sessions that arrive on this end of a pair of sockets. The other process is told to send them.
    pub(super) fn new(socket: OwnedFd) -> Self {
        // A process that cannot be told sends no sessions.
        let _ = send(&socket, &HELLO, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        Self { socket: Arc::new(socket), received: 0 }
    }

    /// Gives each session that is there to `take`, with the number of its loop. Never waits.
    pub(super) fn receive(&mut self, mut take: impl FnMut(usize, HandedSession)) -> Incoming {
        for _ in 0..RECEIVED_AT_ONCE_MAX {
            let mut packet = [0; HEAD_SIZE + RECORD_SIZE_MAX];
            let (size, socket) = match packet::receive(&*self.socket, &mut packet) {
                Ok((0, _)) => return Incoming::Over,
                Ok(received) => received,
                Err(Errno::AGAIN) => return Incoming::Open,
                Err(Errno::INTR) => continue,
                Err(_) => return Incoming::Over,
            };
            self.received += 1;
            let Some((head, record)) = packet.get(..size).and_then(<[u8]>::split_first_chunk::<HEAD_SIZE>)
            else {
                return Incoming::Over;
            };
            if self.received > HANDOVER_SESSIONS_MAX {
                return Incoming::Over;
            }
            let [a, b, c, d, e, f, g, h, loop_index @ ..] = *head;
            let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let other = self.socket.clone();
            let record = record.to_vec();
            let reply = move |verdict| send_verdict(&other, number, verdict);
            match socket {
                // The socket becomes non-blocking, whatever the other process has set.
                Some(socket) if rustix::io::ioctl_fionbio(&socket, true).is_ok() => {
                    let session = HandedSession::new(record, socket, reply);
                    take(u32::from_le_bytes(loop_index) as usize, session);
                }
                _ => drop(reply(HandoverVerdict::Refused)),
            }
        }
        Incoming::Open
    }
}

/// Readable when [`IncomingSessions::receive`] has something.
impl AsFd for IncomingSessions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends the decision about a session, and returns it if the other process will read it. One that has given up serves the session itself.
fn send_verdict(to: &OwnedFd, number: u64, verdict: HandoverVerdict) -> HandoverVerdict {
    let mut packet = [0; VERDICT_SIZE];
    let (head, tail) = packet.split_at_mut(size_of::<u64>());
    head.copy_from_slice(&number.to_le_bytes());
    tail.fill(u8::from(verdict == HandoverVerdict::Accepted));
    match send(to, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => verdict,
        Err(_) => HandoverVerdict::Refused,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tokio::sync::oneshot;
    use tw_testkit::wait;

    use super::*;

    const LIMITS: HandoverLimits = HandoverLimits { sessions: 100, time: wait::TIMEOUT };

    fn offer(record: &[u8]) -> (OfferedSession, oneshot::Receiver<HandoverVerdict>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap().into();
        let (verdict, decision) = oneshot::channel();
        (OfferedSession { loop_index: 3, record: record.to_vec(), socket, verdict }, decision)
    }

    fn read_hello(next: &OwnedFd) -> Result<usize, Errno> {
        let mut hello = [0; 8];
        let (_, size) = recv(next, &mut hello[..], RecvFlags::DONTWAIT)?;
        assert_eq!(hello.get(..size), Some(&HELLO[..]));
        Ok(size)
    }

    /// Hands over sessions with these records to `take`.
    fn hand_over_to(
        records: &[&[u8]],
        limits: HandoverLimits,
        mut take: impl FnMut(usize, HandedSession) + Send,
    ) -> (HandoverOutcome, Vec<Option<HandoverVerdict>>) {
        let (next, incoming) = packet::pair().unwrap();
        let mut incoming = IncomingSessions::new(incoming);
        let (sender, offers) = sync_channel(records.len().max(1));
        let mut decisions = Vec::new();
        for record in records {
            let (offered, decision) = offer(record);
            sender.send(offered).unwrap();
            decisions.push(decision);
        }
        drop(sender);
        assert_eq!(read_hello(&next), Ok(1));
        let outcome = thread::scope(|scope| {
            let taker = scope.spawn(move || {
                let is_over = || incoming.receive(&mut take) == Incoming::Over;
                assert!(wait::until(wait::TIMEOUT, is_over));
            });
            let outcome = hand_over_all(&offers, &next, limits);
            drop((offers, next));
            taker.join().unwrap();
            outcome
        });
        let verdicts = decisions.into_iter().map(|decision| decision.blocking_recv().ok());
        (outcome, verdicts.collect())
    }

    #[test]
    fn sessions_arrive_with_their_sockets_and_each_is_decided() {
        let (sender, taken) = std::sync::mpsc::channel();
        let long = vec![7; RECORD_SIZE_MAX + 1];
        let records: [&[u8]; 4] = [b"yes", b"no", &long, b""];
        let (outcome, verdicts) = hand_over_to(&records, LIMITS, move |index, mut session| {
            let socket = UdpSocket::from(session.socket.take().unwrap());
            assert!(index == 3 && socket.local_addr().unwrap().port() != 0);
            sender.send(session.record.clone()).unwrap();
            if session.record != b"no" {
                assert_eq!(session.accept(), HandoverVerdict::Accepted);
            }
        });
        let accepted = Some(HandoverVerdict::Accepted);
        let refused = Some(HandoverVerdict::Refused);
        assert_eq!(verdicts, [accepted, refused, None, accepted]);
        assert_eq!(outcome, HandoverOutcome { accepted: 2, refused: 2 });
        assert_eq!(taken.iter().collect::<Vec<_>>(), [b"yes".to_vec(), b"no".to_vec(), Vec::new()]);
    }

    #[test]
    fn sessions_beyond_the_limit_stay() {
        let records: [&[u8]; 5] = [b"a"; 5];
        let limits = HandoverLimits { sessions: 2, ..LIMITS };
        let (outcome, verdicts) = hand_over_to(&records, limits, |_, session| {
            assert_eq!(session.accept(), HandoverVerdict::Accepted);
        });
        assert_eq!(outcome, HandoverOutcome { accepted: 2, refused: 3 });
        let accepted = Some(HandoverVerdict::Accepted);
        assert_eq!(verdicts, [accepted, accepted, None, None, None]);
    }

    #[test]
    fn silent_or_absent_process_takes_nothing() {
        let limits = HandoverLimits { time: Duration::from_millis(20), ..LIMITS };
        for is_there in [true, false] {
            let (next, incoming) = packet::pair().unwrap();
            let _incoming = is_there.then_some(incoming);
            let (sender, offers) = sync_channel(2);
            let (first, decision) = offer(b"a");
            let (second, other) = offer(b"b");
            sender.send(first).unwrap();
            sender.send(second).unwrap();
            let outcome = hand_over_all(&offers, &next, limits);
            assert_eq!(outcome, HandoverOutcome { accepted: 0, refused: 2 }, "{is_there}");
            assert!(decision.blocking_recv().is_err() && other.blocking_recv().is_err());
        }
    }

    #[test]
    fn sessions_are_offered_once_the_next_process_takes_them() {
        let log = ErrorLog::none();
        let (next, incoming) = packet::pair().unwrap();
        let mut handover = Handover::new(next);
        assert!(matches!(handover.step(&log), HandoverPhase::Expected) && handover.is_waiting());
        let _incoming = IncomingSessions::new(incoming);
        let HandoverPhase::Open(offers) = handover.step(&log) else { panic!("{handover:?}") };
        assert!(handover.next_process().is_none() && handover.deadline().is_none());
        drop(offers);
        handover.end();
        // Another version sends another greeting, or none in time.
        for hello in [&b"\x02"[..], b"", b"hello"] {
            let (next, other) = packet::pair().unwrap();
            if !hello.is_empty() {
                send(&other, hello, SendFlags::empty()).unwrap();
            }
            drop(other);
            assert!(matches!(Handover::new(next).step(&log), HandoverPhase::Closed), "{hello:?}");
        }
        let (next, _other) = packet::pair().unwrap();
        let mut silent = Handover::Waiting { next, until: Instant::now() };
        assert!(matches!(silent.step(&log), HandoverPhase::Closed) && !silent.is_waiting());
    }

    #[test]
    fn process_that_has_given_up_keeps_its_session() {
        let (next, incoming) = packet::pair().unwrap();
        let (sender, offers) = sync_channel(1);
        sender.send(offer(b"a").0).unwrap();
        let limits = HandoverLimits { time: Duration::from_millis(20), ..LIMITS };
        assert_eq!(hand_over_all(&offers, &next, limits).refused, 1);
        drop(next);
        let mut count = 0;
        let late = |_, session: HandedSession| {
            assert_eq!(session.accept(), HandoverVerdict::Refused);
            count += 1;
        };
        assert_eq!(IncomingSessions::new(incoming).receive(late), Incoming::Over);
        assert_eq!(count, 1);
    }

    #[test]
    fn packets_of_another_form_end_the_handover() {
        let (next, incoming) = packet::pair().unwrap();
        let mut incoming = IncomingSessions::new(incoming);
        let mut none = |_, _| panic!("no session");
        assert_eq!((incoming.receive(&mut none), read_hello(&next)), (Incoming::Open, Ok(1)));
        // A session without a socket is refused.
        send(&next, &[0; HEAD_SIZE + 3], SendFlags::empty()).unwrap();
        assert_eq!(incoming.receive(&mut none), Incoming::Open);
        let mut reply = [9; VERDICT_SIZE];
        assert_eq!(recv(&next, &mut reply[..], RecvFlags::DONTWAIT).unwrap().1, VERDICT_SIZE);
        assert_eq!(reply, [0; VERDICT_SIZE]);
        send(&next, &[1; HEAD_SIZE - 1], SendFlags::empty()).unwrap();
        assert_eq!(incoming.receive(&mut none), Incoming::Over);
    }
}
