//! Orders of a list: by name, size or time, as the configuration or a request says.

use std::cmp::Ordering;

use tw_disk::Entry;
use tw_http::target;

use crate::content::autoindex::is_dir;

/// Column that a list is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Size,
    Date,
}

/// Direction of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// Column and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sorting {
    pub(super) by: Column,
    pub(super) order: Order,
}

/// Words of `fancyindex_default_sort`.
pub(super) const WORDS: &[(&str, Sorting)] = &[
    ("name", Sorting { by: Column::Name, order: Order::Ascending }),
    ("size", Sorting { by: Column::Size, order: Order::Ascending }),
    ("date", Sorting { by: Column::Date, order: Order::Ascending }),
    ("name_desc", Sorting { by: Column::Name, order: Order::Descending }),
    ("size_desc", Sorting { by: Column::Size, order: Order::Descending }),
    ("date_desc", Sorting { by: Column::Date, order: Order::Descending }),
];

impl Column {
    /// Columns in the order of the table, with their letters in arguments.
    pub(super) const ALL: [(Self, u8); 3] = [(Self::Name, b'N'), (Self::Size, b'S'), (Self::Date, b'M')];
}

impl Sorting {
    /// The order that a request names: `C=N&O=A`; ascending without `O`.
    pub(super) fn of_args(args: &[u8]) -> Option<Self> {
        let letter = target::arg(args, b"C")?;
        let (by, _) = Column::ALL.into_iter().find(|(_, candidate)| letter == [*candidate])?;
        let order = match target::arg(args, b"O") {
            Some(b"D") => Order::Descending,
            _ => Order::Ascending,
        };
        Some(Self { by, order })
    }

    /// Appends the arguments that name this order, as a link in HTML has them.
    pub(super) fn push_args(self, out: &mut Vec<u8>) {
        let letter = Column::ALL
            .into_iter()
            .find(|(column, _)| *column == self.by)
            .map_or(b'N', |(_, candidate)| candidate);
        let order = if self.order == Order::Ascending { b'A' } else { b'D' };
        out.extend_from_slice(&[b'?', b'C', b'=', letter]);
        out.extend_from_slice(b"&amp;O=");
        out.push(order);
    }

    /// Sorts a list. Entries that are equal in their column are in the order of their names.
    pub(super) fn sort(self, entries: &mut [Entry], case_sensitive: bool, directories_first: bool) {
        entries.sort_unstable_by(|a, b| {
            let groups = if directories_first { is_dir(b).cmp(&is_dir(a)) } else { Ordering::Equal };
            let by_column = match self.by {
                Column::Name => Ordering::Equal,
                Column::Size => size(a).cmp(&size(b)),
                Column::Date => {
                    let time = |entry: &Entry| (entry.meta.mtime_sec, entry.meta.mtime_nsec);
                    time(a).cmp(&time(b))
                }
            };
            let in_group = by_column.then_with(|| by_name(a, b, case_sensitive));
            groups.then(if self.order == Order::Ascending { in_group } else { in_group.reverse() })
        });
    }
}

/// Size of a file; directories have none.
fn size(entry: &Entry) -> u64 {
    if is_dir(entry) { 0 } else { entry.meta.size }
}

fn by_name(a: &Entry, b: &Entry, case_sensitive: bool) -> Ordering {
    let a = a.name.to_bytes();
    let b = b.name.to_bytes();
    if case_sensitive {
        return a.cmp(b);
    }
    let lower = |name: &'_ [u8]| name.to_ascii_lowercase();
    lower(a).cmp(&lower(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::autoindex::entry;
    use tw_disk::FileKind;

    #[test]
    fn arguments_name_an_order() {
        let sorting = |by, order| Some(Sorting { by, order });
        for (args, expected) in [
            ("", None),
            ("C=N", sorting(Column::Name, Order::Ascending)),
            ("C=N&O=A", sorting(Column::Name, Order::Ascending)),
            ("C=S&O=D", sorting(Column::Size, Order::Descending)),
            ("x=y&O=D&C=M", sorting(Column::Date, Order::Descending)),
            ("C=M&O=x", sorting(Column::Date, Order::Ascending)),
            ("C=X&O=A", None),
            ("C=NN", None),
            ("O=D", None),
        ] {
            assert_eq!(Sorting::of_args(args.as_bytes()), expected, "{args}");
        }
        let mut out = Vec::new();
        Sorting { by: Column::Date, order: Order::Descending }.push_args(&mut out);
        assert_eq!(out, b"?C=M&amp;O=D");
    }

    #[test]
    fn lists_are_sorted() {
        let list = || {
            let dated = |name, kind, size, mtime_sec| {
                let mut entry = entry(name, kind, size);
                entry.meta.mtime_sec = mtime_sec;
                entry
            };
            vec![
                dated("b", FileKind::File, 2, 10),
                dated("B", FileKind::File, 2, 20),
                dated("a", FileKind::File, 3, 5),
                dated("c", FileKind::Directory, 4096, 1),
            ]
        };
        for (word, case_sensitive, directories_first, expected) in [
            ("name", true, true, "cBab"),
            ("name", true, false, "Babc"),
            ("name", false, true, "caBb"),
            ("name_desc", true, true, "cbaB"),
            ("size", true, true, "cBba"),
            ("size", true, false, "cBba"),
            ("size_desc", true, false, "abBc"),
            ("date", true, true, "cabB"),
            ("date_desc", true, false, "Bbac"),
        ] {
            let mut entries = list();
            let (_, sorting) = WORDS.iter().find(|(candidate, _)| *candidate == word).unwrap();
            sorting.sort(&mut entries, case_sensitive, directories_first);
            let names: String = entries.iter().map(|entry| entry.name.to_str().unwrap()).collect();
            assert_eq!(names, expected, "{word} {case_sensitive} {directories_first}");
        }
    }
}
