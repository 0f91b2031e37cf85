//! Activity of a loop for readers on other threads, also while the loop hangs.
//!
//! The loop only stores: one word when a turn begins or ends, one when a task is polled. Neither side waits for the
//! other, and a snapshot is never torn, because names are kept once and stored as their numbers.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64};

use crate::watch::Subject;

/// Different names of tasks and operations that can be told apart; there are some ten of each.
const NAMES_MAX: usize = 127;
/// Name of all further operations.
const UNKNOWN: &str = "another";
/// Bits of the number of a subject. A server that accepts a million connections a second needs nine years to use them up.
const ID_BITS: u32 = 48;

/// Places at which a look-up of a name begins.
const HINTS: usize = 256;

/// Names, each at the place that is its number less one. Places are filled in order and never emptied.
struct Names {
    places: [OnceLock<&'static str>; NAMES_MAX],
    /// Place of the name that was looked up last, by a part of the name's address.
    hints: [AtomicU8; HINTS],
}

static NAMES: Names = Names::new();

impl Names {
    const fn new() -> Self {
        Self { places: [const { OnceLock::new() }; NAMES_MAX], hints: [const { AtomicU8::new(0) }; HINTS] }
    }

    /// The number of a name, from 1 on.
    fn number_of(&self, name: &'static str) -> u64 {
        // A name is mostly the same static string, so comparing the pointers usually suffices.
        let is_same = |candidate: &&'static str| std::ptr::eq(*candidate, name);
        let Some(hint) = self.hints.get(hint_of(name)) else { return NAMES_MAX as u64 + 1 };
        let place = hint.load(Relaxed);
        if self.places.get(usize::from(place)).and_then(OnceLock::get).is_some_and(is_same) {
            return u64::from(place) + 1;
        }
        let known_value = self.places.iter().map_while(OnceLock::get).position(is_same);
        let is = |slot: &OnceLock<&'static str>| *slot.get_or_init(|| name) == name;
        let place = known_value.or_else(|| self.places.iter().position(is)).unwrap_or(NAMES_MAX);
        hint.store(place as u8, Relaxed);
        place as u64 + 1
    }

    fn name_of(&self, number: u64) -> Option<&'static str> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        Some(self.places.get(index).and_then(OnceLock::get).copied().unwrap_or(UNKNOWN))
    }
}

/// Index of a name's hint: the upper bits of its address times a number without a pattern. Two names of one turn that share a hint
/// cost a search each time.
fn hint_of(name: &'static str) -> usize {
    let mixed = (name.as_ptr().addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - HINTS.ilog2())) as usize
}

/// Subject, operation and number of the running task, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActivityWord(u64);

impl ActivityWord {
    /// Works for `subject`. Looks its kind up: once for each task.
    pub(crate) fn of(subject: Subject) -> Self {
        let id = subject.id & ((1 << ID_BITS) - 1);
        Self(NAMES.number_of(subject.kind) << (ID_BITS + 8) | id)
    }

    fn with(self, operation: &'static str) -> Self {
        let none = 0xff << ID_BITS;
        Self(self.0 & !none | NAMES.number_of(operation) << ID_BITS)
    }

    pub(crate) fn subject(self) -> Option<Subject> {
        let kind = NAMES.name_of(self.0 >> (ID_BITS + 8))?;
        Some(Subject { kind, id: self.0 & ((1 << ID_BITS) - 1) })
    }

    pub(crate) fn operation(self) -> Option<&'static str> {
        NAMES.name_of(self.0 >> ID_BITS & 0xff)
    }
}

/// Current activity of a loop; written by its thread, read by any.
#[derive(Debug, Default)]
pub struct LoopActivity {
    /// Odd in a turn, even between two.
    turn: AtomicU64,
    doing: AtomicU64,
    thread: AtomicI32,
}

/// Activity at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivitySnapshot {
    /// Changes with every turn; `None` while the loop waits for events, or has not begun.
    pub turn: Option<u64>,
    /// Subject of the running task.
    pub subject: Option<Subject>,
    /// Name set by [`operation`](crate::watch::operation).
    pub operation: Option<&'static str>,
    /// The kernel's number of the loop's thread.
    pub thread: i32,
}

impl LoopActivity {
    /// Reads the current activity. Neither waits nor disturbs the loop.
    pub fn snapshot(&self) -> ActivitySnapshot {
        let turn = self.turn.load(Relaxed);
        let doing = ActivityWord(self.doing.load(Relaxed));
        ActivitySnapshot {
            turn: (turn % 2 == 1).then_some(turn),
            subject: doing.subject(),
            operation: doing.operation(),
            thread: self.thread.load(Relaxed),
        }
    }

    /// The calling thread is the loop's.
    pub(crate) fn settle(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
    }

    pub(crate) fn begin_turn(&self) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn + 1 + turn % 2, Relaxed);
    }

    pub(crate) fn rest(&self) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn + turn % 2, Relaxed);
    }

    pub(crate) fn show(&self, doing: ActivityWord) {
        self.doing.store(doing.0, Relaxed);
    }

    /// Shows an operation of what is being done; returns what to show after it.
    pub(crate) fn enter(&self, operation: &'static str) -> ActivityWord {
        let before = ActivityWord(self.doing.load(Relaxed));
        self.show(before.with(operation));
        before
    }

    pub(crate) fn doing(&self) -> ActivityWord {
        ActivityWord(self.doing.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_count_and_rest_is_no_turn() {
        let activity = LoopActivity::default();
        assert_eq!(activity.snapshot().turn, None);
        activity.begin_turn();
        let first = activity.snapshot().turn.unwrap();
        assert_eq!(activity.snapshot().turn, Some(first));
        activity.begin_turn();
        let second = activity.snapshot().turn.unwrap();
        assert_ne!(first, second);
        activity.rest();
        assert_eq!(activity.snapshot().turn, None);
        activity.rest();
        activity.begin_turn();
        assert!(![None, Some(first), Some(second)].contains(&activity.snapshot().turn));
    }

    #[test]
    fn activity_fits_in_one_word() {
        let activity = LoopActivity::default();
        assert_eq!((activity.snapshot().subject, activity.snapshot().operation), (None, None));
        let subject = Subject { kind: "connection", id: 123_456_789_012 };
        activity.show(ActivityWord::of(subject));
        assert_eq!((activity.snapshot().subject, activity.snapshot().operation), (Some(subject), None));
        let outer = activity.enter("gzip");
        let inner = activity.enter("regex");
        assert_eq!(
            (activity.snapshot().subject, activity.snapshot().operation),
            (Some(subject), Some("regex"))
        );
        activity.show(inner);
        assert_eq!(activity.snapshot().operation, Some("gzip"));
        activity.show(outer);
        assert_eq!((activity.snapshot().subject, activity.snapshot().operation), (Some(subject), None));
    }

    #[test]
    fn names_beyond_the_last_share_one_number() {
        let leaked = |n: usize| -> &'static str { format!("name {n}").leak() };
        let names = Names::new();
        let numbers: Vec<_> = (0..NAMES_MAX + 10).map(|n| names.number_of(leaked(n))).collect();
        assert_eq!(names.name_of(numbers[0]), Some("name 0"));
        assert_eq!(names.number_of("name 0"), numbers[0], "another piece of memory, the same name");
        assert_eq!(numbers.last().and_then(|number| names.name_of(*number)), Some(UNKNOWN));
        assert_eq!(ActivityWord::default().subject(), None);
    }
}
