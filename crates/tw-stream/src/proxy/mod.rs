//! Engine of `proxy_pass`: passes a session to an upstream server. The directives are in `tw-modules`.
//!
//! ```text
//! target: group ─► connect: names ─► peer ─► connection ─┬─► session: PROXY protocol header, first bytes ─► relay (tw-connect)
//!                               ▲                        │
//!                               └── next peer ◄── failure┘
//! ```
//! A session over datagrams has a connected socket of its own, and `datagrams` in the place of the relay.

mod connect;
mod datagram_end;
mod datagram_filter;
mod datagrams;
mod filtered;
mod metered;
pub(crate) mod proxy_header;
mod relaying;
mod session_drop;
pub mod settings;
pub mod target;
pub mod upstream_state;

use crate::session::{SessionStatus, SessionTransport, StreamSession};

pub use proxy_header::ProxyProtocol;
pub use settings::{ProxySettings, RawProxy};
pub use target::PassTarget;

tw_base::limits! {
    /// Limits of the proxy.
    pub(crate) const LIMITS;

    /// Time until a connection is there.
    directive "proxy_connect_timeout", "the next server, or the session ends with status 502";
    /// Datagrams of a server for each datagram of a client.
    directive "proxy_responses", "further ones are dropped, and the session is over";
    /// Time without traffic in either direction.
    directive "proxy_timeout", "the session ends";
    /// Bytes of each direction that are kept for a side that does not take them.
    directive "proxy_buffer_size", "the other side waits";
    /// Servers that one session is passed to.
    directive "proxy_next_upstream_tries", "the session ends with status 502";
    use datagrams::LIMITS;
}

/// Passes `s` to a server of `target` until one of them has closed, or all datagrams are there.
pub async fn serve(s: &mut StreamSession, target: &PassTarget, settings: &ProxySettings) -> SessionStatus {
    s.upstream = Some(Box::default());
    let group = match target.group(s) {
        Ok(group) => group,
        Err(status) => return status,
    };
    let downstream = match s.transport.clone() {
        SessionTransport::Connection(transport) => transport,
        SessionTransport::Datagrams(client) => {
            return Box::pin(datagrams::serve(s, client, &group, settings)).await;
        }
        SessionTransport::Away => return SessionStatus::INTERNAL_SERVER_ERROR,
    };
    // Boxed: the relay runs longest, and stays smaller without this state.
    let connected = match Box::pin(connect::try_peers(s, &group, settings)).await {
        Ok(connected) => connected,
        Err(status) => return status,
    };
    relaying::run(s, &group, downstream, connected, settings).await
}
