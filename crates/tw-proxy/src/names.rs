//! Refresh of the addresses of servers that the `upstream` blocks name.

use std::rc::Rc;

use tw_connect::upstream_names::refresh_names;
use tw_core::event_loop::LoopShare;

use tw_request::event_loop::Loop;

/// Asks for the names in the `upstream` blocks of the loop's generation that are this loop's, when they are due. Never ends by
/// itself.
pub async fn refresh(event_loop: Rc<Loop>) {
    let generation = event_loop.generation();
    let loops = generation.process.main.worker_count().max(1);
    let pool = generation.disks.default_disk().pool();
    let share = LoopShare { index: event_loop.index, loops };
    refresh_names(&generation.upstreams, share, pool, &generation.process.error_log).await;
}
