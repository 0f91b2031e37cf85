//! Groups of upstream servers as HTTP has them.

use tw_conf::{ConfError, Node};
use tw_connect::ConnectingProtocol;
use tw_connect::upstream_block::{self, UpstreamBlock};

use super::sticky;
use crate::http::Http;
use crate::http::proxy::sticky::Sticky;
use crate::load::{Block, Resolve};

/// A group of servers that requests can be passed to.
pub type UpstreamGroup = tw_connect::UpstreamGroup<Http>;
/// Groups by the names of their `upstream` blocks.
pub type Groups = upstream_block::Groups<Http>;
/// An `upstream` block.
pub type Upstream = upstream_block::Upstream<Http>;

impl ConnectingProtocol for Http {
    const SERVER_PORT: Option<u16> = Some(80);

    type Sticky = Sticky;
    type RawSticky = sticky::Written;

    fn read_sticky(node: &Node) -> Result<sticky::Written, ConfError> {
        sticky::read(node)
    }

    fn resolve_sticky(
        raw: sticky::Written,
        upstream: &str,
        cx: &mut Resolve<'_>,
    ) -> Result<Sticky, ConfError> {
        sticky::resolve(raw, upstream, cx)
    }

    fn upstream_block(block: &Block) -> &UpstreamBlock<Self> {
        &block.upstream
    }

    fn upstream_block_mut(block: &mut Block) -> &mut UpstreamBlock<Self> {
        &mut block.upstream
    }
}
