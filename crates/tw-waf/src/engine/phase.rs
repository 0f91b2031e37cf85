//! Rules of a phase, in their order.
//!
//! ```text
//! find ── every value has met its conditions ──→ walk ── the last rule has run ──→ done
//!   └──── the time is over ──→ interrupted ←──── the time is over ────┘
//! ```
//! An interrupted phase continues where it was, also on another thread.

use std::sync::Arc;

use super::{Allowed, Pending, Phase, Transaction, Verdict};
use crate::filter::Memo;
use crate::ruleset::RuleSet;
use crate::seclang::rule::Rule;
use crate::seclang::settings::Mode;
use crate::variable::{VARIABLE_COUNT, Variable};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a value of a request, new to the thread, whose conditions the firewall checks before it looks at the clock.
    ///
    /// The Core Rule Set takes 0.1 µs for each byte of ordinary text, and up to 0.9 µs where each byte looks like an attack.
    const STEP_VALUE_MAX: usize = 256, bytes, "the phase continues on a thread of the pool";
    /// Bytes of values that one rule compares before the firewall looks at the clock.
    const STEP_RULE_MAX: usize = 8 << 10, bytes, "the phase continues on a thread of the pool";
}

/// Rules that have no values to compare and run between two looks at the clock. Each takes some 0.1 µs.
const FREE_RULES: u8 = 16;

/// State of a phase after [`Transaction::run_within`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PhaseProgress {
    /// All rules have run; the decision if there is one.
    Done(Option<Verdict>),
    /// The time was over. The phase continues when it is run again.
    Interrupted,
}

/// Next step of an interrupted phase.
#[derive(Debug, Clone, Copy)]
pub(super) enum NextStep {
    /// Conditions of a value.
    Find { variable: u8, item: usize },
    /// Rule at a position of the phase.
    Walk { position: usize },
}

/// Time that a thread has for rules.
struct TimeLimit<'a> {
    /// `None` if it has all time.
    is_over: Option<&'a mut dyn FnMut() -> bool>,
    /// Rules without values since the clock was looked at.
    free_rules: u8,
}

impl TimeLimit<'_> {
    fn is_over(&mut self) -> bool {
        self.free_rules = 0;
        self.is_over.as_mut().is_some_and(|is_over| is_over())
    }

    fn is_over_after_free_rule(&mut self) -> bool {
        self.free_rules += 1;
        self.free_rules >= FREE_RULES && self.is_over()
    }

    fn is_limited(&self) -> bool {
        self.is_over.is_some()
    }
}

impl Transaction {
    /// Runs the rules of a phase, or those that an interrupted phase has left. Returns the decision if there is one; the logging
    /// phase makes none.
    pub fn run(&mut self, phase: Phase, memo: &mut Memo) -> Option<Verdict> {
        match self.run_limited(phase, memo, TimeLimit { is_over: None, free_rules: 0 }) {
            PhaseProgress::Done(verdict) => verdict,
            PhaseProgress::Interrupted => None,
        }
    }

    /// Runs the rules of a phase until `is_over` returns true, which is asked between steps that take less than half a millisecond.
    pub fn run_within(
        &mut self,
        phase: Phase,
        memo: &mut Memo,
        is_over: &mut dyn FnMut() -> bool,
    ) -> PhaseProgress {
        self.run_limited(phase, memo, TimeLimit { is_over: Some(is_over), free_rules: 0 })
    }

    fn run_limited(&mut self, phase: Phase, memo: &mut Memo, mut limit: TimeLimit<'_>) -> PhaseProgress {
        if self.mode == Mode::Off || self.is_skipped(phase) {
            match self.mode {
                Mode::Off => self.note(format_args!("Rule engine disabled, returning...")),
                _ => self.note(format_args!(
                    "Skipping all rules evaluation on this phase as request through the utilization of an `allow' action."
                )),
            }
            return PhaseProgress::Done(None);
        }
        let rules = self.rules.clone();
        let number = phase as u8;
        let rule_count = rules.phases.get(usize::from(number) - 1).map_or(0, |of_phase| of_phase.rules.len());
        if rule_count == 0 {
            return PhaseProgress::Done(None);
        }
        let next = self.next_step.take().unwrap_or_else(|| {
            if self.allowed == Allowed::Phase {
                self.allowed = Allowed::Nothing;
            }
            self.pending.clear();
            self.note(format_args!("Starting phase {number} with {rule_count} rule(s)."));
            NextStep::Find { variable: 0, item: 0 }
        });
        let position = match next {
            NextStep::Walk { position } => Ok(position),
            NextStep::Find { .. } if self.trace.is_some() => Ok(0),
            NextStep::Find { variable, item } => {
                self.find_pending(&rules, number, memo, (variable, item), &mut limit).map(|()| 0)
            }
        };
        let pending = std::mem::take(&mut self.pending);
        let result =
            position.and_then(|position| self.walk(&rules, phase, (&pending, position), memo, &mut limit));
        self.pending = pending;
        if let Err(next) = result {
            self.next_step = Some(next);
            return PhaseProgress::Interrupted;
        }
        self.pending.clear();
        let decided = self.verdict.clone();
        PhaseProgress::Done(decided.filter(|verdict| verdict.phase == number && phase != Phase::Logging))
    }

    fn is_skipped(&self, phase: Phase) -> bool {
        match self.allowed {
            Allowed::Nothing | Allowed::Phase => false,
            Allowed::Request => phase <= Phase::RequestBody,
            Allowed::All => phase != Phase::Logging,
        }
    }

    /// Finds the values that meet the conditions of rules, from one of them on. The error is the next one, if the time is over.
    fn find_pending(
        &mut self,
        rules: &Arc<RuleSet>,
        phase: u8,
        memo: &mut Memo,
        (first, mut first_item): (u8, usize),
        limit: &mut TimeLimit<'_>,
    ) -> Result<(), NextStep> {
        let Some(of_phase) = rules.phases.get(usize::from(phase) - 1) else { return Ok(()) };
        let filter = &of_phase.filter;
        let wanted_number = filter.all_variables();
        for variable in (first..VARIABLE_COUNT as u8).filter(|variable| wanted_number & 1 << variable != 0) {
            let begin = if variable == first { std::mem::take(&mut first_item) } else { 0 };
            let Some(kind) = Variable::at(variable) else { continue };
            for (at, item) in (0u32..).zip(self.values.list(kind)).skip(begin) {
                let value = self.values.get(item.value);
                let remembered = memo.get(phase, value);
                let is_new = remembered.is_none();
                let results: &[u32] = match remembered {
                    Some(known_values) => known_values,
                    None => {
                        if limit.is_limited() && value.len() > STEP_VALUE_MAX {
                            return Err(NextStep::Find { variable, item: at as usize });
                        }
                        self.rule_numbers.clear();
                        filter.find(value, &mut self.scratch, &mut self.rule_numbers);
                        memo.put(phase, value, &self.rule_numbers);
                        &self.rule_numbers
                    }
                };
                let applies = |rule: &&u32| filter.variables(**rule as usize) & kind.bit() != 0;
                let pending =
                    results.iter().filter(applies).map(|rule| Pending { rule: *rule, variable, item: at });
                self.pending.extend(pending);
                if is_new && limit.is_over() {
                    return Err(NextStep::Find { variable, item: at as usize + 1 });
                }
            }
        }
        self.pending.sort_unstable();
        Ok(())
    }

    /// Runs the rules of a phase from one of them on. The error is the next one, if the time is over.
    fn walk(
        &mut self,
        rules: &Arc<RuleSet>,
        phase: Phase,
        (pending, begin): (&[Pending], usize),
        memo: &mut Memo,
        limit: &mut TimeLimit<'_>,
    ) -> Result<(), NextStep> {
        let Some(of_phase) = rules.phases.get(phase as usize - 1) else { return Ok(()) };
        let mut rest = pending;
        let mut position = begin;
        while let Some(number) = of_phase.rules.get(position) {
            let here = position as u32;
            let before = rest.iter().take_while(|known_pending| known_pending.rule < here).count();
            rest = rest.get(before..).unwrap_or_default();
            let is_filtered = of_phase.filter.variables(position) != 0 && self.trace.is_none();
            let count = rest.iter().take_while(|known_pending| known_pending.rule == here).count();
            let values = rest.get(..count).filter(|_| is_filtered);
            if is_filtered && count == 0 {
                position += 1;
                continue;
            }
            let Some(rule) = rules.rules.get(*number as usize) else { break };
            if self.is_removed(*number) {
                self.note(format_args!("Rule id: {} was skipped due to a ruleRemove… action", rule.id));
                position += 1;
                continue;
            }
            if limit.is_limited() && self.pending_size(values) > STEP_RULE_MAX {
                return Err(NextStep::Walk { position });
            }
            let is_match = self.evaluate_chain(rules, *number, rule, values, memo);
            position += 1;
            if is_match {
                rules.count(*number);
                let next = of_phase.skips.get(position - 1).map_or(position, |at| *at as usize);
                if self.trace.is_some() {
                    self.note_skipped(rules, of_phase.rules.get(position..next).unwrap_or_default(), rule);
                }
                position = next;
                let is_decided = self.verdict.is_some() && phase != Phase::Logging;
                let is_at_end = self.mode == Mode::Off || self.allowed == Allowed::Phase;
                if is_decided || is_at_end || self.is_skipped(phase) {
                    if self.allowed != Allowed::Nothing && self.trace.is_some() {
                        self.note_allowed(rules, of_phase.rules.get(position..).unwrap_or_default());
                    }
                    break;
                }
            }
            let is_over = match values {
                Some(_) => limit.is_over(),
                None => limit.is_over_after_free_rule(),
            };
            if is_over {
                return Err(NextStep::Walk { position });
            }
        }
        Ok(())
    }

    /// Notes the rules that `allow` skips.
    fn note_allowed(&mut self, rules: &RuleSet, skipped: &[u32]) {
        self.note(format_args!("Rules are skipped through the utilization of an `allow' action."));
        for rule in skipped.iter().filter_map(|number| rules.rules.get(*number as usize)) {
            self.note(format_args!("Skipped rule id '{}' as `allow' was executed.", rule.id));
        }
    }

    /// Notes the rules that a rule has skipped.
    fn note_skipped(&mut self, rules: &RuleSet, skipped: &[u32], by: &Rule) {
        let cause = match &by.actions.skip_after {
            Some(marker) => format!("a SecMarker: {marker}"),
            None => "a `skip' action.".to_owned(),
        };
        for rule in skipped.iter().filter_map(|number| rules.rules.get(*number as usize)) {
            self.note(format_args!("Skipped rule id '{}' due to {cause}", rule.id));
        }
    }

    /// Bytes of values that a rule compares.
    fn pending_size(&self, values: Option<&[Pending]>) -> usize {
        let size = |value: &Pending| {
            let item =
                Variable::at(value.variable).and_then(|kind| self.values.list(kind).get(value.item as usize));
            item.map_or(0, |item| self.values.get(item.value).len())
        };
        values.into_iter().flatten().map(size).sum()
    }

    /// Returns true if `ctl` has removed the rule.
    pub(super) fn is_removed(&self, number: u32) -> bool {
        self.removed.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}
