//! Bytes to and from a peer: addresses, listening sockets, accepted and opened connections, the PROXY protocol.

mod addr;
mod address;
mod connect;
pub mod listen;
pub mod proxy_protocol;
mod route;
pub mod tls;
mod transport;

pub use addr::Addr;
pub use address::{AddressError, parse_listen, parse_server};
pub use connect::{ConnectOptions, adopt_datagrams, connect, connect_datagrams};
pub use listen::{AcceptError, Accepted, Acceptor, Keepalive, ListenError, ListenOptions, ListenSocket};
pub use route::route_mtu;
pub use transport::Transport;
pub use tw_sys::sockopt::TcpInfo;
