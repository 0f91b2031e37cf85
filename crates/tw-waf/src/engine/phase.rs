//! Rules of a phase, in their order.

use std::sync::Arc;

use super::{Allowed, Pending, Phase, Transaction, Verdict};
use crate::filter::Memo;
use crate::ruleset::RuleSet;
use crate::seclang::settings::Mode;
use crate::variable::{VARIABLE_COUNT, Variable};

impl Transaction {
    /// Runs the rules of a phase. Returns the decision if there is one; the logging phase makes none.
    pub fn run(&mut self, phase: Phase, memo: &mut Memo) -> Option<Verdict> {
        if self.mode == Mode::Off || self.is_skipped(phase) {
            return None;
        }
        let rules = self.rules.clone();
        let number = phase as u8;
        let of_phase = rules.phases.get(usize::from(number) - 1)?;
        if of_phase.rules.is_empty() {
            return None;
        }
        if self.allowed == Allowed::Phase {
            self.allowed = Allowed::Nothing;
        }
        self.find_pending(&rules, number, memo);
        let mut pending = std::mem::take(&mut self.pending);
        self.walk(&rules, phase, &mut pending, memo);
        pending.clear();
        self.pending = pending;
        let decided = self.verdict.clone();
        decided.filter(|verdict| verdict.phase == number && phase != Phase::Logging)
    }

    fn is_skipped(&self, phase: Phase) -> bool {
        match self.allowed {
            Allowed::Nothing | Allowed::Phase => false,
            Allowed::Request => phase <= Phase::RequestBody,
            Allowed::All => phase != Phase::Logging,
        }
    }

    /// Finds the values that meet the conditions of rules.
    fn find_pending(&mut self, rules: &Arc<RuleSet>, phase: u8, memo: &mut Memo) {
        let Some(of_phase) = rules.phases.get(usize::from(phase) - 1) else { return };
        let filter = &of_phase.filter;
        let wanted = filter.all_variables();
        self.pending.clear();
        for variable in (0..VARIABLE_COUNT as u8).filter(|variable| wanted & 1 << variable != 0) {
            let Some(kind) = Variable::at(variable) else { continue };
            for (at, item) in (0u32..).zip(self.values.list(kind)) {
                let value = self.values.get(item.value);
                let found: &[u32] = match memo.get(phase, value) {
                    Some(known) => known,
                    None => {
                        self.found.clear();
                        filter.find(value, &mut self.scratch, &mut self.found);
                        memo.put(phase, value, &self.found);
                        &self.found
                    }
                };
                let applies = |rule: &&u32| filter.variables(**rule as usize) & kind.bit() != 0;
                let pending =
                    found.iter().filter(applies).map(|rule| Pending { rule: *rule, variable, item: at });
                self.pending.extend(pending);
            }
        }
        self.pending.sort_unstable();
    }

    fn walk(&mut self, rules: &Arc<RuleSet>, phase: Phase, pending: &mut [Pending], memo: &mut Memo) {
        let Some(of_phase) = rules.phases.get(phase as usize - 1) else { return };
        let mut rest = &*pending;
        let mut position = 0;
        while let Some(number) = of_phase.rules.get(position) {
            let here = position as u32;
            let before = rest.iter().take_while(|known| known.rule < here).count();
            rest = rest.get(before..).unwrap_or_default();
            position += 1;
            let values = if of_phase.filter.variables(position - 1) == 0 {
                None
            } else {
                let count = rest.iter().take_while(|known| known.rule == here).count();
                if count == 0 {
                    continue;
                }
                rest.get(..count)
            };
            if self.is_removed(*number) {
                continue;
            }
            let Some(rule) = rules.rules.get(*number as usize) else { continue };
            if !self.evaluate_chain(rules, *number, rule, values, memo) {
                continue;
            }
            rules.count(*number);
            position = of_phase.skips.get(position - 1).map_or(position, |at| *at as usize);
            let is_decided = self.verdict.is_some() && phase != Phase::Logging;
            if is_decided
                || self.mode == Mode::Off
                || self.allowed == Allowed::Phase
                || self.is_skipped(phase)
            {
                break;
            }
        }
    }

    /// Returns true if `ctl` has removed the rule.
    pub(super) fn is_removed(&self, number: u32) -> bool {
        self.removed.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}
