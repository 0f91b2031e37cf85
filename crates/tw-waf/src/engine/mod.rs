//! One request and its response under the rules.
//!
//! ```text
//! values     bytes of all variables        phase     rules of a phase in their order
//! request    from head and body            evaluate  one rule against its values
//! response   from the response             effects   what a match changes
//! message    line and record of a match    audit     record of the whole transaction
//! trace      what every rule has compared
//! ```

mod audit;
mod effects;
mod evaluate;
mod message;
mod phase;
mod request;
mod response;
mod trace;
mod values;

use std::sync::Arc;

pub(crate) use self::audit::LIMITS as AUDIT_LIMITS;
pub use self::audit::RecordTime;
pub(crate) use self::message::LIMITS as MESSAGE_LIMITS;
pub use self::message::{Message, Severity};
pub(crate) use self::phase::LIMITS as PHASE_LIMITS;
use self::phase::NextStep;
pub use self::phase::PhaseProgress;
pub use self::request::{BodyCheck, Connection};
pub(crate) use self::trace::LIMITS as TRACE_LIMITS;
use self::trace::Trace;
use self::values::{TxValue, Values};
use crate::collection::Store;
use crate::filter::Scratch;
use crate::ruleset::RuleSet;
use crate::seclang::action::{BodyProcessor, Disruptive};
use crate::seclang::settings::{AuditEngine, Mode};
use crate::seclang::target::Target;
use crate::transform::Transformer;
use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Matches of rules that are logged for one request.
    pub(crate) const MESSAGES_MAX: usize = 256, count, "further matches are counted, not logged";
    /// Values of one collection of a request that rules read.
    pub(crate) const VALUES_MAX: usize = 16_384, count, "the request is handled as one beyond \"SecArgumentsLimit\"";
    /// Values of `TX` with computed names.
    pub(crate) const COMPUTED_MAX: usize = 4096, count, "further values are not stored";
}

/// Phases, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Head of the request.
    RequestHeaders = 1,
    /// Body of the request.
    RequestBody = 2,
    /// Head of the response.
    ResponseHeaders = 3,
    /// Body of the response.
    ResponseBody = 4,
    /// After the response.
    Logging = 5,
}

/// Decision of the rules about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Id of the rule.
    pub rule: u64,
    /// Phase in which it has decided.
    pub phase: u8,
    /// Consequence.
    pub action: VerdictAction,
}

/// Consequence of a verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerdictAction {
    /// An answer with this status.
    Deny(u16),
    /// No answer: the connection is closed.
    Drop,
    /// An answer with this status and location.
    Redirect(u16, Vec<u8>),
}

/// Rules that `allow` skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Nothing,
    /// The rest of the phase.
    Phase,
    /// The rest of the phases of the request.
    Request,
    /// All but the logging phase.
    All,
}

/// One request under the rules. Its memory can be used again (`clear`).
pub struct Transaction {
    rules: Arc<RuleSet>,
    store: Arc<Store>,
    values: Values,
    mode: Mode,
    audit_engine: AuditEngine,
    request_body_access: bool,
    response_body_access: bool,
    forces_request_body: bool,
    processor: Option<BodyProcessor>,
    allowed: Allowed,
    /// Rules that `ctl` has removed, as bits; empty if none.
    removed: Vec<u64>,
    /// Targets that `ctl` has removed from rules.
    removed_targets: Vec<(Arc<[u64]>, Target)>,
    /// Values that the last rule matched.
    matched: Vec<Matched>,
    messages: Vec<Message>,
    /// Names and values that `setenv` has set.
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Rule that is evaluated: its number, and its place in its chain.
    current_rule: (u32, u32),
    /// Matches that are not in `messages`.
    unlogged: usize,
    /// True once a rule with `auditlog` has matched.
    is_relevant: bool,
    highest_severity: u8,
    verdict: Option<Verdict>,
    /// Keys of collections that outlive the request.
    collections: Vec<(Variable, Vec<u8>)>,
    /// Unix time at the begin, in seconds.
    time: u64,
    scratch: Scratch,
    transformer: Transformer,
    pending: Vec<Pending>,
    /// Next step of the phase that was interrupted.
    next_step: Option<NextStep>,
    rule_numbers: Vec<u32>,
    statuses: (u16, u64),
    /// Lines about every comparison, if somebody reads them.
    trace: Option<Box<Trace>>,
}

/// Value that a rule has matched.
#[derive(Debug, Clone)]
struct Matched {
    variable: Variable,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Value that meets the condition of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    /// Position of the rule in its phase.
    rule: u32,
    variable: u8,
    item: u32,
}

impl Transaction {
    /// Transaction under `rules`.
    pub fn new(rules: Arc<RuleSet>, store: Arc<Store>) -> Self {
        let settings = rules.settings();
        let (mode, audit_engine) = (settings.mode, settings.audit_engine);
        let (request_body_access, response_body_access) =
            (settings.request_body_access, settings.response_body_access);
        let values = Values::new(rules.names.list().len());
        Self {
            rules,
            store,
            values,
            mode,
            audit_engine,
            request_body_access,
            response_body_access,
            forces_request_body: false,
            processor: None,
            allowed: Allowed::Nothing,
            removed: Vec::new(),
            removed_targets: Vec::new(),
            matched: Vec::new(),
            messages: Vec::new(),
            environment: Vec::new(),
            current_rule: (0, 0),
            unlogged: 0,
            is_relevant: false,
            highest_severity: 255,
            verdict: None,
            collections: Vec::new(),
            time: 0,
            scratch: Scratch::default(),
            transformer: Transformer::default(),
            pending: Vec::new(),
            next_step: None,
            rule_numbers: Vec::new(),
            statuses: (0, 0),
            trace: None,
        }
    }

    /// Makes it a new one under `rules`; memory stays.
    pub fn begin(&mut self, rules: &Arc<RuleSet>, store: &Arc<Store>) {
        if self.rules.number() != rules.number() {
            self.rules = rules.clone();
            self.values.resize(rules.names.list().len());
        }
        if !Arc::ptr_eq(&self.store, store) {
            self.store = store.clone();
        }
        self.clear();
    }

    /// Lets go of the rules, which may be those of an old configuration; memory stays for the next [`begin`](Self::begin).
    pub fn retire(&mut self) {
        self.rules = RuleSet::empty();
        self.clear();
    }

    fn clear(&mut self) {
        let settings = self.rules.settings();
        self.mode = settings.mode;
        self.audit_engine = settings.audit_engine;
        self.request_body_access = settings.request_body_access;
        self.response_body_access = settings.response_body_access;
        self.forces_request_body = false;
        self.processor = None;
        self.allowed = Allowed::Nothing;
        self.removed.clear();
        self.removed_targets.clear();
        self.matched.clear();
        self.messages.clear();
        self.environment.clear();
        self.unlogged = 0;
        self.is_relevant = false;
        self.highest_severity = 255;
        self.verdict = None;
        self.collections.clear();
        self.statuses = (0, 0);
        self.trace = None;
        self.pending.clear();
        self.next_step = None;
        self.values.clear();
    }

    /// Rules.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Returns true if the body of the request is checked.
    pub fn reads_request_body(&self) -> bool {
        self.mode != Mode::Off && self.request_body_access
    }

    /// Returns true if the body of a response of this media type is checked.
    pub fn reads_response_body(&self, media_type: &[u8]) -> bool {
        self.mode != Mode::Off
            && self.response_body_access
            && self.rules.settings.checks_response_type(media_type)
    }

    /// Returns true if rules decide about this request.
    pub fn is_enforcing(&self) -> bool {
        self.mode == Mode::On
    }

    /// Decision, once there is one.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Matches of rules with `log`, in their order.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Number of matches that are not among the [messages](Self::messages), as there are too many.
    pub fn unlogged(&self) -> usize {
        self.unlogged
    }

    /// Returns true if the audit log gets a record of it.
    pub fn is_audited(&self) -> bool {
        match self.audit_engine {
            AuditEngine::Off => false,
            AuditEngine::On => true,
            AuditEngine::RelevantOnly => {
                let (status, _) = self.statuses;
                let relevant = &self.rules.settings.relevant_statuses;
                self.is_relevant || relevant.get(usize::from(status)).copied().unwrap_or(false)
            }
        }
    }

    /// Number that a value of `TX` has, such as an anomaly score. `name` is in lower case.
    pub fn tx_number(&self, name: &str) -> Option<i64> {
        let number = self.rules.names.find(name.as_bytes())?;
        self.values.tx(number).map(TxValue::number)
    }

    /// Identifier of the request.
    pub fn unique_id(&self) -> &[u8] {
        self.values.first(Variable::UniqueId)
    }

    /// Bytes that rules of the first phase have read.
    pub fn value_bytes(&self) -> usize {
        self.values.len()
    }

    /// Bytes of memory it keeps.
    pub fn capacity(&self) -> usize {
        self.values.capacity()
    }
}

impl Disruptive {
    fn word(&self) -> &'static str {
        match self {
            Self::Pass | Self::Block => "pass",
            Self::Deny => "deny",
            Self::Drop => "drop",
            Self::Allow(_) => "allow",
            Self::Redirect(_) => "redirect",
        }
    }
}
