//! `health_check`, `health_check_timeout` and `match` of `stream`: periodic checks of the servers of a group (nginx:
//! ngx_stream_upstream_hc_module, of its commercial edition). A background task, [`tw_stream::health`].

mod match_block;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, Node, STREAM, STREAM_SERVER, Setting, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_stream::health::{CheckTarget, CheckTransport, HealthCheck, HealthCriteria};
use tw_stream::plan::Plan;
use tw_stream::{Passing, Stream};

use crate::gateways::health_check::{CheckParameters, MatchBlocks};

/// As written.
#[derive(Default)]
pub(crate) struct Raw {
    matches: Vec<(Box<[u8]>, HealthCriteria)>,
    check: Setting<RawCheck>,
    timeout: Setting<Duration>,
}

/// `health_check` as written.
struct RawCheck {
    node: Node,
    common: CheckParameters,
    transport: CheckTransport,
}

/// The checks of one server.
pub(crate) struct StreamHealthChecks {
    /// All `match` blocks by name.
    matches: Arc<MatchBlocks<HealthCriteria>>,
    timeout: Duration,
    here: Option<Arc<HealthCheck>>,
}

impl Settings<Stream> for StreamHealthChecks {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "health_check",
            "[interval=time] [jitter=time] [fails=number] [passes=number] [mandatory [persistent]] [match=name] [port=number] [udp]",
            STREAM_SERVER,
            Args::at_least(0),
        )
        .since("1.9.0")
        .doc(
            "Connects to each server of the group every 5 seconds, unless said otherwise; one that fails gets no sessions until it \
             passes again. With `udp`, a datagram is sent instead.",
        )
        .set(|raw, node, _| raw.check.set_with(node, read)),
        record::time("health_check_timeout", STREAM | STREAM_SERVER)
            .default("5s")
            .since("1.9.0")
            .doc("Time for sending and for the answer of a health check.")
            .set(|raw, node, _| raw.timeout.set_msec(node)),
        record::new("match", "name { … }", STREAM, Args::exact(1).block())
            .since("1.9.0")
            .doc("Text that a health check sends, and conditions for the answer: send, expect.")
            .set(|raw, node, _| {
                let name = node.arg(0)?;
                if raw.matches.iter().any(|(candidate, _)| *candidate == name.bytes) {
                    return Err(node.fail(format!("duplicate match \"{name}\"")));
                }
                raw.matches.push((name.bytes.clone(), match_block::read(node)?));
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let matches = match outer {
            Some(outer) => outer.matches.clone(),
            None => {
                let matches = raw.matches.into_iter().map(|(name, criteria)| (name, Arc::new(criteria)));
                Arc::new(matches.collect::<HashMap<_, _>>())
            }
        };
        let timeout = raw.timeout.or(outer.map(|outer| outer.timeout), Duration::from_secs(5));
        let check = raw.check.take().map(|check| check.resolve(&matches, timeout, cx));
        Ok(Self { matches, timeout, here: check.transpose()?.map(Arc::new) })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if let Some(check) = &self.here {
            plan.set_health_check(check.clone());
        }
    }
}

/// Reads `health_check`.
fn read(node: &Node) -> Result<RawCheck, ConfError> {
    let mut check =
        RawCheck { node: node.clone(), common: CheckParameters::default(), transport: CheckTransport::Tcp };
    for word in &node.args {
        if check.common.read(node, word)? {
            continue;
        }
        if word.is("udp") {
            check.transport = CheckTransport::Udp
        } else {
            return Err(node.fail(format!("invalid parameter \"{word}\"")));
        }
    }
    check.common.check(node)?;
    Ok(check)
}

impl RawCheck {
    fn resolve(
        self,
        matches: &MatchBlocks<HealthCriteria>,
        timeout: Duration,
        cx: &Resolve<'_, Stream>,
    ) -> Result<HealthCheck, ConfError> {
        let target = self.target(cx)?;
        let CheckParameters { params, port, .. } = self.common;
        let criteria = self.common.criteria(matches)?;
        if params.mandatory {
            target.group.peers.require_checks();
        }
        Ok(HealthCheck { params, transport: self.transport, timeout, port, criteria, target })
    }

    /// The group that the sessions of the server are passed to.
    fn target(&self, cx: &Resolve<'_, Stream>) -> Result<CheckTarget, ConfError> {
        let fail = |message: String, hint: &str| Err(self.node.fail(message).hint(hint));
        let target = match &cx.block.passing {
            Passing::To(target) => target,
            Passing::Nowhere => {
                return fail(
                    "there is no server to check: this server has no \"proxy_pass\"".to_owned(),
                    "it stands beside the \"proxy_pass\" to the group whose servers are checked",
                );
            }
            Passing::Anywhere => {
                return fail(
                    "\"health_check\" needs an address without variables".to_owned(),
                    "in a server of its own, which may listen on a Unix socket, it can name the group",
                );
            }
        };
        let name = target.group.peers.name();
        if cx.block.upstream.groups.find(name).is_none() {
            return fail(
                format!("\"health_check\" needs a group: \"{name}\" is no \"upstream\""),
                "write an \"upstream\" block, also for one server",
            );
        }
        Ok(target.clone())
    }
}
