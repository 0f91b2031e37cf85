//! Phases of a request of HTTP, whatever protocol brought it and whatever makes its response: from its head to the line in the access log.
//!
//! ```text
//! lifecycle ─→ start (server, URI) ─→ phases (location, handlers) ─→ a response ─→ send_response ─→ log
//!                                       ▲   ├─→ decision: another location ──┐
//!                                       └───┼────────────────────────────────┘
//!                                           └─→ error_response: error pages, redirects
//! ```
//! | modules | content |
//! |---|---|
//! | `lifecycle`, `start`, `tls_requirements`, `post_action` | steps of every request of a client |
//! | `phases`, `decision`, `error_response`, `realpath_root` | handlers of the plan, and where their outcome leads |
//! | `prepare_response`, `send_response`, `content_coding` | conditions, filters, ranges |
//! | `subrequest`, `early_subrequest`, `background_subrequest` | requests that others make |
//! | `forward_head`, `hop_fields` | rules for heads of upstream servers, which the proxy and the cache share |
//! | `synthetic_request` | requests without a client |

pub mod background_subrequest;
#[cfg(test)]
mod body_tests;
pub mod content_coding;
mod decision;
pub mod early_subrequest;
pub mod error_response;
pub mod forward_head;
pub mod hop_fields;
pub mod lifecycle;
pub mod phases;
mod post_action;
pub mod prepare_response;
mod realpath_root;
pub mod send_error_log;
mod send_response;
pub mod start;
pub mod subrequest;
pub mod synthetic_request;
mod tls_requirements;
pub mod user_agent;

tw_base::limits! {
    /// Limits of the phases of a request.
    pub const LIMITS;

    section "request processing";
    use subrequest::LIMITS;
    use early_subrequest::LIMITS;
    use background_subrequest::LIMITS;

    section "metrics and the status page";
    use lifecycle::LIMITS;
}
