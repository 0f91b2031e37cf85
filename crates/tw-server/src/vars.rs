//! Variables and templates (nginx: complex values).
//!
//! A name is bound once, at load: to a function of the request, to a family (`http_`, `arg_` …) with its suffix, or to a
//! slot that `set`, a named capture or a module fills. Evaluating a [`Template`] is a walk over its parts and never waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tw_conf::{ConfError, Span};

use crate::http::request::Request;

/// The variable that the disk must tell, before the handlers that use it run.
const REALPATH_ROOT: &str = "realpath_root";

/// Whether a variable has a value for this request. A missing one is written as nothing, or `-` in an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// The value was appended.
    Found,
    /// There is none; nothing was appended.
    Missing,
}

/// Computes a variable: appends its value to `out`.
pub type Eval = fn(r: &Request, out: &mut Vec<u8>) -> Value;
/// Computes a variable of a family, given what follows the prefix (lower case).
pub type EvalFamily = fn(r: &Request, suffix: &[u8], out: &mut Vec<u8>) -> Value;
/// Takes a new value for a variable that is not merely stored (`set $args …`).
pub type Assign = fn(r: &mut Request, value: Vec<u8>);

/// A variable as a module declares it.
pub struct VarDef {
    /// Name without `$`; for a family the prefix, ending in `_`.
    pub name: &'static str,
    /// What computes it.
    pub get: Get,
    /// What takes a new value; `None` if nothing may change the variable.
    pub assign: Option<Assign>,
    /// One line for `docs/variables.md`.
    pub doc: &'static str,
}

/// How a declared variable is computed.
#[derive(Clone, Copy)]
pub enum Get {
    /// One name.
    One(Eval),
    /// All names that begin with the prefix.
    Family(EvalFamily),
    /// One name; the value is kept in the request. A location may say how it is computed there, see
    /// [`Plan::compute`](crate::http::plan::Plan::compute).
    Kept(Eval),
    /// The module stores its value in the request, in the slot that [`Resolve::slot`](crate::load::Resolve::slot) tells.
    Stored,
}

impl VarDef {
    /// A variable with one name.
    pub const fn one(name: &'static str, eval: Eval, doc: &'static str) -> Self {
        Self { name, get: Get::One(eval), assign: None, doc }
    }

    /// A variable whose value is kept in the request, and which `set` and its like may replace. A location may say how it
    /// is computed there.
    pub const fn kept(name: &'static str, eval: Eval, doc: &'static str) -> Self {
        Self { name, get: Get::Kept(eval), assign: None, doc }
    }

    /// A family of variables.
    pub const fn family(prefix: &'static str, eval: EvalFamily, doc: &'static str) -> Self {
        Self { name: prefix, get: Get::Family(eval), assign: None, doc }
    }

    /// A variable whose value the module stores when it knows it; missing until then.
    pub const fn stored(name: &'static str, doc: &'static str) -> Self {
        Self { name, get: Get::Stored, assign: None, doc }
    }

    /// The same variable, which may be changed.
    pub const fn assigned_by(mut self, assign: Assign) -> Self {
        self.assign = Some(assign);
        self
    }
}

/// A variable bound at load.
#[derive(Clone)]
pub enum Var {
    /// A function of the request.
    One(Eval),
    /// A family and the suffix; and the slot of the name, if something in the configuration may store a value for it.
    Family(EvalFamily, Box<[u8]>, Option<u16>),
    /// A slot of the request ([`Request::slot`]).
    Slot(u16),
}

impl Var {
    /// Appends the value for `r` to `out`.
    pub fn eval(&self, r: &Request, out: &mut Vec<u8>) -> Value {
        match self {
            Var::One(eval) => eval(r, out),
            Var::Family(eval, suffix, None) => eval(r, suffix, out),
            Var::Family(eval, suffix, Some(slot)) => match r.generation().slots.kinds.get(usize::from(*slot))
            {
                // What was bound before a `map` defined it.
                Some(SlotKind::Computed(_) | SlotKind::Volatile(_)) => r.slot(*slot, out),
                _ => r.stored(*slot, out).unwrap_or_else(|| eval(r, suffix, out)),
            },
            Var::Slot(slot) => r.slot(*slot, out),
        }
    }
}

/// A computed variable that a module defines at load (`map`, `geo` …).
pub type Computed = Arc<dyn Fn(&Request, &mut Vec<u8>) -> Value + Send + Sync>;

/// What fills a slot.
#[derive(Clone)]
pub enum SlotKind {
    /// A handler stores a value in the request (named captures).
    Stored,
    /// `set` stores a value in the request; using it before is worth a warning.
    Set,
    /// It is computed when it is first used and kept in the request; a value that is stored comes before it.
    Computed(Computed),
    /// It is computed on each use, unless a value was stored.
    Volatile(Computed),
    /// It is one of a family, unless a value was stored.
    Family(EvalFamily, Box<[u8]>),
}

/// The slots of a configuration.
pub struct Slots {
    /// What fills each.
    pub kinds: Box<[SlotKind]>,
    /// Which one has which name.
    pub names: HashMap<Box<str>, u16>,
    one: HashMap<&'static str, Eval>,
    families: Vec<(&'static str, EvalFamily)>,
}

impl Slots {
    /// The variable of a name that is known only now, as in a command of SSI; the name is in lower case.
    pub fn find(&self, name: &str) -> Option<Var> {
        if let Some(slot) = self.names.get(name) {
            return Some(Var::Slot(*slot));
        }
        if let Some(eval) = self.one.get(name) {
            return Some(Var::One(*eval));
        }
        let (eval, suffix) = family(&self.families, name)?;
        Some(Var::Family(eval, suffix, None))
    }

    /// The name of a slot, for messages.
    pub fn name(&self, slot: u16) -> &str {
        self.names.iter().find(|(_, at)| **at == slot).map_or("", |(name, _)| name)
    }
}

/// The family a name belongs to: the one with the longest prefix; and what follows the prefix.
fn family(families: &[(&'static str, EvalFamily)], name: &str) -> Option<(EvalFamily, Box<[u8]>)> {
    let families = families.iter().filter(|(prefix, _)| name.starts_with(prefix));
    let (prefix, eval) = families.max_by_key(|(prefix, _)| prefix.len())?;
    Some((*eval, name.as_bytes()[prefix.len()..].into()))
}

/// Where a new value of a variable goes (`set` and its like).
#[derive(Clone, Copy)]
pub enum Place {
    /// A slot of the request.
    Slot(u16),
    /// The variable takes it itself.
    Assign(Assign),
}

impl Place {
    /// Stores `value`.
    pub fn store(self, r: &mut Request, value: Vec<u8>) {
        match self {
            Self::Slot(slot) => r.set_slot(slot, value),
            Self::Assign(assign) => assign(r, value),
        }
    }
}

/// All names known while a configuration is loaded.
#[derive(Default)]
pub struct VarTable {
    one: HashMap<&'static str, (Eval, Option<Assign>)>,
    families: Vec<(&'static str, EvalFamily)>,
    /// Stored variables of modules, which nothing else may change.
    fixed: HashSet<&'static str>,
    slots: HashMap<Box<str>, u16>,
    kinds: Vec<Option<SlotKind>>,
    /// The names of the slots.
    names: Vec<Box<str>>,
    /// Where slots were used that nobody had defined by then, for messages about unknown variables.
    open: Vec<(u16, Option<Span>)>,
    /// Whether `$realpath_root` was bound in the block that is being resolved or in one around it.
    pub(crate) realpath_root: bool,
}

impl VarTable {
    /// Adds the variables of one module.
    pub fn declare(&mut self, defs: &'static [VarDef]) {
        for def in defs {
            match def.get {
                Get::One(eval) => {
                    self.one.insert(def.name, (eval, def.assign));
                }
                Get::Family(eval) => self.families.push((def.name, eval)),
                Get::Kept(eval) => {
                    self.define(def.name, SlotKind::Computed(Arc::new(eval)));
                }
                Get::Stored => {
                    self.define(def.name, SlotKind::Stored);
                    self.fixed.insert(def.name);
                }
            }
        }
    }

    /// Binds a name as used in a template. A name nobody declared gets a slot and must be defined before [`finish`].
    ///
    /// [`finish`]: Self::finish
    pub fn bind(&mut self, name: &str, at: Option<Span>) -> Var {
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
        if let Some(&(eval, _)) = self.one.get(name.as_str()) {
            self.realpath_root |= name == REALPATH_ROOT;
            return Var::One(eval);
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

    /// Where new values of `name` are stored, which becomes a stored variable if nobody declared it.
    /// The error is nginx's: the variable is one that nothing may change.
    pub fn place(&mut self, name: &str) -> Result<Place, ConfError> {
        self.place_as(name, SlotKind::Stored)
    }

    /// The same for `set`.
    ///
    /// Of a family, a name that was not set has the value it has without `set`.
    pub fn place_of_set(&mut self, name: &str) -> Result<Place, ConfError> {
        match family(&self.families, &name.to_ascii_lowercase()) {
            Some((eval, suffix)) => self.place_as(name, SlotKind::Family(eval, suffix)),
            None => self.place_as(name, SlotKind::Set),
        }
    }

    fn place_as(&mut self, name: &str, kind: SlotKind) -> Result<Place, ConfError> {
        let lower = name.to_ascii_lowercase();
        match self.one.get(lower.as_str()) {
            None if self.fixed.contains(lower.as_str()) => {
                Err(ConfError::new(format!("the duplicate \"{name}\" variable")))
            }
            Some((_, Some(assign))) => Ok(Place::Assign(*assign)),
            Some((_, None)) => Err(ConfError::new(format!("the duplicate \"{name}\" variable"))),
            None => Ok(Place::Slot(self.define(name, kind))),
        }
    }

    /// Makes `name` a stored variable that a named group of a regular expression fills. A variable that `set` may change
    /// is hidden by it, as in nginx.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn capture(&mut self, name: &str) -> Result<(), ConfError> {
        if let Place::Assign(_) = self.place(name)? {
            self.define(name, SlotKind::Stored);
        }
        Ok(())
    }

    /// Makes `name` a variable that is computed, as `map` does. It hides one that `set` may change; of two definitions the
    /// later one holds.
    ///
    /// # Errors
    /// nginx's: the variable is one that nothing may change.
    pub fn compute(&mut self, name: &str, kind: SlotKind) -> Result<(), ConfError> {
        self.place(name)?;
        self.define(name, kind);
        Ok(())
    }

    /// Defines a name as a slot and says how it is filled. A stored slot does not replace a computed one.
    pub fn define(&mut self, name: &str, kind: SlotKind) -> u16 {
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

    /// Every use of a name that nobody has defined.
    pub(crate) fn undefined(&self) -> Vec<(String, Option<Span>)> {
        let open = self.open.iter().filter(|(slot, _)| self.kinds[usize::from(*slot)].is_none());
        open.map(|(slot, at)| (self.names[usize::from(*slot)].to_string(), *at)).collect()
    }

    /// Whether a name, in lower case, has a value.
    pub(crate) fn is_defined(&self, name: &str) -> bool {
        let has_slot = || self.slots.get(name).is_some_and(|slot| self.kinds[usize::from(*slot)].is_some());
        self.one.contains_key(name) || has_slot() || family(&self.families, name).is_some()
    }

    /// The name that is nearest to one that has no value.
    pub(crate) fn nearest(&self, name: &str) -> Option<&str> {
        let mut names: Vec<&str> = self.one.keys().copied().collect();
        names.extend(self.slots.keys().map(|name| &**name).filter(|name| self.is_defined(name)));
        names.sort_unstable();
        tw_conf::nearest(name, names)
    }

    /// Ends loading: every slot that is used must have been defined.
    pub fn finish(self) -> Result<Slots, ConfError> {
        if self.kinds.len() > usize::from(u16::MAX) {
            return Err(ConfError::new(format!("more than {} variables are defined", u16::MAX)));
        }
        if let Some((name, at)) = self.undefined().into_iter().next() {
            return Err(located(ConfError::new(format!("unknown \"{name}\" variable")), at));
        }
        let kinds = self.kinds.into_iter().flatten().collect();
        let one = self.one.into_iter().map(|(name, (eval, _))| (name, eval)).collect();
        Ok(Slots { kinds, names: self.slots, one, families: self.families })
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

/// The names of variables in a text, in lower case, whatever the text is for.
pub(crate) fn names_in(text: &[u8]) -> impl Iterator<Item = String> + '_ {
    text.split(|byte| *byte == b'$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix(b"{").unwrap_or(rest);
        let size = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let name = String::from_utf8_lossy(&rest[..size]).to_ascii_lowercase();
        Some(name).filter(|name| !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Text with variables, compiled at load.
#[derive(Clone)]
pub struct Template {
    parts: Box<[Part]>,
}

#[derive(Clone)]
enum Part {
    Text(Box<[u8]>),
    Var(Var),
    /// `$1` … `$9`: what the last regular expression captured.
    Capture(u8),
}

impl Template {
    /// Compiles `text`. Errors are nginx's (`invalid variable name`).
    pub fn compile(text: &[u8], at: Option<Span>, vars: &mut VarTable) -> Result<Self, ConfError> {
        let fail = |message: String| located(ConfError::new(message), at);
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.iter().position(|&b| b == b'$') {
            literal.extend_from_slice(&rest[..dollar]);
            rest = &rest[dollar + 1..];
            if let [digit @ b'0'..=b'9', tail @ ..] = rest {
                flush(&mut literal, &mut parts);
                parts.push(Part::Capture(digit - b'0'));
                rest = tail;
                continue;
            }
            let braced = rest.first() == Some(&b'{');
            let name_at = &rest[usize::from(braced)..];
            let len = name_at.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
            let name = String::from_utf8_lossy(&name_at[..len]).into_owned();
            rest = &name_at[len..];
            if braced {
                rest = rest
                    .strip_prefix(b"}")
                    .ok_or_else(|| fail(format!("the closing bracket in \"{name}\" variable is missing")))?;
            }
            if name.is_empty() {
                return Err(fail(format!("invalid variable name in \"{}\"", String::from_utf8_lossy(text))));
            }
            flush(&mut literal, &mut parts);
            parts.push(match name.as_bytes() {
                [digit @ b'0'..=b'9'] => Part::Capture(digit - b'0'),
                _ => Part::Var(vars.bind(&name, at)),
            });
        }
        literal.extend_from_slice(rest);
        flush(&mut literal, &mut parts);
        Ok(Self { parts: parts.into() })
    }

    /// A template without variables.
    pub fn text(text: &[u8]) -> Self {
        Self { parts: if text.is_empty() { [].into() } else { [Part::Text(text.into())].into() } }
    }

    /// The texts of several templates after each other.
    pub fn joined(templates: impl IntoIterator<Item = Self>) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        for part in templates.into_iter().flat_map(|template| template.parts) {
            match (parts.last_mut(), part) {
                (Some(Part::Text(last)), Part::Text(text)) => *last = [&**last, &*text].concat().into(),
                (_, part) => parts.push(part),
            }
        }
        Self { parts: parts.into() }
    }

    /// The text, if there is no variable in it.
    pub fn constant(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first variable.
    pub fn prefix(&self) -> &[u8] {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => b"",
        }
    }

    /// Appends the text for `r`; a missing variable adds nothing. Never waits; allocates only to grow `out`.
    pub fn eval(&self, r: &Request, out: &mut Vec<u8>) {
        self.eval_each(r, out, |_, _, _| {});
    }

    /// As [`Template::eval`], and calls `each` after every variable with where its value begins in `out` and whether
    /// there was one: for those who write values or missing ones in their own way, as an access log does.
    pub fn eval_each(
        &self,
        r: &Request,
        out: &mut Vec<u8>,
        mut each: impl FnMut(&mut Vec<u8>, usize, Value),
    ) {
        for part in &self.parts {
            let start = out.len();
            let value = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                Part::Var(var) => var.eval(r, out),
                Part::Capture(n) => match r.route.captures.borrow().group(usize::from(*n)) {
                    Some(group) => {
                        out.extend_from_slice(group);
                        Value::Found
                    }
                    None => Value::Missing,
                },
            };
            each(out, start, value);
        }
    }

    /// As [`Template::eval`], but what regular expressions captured is written by `capture`, which escapes it.
    pub fn eval_captures(&self, r: &Request, out: &mut Vec<u8>, capture: impl Fn(&[u8], &mut Vec<u8>)) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Var(var) => {
                    var.eval(r, out);
                }
                Part::Capture(n) => {
                    if let Some(group) = r.route.captures.borrow().group(usize::from(*n)) {
                        capture(group, out);
                    }
                }
            }
        }
    }

    /// The text for `r` as a new vector.
    pub fn value(&self, r: &Request) -> Vec<u8> {
        let mut out = Vec::new();
        self.eval(r, &mut out);
        out
    }
}

fn located(error: ConfError, at: Option<Span>) -> ConfError {
    match at {
        Some(span) => error.at(span),
        None => error,
    }
}

fn flush(literal: &mut Vec<u8>, parts: &mut Vec<Part>) {
    if !literal.is_empty() {
        parts.push(Part::Text(std::mem::take(literal).into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with_request;

    static SOME: &[VarDef] = &[
        VarDef::one("found", |_, out| put(out, b"f"), ""),
        VarDef::one("missing", |_, _| Value::Missing, ""),
        VarDef::one("open", |_, out| put(out, b"o"), "").assigned_by(|_, _| {}),
        VarDef::family("in_", |_, suffix, out| put(out, suffix), ""),
        VarDef::family("in_deep_", |_, suffix, out| put(out, &[b"deep ", suffix].concat()), ""),
    ];

    fn put(out: &mut Vec<u8>, value: &[u8]) -> Value {
        out.extend_from_slice(value);
        Value::Found
    }

    fn table() -> VarTable {
        let mut vars = VarTable::default();
        vars.declare(SOME);
        vars
    }

    #[test]
    fn templates_tell_missing_values_from_empty_ones() {
        let values = with_request("server { }", "GET / HTTP/1.0\r\n\r\n", |r| {
            let mut vars = table();
            ["a", "", "$found", "<$missing>", "$in_X$in_deep_y|${in_}z", "$1"].map(|text| {
                let template = Template::compile(text.as_bytes(), None, &mut vars).unwrap();
                let mut out = b"=".to_vec();
                template.eval_each(r, &mut out, |out, start, value| match value {
                    Value::Found => out.insert(start, b'+'),
                    Value::Missing => out.push(b'-'),
                });
                let mut plain = Vec::new();
                template.eval(r, &mut plain);
                [out, plain].map(|text| String::from_utf8(text).unwrap())
            })
        });
        let expected = [
            ["=a", "a"],
            ["=", ""],
            ["=+f", "f"],
            ["=<->", "<>"],
            ["=+x+deep y|+z", "xdeep y|z"],
            ["=-", ""],
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn joined_templates_keep_their_names_apart() {
        let mut vars = table();
        let parts = ["x ", "", "y$found", "found$open", "z", "w"];
        let parts = parts.map(|text| Template::compile(text.as_bytes(), None, &mut vars).unwrap());
        let joined = Template::joined(parts);
        assert_eq!(joined.parts.len(), 5);
        let value = with_request("server { }", "GET / HTTP/1.0\r\n\r\n", move |r| joined.value(r));
        assert_eq!(value, b"x yffoundozw");
        assert_eq!(Template::joined([]).constant(), Some(&b""[..]));
    }

    #[test]
    fn places_of_new_values() {
        let mut vars = table();
        let place = |vars: &mut VarTable, name: &str| match vars.place(name) {
            Ok(Place::Slot(slot)) => slot.to_string(),
            Ok(Place::Assign(_)) => "assign".to_owned(),
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
        assert!(matches!(vars.place("open"), Ok(Place::Assign(_))), "`set` changes what is hidden");
    }
}
