//! HTTP on the loops: what its block of the configuration becomes, and what knows all parts of HTTP.
//!
//! [`load`] turns a configuration into plans; [`http`] has the state of a loop and the begin of connections. Requests are served by the
//! crates below.

pub mod http;
pub mod load;
pub mod metrics;

tw_base::limits! {
    /// Limits of this crate and of all crates below it. Those of a module are in its
    /// [`Settings::LIMITS`](tw_core::module::Settings::LIMITS).
    pub const LIMITS;

    use tw_core::LIMITS;
    use tw_base::LIMITS;
    use tw_accept::LIMITS;
    use tw_request::LIMITS;
    use tw_http_versions::LIMITS;
    use tw_http3::LIMITS;
    use tw_quic::LIMITS;
    use tw_http2::LIMITS;
    use tw_http::LIMITS;
    use tw_upstream::LIMITS;
    use tw_connect::LIMITS;
    use tw_proxy::LIMITS;
    use tw_dns::LIMITS;
    use tw_tls::LIMITS;
    use tw_acme::LIMITS;
    use tw_tls_settings::LIMITS;
    use tw_http_cache::LIMITS;
    use tw_cache::LIMITS;
    use tw_fleet::LIMITS;
    use tw_phases::LIMITS;
    use tw_disk::LIMITS;
    use tw_log::LIMITS;
    use tw_conf::LIMITS;

    section "metrics and the status page";
    use http::history::LIMITS;
}
