//! Groups of upstream servers as HTTP has them.

use tw_connect::upstream_block;

use crate::http::Http;

/// A group of servers that requests can be passed to.
pub type UpstreamGroup = tw_connect::UpstreamGroup<Http>;
/// Groups by the names of their `upstream` blocks.
pub type Groups = upstream_block::Groups<Http>;
/// An `upstream` block.
pub type Upstream = upstream_block::Upstream<Http>;
