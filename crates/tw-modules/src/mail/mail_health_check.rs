//! `health_check` and `health_check_timeout` of `mail`: periodic checks of a group of auth servers. nginx has them in `http` and
//! `stream` only, in its commercial edition. A background task of tw-mail.

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, Node, Setting, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_mail::Mail;
use tw_mail::health_check::{CheckProtocol, HealthCheck};
use tw_mail::plan::Plan;
use tw_proxy::health::is_uri;

use crate::gateways::health_check::CheckParameters;

/// Page that a check asks for.
const URI: &[u8] = b"/";

/// As written.
#[derive(Default)]
pub(crate) struct Raw {
    check: Setting<WrittenCheck>,
    timeout: Setting<Duration>,
}

/// `health_check` as written.
#[derive(Clone)]
struct WrittenCheck {
    node: Node,
    common: CheckParameters,
    protocol: CheckProtocol,
}

/// The check of the auth servers of one server.
pub(crate) struct MailHealthCheck {
    timeout: Duration,
    /// The directive of the block around, or of this one. Servers that inherit it share the check.
    directive: Option<Arc<WrittenCheck>>,
    check: Option<Arc<HealthCheck>>,
}

impl Settings<Mail> for MailHealthCheck {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "health_check",
            "[interval=time] [jitter=time] [fails=number] [passes=number] [uri=uri] [mandatory [persistent]] [port=number] [type=http|tcp]",
            MAIL | MAIL_SERVER,
            Args::at_least(0),
        )
        .since("Tailwater 0.2")
        .doc(
            "Asks each auth server of the group that `auth_http` names every 5 seconds for /, unless said otherwise; one that does not \
             answer with a status from 200 to 399 is asked about no logins until it passes again. With `type=tcp`, a connection suffices.",
        )
        .set(|raw, node, _| raw.check.set_with(node, read)),
        record::time("health_check_timeout", MAIL | MAIL_SERVER)
            .default("5s")
            .since("Tailwater 0.2")
            .doc("Time of a health check of an auth server, from the connection to the answer.")
            .set(|raw, node, _| raw.timeout.set_msec(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let is_here = raw.check.is_set() || raw.timeout.is_set();
        let timeout = raw.timeout.or(outer.map(|outer| outer.timeout), Duration::from_secs(5));
        let written_check =
            raw.check.take().map(Arc::new).or_else(|| outer.and_then(|outer| outer.directive.clone()));
        let check = match (&written_check, outer.and_then(|outer| outer.check.as_ref())) {
            (None, _) => None,
            (Some(_), Some(inherited)) if !is_here => Some(inherited.clone()),
            (Some(written_check), _) => Some(Arc::new(written_check.with_timeout(timeout))),
        };
        if let (Some(written_check), Some(_)) = (&written_check, outer) {
            written_check.check_group(cx)?;
        }
        Ok(Self { timeout, directive: written_check, check })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if let Some(check) = &self.check {
            plan.set_health_check(check.clone());
        }
    }
}

/// Reads `health_check`.
fn read(node: &Node) -> Result<WrittenCheck, ConfError> {
    let mut common = CheckParameters::default();
    let (mut uri, mut is_tcp) = (None, false);
    for word in &node.args {
        let invalid = || node.invalid_parameter(word);
        if common.read(node, word)? {
            continue;
        }
        if let Some(value) = word.param("uri") {
            uri = Some(Some(value).filter(|uri| is_uri(uri)).ok_or_else(invalid)?);
        } else if let Some(value) = word.param("type") {
            is_tcp = match value {
                b"http" => false,
                b"tcp" => true,
                _ => return Err(invalid()),
            };
        } else {
            return Err(invalid());
        }
    }
    common.check(node)?;
    if common.expected.is_some() {
        return Err(node
            .fail("\"match\" of \"health_check\" is not supported in \"mail\"")
            .hint("an auth server passes with a status from 200 to 399"));
    }
    if is_tcp && uri.is_some() {
        return Err(node.fail("\"type=tcp\" of \"health_check\" has no \"uri\""));
    }
    let protocol =
        if is_tcp { CheckProtocol::Connect } else { CheckProtocol::Request(uri.unwrap_or(URI).into()) };
    Ok(WrittenCheck { node: node.clone(), common, protocol })
}

impl WrittenCheck {
    fn with_timeout(&self, timeout: Duration) -> HealthCheck {
        let CheckParameters { params, port, .. } = self.common;
        HealthCheck { params, protocol: self.protocol.clone(), timeout, port }
    }

    /// Checks that the auth server of a server is a group, whose servers have to pass from now on.
    fn check_group(&self, cx: &Resolve<'_, Mail>) -> Result<(), ConfError> {
        // A server without an auth server is a mistake that is reported elsewhere.
        let Some(group) = &cx.block.auth_group else { return Ok(()) };
        let name = group.peers.name();
        if cx.block.upstream.groups.find(name).is_none() {
            return Err(self
                .node
                .fail(format!("\"health_check\" needs a group: \"{name}\" is no \"upstream\""))
                .hint("write an \"upstream\" block in \"mail\", also for one server, and name it in \"auth_http\""));
        }
        if self.common.params.mandatory {
            group.peers.require_checks();
        }
        Ok(())
    }
}
