//! All directives of a text, in their order.

use std::collections::HashMap;
use std::sync::Arc;

use super::action::{Actions, Disruptive};
use super::rule::{Choice, Rule};
use super::settings::{self, Settings};
use super::target::Targets;
use super::{Files, Place, RuleError, Source, lines};
use crate::names::Names;
use crate::operator::Test;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Files of rules that include each other.
    const INCLUDES_MAX: usize = 16, count, "the configuration is refused";
    /// Rules of one set, chained ones not counted.
    const RULES_MAX: usize = 16_384, count, "the configuration is refused";
}

/// Rules and settings, as far as they are read.
pub(crate) struct Parsed {
    /// Settings.
    pub(crate) settings: Settings,
    /// Names of values of `TX`.
    pub(crate) names: Names,
    /// Rules in their order.
    pub(crate) rules: Vec<Rule>,
    /// Names of markers, and the number of rules before each.
    pub(crate) markers: Vec<(Box<str>, usize)>,
    defaults: [Actions; 6],
    ids: HashMap<u64, Place>,
    /// Rules that are removed behind a number of others.
    removals: Vec<(usize, Choice)>,
    /// Changes that apply to all rules, also to those behind them.
    updates: Vec<Update>,
    /// True if the next rule belongs to the chain of the last one.
    in_chain: bool,
    depth: usize,
}

impl Parsed {
    pub(crate) fn new() -> Self {
        let mut defaults: [Actions; 6] = Default::default();
        for default in &mut defaults {
            default.disruptive = Some(Disruptive::Pass);
            default.log = Some(true);
            default.audit = Some(true);
        }
        Self {
            settings: Settings::default(),
            names: Names::new(),
            rules: Vec::new(),
            markers: Vec::new(),
            defaults,
            ids: HashMap::new(),
            removals: Vec::new(),
            updates: Vec::new(),
            in_chain: false,
            depth: 0,
        }
    }

    /// Reads a text.
    pub(crate) fn read(&mut self, source: &Source, files: &mut dyn Files) -> Result<(), RuleError> {
        let at = |number: u32| Place { file: source.file.clone(), line: source.line + number };
        let lines = lines::split(&source.text)
            .map_err(|(number, message)| RuleError { place: at(number), message })?;
        for line in lines {
            let place = at(line.number);
            let Some((name, arguments)) = line.words.split_first() else { continue };
            let name = String::from_utf8_lossy(name).into_owned();
            if name.eq_ignore_ascii_case("Include") || name.eq_ignore_ascii_case("IncludeOptional") {
                self.include(arguments, &place, files)?;
                continue;
            }
            self.directive(&name, arguments, &place, files)
                .map_err(|message| RuleError { place, message })?;
        }
        if let (true, Some(rule)) = (self.in_chain, self.rules.last()) {
            return Err(RuleError {
                place: rule.place.clone(),
                message: "a chain has no last rule".to_owned(),
            });
        }
        Ok(())
    }

    fn include(
        &mut self,
        arguments: &[Vec<u8>],
        place: &Place,
        files: &mut dyn Files,
    ) -> Result<(), RuleError> {
        let fail = |message: String| RuleError { place: place.clone(), message };
        if self.depth == INCLUDES_MAX {
            return Err(fail("files include each other".to_owned()));
        }
        for pattern in arguments {
            let pattern = String::from_utf8_lossy(pattern);
            let names = files
                .expand(&pattern, &place.file)
                .map_err(|reason| fail(format!("\"{pattern}\": {reason}")))?;
            for name in names {
                let text =
                    files.read(&name, &place.file).map_err(|reason| fail(format!("\"{name}\": {reason}")))?;
                self.depth += 1;
                self.read(&Source { file: Arc::from(name.as_str()), line: 1, text: text.into() }, files)?;
                self.depth -= 1;
            }
        }
        Ok(())
    }

    fn directive(
        &mut self,
        name: &str,
        arguments: &[Vec<u8>],
        place: &Place,
        files: &mut dyn Files,
    ) -> Result<(), String> {
        let lower = name.to_ascii_lowercase();
        let result = match lower.as_str() {
            "secrule" => match arguments {
                [targets, operator] => self.rule(Some((targets, operator)), b"", place, files),
                [targets, operator, actions] => self.rule(Some((targets, operator)), actions, place, files),
                _ => Err("two or three arguments are expected".to_owned()),
            },
            "secaction" => match arguments {
                [actions] => self.rule(None, actions, place, files),
                _ => Err("one argument is expected".to_owned()),
            },
            "secmarker" => match arguments {
                [marker] => {
                    self.markers.push((String::from_utf8_lossy(marker).into(), self.rules.len()));
                    Ok(())
                }
                _ => Err("one argument is expected".to_owned()),
            },
            "secdefaultaction" => self.default_action(arguments),
            "secruleremovebyid" | "secruleremovebytag" | "secruleremovebymsg" => {
                self.remove(&lower, arguments)
            }
            "secruleupdatetargetbyid" | "secruleupdatetargetbytag" | "secruleupdatetargetbymsg" => {
                self.update_targets(&lower, arguments, place)
            }
            "secruleupdateactionbyid" => self.update_actions(arguments, place),
            "secunicodemapfile" => match arguments {
                [name] | [name, _] => {
                    let name = String::from_utf8_lossy(name);
                    let read = files.read(&name, &place.file);
                    read.map(|_| ()).map_err(|reason| format!("\"{name}\": {reason}"))
                }
                _ => Err("one or two arguments are expected".to_owned()),
            },
            "secrulescript" | "secremoterules" | "sechashengine" | "sechttpblkey" | "secwritestatelimit"
            | "secguardianlog" => Err("not supported".to_owned()),
            _ => {
                self.settings.apply(&lower, arguments).unwrap_or_else(|| Err("unknown directive".to_owned()))
            }
        };
        result.map_err(|reason| format!("\"{name}\": {reason}"))
    }

    fn rule(
        &mut self,
        tested: Option<(&Vec<u8>, &Vec<u8>)>,
        actions: &[u8],
        place: &Place,
        files: &mut dyn Files,
    ) -> Result<(), String> {
        let mut actions = Actions::parse(actions, &mut self.names)?;
        let (targets, test) = match tested {
            Some((targets, operator)) => {
                (Targets::parse(targets)?, Test::parse(operator, &mut self.names, files, &place.file)?)
            }
            None => (Targets::default(), Test::parse(b"@unconditionalMatch", &mut self.names, files, "")?),
        };
        let is_chained = self.in_chain;
        self.in_chain = actions.is_chain;
        let phase = match (is_chained, self.rules.last()) {
            (true, Some(head)) => head.phase,
            _ => actions.phase.unwrap_or(2),
        };
        if let Some(defaults) = self.defaults.get(usize::from(phase)) {
            if is_chained {
                actions.disruptive = None;
                if !actions.clears_transformations {
                    let own =
                        std::mem::replace(&mut actions.transformations, defaults.transformations.clone());
                    actions.transformations.extend(own);
                }
            } else {
                actions.inherit(defaults);
            }
        }
        let id = actions.id.unwrap_or(0);
        let mut rule = Rule {
            place: place.clone(),
            id,
            phase,
            targets,
            tx_numbers: Vec::new(),
            paranoia_level: paranoia_level(&actions),
            uses_match: true,
            test,
            actions,
            chained: None,
        };
        rule.number_targets(&mut self.names);
        if is_chained {
            rule.id = 0;
            let head = self.rules.last_mut().ok_or("a chain has no first rule")?;
            head.last().chained = Some(Box::new(rule));
            return Ok(());
        }
        if id == 0 && !rule.targets.included.is_empty() {
            return Err("the rule has no id".to_owned());
        }
        if id != 0
            && let Some(other) = self.ids.insert(id, place.clone())
        {
            return Err(format!("rule id {id} is already used in {other}"));
        }
        if self.rules.len() == RULES_MAX {
            return Err(format!("more than {RULES_MAX} rules"));
        }
        self.rules.push(rule);
        Ok(())
    }

    fn default_action(&mut self, arguments: &[Vec<u8>]) -> Result<(), String> {
        let [actions] = arguments else { return Err("one argument is expected".to_owned()) };
        let mut actions = Actions::parse(actions, &mut self.names)?;
        let phase = actions.phase.ok_or("no phase")?;
        if matches!(actions.disruptive, None | Some(Disruptive::Block)) {
            return Err("no disruptive action".to_owned());
        }
        if actions.id.is_some()
            || actions.is_chain
            || actions.message.is_some()
            || actions.skip_after.is_some()
        {
            return Err("only phase, disruptive, logging actions and transformations are defaults".to_owned());
        }
        if let Some(default) = self.defaults.get_mut(usize::from(phase)) {
            actions.log = actions.log.or(Some(true));
            actions.audit = actions.audit.or(Some(true));
            *default = actions;
        }
        Ok(())
    }

    fn remove(&mut self, name: &str, arguments: &[Vec<u8>]) -> Result<(), String> {
        let choice = Choice::new(&settings::choice(name, arguments)?);
        let count = self.rules.len();
        self.remove_from(0, &choice);
        // An id that was removed may be given to another rule. Otherwise the rules behind the directive are removed, too.
        if !name.ends_with("id") || self.rules.len() == count {
            self.removals.push((self.rules.len(), choice));
        }
        Ok(())
    }

    fn remove_from(&mut self, begin: usize, choice: &Choice) {
        let mut at = begin;
        while let Some(rule) = self.rules.get(at) {
            if !rule.is_chosen(choice) {
                at += 1;
                continue;
            }
            let removed = self.rules.remove(at);
            self.ids.remove(&removed.id);
            for (_, before) in self.markers.iter_mut().filter(|(_, before)| *before > at) {
                *before -= 1;
            }
        }
    }

    fn update_targets(&mut self, name: &str, arguments: &[Vec<u8>], place: &Place) -> Result<(), String> {
        let (first, update, replaced) = match arguments {
            [first, update] => (first, update, None),
            [first, update, replaced] => (first, update, Some(Targets::parse(replaced)?)),
            _ => return Err("two or three arguments are expected".to_owned()),
        };
        let choice = Choice::new(&settings::choice(name, std::slice::from_ref(first))?);
        let change = RuleChange::Targets { update: Targets::parse(update)?, replaced };
        self.updates.push(Update { place: place.clone(), choice, change });
        Ok(())
    }

    fn update_actions(&mut self, arguments: &[Vec<u8>], place: &Place) -> Result<(), String> {
        let [id, actions] = arguments else { return Err("two arguments are expected".to_owned()) };
        let id = String::from_utf8_lossy(id);
        let (id, depth) = id.split_once(':').unwrap_or((&id, "0"));
        let depth: usize = depth.parse().map_err(|_| format!("invalid number \"{depth}\""))?;
        let choice = Choice::Ids(super::action::id_ranges(id)?);
        let update = Box::new(Actions::parse(actions, &mut self.names)?);
        self.updates.push(Update {
            place: place.clone(),
            choice,
            change: RuleChange::Actions { update, depth },
        });
        Ok(())
    }

    /// Applies the changes of rules, when all rules are there.
    ///
    /// # Errors
    /// A change that does not fit its rule.
    pub(crate) fn apply_updates(&mut self) -> Result<(), RuleError> {
        for (begin, choice) in std::mem::take(&mut self.removals) {
            self.remove_from(begin, &choice);
        }
        for Update { place, choice, change } in std::mem::take(&mut self.updates) {
            for rule in self.rules.iter_mut().filter(|rule| rule.is_chosen(&choice)) {
                let result = change.apply(rule, &mut self.names);
                result.map_err(|message| RuleError { place: place.clone(), message: message.to_owned() })?;
            }
        }
        Ok(())
    }
}

/// Level of the tag `paranoia-level/N`, which rules of the Core Rule Set have.
fn paranoia_level(actions: &Actions) -> u8 {
    let level = |tag: &str| tag.strip_prefix("paranoia-level/")?.parse().ok();
    actions.tags.iter().find_map(|tag| level(tag)).unwrap_or(0)
}

/// Change of rules that applies to those before it and behind it.
struct Update {
    place: Place,
    choice: Choice,
    change: RuleChange,
}

enum RuleChange {
    /// Targets are added or replaced.
    Targets { update: Targets, replaced: Option<Targets> },
    /// Actions of a rule, or of one in its chain, are replaced.
    Actions { update: Box<Actions>, depth: usize },
}

impl RuleChange {
    fn apply(&self, rule: &mut Rule, names: &mut Names) -> Result<(), &'static str> {
        match self {
            Self::Targets { update, replaced } => {
                match replaced {
                    Some(replaced) => rule.targets.replace(replaced, update),
                    None => rule.targets.update(update),
                }
                rule.number_targets(names);
            }
            Self::Actions { update, depth } => {
                let mut rule = rule;
                for _ in 0..*depth {
                    rule = rule.chained.as_mut().ok_or("the chain is shorter")?;
                }
                rule.actions.update((**update).clone());
            }
        }
        Ok(())
    }
}
