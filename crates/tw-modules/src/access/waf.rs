//! `modsecurity`: the web application firewall (counterpart: ModSecurity's connector for nginx). Rules of the head run in the rewrite
//! phase, before `return`; rules of the body in the access phase, as a protection; rules of the response see it whole.
//!
//! ```text
//! rule_files  texts of rules and their files      inspection  one request under the rules, and memory for the next
//! request     head and body of the request        response    head and body of the response
//! report      error log, counters, variables, `--explain`
//! audit_log   records of requests
//! ```
//! The engine is `tw-waf`. Rules run on the loop as long as its turn has time for them, and the rest in a thread of the pool. Bodies longer than
//! [`INLINE_BODY_MAX`] are parsed and checked there from the beginning.

mod audit_log;
mod firewall;
mod inspection;
mod report;
mod request;
mod response;
mod rule_files;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_request::config::location::Location;
use tw_request::plan::{Phase, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::vars::VarDef;

use self::audit_log::AuditLog;
pub(crate) use self::firewall::Waf;
use self::firewall::{CompiledRules, Shared};
use self::rule_files::RawRules;
use tw_module_support::turn_queue;

const ALL: u32 = HTTP | SERVER | LOCATION;

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use tw_waf::LIMITS;
    use inspection::LIMITS;
    use audit_log::LIMITS;
    use firewall::LIMITS;
    /// Rules of the firewall whose matches are counted one by one in the metrics.
    const RULES_COUNTED_MAX: usize = 1024, count, "matches of the others, those with the largest ids, are added up as rule \"other\"";
    /// Requests for which the firewall waits for a thread of the pool.
    constant count turn_queue::WAITING_MAX, "503 with Retry-After; the error log says so";
    /// Requests of one client for which the firewall waits for a thread of the pool.
    constant count turn_queue::WAITING_OF_CLIENT_MAX, "503 with Retry-After; the error log says so";
}

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    is_on: Setting<bool>,
    rules: Vec<RawRules>,
    transaction_id: Setting<Word>,
    uses_error_log: Setting<bool>,
}

impl Settings<Http> for Waf {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("modsecurity", ALL)
            .default("off")
            .since("Tailwater 0.2")
            .doc("Checks requests and responses with the rules of the web application firewall.")
            .set(|raw, node, _| raw.is_on.set_flag(node)),
        record::new("modsecurity_rules", "text", ALL, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("Rules of the firewall in SecLang, behind those of the enclosing block.")
            .set(|raw, node, _| {
                raw.rules.push(RawRules::Text(node.arg(0)?.clone()));
                Ok(())
            }),
        record::new("modsecurity_rules_file", "file | mask", ALL, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("Files with rules of the firewall, in the order of their names.")
            .set(|raw, node, _| {
                raw.rules.push(RawRules::Files(node.arg(0)?.clone()));
                Ok(())
            }),
        record::new("modsecurity_rules_remote", "key url", ALL, Args::exact(2))
            .since("Tailwater 0.2")
            .doc("Is refused: rules are not loaded from other servers.")
            .set(|_, node, _| Err(node.fail("rules of other servers are not supported: use \"modsecurity_rules_file\""))),
        record::new("modsecurity_transaction_id", "string", ALL, Args::exact(1))
            .since("Tailwater 0.2")
            .default("$request_id")
            .doc("Identifier of a request in logs of the firewall.")
            .set(|raw, node, _| raw.transaction_id.set_once(node, node.arg(0)?.clone())),
        record::flag("modsecurity_use_error_log", ALL)
            .default("on")
            .since("Tailwater 0.2")
            .doc("Logs matches of rules in the error log: at the level error if the request was refused, otherwise at info.")
            .set(|raw, node, _| raw.uses_error_log.set_flag(node)),
    ];

    const VARIABLES: &'static [VarDef] = report::VARIABLES;

    const LIMITS: &'static [Limit] = LIMITS;

    const METRICS: &'static [Metric] = &[
        Metric {
            name: "modsecurity_requests_total",
            kind: MetricKind::Counter,
            labels: &["verdict"],
            doc: "Requests checked by the firewall: passed, detected if rules have matched that decide nothing, blocked.",
            read: |scrape, out| {
                for shared in scrape.shared_objects::<Shared>() {
                    out.value(&["passed"], shared.passed.value());
                    out.value(&["detected"], shared.detected.value());
                    out.value(&["blocked"], shared.blocked.value());
                }
            },
        },
        Metric {
            name: "modsecurity_rule_matches_total",
            kind: MetricKind::Counter,
            labels: &["rule", "paranoia_level"],
            doc: "Matches of rules of the firewall since their configuration was loaded, by id, and by the paranoia level that a tag of the rule names (0 if none does). Rules that have never matched are left out.",
            read: |scrape, out| {
                for shared in scrape.shared_objects::<Shared>() {
                    let matches = shared.matches();
                    for (id, rule) in
                        matches.iter().take(RULES_COUNTED_MAX).filter(|(_, rule)| rule.count > 0)
                    {
                        out.value(&[&id.to_string(), &rule.paranoia_level.to_string()], rule.count);
                    }
                    let others: u64 = matches.values().skip(RULES_COUNTED_MAX).map(|rule| rule.count).sum();
                    if others > 0 {
                        out.value(&["other", "0"], others);
                    }
                }
            },
        },
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let shared = match outer {
            Some(outer) => outer.shared.clone(),
            None => cx.keep(b"waf", |_| true, Shared::new),
        };
        let sources = outer.map_or_else(|| Arc::from([]), |outer| outer.sources.clone());
        let (sources, rules) = if raw.rules.is_empty() {
            (sources, outer.and_then(|outer| outer.rules.clone()))
        } else {
            let (sources, rules) = rule_files::compile(&sources, &raw.rules, cx)?;
            shared.add(&rules);
            let audit_log = AuditLog::resolve(&rules, &raw.rules, cx)?;
            (sources, Some(Arc::new(CompiledRules { rules, audit_log })))
        };
        let transaction_id = match raw.transaction_id.take() {
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|outer| outer.transaction_id.clone()),
        };
        Ok(Self {
            is_on: raw.is_on.or(outer.map(|outer| outer.is_on), false),
            sources,
            rules,
            transaction_id,
            uses_error_log: raw.uses_error_log.or(outer.map(|outer| outer.uses_error_log), true),
            shared,
            times: [cx.own_template("$time_iso8601")?, cx.own_template("$time_local")?],
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn reach(&self, _core: &Location, reach: &mut Reach) {
        let rules = self.rules.as_ref().filter(|_| self.is_on);
        if let Some(log) = rules.and_then(|rules| rules.audit_log.as_ref()) {
            log.declare(reach);
        }
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(rules) = self.rules.as_ref().filter(|_| self.is_on) else { return };
        plan.add(Phase::Rewrite, request::HeadCheck(self.clone()));
        plan.add(Phase::Access, request::BodyCheck);
        if rules.rules.has_response_rules() {
            plan.add_whole_body_filter(response::ResponseCheck);
        }
        plan.add_log(report::Report);
    }
}
