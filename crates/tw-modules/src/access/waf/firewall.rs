//! Firewall of one block: its rules, and the state that outlives configurations.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tw_base::{Counter, FatalMutex};
use tw_module_support::turn_queue::{self, TurnLimits, TurnQueue};
use tw_request::vars::Template;
use tw_waf::{RuleMatches, RuleSet, Source, Store};

use super::audit_log::AuditLog;

tw_base::limits! {
    /// Limits of what the loop checks itself.
    pub(super) const LIMITS;

    /// Bytes of values of a request whose firewall rules run on the loop, as long as its turn has time for them.
    ///
    /// The values take about twice the bytes of the head. A rule that the firewall cannot leave out reads all values that it names in one step.
    pub(super) const INLINE_MAX: usize = 16 << 10, bytes, "the rules run in a thread of the pool";
    /// Bytes of a body whose firewall rules run on the loop.
    pub(super) const INLINE_BODY_MAX: usize = 1 << 10, bytes, "the rules run in a thread of the pool";
}

/// Firewall of one block.
pub(crate) struct Waf {
    pub(super) is_on: bool,
    /// Texts of the rules of this block and of those around it.
    pub(super) sources: Arc<[Source]>,
    pub(super) rules: Option<Arc<CompiledRules>>,
    pub(super) transaction_id: Option<Template>,
    pub(super) uses_error_log: bool,
    pub(super) shared: Arc<Shared>,
    /// `$time_iso8601` and `$time_local`, for the audit log.
    pub(super) times: [Template; 2],
}

/// Rules with their audit log.
pub(super) struct CompiledRules {
    pub(super) rules: Arc<RuleSet>,
    pub(super) audit_log: Option<AuditLog>,
}

/// State that outlives configurations: collections of rules, and counters.
pub(super) struct Shared {
    pub(super) store: Arc<Store>,
    /// Turns of requests whose rules run in the pool: as many at once as the machine has processors, so that their
    /// work takes neither all threads of the pool nor too much time from the loops.
    pub(super) turns: Arc<TurnQueue>,
    pub(super) passed: Counter,
    pub(super) detected: Counter,
    pub(super) blocked: Counter,
    /// Sets of rules whose matches are counted.
    pub(super) sets: FatalMutex<Vec<Weak<RuleSet>>>,
}

impl Shared {
    pub(super) fn new() -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let limits = TurnLimits {
            at_once,
            waiting: turn_queue::WAITING_MAX,
            waiting_of_client: turn_queue::WAITING_OF_CLIENT_MAX,
        };
        Self {
            store: Arc::default(),
            turns: Arc::new(TurnQueue::new(limits)),
            passed: Counter::new(),
            detected: Counter::new(),
            blocked: Counter::new(),
            sets: FatalMutex::default(),
        }
    }

    pub(super) fn add(&self, rules: &Arc<RuleSet>) {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        if !sets.iter().any(|set| set.as_ptr() == Arc::as_ptr(rules)) {
            sets.push(Arc::downgrade(rules));
        }
    }

    /// Matches of all rules by their ids, also of those that have never matched.
    pub(super) fn matches(&self) -> BTreeMap<u64, RuleMatches> {
        let mut counts: BTreeMap<u64, RuleMatches> = BTreeMap::new();
        for set in self.sets.lock().iter().filter_map(Weak::upgrade) {
            for rule in set.matches() {
                counts
                    .entry(rule.id)
                    .and_modify(|rule_matches| rule_matches.count += rule.count)
                    .or_insert(rule);
            }
        }
        counts
    }
}
