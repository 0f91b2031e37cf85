//! The Gateway API: which route is attached to which listener, and the servers that serve it.
//!
//! ```text
//! Snapshot ─► attach: Attachment (conditions of all objects) ─► hosts: matches by port and host ─► render: servers
//! ```

mod attach;
mod hosts;
mod predicate;
mod render;
mod rule;
mod stream;

pub use attach::{Attachment, Condition, GatewayState, ListenerState, ParentState, RouteState, attach};
pub(super) use render::render;
