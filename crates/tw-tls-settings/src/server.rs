//! TLS of one server, as handshakes use it.

pub(crate) mod client_authentication;
pub(crate) mod server_tls;
