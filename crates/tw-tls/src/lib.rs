//! TLS without I/O, clock or event loop, on rustls: settings, trust, and the properties of a connection.
//!
//! ```text
//! PEM ─► chain ─┐
//! PEM ─► key  ──┴► Identity ─► CertifiedKey        words of OpenSSL ─► Settings ─► CryptoProvider, versions
//!
//! a certificate ─► certificate (facts)             what was negotiated or offered ─► names of OpenSSL
//!               └► verify_chain ─► Verdict         sessions ─► Tickets, Cache: shared by all threads
//! ```
//!
//! Texts are read by somebody else; nothing here opens a file. The words in errors begin as nginx's do, so that who
//! knows one log can read the other.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod base64;
pub mod certificate;
mod chain;
mod client_config;
pub mod client_hello;
mod context;
mod der;
mod fingerprint;
mod handshake;
mod identity;
mod key;
pub mod names;
pub mod ocsp;
mod password;
mod pem;
pub mod process_secret;
mod public_key;
mod sessions;
mod settings;
mod shared_secrets;
#[cfg(test)]
mod testing;
mod tickets;
mod time;
mod upstream;
mod verify;
pub mod words;
mod x509;

pub use chain::{ChainError, authorities, chain};
pub use client_config::{BUNDLES, client_config};
pub use context::{SessionIdContext, SessionsInContext, digest};
pub use fingerprint::{Fingerprint, TlsTransport};
pub use identity::{Identity, IdentityError};
pub use key::{Cost, Key, KeyError, Kind};
pub use password::{PasswordError, Passwords};
pub use public_key::{NamedCurve, PublicKey};
pub use rustls;
pub use sessions::{Cache, CacheStats};
pub use settings::Settings;
pub use shared_secrets::{SHARED_SECRET_LEN, SharedSecret, SharedSecrets};
pub use tickets::{TicketError, Tickets};
pub use upstream::{Upstream, UpstreamError};
pub use verify::{
    Authorities, ClientVerification, ClientVerifier, Crls, Purpose, Trust, TrustError, Verdict,
    client_scheme, path, verify_chain,
};
pub use zeroize::Zeroizing;

/// Clock: returns seconds since 1970.
pub type Clock = std::sync::Arc<dyn Fn() -> u64 + Send + Sync>;

tw_base::limits! {
    /// Limits of everything here that a peer or a configuration can fill.
    pub const LIMITS;

    section "TLS";
    use chain::LIMITS;
    use key::LIMITS;
    use password::LIMITS;
    use tickets::LIMITS;
    use sessions::LIMITS;
    use verify::LIMITS;
    use ocsp::LIMITS;
    use fingerprint::LIMITS;
}
