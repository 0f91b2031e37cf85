//! Records of this node that the engine has acknowledged and this node has not read back. An engine may lose what it has acknowledged;
//! such records are published again.

use std::collections::BTreeMap;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges of this node that it has published to a fleet and not read back.
    const UNCONFIRMED_MAX: usize = 65_536, count, "further ones wait in the queue on disk";
    /// Bytes of purges of this node that it has published to a fleet and not read back.
    const UNCONFIRMED_SIZE_MAX: usize = 64 << 20, bytes, "further ones wait in the queue on disk";
}

/// Published record: identifier and text.
pub(crate) type PublishedRecord = (String, Vec<u8>);

/// Records by the sequence that the engine has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    records: BTreeMap<u64, PublishedRecord>,
    size: usize,
}

impl Unconfirmed {
    /// True if further records can be remembered.
    pub(crate) fn has_room(&self) -> bool {
        self.records.len() < UNCONFIRMED_MAX && self.size < UNCONFIRMED_SIZE_MAX
    }

    /// Remembers a record.
    pub(crate) fn insert(&mut self, sequence: u64, id: &str, payload: &[u8]) {
        self.size += payload.len();
        if let Some((_, before)) = self.records.insert(sequence, (id.to_owned(), payload.to_vec())) {
            self.size -= before.len();
        }
    }

    /// True if the record is remembered.
    #[cfg(test)]
    pub(crate) fn contains(&self, sequence: u64, id: &str) -> bool {
        self.records.get(&sequence).is_some_and(|(candidate, _)| candidate == id)
    }

    /// Notes the record that was read at `sequence`. Returns those that should have been there or before it.
    pub(crate) fn confirm(&mut self, sequence: u64, id: Option<&str>) -> Vec<PublishedRecord> {
        let mut lost = Vec::new();
        while let Some(first) = self.records.first_entry().filter(|first| *first.key() <= sequence) {
            let is_there = *first.key() == sequence && Some(&*first.get().0) == id;
            let record = first.remove();
            self.size -= record.1.len();
            if !is_there {
                lost.push(record);
            }
        }
        lost
    }

    /// Removes all records behind `sequence`.
    pub(crate) fn take_after(&mut self, sequence: u64) -> Vec<PublishedRecord> {
        let taken = match sequence.checked_add(1) {
            Some(next) => self.records.split_off(&next),
            None => BTreeMap::new(),
        };
        self.size -= taken.values().map(|(_, payload)| payload.len()).sum::<usize>();
        taken.into_values().collect()
    }

    /// Removes all records.
    pub(crate) fn take_all(&mut self) -> Vec<PublishedRecord> {
        self.size = 0;
        std::mem::take(&mut self.records).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_not_read_back_are_returned() {
        let mut unconfirmed = Unconfirmed::default();
        for sequence in 1..=6 {
            unconfirmed.insert(sequence, &format!("id-{sequence}"), b"12");
        }
        let ids = |lost: Vec<PublishedRecord>| lost.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert!(unconfirmed.confirm(1, Some("id-1")).is_empty());
        assert_eq!(ids(unconfirmed.confirm(2, Some("other"))), ["id-2"]);
        assert_eq!(ids(unconfirmed.confirm(4, Some("id-4"))), ["id-3"], "a gap");
        assert_eq!(ids(unconfirmed.take_after(5)), ["id-6"]);
        assert_eq!((unconfirmed.size, unconfirmed.has_room()), (2, true));
        assert_eq!(ids(unconfirmed.take_all()), ["id-5"]);
        unconfirmed.insert(7, "large", &vec![0; UNCONFIRMED_SIZE_MAX]);
        assert!(!unconfirmed.has_room());
    }
}
