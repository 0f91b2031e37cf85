//! Listening: what a `listen` directive asks of a socket, opening it, and taking connections from it.
//!
//! ```text
//! master or start-up:  ListenOptions + Addr ─► ListenSocket ─┬─► sibling()   one more socket, SO_REUSEPORT
//!                      inherited descriptor ─► ListenSocket ─┴─► try_clone() the same socket once more
//! each worker's loop:  ListenSocket ─► Acceptor ─► Accepted { stream, peer }
//!                      ListenSocket ─► DatagramSocket (tw-rt): no connections, the loop knows clients by their address
//! ```

mod accept;
mod socket;

use std::time::Duration;

pub use accept::{AcceptError, Accepted, Acceptor};
pub use socket::{ListenError, ListenReport, ListenSocket, Purpose, open_all};

/// `so_keepalive`: whether and how the kernel probes silent peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keepalive {
    /// Not said: the system's default stays.
    #[default]
    System,
    /// `off`.
    Off,
    /// `on`, or `[idle]:[interval]:[count]`; what is not said keeps the system's value.
    On {
        /// Silence before the first probe, whole seconds.
        idle: Option<Duration>,
        /// Time between probes, whole seconds.
        interval: Option<Duration>,
        /// Unanswered probes after which the connection is dropped.
        count: Option<u32>,
    },
}

/// Loops that accept or receive from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptingLoops {
    /// One loop: the kernel spreads connections over it and its siblings (`reuseport`). Always so for datagrams.
    Alone,
    /// All loops: the first one to accept gets the connection.
    All,
}

/// Kind of a listening socket. An address may have one of each: TCP 443 and UDP 443 are two sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SocketKind {
    /// TCP, or a stream socket of the Unix domain: it accepts connections.
    #[default]
    Stream,
    /// UDP, or a datagram socket of the Unix domain.
    Datagram,
}

/// The parameters of `listen` that concern the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Kind of the socket.
    pub kind: SocketKind,
    /// `backlog`: how many connections may wait to be accepted. Default 511; the kernel caps it at `somaxconn`.
    pub backlog: u32,
    /// `rcvbuf` in bytes; `None` leaves the kernel's automatic size.
    pub rcvbuf: Option<usize>,
    /// `sndbuf` in bytes; `None` leaves the kernel's automatic size.
    pub sndbuf: Option<usize>,
    /// `deferred`: hand over a connection when its first bytes are there (`TCP_DEFER_ACCEPT`).
    pub deferred: bool,
    /// `so_keepalive`.
    pub keepalive: Keepalive,
    /// `reuseport`: a socket per worker, also shared with other programs of the same user that ask for it.
    pub reuseport: bool,
    /// `fastopen`: queue for connections that have not finished the handshake; `None` leaves it off.
    pub fastopen: Option<u32>,
    /// `ipv6only`: an IPv6 socket takes no IPv4 connections. Default on.
    pub ipv6only: bool,
    /// `multipath`: Multipath TCP.
    pub multipath: bool,
    /// `transparent`: connections to addresses of others, which the kernel redirects here (`IP_TRANSPARENT`).
    pub transparent: bool,
    /// Use of datagrams by the protocol.
    pub datagrams: DatagramUse,
}

/// Use of datagrams by the protocol of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramUse {
    /// Each is a message.
    #[default]
    Plain,
    /// Packets of QUIC: with marks of congestion, never fragmented, several at once if the kernel can.
    Quic,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            kind: SocketKind::Stream,
            backlog: 511,
            rcvbuf: None,
            sndbuf: None,
            deferred: false,
            keepalive: Keepalive::System,
            reuseport: false,
            fastopen: None,
            ipv6only: true,
            multipath: false,
            transparent: false,
            datagrams: DatagramUse::Plain,
        }
    }
}
