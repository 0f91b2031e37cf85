//! Rules of a configuration, compiled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tw_base::Counter;

use crate::filter::Filter;
use crate::names::Names;
use crate::seclang::action::{Control, Effect};
use crate::seclang::directive::Parsed;
use crate::seclang::rule::{Choice, Rule};
use crate::seclang::settings::Settings;
use crate::seclang::{Files, RuleError, Source};

/// Number of phases.
pub(crate) const PHASES: usize = 5;

/// Compiled rules. All threads share them.
pub struct RuleSet {
    /// Number that no other set of this process has.
    pub(crate) number: u64,
    /// Settings.
    pub(crate) settings: Settings,
    /// Names of values of `TX`.
    pub(crate) names: Names,
    /// Rules in their order.
    pub(crate) rules: Vec<Rule>,
    /// Phases in their order.
    pub(crate) phases: [PhaseRules; PHASES],
    /// Rules that `ctl` removes, by the place of the action.
    pub(crate) removals: Vec<Removal>,
    /// True if a rule reads the whole request as one value.
    pub(crate) reads_full_request: bool,
    /// Matches of each rule.
    counts: Vec<Counter>,
}

/// Matches of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleMatches {
    /// Id of the rule.
    pub id: u64,
    /// Paranoia level of the Core Rule Set that a tag of the rule names; 0 if none does.
    pub paranoia_level: u8,
    /// Matches since the rules were compiled.
    pub count: u64,
}

/// Rules of one phase.
pub(crate) struct PhaseRules {
    /// Numbers of the rules.
    pub(crate) rules: Vec<u32>,
    /// Position at which the phase goes on after `skipAfter` or `skip` of each rule.
    pub(crate) skips: Vec<u32>,
    /// Filter.
    pub(crate) filter: Filter,
}

/// Rules that one `ctl` action refers to.
pub(crate) struct Removal {
    /// Number of the rule with the action, its place in the chain, and the place of the action.
    pub(crate) of: (u32, u32, u32),
    /// The rules, as bits.
    pub(crate) rules: Arc<[u64]>,
}

impl RuleSet {
    /// Compiles texts of rules, which are read in their order.
    ///
    /// # Errors
    /// The first rule that cannot be enforced.
    pub fn compile(sources: &[Source], files: &mut dyn Files) -> Result<Self, RuleError> {
        let mut parsed = Parsed::new();
        for source in sources {
            parsed.read(source, files)?;
        }
        Self::of(parsed)
    }

    /// Set without rules, which all callers share.
    pub(crate) fn empty() -> Arc<Self> {
        static EMPTY: LazyLock<Arc<RuleSet>> = LazyLock::new(|| {
            Arc::new(RuleSet::of(Parsed::new()).expect("nothing can be wrong with no rule"))
        });
        EMPTY.clone()
    }

    fn of(mut parsed: Parsed) -> Result<Self, RuleError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        parsed.apply_updates()?;
        let Parsed { settings, names, mut rules, markers, .. } = parsed;
        rules.iter_mut().for_each(Rule::note_use_of_match);
        let removals = removals(&rules);
        let mut phases = Vec::new();
        for phase in 1..=PHASES as u8 {
            phases.push(PhaseRules::new(phase, &rules, &markers)?);
        }
        let Ok(phases) = <[PhaseRules; PHASES]>::try_from(phases) else {
            unreachable!("there are as many phases")
        };
        let counts = rules.iter().map(|_| Counter::new()).collect();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let reads_full_request = rules.iter().flat_map(Rule::chain).any(Rule::reads_full_request);
        Ok(Self { number, settings, names, rules, phases, removals, reads_full_request, counts })
    }

    /// Settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of rules, chained ones not counted.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Number that no other set of this process has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns true if there are rules for responses.
    pub fn has_response_rules(&self) -> bool {
        self.phases.iter().skip(2).take(2).any(|phase| !phase.rules.is_empty())
    }

    /// Matches of all rules with an id.
    pub fn matches(&self) -> impl Iterator<Item = RuleMatches> + '_ {
        let of = |(rule, count): (&Rule, &Counter)| RuleMatches {
            id: rule.id,
            paranoia_level: rule.paranoia_level,
            count: count.value(),
        };
        self.rules.iter().zip(&self.counts).map(of).filter(|rule| rule.id > 0)
    }

    /// Counts a match.
    pub(crate) fn count(&self, rule: u32) {
        if let Some(count) = self.counts.get(rule as usize) {
            count.add(1);
        }
    }
}

fn removals(rules: &[Rule]) -> Vec<Removal> {
    let mut removals = Vec::new();
    for (number, head) in (0u32..).zip(rules) {
        for (link, rule) in (0u32..).zip(head.chain()) {
            for (place, effect) in (0u32..).zip(&rule.actions.effects) {
                let Effect::Control(Control::RemoveRules(choice) | Control::RemoveTarget(choice, _)) = effect
                else {
                    continue;
                };
                let choice = Choice::new(choice);
                let mut bits = vec![0u64; rules.len().div_ceil(64)];
                for at in
                    rules.iter().enumerate().filter(|(_, rule)| rule.is_chosen(&choice)).map(|(at, _)| at)
                {
                    if let Some(word) = bits.get_mut(at / 64) {
                        *word |= 1 << (at % 64);
                    }
                }
                removals.push(Removal { of: (number, link, place), rules: bits.into() });
            }
        }
    }
    removals
}

impl PhaseRules {
    fn new(phase: u8, rules: &[Rule], markers: &[(Box<str>, usize)]) -> Result<Self, RuleError> {
        let numbers: Vec<u32> =
            (0u32..).zip(rules).filter(|(_, rule)| rule.phase == phase).map(|(number, _)| number).collect();
        let of_phase = || numbers.iter().filter_map(|number| rules.get(*number as usize));
        let mut skips = Vec::with_capacity(numbers.len());
        for (position, (number, rule)) in numbers.iter().zip(of_phase()).enumerate() {
            let next = position as u32 + 1;
            skips.push(match (&rule.actions.skip_after, rule.actions.skip) {
                (Some(marker), _) => {
                    let from =
                        skip_target(marker, *number as usize, rules, markers).ok_or_else(|| RuleError {
                            place: rule.place.clone(),
                            message: format!("there is no marker \"{marker}\" behind the rule"),
                        })?;
                    numbers.iter().take_while(|number| (**number as usize) < from).count() as u32
                }
                (None, Some(count)) => next.saturating_add(count),
                (None, None) => next,
            });
        }
        let filter = Filter::new(of_phase()).map_err(|message| RuleError {
            place: rules
                .first()
                .map_or(crate::seclang::Place { file: "".into(), line: 0 }, |rule| rule.place.clone()),
            message,
        })?;
        Ok(Self { rules: numbers, skips, filter })
    }
}

/// Number of the first rule behind a marker or, with a number as its name, behind the rule with this id.
fn skip_target(name: &str, from: usize, rules: &[Rule], markers: &[(Box<str>, usize)]) -> Option<usize> {
    let marker = markers
        .iter()
        .find(|(candidate, before)| **candidate == *name && *before > from)
        .map(|(_, before)| *before);
    marker.or_else(|| {
        let id: u64 = name.parse().ok()?;
        let at = rules.iter().skip(from + 1).position(|rule| rule.id == id)?;
        Some(from + at + 2)
    })
}
