//! Handshakes: a client whose hello is whole, the answer to it, and the connection that the engine makes of both.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto as engine;
use rustls::ServerConfig;

use crate::config::TransportConfig;
use crate::connection::Connection;
use crate::endpoint::driver::Driver;
use crate::endpoint::state::{EndpointState, EndpointStatistics};
use crate::error::{ConnectionError, TLS_ALERT};
use crate::keys::CONNECTION_ID_LEN;
use crate::path_mtu;
use crate::path_watch::PathWatch;
use crate::qlog::{RecordWriter, Recorder};
use crate::shared::EngineConnection;
use crate::tls::{self, BegunSession, ClientScheme, ConnectionParameters, SessionStart};
use crate::transmit::Outgoing;

/// Handshake that is about to begin.
pub struct HandshakeStart {
    tls: Arc<ServerConfig>,
    client_scheme: ClientScheme,
    params: Vec<u8>,
    datagram_size_max: u16,
    hello: Vec<u8>,
    id: [u8; CONNECTION_ID_LEN],
    transport: TransportConfig,
}

/// Handshake whose answer to the client hello is written.
pub struct BegunHandshake {
    session: Box<BegunSession>,
    id: [u8; CONNECTION_ID_LEN],
    transport: TransportConfig,
}

/// Failure of a handshake to begin.
#[derive(Debug)]
pub struct HandshakeFailure {
    /// Alert for the client ([`IncomingConnection::reject`]).
    pub alert: u8,
    /// Reason.
    pub error: rustls::Error,
}

impl HandshakeStart {
    /// Reads the client hello and writes the answer with the signature of the server, which takes as long as that, on any thread.
    ///
    /// # Errors
    /// The hello is not valid, or has nothing in common with the configuration.
    pub fn run(self) -> Result<BegunHandshake, HandshakeFailure> {
        let Self { tls, client_scheme, params, datagram_size_max, hello, id, transport } = self;
        match BegunSession::begin(tls, client_scheme, params, datagram_size_max, &hello) {
            Ok(session) => Ok(BegunHandshake { session, id, transport }),
            Err((alert, error)) => Err(HandshakeFailure { alert, error }),
        }
    }
}

/// A client that wants to connect, and has sent its client hello. Dropping it forgets the client without an answer.
pub struct IncomingConnection {
    pub(crate) incoming: Option<engine::Incoming>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) hello: Vec<u8>,
    /// Connection ID that the client has sent to.
    pub(crate) destination: Box<[u8]>,
    /// Length of the first datagram.
    pub(crate) first_len: u64,
    /// Bytes that have come from the client's address with its hello.
    pub(crate) received: u64,
    /// Largest datagram that may be sent.
    pub(crate) datagram_size_max: u16,
    /// Recorder of the connection, if it is recorded.
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) epoch: u64,
    pub(crate) endpoint: Rc<EndpointState>,
}

impl std::fmt::Debug for IncomingConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("IncomingConnection").field(&self.peer).finish()
    }
}

impl IncomingConnection {
    /// The client hello: a handshake message of TLS with its header of four bytes.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Address of the client.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Address that the client has sent to, if the socket tells.
    pub fn local(&self) -> Option<IpAddr> {
        self.local
    }

    /// Connection ID that the client has chosen for the server, before a Retry if there was one.
    pub fn original_destination(&self) -> &[u8] {
        self.incoming.as_ref().map_or(&[], |incoming| incoming.orig_dst_cid())
    }

    /// Records the connection from now on (qlog). `unix` is the time since 1970 at `now`.
    pub fn record(&mut self, now: Instant, unix: Duration, write: RecordWriter) {
        let recorder = Recorder::new(now, unix, self.original_destination(), write);
        recorder.started(self.peer, &self.destination, self.first_len);
        self.recorder = Some(Arc::new(recorder));
    }

    /// Allows larger datagrams than those of Ethernet if the route to the client, whose MTU `route_mtu` tells, may carry them. They are sent
    /// once the path has carried a probe of their size.
    pub fn allow_large_datagrams(&mut self, route_mtu: impl FnOnce(SocketAddr) -> Option<u32>) {
        self.datagram_size_max = path_mtu::datagram_size_max(self.peer, route_mtu);
    }

    /// Prepares the handshake with the TLS configuration of the server that the client has named, and the source of the scheme in which
    /// a client has signed. Cheap.
    pub fn begin(
        &self,
        tls: Arc<ServerConfig>,
        client_scheme: ClientScheme,
        transport: &TransportConfig,
    ) -> HandshakeStart {
        let driver = self.endpoint.driver.borrow();
        let keys = &driver.config.keys;
        let id = keys.new_id(driver.config.origin);
        let has_retried = self.incoming.as_ref().is_some_and(|incoming| !incoming.may_retry());
        let parameters = ConnectionParameters {
            original_destination: self.original_destination(),
            retry_source: has_retried.then_some(&*self.destination),
            source: &id,
            reset_token: &keys.reset_token(&id),
        };
        let params = tls::encode(&transport.settings, &parameters);
        HandshakeStart {
            tls,
            client_scheme,
            params,
            datagram_size_max: self.datagram_size_max,
            hello: self.hello.clone(),
            id,
            transport: transport.clone(),
        }
    }

    /// Accepts the connection, whose answer to the client hello is there.
    ///
    /// # Errors
    /// The handshake failed; the client gets the reason.
    pub fn accept(mut self, now: Instant, handshake: BegunHandshake) -> Result<Connection, ConnectionError> {
        let BegunHandshake { mut session, id, transport } = handshake;
        session.recorder.clone_from(&self.recorder);
        let bidi_streams_max = transport.settings.bidi_streams();
        let watch = session.watch.clone();
        let (config, start) = self.endpoint.driver.borrow_mut().accepting(&transport);
        *self.endpoint.driver.borrow().reserved.lock() = Some(id);
        start.set(Some(session));
        let outcome = self.start(now, config, bidi_streams_max, watch);
        // If no connection was made, these values were not used.
        start.set(None);
        self.endpoint.driver.borrow().reserved.lock().take();
        let count = |statistics: &mut EndpointStatistics| match &outcome {
            Ok(_) => statistics.accepted += 1,
            Err(_) => statistics.refused += 1,
        };
        self.endpoint.count(count);
        outcome
    }

    /// Ends the handshake with a TLS alert.
    pub fn reject(mut self, now: Instant, alert: u8) {
        if let Some(recorder) = &self.recorder {
            let code = TLS_ALERT + u64::from(alert);
            recorder.closed(&ConnectionError::Violation { code, reason: "handshake rejected".into() }, None);
        }
        let mut config = (*self.endpoint.driver.borrow().server).clone();
        config.crypto = Arc::new(SessionStart::Reject(alert));
        // Starting the connection fails, as intended, and the client receives the alert.
        let _ = self.start(now, Arc::new(config), 0, Arc::default());
        self.endpoint.count(|statistics| statistics.refused += 1);
    }

    /// Tells the client that the server cannot take a connection now.
    pub fn refuse(mut self) {
        let endpoint = self.endpoint.clone();
        endpoint.guard(|| {
            let mut driver = endpoint.driver.borrow_mut();
            let mut out = Vec::new();
            if let Some(incoming) = self.take(&mut driver) {
                let transmit = driver.with_engine(|engine| engine.refuse(incoming, &mut out));
                driver.respond(Outgoing::new(out, transmit));
            }
        });
        endpoint.count(|statistics| statistics.refused += 1);
        endpoint.wake();
    }

    /// Takes the engine's part, unless the engine is a new one.
    fn take(&mut self, driver: &mut Driver) -> Option<engine::Incoming> {
        let incoming = self.incoming.take()?;
        if driver.epoch != self.epoch {
            return None;
        }
        driver.handshakes = driver.handshakes.saturating_sub(1);
        Some(incoming)
    }

    fn start(
        &mut self,
        now: Instant,
        config: Arc<engine::ServerConfig>,
        bidi_streams_max: u64,
        watch: Arc<PathWatch>,
    ) -> Result<Connection, ConnectionError> {
        let endpoint = self.endpoint.clone();
        let outcome = endpoint.guard(|| {
            let mut driver = endpoint.driver.borrow_mut();
            let incoming = self.take(&mut driver).ok_or(ConnectionError::EngineFailed)?;
            let is_proved = incoming.remote_address_validated();
            let mut out = Vec::new();
            match driver
                .with_engine(|engine| engine.accept(incoming, now, &mut out, Some(config)).map_err(Box::new))
            {
                Ok((handle, engine)) => {
                    let recorder = self.recorder.take();
                    let accepted = EngineConnection { handle, engine, bidi_streams_max, watch, recorder };
                    let shared = endpoint.add(&mut driver, accepted);
                    if !is_proved {
                        shared.peer.borrow_mut().set_unproved(self.received);
                    }
                    Ok(shared)
                }
                Err(error) => {
                    if let Some(transmit) = error.response {
                        driver.respond(Outgoing::new(out, transmit));
                    }
                    Err(error.cause.into())
                }
            }
        });
        endpoint.wake();
        let shared = outcome.unwrap_or(Err(ConnectionError::EngineFailed))?;
        endpoint.queue(shared.handle, shared.serial);
        Ok(Connection::new(shared))
    }
}

impl Drop for IncomingConnection {
    fn drop(&mut self) {
        if self.incoming.is_some() {
            let endpoint = self.endpoint.clone();
            endpoint.guard(|| {
                let mut driver = endpoint.driver.borrow_mut();
                if let Some(incoming) = self.take(&mut driver) {
                    driver.with_engine(|engine| engine.ignore(incoming));
                }
            });
        }
    }
}
