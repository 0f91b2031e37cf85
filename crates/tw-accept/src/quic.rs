//! QUIC on a loop: endpoints of its listening addresses, the task that sends for each, and handshakes.
//!
//! ```text
//! datagram ─► QuicEndpoints::receive ─┬─► connection of this loop ─► tasks that wait on it
//!                                     ├─► connection of another loop ─► LoopCore::pass_datagram
//!                                     ├─► connection of another process ─► LoopCore::pass_to_process
//!                                     └─► IncomingConnection ─► task of the protocol ─► accept ─► tw_quic::Connection
//! ```
//! A connection belongs to the loop whose socket the kernel chose for its first datagram, whatever its client's address is later: its
//! connection IDs tell the process and the loop. An endpoint belongs to a listening address, and lives over reloads.
//!
//! The client hello is collected before the engine knows the connection, and the server is chosen as over TCP. Of several worker processes, as
//! during an upgrade, the newest one receives for all. The masters make the sockets between the processes, tell each other of their worker
//! processes, and say which one receives. A panic of the engine ends one connection or one endpoint.

mod endpoints;
mod handshake;
mod host_key;
mod log;

pub use endpoints::{AddressSettings, QuicEndpoints};
pub use handshake::accept;
pub use host_key::HostKey;
pub(crate) use log::LIMITS;
pub use log::{ConnectionLog, QuicLog};
