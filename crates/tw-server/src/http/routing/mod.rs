//! Routing: the choice of server, location and phases that make the response to a request.
//!
//! ```text
//! entry ─→ route (server, location) ─→ phases ─→ a response
//!            ▲                            ├─→ decision: another location ──┐
//!            └────────────────────────────┼────────────────────────────────┘
//!                                         └─→ special: error pages, redirects
//! ```

mod decision;
pub mod error_response;
pub mod phases;
pub(crate) mod post_action;
mod realpath_root;
pub(crate) mod start;
pub(crate) mod tls_requirements;
