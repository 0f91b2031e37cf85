//! A session: a client being served, its variables and its lines in the logs.

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::ffi::CStr;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::{AttemptFailure, AttemptPeer, AttemptingSession, PassedSession};
use tw_core::event_loop::PassedConnection;
use tw_core::log::{LoggedSession, visit_tags};
use tw_core::session::Session;
use tw_core::session_meter::{ServerCounters, SessionMeter};
use tw_core::vars::{Bindings, EvalStatus, ProxiedSession, ServedSession, Slots};
use tw_log::{ContextVisitor, Level, LineContext, PushResult, Sink};
use tw_net::{Addr, Transport, proxy_protocol};
use tw_rt::Deadline;
use tw_tls_settings::{TlsInfo, TlsSession};

use crate::client::{Client, ClientContext};
use crate::config::Server;
use crate::datagram_client::DatagramClient;
use crate::proxy::upstream_state::{Attempt, StreamAttempt, UpstreamContext, UpstreamState};
use crate::status::PhaseResult;
use crate::stream_loop::StreamLoop;

pub use crate::status::SessionStatus;

/// A client being served.
pub struct StreamSession {
    /// The client.
    pub client: Rc<Client>,
    /// Connection of the client, or its datagrams.
    pub transport: SessionTransport,
    /// Bytes that were read of the client and not passed on.
    pub preread: Bytes,
    /// Bytes read of the client.
    pub received: u64,
    /// Bytes sent to the client.
    pub sent: u64,
    /// End of the session; 0 as long as it goes on.
    pub status: SessionStatus,
    /// Upstream servers; `None` if the session is not passed to one.
    pub upstream: Option<Box<UpstreamState>>,
    /// Counters of its server.
    pub(crate) meter: Rc<SessionMeter>,
    /// Number of times that its connection was passed on.
    pub(crate) passes: u32,
    /// Part of the session in the number of open ones; `None` once its connection was passed on.
    pub(crate) open: Option<OpenSession>,
    local: OnceCell<Addr>,
    bindings: Bindings,
    held: Vec<Rc<dyn Any>>,
}

/// Counts a session as open while it lives.
pub(crate) struct OpenSession(Rc<StreamLoop>);

impl OpenSession {
    fn new(event_loop: &Rc<StreamLoop>) -> Self {
        event_loop.tally.open_stream.add(1);
        Self(event_loop.clone())
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.0.tally.open_stream.sub(1);
    }
}

/// Carrier of the bytes of a session.
#[derive(Clone)]
pub enum SessionTransport {
    /// Connection.
    Connection(Rc<Transport>),
    /// Datagrams.
    Datagrams(Rc<DatagramClient>),
    /// None: a TLS handshake has the connection, or it was passed on.
    Away,
}

impl SessionTransport {
    /// The connection, if there is one.
    pub fn connection(&self) -> Option<&Rc<Transport>> {
        match self {
            Self::Connection(transport) => Some(transport),
            Self::Datagrams(_) | Self::Away => None,
        }
    }

    /// The client's end of the datagrams, if it sends such.
    pub fn datagrams(&self) -> Option<&Rc<DatagramClient>> {
        match self {
            Self::Connection(_) | Self::Away => None,
            Self::Datagrams(client) => Some(client),
        }
    }
}

/// Reason why bytes could not be sent to a client.
#[derive(Debug)]
pub enum SendFailure {
    /// The client took nothing for as long as it may.
    Timeout,
    /// The connection is broken.
    Broken(io::Error),
}

impl StreamSession {
    /// Begins the session of a client.
    pub(crate) fn new(client: Rc<Client>, transport: SessionTransport) -> Self {
        let counters = client.server().plan.counters.clone();
        let mut s = Self::counted(client, transport, counters);
        s.open = Some(OpenSession::new(&s.client.event_loop));
        if s.client.group().is_none_or(|group| group.servers.members.len() == 1) {
            s.decide_counters();
        }
        s
    }

    /// A session without a connection, which counts nowhere.
    pub(crate) fn internal(client: Rc<Client>) -> Self {
        Self::counted(client, SessionTransport::Away, None)
    }

    fn counted(
        client: Rc<Client>,
        transport: SessionTransport,
        counters: Option<Arc<dyn ServerCounters>>,
    ) -> Self {
        let meter = SessionMeter::new(counters, client.event_loop.index, client.accepted);
        Self {
            client,
            transport,
            preread: Bytes::new(),
            received: 0,
            sent: 0,
            status: SessionStatus::default(),
            upstream: None,
            meter,
            passes: 0,
            open: None,
            local: OnceCell::new(),
            bindings: Bindings::default(),
            held: Vec::new(),
        }
    }

    /// Counts the session for its server, which the client cannot change any more.
    pub(crate) fn decide_counters(&self) {
        self.meter.decide(self.client.server().plan.counters.as_ref());
    }

    /// Takes over the facts about a connection that was passed on.
    pub(crate) fn take_passed(&mut self, passed: PassedConnection) {
        let PassedConnection { local, early, passes, tls, proxy_header } = passed;
        if let (Some(header), false) = (proxy_header, self.client.sends_proxy_header) {
            // The header of a connection that was passed on is set nowhere else, so this cannot fail.
            let _ = self.client.proxy.set(header);
        }
        self.local = OnceCell::from(local);
        self.received = early.len() as u64;
        self.preread = Bytes::from(early);
        self.passes = passes;
        if let Some(Ok(tls)) = tls.map(|tls| tls.downcast::<TlsInfo>()) {
            self.client.set_tls(*tls);
        }
    }

    /// The server of the configuration.
    pub fn server(&self) -> &Server {
        self.client.server()
    }

    /// Address that took the connection. One system call, the first time.
    pub fn local_addr(&self) -> &Addr {
        self.local.get_or_init(|| match &self.transport {
            SessionTransport::Connection(transport) => {
                transport.local_addr().unwrap_or_else(|_| (*self.client.listen).clone())
            }
            SessionTransport::Datagrams(client) => client.local_addr(),
            SessionTransport::Away => (*self.client.listen).clone(),
        })
    }

    /// Makes `local` the address that took the connection, of which there is none.
    pub(crate) fn pretend_local(&self, local: Addr) {
        // Setting cannot fail: the address has not been asked for yet.
        let _ = self.local.set(local);
    }

    /// Counts bytes that were read of the client.
    pub(crate) fn add_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
        self.meter.received(bytes as u64);
    }

    /// Takes the connection out of the session; `None` if it has none, or something else has it, too.
    pub(crate) fn take_connection(&mut self) -> Option<Transport> {
        // The local address is read from the socket before it is given away.
        self.local_addr();
        match std::mem::replace(&mut self.transport, SessionTransport::Away) {
            SessionTransport::Connection(transport) => match Rc::try_unwrap(transport) {
                Ok(transport) => Some(transport),
                Err(shared) => {
                    self.transport = SessionTransport::Connection(shared);
                    None
                }
            },
            other => {
                self.transport = other;
                None
            }
        }
    }

    /// Sends bytes to the client, who may take nothing for `timeout` at most; without a connection, as one datagram.
    ///
    /// # Errors
    /// The connection is broken, or the time is over.
    pub async fn send(&mut self, mut bytes: &[u8], timeout: Duration) -> Result<(), SendFailure> {
        let transport = match &self.transport {
            SessionTransport::Connection(transport) => transport.clone(),
            SessionTransport::Datagrams(client) if !bytes.is_empty() => {
                let outcome = client.send(&[client.message(bytes, None)]);
                self.sent += outcome.bytes;
                self.meter.sent(outcome.bytes);
                let is_full = || outcome.datagrams == 0;
                let error = outcome.error.or_else(|| is_full().then(|| io::ErrorKind::WouldBlock.into()));
                return error.map_or(Ok(()), |error| Err(SendFailure::Broken(error)));
            }
            SessionTransport::Datagrams(_) => return Ok(()),
            SessionTransport::Away => return Err(SendFailure::Broken(io::ErrorKind::NotConnected.into())),
        };
        let mut deadline = Deadline::new();
        deadline.set(timeout);
        while !bytes.is_empty() {
            match transport.try_write(bytes) {
                Ok(n) => {
                    self.sent += n as u64;
                    self.meter.sent(n as u64);
                    bytes = bytes.get(n..).unwrap_or_default();
                    deadline.set(timeout);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| match transport.poll_writable(cx) {
                        Poll::Ready(ready) => Poll::Ready(ready.map_err(SendFailure::Broken)),
                        Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err(SendFailure::Timeout)),
                    })
                    .await?;
                }
                Err(error) => return Err(SendFailure::Broken(error)),
            }
        }
        Ok(())
    }

    /// Value of this type that a handler holds for the session, to be kept beside it.
    pub fn held_by_module<T: 'static>(&self) -> Option<Rc<T>> {
        self.held.iter().find_map(|held| held.clone().downcast::<T>().ok())
    }

    /// Value of this type that a handler holds for the session.
    pub fn held<T: 'static>(&self) -> Option<&T> {
        self.held.iter().find_map(|held| held.downcast_ref::<T>())
    }

    /// Ends a session in which a variable could not be computed: what was decided by it must not stand.
    pub(crate) fn check_evaluation(&self) -> PhaseResult {
        match self.bindings.take_eval_status() {
            EvalStatus::Ok | EvalStatus::Cycle => Ok(()),
            EvalStatus::Failed => Err(SessionStatus::INTERNAL_SERVER_ERROR),
        }
    }
}

impl Session for StreamSession {
    fn client_addr(&self) -> &Addr {
        self.client.addr()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.client.write_about(level, message, Some(&Context(self)));
    }

    fn slots(&self) -> &Slots<Self> {
        &self.client.generation.slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.client.event_loop.buffers.path
    }

    fn hold<T: 'static>(&mut self, value: Rc<T>) {
        self.held.retain(|held| !held.is::<T>());
        self.held.push(value);
    }
}

impl ServedSession for StreamSession {
    fn loop_index(&self) -> usize {
        self.client.event_loop.index
    }

    fn hostname(&self) -> &[u8] {
        &self.client.generation.process.hostname
    }

    fn connection_id(&self) -> u64 {
        self.client.id
    }

    fn client_text(&self) -> &str {
        self.client.addr_text()
    }

    fn local_addr(&self) -> &Addr {
        Self::local_addr(self)
    }

    fn proxy_header(&self) -> Option<&proxy_protocol::Header> {
        self.client.proxy.get().map(|header| &**header)
    }
}

impl ProxiedSession for StreamSession {
    fn peer(&self) -> &Addr {
        self.client.peer()
    }

    fn peer_text(&self) -> &str {
        self.client.peer_text()
    }

    fn set_client_addr(&self, addr: Addr) {
        self.client.set_addr(addr);
    }
}

impl PassedSession for StreamSession {
    type OwnAttempt = StreamAttempt;

    fn attempts(&self) -> &[Attempt] {
        self.upstream.as_ref().map_or(&[], |upstream| &upstream.attempts)
    }
}

impl AttemptingSession for StreamSession {
    fn begin_attempt(&mut self, to: AttemptPeer, _queued: Option<Duration>) {
        if let Some(upstream) = &mut self.upstream {
            upstream.begin(to);
        }
    }

    fn record_failure(&mut self, failure: &AttemptFailure) {
        if let Some(level) = failure.cause.level() {
            self.log(level, format_args!("{failure}"));
        }
    }
}

impl TlsSession for StreamSession {
    fn tls(&self) -> Option<&TlsInfo> {
        self.client.tls()
    }
}

impl LoggedSession for StreamSession {
    const FORMAT: Option<(&'static str, &'static str)> = None;
    const FILE: Option<&'static str> = None;

    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> PushResult {
        sink.push_to(path.to_bytes(), b"/", tw_log::Links::Follow, line)
    }
}

/// End of a line of the error log: client, server, and upstream server with the bytes of both.
struct Context<'a>(&'a StreamSession);

impl LineContext for Context<'_> {
    fn visit(&self, visitor: &mut dyn ContextVisitor) {
        let s = self.0;
        ClientContext(&s.client).visit(visitor);
        if let Some(upstream) = &s.upstream {
            UpstreamContext { upstream, received: s.received, sent: s.sent }.visit(visitor);
        }
        visit_tags(&s.client.server().settings.error_log_tags, s, visitor);
    }
}
