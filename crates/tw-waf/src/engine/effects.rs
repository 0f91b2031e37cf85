//! Effects of a match.

use std::sync::Arc;

use super::evaluate::Evaluated;
use super::message::Message;
use super::values::TxValue;
use super::{Allowed, MESSAGES_MAX, Transaction, Verdict, VerdictAction};
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
                    let name = self.expand(name).to_ascii_lowercase();
                    self.set_kept(*variable, &name, change);
                }
                Effect::ExpireVar(variable, name, seconds) => {
                    let name = self.expand(name).to_ascii_lowercase();
                    let seconds = u64::try_from(number(&self.expand(seconds))).unwrap_or(0);
                    if let Some(key) = self.key(*variable) {
                        self.store.expire(*variable, &key, &name, self.time, seconds);
                    }
                }
                Effect::SetVar(..) | Effect::InitCollection(..) | Effect::Control(_) => {}
            }
        }
    }

    fn set_tx(&mut self, name: &VarName, change: &Change) {
        let (number, computed) = match name {
            VarName::Tx(number) => (Some(*number), Vec::new()),
            VarName::Computed(name) => {
                let name = self.expand(name).to_ascii_lowercase();
                (self.rules.names.find(&name), name)
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
        match number {
            Some(number) => self.values.set_tx(number, value),
            None => self.values.set_computed(&computed, value),
        }
    }

    fn number_of(&self, template: &Template) -> i64 {
        match template {
            Template::Fixed(text) => number(text),
            template => number(&self.expand(template)),
        }
    }

    fn key(&self, variable: Variable) -> Option<Vec<u8>> {
        self.collections.iter().find(|(known, _)| *known == variable).map(|(_, key)| key.clone())
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
                        self.collections.retain(|(known, _)| known != variable);
                        self.collections.push((*variable, key));
                    }
                    Effect::Control(control) => self.control(rules, control, (number, link, place)),
                    Effect::SetVar(..) | Effect::ExpireVar(..) => {}
                }
            }
        }
        let actions = &head.actions;
        if let Some(severity) = actions.severity {
            self.highest_severity = self.highest_severity.min(severity);
        }
        let action = self.decide(head);
        if actions.audit != Some(false) {
            self.is_relevant = true;
        }
        if actions.log != Some(false) {
            if self.messages.len() < MESSAGES_MAX {
                let message = Message::new(head, self.matched.last(), message, data, action.as_ref());
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
        let status = head.actions.status;
        match head.actions.disruptive.as_ref()? {
            Disruptive::Pass | Disruptive::Block => None,
            Disruptive::Deny => Some(VerdictAction::Deny(status.unwrap_or(403))),
            Disruptive::Drop => Some(VerdictAction::Drop),
            Disruptive::Redirect(location) => {
                let status = status.filter(|status| (300..400).contains(status)).unwrap_or(302);
                Some(VerdictAction::Redirect(status, self.expand(location)))
            }
            Disruptive::Allow(scope) => {
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
            Control::RuleEngine(mode) => self.mode = *mode,
            Control::AuditEngine(engine) => self.audit_engine = *engine,
            Control::RequestBodyAccess(access) => self.request_body_access = *access,
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
