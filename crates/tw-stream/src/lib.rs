//! The `stream` block: sessions over TCP and UDP, which have a client, variables and a log, and whose bytes no one here understands.
//!
//! ```text
//! accept ─► Client ─► phases: post-accept ─► preaccess ─► access ─► ssl ─► preread ─► content ─► log
//!                                                                                       └─ proxy: name, peer, connection ─► relay
//!                                                                                          or another module
//! ```
//! A client over UDP has no connection: [`datagrams`] finds the session of a datagram, and the phases are the same.
//!
//! [`phases`] is the life of a session from its first byte to its line in the access log. A server is compiled to a
//! [`Plan`](plan::Plan): flat lists of handlers for each phase. The modules are in `tw-modules`; [`proxy`] is the engine of
//! `proxy_pass`. Peers, names and connections are those of `tw-connect`, which http has, too.
//!
//! The relay runs in both directions until one side, or both (`proxy_half_close`), has closed. Moved bytes are counted as they move (`session_meter` of tw-core),
//! for the server's zone and the peer. Health checks are background tasks. A session keeps the generation it began with, so a reload never cuts
//! it.

mod application;
mod block;
pub mod client;
pub mod config;
mod datagram_client;
pub mod datagrams;
pub mod explain;
mod handshake;
pub mod health;
mod listening;
pub mod load;
mod local_future;
mod loop_services;
pub mod mqtt;
mod ocsp_client;
pub mod pass;
pub mod phases;
pub mod plan;
pub mod preread;
pub mod protocol;
pub mod proxy;
pub mod server;
pub mod server_choice;
pub mod session;
pub mod session_filter;
mod session_handover;
mod session_record;
mod status;
mod stream_loop;
pub mod variables;

pub use application::StreamApplication;
pub use block::{Block, Passing};
pub use load::StreamBlocks;
pub use loop_services::{LoopServices, OcspQuery};
pub use protocol::Stream;
pub use session_record::SessionRecord;
pub use stream_loop::StreamLoop;

tw_base::limits! {
    /// Limits of sessions, and of the engines of modules.
    pub const LIMITS;

    section "sessions of stream";
    use server::LIMITS;
    use datagram_client::LIMITS;
    use session_filter::LIMITS;
    use pass::LIMITS;
    use proxy::LIMITS;
    use health::LIMITS;
}
