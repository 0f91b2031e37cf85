//! One rule against its values.

use std::sync::Arc;

use super::values::{Item, Span, TxValue, push_number};
use super::{Matched, Pending, Transaction};
use crate::filter::Memo;
use crate::operator::{Captured, Operator};
use crate::ruleset::RuleSet;
use crate::seclang::rule::Rule;
use crate::seclang::target::{Selector, Target, Use};
use crate::template::{Template, TemplatePart};
use crate::variable::Variable;

/// Value that a rule compares: where it is.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    variable: Variable,
    item: Item,
}

/// Rule that is evaluated.
#[derive(Clone, Copy)]
pub(super) struct Evaluated<'a> {
    pub(super) rule: &'a Rule,
    /// Number of the first rule of its chain.
    pub(super) number: u32,
}

impl Transaction {
    /// Evaluates a rule and those chained to it. `pending` are the values that can match the first one, if they are known.
    pub(super) fn evaluate_chain(
        &mut self,
        rules: &Arc<RuleSet>,
        number: u32,
        head: &Rule,
        pending: Option<&[Pending]>,
        memo: &mut Memo,
    ) -> bool {
        for (link, rule) in head.chain().enumerate() {
            let evaluated = Evaluated { rule, number };
            self.current_rule = (number, link as u32);
            if link == 0 {
                self.matched.clear();
            }
            let values = if link == 0 { pending } else { None };
            if !self.evaluate(evaluated, values, memo) {
                return false;
            }
        }
        self.current_rule = (number, 0);
        let mut message = None;
        let mut data = None;
        if head.actions.log != Some(false) || head.actions.audit == Some(true) {
            let expanded = |template: &Option<Template>| template.as_ref().map(|text| self.expand(text));
            message = expanded(&head.actions.message);
            data = expanded(&head.actions.data);
        }
        self.matched_all(rules, number, head, message, data);
        true
    }

    fn evaluate(&mut self, evaluated: Evaluated<'_>, pending: Option<&[Pending]>, memo: &mut Memo) -> bool {
        if self.trace.is_none() {
            return self.evaluate_rule(evaluated, pending, memo);
        }
        let rules = self.rules.clone();
        let id = rules.rules.get(evaluated.number as usize).map_or(0, |head| head.id);
        self.note_rule(evaluated.rule, id);
        let is_match = self.evaluate_rule(evaluated, pending, memo);
        self.note(format_args!(" Rule returned {}.", u8::from(is_match)));
        is_match
    }

    fn evaluate_rule(
        &mut self,
        evaluated: Evaluated<'_>,
        pending: Option<&[Pending]>,
        memo: &mut Memo,
    ) -> bool {
        let rule = evaluated.rule;
        if rule.targets.included.is_empty() {
            self.effects_of_match(evaluated);
            return true;
        }
        match self.compare_number(rule) {
            Some(false) => return false,
            Some(true) if !rule.uses_match => {
                self.effects_of_match(evaluated);
                return true;
            }
            _ => {}
        }
        let length = self.values.len();
        let candidates = match pending {
            Some(pending) => self.pending_candidates(evaluated, pending),
            None => self.candidates(evaluated),
        };
        let parameter = match rule.test.operator.parameter() {
            Some(Template::Fixed(text)) => Some(text.clone()),
            Some(template) => Some(self.expand(template).into()),
            None => None,
        };
        let parameter = parameter.as_deref().unwrap_or_default();
        let mut matched = Vec::new();
        for candidate in candidates {
            let before = matched.len();
            self.test(rule, candidate, parameter, &mut matched);
            if matched.len() == before && pending.is_some() {
                let value = self.values.get(candidate.item.value);
                if let Some(pending) = pending.and_then(<[Pending]>::first) {
                    memo.forget(rule.phase, value, pending.rule);
                }
            }
        }
        if matched.is_empty() {
            self.values.truncate(length);
            return false;
        }
        for (value, captured) in matched {
            if rule.actions.capture {
                self.capture(captured);
            }
            self.matched.push(value);
            self.effects_of_match(evaluated);
        }
        true
    }

    /// Result of a comparison of a value of `TX`, or of its presence, with a number, without looking for its values; `None` if the rule
    /// compares something else.
    fn compare_number(&self, rule: &Rule) -> Option<bool> {
        let Operator::Number(test, template) = &rule.test.operator else { return None };
        let ([target], [Some(number)]) = (&*rule.targets.included, &*rule.tx_numbers) else { return None };
        let is_plain = rule.actions.transformations.is_empty() && self.removed_targets.is_empty();
        if !is_plain || self.trace.is_some() {
            return None;
        }
        let value = self.values.tx(*number);
        let value = match target.used {
            Use::Count => i64::from(value.is_some()),
            Use::Values => match value {
                Some(value) => value.number(),
                None => return Some(false),
            },
        };
        let parameter = match template {
            Template::Fixed(text) => crate::operator::number(text),
            Template::Parts(parts) => match &**parts {
                [TemplatePart::Tx(number)] => self.values.tx(*number).map_or(0, TxValue::number),
                _ => return None,
            },
        };
        Some(test.matches(value, parameter) != rule.test.is_negated)
    }

    /// Compares one value. What matches is added to `matched`, with what it has captured.
    fn test(
        &mut self,
        rule: &Rule,
        candidate: Candidate,
        parameter: &[u8],
        matched: &mut Vec<(Matched, Captured)>,
    ) {
        let test = &rule.test;
        let chain = &rule.actions.transformations;
        let value = self.values.get(candidate.item.value);
        let first = if rule.actions.multi_match { 0 } else { chain.len() };
        if let Some(trace) = &mut self.trace {
            for (count, transformation) in (1..).zip(chain) {
                let transformed = self.transformer.apply(chain.get(..count).unwrap_or_default(), value);
                trace.transformed(transformation.name, transformed);
            }
        }
        let mut previous = None;
        for count in first..=chain.len() {
            let transformed = self.transformer.apply(chain.get(..count).unwrap_or_default(), value);
            if previous.as_deref() == Some(transformed) {
                continue;
            }
            if let Some(trace) = &mut self.trace {
                trace.target(candidate.variable, self.values.get(candidate.item.name), transformed);
            }
            let mut captured = Captured::new();
            let wanted_values = rule.actions.capture.then_some(&mut captured);
            if test.operator.matches(transformed, parameter, wanted_values) != test.is_negated {
                let value = Matched {
                    variable: candidate.variable,
                    name: self.values.get(candidate.item.name).to_vec(),
                    value: transformed.to_vec(),
                };
                matched.push((value, captured));
            }
            if rule.actions.multi_match {
                previous = Some(transformed.to_vec());
            }
        }
    }

    fn capture(&mut self, captured: Captured) {
        if let Some(trace) = &mut self.trace {
            for (number, text) in captured.iter().enumerate() {
                let text = String::from_utf8_lossy(text);
                trace.line(format_args!("Added match TX.{number}: {text}"));
            }
        }
        let mut captured = captured.into_iter();
        for number in 0..crate::names::CAPTURES {
            let value = captured.next().map(|text| TxValue::Text(text.into_vec()));
            self.values.set_tx(number, value);
        }
    }

    /// Values that meet the condition of the rule, in the order of its targets.
    fn pending_candidates(&self, evaluated: Evaluated<'_>, pending: &[Pending]) -> Vec<Candidate> {
        let rule = evaluated.rule;
        let mut candidates = Vec::new();
        for target in &rule.targets.included {
            for value in pending.iter().filter(|value| value.variable == target.variable as u8) {
                let Some(item) = self.values.list(target.variable).get(value.item as usize) else { continue };
                if self.is_selected(evaluated, target, self.values.get(item.name)) {
                    candidates.push(Candidate { variable: target.variable, item: *item });
                }
            }
        }
        candidates
    }

    /// All values of the targets.
    fn candidates(&mut self, evaluated: Evaluated<'_>) -> Vec<Candidate> {
        let rule = evaluated.rule;
        let mut candidates = Vec::new();
        for (target, number) in rule.targets.included.iter().zip(&rule.tx_numbers) {
            let begin = candidates.len();
            match target.variable {
                Variable::Tx => self.tx_candidates(evaluated, target, *number, &mut candidates),
                variable if variable.is_volatile() => {
                    self.volatile_candidates(evaluated, target, &mut candidates)
                }
                variable => {
                    for item in self.values.list(variable) {
                        if self.is_selected(evaluated, target, self.values.get(item.name)) {
                            candidates.push(Candidate { variable, item: *item });
                        }
                    }
                }
            }
            if target.used == Use::Count {
                let count = candidates.len() - begin;
                candidates.truncate(begin);
                let value = self.values.push_with(|out| push_number(count as i64, out));
                let name = match &target.selector {
                    Selector::Name(name) => self.values.push(name),
                    _ => Span::default(),
                };
                candidates.push(Candidate { variable: target.variable, item: Item { name, value } });
            }
        }
        candidates
    }

    /// Returns true if the target selects a value with this name, and nothing excludes it.
    fn is_selected(&self, evaluated: Evaluated<'_>, target: &Target, name: &[u8]) -> bool {
        let variable = target.variable;
        let excludes = |other: &Target| other.variable == variable && other.selector.selects(name);
        let removed = |(rules, target): &(Arc<[u64]>, Target)| {
            let number = evaluated.number;
            let is_chosen =
                rules.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0);
            is_chosen && excludes(target)
        };
        target.selector.selects(name)
            && !evaluated.rule.targets.excluded.iter().any(excludes)
            && !self.removed_targets.iter().any(removed)
    }

    fn tx_candidates(
        &mut self,
        evaluated: Evaluated<'_>,
        target: &Target,
        number: Option<u16>,
        out: &mut Vec<Candidate>,
    ) {
        if let (Some(number), Selector::Name(name)) = (number, &target.selector) {
            let mut text = Vec::new();
            let Some(value) = self.values.tx(number) else { return };
            value.push(&mut text);
            if self.is_selected(evaluated, target, name) {
                let name = self.values.push(name);
                let value = self.values.push(&text);
                out.push(Candidate { variable: Variable::Tx, item: Item { name, value } });
            }
            return;
        }
        let names = self.rules.names.list();
        let mut selected = Vec::new();
        for (name, value) in self.values.all_tx() {
            let name = match name {
                Ok(number) => names.get(usize::from(number)).map_or(&b""[..], |name| &**name),
                Err(name) => name,
            };
            if self.is_selected(evaluated, target, name) {
                let mut text = Vec::new();
                value.push(&mut text);
                selected.push((name.to_vec(), text));
            }
        }
        for (name, value) in selected {
            let name = self.values.push(&name);
            let value = self.values.push(&value);
            out.push(Candidate { variable: Variable::Tx, item: Item { name, value } });
        }
    }

    fn volatile_candidates(&mut self, evaluated: Evaluated<'_>, target: &Target, out: &mut Vec<Candidate>) {
        let variable = target.variable;
        for (name, value) in self.volatile(variable, evaluated.rule) {
            if self.is_selected(evaluated, target, &name) {
                let name = self.values.push(&name);
                let value = self.values.push(&value);
                out.push(Candidate { variable, item: Item { name, value } });
            }
        }
    }

    /// Names and values of a variable that changes while rules run.
    fn volatile(&self, variable: Variable, rule: &Rule) -> Vec<(Vec<u8>, Vec<u8>)> {
        // A text of a rule may have other values in it, but not texts of the rule.
        let expanded = |template: &Option<Template>| match template {
            Some(template) if !template.variables().any(|variable| variable == Variable::Rule) => {
                self.expand(template)
            }
            _ => Vec::new(),
        };
        let single = |value: Vec<u8>| vec![(Vec::new(), value)];
        match variable {
            Variable::MatchedVar => {
                self.matched.last().map(|last| (Vec::new(), last.value.clone())).into_iter().collect()
            }
            Variable::MatchedVarName => {
                self.matched.last().map(|last| (Vec::new(), last.full_name())).into_iter().collect()
            }
            Variable::MatchedVars => {
                self.matched.iter().map(|value| (value.full_name(), value.value.clone())).collect()
            }
            Variable::MatchedVarsNames => {
                self.matched.iter().map(|value| (value.full_name(), value.full_name())).collect()
            }
            Variable::HighestSeverity => single(self.highest_severity.to_string().into_bytes()),
            // Of no use to rules that follow each other in microseconds.
            Variable::Duration => single(b"0".to_vec()),
            Variable::Rule => {
                let text = |text: Option<String>| text.unwrap_or_default().into_bytes();
                vec![
                    (b"id".to_vec(), rule.id.to_string().into_bytes()),
                    (b"severity".to_vec(), text(rule.actions.severity.map(|severity| severity.to_string()))),
                    (b"msg".to_vec(), expanded(&rule.actions.message)),
                    (b"logdata".to_vec(), expanded(&rule.actions.data)),
                    (b"rev".to_vec(), text(rule.actions.revision.as_deref().map(str::to_owned))),
                ]
            }
            Variable::Env => self.environment.clone(),
            _ => {
                let key = self.key(variable);
                key.map(|key| self.store.values(variable, &key, self.time)).unwrap_or_default()
            }
        }
    }

    /// The text of a template now.
    pub(super) fn expand(&self, template: &Template) -> Vec<u8> {
        let mut out = Vec::new();
        match template {
            Template::Fixed(text) => out.extend_from_slice(text),
            Template::Parts(parts) => {
                for part in parts {
                    self.expand_part(part, &mut out);
                }
            }
        }
        out
    }

    fn expand_part(&self, part: &TemplatePart, out: &mut Vec<u8>) {
        match part {
            TemplatePart::Text(text) => out.extend_from_slice(text),
            TemplatePart::Tx(number) => {
                if let Some(value) = self.values.tx(*number) {
                    value.push(out);
                }
            }
            TemplatePart::Value(target) => match target.variable {
                Variable::MatchedVar => {
                    out.extend(self.matched.last().map(|last| &*last.value).unwrap_or_default())
                }
                Variable::MatchedVarName => {
                    out.extend(self.matched.last().map(Matched::full_name).unwrap_or_default())
                }
                Variable::Tx => {
                    // Values with fixed names are parts of their own.
                    let names = self.rules.names.list();
                    let mut values = self.values.all_tx().map(|(name, value)| match name {
                        Ok(number) => {
                            (names.get(usize::from(number)).map_or(&b""[..], |name| &**name), value)
                        }
                        Err(name) => (name, value),
                    });
                    if let Some((_, value)) = values.find(|(name, _)| target.selector.selects(name)) {
                        value.push(out);
                    }
                }
                variable if variable.is_volatile() => {
                    let (number, link) = self.current_rule;
                    let head = self.rules.rules.get(number as usize);
                    let Some(rule) = head.and_then(|head| head.chain().nth(link as usize)) else { return };
                    let values = self.volatile(variable, rule);
                    let entry = values.into_iter().find(|(name, _)| target.selector.selects(name));
                    out.extend(entry.map(|(_, value)| value).unwrap_or_default());
                }
                variable => {
                    let selected = |item: &&Item| target.selector.selects(self.values.get(item.name));
                    let item = self.values.list(variable).iter().find(selected);
                    out.extend(item.map(|item| self.values.get(item.value)).unwrap_or_default());
                }
            },
        }
    }
}

impl Matched {
    /// `ARGS:name`
    pub(super) fn full_name(&self) -> Vec<u8> {
        let mut full = self.variable.name().as_bytes().to_vec();
        if !self.name.is_empty() {
            full.push(b':');
            full.extend_from_slice(&self.name);
        }
        full
    }
}
