//! The names of variables while a configuration is loaded.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use tw_conf::{ConfError, Level, NginxVariables, Span};

use super::awaited::Reads;
use super::{
    Assign, Availability, AwaitVariable, DeclaredVar, EvalFamily, Preparations, SlotKind, Slots, Var, VarDef,
    VarKind, VarTarget, VariableUses, family,
};

/// All names known while a configuration is loaded.
pub struct VarTable<S> {
    /// Variables of modules with one name.
    declared: HashMap<&'static str, Declaration<S>>,
    families: Vec<(&'static str, EvalFamily<S>)>,
    /// Names that nginx lets no configuration define.
    fixed: HashSet<&'static str>,
    /// Names of nginx that a configuration may define.
    changeable: HashSet<&'static str>,
    /// Slots of the names that the configuration defines, or may yet define.
    slots: HashMap<Box<str>, u16>,
    kinds: Vec<Option<SlotKind<S>>>,
    /// The names of the slots.
    names: Vec<Box<str>>,
    /// All values that a variable can have, for those of which that is known.
    values: HashMap<Box<str>, Vec<Box<[u8]>>>,
    /// Slots that were used before they were defined, for messages about unknown variables.
    open: Vec<(u16, Option<Span>)>,
    /// Variables of modules that the configuration has hidden by its own definition, which nginx does not have.
    hidden: Vec<(&'static str, &'static str, Span)>,
    /// Preparations that the bound variables need ([`Availability::Prepared`]). The loader resets it at the end of a
    /// block.
    pub prepared: Preparations,
    /// Preparations that any block needs.
    prepared_anywhere: Preparations,
    /// Slots that modules read in the current block and those around it. The loader resets it at the end of a block.
    pub uses: VariableUses,
    reads: Reads<S>,
}

/// A variable of a module with one name.
struct Declaration<S> {
    variable: DeclaredVar<S>,
    assign: Option<Assign<S>>,
    when: Availability,
    doc: &'static str,
}

impl<S: 'static> VarTable<S> {
    /// Names of a protocol in which nginx has the variables `nginx`.
    pub fn new(nginx: NginxVariables) -> Self {
        Self {
            declared: HashMap::new(),
            families: Vec::new(),
            fixed: nginx.fixed().collect(),
            changeable: nginx.changeable().collect(),
            slots: HashMap::new(),
            kinds: Vec::new(),
            names: Vec::new(),
            values: HashMap::new(),
            open: Vec::new(),
            hidden: Vec::new(),
            prepared: Preparations::default(),
            prepared_anywhere: Preparations::default(),
            uses: VariableUses::default(),
            reads: Reads::default(),
        }
    }

    /// Adds the variables of one module.
    pub fn declare(&mut self, defs: &'static [VarDef<S>]) {
        for def in defs {
            let variable = match def.get {
                VarKind::Family(eval) => {
                    self.families.push((def.name, eval));
                    continue;
                }
                VarKind::One(eval) => DeclaredVar::One(eval),
                VarKind::Cached(eval) => self.module_slot(def.name, SlotKind::Computed(Arc::new(eval))),
                VarKind::Volatile(eval) => self.module_slot(def.name, SlotKind::Volatile(Arc::new(eval))),
                VarKind::Stored => self.module_slot(def.name, SlotKind::Stored),
            };
            let declaration = Declaration { variable, assign: def.assign, when: def.when, doc: def.doc };
            self.declared.insert(def.name, declaration);
        }
    }

    fn module_slot(&mut self, name: &str, kind: SlotKind<S>) -> DeclaredVar<S> {
        DeclaredVar::Slot(self.add_slot(name, Some(kind)))
    }

    /// The slot of a variable that a module has declared as one with a slot, whatever the configuration defines.
    pub fn slot_of_module(&mut self, name: &'static str) -> u16 {
        if let Some(Declaration { variable: DeclaredVar::Slot(slot), .. }) = self.declared.get(name) {
            return *slot;
        }
        let slot = self.add_slot(name, Some(SlotKind::Stored));
        let variable = DeclaredVar::Slot(slot);
        let declaration = Declaration { variable, assign: None, when: Availability::Always, doc: "" };
        self.declared.insert(name, declaration);
        slot
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
        let bound = self.bind_slot(name, at);
        if let Var::Slot(slot) | Var::Definable(_, slot) = bound {
            self.reads.read(slot);
        }
        bound
    }

    fn bind_slot(&mut self, name: &str, at: Option<Span>) -> Var<S> {
        let name = name.to_ascii_lowercase();
        if let Some(&slot) = self.slots.get(name.as_str()) {
            return match &self.kinds[usize::from(slot)] {
                Some(SlotKind::Declared(declared) | SlotKind::Changeable(declared)) => {
                    let declared = declared.clone();
                    self.prepare(&name);
                    Var::Definable(declared, slot)
                }
                Some(_) => Var::Slot(slot),
                None => {
                    self.open.push((slot, at));
                    Var::Slot(slot)
                }
            };
        }
        let Some(declared) = self.find_declared(&name) else {
            let slot = self.slot(&name);
            self.open.push((slot, at));
            return Var::Slot(slot);
        };
        self.prepare(&name);
        if self.fixed.contains(name.as_str()) {
            return Var::Declared(declared);
        }
        // A definition that is read later may still give it another value.
        let slot = self.define(&name, SlotKind::Declared(declared.clone()));
        Var::Definable(declared, slot)
    }

    /// Binds a name as the program itself uses it: to the variable that a module has declared, whatever the configuration defines.
    pub fn bind_declared(&mut self, name: &str) -> Var<S> {
        match self.find_declared(name) {
            Some(declared) => {
                self.prepare(name);
                Var::Declared(declared)
            }
            None => self.bind(name, None),
        }
    }

    /// The variable of a module, by a name in lower case.
    fn find_declared(&self, name: &str) -> Option<DeclaredVar<S>> {
        match self.declared.get(name) {
            Some(declaration) => Some(declaration.variable.clone()),
            None => family(&self.families, name),
        }
    }

    /// Adds the preparations that a variable of a module needs.
    fn prepare(&mut self, name: &str) {
        if let Some(Declaration { when: Availability::Prepared(by), .. }) = self.declared.get(name) {
            self.prepared.0 |= by.0;
            self.prepared_anywhere.0 |= by.0;
        }
    }

    /// Target for new values of `name`, which becomes a stored variable if it is not declared.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn target(&mut self, name: &str, at: Span) -> Result<VarTarget<S>, ConfError> {
        self.place(name, SlotKind::Stored, at)
    }

    /// Target for `set`, see [`target`](Self::target).
    ///
    /// A name of a family that was not set keeps the value that it has without `set`.
    ///
    /// # Errors
    /// As [`target`](Self::target).
    pub fn set_target(&mut self, name: &str, at: Span) -> Result<VarTarget<S>, ConfError> {
        let kind = match family(&self.families, &name.to_ascii_lowercase()) {
            Some(member) => SlotKind::Changeable(member),
            None => SlotKind::Set,
        };
        self.place(name, kind, at)
    }

    fn place(&mut self, name: &str, kind: SlotKind<S>, at: Span) -> Result<VarTarget<S>, ConfError> {
        self.check_definable(name, at)?;
        let lower = name.to_ascii_lowercase();
        let kind = match self.declared.get(lower.as_str()) {
            Some(Declaration { assign: Some(assign), .. }) => return Ok(VarTarget::Assign(*assign)),
            // As in nginx, the variable keeps its computed value until another one is stored.
            Some(declaration) if self.changeable.contains(lower.as_str()) => {
                SlotKind::Changeable(declaration.variable.clone())
            }
            _ => kind,
        };
        Ok(VarTarget::Slot(self.define_at(&lower, kind, at)))
    }

    /// Makes `name` a stored variable that a named group of a regular expression fills. A variable that `set` may change
    /// is hidden by it, as in nginx.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn capture(&mut self, name: &str, at: Span) -> Result<(), ConfError> {
        self.check_definable(name, at)?;
        self.define_at(&name.to_ascii_lowercase(), SlotKind::Stored, at);
        Ok(())
    }

    /// Makes `name` a variable that is computed, as `map` does, and returns its slot. It hides one that `set` may change; of two
    /// definitions the later one holds.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn compute(&mut self, name: &str, kind: SlotKind<S>, at: Span) -> Result<u16, ConfError> {
        self.check_definable(name, at)?;
        let slot = self.define_at(&name.to_ascii_lowercase(), kind, at);
        self.reads.define(slot);
        Ok(slot)
    }

    /// Makes `name` a variable that `compute` computes and stores before a handler reads it; `kind` says what it is where nothing
    /// could be waited for. See [`awaited_by`](Self::awaited_by).
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn define_awaited(
        &mut self,
        name: &str,
        kind: SlotKind<S>,
        compute: impl FnOnce(u16) -> AwaitVariable<S>,
        at: Span,
    ) -> Result<u16, ConfError> {
        self.check_definable(name, at)?;
        let slot = self.define_at(&name.to_ascii_lowercase(), kind, at);
        self.reads.define_awaited(slot, compute(slot));
        Ok(slot)
    }

    /// Ends the settings of one module in one block.
    pub(crate) fn end_module(&mut self, module: &'static str) {
        self.reads.end_module(module, &mut self.uses);
    }

    /// Returns true if the configuration has awaited variables.
    pub fn has_awaited(&self) -> bool {
        self.reads.has_awaited()
    }

    /// Awaited variables that modules read in a block, by module, once the whole configuration is read.
    pub fn awaited_by(&self, uses: &VariableUses) -> Vec<(&'static str, Vec<AwaitVariable<S>>)> {
        self.reads.awaited_by(uses)
    }

    // DIFF(nginx): variables that nginx does not have, such as those of modules that others have written for it, can be defined.
    fn check_definable(&self, name: &str, at: Span) -> Result<(), ConfError> {
        let lower = name.to_ascii_lowercase();
        if self.fixed.contains(lower.as_str()) && self.find_declared(&lower).is_some() {
            Err(ConfError::new(format!("the duplicate \"{name}\" variable")).at(at))
        } else {
            Ok(())
        }
    }

    /// Defines a name in lower case that the configuration has at this place.
    fn define_at(&mut self, name: &str, kind: SlotKind<S>, at: Span) -> u16 {
        let hides = !matches!(kind, SlotKind::Declared(_) | SlotKind::Changeable(_));
        let is_hidden = self.slots.get(name).is_some_and(|slot| {
            !matches!(self.kinds[usize::from(*slot)], Some(SlotKind::Declared(_) | SlotKind::Changeable(_)))
        });
        if let Some((known_name, declaration)) = self.declared.get_key_value(name)
            && hides
            && !is_hidden
            && !self.changeable.contains(name)
        {
            self.hidden.push((known_name, declaration.doc, at));
        }
        self.define(name, kind)
    }

    /// Defines a name as a slot and says how it is filled. A stored slot does not replace a computed one.
    pub fn define(&mut self, name: &str, kind: SlotKind<S>) -> u16 {
        let slot = self.slot(&name.to_ascii_lowercase());
        let slot_kind = &mut self.kinds[slot as usize];
        let is_replaced = match (&slot_kind, &kind) {
            (None | Some(SlotKind::Declared(_)), _) => true,
            (Some(SlotKind::Changeable(_)), kind) => !matches!(kind, SlotKind::Declared(_)),
            (_, SlotKind::Stored | SlotKind::Set | SlotKind::Declared(_) | SlotKind::Changeable(_)) => false,
            (_, SlotKind::Computed(_) | SlotKind::Volatile(_)) => true,
        };
        if is_replaced {
            *slot_kind = Some(kind);
        }
        slot
    }

    /// Notes about variables of modules that the configuration has hidden by definitions of its own. Variables of nginx are not
    /// among them.
    pub fn take_notes(&mut self) -> Vec<ConfError> {
        let note = |(name, doc, at): (&str, &str, Span)| {
            let message = format!("\"${name}\" hides the variable of that name that Tailwater has");
            let error = ConfError::new(message).at(at);
            let error = if doc.is_empty() { error } else { error.hint(format!("that one is: {doc}")) };
            ConfError { level: Level::Notice, ..error }
        };
        self.hidden.drain(..).map(note).collect()
    }

    /// Every use of an undefined name.
    pub fn undefined(&self) -> Vec<(String, Option<Span>)> {
        let open = self.open.iter().filter(|(slot, _)| self.kinds[usize::from(*slot)].is_none());
        open.map(|(slot, at)| (self.names[usize::from(*slot)].to_string(), *at)).collect()
    }

    /// Returns true if a name, in lower case, has a value.
    pub fn is_defined(&self, name: &str) -> bool {
        let has_slot = || self.slots.get(name).is_some_and(|slot| self.kinds[usize::from(*slot)].is_some());
        has_slot() || self.find_declared(name).is_some()
    }

    /// The name that is nearest to one that has no value.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let mut names: Vec<&str> = self.declared.keys().copied().collect();
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
        let assigned =
            self.declared.iter().filter_map(|(name, declaration)| Some((*name, declaration.assign?)));
        let assigned = assigned.collect();
        let declared = self.declared.into_iter().map(|(name, declaration)| (name, declaration.variable));
        Slots {
            assigned,
            kinds: self.kinds.into_iter().map(|kind| kind.unwrap_or(SlotKind::Stored)).collect(),
            prepared: self.prepared_anywhere,
            by_name: self.slots,
            names: self.names.into(),
            declared: declared.collect(),
            families: self.families,
        }
    }

    fn slot(&mut self, name: &str) -> u16 {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        let slot = self.add_slot(name, None);
        self.slots.insert(name.into(), slot);
        slot
    }

    fn add_slot(&mut self, name: &str, kind: Option<SlotKind<S>>) -> u16 {
        // `check` refuses more than there are numbers.
        let slot = u16::try_from(self.kinds.len()).unwrap_or(u16::MAX);
        self.kinds.push(kind);
        self.names.push(name.into());
        slot
    }
}

impl<S: 'static> Default for VarTable<S> {
    fn default() -> Self {
        Self::new(NginxVariables::default())
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
    use crate::session::Session;
    use crate::testing::{Plain, table};
    use crate::vars::{Template, Value};

    #[test]
    fn assignment_targets() {
        let mut vars = table();
        let place = |vars: &mut VarTable<_>, name: &str| match vars.target(name, Span::default()) {
            Ok(VarTarget::Slot(slot)) => vars.names[usize::from(slot)].to_string(),
            Ok(VarTarget::Assign(_)) => "assign".to_owned(),
            Err(error) => error.message,
        };
        for (name, expected) in [
            ("new", "new"),
            ("NEW", "new"),
            ("other", "other"),
            ("Open", "assign"),
            ("found", "the duplicate \"found\" variable"),
            ("in_fixed", "the duplicate \"in_fixed\" variable"),
            ("own", "own"),
        ] {
            assert_eq!(place(&mut vars, name), expected);
        }
        let slot = vars.slots["new"];
        assert!(matches!(vars.bind("new", None), Var::Slot(bound) if bound == slot));
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
        let mut capture = |name: &str| vars.capture(name, Span::default()).map_err(|error| error.message);
        for name in ["new", "new", "in_family", "Open", "own", "changeable"] {
            assert_eq!(capture(name), Ok(()), "{name}");
        }
        for name in ["found", "Found"] {
            assert_eq!(capture(name), Err(format!("the duplicate \"{name}\" variable")));
        }
        for name in ["new", "in_FAMILY", "open", "own", "changeable"] {
            let slot = vars.slots[&*name.to_ascii_lowercase()];
            assert!(matches!(vars.bind(name, None), Var::Slot(bound) if bound == slot), "{name}");
        }
        let target = vars.target("open", Span::default());
        assert!(matches!(target, Ok(VarTarget::Assign(_))), "`set` changes what is hidden");
    }

    #[test]
    fn definitions_hide_variables_of_modules() {
        let text = b"$own $kept $changeable $in_x $found";
        let hidden = |define: fn(&mut VarTable<Plain>, &str)| {
            let mut vars = table();
            // A variable that is bound before its definition has the value of the definition, too.
            let before = Template::compile(text, None, &mut vars).unwrap();
            let own = Template::compile_own("$own $kept $changeable", &mut vars).unwrap();
            let slot = vars.slot_of_module("kept");
            for name in ["Own", "kept", "changeable", "in_x"] {
                define(&mut vars, name);
            }
            let notes: Vec<_> = vars.take_notes().into_iter().map(|note| note.message).collect();
            let after = Template::compile(text, None, &mut vars).unwrap();
            let s = Plain::new(vars);
            assert_eq!(before.value(&s), after.value(&s));
            s.bindings().store(slot, b"stored");
            assert_eq!(own.value(&s), b"o stored c");
            let value = String::from_utf8(before.value(&s)).unwrap();
            assert_eq!(s.slots().find("own").unwrap().eval(&s, &mut Vec::new()), Value::Found);
            (value, notes)
        };
        let note = |name| format!("\"${name}\" hides the variable of that name that Tailwater has");
        let both = vec![note("own"), note("kept")];
        let computed = hidden(|vars, name| {
            let compute = |_: &Plain, out: &mut Vec<u8>| {
                out.push(b'=');
                Value::Found
            };
            vars.compute(name, SlotKind::Computed(Arc::new(compute)), Span::default()).unwrap();
        });
        assert_eq!(computed, ("= = = = f".to_owned(), both.clone()));
        let set = hidden(|vars, name| {
            vars.set_target(name, Span::default()).unwrap();
        });
        assert_eq!(set, ("  c x f".to_owned(), both.clone()));
    }
}
