//! Error log, counters, variables and `--explain`.

use std::sync::Arc;

use tw_core::vars::{Value, write};
use tw_log::Level;
use tw_phases::phases::explain::DetailedExplanation;
use tw_request::plan::LogHandler;
use tw_request::request::Request;
use tw_request::vars::VarDef;
use tw_waf::{Phase, RecordTime, Transaction};

use super::firewall::Waf;
use super::inspection::Inspection;

/// Values of `TX` with the anomaly score of the Core Rule Set, the newest name first.
const SCORES: [&str; 3] = ["blocking_inbound_anomaly_score", "anomaly_score", "inbound_anomaly_score"];

pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::one(
        "modsecurity_verdict",
        |r, out| with(r, |transaction| write::put(out, verdict(transaction).as_bytes())),
        "Result of the firewall (modsecurity): passed, detected or blocked.",
    ),
    VarDef::one(
        "modsecurity_rule",
        |r, out| {
            with(r, |transaction| match transaction.verdict() {
                Some(verdict) => write::put(out, verdict.rule.to_string().as_bytes()),
                None => Value::Missing,
            })
        },
        "Id of the rule of the firewall that has refused the request.",
    ),
    VarDef::one(
        "modsecurity_matches",
        |r, out| {
            with(r, |transaction| {
                if transaction.messages().is_empty() {
                    return Value::Missing;
                }
                let ids: Vec<String> =
                    transaction.messages().iter().map(|message| message.id.to_string()).collect();
                write::put(out, ids.join(",").as_bytes())
            })
        },
        "Ids of the rules of the firewall that have matched and are logged, with commas between them.",
    ),
    VarDef::one(
        "modsecurity_score",
        |r, out| {
            with(r, |transaction| match score(transaction) {
                Some(score) => write::put(out, score.to_string().as_bytes()),
                None => Value::Missing,
            })
        },
        "Anomaly score of the request, if the rules of the firewall compute one as the Core Rule Set does.",
    ),
];

fn with(r: &Request, read: impl FnOnce(&Transaction) -> Value) -> Value {
    match Inspection::of(r) {
        Some(inspection) => inspection.transaction.borrow().as_ref().map_or(Value::Missing, read),
        None => Value::Missing,
    }
}

fn verdict(transaction: &Transaction) -> &'static str {
    if transaction.verdict().is_some() {
        "blocked"
    } else if transaction.messages().is_empty() {
        "passed"
    } else {
        "detected"
    }
}

fn score(transaction: &Transaction) -> Option<i64> {
    SCORES.iter().find_map(|name| transaction.tx_number(name))
}

/// Logs matches that were not logged before.
pub(super) fn log_matches(r: &Request, inspection: &Inspection) {
    let transaction = inspection.transaction.borrow();
    let Some(transaction) = transaction.as_ref() else { return };
    let messages = transaction.messages();
    let before = inspection.logged.replace(messages.len());
    if !inspection.waf.uses_error_log {
        return;
    }
    let decided = transaction.verdict().map(|verdict| verdict.rule);
    for message in messages.iter().skip(before).filter(|message| message.is_logged) {
        let level = if decided == Some(message.id) { Level::Error } else { Level::Info };
        r.log(level, format_args!("{}", transaction.log_line(message)));
    }
}

/// Runs the last rules when a request is over, and writes its record.
pub(super) struct Report;

impl LogHandler for Report {
    fn log(&self, r: &Request) {
        let Some(inspection) = Inspection::of(r) else { return };
        if let Some(transaction) = inspection.transaction.borrow_mut().as_mut() {
            transaction.set_sent(r.response.status, r.costs.sent.body());
        }
        inspection.run_to_end(Phase::Logging);
        log_matches(r, &inspection);
        let waf = &inspection.waf;
        let transaction = inspection.transaction.borrow();
        let Some(transaction) = transaction.as_ref() else { return };
        match verdict(transaction) {
            "blocked" => waf.shared.blocked.add(1),
            "detected" => waf.shared.detected.add(1),
            _ => waf.shared.passed.add(1),
        }
        let audit_log = waf.rules.as_ref().and_then(|rules| rules.audit_log.as_ref());
        if let Some(log) = audit_log.filter(|_| transaction.is_audited()) {
            let [iso8601, local] =
                waf.times.each_ref().map(|time| String::from_utf8_lossy(&time.value(r)).into_owned());
            log.write(transaction, RecordTime { local: &local, iso8601: &iso8601 });
        }
    }
}

/// Lines about the rules that would match `r`, and about its body if there is one.
pub(super) fn explain(waf: &Arc<Waf>, r: &Request) -> Vec<(&'static str, String)> {
    let Some(rules) = &waf.rules else { return Vec::new() };
    let inspection = Inspection::begin(waf, rules, r);
    let is_detailed = r.extensions.get::<DetailedExplanation>().is_some();
    if let Some(transaction) = inspection.transaction.borrow_mut().as_mut()
        && is_detailed
    {
        transaction.start_trace();
    }
    inspection.run_to_end(Phase::RequestHeaders);
    if let (Some(transaction), Some(body)) = (inspection.transaction.borrow_mut().as_mut(), r.body.memory())
        && transaction.reads_request_body()
    {
        transaction.set_request_body(body, body.len() as u64);
    }
    inspection.run_to_end(Phase::RequestBody);
    let transaction = inspection.transaction.borrow();
    let Some(transaction) = transaction.as_ref() else { return Vec::new() };
    let mut summary = verdict(transaction).to_owned();
    if let Some(verdict) = transaction.verdict() {
        summary.push_str(&format!(" by rule {} in phase {}", verdict.rule, verdict.phase));
    }
    summary.push_str(&format!(", {} rules", rules.rules.len()));
    if let Some(score) = score(transaction) {
        summary.push_str(&format!(", anomaly score {score}"));
    }
    let mut lines = vec![("firewall", summary)];
    for message in transaction.messages() {
        let text = String::from_utf8_lossy(&message.message);
        lines.push(("", format!("rule {} ({}): {text}", message.id, message.place)));
        if is_detailed {
            lines.push(("", format!("     {}", message.cause)));
        }
    }
    lines.extend(transaction.trace().lines().map(|line| ("", line.to_owned())));
    lines
}
