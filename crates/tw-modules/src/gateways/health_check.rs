//! `health_check` and `match`: periodic checks of the servers of a group (nginx: ngx_http_upstream_hc_module, of its
//! commercial edition). A background task; the gateway of the location makes the checks.

mod match_block;
mod parameters;

use std::collections::HashMap;
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, Setting, record, units};
use tw_core::module::Settings;
use tw_proxy::health::{self, CheckProtocol, Checkable, GrpcCheck, HealthCheck, HealthCriteria, PassTarget};
use tw_request::plan::Plan;
use tw_request::protocol::{Http, Resolve};

pub(crate) use self::parameters::{CheckParameters, MatchBlocks};

use match_block::{MatchBlock, RawMatchBlock};

/// Largest status of a call in gRPC.
const GRPC_STATUS_MAX: u32 = 16;

/// As written.
#[derive(Default)]
pub(crate) struct Raw {
    matches: Vec<RawMatchBlock>,
    check: Setting<RawCheck>,
}

/// `health_check` as written.
struct RawCheck {
    node: Node,
    common: CheckParameters,
    kind: Kind,
    uri: Option<Box<[u8]>>,
    /// `grpc_service=`
    grpc_service: Option<Box<[u8]>>,
    /// `grpc_status=`
    grpc_status: Option<u32>,
}

/// `type=`
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http,
    Tcp,
    Grpc,
}

/// The checks of one location.
pub(crate) struct HealthChecks {
    /// All `match` blocks by name.
    matches: Arc<MatchBlocks<MatchBlock>>,
    here: Option<Arc<HealthCheck>>,
}

impl Settings<Http> for HealthChecks {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "health_check",
            "[interval=time] [jitter=time] [fails=number] [passes=number] [uri=uri] [mandatory [persistent]] [match=name] [port=number] [type=http|tcp|grpc] [grpc_service=name] [grpc_status=code]",
            LOCATION,
            Args::at_least(0),
        )
        .since("1.5.3")
        .doc(
            "Asks each server of the group every 5 seconds for /, unless said otherwise; one that fails gets no requests until \
             it passes again. A location passes requests to an upstream, with proxy_pass or another gateway, and its settings hold for checks. \
             type=grpc asks servers of grpc_pass by the gRPC health checking protocol.",
        )
        .set(|raw, node, _| raw.check.set_with(node, read)),
        record::new("match", "name { … }", HTTP, Args::exact(1).block())
            .since("1.5.3")
            .doc("Conditions for the response to a health check: status, header, body, require.")
            .set(|raw, node, _| {
                let expected = RawMatchBlock::read(node)?;
                if raw.matches.iter().any(|match_block| match_block.name == expected.name) {
                    return Err(node.fail(format!("duplicate match \"{}\"", node.arg(0)?)));
                }
                raw.matches.push(expected);
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let matches = match outer {
            Some(outer) => outer.matches.clone(),
            None => {
                let mut matches = HashMap::new();
                for expected in raw.matches {
                    let expected = expected.resolve(cx)?;
                    matches.insert(expected.name.clone(), Arc::new(expected));
                }
                Arc::new(matches)
            }
        };
        let here = raw.check.take().map(|check| check.resolve(&matches, cx).map(Arc::new)).transpose()?;
        Ok(Self { matches, here })
    }

    fn are_shared(&self) -> bool {
        self.here.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if let Some(check) = &self.here {
            plan.parts.put(check.clone());
        }
    }
}

/// Reads `health_check`.
fn read(node: &Node) -> Result<RawCheck, ConfError> {
    let mut check = RawCheck {
        node: node.clone(),
        common: CheckParameters::default(),
        kind: Kind::Http,
        uri: None,
        grpc_service: None,
        grpc_status: None,
    };
    for word in &node.args {
        let invalid = || node.fail(format!("invalid parameter \"{word}\""));
        if check.common.read(node, word)? {
            continue;
        }
        if let Some(value) = word.param("uri") {
            let uri = Some(value).filter(|uri| health::is_uri(uri)).ok_or_else(invalid)?;
            check.uri = Some(uri.into());
        } else if let Some(value) = word.param("type") {
            check.kind = match value {
                b"http" => Kind::Http,
                b"tcp" => Kind::Tcp,
                b"grpc" => Kind::Grpc,
                _ => return Err(invalid()),
            };
        } else if let Some(value) = word.param("grpc_service") {
            check.grpc_service = Some(value.into());
        } else if let Some(value) = word.param("grpc_status") {
            let status = units::number(value).and_then(|status| u32::try_from(status).ok());
            check.grpc_status = Some(status.filter(|status| *status <= GRPC_STATUS_MAX).ok_or_else(invalid)?);
        } else if word.param("keepalive_time").is_some() {
            return Err(node.fail("\"keepalive_time\" of \"health_check\" is not supported").hint(
                "each check has a connection of its own, so that it also tells whether there can be one",
            ));
        } else {
            return Err(invalid());
        }
    }
    check.common.check(node)?;
    if check.kind == Kind::Tcp && (check.uri.is_some() || check.common.expected.is_some()) {
        return Err(node
            .fail("\"type=tcp\" of \"health_check\" has neither \"uri\" nor \"match\"")
            .hint("it is passed by a server that takes the connection"));
    }
    if check.kind == Kind::Grpc && (check.uri.is_some() || check.common.expected.is_some()) {
        return Err(node
            .fail("\"type=grpc\" of \"health_check\" has neither \"uri\" nor \"match\"")
            .hint("\"grpc_service\" names the service, and \"grpc_status\" the status of a server without the protocol"));
    }
    if check.kind != Kind::Grpc && (check.grpc_service.is_some() || check.grpc_status.is_some()) {
        return Err(node.fail("\"grpc_service\" and \"grpc_status\" of \"health_check\" need \"type=grpc\""));
    }
    Ok(check)
}

impl RawCheck {
    fn resolve(self, matches: &MatchBlocks<MatchBlock>, cx: &Resolve<'_>) -> Result<HealthCheck, ConfError> {
        let of = self.group(cx)?;
        let protocol = match self.kind {
            Kind::Tcp => CheckProtocol::Connect,
            Kind::Grpc if of.speaks_grpc() => {
                let service = self.grpc_service.as_deref().unwrap_or_default();
                CheckProtocol::Grpc(GrpcCheck::new(service, self.grpc_status))
            }
            Kind::Grpc => {
                return Err(self
                    .node
                    .fail("\"type=grpc\" of \"health_check\" needs \"grpc_pass\" in its location"));
            }
            Kind::Http => {
                let criteria =
                    self.common.criteria(matches)?.map(|match_block| match_block as Arc<dyn HealthCriteria>);
                CheckProtocol::Request { uri: self.uri.unwrap_or_else(|| b"/".as_slice().into()), criteria }
            }
        };
        let CheckParameters { params, port, .. } = self.common;
        if params.mandatory {
            of.group().peers.require_checks();
        }
        Ok(HealthCheck { params, protocol, port, of })
    }

    /// The location, whose requests must go to a group.
    fn group(&self, cx: &Resolve<'_>) -> Result<Arc<dyn Checkable>, ConfError> {
        let fail = |message: String, hint: &str| Err(self.node.fail(message).hint(hint));
        let of = match cx.block.notes.find() {
            Some(PassTarget::To(of)) => of,
            Some(PassTarget::Nowhere) | None => {
                return fail(
                    "there is no server to check: this location has no \"proxy_pass\" or similar directive"
                        .to_owned(),
                    "it stands beside the \"proxy_pass\", \"grpc_pass\", \"fastcgi_pass\", \"uwsgi_pass\", \"scgi_pass\" or \"memcached_pass\" to the group whose servers are checked",
                );
            }
            Some(PassTarget::Anywhere) => {
                return fail(
                    "\"health_check\" needs an address without variables".to_owned(),
                    "in a location of its own, which may be \"internal\", it can name the group",
                );
            }
        };
        let name = of.group().peers.name();
        if cx.block.upstreams().find(name).is_none() {
            return fail(
                format!("\"health_check\" needs a group: \"{name}\" is no \"upstream\""),
                "write an \"upstream\" block, also for one server",
            );
        }
        Ok(of.clone())
    }
}
