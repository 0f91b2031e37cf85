//! A table of pairs within a number of bytes, without I/O and without a clock: times are milliseconds since 1970.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use tw_conf::Network;
use tw_module_support::zone::slab_cost;

/// Bytes that a pair takes besides its key and its value, about.
const OVERHEAD: usize = 96;
/// Expired pairs that one change removes, so that it stays short.
const EXPIRED_BATCH: usize = 1024;

/// Kind of the keys of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// `type=string`: the text itself.
    Text,
    /// `type=ip`: addresses and networks; of several that contain an address the smallest counts.
    Network,
    /// `type=prefix`: beginnings of texts; of several the longest counts.
    Prefix,
}

impl KeyKind {
    /// The kind of this name.
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        match name {
            b"string" => Some(Self::Text),
            b"ip" => Some(Self::Network),
            b"prefix" => Some(Self::Prefix),
            _ => None,
        }
    }
}

/// Value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The value.
    pub value: Arc<[u8]>,
    /// Time at which it is gone; `None` for never.
    pub expires: Option<u64>,
}

/// Change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairChange {
    /// A new pair.
    Add(Pair),
    /// Another value, or another time, of a pair that exists.
    Change {
        /// Value from now on; `None` to leave it.
        value: Option<Arc<[u8]>>,
        /// Time at which it is gone; `None` for never.
        expires: Option<u64>,
    },
    /// Removes a pair that exists.
    Remove,
}

/// Reason why nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeError {
    /// The key is new, and was to be changed.
    NoKey,
    /// The key exists, and was to be added.
    KeyExists,
    /// No key of this kind.
    InvalidKey,
    /// No room for it.
    Full,
}

/// The table.
pub(crate) struct Pairs {
    kind: KeyKind,
    by_key: BTreeMap<Arc<[u8]>, Pair>,
    /// The keys of pairs that expire, by time.
    by_time: BTreeSet<(u64, Arc<[u8]>)>,
    networks: Networks,
    used: u64,
    capacity: u64,
}

impl Pairs {
    /// An empty table for `capacity` bytes.
    pub(crate) fn new(kind: KeyKind, capacity: u64) -> Self {
        Self {
            kind,
            by_key: BTreeMap::new(),
            by_time: BTreeSet::new(),
            networks: Networks::default(),
            used: 0,
            capacity,
        }
    }

    /// Number of pairs, with those that have expired and are not removed yet.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The pair with exactly this key.
    pub(crate) fn get(&self, key: &[u8], now: u64) -> Option<&Pair> {
        self.by_key.get(key).filter(|pair| pair.is_alive(now))
    }

    /// The value for a text, as the kind of the keys says. O(log n), for prefixes and networks times the number of lengths.
    pub(crate) fn look_up(&self, text: &[u8], now: u64) -> Option<&Arc<[u8]>> {
        let pair = match self.kind {
            KeyKind::Text => self.get(text, now),
            KeyKind::Prefix => self.longest_prefix(text, now),
            KeyKind::Network => {
                let network = Network::parse(text)?.network;
                self.networks.containing(network).find_map(|key| self.get(key, now))
            }
        };
        pair.map(|pair| &pair.value)
    }

    fn longest_prefix(&self, text: &[u8], now: u64) -> Option<&Pair> {
        let mut rest = text;
        loop {
            // The greatest key not above the text is its longest prefix, or all its prefixes are prefixes of both.
            let (key, pair) =
                self.by_key.range::<[u8], _>((Bound::Unbounded, Bound::Included(rest))).next_back()?;
            let common = key.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common == key.len() {
                if pair.is_alive(now) {
                    return Some(pair);
                }
                rest = rest.get(..common.checked_sub(1)?)?;
            } else {
                rest = rest.get(..common)?;
            }
        }
    }

    /// Up to `max` pairs behind the key `after`, in the order of their keys.
    pub(crate) fn part(&self, after: Option<&[u8]>, max: usize, now: u64) -> Vec<(Arc<[u8]>, Pair)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let pairs = self.by_key.range::<[u8], _>((start, Bound::Unbounded));
        let alive = pairs.filter(|(_, pair)| pair.is_alive(now));
        alive.take(max).map(|(key, pair)| (key.clone(), pair.clone())).collect()
    }

    /// Carries out all changes or none, each of another key.
    pub(crate) fn change(
        &mut self,
        changes: &[(Arc<[u8]>, PairChange)],
        now: u64,
    ) -> Result<(), ChangeError> {
        self.remove_expired(now);
        let mut used = self.used;
        for (key, change) in changes {
            let row = self.by_key.get(key).map(|pair| (pair.cost(key), pair.is_alive(now)));
            let before = row.map_or(0, |(cost, _)| cost);
            let is_alive = row.is_some_and(|(_, is_alive)| is_alive);
            let after = match change {
                PairChange::Add(_) if is_alive => return Err(ChangeError::KeyExists),
                PairChange::Add(pair) => {
                    self.check_new_key(key)?;
                    pair.cost(key)
                }
                _ if !is_alive => return Err(ChangeError::NoKey),
                PairChange::Change { value: Some(value), .. } => cost(key, value),
                PairChange::Change { value: None, .. } => before,
                PairChange::Remove => 0,
            };
            used = (used + after).saturating_sub(before);
        }
        if used > self.capacity && used > self.used {
            return Err(ChangeError::Full);
        }
        for (key, change) in changes {
            let before = self.remove(key);
            let pair = match (change, before) {
                (PairChange::Add(pair), _) => pair.clone(),
                (PairChange::Change { value, expires }, Some(before)) => {
                    Pair { value: value.clone().unwrap_or(before.value), expires: *expires }
                }
                (PairChange::Change { .. }, None) | (PairChange::Remove, _) => continue,
            };
            self.insert(key.clone(), pair);
        }
        Ok(())
    }

    /// Checks that a key is of the table's kind and that no other key means the same network.
    fn check_new_key(&self, key: &[u8]) -> Result<(), ChangeError> {
        if self.kind != KeyKind::Network {
            return Ok(());
        }
        let network = Network::parse(key).ok_or(ChangeError::InvalidKey)?.network;
        match self.networks.find(network) {
            Some(name) if **name != *key => Err(ChangeError::KeyExists),
            _ => Ok(()),
        }
    }

    /// Removes pairs that have expired, a limited number of them.
    fn remove_expired(&mut self, now: u64) {
        for _ in 0..EXPIRED_BATCH {
            match self.by_time.first() {
                Some((time, key)) if *time <= now => {
                    let key = key.clone();
                    self.remove(&key);
                }
                _ => break,
            }
        }
    }

    fn insert(&mut self, key: Arc<[u8]>, pair: Pair) {
        if let Some(time) = pair.expires {
            self.by_time.insert((time, key.clone()));
        }
        if let (KeyKind::Network, Some(network)) = (self.kind, Network::parse(&key)) {
            self.networks.insert(network.network, key.clone());
        }
        self.used += pair.cost(&key);
        self.by_key.insert(key, pair);
    }

    fn remove(&mut self, key: &[u8]) -> Option<Pair> {
        let (key, pair) = self.by_key.remove_entry(key)?;
        self.used -= pair.cost(&key);
        if let (KeyKind::Network, Some(network)) = (self.kind, Network::parse(&key)) {
            self.networks.remove(network.network);
        }
        if let Some(time) = pair.expires {
            self.by_time.remove(&(time, key));
        }
        Some(pair)
    }
}

impl Pair {
    fn is_alive(&self, now: u64) -> bool {
        self.expires.is_none_or(|time| now < time)
    }

    fn cost(&self, key: &[u8]) -> u64 {
        cost(key, &self.value)
    }
}

fn cost(key: &[u8], value: &[u8]) -> u64 {
    slab_cost(key.len() + value.len() + OVERHEAD)
}

/// Keys of a table by their networks.
#[derive(Default)]
struct Networks {
    by_network: HashMap<(IpAddr, u8), Arc<[u8]>>,
    /// Number of networks of each length, for both families.
    lengths: [BTreeMap<u8, usize>; 2],
}

impl Networks {
    fn lengths(&mut self, network: Network) -> &mut BTreeMap<u8, usize> {
        let [v4, v6] = &mut self.lengths;
        if network.addr().is_ipv4() { v4 } else { v6 }
    }

    fn insert(&mut self, network: Network, key: Arc<[u8]>) {
        *self.lengths(network).entry(network.bits()).or_default() += 1;
        self.by_network.insert((network.addr(), network.bits()), key);
    }

    fn remove(&mut self, network: Network) {
        self.by_network.remove(&(network.addr(), network.bits()));
        let lengths = self.lengths(network);
        if let Some(count) = lengths.get_mut(&network.bits()) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&network.bits());
            }
        }
    }

    fn find(&self, network: Network) -> Option<&Arc<[u8]>> {
        self.by_network.get(&(network.addr(), network.bits()))
    }

    /// Keys of the networks that contain a network or are it, the smallest first.
    fn containing(&self, network: Network) -> impl Iterator<Item = &Arc<[u8]>> {
        let [v4, v6] = &self.lengths;
        let lengths = if network.addr().is_ipv4() { v4 } else { v6 };
        let larger = lengths.range(..=network.bits()).rev();
        larger.filter_map(move |(bits, _)| self.find(Network::new(network.addr(), *bits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    fn add(value: &str, expires: Option<u64>) -> PairChange {
        PairChange::Add(Pair { value: key(value), expires })
    }

    fn table(kind: KeyKind, pairs: &[(&str, &str)]) -> Pairs {
        let mut table = Pairs::new(kind, 32 << 10);
        for (name, value) in pairs {
            table.change(&[(key(name), add(value, None))], 0).unwrap();
        }
        table
    }

    fn value_of(table: &Pairs, text: &str, now: u64) -> Option<String> {
        table.look_up(text.as_bytes(), now).map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    fn check(table: &Pairs, expected: &[(&str, &str)]) {
        for (text, value) in expected {
            let value = Some(*value).filter(|value| !value.is_empty()).map(str::to_owned);
            assert_eq!(value_of(table, text, 0), value, "{text}");
        }
    }

    #[test]
    fn texts_are_found_exactly() {
        let table = table(KeyKind::Text, &[("a", "1"), ("", "2")]);
        check(&table, &[("a", "1"), ("", "2"), ("A", ""), ("ab", "")]);
    }

    #[test]
    fn longest_prefix_is_found() {
        let table = table(
            KeyKind::Prefix,
            &[("/a", "a"), ("/a/b", "b"), ("/a/bb", "bb"), ("/ab", "ab"), ("/b/c/d", "d"), ("/z", "z")],
        );
        check(
            &table,
            &[
                ("/a", "a"),
                ("/a/", "a"),
                ("/a/b", "b"),
                ("/a/bc", "b"),
                ("/a/bb/x", "bb"),
                ("/abc", "ab"),
                ("/ac", "a"),
                ("/b/c/e", ""),
                ("/", ""),
                ("", ""),
                ("/zz", "z"),
            ],
        );
    }

    #[test]
    fn smallest_network_is_found() {
        let table = table(
            KeyKind::Network,
            &[
                ("10.0.0.0/8", "8"),
                ("10.1.0.0/16", "16"),
                ("10.1.2.3", "host"),
                ("2001:db8::/32", "v6"),
                ("::/0", "all"),
            ],
        );
        check(
            &table,
            &[
                ("10.2.0.1", "8"),
                ("10.1.0.1", "16"),
                ("10.1.2.3", "host"),
                ("10.1.2.0/24", "16"),
                ("10.0.0.0/7", ""),
                ("192.0.2.1", ""),
                ("2001:db8::1", "v6"),
                ("2001:db9::1", "all"),
                ("text", ""),
            ],
        );
    }

    #[test]
    fn changes_are_made_together_or_not_at_all() {
        let mut table = table(KeyKind::Text, &[("a", "1")]);
        let value = |value: &str| PairChange::Change { value: Some(key(value)), expires: None };
        for (changes, expected) in [
            (vec![("b", add("2", None)), ("a", add("2", None))], Err(ChangeError::KeyExists)),
            (vec![("a", value("2")), ("b", value("2"))], Err(ChangeError::NoKey)),
            (vec![("a", PairChange::Remove), ("b", PairChange::Remove)], Err(ChangeError::NoKey)),
            (vec![("b", add("2", None)), ("a", value("3"))], Ok(())),
            (vec![("b", PairChange::Remove)], Ok(())),
        ] {
            let changes: Vec<_> = changes.into_iter().map(|(name, change)| (key(name), change)).collect();
            let before = table.part(None, 10, 0);
            let used = table.used;
            assert_eq!(table.change(&changes, 0), expected);
            if expected.is_err() {
                assert_eq!((table.part(None, 10, 0), table.used), (before, used));
            }
        }
        check(&table, &[("a", "3"), ("b", "")]);
        table.change(&[(key("a"), PairChange::Remove)], 0).unwrap();
        assert_eq!((table.used, table.len()), (0, 0));
    }

    #[test]
    fn pairs_expire() {
        let mut table = Pairs::new(KeyKind::Prefix, 32 << 10);
        table.change(&[(key("a"), add("long", None)), (key("ab"), add("short", Some(100)))], 0).unwrap();
        assert_eq!(value_of(&table, "abc", 99).as_deref(), Some("short"));
        assert_eq!(value_of(&table, "abc", 100).as_deref(), Some("long"));
        let later = PairChange::Change { value: None, expires: Some(200) };
        assert_eq!(table.change(&[(key("ab"), later.clone())], 100), Err(ChangeError::NoKey));
        assert_eq!(table.len(), 1, "what has expired is removed by a change");
        table.change(&[(key("ab"), add("again", Some(300)))], 100).unwrap();
        table.change(&[(key("ab"), later)], 150).unwrap();
        assert_eq!(table.by_time.len(), 1);
        assert_eq!(value_of(&table, "ab", 199).as_deref(), Some("again"));
        assert_eq!(value_of(&table, "ab", 200).as_deref(), Some("long"));
        assert_eq!(table.part(None, 10, 200).len(), 1);
    }

    #[test]
    fn networks_are_keys_once() {
        let mut table = table(KeyKind::Network, &[("10.0.0.1", "1")]);
        let mut change = |name: &str, change| table.change(&[(key(name), change)], 0);
        assert_eq!(change("10.0.0.1/32", add("2", None)), Err(ChangeError::KeyExists));
        assert_eq!(change("10.0.0.x", add("2", None)), Err(ChangeError::InvalidKey));
        assert_eq!(change("10.0.0.1", PairChange::Remove), Ok(()));
        assert_eq!(change("10.0.0.1/32", add("2", None)), Ok(()));
        check(&table, &[("10.0.0.1", "2")]);
    }

    #[test]
    fn full_table_takes_nothing_more() {
        let mut table = Pairs::new(KeyKind::Text, 1024);
        let mut count = 0;
        while table.change(&[(key(&count.to_string()), add("x", None))], 0).is_ok() {
            count += 1;
        }
        assert_eq!(count, 8);
        let longer = PairChange::Change { value: Some(key(&"x".repeat(200))), expires: None };
        assert_eq!(table.change(&[(key("1"), longer)], 0), Err(ChangeError::Full));
        table.change(&[(key("1"), PairChange::Remove)], 0).unwrap();
        assert_eq!(table.change(&[(key("9"), add("x", None))], 0), Ok(()));
    }

    #[test]
    fn parts_follow_each_other() {
        let table = table(KeyKind::Text, &[("c", "3"), ("a", "1"), ("b", "2")]);
        let names = |after: Option<&str>| {
            let part = table.part(after.map(str::as_bytes), 2, 0);
            part.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect::<String>()
        };
        assert_eq!(
            (names(None), names(Some("b")), names(Some("c"))),
            ("ab".into(), "c".into(), String::new())
        );
    }
}
