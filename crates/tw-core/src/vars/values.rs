//! Values of a session's slots: stored ones, and computed ones that are kept.
//!
//! All values stand one after the other in one buffer, which the next session reuses.

use super::Value;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Variables that are made of variables, counted inwards.
    ///
    /// Slots that may be computed inside each other: nginx's bound for a chain of maps.
    const DEPTH_MAX: u8 = 100, count, "the value is missing";
    /// Bytes of memory for values that a request keeps for the next one.
    const KEPT_MAX: usize = 64 << 10, bytes, "what is more is given back";
}

/// Values by slot.
#[derive(Clone, Default)]
pub(super) struct Values {
    slots: Vec<Slot>,
    bytes: Vec<u8>,
    /// Number of values being computed.
    depth: u8,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Slot {
    /// Nothing yet.
    #[default]
    Empty,
    /// Being computed: reading it now is a cycle.
    Computing,
    /// Computed, without a value.
    Missing,
    /// A range of the buffer, which was computed.
    Computed(Span),
    /// A range of the buffer, which was stored.
    Stored(Span),
}

/// A range of the buffer. Narrow, because a session has a slot for every variable.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// `None` beyond 4 GiB.
    fn new(start: usize, end: usize) -> Option<Self> {
        Some(Self { start: u32::try_from(start).ok()?, end: u32::try_from(end).ok()? })
    }

    fn of(self, bytes: &[u8]) -> Option<&[u8]> {
        bytes.get(self.start as usize..self.end as usize)
    }
}

/// A slot cannot be computed: it needs itself, or too many others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cycle;

impl Values {
    /// Forgets all values.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_MAX {
            self.bytes = Vec::new();
        }
        self.depth = 0;
    }

    /// Appends the value of a slot to `out`; `None` if it has to be computed.
    pub(super) fn read(&self, slot: u16, out: &mut Vec<u8>) -> Option<Value> {
        match *self.slots.get(usize::from(slot))? {
            Slot::Empty | Slot::Computing => None,
            Slot::Missing => Some(Value::Missing),
            Slot::Computed(span) | Slot::Stored(span) => {
                out.extend_from_slice(span.of(&self.bytes)?);
                Some(Value::Found)
            }
        }
    }

    /// Gives back the memory for more values.
    pub(super) fn shrink(&mut self) {
        let used = self.slots.iter().rposition(|slot| *slot != Slot::Empty).map_or(0, |last| last + 1);
        self.slots.truncate(used);
        self.slots.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }

    /// Stores a value. One for which there is no room, behind 4 GiB of others, is missing.
    pub(super) fn store(&mut self, slot: u16, value: &[u8]) {
        *self.slot(slot) = self.push(value).map_or(Slot::Missing, Slot::Stored);
    }

    fn push(&mut self, value: &[u8]) -> Option<Span> {
        let start = self.bytes.len();
        let span = Span::new(start, start + value.len())?;
        self.bytes.extend_from_slice(value);
        Some(span)
    }

    /// Begins to compute a slot; [`Values::computed`] or [`Values::dropped`] must follow.
    pub(super) fn begin(&mut self, slot: u16) -> Result<(), Cycle> {
        if self.depth == DEPTH_MAX || *self.slot(slot) == Slot::Computing {
            return Err(Cycle);
        }
        self.depth += 1;
        *self.slot(slot) = Slot::Computing;
        Ok(())
    }

    /// Keeps what was computed.
    pub(super) fn computed(&mut self, slot: u16, value: Value, bytes: &[u8]) {
        self.depth = self.depth.saturating_sub(1);
        *self.slot(slot) = match value {
            Value::Found => self.push(bytes).map_or(Slot::Missing, Slot::Computed),
            Value::Missing => Slot::Missing,
        };
    }

    /// Forgets everything that was computed; what was stored stays.
    pub(super) fn forget_computed(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Missing | Slot::Computed(..)) {
                *slot = Slot::Empty;
            }
        }
    }

    /// Forgets what was computed.
    pub(super) fn dropped(&mut self, slot: u16) {
        self.depth = self.depth.saturating_sub(1);
        *self.slot(slot) = Slot::Empty;
    }

    /// Forgets the value of a slot.
    pub(super) fn forget(&mut self, slot: u16) {
        if let Some(known_slot) = self.slots.get_mut(usize::from(slot)) {
            *known_slot = Slot::Empty;
        }
    }

    fn slot(&mut self, slot: u16) -> &mut Slot {
        let at = usize::from(slot);
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot::Empty);
        }
        &mut self.slots[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &Values, slot: u16) -> Option<(Value, Vec<u8>)> {
        let mut out = b"<".to_vec();
        values.read(slot, &mut out).map(|value| (value, out))
    }

    #[test]
    fn values_are_stored_and_dropped() {
        let mut values = Values::default();
        assert_eq!(read(&values, 3), None);
        values.store(3, b"one");
        values.store(1, b"");
        values.store(3, b"three");
        assert_eq!(read(&values, 3), Some((Value::Found, b"<three".to_vec())));
        assert_eq!(read(&values, 1), Some((Value::Found, b"<".to_vec())));
        assert_eq!(values.begin(2), Ok(()));
        values.computed(2, Value::Missing, b"");
        assert_eq!(read(&values, 2), Some((Value::Missing, b"<".to_vec())));
        assert_eq!(values.begin(5), Ok(()));
        values.dropped(5);
        assert_eq!(read(&values, 5), None);
        values.clear();
        assert_eq!(read(&values, 3), None);
    }

    #[test]
    fn shrinking_keeps_values_and_gives_the_rest_back() {
        let mut values = Values::default();
        values.store(2, b"two");
        assert_eq!(values.begin(40), Ok(()));
        values.dropped(40);
        values.shrink();
        assert_eq!((values.slots.capacity(), values.bytes.capacity()), (3, 3));
        assert_eq!(read(&values, 2), Some((Value::Found, b"<two".to_vec())));
        assert_eq!(read(&values, 40), None);
        values.store(40, b"!");
        assert_eq!(read(&values, 40), Some((Value::Found, b"<!".to_vec())));
        assert_eq!(size_of::<Slot>(), 12);
    }

    #[test]
    fn ranges_beyond_4_gib_are_none() {
        let most = u32::MAX as usize;
        assert!(Span::new(most, most).is_some());
        assert!(Span::new(most, most + 1).is_none());
        assert!(Span::new(most + 1, most + 1).is_none());
    }

    #[test]
    fn cycles_and_long_chains_end() {
        let mut values = Values::default();
        assert_eq!((values.begin(0), values.begin(1), values.begin(0)), (Ok(()), Ok(()), Err(Cycle)));
        for slot in 2..100 {
            assert_eq!(values.begin(slot), Ok(()), "{slot}");
        }
        assert_eq!(values.begin(100), Err(Cycle));
        for slot in (0..100).rev() {
            values.computed(slot, Value::Found, b"x");
        }
        assert_eq!(values.begin(100), Ok(()));
    }
}
