//! Refresh of the addresses of servers that the `upstream` blocks name.

use std::rc::Rc;

use tw_connect::upstream_names::refresh_names;

use crate::event_loop::Loop;

/// Asks for the names in the `upstream` blocks of the loop's generation that are this loop's, when they are due. Never ends by
/// itself.
pub(crate) async fn refresh(home: Rc<Loop>) {
    let generation = home.generation();
    let loops = generation.main.worker_count().max(1);
    let pool = generation.disks.default_disk().pool();
    let own = generation.upstreams.iter().map(|group| &**group);
    let own: Vec<_> = own.skip(home.index % loops).step_by(loops).collect();
    refresh_names(&own, pool).await;
}
