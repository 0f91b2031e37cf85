//! Secret of QUIC of a process (`quic_host_key`), which all loops share.
//!
//! A random one lives as long as the server: it goes from one process to the next with the keys of session tickets, so that a process
//! knows the connection IDs of one before it, and tells their clients that the connections are lost.

use std::fmt;
use std::sync::Arc;

use tw_base::FatalMutex;
use tw_quic::HostKeys;
use tw_tls::Zeroizing;

/// Random secret of this process or the one before it, once there is one.
static SECRET: FatalMutex<Option<Zeroizing<Vec<u8>>>> = FatalMutex::new(None);

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

    /// Keys of the random secret.
    pub fn random() -> Self {
        let mut secret = SECRET.lock();
        let secret = secret.get_or_insert_with(|| Zeroizing::new(HostKeys::random_secret().to_vec()));
        Self::of(secret)
    }
}

/// Random secret for the next process, if it is in use.
pub(crate) fn export_secret() -> Option<Zeroizing<Vec<u8>>> {
    SECRET.lock().clone()
}

/// Uses the random secret of the process before this one.
pub(crate) fn inherit_secret(secret: &[u8]) {
    *SECRET.lock() = Some(Zeroizing::new(secret.to_vec()));
}
