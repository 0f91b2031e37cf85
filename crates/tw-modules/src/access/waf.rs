//! `modsecurity`: the web application firewall (counterpart: ModSecurity's connector for nginx). Rules of the head run in the rewrite
//! phase, before `return`; rules of the body in the access phase, as a protection; rules of the response see it whole.
//!
//! ```text
//! rule_files  texts of rules and their files      inspection  one request under the rules, and memory for the next
//! request     head and body of the request        response    head and body of the response
//! report      error log, audit log, variables, `--explain`
//! ```
//! The engine is `tw-waf`. Heads are checked on the loop. Long ones, and bodies longer than [`INLINE_BODY_MAX`],
//! are checked by a thread of the pool.

mod inspection;
mod report;
mod request;
mod response;
mod rule_files;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use tw_base::{Counter, FatalMutex, Limit};
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::log::SinkRef;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_server::http::Http;
use tw_server::http::plan::{Phase, Plan};
use tw_server::load::Resolve;
use tw_server::vars::{Template, VarDef};
use tw_waf::{AuditLogType, RuleSet, Source, Store};

use self::rule_files::RawRules;

const ALL: u32 = HTTP | SERVER | LOCATION;

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use tw_waf::LIMITS;
    use inspection::LIMITS;
    /// Bytes of values of a head whose firewall rules run on the loop.
    ///
    /// The values take about twice the bytes of the head. The Core Rule Set takes 0.1 µs for each byte of ordinary text that is new to the
    /// thread, and up to 0.9 µs where each byte looks like an attack.
    const INLINE_MAX: usize = 4 << 10, bytes, "the rules run in a thread of the pool";
    /// Bytes of a body whose firewall rules run on the loop.
    const INLINE_BODY_MAX: usize = 1 << 10, bytes, "the rules run in a thread of the pool";
}

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    is_on: Setting<bool>,
    rules: Vec<RawRules>,
    transaction_id: Setting<Word>,
    uses_error_log: Setting<bool>,
}

/// Firewall of one block.
pub(crate) struct Waf {
    is_on: bool,
    /// Texts of the rules of this block and of those around it.
    sources: Arc<[Source]>,
    rules: Option<Arc<CompiledRules>>,
    transaction_id: Option<Template>,
    uses_error_log: bool,
    shared: Arc<Shared>,
    /// `$time_iso8601`, for the audit log.
    time: Template,
}

/// Rules with their audit log.
struct CompiledRules {
    rules: Arc<RuleSet>,
    audit_log: Option<SinkRef>,
}

/// State that outlives configurations: collections of rules, and counters.
#[derive(Default)]
struct Shared {
    store: Arc<Store>,
    passed: Counter,
    detected: Counter,
    blocked: Counter,
    /// Sets of rules whose matches are counted.
    sets: FatalMutex<Vec<Weak<RuleSet>>>,
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
            labels: &["rule"],
            doc: "Matches of rules of the firewall since their configuration was loaded, by id. Rules that have never matched are left out.",
            read: |scrape, out| {
                for shared in scrape.shared_objects::<Shared>() {
                    for (id, count) in shared.matches() {
                        out.value(&[&id.to_string()], count);
                    }
                }
            },
        },
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let shared = match outer {
            Some(outer) => outer.shared.clone(),
            None => cx.keep(b"waf", |_| true, Shared::default),
        };
        let sources = outer.map_or_else(|| Arc::from([]), |outer| outer.sources.clone());
        let (sources, rules) = if raw.rules.is_empty() {
            (sources, outer.and_then(|outer| outer.rules.clone()))
        } else {
            let (sources, rules) = rule_files::compile(&sources, &raw.rules, cx)?;
            shared.add(&rules);
            let audit_log = audit_log(&rules, &raw.rules, cx)?;
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
            time: cx.own_template("$time_iso8601")?,
        })
    }

    fn are_shared(&self) -> bool {
        true
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

/// Sink of the audit log, if the rules write one.
fn audit_log(rules: &RuleSet, raw: &[RawRules], cx: &mut Resolve<'_>) -> Result<Option<SinkRef>, ConfError> {
    let settings = rules.settings();
    let Some(name) = &settings.audit_log else { return Ok(None) };
    if settings.audit_log_type == AuditLogType::Concurrent {
        let error = ConfError::new("\"SecAuditLogType Concurrent\" is not supported: use \"Serial\"");
        return Err(match raw.last() {
            Some(last) => error.at(last.word().span),
            None => error,
        });
    }
    let path: PathBuf = OsString::from_vec(cx.full_path(name.as_bytes())).into();
    Ok(Some(cx.sink(&path)))
}

impl Shared {
    fn add(&self, rules: &Arc<RuleSet>) {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        if !sets.iter().any(|set| set.as_ptr() == Arc::as_ptr(rules)) {
            sets.push(Arc::downgrade(rules));
        }
    }

    /// Matches of all rules by their ids.
    fn matches(&self) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        for set in self.sets.lock().iter().filter_map(Weak::upgrade) {
            for (id, count) in set.matches() {
                *counts.entry(id).or_default() += count;
            }
        }
        counts
    }
}
