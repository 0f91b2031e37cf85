//! Settings shared by `limit_req` and `limit_conn`: status, log level and dry run of refused requests.

use tw_conf::{Args, ConfError, Contexts, Directive, Node, Setting, record};
use tw_core::access_check::AccessDecision;
use tw_core::session::Session;
use tw_core::vars::Value;
use tw_log::Level;

/// `limit_req_log_level`, `limit_conn_log_level`
const LEVELS: &[(&str, Level)] =
    &[("info", Level::Info), ("notice", Level::Notice), ("warn", Level::Warn), ("error", Level::Error)];

/// Refusals as written.
#[derive(Default)]
pub struct Raw {
    level: Setting<Level>,
    status: Setting<u16>,
    dry_run: Setting<bool>,
    retry_after: Setting<bool>,
}

/// Settings as written that have those of refusals.
pub trait HasRefusal {
    /// Settings of refusals.
    fn refusal(&mut self) -> &mut Raw;
}

/// Record of the directive that sets the log level of refusals.
pub const fn log_level<R: HasRefusal>(
    name: &'static str,
    contexts: Contexts,
    doc: &'static str,
) -> Directive<R> {
    record::new(name, "info | notice | warn | error", contexts, Args::exact(1))
        .default("error")
        .since("0.8.18")
        .doc(doc)
        .set(|raw, node, _| raw.refusal().level.set_one_of(node, LEVELS))
}

/// Record of the directive that sets the status of refusals.
pub const fn status<R: HasRefusal>(name: &'static str, contexts: Contexts) -> Directive<R> {
    record::new(name, "code", contexts, Args::exact(1))
        .default("503")
        .since("1.3.15")
        .doc("Status of a refusal, 400 to 599.")
        .set(|raw, node, _| raw.refusal().status.set_with(node, read_status))
}

/// Record of the directive that only logs refusals.
pub const fn dry_run<R: HasRefusal>(
    name: &'static str,
    contexts: Contexts,
    since: &'static str,
) -> Directive<R> {
    record::flag(name, contexts)
        .default("off")
        .since(since)
        .doc("Counts and logs, but limits nothing.")
        .set(|raw, node, _| raw.refusal().dry_run.set_flag(node))
}

/// Record of the directive that leaves out `Retry-After`.
pub const fn retry_after<R: HasRefusal>(name: &'static str, contexts: Contexts) -> Directive<R> {
    record::flag(name, contexts)
        .default("on")
        .doc("Adds Retry-After to a refusal with the status 429 or 503, unless the response has it already.")
        .set(|raw, node, _| raw.refusal().retry_after.set_flag(node))
}

/// Response and log level of refused requests.
pub struct LimitRefusal {
    /// Level at which that is logged.
    pub level: Level,
    status: u16,
    /// Set if refusals are only logged.
    pub dry_run: bool,
    retry_after: bool,
}

impl LimitRefusal {
    /// From written to used.
    pub fn resolve(raw: Raw, outer: Option<&Self>) -> Self {
        Self {
            level: raw.level.or(outer.map(|o| o.level), Level::Error),
            status: raw.status.or(outer.map(|o| o.status), 503),
            dry_run: raw.dry_run.or(outer.map(|o| o.dry_run), false),
            retry_after: raw.retry_after.or(outer.map(|o| o.retry_after), true),
        }
    }

    /// Text of the variable, and the decision about a session that would pass after `seconds`.
    pub fn decision(&self, seconds: u32) -> (&'static str, AccessDecision) {
        if self.dry_run {
            ("REJECTED_DRY_RUN", AccessDecision::Pass)
        } else {
            // DIFF(nginx): the client learns when to try again.
            let is_sent = self.retry_after && matches!(self.status, 429 | 503);
            let retry_after = is_sent.then_some(seconds);
            ("REJECTED", AccessDecision::Refused { status: self.status, retry_after })
        }
    }
}

/// Reads a status of 400 to 599.
fn read_status(node: &Node) -> Result<u16, ConfError> {
    match node.number()? {
        code @ 400..=599 => Ok(code as u16),
        _ => Err(node.fail("value must be between 400 and 599")),
    }
}

/// Decides about a session once, in whatever locations it is processed: `None` if the variable of `slot` is set
/// already. `decide` gets room for a key.
pub fn decide_once<S: Session, T>(s: &S, slot: u16, decide: impl FnOnce(&S, &mut Vec<u8>) -> T) -> Option<T> {
    let mut key = s.scratch().take();
    key.clear();
    let decided = (s.slot(slot, &mut key) != Value::Found).then(|| decide(s, &mut key));
    s.scratch().set(key);
    decided
}
