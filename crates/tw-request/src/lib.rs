//! A request of HTTP while it is served, and what it needs whatever protocol, cache or proxy serves it: its client, its body, the
//! plan it runs by, the settings of the core, and the state of its loop.
//!
//! ```text
//! protocol       the marker that ties requests, plans and configurations together
//! vars, config   templates and settings
//! event_loop     state of a loop
//! client, wire   connection of a request, without I/O
//! request, body  the request, its body, and the body of its response
//! plan           handlers and settings of a location
//! generation     a configuration: plans, servers, groups
//! ```
//! The crates that serve requests are above: phases (`tw-phases`), the cache (`tw-http-cache`), the proxy (`tw-proxy`), connections
//! (`tw-http-versions`).

mod access_check;
pub mod alpn;
mod awaited_variables;
pub mod body;
pub mod body_buffer;
pub mod cache_info;
pub mod client;
pub mod client_gone;
pub mod client_wait;
pub mod config;
pub mod cookie;
pub mod event_loop;
pub mod file_reads;
pub mod files;
pub mod generation;
pub mod header_names;
pub mod http_version;
pub mod ids;
pub mod key_bandwidth;
pub mod local_future;
mod log_file;
pub mod memory_share;
pub mod miss_reason;
pub mod plan;
pub mod protocol;
mod protocol_types;
pub mod random_id;
pub mod request;
pub mod request_body;
pub mod request_deadline;
pub mod retry_conditions;
pub mod route;
pub mod send_error;
mod sent_bytes;
mod session;
pub mod sticky;
mod sticky_directive;
pub mod upstream_response;
pub mod upstream_state;
pub mod vars;
pub mod wire;

tw_base::limits! {
    /// Limits of requests, and directives of the core that limit them.
    pub const LIMITS;

    section "connections and loops";
    use event_loop::LIMITS;

    section "request headers";
    use config::server::LIMITS;

    section "request bodies, responses and keep-alive";
    use config::location::LIMITS;
    use request_body::read::LIMITS;

    section "request processing";
    use request::LIMITS;
    use request::trace::LIMITS;

    section "disks and files";
    use files::LIMITS;
}
