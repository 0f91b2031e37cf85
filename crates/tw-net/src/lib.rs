//! Bytes to and from a peer: addresses, listening sockets, accepted connections, the PROXY protocol.

mod addr;
mod address;
pub mod listen;
pub mod proxy_protocol;
mod transport;

pub use addr::Addr;
pub use address::{AddressError, parse_listen, parse_server};
pub use listen::{AcceptError, Accepted, Acceptor, Keepalive, ListenError, ListenOptions, ListenSocket};
pub use transport::Transport;
pub use tw_sys::sockopt::TcpInfo;
