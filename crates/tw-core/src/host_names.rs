//! Host names with wildcards to values: server names, `map` with `hostnames`, `valid_referers` (nginx: ngx_hash_add_key,
//! ngx_hash_find_combined). It knows no protocol.
//!
//! An exact name comes first, then the longest `*.example.com` or `.example.com`, then the longest `www.example.*`.

use std::collections::hash_map::Entry;

use foldhash::{HashMap, HashMapExt};

/// Values by name.
#[derive(Debug)]
pub struct HostNames<V> {
    /// Whole names, among them the `example.com` of `.example.com`.
    exact: HashMap<Box<[u8]>, V>,
    /// `*.example.com` and `.example.com`, key `.example.com`.
    below: Parts<V>,
    /// `www.example.*`, key `www.example.`.
    prefixes: Parts<V>,
}

/// Ends or beginnings of names.
#[derive(Debug)]
struct Parts<V> {
    values: HashMap<Box<[u8]>, V>,
    /// Bytes of the longest one. Nothing longer is looked up, so the work for a name depends on the configuration, even for
    /// a name of four thousand dots.
    longest: usize,
}

/// A name as it is written, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostName {
    /// A whole name.
    Exact(Box<[u8]>),
    /// `*.example.com`, kept as `.example.com`: anything below.
    Below(Box<[u8]>),
    /// `.example.com`: the name itself and anything below.
    Dot(Box<[u8]>),
    /// `www.example.*`, kept as `www.example.`.
    Prefix(Box<[u8]>),
}

/// Handling of wildcards in names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wildcards {
    /// They may.
    Allowed,
    /// An asterisk is a letter like any other.
    None,
}

/// A text that is no host name: two dots in a row, a zero byte, or an asterisk where none may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidHostName;

/// A name that has a value already; the new one is ignored as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateHostName;

impl HostName {
    /// Reads a name in any case of letters.
    ///
    /// # Errors
    /// [`InvalidHostName`]
    pub fn parse(text: &[u8], wildcards: Wildcards) -> Result<Self, InvalidHostName> {
        let name = text.to_ascii_lowercase();
        if wildcards == Wildcards::None {
            return Ok(Self::Exact(name.into()));
        }
        let stars = name.iter().filter(|byte| **byte == b'*').count();
        if stars > 1 || name.contains(&0) || name.windows(2).any(|pair| pair == b"..") {
            return Err(InvalidHostName);
        }
        match &*name {
            // nginx looks for this one first, so that the asterisk of `.a.*` is a letter.
            [b'.', _, ..] => Ok(Self::Dot(name.into())),
            [b'*', b'.', _, ..] => Ok(Self::Below(name[1..].into())),
            [_, .., b'.', b'*'] => Ok(Self::Prefix(name[..name.len() - 1].into())),
            _ if stars == 0 => Ok(Self::Exact(name.into())),
            _ => Err(InvalidHostName),
        }
    }

    /// The name as it was written, in lower case.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Exact(name) | Self::Dot(name) => name.to_vec(),
            Self::Below(end) => [b"*", &**end].concat(),
            Self::Prefix(beginning) => [&**beginning, b"*"].concat(),
        }
    }

    /// Returns true if `host` (lower case) matches.
    pub fn matches(&self, host: &[u8]) -> bool {
        match self {
            Self::Exact(name) => **name == *host,
            Self::Below(end) => host.ends_with(end),
            Self::Dot(end) => host.ends_with(end) || end[1..] == *host,
            Self::Prefix(beginning) => host.starts_with(beginning),
        }
    }
}

impl<V> Default for HostNames<V> {
    fn default() -> Self {
        Self { exact: HashMap::new(), below: Parts::default(), prefixes: Parts::default() }
    }
}

impl<V: Copy> HostNames<V> {
    /// Adds a name.
    ///
    /// # Errors
    /// [`DuplicateHostName`]
    pub fn add(&mut self, name: HostName, value: V) -> Result<(), DuplicateHostName> {
        match name {
            HostName::Exact(name) => insert(&mut self.exact, name, value),
            HostName::Below(end) => self.below.insert(end, value),
            HostName::Prefix(beginning) => self.prefixes.insert(beginning, value),
            HostName::Dot(end) => {
                if self.below.values.contains_key(&end) {
                    return Err(DuplicateHostName);
                }
                insert(&mut self.exact, end[1..].into(), value)?;
                self.below.insert(end, value)
            }
        }
    }

    /// Returns true if there is no name.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.values.is_empty() && self.prefixes.values.is_empty()
    }

    /// The value for a name in lower case. Allocates nothing; looks at the name once, and as often at its beginning or end
    /// as that has dots, as far as the longest wildcard reaches.
    pub fn find(&self, name: &[u8]) -> Option<V> {
        if let Some(value) = self.exact.get(name) {
            return Some(*value);
        }
        let longest = name.len().min(self.below.longest);
        let (_, end) = name.split_at_checked(name.len() - longest)?;
        let mut ends = dots(end).filter_map(|at| end.get(at..));
        if let Some(value) = ends.find_map(|end| self.below.values.get(end)) {
            return Some(*value);
        }
        let beginning = name.get(..self.prefixes.longest).unwrap_or(name);
        let mut beginnings = dots(beginning).rev().filter_map(|at| beginning.get(..=at));
        beginnings.find_map(|beginning| self.prefixes.values.get(beginning)).copied()
    }
}

impl<V> Default for Parts<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), longest: 0 }
    }
}

impl<V> Parts<V> {
    fn insert(&mut self, part: Box<[u8]>, value: V) -> Result<(), DuplicateHostName> {
        self.longest = self.longest.max(part.len());
        insert(&mut self.values, part, value)
    }
}

/// Positions of the dots.
fn dots(name: &[u8]) -> impl DoubleEndedIterator<Item = usize> {
    name.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at)
}

fn insert<V>(map: &mut HashMap<Box<[u8]>, V>, name: Box<[u8]>, value: V) -> Result<(), DuplicateHostName> {
    match map.entry(name) {
        Entry::Occupied(_) => Err(DuplicateHostName),
        Entry::Vacant(free) => {
            free.insert(value);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[(&str, u32)], wildcards: Wildcards) -> HostNames<u32> {
        let mut names = HostNames::default();
        for (name, value) in list {
            names.add(HostName::parse(name.as_bytes(), wildcards).unwrap(), *value).unwrap();
        }
        names
    }

    const LIST: &[(&str, u32)] = &[
        ("Example.com", 1),
        ("*.example.com", 2),
        (".example.org", 3),
        ("*.deep.example.org", 4),
        ("www.example.*", 5),
        ("www.*", 6),
        ("", 7),
        (".x.*", 8),
        ("mail.*", 9),
        ("*.net", 10),
    ];

    const FOUND: &[(&str, Option<u32>)] = &[
        ("example.com", Some(1)),
        ("a.b.example.com", Some(2)),
        ("aexample.com", None),
        ("example.org", Some(3)),
        ("a.example.org", Some(3)),
        ("deep.example.org", Some(3)),
        ("a.deep.example.org", Some(4)),
        ("a.b.deep.example.org", Some(4)),
        // An empty label is a label.
        (".example.com", Some(2)),
        (".example.org", Some(3)),
        (".deep.example.org", Some(4)),
        (".com", None),
        (".net", Some(10)),
        ("net", None),
        ("www.example.net", Some(10)),
        ("www.example.info", Some(5)),
        ("www.example.", Some(5)),
        ("www.example", Some(6)),
        ("www.example.example.org", Some(3)),
        ("mail.example.info", Some(9)),
        (".mail.example.info", None),
        ("www", None),
        ("x.*", Some(8)),
        ("a.x.*", Some(8)),
        (".x.y", None),
        ("other", None),
        (".", None),
        ("", Some(7)),
    ];

    #[test]
    fn names_are_found_from_exact_to_wildcards() {
        let names = names(LIST, Wildcards::Allowed);
        for (name, expected) in FOUND {
            assert_eq!(names.find(name.as_bytes()), *expected, "{name}");
        }
        assert_eq!(HostNames::<u32>::default().find(b"a.b"), None);
        assert!(HostNames::<u32>::default().is_empty() && !names.is_empty());
    }

    #[test]
    fn found_name_matches_its_pattern() {
        for (host, expected) in FOUND {
            let takes = |name: &str| {
                HostName::parse(name.as_bytes(), Wildcards::Allowed).unwrap().matches(host.as_bytes())
            };
            let taken: Vec<u32> = LIST.iter().filter(|(name, _)| takes(name)).map(|(_, at)| *at).collect();
            assert_eq!(taken.is_empty(), expected.is_none(), "{host}: {taken:?}");
            assert!(expected.is_none_or(|at| taken.contains(&at)), "{host}: {taken:?}");
        }
    }

    #[test]
    fn a_name_of_dots_costs_no_more_than_the_wildcards_are_long() {
        let names = names(LIST, Wildcards::Allowed);
        let long = ".a".repeat(4000);
        assert_eq!(names.find(long.as_bytes()), None);
        assert_eq!(names.find(format!("{long}.deep.example.org").as_bytes()), Some(4));
        assert_eq!(names.find(format!("www.example{long}").as_bytes()), Some(5));
    }

    #[test]
    fn without_wildcards_an_asterisk_is_a_letter() {
        let names = names(&[("*.example.com", 1), ("a..b", 2), (".c", 3)], Wildcards::None);
        assert_eq!(names.find(b"x.example.com"), None);
        assert_eq!(names.find(b"*.example.com"), Some(1));
        assert_eq!(names.find(b"a..b"), Some(2));
        assert_eq!(names.find(b"c"), None);
    }

    #[test]
    fn forms() {
        for (text, expected, written_text) in [
            ("Example.com", Ok(HostName::Exact(Box::from(*b"example.com"))), "example.com"),
            ("*.Example.com", Ok(HostName::Below(Box::from(*b".example.com"))), "*.example.com"),
            (".example.com", Ok(HostName::Dot(Box::from(*b".example.com"))), ".example.com"),
            ("www.Example.*", Ok(HostName::Prefix(Box::from(*b"www.example."))), "www.example.*"),
            (".a.*", Ok(HostName::Dot(Box::from(*b".a.*"))), ".a.*"),
            (".", Ok(HostName::Exact(Box::from(*b"."))), "."),
            ("", Ok(HostName::Exact(Box::default())), ""),
            ("*", Err(InvalidHostName), ""),
            ("*.", Err(InvalidHostName), ""),
            (".*", Ok(HostName::Dot(Box::from(*b".*"))), ".*"),
            ("a*b", Err(InvalidHostName), ""),
            ("a*", Err(InvalidHostName), ""),
            ("*.a.*", Err(InvalidHostName), ""),
            ("a..b", Err(InvalidHostName), ""),
            ("a\0b", Err(InvalidHostName), ""),
        ] {
            let name = HostName::parse(text.as_bytes(), Wildcards::Allowed);
            assert_eq!(name, expected, "{text}");
            assert_eq!(
                name.map_or_else(|_| Vec::new(), |name| name.to_bytes()),
                written_text.as_bytes(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_second_value_is_refused() {
        let first = [("a.b", 1), (".c.d", 2), ("*.e.f", 3), ("g.*", 4)];
        for (name, expected) in [
            ("A.b", Err(DuplicateHostName)),
            ("c.d", Err(DuplicateHostName)),
            ("*.c.d", Err(DuplicateHostName)),
            (".c.d", Err(DuplicateHostName)),
            (".a.b", Err(DuplicateHostName)),
            (".e.f", Err(DuplicateHostName)),
            ("e.f", Ok(())),
            ("g.*", Err(DuplicateHostName)),
            ("g", Ok(())),
        ] {
            let mut names = names(&first, Wildcards::Allowed);
            let name_read = HostName::parse(name.as_bytes(), Wildcards::Allowed).unwrap();
            assert_eq!(names.add(name_read, 9), expected, "{name}");
            // A name that is ignored is ignored as a whole.
            let hosts = ["a.b", "x.a.b", "c.d", "x.c.d", "e.f", "x.e.f", "g", "g.x"];
            let has_nine = hosts.iter().any(|host| names.find(host.as_bytes()) == Some(9));
            assert_eq!(has_nine, expected.is_ok(), "{name}");
        }
    }
}
