//! `deny_request`: refuses requests for which a variable is set, such as one of a `map` over fields of the request. Access phase, as a
//! protection: `satisfy` does not apply.
//!
//! The value is the reason. It stands in the error log and in `$deny_reason`. Refusals are counted by reason if all values of the
//! variable are known when the configuration is loaded, as those of a `map` with constants are.

use std::sync::Arc;

use tw_base::{Counter, Limit};
use tw_conf::{Args, ConfError, Directive, HTTP, LIMIT_EXCEPT, LOCATION, Node, SERVER, Word, record, units};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::VarDef;
use tw_log::{Level, Text};
use tw_request::plan::{AccessPurpose, Handler, Phase, Plan, Step};
use tw_request::protocol::Http;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Variable with the reason.
const REASON: &str = "deny_reason";
/// Label of the other reasons.
const OTHER: &str = "other";

/// Rules as written.
#[derive(Default)]
pub(crate) struct Raw {
    rules: Vec<RawRule>,
}

struct RawRule {
    value: Word,
    status: u16,
}

/// Rules of one block; a block with rules has none of those around it.
pub(crate) struct DenyRequest {
    rules: Arc<[Rule]>,
    /// Slot of the reason.
    reason: u16,
}

struct Rule {
    value: Template,
    status: u16,
    /// Counts of the known reasons.
    counts: Vec<Arc<Denials>>,
    other: Arc<Denials>,
}

/// Refusals for one reason. They outlive configurations.
struct Denials {
    reason: Box<str>,
    count: Counter,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Reasons of one variable of `deny_request` that are counted apart.
    const REASONS_MAX: usize = 64, count, "they are counted together";
}

impl Settings<Http> for DenyRequest {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "deny_request",
        "$variable [status=code]",
        HTTP | SERVER | LOCATION | LIMIT_EXCEPT,
        Args::range(1, 2),
    )
    .since("Tailwater 0.2")
    .doc("Refuses requests for which the variable is neither empty nor 0, with 403 or another status from 400 to 599, also with satisfy any. The value is the reason: it stands in the error log at the level info, and in $deny_reason.")
    .set(|raw, node, _| {
        raw.rules.push(RawRule::read(node)?);
        Ok(())
    })];

    const VARIABLES: &'static [VarDef<Request>] =
        &[VarDef::stored(REASON, "Value for which deny_request refused the request.")];

    const METRICS: &'static [Metric] = &[Metric {
        name: "denied_requests_total",
        kind: MetricKind::Counter,
        labels: &["reason"],
        doc: "Requests that deny_request refused, by the values of its variable if they are known when the configuration is loaded.",
        read: |scrape, out| {
            for denials in scrape.shared_objects::<Denials>() {
                out.value(&[&denials.reason], denials.count.value());
            }
        },
    }];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Http>) -> Result<Self, ConfError> {
        let reason = cx.slot(REASON);
        let rules = match outer {
            Some(outer) if raw.rules.is_empty() => outer.rules.clone(),
            _ => raw.rules.into_iter().map(|rule| rule.resolve(cx)).collect::<Result<_, _>>()?,
        };
        Ok(Self { rules, reason })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.rules.is_empty() {
            plan.add(Phase::Access, self.clone());
        }
    }
}

impl RawRule {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let mut status = 403;
        for word in node.args.iter().skip(1) {
            let value = word.param("status").ok_or_else(|| node.invalid_parameter(word))?;
            status = match units::number(value) {
                Some(code @ 400..=599) => code as u16,
                _ => return Err(node.invalid_parameter(word)),
            };
        }
        Ok(Self { value: node.arg(0)?.clone(), status })
    }

    fn resolve(self, cx: &mut Resolve<'_, Http>) -> Result<Rule, ConfError> {
        let mut denials = Vec::new();
        for value in cx.vars.possible_texts(&self.value.bytes, REASONS_MAX).unwrap_or_default() {
            if !matches!(&*value, b"" | b"0") {
                denials.push(Denials::keep(&String::from_utf8_lossy(&value), cx));
            }
        }
        Ok(Rule {
            value: cx.template(&self.value)?,
            status: self.status,
            counts: denials,
            other: Denials::keep(OTHER, cx),
        })
    }
}

impl Denials {
    fn keep(reason: &str, cx: &mut Resolve<'_, Http>) -> Arc<Self> {
        cx.keep(reason.as_bytes(), |_| true, || Self { reason: reason.into(), count: Counter::new() })
    }
}

impl Rule {
    fn count(&self, reason: &[u8]) {
        let denials = self.counts.iter().find(|denials| *denials.reason.as_bytes() == *reason);
        denials.unwrap_or(&self.other).count.add(1);
    }
}

impl DenyRequest {
    /// The first rule whose variable is set, and its value.
    fn find(&self, r: &Request) -> Option<(&Rule, Vec<u8>)> {
        let mut reason = Vec::new();
        for rule in &*self.rules {
            reason.clear();
            rule.value.eval(r, &mut reason);
            if !matches!(&*reason, b"" | b"0") {
                return Some((rule, reason));
            }
        }
        None
    }
}

impl Handler for DenyRequest {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some((rule, reason)) = self.find(r) else { return Step::PASS };
        rule.count(&reason);
        r.log(Level::Info, format_args!("request denied: \"{}\"", Text(&reason)));
        r.set_slot(self.reason, reason);
        Step::status(rule.status)
    }

    fn access_purpose(&self) -> AccessPurpose {
        AccessPurpose::Protection
    }
}
