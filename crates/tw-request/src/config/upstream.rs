//! Groups of upstream servers as HTTP has them.

use tw_connect::health::{self, GroupChecks};
use tw_connect::upstream_block;
use tw_core::event_loop::LoopShare;
use tw_core::shared_objects::SharedObjects;
use tw_upstream::Group;

use crate::protocol::Http;

/// A group of servers that requests can be passed to.
pub type UpstreamGroup = tw_connect::UpstreamGroup<Http>;
/// Groups by the names of their `upstream` blocks.
pub type Groups = upstream_block::Groups<Http>;
/// An `upstream` block.
pub type Upstream = upstream_block::Upstream<Http>;

/// Runs the health checks of the groups of a generation that are in the `share` of a loop, see [`health::run`].
pub async fn run_checks<C: GroupChecks>(
    objects: &SharedObjects,
    generation: u64,
    share: LoopShare,
    checks: impl Fn(&Group) -> Option<C>,
) {
    health::run::<Http, C>(objects, generation, share, checks).await;
}
