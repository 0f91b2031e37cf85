//! Values of the variables of one session, by slot, and the captures of its last match.
//!
//! Every reader has the session borrowed already, so all changes here happen behind a shared reference.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use tw_log::{Level, Text};

use super::values::{Cycle, Values};
use super::{SlotKind, Slots, Value};
use crate::regex::{BacktrackLimit, Captures, Match, Regex};
use crate::session::Session;

/// The values of one session.
#[derive(Default)]
pub struct Bindings {
    /// Captures of the last match.
    pub captures: RefCell<Captures>,
    /// Values of stored variables and of computed ones that are kept, by slot, unless they are shared.
    values: RefCell<Values>,
    /// The values that it has in common with other sessions.
    shared: Option<Rc<RefCell<Values>>>,
    /// Set to `Failed` by an evaluation that could not report its error.
    eval_status: Cell<EvalStatus>,
    /// True while [`peek`](Self::peek) runs.
    is_peeking: Cell<bool>,
}

/// Success of the evaluations in a session since it was last asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EvalStatus {
    /// No evaluation has failed.
    #[default]
    Ok,
    /// A variable needs its own value, and was missing.
    Cycle,
    /// A variable could not be computed; what was decided by it must not stand.
    Failed,
}

impl Bindings {
    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.captures.get_mut().clear();
        self.values.get_mut().clear();
        self.shared = None;
        self.eval_status.set(EvalStatus::Ok);
        self.is_peeking.set(false);
    }

    /// Gives back the memory for more values: a session that lasts long stores few.
    pub fn shrink(&mut self) {
        self.values.get_mut().shrink();
    }

    /// Returns the status and resets it to `Ok`.
    pub fn take_eval_status(&self) -> EvalStatus {
        self.eval_status.replace(EvalStatus::Ok)
    }

    /// Values by slot: its own, or those it shares.
    fn values(&self) -> &RefCell<Values> {
        self.shared.as_deref().unwrap_or(&self.values)
    }

    /// Makes the values of slots those of `other`, too: from here on each of them sees what the other stores. Allocates
    /// the first time `other` shares its values.
    pub fn share_values(&mut self, other: &mut Self) {
        let Bindings { values, shared, .. } = other;
        self.shared = Some(shared.get_or_insert_with(|| Rc::new(RefCell::new(values.take()))).clone());
    }

    /// Gives the values of the slots of another session to this one, which goes its own way with them.
    pub fn copy_values(&self, other: &Self) {
        let values = other.values().borrow().clone();
        *self.values().borrow_mut() = values;
    }

    /// The values that were stored, without those that were computed and without what was captured: for a session like this one,
    /// in which other values come out.
    pub fn without_computed<S>(&self, slots: &Slots<S>) -> Self {
        let mut values = self.values().borrow().clone();
        for (slot, kind) in (0..).zip(&slots.kinds) {
            if matches!(kind, SlotKind::Computed(_)) {
                values.forget(slot);
            }
        }
        Self { values: RefCell::new(values), ..Self::default() }
    }

    /// Runs `evaluate`, which may evaluate variables, and forgets everything that it has computed, matched or failed at. Does nothing
    /// while an evaluation has the captures, or within another call: what a log line evaluates may log.
    pub fn peek(&self, evaluate: impl FnOnce()) {
        let Ok(captures) = self.captures.try_borrow_mut().map(|captures| captures.clone()) else { return };
        let Ok(values) = self.values().try_borrow_mut().map(|values| values.clone()) else { return };
        if self.is_peeking.replace(true) {
            return;
        }
        let status = self.eval_status.get();
        evaluate();
        self.eval_status.set(status);
        *self.values().borrow_mut() = values;
        *self.captures.borrow_mut() = captures;
        self.is_peeking.set(false);
    }

    /// Drops computed values so that they are computed anew, after something that they depend on has changed. Stored
    /// values stay.
    pub fn forget_computed(&self) {
        self.values().borrow_mut().forget_computed();
    }

    /// Appends the value that a slot has by now; `None` if it has none.
    pub(crate) fn read(&self, slot: u16, out: &mut Vec<u8>) -> Option<Value> {
        self.values().borrow().read(slot, out)
    }

    /// Stores a value in a slot.
    pub(crate) fn store(&self, slot: u16, value: &[u8]) {
        self.values().borrow_mut().store(slot, value);
    }
}

/// Appends the value of a slot, which is computed if there is none.
pub(crate) fn slot<S: Session>(s: &S, slot: u16, out: &mut Vec<u8>) -> Value {
    let slots = s.slots();
    let Some(kind) = slots.kinds.get(usize::from(slot)) else { return Value::Missing };
    let bindings = s.bindings();
    if let Some(value) = bindings.read(slot, out) {
        return value;
    }
    let compute = match (s.block_computation(slot), kind) {
        (Some(compute), _) => compute,
        (None, SlotKind::Computed(compute) | SlotKind::Volatile(compute)) => compute,
        (None, SlotKind::Stored) => return Value::Missing,
        (None, SlotKind::Set) => return uninitialized(s, slot),
        (None, SlotKind::Declared(declared) | SlotKind::Changeable(declared)) => {
            return declared.eval(s, out);
        }
    };
    // The log may ask for values again: nothing is borrowed meanwhile.
    let begun = bindings.values().borrow_mut().begin(slot);
    if let Err(Cycle) = begun {
        let name = slots.name(slot);
        s.log(Level::Error, format_args!("cycle while evaluating variable \"{name}\""));
        if bindings.eval_status.get() == EvalStatus::Ok {
            bindings.eval_status.set(EvalStatus::Cycle);
        }
        return Value::Missing;
    }
    let start = out.len();
    let value = compute(s, out);
    let mut values = bindings.values().borrow_mut();
    match kind {
        SlotKind::Volatile(_) => values.dropped(slot),
        _ => values.computed(slot, value, out.get(start..).unwrap_or_default()),
    }
    value
}

/// Value of a variable before `set` has given it one: empty, once with a warning.
fn uninitialized<S: Session>(s: &S, slot: u16) -> Value {
    if s.warns_of_uninitialized() {
        let name = s.slots().name(slot);
        s.log(Level::Warn, format_args!("using uninitialized \"{name}\" variable"));
    }
    s.bindings().store(slot, b"");
    Value::Found
}

/// Matches `subject`, and keeps what was captured.
pub(crate) fn matches<S: Session>(s: &S, regex: &Regex, subject: &[u8]) -> Result<Match, BacktrackLimit> {
    let mut captures = s.bindings().captures.borrow_mut();
    let matched = match regex.is_match(subject) {
        // Most searches do not match, and a miss without captures takes a third of the time of a miss with captures.
        Ok(Match::Yes) => regex.captures(subject, &mut captures),
        other => other,
    };
    match matched {
        Ok(Match::Yes) => {
            s.store_named(regex, &captures);
            Ok(Match::Yes)
        }
        Ok(Match::No) => Ok(Match::No),
        Err(BacktrackLimit) => {
            drop(captures);
            Err(given_up(s, regex, subject))
        }
    }
}

/// Finds the next match from byte `from` of `subject` on, and keeps what was captured.
pub(crate) fn match_from<S: Session>(
    s: &S,
    regex: &Regex,
    subject: &[u8],
    from: usize,
) -> Result<Option<Range<usize>>, BacktrackLimit> {
    let mut captures = s.bindings().captures.borrow_mut();
    match regex.captures_from(subject, from, &mut captures) {
        Ok(Some(place)) => {
            s.store_named(regex, &captures);
            Ok(Some(place))
        }
        Ok(None) => Ok(None),
        Err(BacktrackLimit) => {
            drop(captures);
            Err(given_up(s, regex, subject.get(from..).unwrap_or_default()))
        }
    }
}

/// Logs a match that was given up, and fails what depends on it.
fn given_up<S: Session>(s: &S, regex: &Regex, subject: &[u8]) -> BacktrackLimit {
    let subject = Text(subject);
    let pattern = regex.pattern();
    s.log(
        Level::Error,
        format_args!("regex \"{pattern}\" exceeded its limit of backtracking on \"{subject}\""),
    );
    // DIFF(nginx): what is decided by a match that was given up must not stand.
    s.bindings().eval_status.set(EvalStatus::Failed);
    BacktrackLimit
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tw_conf::Span;

    use super::*;
    use crate::regex::Caseless;
    use crate::testing::{Plain, table};
    use crate::vars::{Template, VarTable};

    /// Counts how often it was computed, in its value.
    fn counted(
        vars: &mut VarTable<Plain>,
        name: &str,
        kind: fn(super::super::Computed<Plain>) -> SlotKind<Plain>,
    ) {
        let count = AtomicU32::new(0);
        let compute = move |_: &Plain, out: &mut Vec<u8>| {
            out.extend_from_slice((count.fetch_add(1, Relaxed) + 1).to_string().as_bytes());
            Value::Found
        };
        vars.compute(name, kind(Arc::new(compute)), Span::default()).unwrap();
    }

    #[test]
    fn values_are_stored_computed_once_or_each_time() {
        let mut vars = table();
        counted(&mut vars, "kept", SlotKind::Computed);
        counted(&mut vars, "volatile", SlotKind::Volatile);
        vars.set_target("set", Span::default()).unwrap();
        vars.set_target("in_x", Span::default()).unwrap();
        let text =
            Template::compile(b"$kept$kept $volatile$volatile <$set$set> $in_x", None, &mut vars).unwrap();
        let mut s = Plain::new(vars);
        assert_eq!(text.value(&s), b"11 12 <> x");
        assert_eq!(s.logged.take(), ["warn: using uninitialized \"set\" variable"]);
        for name in ["kept", "volatile", "set", "in_x"] {
            let slot = s.slots().of(name).unwrap();
            s.set_slot(slot, "=");
        }
        assert_eq!(text.value(&s), b"== == <==> =");
        let mut bindings = Bindings::default();
        bindings.values.swap(s.bindings().values());
        assert_eq!(text.value(&s), b"22 34 <> x");
        bindings.values.swap(s.bindings().values());
        assert_eq!(text.value(&s), b"== == <==> =");
        bindings.copy_values(s.bindings());
        s.set_slot(s.slots().of("kept").unwrap(), "changed");
        bindings.values.swap(s.bindings().values());
        assert_eq!(text.value(&s), b"== == <==> =");
        bindings.clear();
        bindings.values.swap(s.bindings().values());
        assert_eq!(text.value(&s), b"33 56 <> x");
        s.set_slot(s.slots().of("set").unwrap(), "kept");
        let other = s.bindings().without_computed(s.slots());
        other.values.swap(s.bindings().values());
        assert_eq!(text.value(&s), b"44 78 <keptkept> x");
        s.bindings().forget_computed();
        assert_eq!(text.value(&s), b"55 910 <keptkept> x");
        s.set_slot(s.slots().of("kept").unwrap(), "=");
        s.bindings().forget_computed();
        assert_eq!(text.value(&s), b"== 1112 <keptkept> x");
    }

    #[test]
    fn shared_values_are_seen_by_both_sessions() {
        let mut one = Bindings::default();
        let mut other = Bindings::default();
        let read = |of: &Bindings, slot| {
            let mut out = Vec::new();
            of.read(slot, &mut out).map(|_| out)
        };
        one.store(0, b"before");
        other.share_values(&mut one);
        other.store(1, b"by other");
        one.store(2, b"by one");
        for (slot, expected) in [(0, b"before".as_slice()), (1, b"by other"), (2, b"by one")] {
            assert_eq!(read(&one, slot).as_deref(), Some(expected));
            assert_eq!(read(&other, slot).as_deref(), Some(expected));
        }
        let mut third = Bindings::default();
        third.share_values(&mut other);
        other.clear();
        assert_eq!(read(&other, 0), None);
        third.store(0, b"after");
        assert_eq!(read(&one, 0).as_deref(), Some(b"after".as_slice()));
    }

    #[test]
    fn a_variable_that_needs_itself_is_missing() {
        let mut vars = table();
        let slot = vars.define("a", SlotKind::Stored);
        let compute = Arc::new(move |s: &Plain, out: &mut Vec<u8>| s.slot(slot, out));
        vars.compute("a", SlotKind::Computed(compute), Span::default()).unwrap();
        let s = Plain::new(vars);
        assert_eq!(s.slot(slot, &mut Vec::new()), Value::Missing);
        assert_eq!(s.logged.take(), ["error: cycle while evaluating variable \"a\""]);
        assert_eq!(s.bindings().take_eval_status(), EvalStatus::Cycle);
    }

    #[test]
    fn match_sets_groups_and_named_variables() {
        let mut vars = table();
        vars.capture("Rest", Span::default()).unwrap();
        let text = Template::compile(b"$1 $rest", None, &mut vars).unwrap();
        let s = Plain::new(vars);
        let regex = |pattern: &[u8]| Regex::new(pattern, Caseless::No).unwrap();
        assert_eq!(s.matches(&regex(b"^a(.)(?<rest>.*)$"), b"abcd"), Ok(Match::Yes));
        assert_eq!(s.matches(&regex(b"^(x)"), b"abcd"), Ok(Match::No));
        assert_eq!(text.value(&s), b"b cd");
        assert_eq!(s.bindings().take_eval_status(), EvalStatus::Ok);
        let given_up = s.matches(&regex(b"^((a|aa)+)+(?!x)\\1c$"), &[b'a'; 64]);
        assert_eq!(given_up, Err(BacktrackLimit));
        assert!(s.logged.take()[0].starts_with("error: regex \"^((a|aa)+)+(?!x)\\1c$\" exceeded"));
        let healths = [(); 2].map(|()| s.bindings().take_eval_status());
        assert_eq!(healths, [EvalStatus::Failed, EvalStatus::Ok]);
        assert_eq!(text.value(&s), b"b cd");
    }
}
