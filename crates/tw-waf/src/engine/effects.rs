//! Effects of a match.

use std::sync::Arc;

use super::evaluate::Evaluated;
use super::message::{Message, MessageTexts};
use super::values::TxValue;
use super::{Allowed, COMPUTED_MAX, MESSAGES_MAX, Transaction, Verdict, VerdictAction};
use crate::operator::number;
use crate::ruleset::RuleSet;
use crate::seclang::action::{AllowScope, Change, Control, Disruptive, Effect, VarName};
use crate::seclang::rule::Rule;
use crate::template::Template;
use crate::variable::Variable;

impl Transaction {
    /// Changes values, once for each value that a rule has matched.
    pub(super) fn effects_of_match(&mut self, evaluated: Evaluated<'_>) {
        for effect in &evaluated.rule.actions.effects {
            match effect {
                Effect::SetVar(Variable::Tx, name, change) => self.set_tx(name, change),
                Effect::SetVar(variable, VarName::Computed(name), change) => {
                    let name = self.expand(name);
                    self.set_kept(*variable, &name, change);
                }
                Effect::ExpireVar(variable, name, seconds) => {
                    let name = self.expand(name);
                    let seconds = u64::try_from(number(&self.expand(seconds))).unwrap_or(0);
                    if let Some(key) = self.key(*variable) {
                        self.store.expire(*variable, &key, &name, self.time, seconds);
                    }
                }
                Effect::SetEnv(name, value) => {
                    let (name, value) = (self.expand(name), self.expand(value));
                    self.set_environment(name, value);
                }
                Effect::SetVar(..) | Effect::InitCollection(..) | Effect::Control(_) => {}
            }
        }
    }

    fn set_environment(&mut self, name: Vec<u8>, value: Vec<u8>) {
        if self.trace.is_some() {
            let [shown_name, shown_value] =
                [&name, &value].map(|text| String::from_utf8_lossy(text).into_owned());
            self.note(format_args!("Setting environment variable: {shown_name} to {shown_value}"));
        }
        if let Some((_, candidate)) = self.environment.iter_mut().find(|(candidate, _)| *candidate == name) {
            *candidate = value;
        } else if self.environment.len() < COMPUTED_MAX {
            self.environment.push((name, value));
        }
    }

    fn set_tx(&mut self, name: &VarName, change: &Change) {
        let (number, computed) = match name {
            VarName::Tx(number) => (Some(*number), Vec::new()),
            VarName::Computed(name) => {
                let name = self.expand(name);
                (self.rules.names.find(&name.to_ascii_lowercase()), name)
            }
        };
        let old = match number {
            Some(number) => self.values.tx(number),
            None => self.values.computed(&computed),
        };
        let old = old.map_or(0, TxValue::number);
        let value = match change {
            Change::Unset => None,
            Change::Set(Template::Fixed(text)) => Some(TxValue::Fixed(text.clone())),
            Change::Set(template) => Some(TxValue::Text(self.expand(template))),
            Change::Add(template) => Some(TxValue::Number(old.saturating_add(self.number_of(template)))),
            Change::Subtract(template) => Some(TxValue::Number(old.saturating_sub(self.number_of(template)))),
        };
        if self.trace.is_some() {
            self.note_tx(number, &computed, value.as_ref());
        }
        match number {
            Some(number) => self.values.set_tx(number, value),
            None => self.values.set_computed(&computed, value),
        }
    }

    fn note_tx(&mut self, number: Option<u16>, computed: &[u8], value: Option<&TxValue>) {
        let rules = self.rules.clone();
        let name = number.and_then(|number| rules.names.list().get(usize::from(number)));
        let mut text = Vec::new();
        if let Some(value) = value {
            value.push(&mut text);
        }
        self.note_stored("TX", name.map_or(computed, |name| name), value.map(|_| &*text));
    }

    fn number_of(&self, template: &Template) -> i64 {
        match template {
            Template::Fixed(text) => number(text),
            template => number(&self.expand(template)),
        }
    }

    pub(super) fn key(&self, variable: Variable) -> Option<Vec<u8>> {
        let candidate = self
            .collections
            .iter()
            .find(|(known_variable, _)| *known_variable == variable)
            .map(|(_, key)| key.clone());
        // There is one global collection, whether it was initialized or not.
        candidate.or_else(|| (variable == Variable::Global).then(Vec::new))
    }

    fn set_kept(&mut self, variable: Variable, name: &[u8], change: &Change) {
        let Some(key) = self.key(variable) else { return };
        let lifetime = self.rules.settings.collection_timeout;
        match change {
            Change::Set(template) => {
                let value = self.expand(template);
                self.store.set(variable, &key, name, &value, self.time, lifetime);
            }
            Change::Add(template) => {
                let difference = self.number_of(template);
                self.store.add(variable, &key, name, difference, self.time, lifetime);
            }
            Change::Subtract(template) => {
                let difference = self.number_of(template).saturating_neg();
                self.store.add(variable, &key, name, difference, self.time, lifetime);
            }
            Change::Unset => self.store.remove(variable, &key, name),
        }
        if self.trace.is_some() {
            let values = self.store.values(variable, &key, self.time);
            let value = values
                .into_iter()
                .find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
                .map(|(_, value)| value);
            self.note_stored(variable.name(), name, value.as_deref());
        }
    }

    /// Actions of a rule whose whole chain has matched.
    pub(super) fn matched_all(
        &mut self,
        rules: &Arc<RuleSet>,
        number: u32,
        head: &Rule,
        message: Option<Vec<u8>>,
        data: Option<Vec<u8>>,
    ) {
        for (link, rule) in (0u32..).zip(head.chain()) {
            for (place, effect) in (0u32..).zip(&rule.actions.effects) {
                match effect {
                    Effect::InitCollection(variable, key) => {
                        let key = self.expand(key);
                        self.collections.retain(|(known_variable, _)| known_variable != variable);
                        match variable {
                            Variable::Session => drop(self.values.set(Variable::SessionId, &key)),
                            Variable::User => drop(self.values.set(Variable::UserId, &key)),
                            _ => {}
                        }
                        self.collections.push((*variable, key));
                    }
                    Effect::Control(control) => self.control(rules, control, (number, link, place)),
                    Effect::SetVar(..) | Effect::ExpireVar(..) | Effect::SetEnv(..) => {}
                }
            }
        }
        let actions = &head.actions;
        if let Some(severity) = actions.severity {
            self.highest_severity = self.highest_severity.min(severity);
        }
        if self.trace.is_some() {
            if let Some(message) = &message {
                let text = String::from_utf8_lossy(message).into_owned();
                self.note(format_args!("Saving msg: {text}"));
            }
            for tag in &head.actions.tags {
                self.note(format_args!("Rule tag: {tag}"));
            }
            if head.actions.log == Some(true) {
                self.note(format_args!("Running action: log"));
            }
        }
        let action = self.decide(head);
        if let (Some(disruptive), true) = (&head.actions.disruptive, self.trace.is_some()) {
            let name = disruptive.word();
            match self.is_enforcing() {
                true => {
                    self.note(format_args!("Running (disruptive)     action: {name}."));
                    self.note(format_args!(" Running action {name}"));
                }
                false => self.note(format_args!(
                    "Not running any disruptive action: {name}. SecRuleEngine is not On."
                )),
            }
        }
        if actions.audit != Some(false) {
            self.is_relevant = true;
        }
        let is_logged = actions.log != Some(false);
        if is_logged || actions.audit == Some(true) {
            if self.messages.len() < MESSAGES_MAX {
                let last = head.chain().last().unwrap_or(head);
                let parameter = match last.test.operator.parameter() {
                    Some(template @ Template::Parts(_)) => Some(self.expand(template)),
                    _ => None,
                };
                let texts = MessageTexts { message, data, parameter, is_logged };
                let message = Message::new(head, self.matched.last(), texts, action.as_ref());
                self.messages.push(message);
            } else {
                self.unlogged += 1;
            }
        }
        if let Some(action) = action
            && self.verdict.is_none()
        {
            self.verdict = Some(Verdict { rule: head.id, phase: head.phase, action });
        }
    }

    /// Consequence of a match, if the rule decides.
    fn decide(&mut self, head: &Rule) -> Option<VerdictAction> {
        if !self.is_enforcing() || head.phase == 5 {
            return None;
        }
        // A chained rule may have a status of its own.
        let status = head.chain().filter_map(|rule| rule.actions.status).last();
        match head.actions.disruptive.as_ref()? {
            Disruptive::Pass | Disruptive::Block => None,
            Disruptive::Deny => Some(VerdictAction::Deny(status.unwrap_or(403))),
            Disruptive::Drop => Some(VerdictAction::Drop),
            Disruptive::Redirect(location) => {
                let status = status.filter(|status| (300..400).contains(status)).unwrap_or(302);
                Some(VerdictAction::Redirect(status, self.expand(location)))
            }
            Disruptive::Allow(scope) => {
                self.note(format_args!(
                    "Dropping the evaluation of upcoming rules in favor of an `allow' action."
                ));
                self.allowed = match scope {
                    AllowScope::All => Allowed::All,
                    AllowScope::Phase => Allowed::Phase,
                    AllowScope::Request => Allowed::Request,
                };
                None
            }
        }
    }

    fn control(&mut self, rules: &Arc<RuleSet>, control: &Control, of: (u32, u32, u32)) {
        let removal =
            || rules.removals.iter().find(|removal| removal.of == of).map(|removal| removal.rules.clone());
        match control {
            Control::RuleEngine(mode) => {
                self.note(format_args!(
                    "Setting SecRuleEngine to {} as requested by a ctl:ruleEngine action",
                    mode.state()
                ));
                self.mode = *mode;
            }
            Control::AuditEngine(engine) => self.audit_engine = *engine,
            Control::RequestBodyAccess(access) => {
                let (word, before) = if *access { ("enabled", "disabled") } else { ("disabled", "enabled") };
                self.note(format_args!(
                    "Request body processing is {before}, but {word} to this transaction due to ctl:requestBodyAccess action"
                ));
                self.request_body_access = *access;
            }
            Control::ResponseBodyAccess(access) => self.response_body_access = *access,
            Control::RequestBodyProcessor(processor) => self.choose_processor(*processor),
            Control::ForceRequestBodyVariable(forced) => self.forces_request_body = *forced,
            Control::RemoveRules(_) => {
                let Some(bits) = removal() else { return };
                self.removed.resize(bits.len(), 0);
                self.removed.iter_mut().zip(&*bits).for_each(|(all, new)| *all |= new);
            }
            Control::RemoveTarget(_, target) => {
                if let Some(bits) = removal() {
                    self.removed_targets.push((bits, target.clone()));
                }
            }
            Control::Nothing => {}
        }
    }
}
