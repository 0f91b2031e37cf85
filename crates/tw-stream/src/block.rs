//! `stream` as a protocol of configurations: its block, sessions and plans.

use tw_conf::{ConfError, Contexts, Node, STREAM, STREAM_SERVER, STREAM_UPSTREAM};
use tw_connect::session_blocks::SessionProtocol;
use tw_connect::{ConnectingProtocol, UpstreamBlock};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls_settings::SecureProtocol;
use tw_upstream::TimeKind;

use crate::config::{Config, ServerSettings};
use crate::health::CheckTarget;
use crate::plan::Plan;
use crate::protocol::{NoSticky, Stream};
use crate::session::StreamSession;

/// The block of `stream` that is being resolved.
#[derive(Default)]
pub struct Block {
    /// Upstream servers and the resolution of their names.
    pub upstream: UpstreamBlock<Stream>,
    /// Destination of the sessions of a server.
    pub passing: Passing,
}

/// Destination of the sessions of a server, as far as it is known when the configuration is loaded.
#[derive(Default)]
pub enum Passing {
    /// To no other server.
    #[default]
    Nowhere,
    /// A server that depends on the session.
    Anywhere,
    /// There.
    To(CheckTarget),
}

impl Protocol for Stream {
    const NAME: &'static str = "stream";
    const CONTEXTS: Contexts = STREAM | STREAM_SERVER | STREAM_UPSTREAM;

    type Session = StreamSession;
    type Plan = Plan;
    type Core = ServerSettings;
    type Block = Block;
    type Config = Config;
}

impl SecureProtocol for Stream {
    /// None: `ssl_alpn` names protocols.
    const ALPN: &'static [&'static [&'static [u8]]] = &[&[]];
}

impl ConnectingProtocol for Stream {
    const SERVER_PORT: Option<u16> = None;
    const LEAST_TIME: &'static [(&'static str, TimeKind)] = &[
        ("connect", TimeKind::Connect),
        ("first_byte", TimeKind::Header),
        ("last_byte", TimeKind::LastByte),
    ];

    const HAS_ROUTES: bool = false;

    type Sticky = NoSticky;
    type RawSticky = NoSticky;

    fn read_sticky(node: &Node) -> Result<NoSticky, ConfError> {
        Err(node.error("is not allowed here"))
    }

    fn resolve_sticky(raw: NoSticky, _: &str, _: &mut Resolve<'_, Self>) -> Result<NoSticky, ConfError> {
        match raw {}
    }

    fn upstream_block(block: &Block) -> &UpstreamBlock<Self> {
        &block.upstream
    }

    fn upstream_block_mut(block: &mut Block) -> &mut UpstreamBlock<Self> {
        &mut block.upstream
    }
}

impl SessionProtocol for Stream {
    const OWN_CONTEXT: Contexts = STREAM;
    const SERVER_CONTEXT: Contexts = STREAM_SERVER;
    const UPSTREAM_CONTEXT: Contexts = STREAM_UPSTREAM;
}
