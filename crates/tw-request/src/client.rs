//! Facts about the connection of a client, whatever protocol it speaks. No I/O: variables, limits and logs read them.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use tw_base::memory::{self, MemoryHolder};
use tw_core::event_loop::{ClientInfo, ConnectionSlot, EvictableConnection, PassedConnection};
use tw_core::generation::DebugLines;
use tw_log::{ContextVisitor, ErrorLog, Level, LineContext};
use tw_net::listen::SocketKind;
use tw_net::{Addr, proxy_protocol};
use tw_tls_settings::TlsInfo;

use super::alpn::HQ;
use super::memory_share::MemoryShare;
use crate::event_loop::Loop;

/// A client, from accept to close.
pub struct Client {
    /// Number of its connection: `*id` in log lines.
    pub id: u64,
    /// The loop it is served by.
    pub event_loop: Rc<Loop>,
    /// The listening address it came by.
    pub listen: Rc<Addr>,
    /// Kind of its socket: datagrams for QUIC.
    pub kind: SocketKind,
    /// Time of accept.
    pub accepted: Instant,
    /// Requests begun on its connection.
    pub requests: Cell<u64>,
    /// Result of the TLS handshake, if the connection is secured.
    pub tls: OnceCell<Box<TlsInfo>>,
    /// True if the client speaks plain HTTP where TLS is expected.
    pub is_plain_on_tls: Cell<bool>,
    /// PROXY protocol header.
    pub proxy: OnceCell<Box<proxy_protocol::Header>>,
    /// Place among the clients of the loop.
    pub slot: ConnectionSlot,
    /// Memory that it holds, if that is counted.
    memory_share: OnceCell<Rc<MemoryShare>>,
    verbosity: Verbosity,
    peer: Addr,
    peer_text: OnceCell<Box<str>>,
    local: OnceCell<Box<Addr>>,
    /// The listening address in a generation: number of that, index there.
    pub(super) group: Cell<(u64, usize)>,
}

/// Scheme of a client's URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `http`
    Http,
    /// `https`
    Https,
}

impl Scheme {
    /// The scheme in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port a URL need not say.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// Returns true if the connection is secured by TLS.
    pub fn is_secure(self) -> bool {
        self == Self::Https
    }
}

/// Verbosity of the log lines of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verbosity {
    /// Lines admitted by the levels of the error logs.
    AsLogsSay,
    /// Everything, in every log (`debug_connection`).
    Everything,
    /// As `AsLogsSay`, but no line is above `info`.
    Quiet,
}

impl Client {
    /// A client whose connection was just accepted.
    pub fn new(id: u64, peer: Addr, listen: Rc<Addr>, kind: SocketKind, event_loop: Rc<Loop>) -> Rc<Self> {
        let is_debugged =
            event_loop.generation().process.main.debug_connections.iter().any(|peers| peers.has(&peer));
        let verbosity = if is_debugged { Verbosity::Everything } else { Verbosity::AsLogsSay };
        Self::make(id, peer, listen, kind, event_loop, verbosity)
    }

    /// Rest of a timeout for the next request head. The time of the first one began when the client was accepted: it includes a TLS
    /// handshake, and everything else before the head.
    pub fn left_of_head(&self, timeout: Duration) -> Duration {
        match self.requests.get() {
            0 => timeout.saturating_sub(tw_rt::clock::now().saturating_duration_since(self.accepted)),
            _ => timeout,
        }
    }

    /// Copy of the client with only the facts known during a handshake, for variables that are evaluated then.
    pub fn introduced(&self, secured: TlsInfo) -> Rc<Self> {
        let peer = self.peer.clone();
        let listen = self.listen.clone();
        let client = Self::make(self.id, peer, listen, self.kind, self.event_loop.clone(), self.verbosity);
        // Setting cannot fail: both fields of the new client are empty.
        let _ = client.tls.set(Box::new(secured));
        if let Some(header) = self.proxy.get() {
            let _ = client.proxy.set(header.clone());
        }
        client
    }

    /// Takes over the facts about a connection that was passed on, and returns the bytes that were read of it.
    pub fn take_passed(&self, passed: PassedConnection) -> Vec<u8> {
        let PassedConnection { local, early, tls, proxy_header, .. } = passed;
        let sends_header =
            self.group(&self.event_loop.generation()).is_some_and(|group| group.proxy_protocol);
        if let (Some(header), false) = (proxy_header, sends_header) {
            // The header of a connection that was passed on is set nowhere else, so this cannot fail.
            let _ = self.proxy.set(header);
        }
        self.local_or(|| Some(local));
        if let Some(Ok(tls)) = tls.map(|tls| tls.downcast::<TlsInfo>()) {
            // The connection has no other handshake.
            let _ = self.tls.set(tls);
        }
        early
    }

    /// Client of requests that the server makes itself again and again, whose log lines are never above `info`.
    pub fn internal(event_loop: Rc<Loop>) -> Rc<Self> {
        let id = event_loop.counts.next_connection();
        let nowhere = Addr::Unix(None);
        let listen = Rc::new(nowhere.clone());
        Self::make(id, nowhere, listen, SocketKind::Stream, event_loop, Verbosity::Quiet)
    }

    /// Client of requests that stand for nobody, and whose log lines have the level of their cause.
    pub fn for_background(event_loop: Rc<Loop>) -> Rc<Self> {
        let id = event_loop.counts.next_connection();
        let nowhere = Addr::Unix(None);
        let listen = Rc::new(nowhere.clone());
        Self::make(id, nowhere, listen, SocketKind::Stream, event_loop, Verbosity::AsLogsSay)
    }

    fn make(
        id: u64,
        peer: Addr,
        listen: Rc<Addr>,
        kind: SocketKind,
        event_loop: Rc<Loop>,
        verbosity: Verbosity,
    ) -> Rc<Self> {
        Rc::new_cyclic(|client| Self {
            id,
            slot: event_loop.connections.add_client(client.clone() as Weak<dyn ClientInfo>),
            event_loop,
            listen,
            kind,
            accepted: tw_rt::clock::now(),
            requests: Cell::new(0),
            tls: OnceCell::new(),
            is_plain_on_tls: Cell::new(false),
            proxy: OnceCell::new(),
            memory_share: OnceCell::new(),
            verbosity,
            peer,
            peer_text: OnceCell::new(),
            local: OnceCell::new(),
            group: Cell::new((0, 0)),
        })
    }

    /// Memory that the client holds with the protocol of its connection; `None` while nothing is counted, because the memory of
    /// the process has no bound.
    pub fn memory_share(&self, protocol: MemoryHolder) -> Option<&Rc<MemoryShare>> {
        memory::bound()?;
        Some(self.memory_share.get_or_init(|| MemoryShare::new(&self.peer, protocol)))
    }

    /// Lets the loop close the connection to make room, as long as the result lives.
    pub fn evictable(&self) -> EvictableConnection<'_> {
        EvictableConnection::new(&self.event_loop.connections, &self.slot)
    }

    /// Scheme of the client's URLs.
    pub fn scheme(&self) -> Scheme {
        if self.tls.get().is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// Protocol that the handshake has chosen (ALPN).
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        self.tls.get()?.protocol.as_deref()
    }

    /// Returns true if the handshake has chosen HTTP/0.9 over QUIC.
    pub fn speaks_hq(&self) -> bool {
        self.alpn_protocol() == Some(HQ)
    }

    /// The peer's address.
    pub fn peer(&self) -> &Addr {
        &self.peer
    }

    /// The peer's address as text without port.
    pub fn peer_text(&self) -> &str {
        self.peer_text.get_or_init(|| self.peer.client_text())
    }

    /// Our address, once `local` has told it.
    pub fn local_or(&self, local: impl FnOnce() -> Option<Addr>) -> &Addr {
        self.local.get_or_init(|| Box::new(local().unwrap_or_else(|| (*self.listen).clone())))
    }

    /// Writes a line into the main error log.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.log_as(self.peer_text(), level, message);
    }

    /// Writes a line into the main error log for a client whose address as text is `peer` by now.
    pub fn log_as(&self, peer: &str, level: Level, message: fmt::Arguments<'_>) {
        let generation = self.event_loop.generation();
        let context = ConnectionContext { peer, listen: &self.listen };
        self.write(&generation.process.error_log, level, message, Some(&context));
    }

    /// Writes a debug line into the main error log, if a log has level `debug`.
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        let generation = self.event_loop.generation();
        if generation.process.debug_lines == DebugLines::Possible {
            self.write(&generation.process.error_log, Level::Debug, message, None);
        }
    }

    /// Writes a line into a log that admits it, or into any for a client of `debug_connection`.
    pub fn write(
        &self,
        log: &ErrorLog,
        level: Level,
        message: fmt::Arguments<'_>,
        context: Option<&dyn LineContext>,
    ) {
        match self.verbosity {
            Verbosity::AsLogsSay => log.write_about(level, Some(self.id), message, context),
            Verbosity::Quiet => log.write_about(level.max(Level::Info), Some(self.id), message, context),
            Verbosity::Everything => log.write_to_all(level, Some(self.id), message, context),
        }
    }
}

/// End of a line about a connection: `, client: …, server: …`.
struct ConnectionContext<'a> {
    peer: &'a str,
    listen: &'a Addr,
}

impl LineContext for ConnectionContext<'_> {
    fn visit(&self, visitor: &mut dyn ContextVisitor) {
        visitor.bare("client", format_args!("{}", self.peer));
        visitor.bare("server", format_args!("{}", self.listen));
    }
}

impl ClientInfo for Client {
    fn id(&self) -> u64 {
        self.id
    }

    fn address(&self) -> &str {
        self.peer_text()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.event_loop.connections.remove_client(&self.slot);
    }
}
