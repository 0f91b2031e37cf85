//! Queue for work that keeps a thread of a pool busy (slow hashes, pictures): a few run at a time, the others in turns by
//! client, so that a client with many requests delays only its own.
//!
//! ```text
//! enter ─ free ─────────────→ has a turn ─ dropped ─→ the next client's oldest gets the turn
//!   │ └── busy ─→ waits ─ its turn ─┘
//!   └ full: refused         └ dropped ─→ leaves the line
//! ```
//! A [`TurnTicket`] is in the queue or has a turn. Its state is decided under the lock, so no turn is lost or given twice.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot::{self, Receiver, Sender};
use tw_base::{FatalMutex, FatalMutexGuard};
use tw_net::Addr;
use tw_request::request::Request;
use tw_request::wire::ClientGone;

/// Limits of one queue.
#[derive(Debug, Clone, Copy)]
pub struct TurnLimits {
    /// Requests that have a turn at the same time; others wait. Fewer than a pool has threads, so that the others can read
    /// from the disk.
    pub at_once: usize,
    /// Requests that wait for a turn.
    pub waiting: usize,
    /// Waiting requests of one client. Many users may come from one address.
    pub waiting_of_client: usize,
}

/// Requests that hash a password, or decrypt a key, at the same time; others wait. Fewer than a pool has threads, so that
/// guessing does not keep other requests from the disk.
pub const TURNS_AT_ONCE: usize = 4;
/// Requests that wait for that.
pub const WAITING_MAX: usize = 1024;
/// Most waiting requests of one client. Many users may come from one address.
pub const WAITING_OF_CLIENT_MAX: usize = 128;
/// Longest wait of a request for its turn.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Limits of a queue for the check of credentials.
pub const CREDENTIALS: TurnLimits =
    TurnLimits { at_once: TURNS_AT_ONCE, waiting: WAITING_MAX, waiting_of_client: WAITING_OF_CLIENT_MAX };

/// Unit that shares turns: an address, or the network of 64 bits that an IPv6 client has to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientKey(Option<IpAddr>);

impl ClientKey {
    /// Unit of a client with the address `addr`.
    pub fn of(addr: &Addr) -> Self {
        Self(addr.inet().map(|addr| match addr.ip().to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
            ip => ip,
        }))
    }
}

/// Queue of requests with work. Its lock is held briefly.
pub struct TurnQueue {
    limits: TurnLimits,
    state: FatalMutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    waiting: usize,
    last_id: u64,
    /// Waiting requests by client, none of the lists empty; the client at the front is next.
    clients: VecDeque<(ClientKey, VecDeque<Waiter>)>,
}

struct Waiter {
    id: u64,
    turn: Sender<()>,
}

/// There are too many in the line.
#[derive(Debug)]
pub struct QueueFull;

/// A place in the line; dropping it gives it up.
#[must_use]
pub struct TurnTicket {
    line: Arc<TurnQueue>,
    client: ClientKey,
    id: u64,
    /// `None` if it had a turn at once.
    turn: Option<Receiver<()>>,
}

impl TurnQueue {
    /// An empty queue.
    pub fn new(limits: TurnLimits) -> Self {
        Self { limits, state: FatalMutex::default() }
    }

    /// A place behind the others of `client`.
    pub fn enter(self: &Arc<Self>, client: ClientKey) -> Result<TurnTicket, QueueFull> {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        let turn = if state.running < self.limits.at_once {
            state.running += 1;
            None
        } else {
            Some(state.wait(&self.limits, client, id)?)
        };
        Ok(TurnTicket { line: self.clone(), client, id, turn })
    }

    fn lock(&self) -> FatalMutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn wait(&mut self, limits: &TurnLimits, client: ClientKey, id: u64) -> Result<Receiver<()>, QueueFull> {
        if self.waiting == limits.waiting {
            return Err(QueueFull);
        }
        let (turn, receiver) = oneshot::channel();
        let waiter = Waiter { id, turn };
        match self.clients.iter_mut().find(|(client_key, _)| *client_key == client) {
            Some((_, waiters)) if waiters.len() == limits.waiting_of_client => return Err(QueueFull),
            Some((_, waiters)) => waiters.push_back(waiter),
            None => self.clients.push_back((client, VecDeque::from([waiter]))),
        }
        self.waiting += 1;
        Ok(receiver)
    }

    /// Takes one that waits out of the line; `false` if it has had its turn.
    fn leave(&mut self, client: ClientKey, id: u64) -> bool {
        let Some(at) = self.clients.iter().position(|(client_key, _)| *client_key == client) else {
            return false;
        };
        let waiters = &mut self.clients[at].1;
        let before = waiters.len();
        waiters.retain(|waiter| waiter.id != id);
        let has_left = waiters.len() < before;
        if waiters.is_empty() {
            self.clients.remove(at);
        }
        self.waiting -= usize::from(has_left);
        has_left
    }

    /// A turn is over: the next one's begins.
    fn next(&mut self) {
        self.running -= 1;
        while let Some((client, mut waiters)) = self.clients.pop_front() {
            let first = waiters.pop_front();
            if !waiters.is_empty() {
                self.clients.push_back((client, waiters));
            }
            if let Some(Waiter { turn, .. }) = first {
                self.waiting -= 1;
                // Sending succeeds: a ticket leaves the queue before its receiver is dropped.
                if turn.send(()).is_ok() {
                    self.running += 1;
                    return;
                }
            }
        }
    }
}

impl TurnTicket {
    /// Waits for the turn. Cancel safe.
    pub async fn turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            // The sender is in the line until it sends.
            let _ = turn.await;
            self.turn = None;
        }
    }
}

/// Reason why a request did not get its turn.
pub enum TurnWait {
    /// Wait longer than allowed.
    TooLong,
    /// End of the client's connection.
    Gone(ClientGone),
}

/// Waits for the turn of `r`, at most for `limit`.
pub async fn wait_for_turn(r: &Request, ticket: &mut TurnTicket, limit: Duration) -> Result<(), TurnWait> {
    let wire = r.wire().clone();
    let mut turn = pin!(ticket.turn());
    let mut limit = pin!(wire.sleep(limit));
    poll_fn(|cx| match turn.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => limit.as_mut().poll(cx).map(|slept| match slept {
            Ok(()) => Err(TurnWait::TooLong),
            Err(client_gone) => Err(TurnWait::Gone(client_gone)),
        }),
    })
    .await
}

impl Drop for TurnTicket {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        if self.turn.is_none() || !state.leave(self.client, self.id) {
            state.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    const LIMITS: TurnLimits = CREDENTIALS;

    fn client(text: &str) -> ClientKey {
        ClientKey::of(&Addr::Inet(format!("{text}:1").parse().unwrap()))
    }

    fn has_turn(place: &mut TurnTicket) -> bool {
        pin!(place.turn()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    fn line_with_all_running() -> (Arc<TurnQueue>, Vec<TurnTicket>) {
        let line = Arc::new(TurnQueue::new(LIMITS));
        let mut running: Vec<_> =
            (0..LIMITS.at_once).map(|_| line.enter(client("1.1.1.1")).unwrap()).collect();
        assert!(running.iter_mut().all(has_turn));
        (line, running)
    }

    #[test]
    fn clients_take_turns() {
        let (line, mut running) = line_with_all_running();
        let mut waiting: Vec<_> = ["1.1.1.1", "1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3", "2.2.2.2"]
            .map(|text| line.enter(client(text)).unwrap())
            .into();
        let mut order = Vec::new();
        // Requests that got a turn keep it, so each step adds one.
        while running.pop().is_some() {
            let with_turn = (0..waiting.len()).filter(|at| has_turn(&mut waiting[*at]));
            let new: Vec<_> = with_turn.filter(|at| !order.contains(at)).collect();
            assert_eq!(new.len(), 1);
            order.extend(new);
        }
        assert_eq!(order, [0, 3, 4, 1]);
    }

    #[test]
    fn leaving_request_makes_room_and_costs_no_turn() {
        let (line, running) = line_with_all_running();
        let one = client("1.1.1.1");
        let other = client("2.2.2.2");
        let mut places: Vec<_> = (0..LIMITS.waiting_of_client).map(|_| line.enter(one).unwrap()).collect();
        assert!(line.enter(one).is_err());
        let mut last = line.enter(other).unwrap();
        places.truncate(1);
        assert_eq!(line.lock().waiting, 2);
        let mut first = places.remove(0);
        drop(running);
        assert!(has_turn(&mut first) && has_turn(&mut last));
        // A ticket that was given its turn but has not noticed yet passes the turn on when dropped.
        let more: Vec<_> = (0..2).map(|_| line.enter(one).unwrap()).collect();
        let unaware = line.enter(one).unwrap();
        let mut behind = line.enter(other).unwrap();
        drop(first);
        assert!(!has_turn(&mut behind));
        drop(unaware);
        assert!(has_turn(&mut behind));
        drop((more, last, behind));
        let state = line.lock();
        assert_eq!((state.running, state.waiting, state.clients.len()), (0, 0, 0));
    }

    #[test]
    fn queue_is_bounded() {
        let (line, _running) = line_with_all_running();
        let places: Vec<_> = (0..LIMITS.waiting)
            .map(|n| line.enter(client(&format!("10.0.{}.{}", n / 256, n % 256))))
            .collect();
        assert!(places.iter().all(Result::is_ok));
        assert!(line.enter(client("1.1.1.1")).is_err());
        drop(places);
        assert!(line.enter(client("1.1.1.1")).is_ok());
    }

    #[test]
    fn networks_of_ipv6_are_one_client() {
        assert_eq!(client("[2001:db8::1]"), client("[2001:db8::ffff:0:0:2]"));
        assert_ne!(client("[2001:db8::1]"), client("[2001:db8:0:1::1]"));
        assert_eq!(client("[::ffff:1.2.3.4]"), client("1.2.3.4"));
        assert_ne!(client("1.2.3.4"), client("1.2.3.5"));
    }
}
