//! Bytes to and from a peer: addresses, listening sockets, accepted connections, the PROXY protocol.

mod address;
pub mod listen;
pub mod proxy_protocol;

pub use address::{AddressError, parse_listen, parse_server};
pub use listen::{AcceptError, Accepted, Acceptor, Keepalive, ListenError, ListenOptions, ListenSocket};
pub use tw_rt::Addr;
