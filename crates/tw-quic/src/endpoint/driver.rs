//! The engine of an endpoint, and state that belongs to no connection: client hellos that are not whole, answers, timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::rand;
use engine::ConnectionHandle;
use quinn_proto as engine;
use tw_base::FatalMutex;

use crate::config::{
    EndpointConfig, HELLO_TIMEOUT, PAYLOAD_SIZE_MAX, RESET_INTERVAL, RESPONSES_MAX, TransportConfig,
    server_config,
};
use crate::hello::HelloReader;
use crate::keys::{CONNECTION_ID_LEN, ConnectionIds, ForeignOrigin, ResetKey};
use crate::shared::Shared;
use crate::tls::SessionStart;
use crate::transmit::Outgoing;
use crate::version::VERSION_1;
use crate::wall_clock::WallClock;

/// Alert `internal_error`: the engine's own configuration never accepts.
pub(super) const INTERNAL_ERROR: u8 = 80;

/// The part of an endpoint that only the endpoint itself changes.
pub(crate) struct Driver {
    pub(super) engine: engine::Endpoint,
    /// True while the engine works, and after a panic of it.
    pub(super) is_busy: bool,
    /// Number of the engine: what belongs to an earlier one is void.
    pub(crate) epoch: u64,
    pub(crate) config: EndpointConfig,
    pub(crate) server: Arc<engine::ServerConfig>,
    /// Configuration of the last connection that was accepted, with the place of the session of the next one.
    pub(super) accepting: Option<(Arc<engine::ServerConfig>, Arc<SessionStart>)>,
    pub(super) clock: Arc<WallClock>,
    pub(super) foreign: Arc<ForeignOrigin>,
    /// ID that the next connection has, because its client is told so.
    pub(crate) reserved: Arc<FatalMutex<Option<[u8; CONNECTION_ID_LEN]>>>,
    /// Client hellos of which parts are missing, by the ID that the client has chosen.
    pub(super) hellos: HashMap<Box<[u8]>, PendingHello>,
    /// Order of their arrival; some are gone.
    pub(super) hello_order: VecDeque<(Instant, Box<[u8]>)>,
    /// Connections that wait for the choice of a server, or whose handshake is not complete.
    pub(crate) handshakes: usize,
    /// Answers without a connection.
    pub(super) responses: VecDeque<Outgoing>,
    pub(super) timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    pub(super) next_serial: u64,
    pub(super) drained: Vec<ConnectionHandle>,
    pub(super) is_accepting: bool,
}

/// A connection whose client hello is not whole.
pub(super) struct PendingHello {
    pub(super) incoming: engine::Incoming,
    pub(super) reader: HelloReader,
    /// Length of the first datagram.
    pub(super) first_len: u64,
    /// Bytes that have come from the address of the first datagram.
    pub(super) received: u64,
}

impl Driver {
    pub(super) fn new(config: EndpointConfig, clock: Arc<WallClock>, epoch: u64) -> Self {
        let foreign = Arc::new(ForeignOrigin::default());
        let reserved = Arc::<FatalMutex<_>>::default();
        let mut seed = [0; 32];
        // An error is ignored, because without random numbers no handshake succeeds either.
        let _ = rand::fill(&mut seed);
        let mut own = engine::EndpointConfig::new(Arc::new(ResetKey(config.keys.clone())));
        let (keys, origin) = (config.keys.clone(), config.origin);
        let (noted, next) = (foreign.clone(), reserved.clone());
        own.supported_versions(vec![VERSION_1])
            .min_reset_interval(RESET_INTERVAL)
            .rng_seed(Some(seed))
            .cid_generator(move || {
                let (keys, foreign, reserved) = (keys.clone(), noted.clone(), next.clone());
                Box::new(ConnectionIds { keys, own: origin, foreign, reserved })
            });
        // The size is within the range that the engine allows.
        let _ = own.max_udp_payload_size(PAYLOAD_SIZE_MAX);
        let refusal = Arc::new(SessionStart::Reject(INTERNAL_ERROR));
        let server = Arc::new(server_config(&config.keys, clock.clone(), refusal));
        Self {
            engine: engine::Endpoint::new(Arc::new(own), Some(server.clone()), true, None),
            is_busy: false,
            epoch,
            config,
            server,
            accepting: None,
            clock,
            foreign,
            reserved,
            hellos: HashMap::new(),
            hello_order: VecDeque::new(),
            handshakes: 0,
            responses: VecDeque::new(),
            timers: BinaryHeap::new(),
            next_serial: epoch << 40,
            drained: Vec::new(),
            is_accepting: true,
        }
    }

    /// Configuration of a connection that is about to be accepted, and the place of its session. Connections with the same settings share it.
    pub(crate) fn accepting(
        &mut self,
        transport: &TransportConfig,
    ) -> (Arc<engine::ServerConfig>, Arc<SessionStart>) {
        let is_same = |config: &engine::ServerConfig| Arc::ptr_eq(&config.transport, &transport.engine);
        let accepting = self.accepting.take().filter(|(config, _)| is_same(config)).unwrap_or_else(|| {
            let start = Arc::new(SessionStart::Begun(FatalMutex::default()));
            let mut config = (*self.server).clone();
            config.crypto = start.clone();
            config.transport = transport.engine.clone();
            (Arc::new(config), start)
        });
        self.accepting.insert(accepting).clone()
    }

    pub(crate) fn with_engine<T>(&mut self, call: impl FnOnce(&mut engine::Endpoint) -> T) -> T {
        self.is_busy = true;
        let outcome = call(&mut self.engine);
        self.is_busy = false;
        outcome
    }

    /// Handshakes under way.
    pub(super) fn half_open(&self) -> usize {
        self.hellos.len() + self.handshakes
    }

    /// Counts a handshake as over, once, if it is.
    pub(super) fn uncount(&mut self, shared: &Shared) {
        if shared.is_counted.replace(false) {
            self.handshakes = self.handshakes.saturating_sub(1);
        }
    }

    /// Queues an answer without a connection. One that is too many is lost, as in the network.
    pub(crate) fn respond(&mut self, message: Outgoing) {
        if self.responses.len() < RESPONSES_MAX {
            self.responses.push_back(message);
        }
    }

    /// Hands an event of a connection to the engine of the endpoint.
    pub(crate) fn endpoint_event(
        &mut self,
        shared: &Shared,
        event: engine::EndpointEvent,
    ) -> Option<engine::ConnectionEvent> {
        if event.is_drained() {
            self.drained.push(shared.handle);
        }
        self.with_engine(|engine| engine.handle_event(shared.handle, event))
    }

    /// Notes that a handshake is over, if it is.
    pub(crate) fn note_handshake(&mut self, shared: &Shared) {
        if shared.is_established() || shared.has_ended() {
            self.uncount(shared);
        }
    }

    pub(super) fn forget_oldest_hello(&mut self) {
        while let Some((_, id)) = self.hello_order.pop_front() {
            if let Some(pending) = self.hellos.remove(&id) {
                self.with_engine(|engine| engine.ignore(pending.incoming));
                return;
            }
        }
    }

    pub(super) fn expire_hellos(&mut self, now: Instant) {
        while let Some((at, _)) = self.hello_order.front() {
            if *at + HELLO_TIMEOUT > now {
                break;
            }
            if let Some((_, id)) = self.hello_order.pop_front()
                && let Some(pending) = self.hellos.remove(&id)
            {
                self.with_engine(|engine| engine.ignore(pending.incoming));
            }
        }
    }
}
