//! Endpoints of a loop, one for each listening address, and the task that sends for each.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use rustix::net::SocketAddrAny;
use tw_core::event_loop::{DatagramListener, LinkOutcome, LoopCore, PassedDatagram, ReceivedDatagram};
use tw_log::Level;
use tw_net::Addr;
use tw_quic::{
    Datagram, Endpoint, EndpointConfig, EndpointStatistics, IncomingConnection, Origin, Received,
    RetryPolicy, TransmitBatch, Work,
};
use tw_rt::watch::Subject;
use tw_rt::{Deadline, OutgoingMessage};

use super::host_key::HostKey;

/// Pause after the socket of an endpoint has failed.
const PAUSE: Duration = Duration::from_millis(10);
/// Bit of the first byte of packets of a handshake (RFC 8999, section 5.1).
const LONG_HEADER: u8 = 0x80;
/// Kind of the task of an endpoint, for the watch over the loop.
const ENDPOINT: &str = "quic";

/// Settings of QUIC of a listening address: those of its default server.
#[derive(Debug, Clone)]
pub struct AddressSettings {
    /// `quic_host_key`
    pub host_key: HostKey,
    /// `quic_retry`
    pub retry: RetryPolicy,
}

/// Endpoints of one loop.
pub struct QuicEndpoints {
    core: Weak<LoopCore>,
    all: RefCell<Vec<Rc<LoopEndpoint>>>,
}

/// Endpoint of a listening address on this loop.
struct LoopEndpoint {
    listen: Rc<Addr>,
    endpoint: Endpoint,
    /// Socket that it sends by: the one that has received last.
    listener: RefCell<Rc<DatagramListener>>,
    /// Number of the generation whose settings it has.
    generation: Cell<u64>,
    /// Statistics that were counted.
    counted: Cell<EndpointStatistics>,
    /// True once the configuration has given up the address.
    is_over: Cell<bool>,
    core: Weak<LoopCore>,
}

/// Next step of the task of an endpoint.
enum Next {
    /// Connections may have packets to send.
    Work(Work),
    Timer,
    End,
}

impl QuicEndpoints {
    /// No endpoints yet.
    pub fn new(core: &Rc<LoopCore>) -> Self {
        Self { core: Rc::downgrade(core), all: RefCell::default() }
    }

    /// Takes a datagram. Returns a connection whose client hello has arrived; the protocol starts a task for it. `settings` finds those of
    /// the listening address in the generation with this number; `None` if it is not one of QUIC.
    pub fn receive(
        &self,
        listener: &Rc<DatagramListener>,
        datagram: &ReceivedDatagram<'_>,
        generation: u64,
        settings: impl FnOnce() -> Option<AddressSettings>,
    ) -> Option<IncomingConnection> {
        let Some(Addr::Inet(peer)) = datagram.peer.map(|peer| Addr::from(Some(peer.clone()))) else {
            return None;
        };
        let endpoint = self.endpoint(listener, datagram.listen, generation, settings)?;
        let ReceivedDatagram { bytes, local, ecn, .. } = *datagram;
        endpoint.receive(&Datagram { bytes, peer, local, ecn })
    }

    /// Takes a datagram that another loop or process has received: of a connection of this loop, or for a new one because the other loop is
    /// about to end. Result as of [`receive`](Self::receive).
    pub fn receive_passed(&self, datagram: &PassedDatagram) -> Option<IncomingConnection> {
        let all = self.all.borrow();
        let endpoint = all.iter().find(|endpoint| *endpoint.listen == datagram.listen).cloned();
        drop(all);
        let endpoint = endpoint?;
        let PassedDatagram { bytes, peer, local, ecn, .. } = datagram;
        let peer = SocketAddr::try_from(peer.clone()).ok()?;
        let datagram = Datagram { bytes, peer, local: *local, ecn: *ecn };
        let received = endpoint.endpoint.receive(tw_rt::clock::now(), &datagram);
        endpoint.note_statistics();
        match received {
            Received::Connecting(incoming) => Some(incoming),
            // Nothing is passed on twice: the loop of the connection has ended.
            Received::Elsewhere(_) => {
                endpoint.endpoint.reset(tw_rt::clock::now(), &datagram);
                None
            }
            Received::Done | Received::Refused => None,
        }
    }

    /// Closes the connections of a socket whose address the configuration has given up.
    pub fn stop_receiving(&self, listener: &DatagramListener, code: u64) {
        let mut all = self.all.borrow_mut();
        let is_gone = |endpoint: &Rc<LoopEndpoint>| endpoint.listener.borrow().id == listener.id;
        for endpoint in all.iter().filter(|endpoint| is_gone(endpoint)) {
            endpoint.is_over.set(true);
            endpoint.endpoint.close(code, b"");
            endpoint.endpoint.wake();
        }
        all.retain(|endpoint| !is_gone(endpoint));
    }

    /// Returns true if there are connections over this socket.
    pub fn has_connections_over(&self, listener: &DatagramListener) -> bool {
        let all = self.all.borrow();
        let mut own = all.iter().filter(|endpoint| endpoint.listener.borrow().id == listener.id);
        own.any(|endpoint| endpoint.endpoint.connections() > 0)
    }

    /// Endpoint of a listening address, which is made for its first datagram.
    fn endpoint(
        &self,
        listener: &Rc<DatagramListener>,
        listen: &Rc<Addr>,
        generation: u64,
        settings: impl FnOnce() -> Option<AddressSettings>,
    ) -> Option<Rc<LoopEndpoint>> {
        let core = self.core.upgrade()?;
        let config = |settings: AddressSettings| EndpointConfig {
            keys: settings.host_key.0,
            origin: own_origin(&core),
            retry: settings.retry,
        };
        let mut all = self.all.borrow_mut();
        if let Some(loop_endpoint) = all.iter().find(|endpoint| *endpoint.listen == **listen) {
            if loop_endpoint.listener.borrow().id != listener.id {
                *loop_endpoint.listener.borrow_mut() = listener.clone();
            }
            if loop_endpoint.generation.replace(generation) != generation {
                loop_endpoint.endpoint.set_config(config(settings()?));
            }
            return Some(loop_endpoint.clone());
        }
        let unix = tw_rt::clock::unix();
        let unix = Duration::new(unix.secs.unsigned_abs(), 0);
        let endpoint = Rc::new(LoopEndpoint {
            listen: listen.clone(),
            endpoint: Endpoint::new(config(settings()?), tw_rt::clock::now(), unix),
            listener: RefCell::new(listener.clone()),
            generation: Cell::new(generation),
            counted: Cell::default(),
            is_over: Cell::new(false),
            core: self.core.clone(),
        });
        all.push(endpoint.clone());
        let subject = Subject { kind: ENDPOINT, id: core.index as u64 };
        drop(tw_rt::spawn_local(subject, endpoint.clone().run()));
        Some(endpoint)
    }
}

/// Origin in connection IDs of a loop. Loops without a number share the last, and pass nothing on.
fn own_origin(core: &LoopCore) -> Origin {
    Origin { process: core.counts.links.own(), event_loop: core.datagram_number().unwrap_or(u8::MAX) }
}

/// Returns true if a connection ID is of another loop or of another process of this instance, and not one that a client has chosen.
fn is_elsewhere(core: &LoopCore, origin: Origin) -> bool {
    let own = own_origin(core);
    match origin.process == own.process {
        true => origin.event_loop != own.event_loop && core.has_loop(origin.event_loop),
        false => core.knows_process(origin.process),
    }
}

impl LoopEndpoint {
    fn receive(&self, datagram: &Datagram<'_>) -> Option<IncomingConnection> {
        let core = self.core.upgrade()?;
        if core.connections.is_stopping() {
            self.endpoint.stop_accepting();
        }
        // The engine would take packets of a handshake elsewhere for those of a new connection.
        if let Some(origin) = self.endpoint.origin_of_handshake(datagram.bytes)
            && is_elsewhere(&core, origin)
        {
            self.pass_on(&core, origin, datagram);
            return None;
        }
        let received = self.endpoint.receive(tw_rt::clock::now(), datagram);
        self.note_statistics();
        match received {
            Received::Done => {}
            Received::Connecting(incoming) => return Some(incoming),
            Received::Elsewhere(origin) => self.pass_on(&core, origin, datagram),
            Received::Refused => core.pass_new_datagram(datagram.peer.port(), self.passed(datagram)),
        }
        None
    }

    /// Passes a datagram on to the loop and process of its connection. If they have ended, the client learns that the connection is lost,
    /// unless it is in its handshake, which knows no reset (RFC 9000, section 10.3).
    fn pass_on(&self, core: &LoopCore, origin: Origin, datagram: &Datagram<'_>) {
        let is_lost = if origin.process == core.counts.links.own() {
            let has_loop = core.has_loop(origin.event_loop);
            if has_loop {
                core.pass_datagram(origin.event_loop, self.passed(datagram));
            }
            !has_loop
        } else {
            let passed = self.passed(datagram);
            core.pass_to_process(origin.process, origin.event_loop, &passed) == LinkOutcome::Gone
        };
        if is_lost && datagram.bytes.first().is_some_and(|first| first & LONG_HEADER == 0) {
            self.endpoint.reset(tw_rt::clock::now(), datagram);
        }
    }

    fn passed(&self, datagram: &Datagram<'_>) -> PassedDatagram {
        let Datagram { bytes, peer, local, ecn } = *datagram;
        PassedDatagram::new(bytes, peer, local, (*self.listen).clone(), ecn)
    }

    /// Counts what has happened, and reports panics of the engine.
    fn note_statistics(&self) {
        let now = self.endpoint.statistics();
        let before = self.counted.replace(now);
        if now == before {
            return;
        }
        let Some(core) = self.core.upgrade() else { return };
        core.tally.quic_accepted.add(now.accepted - before.accepted);
        core.tally.quic_refused.add(now.refused - before.refused);
        core.tally.quic_retries.add(now.retries - before.retries);
        core.tally.quic_resets.add(now.resets - before.resets);
        core.tally.datagrams_dropped.add(now.dropped - before.dropped);
        core.tally.quic_panics.add(now.panics - before.panics);
        if now.panics > before.panics {
            core.log_once_a_second(
                Level::Alert,
                format_args!("QUIC engine failed on {}, connections were closed", self.listen),
            );
        }
    }

    /// Sends what the connections have, and runs their timers, as long as the endpoint is in use.
    async fn run(self: Rc<Self>) {
        let mut batch = TransmitBatch::default();
        let mut deadline = Deadline::new();
        loop {
            let next = poll_fn(|cx| {
                if let Poll::Ready(work) = self.endpoint.poll_work(cx) {
                    return Poll::Ready(Next::Work(work));
                }
                if self.is_over.get() {
                    return Poll::Ready(Next::End);
                }
                match self.endpoint.next_timeout() {
                    Some(at) => deadline.set_at(at),
                    None => deadline.clear(),
                }
                deadline.poll_elapsed(cx).map(|()| Next::Timer)
            });
            match next.await {
                // Tasks that datagrams or timers have woken add to the packets that are due.
                Next::Work(Work::Packets) => tw_rt::yield_now().await,
                Next::Work(Work::PathChallenge) => {}
                Next::Timer => {
                    self.endpoint.on_timeout(tw_rt::clock::now());
                    tw_rt::yield_now().await;
                }
                Next::End => return,
            }
            self.send(&mut batch).await;
            self.note_statistics();
        }
    }

    /// Sends until nothing is left.
    async fn send(&self, batch: &mut TransmitBatch) {
        loop {
            tw_rt::watch::operation("making QUIC packets", || {
                self.endpoint.fill(tw_rt::clock::now(), batch);
            });
            if batch.is_empty() {
                return;
            }
            let is_full = batch.is_full();
            self.send_batch(batch).await;
            if is_full {
                // Acknowledgements and requests that have arrived meanwhile go first.
                tw_rt::yield_now().await;
            }
        }
    }

    async fn send_batch(&self, batch: &mut TransmitBatch) {
        let listener = self.listener.borrow().clone();
        while !batch.is_empty() {
            let receivers: Vec<_> =
                batch.messages().iter().map(|message| SocketAddrAny::from(message.peer)).collect();
            let messages: Vec<_> = batch
                .messages()
                .iter()
                .zip(&receivers)
                .map(|(message, to)| OutgoingMessage {
                    bytes: &message.bytes,
                    to: Some(to),
                    from: message.local,
                    segment: message.segment,
                    ecn: message.ecn,
                })
                .collect();
            let sent = listener.send(&messages);
            drop(messages);
            batch.remove(sent.done);
            // Recovery sends again what an error of the network has cost.
            if !batch.is_empty() && listener.writable().await.is_err() {
                tw_rt::time::sleep(PAUSE).await;
            }
        }
    }
}
