//! Variables and templates (nginx: complex values) of one kind of session.
//!
//! A name is bound once, at load: to a function of the session, to a family (`http_`, `arg_` …) with its suffix, or to a
//! slot that `set`, a named capture or a module fills. Evaluating a [`Template`] is a walk over its parts and never waits.
//!
//! A configuration may define a variable whose name a module has declared, unless nginx has it and refuses that. Then the name
//! has a slot of the configuration, while the slot of the module, and whoever asks for that, stay as they are.

mod awaited;
pub(crate) mod bindings;
mod session_variables;
mod table;
mod template;
mod values;
pub mod write;

use std::sync::Arc;

use foldhash::HashMap;
use tw_base::Limit;

use crate::session::Session;

pub use awaited::{AwaitVariable, VariableUses};
pub use bindings::{Bindings, EvalStatus};
pub use session_variables::{ProxiedSession, ServedSession, SessionVariables};
pub use table::VarTable;
pub use template::{Template, names_in};

/// Limits of the values of one session.
pub(crate) const LIMITS: &[Limit] = values::LIMITS;

/// Presence of a value. A missing one is written as nothing, or `-` in an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// The value was appended.
    Found,
    /// There is none; nothing was appended.
    Missing,
}

/// Computes a variable: appends its value to `out`.
pub type Eval<S> = fn(s: &S, out: &mut Vec<u8>) -> Value;
/// Computes a variable of a family, given what follows the prefix (lower case).
pub type EvalFamily<S> = fn(s: &S, suffix: &[u8], out: &mut Vec<u8>) -> Value;
/// Takes a new value for a variable that is not merely stored (`set $args …`).
pub type Assign<S> = fn(s: &mut S, value: Vec<u8>);

/// A variable as a module declares it.
pub struct VarDef<S> {
    /// Name without `$`; for a family the prefix, ending in `_`.
    pub name: &'static str,
    /// Way of computing it.
    pub get: VarKind<S>,
    /// Setter; `None` if the variable cannot be changed.
    pub assign: Option<Assign<S>>,
    /// Time from which its value is known.
    pub when: Availability,
    /// One line for `docs/variables.md`.
    pub doc: &'static str,
}

/// Time from which the value of a variable is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// Whenever it is asked for.
    Always,
    /// Once what it needs has been seen to where a block uses it.
    Prepared(Preparations),
}

/// Preparations that run only where a block uses a variable that needs them: bits with a meaning that the protocol
/// defines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preparations(pub u8);

/// The fingerprint of a client hello, in every protocol.
pub const CLIENT_HELLO: Preparations = Preparations(1 << 7);
/// The address that took the connection, in every protocol. The other bits have a meaning for one protocol.
pub const LOCAL_ADDR: Preparations = Preparations(1 << 6);

impl Preparations {
    /// Returns true if all of `others` are among them.
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// Way of computing a declared variable.
pub enum VarKind<S> {
    /// One name.
    One(Eval<S>),
    /// All names that begin with the prefix.
    Family(EvalFamily<S>),
    /// One name; the value is kept in the session. A block may say how it is computed there, see
    /// [`Session::block_computation`].
    Cached(Eval<S>),
    /// One name; the value is computed each time. A block may say how it is computed there.
    Volatile(Eval<S>),
    /// The module stores its value in the session, in the slot that it gets at load.
    Stored,
}

impl<S> VarDef<S> {
    /// A variable with one name.
    pub const fn one(name: &'static str, eval: Eval<S>, doc: &'static str) -> Self {
        Self::new(name, VarKind::One(eval), doc)
    }

    /// A variable whose value is kept in the session, and which `set` and its like may replace. A block may say how it is
    /// computed there.
    pub const fn cached(name: &'static str, eval: Eval<S>, doc: &'static str) -> Self {
        Self::new(name, VarKind::Cached(eval), doc)
    }

    /// A variable that is computed each time. A block may say how it is computed there.
    pub const fn volatile(name: &'static str, eval: Eval<S>, doc: &'static str) -> Self {
        Self::new(name, VarKind::Volatile(eval), doc)
    }

    /// A family of variables.
    pub const fn family(prefix: &'static str, eval: EvalFamily<S>, doc: &'static str) -> Self {
        Self::new(prefix, VarKind::Family(eval), doc)
    }

    /// A variable whose value the module stores when it knows it; missing until then.
    pub const fn stored(name: &'static str, doc: &'static str) -> Self {
        Self::new(name, VarKind::Stored, doc)
    }

    const fn new(name: &'static str, get: VarKind<S>, doc: &'static str) -> Self {
        Self { name, get, assign: None, when: Availability::Always, doc }
    }

    /// Makes the variable assignable.
    pub const fn assigned_by(mut self, assign: Assign<S>) -> Self {
        self.assign = Some(assign);
        self
    }

    /// Marks the variable as one whose value must be [prepared](Availability::Prepared).
    pub const fn prepared(mut self, by: Preparations) -> Self {
        self.when = Availability::Prepared(by);
        self
    }
}

/// A variable bound at load.
pub enum Var<S> {
    /// A variable of a module, whose name the configuration cannot define.
    Declared(DeclaredVar<S>),
    /// A slot ([`Session::slot`]).
    Slot(u16),
    /// A variable of a module, unless the configuration defines the slot of its name.
    Definable(DeclaredVar<S>, u16),
}

/// A variable that a module declares.
pub enum DeclaredVar<S> {
    /// A function of the session.
    One(Eval<S>),
    /// A family and the suffix.
    Family(EvalFamily<S>, Box<[u8]>),
    /// A slot that nothing but the module fills.
    Slot(u16),
}

impl<S: Session> DeclaredVar<S> {
    /// Appends the value for `s` to `out`.
    pub(crate) fn eval(&self, s: &S, out: &mut Vec<u8>) -> Value {
        match self {
            Self::One(eval) => eval(s, out),
            Self::Family(eval, suffix) => eval(s, suffix, out),
            Self::Slot(slot) => s.slot(*slot, out),
        }
    }
}

impl<S: Session> Var<S> {
    /// Appends the value for `s` to `out`.
    pub fn eval(&self, s: &S, out: &mut Vec<u8>) -> Value {
        match self {
            Var::Declared(declared) => declared.eval(s, out),
            Var::Slot(slot) => s.slot(*slot, out),
            // The configuration may define the variable further down, so the kind of the slot is known only later.
            Var::Definable(declared, slot) => match s.slots().kinds.get(usize::from(*slot)) {
                None | Some(SlotKind::Declared(_)) => declared.eval(s, out),
                Some(SlotKind::Changeable(_)) => {
                    s.stored(*slot, out).unwrap_or_else(|| declared.eval(s, out))
                }
                Some(_) => s.slot(*slot, out),
            },
        }
    }

    /// Returns `true` if the configuration has not defined the value for `s`, neither as `map` does nor by `set`.
    fn is_given(&self, s: &S) -> bool {
        match self {
            Var::Declared(_) => true,
            Var::Definable(_, slot) => match s.slots().kinds.get(usize::from(*slot)) {
                None | Some(SlotKind::Declared(_)) => true,
                Some(SlotKind::Changeable(_)) => s.stored(*slot, &mut Vec::new()).is_none(),
                Some(_) => false,
            },
            Var::Slot(_) => false,
        }
    }

    /// Returns `true` if the value for `s` is neither empty nor `0`. Allocates only to grow the session's scratch buffer.
    pub fn is_set(&self, s: &S) -> bool {
        let mut value = s.scratch().take();
        value.clear();
        self.eval(s, &mut value);
        let is_set = !matches!(&*value, b"" | b"0");
        s.scratch().set(value);
        is_set
    }
}

/// A computed variable that a module defines at load (`map`, `geo` …).
pub type Computed<S> = Arc<dyn Fn(&S, &mut Vec<u8>) -> Value + Send + Sync>;

/// Source of the value in a slot.
pub enum SlotKind<S> {
    /// A handler stores a value in the session (named captures).
    Stored,
    /// `set` stores a value in the session; using it before is worth a warning.
    Set,
    /// Computed on first use and kept in the session; a stored value takes precedence.
    Computed(Computed<S>),
    /// Computed on each use, unless a value is stored.
    Volatile(Computed<S>),
    /// The variable of a module, which nothing defines.
    Declared(DeclaredVar<S>),
    /// The variable of a module, unless `set` has stored a value.
    Changeable(DeclaredVar<S>),
}

/// The slots of a configuration.
pub struct Slots<S> {
    /// Source of each slot's value.
    pub kinds: Box<[SlotKind<S>]>,
    /// Preparations that some block needs.
    pub prepared: Preparations,
    /// Slots by the name that the configuration has for them.
    by_name: HashMap<Box<str>, u16>,
    /// Name of each slot. A slot of a module may have the name of a slot that the configuration defines.
    names: Box<[Box<str>]>,
    declared: HashMap<&'static str, DeclaredVar<S>>,
    /// Variables of modules that take a new value themselves.
    assigned: HashMap<&'static str, Assign<S>>,
    families: Vec<(&'static str, EvalFamily<S>)>,
}

impl<S> Slots<S> {
    /// Target for a new value of a name that is known only now, in lower case; `None` if nothing may change it.
    pub fn target(&self, name: &str) -> Option<VarTarget<S>> {
        if let Some(assign) = self.assigned.get(name) {
            return Some(VarTarget::Assign(*assign));
        }
        let slot = *self.by_name.get(name)?;
        match self.kinds.get(usize::from(slot)) {
            None | Some(SlotKind::Declared(_)) => None,
            Some(_) => Some(VarTarget::Slot(slot)),
        }
    }

    /// The variable of a name that is known only now, as in a command of SSI; the name is in lower case.
    pub fn find(&self, name: &str) -> Option<Var<S>> {
        if let Some(slot) = self.by_name.get(name) {
            return Some(Var::Slot(*slot));
        }
        if let Some(declared) = self.declared.get(name) {
            return Some(Var::Declared(declared.clone()));
        }
        family(&self.families, name).map(Var::Declared)
    }

    /// The slot of a name that has one.
    pub fn of(&self, name: &str) -> Option<u16> {
        self.by_name.get(name).copied()
    }

    /// The name of a slot, for messages.
    pub fn name(&self, slot: u16) -> &str {
        self.names.get(usize::from(slot)).map_or("", |name| name)
    }
}

/// The member of a family that has this name: of the family with the longest prefix.
fn family<S>(families: &[(&'static str, EvalFamily<S>)], name: &str) -> Option<DeclaredVar<S>> {
    let families = families.iter().filter(|(prefix, _)| name.starts_with(prefix));
    let (prefix, eval) = families.max_by_key(|(prefix, _)| prefix.len())?;
    Some(DeclaredVar::Family(*eval, name.as_bytes()[prefix.len()..].into()))
}

/// Target of a new value (`set` and the like).
pub enum VarTarget<S> {
    /// A slot of the session.
    Slot(u16),
    /// The variable takes it itself.
    Assign(Assign<S>),
}

impl<S: Session> VarTarget<S> {
    /// Stores `value`.
    pub fn store(self, s: &mut S, value: Vec<u8>) {
        match self {
            Self::Slot(slot) => s.set_slot(slot, value),
            Self::Assign(assign) => assign(s, value),
        }
    }
}

// `#[derive(Clone, Copy)]` would bound `S`, although none of these types holds a session.

impl<S> Clone for VarKind<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for VarKind<S> {}

impl<S> Clone for VarTarget<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for VarTarget<S> {}

impl<S> Clone for DeclaredVar<S> {
    fn clone(&self) -> Self {
        match self {
            Self::One(eval) => Self::One(*eval),
            Self::Family(eval, suffix) => Self::Family(*eval, suffix.clone()),
            Self::Slot(slot) => Self::Slot(*slot),
        }
    }
}

impl<S> Clone for Var<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Declared(declared) => Self::Declared(declared.clone()),
            Self::Slot(slot) => Self::Slot(*slot),
            Self::Definable(declared, slot) => Self::Definable(declared.clone(), *slot),
        }
    }
}
