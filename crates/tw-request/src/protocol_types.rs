//! HTTP as a protocol of configurations: its blocks, sessions and plans.

use std::sync::Arc;

use tw_acme::CurrentCertificate;
use tw_conf::{
    ConfError, Contexts, HTTP, IF_IN_LOCATION, IF_IN_SERVER, LIMIT_EXCEPT, LOCATION, Node, SERVER, UPSTREAM,
};
use tw_connect::{ConnectingProtocol, UpstreamBlock};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls_settings::SecureProtocol;
use tw_upstream::TimeKind;

use crate::alpn;
use crate::config::block::Block;
use crate::config::location::Location;
use crate::generation::Config;
use crate::plan::Plan;
use crate::protocol::Http;
use crate::request::Request;
use crate::sticky::Sticky;
use crate::sticky_directive::{self, WrittenSticky as RawSticky};

impl Protocol for Http {
    const NAME: &'static str = "http";
    const CONTEXTS: Contexts =
        HTTP | SERVER | LOCATION | IF_IN_SERVER | IF_IN_LOCATION | LIMIT_EXCEPT | UPSTREAM;
    type Session = Request;
    type Plan = Plan;
    type Core = Location;
    type Block = Block;
    type Config = Config;
}

impl ConnectingProtocol for Http {
    const SERVER_PORT: Option<u16> = Some(80);
    const LEAST_TIME: &'static [(&'static str, TimeKind)] =
        &[("header", TimeKind::Header), ("last_byte", TimeKind::LastByte)];

    const HAS_ROUTES: bool = true;

    type Sticky = Sticky;
    type RawSticky = RawSticky;

    fn read_sticky(node: &Node) -> Result<RawSticky, ConfError> {
        sticky_directive::read(node)
    }

    fn resolve_sticky(
        raw: RawSticky,
        upstream: &str,
        cx: &mut Resolve<'_, Self>,
    ) -> Result<Sticky, ConfError> {
        sticky_directive::resolve(raw, upstream, cx)
    }

    fn upstream_block(block: &Block) -> &UpstreamBlock<Self> {
        &block.upstream
    }

    fn upstream_block_mut(block: &mut Block) -> &mut UpstreamBlock<Self> {
        &mut block.upstream
    }
}

impl SecureProtocol for Http {
    const ALPN: &'static [&'static [&'static [u8]]] = alpn::ALPN;
    const QUIC_ALPN: &'static [&'static [&'static [u8]]] = alpn::QUIC_ALPN;

    fn acme_certificate(block: &Block) -> Option<&Arc<CurrentCertificate>> {
        block.certificate.as_ref()
    }
}
