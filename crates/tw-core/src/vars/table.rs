//! The names of variables while a configuration is loaded.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use tw_conf::{ConfError, Span};

use super::{
    Assign, Availability, Eval, EvalFamily, Preparations, SlotKind, Slots, Var, VarDef, VarKind, VarTarget,
    family,
};

/// All names known while a configuration is loaded.
pub struct VarTable<S> {
    one: HashMap<&'static str, One<S>>,
    families: Vec<(&'static str, EvalFamily<S>)>,
    /// Stored variables of modules, which nothing else may change.
    fixed: HashSet<&'static str>,
    slots: HashMap<Box<str>, u16>,
    kinds: Vec<Option<SlotKind<S>>>,
    /// The names of the slots.
    names: Vec<Box<str>>,
    /// All values that a variable can have, for those of which that is known.
    values: HashMap<Box<str>, Vec<Box<[u8]>>>,
    /// Slots that were used before they were defined, for messages about unknown variables.
    open: Vec<(u16, Option<Span>)>,
    /// Preparations that the bound variables need ([`Availability::Prepared`]). The loader resets it at the end of a
    /// block.
    pub prepared: Preparations,
    /// Preparations that any block needs.
    prepared_anywhere: Preparations,
}

/// A variable with one name.
struct One<S> {
    eval: Eval<S>,
    assign: Option<Assign<S>>,
    when: Availability,
}

impl<S: 'static> VarTable<S> {
    /// Adds the variables of one module.
    pub fn declare(&mut self, defs: &'static [VarDef<S>]) {
        for def in defs {
            match def.get {
                VarKind::One(eval) => {
                    self.one.insert(def.name, One { eval, assign: def.assign, when: def.when });
                }
                VarKind::Family(eval) => self.families.push((def.name, eval)),
                VarKind::Cached(eval) => {
                    self.define(def.name, SlotKind::Computed(Arc::new(eval)));
                }
                VarKind::Volatile(eval) => {
                    self.define(def.name, SlotKind::Volatile(Arc::new(eval)));
                    self.fixed.insert(def.name);
                }
                VarKind::Stored => {
                    self.define(def.name, SlotKind::Stored);
                    self.fixed.insert(def.name);
                }
            }
        }
    }

    /// Records all values that a computed variable can have.
    pub fn set_possible_values(&mut self, name: &str, values: Vec<Box<[u8]>>) {
        self.values.insert(name.to_ascii_lowercase().into(), values);
    }

    /// All texts that `text` can become once its variables have values; `None` if that is not known, or there are more than `max`.
    pub fn possible_texts(&self, text: &[u8], max: usize) -> Option<Vec<Vec<u8>>> {
        let mut texts: Vec<Vec<u8>> = vec![Vec::new()];
        let mut rest = text;
        while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
            let (before, at_name) = rest.split_at(dollar);
            let (name, after) = super::template::split_name(at_name.get(1..)?)?;
            let name = str::from_utf8(name).ok()?.to_ascii_lowercase();
            let values = self.values.get(name.as_str())?;
            if texts.len() * values.len() > max {
                return None;
            }
            let extended = |text: &Vec<u8>| {
                let text = text.clone();
                values.iter().map(move |value| [&text, before, value].concat()).collect::<Vec<_>>()
            };
            texts = texts.iter().flat_map(extended).collect();
            rest = after;
        }
        texts.iter_mut().for_each(|text| text.extend_from_slice(rest));
        Some(texts)
    }

    /// Binds a name as used in a template. An undeclared name gets a slot and must be defined before [`finish`].
    ///
    /// [`finish`]: Self::finish
    pub fn bind(&mut self, name: &str, at: Option<Span>) -> Var<S> {
        let name = name.to_ascii_lowercase();
        if let Some(&slot) = self.slots.get(name.as_str()) {
            return match &self.kinds[usize::from(slot)] {
                Some(SlotKind::Family(eval, suffix)) => Var::Family(*eval, suffix.clone(), Some(slot)),
                Some(_) => Var::Slot(slot),
                None => {
                    self.open.push((slot, at));
                    Var::Slot(slot)
                }
            };
        }
        if let Some(one) = self.one.get(name.as_str()) {
            if let Availability::Prepared(by) = one.when {
                self.prepared.0 |= by.0;
                self.prepared_anywhere.0 |= by.0;
            }
            return Var::One(one.eval);
        }
        if let Some((eval, suffix)) = family(&self.families, &name) {
            // A `set` that is read later may still give it a value.
            let slot = self.define(&name, SlotKind::Family(eval, suffix.clone()));
            return Var::Family(eval, suffix, Some(slot));
        }
        let slot = self.slot(&name);
        self.open.push((slot, at));
        Var::Slot(slot)
    }

    /// Target for new values of `name`, which becomes a stored variable if it is not declared. Fails with nginx's
    /// error if the variable cannot be changed.
    pub fn target(&mut self, name: &str) -> Result<VarTarget<S>, ConfError> {
        self.place_as(name, SlotKind::Stored)
    }

    /// Target for `set`, see [`target`](Self::target).
    ///
    /// A name of a family that was not set keeps the value that it has without `set`.
    pub fn set_target(&mut self, name: &str) -> Result<VarTarget<S>, ConfError> {
        match family(&self.families, &name.to_ascii_lowercase()) {
            Some((eval, suffix)) => self.place_as(name, SlotKind::Family(eval, suffix)),
            None => self.place_as(name, SlotKind::Set),
        }
    }

    fn place_as(&mut self, name: &str, kind: SlotKind<S>) -> Result<VarTarget<S>, ConfError> {
        let lower = name.to_ascii_lowercase();
        match self.one.get(lower.as_str()) {
            None if self.fixed.contains(lower.as_str()) => {
                Err(ConfError::new(format!("the duplicate \"{name}\" variable")))
            }
            Some(One { assign: Some(assign), .. }) => Ok(VarTarget::Assign(*assign)),
            Some(One { assign: None, .. }) => {
                Err(ConfError::new(format!("the duplicate \"{name}\" variable")))
            }
            None => Ok(VarTarget::Slot(self.define(name, kind))),
        }
    }

    /// Makes `name` a stored variable that a named group of a regular expression fills. A variable that `set` may change
    /// is hidden by it, as in nginx.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn capture(&mut self, name: &str) -> Result<(), ConfError> {
        if let VarTarget::Assign(_) = self.target(name)? {
            self.define(name, SlotKind::Stored);
        }
        Ok(())
    }

    /// Makes `name` a variable that is computed, as `map` does. It hides one that `set` may change; of two definitions the
    /// later one holds.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn compute(&mut self, name: &str, kind: SlotKind<S>) -> Result<(), ConfError> {
        self.target(name)?;
        self.define(name, kind);
        Ok(())
    }

    /// Defines a name as a slot and says how it is filled. A stored slot does not replace a computed one.
    pub fn define(&mut self, name: &str, kind: SlotKind<S>) -> u16 {
        let slot = self.slot(&name.to_ascii_lowercase());
        let known = &mut self.kinds[slot as usize];
        let is_replaced = match (&known, &kind) {
            (None | Some(SlotKind::Family(..)), _) => true,
            (_, SlotKind::Stored | SlotKind::Set | SlotKind::Family(..)) => false,
            (_, SlotKind::Computed(_) | SlotKind::Volatile(_)) => true,
        };
        if is_replaced {
            *known = Some(kind);
        }
        slot
    }

    /// Every use of an undefined name.
    pub fn undefined(&self) -> Vec<(String, Option<Span>)> {
        let open = self.open.iter().filter(|(slot, _)| self.kinds[usize::from(*slot)].is_none());
        open.map(|(slot, at)| (self.names[usize::from(*slot)].to_string(), *at)).collect()
    }

    /// Returns true if a name, in lower case, has a value.
    pub fn is_defined(&self, name: &str) -> bool {
        let has_slot = || self.slots.get(name).is_some_and(|slot| self.kinds[usize::from(*slot)].is_some());
        self.one.contains_key(name) || has_slot() || family(&self.families, name).is_some()
    }

    /// The name that is nearest to one that has no value.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let mut names: Vec<&str> = self.one.keys().copied().collect();
        names.extend(self.slots.keys().map(|name| &**name).filter(|name| self.is_defined(name)));
        names.sort_unstable();
        tw_conf::nearest(name, names)
    }

    /// Checks that every slot that is used has been defined, and that they are not too many.
    pub fn check(&self) -> Result<(), ConfError> {
        if self.kinds.len() > usize::from(u16::MAX) {
            return Err(ConfError::new(format!("more than {} variables are defined", u16::MAX)));
        }
        match self.undefined().into_iter().next() {
            Some((name, at)) => Err(located(ConfError::new(format!("unknown \"{name}\" variable")), at)),
            None => Ok(()),
        }
    }

    /// Ends loading. Undefined slots, which [`check`](Self::check) refuses, have no value.
    pub fn finish(self) -> Slots<S> {
        let kinds = self.kinds.into_iter().map(|kind| kind.unwrap_or(SlotKind::Stored)).collect();
        let one = self.one.into_iter().map(|(name, one)| (name, one.eval)).collect();
        let prepared = self.prepared_anywhere;
        Slots { kinds, names: self.slots, prepared, one, families: self.families }
    }

    fn slot(&mut self, name: &str) -> u16 {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        // `finish` refuses more than there are numbers.
        let slot = u16::try_from(self.kinds.len()).unwrap_or(u16::MAX);
        self.slots.insert(name.into(), slot);
        self.kinds.push(None);
        self.names.push(name.into());
        slot
    }
}

impl<S> Default for VarTable<S> {
    fn default() -> Self {
        Self {
            one: HashMap::new(),
            families: Vec::new(),
            fixed: HashSet::new(),
            slots: HashMap::new(),
            kinds: Vec::new(),
            names: Vec::new(),
            values: HashMap::new(),
            open: Vec::new(),
            prepared: Preparations::default(),
            prepared_anywhere: Preparations::default(),
        }
    }
}

/// An error with its place, if it has one.
pub(super) fn located(error: ConfError, at: Option<Span>) -> ConfError {
    match at {
        Some(span) => error.at(span),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::table;

    #[test]
    fn assignment_targets() {
        let mut vars = table();
        let place = |vars: &mut VarTable<_>, name: &str| match vars.target(name) {
            Ok(VarTarget::Slot(slot)) => slot.to_string(),
            Ok(VarTarget::Assign(_)) => "assign".to_owned(),
            Err(error) => error.message,
        };
        assert_eq!(place(&mut vars, "new"), "0");
        assert_eq!(place(&mut vars, "NEW"), "0");
        assert_eq!(place(&mut vars, "other"), "1");
        assert_eq!(place(&mut vars, "Open"), "assign");
        assert_eq!(place(&mut vars, "found"), "the duplicate \"found\" variable");
        assert!(matches!(vars.bind("new", None), Var::Slot(0)));
    }

    #[test]
    fn preparations_of_bound_variables_are_collected() {
        let mut vars = table();
        for (name, expected) in [("found", 0), ("Slow", 1), ("late", 5), ("slow", 5)] {
            vars.bind(name, None);
            assert_eq!(vars.prepared, Preparations(expected), "{name}");
        }
        assert!(vars.prepared.has(Preparations(4)) && !vars.prepared.has(Preparations(6)));
    }

    #[test]
    fn named_groups_as_variables() {
        let mut vars = table();
        let mut capture = |name: &str| vars.capture(name).map_err(|error| error.message);
        for name in ["new", "new", "in_family", "Open"] {
            assert_eq!(capture(name), Ok(()), "{name}");
        }
        for name in ["found", "Found"] {
            assert_eq!(capture(name), Err(format!("the duplicate \"{name}\" variable")));
        }
        for (name, slot) in [("new", 0), ("in_FAMILY", 1), ("open", 2)] {
            assert!(matches!(vars.bind(name, None), Var::Slot(bound) if bound == slot), "{name}");
        }
        assert!(matches!(vars.target("open"), Ok(VarTarget::Assign(_))), "`set` changes what is hidden");
    }
}
