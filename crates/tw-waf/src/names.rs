//! Names of the values of `TX`, as numbers: a rule finds its value by index.

use std::collections::HashMap;

/// Names of a set of rules, in lower case.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Box<[u8]>, u16, foldhash::fast::RandomState>,
    list: Vec<Box<[u8]>>,
}

/// Values `TX:0` to `TX:9`, which a rule with `capture` sets: the first numbers.
pub(crate) const CAPTURES: u16 = 10;

impl Names {
    /// Names of the captures only.
    pub(crate) fn new() -> Self {
        let mut names = Self::default();
        for digit in b'0'..=b'9' {
            names.number(&[digit]);
        }
        names
    }

    /// Number of `name`, which is new or known. `None` if there are too many.
    pub(crate) fn number(&mut self, name: &[u8]) -> Option<u16> {
        let name = name.to_ascii_lowercase().into_boxed_slice();
        if let Some(number) = self.numbers.get(&name) {
            return Some(*number);
        }
        let number = u16::try_from(self.list.len()).ok()?;
        self.list.push(name.clone());
        self.numbers.insert(name, number);
        Some(number)
    }

    /// Number of a known name in lower case.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u16> {
        self.numbers.get(name).copied()
    }

    /// Names in the order of their numbers.
    pub(crate) fn list(&self) -> &[Box<[u8]>] {
        &self.list
    }
}
