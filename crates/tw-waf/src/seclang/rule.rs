//! Rules.

use regex_automata::meta::Regex;

use super::Place;
use super::action::{Actions, Effect, RuleChoice};
use super::pattern;
use super::target::{Selector, Targets};
use crate::names::Names;
use crate::operator::Test;
use crate::variable::Variable;

/// Rule, with those that are chained to it.
pub(crate) struct Rule {
    /// Position.
    pub(crate) place: Place,
    /// Id; 0 of a chained rule.
    pub(crate) id: u64,
    /// Phase, from 1 to 5.
    pub(crate) phase: u8,
    /// Variables; none of `SecAction`.
    pub(crate) targets: Targets,
    /// Numbers of the targets that are values of `TX`, in the order of the targets.
    pub(crate) tx_numbers: Vec<Option<u16>>,
    /// Operator.
    pub(crate) test: Test,
    /// Actions.
    pub(crate) actions: Actions,
    /// Paranoia level that a tag names; 0 if none does.
    pub(crate) paranoia_level: u8,
    /// True if something depends on the value that has matched, and not only on the match.
    pub(crate) uses_match: bool,
    /// Next rule of the chain.
    pub(crate) chained: Option<Box<Self>>,
}

impl Rule {
    /// Last rule of the chain.
    pub(crate) fn last(&mut self) -> &mut Self {
        match self.chained {
            Some(ref mut chained) => chained.last(),
            None => self,
        }
    }

    /// All rules of the chain.
    pub(crate) fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |rule| rule.chained.as_deref())
    }

    /// Notes if something depends on the value that has matched.
    pub(crate) fn note_use_of_match(&mut self) {
        let effects = self.actions.effects.iter().any(Effect::uses_match);
        self.uses_match =
            effects || self.chained.is_some() || self.actions.capture || self.actions.log != Some(false);
        if let Some(chained) = &mut self.chained {
            chained.note_use_of_match();
            // A log line shows the value of the last rule.
            chained.uses_match = true;
        }
    }

    /// Looks up the names of its targets again, after they have changed.
    pub(crate) fn number_targets(&mut self, names: &mut Names) {
        let numbers = self.targets.included.iter().map(|target| match &target.selector {
            Selector::Name(name) if target.variable == Variable::Tx => names.number(name),
            _ => None,
        });
        self.tx_numbers = numbers.collect();
    }

    /// Returns true if it reads the whole request as one value, as a target or in a text.
    pub(crate) fn reads_full_request(&self) -> bool {
        let is_full =
            |variable: Variable| matches!(variable, Variable::FullRequest | Variable::FullRequestLength);
        let actions = &self.actions;
        let texts = actions.message.iter().chain(&actions.data).chain(self.test.operator.parameter());
        self.targets.included.iter().any(|target| is_full(target.variable))
            || texts.flat_map(|text| text.variables()).any(is_full)
    }

    /// Returns true if the rule is chosen.
    pub(crate) fn is_chosen(&self, choice: &Choice) -> bool {
        match choice {
            Choice::Ids(ranges) => ranges.iter().any(|(begin, end)| (*begin..=*end).contains(&self.id)),
            Choice::Tag(text) => self.actions.tags.iter().any(|tag| text.matches(tag)),
            Choice::Message(text) => self.message_text().is_some_and(|message| text.matches(&message)),
        }
    }

    fn message_text(&self) -> Option<String> {
        let message = self.actions.message.as_ref()?;
        message.fixed().map(|text| String::from_utf8_lossy(text).into_owned())
    }
}

/// Choice of rules, compiled.
pub(crate) enum Choice {
    Ids(Vec<(u64, u64)>),
    Tag(ChosenText),
    Message(ChosenText),
}

/// Text of a tag or message, or a regular expression for it.
pub(crate) struct ChosenText {
    text: Box<str>,
    regex: Option<Regex>,
}

impl ChosenText {
    fn new(text: &str) -> Self {
        Self { text: text.into(), regex: pattern::compile(text.as_bytes()).ok().map(|(regex, _)| regex) }
    }

    fn matches(&self, text: &str) -> bool {
        *self.text == *text || self.regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

impl Choice {
    /// Compiles a choice.
    pub(crate) fn new(choice: &RuleChoice) -> Self {
        match choice {
            RuleChoice::Ids(ids) => Self::Ids(ids.clone()),
            RuleChoice::Tag(text) => Self::Tag(ChosenText::new(text)),
            RuleChoice::Message(text) => Self::Message(ChosenText::new(text)),
        }
    }
}
