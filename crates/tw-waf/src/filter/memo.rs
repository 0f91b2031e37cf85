//! Results of the filter for values seen before.

use std::hash::BuildHasher;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Values that one thread remembers for each set of rules of the firewall.
    ///
    /// A browser sends some twenty fields and cookies. A place holds the last value with its hash.
    const VALUES_MAX: usize = 2048, count, "another value is forgotten";
    /// Bytes of a value that is remembered by the firewall.
    const VALUE_SIZE_MAX: usize = 4 << 10, bytes, "the value is not remembered";
    /// Bytes of all values that one thread remembers for each set of rules of the firewall.
    const VALUES_SIZE_MAX: usize = 1 << 20, bytes, "all values are forgotten";
}

/// Values that were filtered before, and the rules that each can match. Of one thread; the hash cannot be guessed, and the bytes are
/// compared, so a client can neither collide with nor change what is remembered of others.
#[derive(Default)]
pub struct Memo {
    places: Vec<Option<Remembered>>,
    /// Bytes of all values.
    size: usize,
    hasher: foldhash::quality::RandomState,
}

struct Remembered {
    phase: u8,
    value: Box<[u8]>,
    /// Positions in the phase.
    rules: Vec<u32>,
}

impl Memo {
    fn place(&self, phase: u8, value: &[u8]) -> usize {
        self.hasher.hash_one((phase, value)) as usize % VALUES_MAX
    }

    /// Rules that the value can match, if it is remembered.
    pub(crate) fn get(&self, phase: u8, value: &[u8]) -> Option<&[u32]> {
        if value.len() > VALUE_SIZE_MAX {
            return None;
        }
        let remembered = self.places.get(self.place(phase, value))?.as_ref()?;
        (remembered.phase == phase && *remembered.value == *value).then_some(&*remembered.rules)
    }

    /// Remembers a value.
    pub(crate) fn put(&mut self, phase: u8, value: &[u8], rules: &[u32]) {
        if value.len() > VALUE_SIZE_MAX {
            return;
        }
        if self.places.is_empty() {
            self.places.resize_with(VALUES_MAX, || None);
        }
        if self.size + value.len() > VALUES_SIZE_MAX {
            self.places.iter_mut().for_each(|place| *place = None);
            self.size = 0;
        }
        let at = self.place(phase, value);
        if let Some(place) = self.places.get_mut(at) {
            self.size -= place.as_ref().map_or(0, |old| old.value.len());
            self.size += value.len();
            *place = Some(Remembered { phase, value: value.into(), rules: rules.to_vec() });
        }
    }

    /// Notes that a rule does not match a value that has passed its condition.
    pub(crate) fn forget(&mut self, phase: u8, value: &[u8], rule: u32) {
        if value.len() > VALUE_SIZE_MAX {
            return;
        }
        let at = self.place(phase, value);
        if let Some(Some(remembered)) = self.places.get_mut(at)
            && remembered.phase == phase
            && *remembered.value == *value
        {
            remembered.rules.retain(|candidate| *candidate != rule);
        }
    }
}
