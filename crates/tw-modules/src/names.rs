//! Texts and host names with wildcards to values: `map`, `valid_referers` (nginx: ngx_hash_add_key, ngx_hash_find_combined).
//!
//! Letters of both cases are the same. An exact name comes first, then the longest `*.example.com` or `.example.com`, then
//! the longest `www.example.*`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Values by name.
#[derive(Debug)]
pub(crate) struct Names<V> {
    /// Whole names, among them the `example.com` of `.example.com`.
    exact: HashMap<Box<[u8]>, V>,
    /// `*.example.com` and `.example.com`, key `.example.com`.
    below: HashMap<Box<[u8]>, V>,
    /// `www.example.*`, key `www.example.`.
    prefixes: HashMap<Box<[u8]>, V>,
}

/// Whether names may have wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wildcards {
    /// They may.
    Allowed,
    /// An asterisk is a letter like any other.
    None,
}

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No host name: two dots in a row, or an asterisk where none may be.
    Invalid,
    /// It is there already.
    Conflicting,
}

/// How a name is written.
enum Form {
    Exact,
    /// `*.` or `.` and how long that is.
    Below(usize),
    /// `.*`
    Prefix,
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self { exact: HashMap::new(), below: HashMap::new(), prefixes: HashMap::new() }
    }
}

impl<V: Copy> Names<V> {
    /// Adds a name in any case of letters.
    pub(crate) fn add(&mut self, name: &[u8], wildcards: Wildcards, value: V) -> Result<(), Refused> {
        let form = match wildcards {
            Wildcards::Allowed => Form::of(name).ok_or(Refused::Invalid)?,
            Wildcards::None => Form::Exact,
        };
        let mut key = name.to_ascii_lowercase();
        match form {
            Form::Exact => insert(&mut self.exact, key.into(), value),
            Form::Below(skip) => {
                key.drain(..skip - 1);
                if self.below.contains_key(&*key) {
                    return Err(Refused::Conflicting);
                }
                if skip == 1 {
                    insert(&mut self.exact, key[1..].into(), value)?;
                }
                insert(&mut self.below, key.into(), value)
            }
            Form::Prefix => {
                key.pop();
                insert(&mut self.prefixes, key.into(), value)
            }
        }
    }

    /// Whether there is no name.
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty() && self.prefixes.is_empty()
    }

    /// The value for a name in lower case. Linear in its length, allocates nothing.
    pub(crate) fn find(&self, name: &[u8]) -> Option<V> {
        if let Some(value) = self.exact.get(name) {
            return Some(*value);
        }
        let dot = |(at, byte): (usize, &u8)| (*byte == b'.').then_some(at);
        if !self.below.is_empty()
            && let Some(value) =
                name.iter().enumerate().filter_map(dot).find_map(|at| self.below.get(&name[at..]))
        {
            return Some(*value);
        }
        if self.prefixes.is_empty() {
            return None;
        }
        name.iter().enumerate().rev().filter_map(dot).find_map(|at| self.prefixes.get(&name[..=at])).copied()
    }
}

impl Form {
    /// `None` if it is no host name.
    fn of(name: &[u8]) -> Option<Self> {
        let stars = name.iter().filter(|byte| **byte == b'*').count();
        if stars > 1 || name.contains(&0) || name.windows(2).any(|pair| pair == b"..") {
            return None;
        }
        match name {
            [b'.', _, ..] => Some(Self::Below(1)),
            [b'*', b'.', _, ..] => Some(Self::Below(2)),
            [_, .., b'.', b'*'] => Some(Self::Prefix),
            _ => (stars == 0).then_some(Self::Exact),
        }
    }
}

fn insert<V>(map: &mut HashMap<Box<[u8]>, V>, key: Box<[u8]>, value: V) -> Result<(), Refused> {
    match map.entry(key) {
        Entry::Occupied(_) => Err(Refused::Conflicting),
        Entry::Vacant(free) => {
            free.insert(value);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[(&str, u32)], wildcards: Wildcards) -> Names<u32> {
        let mut names = Names::default();
        for (name, value) in list {
            names.add(name.as_bytes(), wildcards, *value).unwrap();
        }
        names
    }

    #[test]
    fn names_are_found_from_exact_to_wildcards() {
        let list = [
            ("Example.com", 1),
            ("*.example.com", 2),
            (".example.org", 3),
            ("*.deep.example.org", 4),
            ("www.example.*", 5),
            ("www.*", 6),
            ("", 7),
        ];
        let names = names(&list, Wildcards::Allowed);
        for (name, expected) in [
            ("example.com", Some(1)),
            ("a.b.example.com", Some(2)),
            ("example.org", Some(3)),
            ("a.example.org", Some(3)),
            ("a.deep.example.org", Some(4)),
            ("deep.example.org", Some(3)),
            ("www.example.net", Some(5)),
            ("www.example.", Some(5)),
            ("www.example", Some(6)),
            ("www", None),
            ("other", None),
            ("", Some(7)),
        ] {
            assert_eq!(names.find(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn without_wildcards_an_asterisk_is_a_letter() {
        let names = names(&[("*.example.com", 1), ("a..b", 2)], Wildcards::None);
        assert_eq!(names.find(b"x.example.com"), None);
        assert_eq!(names.find(b"*.example.com"), Some(1));
        assert_eq!(names.find(b"a..b"), Some(2));
    }

    #[test]
    fn refused_names() {
        let long = [("a.b", 1), (".c.d", 2), ("*.e.f", 3), ("g.*", 4)];
        for (name, expected) in [
            ("A.b", Err(Refused::Conflicting)),
            ("c.d", Err(Refused::Conflicting)),
            ("*.c.d", Err(Refused::Conflicting)),
            (".a.b", Err(Refused::Conflicting)),
            (".e.f", Err(Refused::Conflicting)),
            ("e.f", Ok(())),
            ("g.*", Err(Refused::Conflicting)),
            ("*", Err(Refused::Invalid)),
            ("*.", Err(Refused::Invalid)),
            ("a*b", Err(Refused::Invalid)),
            ("*.a.*", Err(Refused::Invalid)),
            ("a..b", Err(Refused::Invalid)),
            ("a\0b", Err(Refused::Invalid)),
            (".", Ok(())),
        ] {
            let mut names = names(&long, Wildcards::Allowed);
            assert_eq!(names.add(name.as_bytes(), Wildcards::Allowed, 9), expected, "{name}");
        }
    }
}
