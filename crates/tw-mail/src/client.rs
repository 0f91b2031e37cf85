//! Facts about the connection of a client, from accept to close. No I/O.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Instant;

use tw_core::event_loop::{ClientInfo, ConnectionSlot, EvictableConnection};
use tw_core::generation::DebugLines;
use tw_log::{ErrorLog, Level, LineContext};
use tw_net::{Addr, proxy_protocol};
use tw_tls_settings::TlsInfo;

use crate::config::{LoopGeneration, Server, ServerId};
use crate::mail_loop::MailLoop;

/// A client. It keeps the configuration that was current when it was accepted.
pub struct Client {
    /// Number of its connection: `*id` in log lines.
    pub id: u64,
    /// The loop it is served by.
    pub event_loop: Rc<MailLoop>,
    /// The configuration it is served by.
    pub generation: Rc<LoopGeneration>,
    /// The listening address it came by.
    pub listen: Rc<Addr>,
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
    server: ServerId,
    slot: ConnectionSlot,
    verbosity: Verbosity,
    peer: Addr,
    /// Address that a trusted proxy has named instead of `peer`.
    named: OnceCell<Addr>,
    peer_text: OnceCell<Box<str>>,
    named_text: OnceCell<Box<str>>,
    /// True once the client has begun TLS by a command.
    pub(crate) used_starttls: Cell<bool>,
}

/// Verbosity of the log lines of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verbosity {
    /// Lines admitted by the levels of the error logs.
    AsLogsSay,
    /// Everything, in every log (`debug_connection`).
    Everything,
}

/// Connection of a client.
struct ClientConnection {
    /// Number of the connection: `*id` in log lines.
    id: u64,
    peer: Addr,
    listen: Rc<Addr>,
}

/// Facts about the listening address of a client.
struct AddressFacts {
    /// Server of the address.
    server: ServerId,
    /// `proxy_protocol`
    sends_proxy_header: bool,
    /// `ssl`
    is_tls: bool,
}

impl Client {
    /// A client whose connection was just accepted; `None` if a reload took its listening address away meanwhile.
    pub(crate) fn new(id: u64, peer: Addr, listen: Rc<Addr>, event_loop: Rc<MailLoop>) -> Option<Rc<Self>> {
        let generation = event_loop.generation();
        let servers = generation.listening.find(&listen)?;
        let address = AddressFacts {
            server: servers.default_server,
            sends_proxy_header: servers.proxy_protocol,
            is_tls: servers.ssl,
        };
        let is_debugged = generation.process.main.debug_connections.iter().any(|peers| peers.has(&peer));
        let verbosity = if is_debugged { Verbosity::Everything } else { Verbosity::AsLogsSay };
        Some(Self::make(ClientConnection { id, peer, listen }, address, event_loop, generation, verbosity))
    }

    /// Client of a session without a connection, in whose place `server` does something itself, such as a health check.
    pub(crate) fn internal(
        event_loop: Rc<MailLoop>,
        generation: Rc<LoopGeneration>,
        server: ServerId,
    ) -> Rc<Self> {
        let nowhere = Addr::Unix(None);
        let id = event_loop.counts.next_connection();
        let connection = ClientConnection { id, peer: nowhere.clone(), listen: Rc::new(nowhere) };
        let address = AddressFacts { server, sends_proxy_header: false, is_tls: false };
        Self::make(connection, address, event_loop, generation, Verbosity::AsLogsSay)
    }

    fn make(
        connection: ClientConnection,
        address: AddressFacts,
        event_loop: Rc<MailLoop>,
        generation: Rc<LoopGeneration>,
        verbosity: Verbosity,
    ) -> Rc<Self> {
        let ClientConnection { id, peer, listen } = connection;
        let AddressFacts { server, sends_proxy_header, is_tls } = address;
        Rc::new_cyclic(|client| Self {
            id,
            slot: event_loop.connections.add_client(client.clone() as Weak<dyn ClientInfo>),
            event_loop,
            generation,
            listen,
            accepted: tw_rt::clock::now(),
            proxy: OnceCell::new(),
            sends_proxy_header,
            is_tls,
            tls: OnceCell::new(),
            hello: OnceCell::new(),
            server,
            verbosity,
            peer,
            named: OnceCell::new(),
            peer_text: OnceCell::new(),
            named_text: OnceCell::new(),
            used_starttls: Cell::new(false),
        })
    }

    /// The server of the configuration that its session belongs to.
    pub fn server(&self) -> &Server {
        self.generation.server(self.server)
    }

    /// Index of the server that its session belongs to.
    pub(crate) fn server_id(&self) -> ServerId {
        self.server
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

    /// Lets the loop close the connection to make room, as long as the result lives.
    pub(crate) fn evictable(&self) -> EvictableConnection<'_> {
        EvictableConnection::new(&self.event_loop.connections, &self.slot)
    }

    /// Writes a line into the error log of its server, with the facts of `context` behind the message.
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

    /// Writes a debug line, if a log has level `debug`: one comparison if none has. It never contains what a client has sent.
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if self.generation.process.debug_lines == DebugLines::Possible {
            self.write_about(Level::Debug, message, None);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.event_loop.connections.remove_client(&self.slot);
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
