//! `upstream`: groups of servers that sessions can be passed to (nginx: ngx_http_upstream_module, ngx_stream_upstream_module
//! and the balancers beside them).

mod address_group;
mod block;
mod blocks;
mod directives;
mod groups;
mod metrics;
pub mod server;
mod shared_groups;
mod state_file;
mod undone;

pub use address_group::{alone, named, warn_without_resolver};
pub use block::UpstreamBlock;
pub use blocks::{WrittenUpstream, read_name, resolve_blocks};
pub use directives::{Raw, Upstream};
pub use groups::Groups;
pub use shared_groups::{configured_groups, shared_groups};
pub use state_file::{StateFile, read_text as read_state_file};
