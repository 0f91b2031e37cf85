//! Health checks: servers of a group are asked in their turn whether they are well, and get no requests while they are not
//! (nginx: ngx_http_upstream_hc_module).
//!
//! ```text
//! located_checks ─► tw_connect::health: one task for each group, on one loop
//!    └─► probe: one check, a task of its own ─► connect, send, read the head and what is wanted of the body ─► Criteria
//! ```
//! The checks of a generation end with it: the tasks belong to its company (`Application::run_background_tasks`).

mod grpc;
mod located_checks;
mod probe;

use std::sync::Arc;

use bytes::Bytes;
use tw_connect::upstream_tls::UpstreamTls;
use tw_http::RequestHead;
pub use tw_upstream::HealthCheckParams;

use super::codec::Codec;
use super::settings::UpstreamSettings;
use tw_phases::synthetic_request;
use tw_request::config::upstream::UpstreamGroup;
use tw_request::generation::{PlanId, Server, ServerId};
use tw_request::plan::Plan;
use tw_request::request::Request;

pub use grpc::GrpcCheck;
pub use located_checks::run;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of the body of an answer to a health check that are looked at.
    pub const BODY_EXAMINED_MAX: usize = 256 << 10, bytes, "what follows is not read";
    /// Bytes of an answer to a health check.
    ///
    /// Bytes that are read of an answer, whatever they are: interim responses, chunks of one byte.
    const ANSWER_MAX: u64 = 4 << 20, bytes, "the check has failed";
}

/// `health_check` of one location.
pub struct HealthCheck {
    /// Intervals and thresholds.
    pub params: HealthCheckParams,
    /// Protocol of the check.
    pub protocol: CheckProtocol,
    /// `port=`: where checks go, if not to the port of the server.
    pub port: Option<u16>,
    /// The location, as its gateway knows it.
    pub of: Arc<dyn Checkable>,
}

/// Protocol of a check.
pub enum CheckProtocol {
    /// Take a connection: `type=tcp`.
    Connect,
    /// Answer a request, too.
    Request {
        /// `uri=`
        uri: Box<[u8]>,
        /// `match=`; without it [`Checkable::is_well`] says which status will do.
        criteria: Option<Arc<dyn HealthCriteria>>,
    },
    /// Answer the question of the gRPC health checking protocol: `type=grpc`.
    Grpc(GrpcCheck),
}

/// Location of a `*_pass` module whose servers can be checked.
pub trait Checkable: Send + Sync {
    /// Group of the servers.
    fn group(&self) -> &Arc<UpstreamGroup>;

    /// Settings of the connections.
    fn settings(&self) -> &UpstreamSettings;

    /// TLS of the connections for `r`; `None` is plain text.
    fn secured(&self, r: &mut Request) -> Option<UpstreamTls>;

    /// Builds the request for `r`, which is a GET without a body.
    ///
    /// # Errors
    /// Error of the write.
    fn request(&self, r: &mut Request) -> Result<Bytes, String>;

    /// Builds the request of a gRPC health check for `r`, with a body of this size that follows; `None` if the location does not
    /// speak gRPC.
    ///
    /// # Errors
    /// Error of the write.
    fn grpc_request(&self, _r: &mut Request, _body_size: u64) -> Option<Result<Bytes, String>> {
        None
    }

    /// Creates the codec for the response to `r`.
    fn codec(&self, r: &Request) -> Box<dyn Codec>;

    /// Returns true if the location passes requests of gRPC.
    fn speaks_grpc(&self) -> bool {
        false
    }

    /// Returns true if a server that responds with this status is healthy, where no `match` is given.
    fn is_well(&self, status: u16) -> bool {
        (200..400).contains(&status)
    }
}

/// Destination of the requests of a location, as far as it is known when the configuration is loaded.
#[derive(Clone, Default)]
pub enum PassTarget {
    /// To no other server.
    #[default]
    Nowhere,
    /// A server that depends on the request.
    Anywhere,
    /// There.
    To(Arc<dyn Checkable>),
}

/// Conditions on a response (`match`).
pub trait HealthCriteria: Send + Sync {
    /// Name for log lines.
    fn name(&self) -> &str;

    /// Returns true if the body is needed.
    fn wants_body(&self) -> bool;

    /// Describes the failure of the response to `r` with the beginning `body` of its body; `None` if the check has
    /// passed.
    fn failure(&self, r: &Request, body: &[u8]) -> Option<String>;
}

/// The health checks of one group.
pub struct HealthCheckGroup {
    /// The group to be checked.
    pub(super) group: Arc<UpstreamGroup>,
    /// Checks; each server must pass all of them.
    pub(super) tests: Vec<PlacedCheck>,
}

/// A health check, and where it stands.
pub(super) struct PlacedCheck {
    pub(super) check: Arc<HealthCheck>,
    pub(super) server: ServerId,
    pub(super) plan: PlanId,
}

impl HealthCheckGroup {
    /// The health checks of a configuration.
    pub fn gather(plans: &[Plan], servers: &[Server]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (at, plan) in plans.iter().enumerate() {
            let Some(check) = plan.parts.get::<HealthCheck>() else { continue };
            let server = servers.iter().position(|server| Arc::ptr_eq(&server.settings, &plan.server));
            let server = ServerId(server.unwrap_or_default() as u32);
            let plan = PlanId(at as u32);
            let located = PlacedCheck { check: check.clone(), server, plan };
            let group = check.of.group();
            match all.iter_mut().find(|checks| Arc::ptr_eq(&checks.group, group)) {
                Some(checks) => checks.tests.push(located),
                None => all.push(Self { group: group.clone(), tests: vec![located] }),
            }
        }
        all
    }
}

/// Returns true if `uri` is a path that can be requested, with or without arguments.
pub fn is_uri(uri: &[u8]) -> bool {
    uri.first() == Some(&b'/') && synthetic_request::head(&mut RequestHead::new(), uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris() {
        for (uri, expected) in [
            ("/", true),
            ("/health?deep=1", true),
            ("/%41", true),
            ("", false),
            ("health", false),
            ("http://a/", false),
            ("/a b", false),
            ("/a\r\nX: y", false),
            ("/../..", false),
        ] {
            assert_eq!(is_uri(uri.as_bytes()), expected, "{uri}");
        }
    }
}
