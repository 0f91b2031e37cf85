//! Purges of all keys that begin with a prefix: a sorted, bounded list, searched by one binary search.
//!
//! ```text
//! /a      ◄─ parent ─ /a/b  ◄─ parent ─ /a/b/c
//! ```
//!
//! The search for `/a/b/x` finds the last row that is not greater, here `/a/b/c`. That is no prefix of it, so its
//! parents follow, and `/a/b` is one. Every row that is a prefix of the text and not greater than the row found is
//! also a prefix of the row found. So the rows that purge a text are the one found and its parents, and each row
//! stores the effect of itself and its parents.

use super::cut::PurgeEffect;

/// Prefixes that are remembered one by one.
pub(super) const PREFIXES_MAX: usize = 1024;
/// Bytes of a prefix; of a longer one the first.
pub(super) const PREFIX_SIZE_MAX: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Prefixes {
    /// Sorted by text, each text once.
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    text: Box<[u8]>,
    own: PurgeEffect,
    /// With those of all parents.
    all: PurgeEffect,
    /// The row of the longest prefix of this one.
    parent: Option<usize>,
}

impl Prefixes {
    /// The list with these rows, which are sorted; `None` if one of them is, or they are not as this list has them.
    pub(super) fn of_rows<'a>(rows: impl Iterator<Item = Option<(&'a [u8], PurgeEffect)>>) -> Option<Self> {
        let mut list = Self::default();
        for row in rows {
            let (text, cut) = row?;
            let is_behind = list.rows.last().is_none_or(|last| *last.text < *text);
            if !is_behind || text.len() > PREFIX_SIZE_MAX || list.rows.len() == PREFIXES_MAX {
                return None;
            }
            list.rows.push(Row { text: text.into(), own: cut, all: cut, parent: None });
        }
        list.connect();
        Some(list)
    }

    /// Adds a purge of what begins with `text`. Too many prefixes become fewer and shorter ones, which purge more:
    /// the two that have most in common become what they have in common. Works through the list.
    pub(super) fn add(&mut self, text: &[u8], cut: PurgeEffect) {
        self.insert(text.get(..PREFIX_SIZE_MAX).unwrap_or(text), cut);
        while self.rows.len() > PREFIXES_MAX {
            self.join_closest();
        }
        self.connect();
    }

    /// All that is known of a text: one binary search, and no more steps than the longest row has parents.
    pub(super) fn of(&self, text: &[u8]) -> PurgeEffect {
        let behind = self.rows.partition_point(|row| *row.text <= *text);
        let Some(last) = behind.checked_sub(1) else { return PurgeEffect::default() };
        let Some(mut row) = self.rows.get(last) else { return PurgeEffect::default() };
        let common = common_len(&row.text, text);
        while row.text.len() > common {
            match row.parent.and_then(|parent| self.rows.get(parent)) {
                Some(parent) => row = parent,
                None => return PurgeEffect::default(),
            }
        }
        row.all
    }

    /// All together: an entry that this does not purge is purged by none.
    pub(super) fn all(&self) -> PurgeEffect {
        self.rows.iter().fold(PurgeEffect::default(), |all, row| all.and(row.own))
    }

    /// Prefixes with their purges, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], PurgeEffect)> {
        self.rows.iter().map(|row| (&*row.text, row.own))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Forgets those that concern only what began before `oldest`.
    pub(super) fn forget(&mut self, oldest: u64) {
        self.rows.retain_mut(|row| {
            row.own = row.own.forget(oldest);
            !row.own.is_nothing()
        });
        self.connect();
    }

    #[cfg(test)]
    pub(super) fn rows_are_sorted(&self) -> bool {
        self.rows.is_sorted_by(|a, b| a.text < b.text)
    }

    /// Drops the rows that begin with this text and whose purges it covers.
    fn insert(&mut self, text: &[u8], cut: PurgeEffect) {
        let at = self.rows.partition_point(|row| *row.text < *text);
        let cut = match self.rows.get_mut(at) {
            Some(row) if *row.text == *text => {
                row.own = row.own.and(cut);
                row.own
            }
            _ => {
                self.rows.insert(at, Row { text: text.into(), own: cut, all: cut, parent: None });
                cut
            }
        };
        let from = at + 1;
        let longer = self.rows.iter().skip(from).take_while(|row| row.text.starts_with(text)).count();
        let mut number = 0;
        self.rows.retain_mut(|row| {
            let is_longer = (from..from + longer).contains(&number);
            number += 1;
            if is_longer {
                row.own = row.own.without(cut);
            }
            !row.own.is_nothing()
        });
    }

    fn join_closest(&mut self) {
        let pairs = self.rows.iter().zip(self.rows.iter().skip(1)).enumerate();
        let closest = pairs.map(|(at, (a, b))| (common_len(&a.text, &b.text), at)).max();
        let Some((len, at)) = closest else { return };
        let cut = self.rows.drain(at..at + 2).map(|row| (row.own, row.text)).collect::<Vec<_>>();
        let both = cut.iter().fold(PurgeEffect::default(), |both, (own, _)| both.and(*own));
        if let Some(text) = cut.first().and_then(|(_, text)| text.get(..len)) {
            self.insert(text, both);
        }
    }

    /// Finds all parents.
    fn connect(&mut self) {
        let mut parents: Vec<usize> = Vec::new();
        for at in 0..self.rows.len() {
            let (before, from) = self.rows.split_at_mut(at);
            let Some(row) = from.first_mut() else { return };
            let begins = |parent: &usize| before.get(*parent).is_some_and(|p| row.text.starts_with(&p.text));
            while parents.last().is_some_and(|parent| !begins(parent)) {
                parents.pop();
            }
            row.parent = parents.last().copied();
            let above = row.parent.and_then(|parent| before.get(parent)).map(|parent| parent.all);
            row.all = row.own.and(above.unwrap_or_default());
            parents.push(at);
        }
    }
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
