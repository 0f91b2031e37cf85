//! Facts about the connection of a client, from accept to close. No I/O.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Instant;

use tw_accept::Host;
use tw_core::event_loop::{ClientInfo, ConnectionSlot, EvictableConnection, Tally};
use tw_core::generation::DebugLines;
use tw_log::{ContextVisitor, ErrorLog, Level, LineContext};
use tw_net::listen::SocketKind;
use tw_net::{Addr, proxy_protocol};
use tw_tls_settings::TlsInfo;

use crate::config::{LoopGeneration, Server, ServerId};
use crate::listening::AddressGroup;
use crate::stream_loop::StreamLoop;

/// A client. It keeps the configuration that was current when it was accepted.
pub struct Client {
    /// Number of its connection: `*id` in log lines.
    pub id: u64,
    /// The loop it is served by.
    pub event_loop: Rc<StreamLoop>,
    /// The configuration it is served by.
    pub generation: Rc<LoopGeneration>,
    /// The listening address it came by.
    pub listen: Rc<Addr>,
    /// Kind of the socket: a connection, or a session over datagrams.
    pub kind: SocketKind,
    /// Time of accept.
    pub accepted: Instant,
    /// PROXY protocol header.
    pub proxy: OnceCell<Box<proxy_protocol::Header>>,
    /// True if its listening address has `proxy_protocol`.
    pub(crate) sends_proxy_header: bool,
    /// True if its listening address has `ssl`.
    pub(crate) is_tls: bool,
    /// Result of the TLS handshake.
    tls: OnceCell<Box<TlsInfo>>,
    /// Client hello of a handshake that goes on.
    hello: OnceCell<Box<TlsInfo>>,
    /// Server of the session: the default server of its listening address, until the client has named another one.
    server: Cell<ServerId>,
    slot: ConnectionSlot,
    verbosity: Verbosity,
    peer: Addr,
    /// Address that a trusted proxy has named instead of `peer`.
    named: OnceCell<Addr>,
    peer_text: OnceCell<Box<str>>,
    named_text: OnceCell<Box<str>>,
}

/// Verbosity of the log lines of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verbosity {
    /// Lines admitted by the levels of the error logs.
    AsLogsSay,
    /// Everything, in every log (`debug_connection`).
    Everything,
}

/// Connection, or first datagram, of a client.
pub(crate) struct ClientConnection {
    /// Number of the connection: `*id` in log lines.
    pub(crate) id: u64,
    /// Address of the peer.
    pub(crate) peer: Addr,
    /// Listening address.
    pub(crate) listen: Rc<Addr>,
    /// Kind of the socket.
    pub(crate) kind: SocketKind,
    /// Begin of the session, perhaps in another process.
    pub(crate) accepted: Instant,
}

/// Facts about the listening address of a client.
struct AddressFacts {
    /// Server that the session begins with.
    server: ServerId,
    /// `proxy_protocol`
    proxy_protocol: bool,
    /// `ssl`
    tls: bool,
}

impl Client {
    /// A client whose connection was just accepted, or whose first datagram has arrived; `None` if a reload took its listening
    /// address away meanwhile.
    pub(crate) fn new(
        connection: ClientConnection,
        event_loop: Rc<StreamLoop>,
        generation: Rc<LoopGeneration>,
    ) -> Option<Rc<Self>> {
        let servers = &generation.listening.find(&connection.listen, connection.kind)?.servers;
        let address = AddressFacts {
            server: servers.default_server,
            proxy_protocol: servers.proxy_protocol,
            tls: servers.ssl,
        };
        let debugged = &generation.process.main.debug_connections;
        let is_debugged = debugged.iter().any(|peers| peers.has(&connection.peer));
        let verbosity = if is_debugged { Verbosity::Everything } else { Verbosity::AsLogsSay };
        Some(Self::make(connection, address, event_loop, generation, verbosity))
    }

    /// Client of a session without a connection, in whose place `server` does something itself, such as a health check.
    pub(crate) fn internal(
        event_loop: Rc<StreamLoop>,
        generation: Rc<LoopGeneration>,
        server: ServerId,
    ) -> Rc<Self> {
        let nowhere = Addr::Unix(None);
        let connection = ClientConnection {
            id: event_loop.counts.next_connection(),
            peer: nowhere.clone(),
            listen: Rc::new(nowhere),
            kind: SocketKind::Stream,
            accepted: tw_rt::clock::now(),
        };
        let address = AddressFacts { server, proxy_protocol: false, tls: false };
        Self::make(connection, address, event_loop, generation, Verbosity::AsLogsSay)
    }

    fn make(
        connection: ClientConnection,
        address: AddressFacts,
        event_loop: Rc<StreamLoop>,
        generation: Rc<LoopGeneration>,
        verbosity: Verbosity,
    ) -> Rc<Self> {
        let ClientConnection { id, peer, listen, kind, accepted } = connection;
        let AddressFacts { server, proxy_protocol: sends_proxy_header, tls: is_tls } = address;
        Rc::new_cyclic(|client| Self {
            id,
            slot: event_loop.connections.add_client(client.clone() as Weak<dyn ClientInfo>),
            event_loop,
            generation,
            listen,
            kind,
            accepted,
            proxy: OnceCell::new(),
            sends_proxy_header,
            is_tls,
            tls: OnceCell::new(),
            hello: OnceCell::new(),
            server: Cell::new(server),
            verbosity,
            peer,
            named: OnceCell::new(),
            named_text: OnceCell::new(),
            peer_text: OnceCell::new(),
        })
    }

    /// The server of the configuration that its session belongs to.
    pub fn server(&self) -> &Server {
        self.generation.server(self.server.get())
    }

    /// `udp ` for a session over datagrams, for log lines.
    pub(crate) fn log_prefix(&self) -> &'static str {
        match self.kind {
            SocketKind::Stream => "",
            SocketKind::Datagram => "udp ",
        }
    }

    /// The servers of its listening address; `None` if that is not one of the configuration.
    pub(crate) fn group(&self) -> Option<&AddressGroup> {
        self.generation.listening.find(&self.listen, self.kind)
    }

    /// Index of the server that its session belongs to.
    pub(crate) fn server_id(&self) -> ServerId {
        self.server.get()
    }

    /// Makes `server` that of the session.
    pub(crate) fn set_server(&self, server: ServerId) {
        self.server.set(server);
    }

    /// Result of the TLS handshake, or the client hello as long as it goes on.
    pub(crate) fn tls(&self) -> Option<&TlsInfo> {
        self.tls.get().or(self.hello.get()).map(|tls| &**tls)
    }

    /// Stores the client hello of a handshake.
    pub(crate) fn set_hello(&self, hello: TlsInfo) {
        // Set once: a connection has one handshake.
        let _ = self.hello.set(Box::new(hello));
    }

    /// Stores the result of the handshake.
    pub(crate) fn set_tls(&self, tls: TlsInfo) {
        // Set once: a connection has one handshake.
        let _ = self.tls.set(Box::new(tls));
    }

    /// The client's address, as trusted proxies tell it.
    pub fn addr(&self) -> &Addr {
        self.named.get().unwrap_or(&self.peer)
    }

    /// The client's address as text without port, as trusted proxies tell it.
    pub fn addr_text(&self) -> &str {
        match self.named.get() {
            None => self.peer_text(),
            Some(addr) => self.named_text.get_or_init(|| addr.client_text()),
        }
    }

    /// Takes `addr`, which a trusted proxy has named, as the client's address. Only the first one counts.
    pub fn set_addr(&self, addr: Addr) {
        let _ = self.named.set(addr);
    }

    /// The peer's address, whatever proxies tell.
    pub fn peer(&self) -> &Addr {
        &self.peer
    }

    /// The peer's address as text without port.
    pub fn peer_text(&self) -> &str {
        self.peer_text.get_or_init(|| self.peer.client_text())
    }

    /// Writes a line into the error log of its server, without client and server at its end.
    pub(crate) fn write(&self, level: Level, message: fmt::Arguments<'_>) {
        self.write_about(level, message, None);
    }

    /// Writes a line with the facts of `context` behind the message.
    pub(crate) fn write_about(
        &self,
        level: Level,
        message: fmt::Arguments<'_>,
        context: Option<&dyn LineContext>,
    ) {
        let log: &ErrorLog = &self.server().settings.error_log;
        match self.verbosity {
            Verbosity::AsLogsSay => log.write_about(level, Some(self.id), message, context),
            Verbosity::Everything => log.write_to_all(level, Some(self.id), message, context),
        }
    }

    /// Returns true if a log takes lines of this level.
    pub(crate) fn writes(&self, level: Level) -> bool {
        self.verbosity == Verbosity::Everything || self.server().settings.error_log.enabled(level)
    }

    /// Writes a debug line, if a log has level `debug`: one comparison if none has.
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if self.generation.process.debug_lines == DebugLines::Possible {
            self.write(Level::Debug, message);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.event_loop.connections.remove_client(&self.slot);
    }
}

impl Host for Client {
    fn tally(&self) -> &Tally {
        &self.event_loop.tally
    }

    fn accepted(&self) -> Instant {
        self.accepted
    }

    fn peer_text(&self) -> &str {
        self.peer_text()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.write_about(level, message, Some(&ClientContext(self)));
    }

    fn evictable(&self) -> EvictableConnection<'_> {
        EvictableConnection::new(&self.event_loop.connections, &self.slot)
    }

    fn set_proxy_header(&self, header: proxy_protocol::Header) {
        // Set once: a connection has one header.
        let _ = self.proxy.set(Box::new(header));
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

/// End of a line of the error log: `, client: …, server: …`, or `, udp client: …`.
pub(crate) struct ClientContext<'a>(pub(crate) &'a Client);

impl LineContext for ClientContext<'_> {
    fn visit(&self, visitor: &mut dyn ContextVisitor) {
        let client = self.0;
        // A session without a connection has neither.
        if *client.listen == Addr::Unix(None) {
            return;
        }
        visitor.text(format_args!(", {}client: {}", client.log_prefix(), client.addr_text()));
        visitor.member("client", format_args!("{}", client.addr_text()));
        visitor.bare("server", format_args!("{}", client.listen));
    }
}
