//! Secret of QUIC of a process (`quic_host_key`), which all loops share.
//!
//! A random one lives as long as the server: it goes from one process to the next with the keys of session tickets, so that a process
//! knows the connection IDs of one before it, and tells their clients that the connections are lost.

use std::fmt;
use std::sync::Arc;

use tw_quic::HostKeys;
use tw_tls::process_secret;

/// Keys of connection IDs, stateless resets and address validation tokens. Clones share them.
#[derive(Clone)]
pub struct HostKey(pub(super) Arc<HostKeys>);

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey")
    }
}

impl HostKey {
    /// Keys of a secret.
    pub fn of(secret: &[u8]) -> Self {
        Self(HostKeys::derive(secret))
    }

    /// Keys of the random secret of the server.
    pub fn random() -> Self {
        Self::of(&process_secret::get())
    }
}
