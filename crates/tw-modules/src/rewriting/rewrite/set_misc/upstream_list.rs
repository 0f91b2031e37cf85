//! Lists of names of upstream servers (`upstream_list`).

use std::sync::Arc;

/// Lists of names of upstream servers.
pub(crate) type UpstreamLists = Arc<[UpstreamList]>;

/// One list, and its name.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamList {
    pub(super) name: Box<[u8]>,
    pub(super) upstreams: Arc<[Box<[u8]>]>,
}

/// The lists of a block: its own, and those of the enclosing one.
pub(crate) fn join_lists(own: Vec<UpstreamList>, outer: Option<&UpstreamLists>) -> UpstreamLists {
    match outer {
        Some(outer) if own.is_empty() => outer.clone(),
        _ => own.into_iter().chain(outer.into_iter().flat_map(|lists| lists.iter().cloned())).collect(),
    }
}
