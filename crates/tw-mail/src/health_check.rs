//! `health_check` of a group of auth servers, as it is used.

use std::time::Duration;

use tw_upstream::HealthCheckParams;

tw_base::limits! {
    /// Limits of checks.
    pub(crate) const LIMITS;

    /// Time for a health check of an auth server of `mail`.
    directive "health_check_timeout", "the check has failed";
    /// Bytes of the first line of an answer to a health check of `mail`.
    pub(crate) const STATUS_LINE_MAX: usize = 4096, bytes, "the check has failed";
}

/// `health_check`
pub struct HealthCheck {
    /// Intervals and thresholds.
    pub params: HealthCheckParams,
    /// Protocol of the check.
    pub protocol: CheckProtocol,
    /// `health_check_timeout`
    pub timeout: Duration,
    /// `port=`: where checks go, if not to the port of the server.
    pub port: Option<u16>,
}

/// Protocol of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckProtocol {
    /// Take a connection: `type=tcp`.
    Connect,
    /// Answer a request for this page (`uri=`) with a status from 200 to 399, too.
    Request(Box<[u8]>),
}
