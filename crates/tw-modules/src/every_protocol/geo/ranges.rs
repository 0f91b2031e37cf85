//! Ranges of IPv4 addresses as they are added and deleted one after the other.
//!
//! As nginx does, a range is cut where the upper half of an address changes, and each piece is added by itself: it may
//! stand between the others, replace one, or lie inside one, which is split.

use super::intervals::Intervals;

/// Values of one half of the address space.
const HALF: usize = 1 << 16;

/// Ranges, by the upper halves of their addresses.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    pieces: Vec<Vec<Piece>>,
}

/// A stretch of lower halves; pieces of one upper half are sorted and disjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    first: u16,
    last: u16,
    value: u32,
}

/// Result of adding a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Added {
    /// The range was added.
    New,
    /// There was one just like it, with this value.
    Replaced(u32),
    /// The range overlaps this one in part: first and last address. Nothing more is added.
    Overlaps(u32, u32),
}

/// Result of deleting a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deleted {
    /// All of it.
    Whole,
    /// Only a part of it existed and was deleted.
    Partly,
}

impl Ranges {
    /// Adds a range, `first` not above `last`, and reports each of its pieces that was not new.
    pub(super) fn add(&mut self, first: u32, last: u32, value: u32, mut report: impl FnMut(Added)) {
        if self.pieces.is_empty() {
            self.pieces.resize_with(HALF, Vec::new);
        }
        for (upper, first, last) in cut(first, last) {
            match self.add_piece(upper, Piece { first, last, value }) {
                Added::New => {}
                added @ Added::Replaced(_) => report(added),
                added @ Added::Overlaps(..) => return report(added),
            }
        }
    }

    fn add_piece(&mut self, upper: u16, new: Piece) -> Added {
        let list = &mut self.pieces[usize::from(upper)];
        let after = list.partition_point(|piece| piece.first <= new.last);
        let Some(at) = after.checked_sub(1) else {
            list.insert(0, new);
            return Added::New;
        };
        let old = list[at];
        if new.first > old.last {
            list.insert(after, new);
            return Added::New;
        }
        if (new.first, new.last) == (old.first, old.last) {
            list[at].value = new.value;
            return Added::Replaced(old.value);
        }
        if new.first < old.first || new.last > old.last {
            let address = |lower: u16| u32::from(upper) << 16 | u32::from(lower);
            return Added::Overlaps(address(old.first), address(old.last));
        }
        let before = (new.first > old.first).then(|| Piece { last: new.first - 1, ..old });
        let behind = (new.last < old.last).then(|| Piece { first: new.last + 1, ..old });
        list.splice(at..=at, before.into_iter().chain([new]).chain(behind));
        Added::New
    }

    /// Deletes the pieces of a range, `first` not above `last`.
    pub(super) fn delete(&mut self, first: u32, last: u32) -> Deleted {
        let mut deleted = Deleted::Whole;
        for (upper, first, last) in cut(first, last) {
            let found_piece = self.pieces.get_mut(usize::from(upper)).and_then(|list| {
                let at = list.binary_search_by_key(&first, |piece| piece.first).ok()?;
                (list[at].last == last).then(|| list.remove(at))
            });
            if found_piece.is_none() {
                deleted = Deleted::Partly;
            }
        }
        deleted
    }

    /// Compiles the ranges for look-ups.
    pub(super) fn compile(self) -> Intervals<u32> {
        let all = self.pieces.into_iter().zip(0u32..).flat_map(|(list, upper)| {
            let address = move |lower: u16| upper << 16 | u32::from(lower);
            list.into_iter().map(move |piece| (address(piece.first), address(piece.last), piece.value))
        });
        Intervals::nested(all)
    }
}

/// The pieces of a range: upper half, first and last lower half.
fn cut(first: u32, last: u32) -> impl Iterator<Item = (u16, u16, u16)> {
    let low = (first >> 16) as u16;
    let high = (last >> 16) as u16;
    (low..=high).map(move |upper| {
        let start = if upper == low { first as u16 } else { 0 };
        let end = if upper == high { last as u16 } else { u16::MAX };
        (upper, start, end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(ranges: &mut Ranges, first: u32, last: u32, value: u32) -> Vec<Added> {
        let mut added = Vec::new();
        ranges.add(first, last, value, |one| added.push(one));
        added
    }

    fn values(ranges: Ranges, of: &[u32]) -> Vec<Option<u32>> {
        let compiled = ranges.compile();
        of.iter().map(|at| compiled.find(*at)).collect()
    }

    #[test]
    fn inner_ranges_split_outer_ones() {
        let mut ranges = Ranges::default();
        for (first, last, value) in [
            (100, 199, 0),
            (120, 129, 1),
            (100, 109, 2),
            (190, 199, 3),
            (50, 60, 4),
            (300, 300, 5),
            (125, 125, 6),
        ] {
            assert_eq!(add(&mut ranges, first, last, value), [], "{first}-{last}");
        }
        assert_eq!(add(&mut ranges, 300, 300, 7), [Added::Replaced(5)]);
        for (first, last, other) in [(40, 55, (50, 60)), (195, 205, (190, 199)), (105, 115, (110, 119))] {
            let (from, to) = other;
            assert_eq!(add(&mut ranges, first, last, 9), [Added::Overlaps(from, to)], "{first}-{last}");
        }
        let (at, expected): (Vec<_>, Vec<_>) = [
            (49, None),
            (50, Some(4)),
            (61, None),
            (100, Some(2)),
            (110, Some(0)),
            (124, Some(1)),
            (125, Some(6)),
            (126, Some(1)),
            (130, Some(0)),
            (189, Some(0)),
            (199, Some(3)),
            (200, None),
            (300, Some(7)),
        ]
        .into_iter()
        .unzip();
        assert_eq!(values(ranges, &at), expected);
    }

    #[test]
    fn ranges_over_many_upper_halves() {
        let mut ranges = Ranges::default();
        assert_eq!(add(&mut ranges, 0x0001_fff0, 0x0003_000f, 1), []);
        assert_eq!(add(&mut ranges, 0x0001_fff0, 0x0003_000f, 2), [Added::Replaced(1); 3]);
        assert_eq!(
            add(&mut ranges, 0x0002_8000, 0x0003_ffff, 3),
            [Added::Overlaps(0x0003_0000, 0x0003_000f)]
        );
        assert_eq!(add(&mut ranges, 0xffff_0000, u32::MAX, 4), []);
        let at = [0x0001_ffef, 0x0001_fff0, 0x0002_7fff, 0x0002_8000, 0x0003_000f, 0x0003_0010, u32::MAX];
        assert_eq!(values(ranges, &at), [None, Some(2), Some(2), Some(3), Some(2), None, Some(4)]);
    }

    #[test]
    fn only_existing_ranges_are_deleted() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.delete(0, 1), Deleted::Partly);
        assert_eq!(add(&mut ranges, 0, 0x0002_0010, 1), []);
        assert_eq!(ranges.delete(0, 0x0002_0011), Deleted::Partly, "the last piece is longer");
        assert_eq!(ranges.delete(0x0002_0000, 0x0002_0010), Deleted::Whole);
        assert_eq!(values(ranges, &[0, 0x0001_0000, 0x0002_0000]), [None; 3]);
    }
}
