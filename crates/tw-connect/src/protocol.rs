//! Protocol of the configuration whose blocks can name upstream servers.

use tw_core::module::Protocol;

/// Protocol of the configuration whose sessions are passed to upstream servers.
pub trait ConnectingProtocol: Protocol {
    /// Method by which the group of an `upstream` block binds sessions to servers.
    type Sticky: Send + Sync;

    /// Notes that connections to upstream servers may use TLS.
    fn note_upstream_tls(_block: &mut Self::Block) {}
}
