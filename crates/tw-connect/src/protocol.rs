//! Protocol of the configuration whose blocks can name upstream servers.

use tw_conf::{ConfError, Node};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_upstream::TimeKind;

use crate::upstream_block::UpstreamBlock;

/// Protocol of the configuration whose sessions are passed to upstream servers.
pub trait ConnectingProtocol: Protocol {
    /// Port of servers that are written without one; `None` if all have to be written with it.
    const SERVER_PORT: Option<u16>;

    /// Words of `least_time`, and the time that each of them means.
    const LEAST_TIME: &'static [(&'static str, TimeKind)];

    /// Method by which a group binds sessions to servers (`sticky`).
    type Sticky: Send + Sync;
    /// `sticky` as written.
    type RawSticky: 'static;

    /// True if servers can have a `route`, by which `sticky` finds them.
    const HAS_ROUTES: bool;

    /// Reads `sticky`.
    ///
    /// # Errors
    /// Error of an argument.
    fn read_sticky(node: &Node) -> Result<Self::RawSticky, ConfError>;

    /// Resolves `sticky` of the group `upstream`.
    ///
    /// # Errors
    /// An unknown variable, or a zone of another group.
    fn resolve_sticky(
        raw: Self::RawSticky,
        upstream: &str,
        cx: &mut Resolve<'_, Self>,
    ) -> Result<Self::Sticky, ConfError>;

    /// Part of the block's position that names upstream servers.
    fn upstream_block(block: &Self::Block) -> &UpstreamBlock<Self>;

    /// Same part, to be changed.
    fn upstream_block_mut(block: &mut Self::Block) -> &mut UpstreamBlock<Self>;
}
