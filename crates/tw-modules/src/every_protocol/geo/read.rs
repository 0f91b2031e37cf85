//! A `geo` block as written: its lines in order, with nginx's warnings.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tw_conf::{ConfError, Cx, Network, Node, Word, network};
use tw_core::session::Session;
use tw_module_support::address_source::read_network;
use tw_module_support::forwarded::ProxyChain;

use super::intervals::{GeoTable, Intervals};
use super::ranges::{Added, Deleted, Ranges};

/// A block as read so far.
pub(super) struct Reading<'n> {
    /// Set if the block names proxies.
    has_proxies: bool,
    /// Proxies that are trusted to name the client's address.
    pub(super) proxies: Vec<Network>,
    pub(super) chain: ProxyChain,
    /// Set if the value is computed on each use.
    pub(super) is_volatile: bool,
    entries: Entries,
    values: Vec<Box<[u8]>>,
    value_numbers: HashMap<&'n [u8], u32>,
}

/// Notation of the addresses.
enum Entries {
    /// Nothing yet.
    None,
    Networks(Networks),
    Ranges {
        ranges: Ranges,
        default: Option<u32>,
    },
}

/// First addresses and numbers of bits to values.
#[derive(Default)]
struct Networks {
    v4: HashMap<(u32, u8), u32>,
    v6: HashMap<(u128, u8), u32>,
}

impl<'n> Reading<'n> {
    /// For a block about sessions of this kind.
    pub(super) fn of<S: Session>() -> Self {
        Self {
            has_proxies: S::TELLS_FORWARDED,
            proxies: Vec::new(),
            chain: ProxyChain::Last,
            is_volatile: false,
            entries: Entries::None,
            values: Vec::new(),
            value_numbers: HashMap::new(),
        }
    }

    /// Takes one line.
    pub(super) fn line(&mut self, line: &'n Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        tw_module_support::block::refuse_block(line)?;
        let value = match line.args.as_slice() {
            [] if line.name.is("ranges") => return self.use_ranges(line),
            [] if self.has_proxies && line.name.is("proxy_recursive") => {
                self.chain = ProxyChain::Recursive;
                return Ok(());
            }
            [] if line.name.is("volatile") => {
                self.is_volatile = true;
                return Ok(());
            }
            [value] => value,
            _ => return Err(line.fail("invalid number of the geo parameters")),
        };
        if self.has_proxies && line.name.is("proxy") {
            self.proxies.push(read_network(line, value, cx)?);
            return Ok(());
        }
        match self.entries {
            Entries::Ranges { .. } => self.range(line, value, cx),
            Entries::None | Entries::Networks(_) => self.network(line, value, cx),
        }
    }

    fn use_ranges(&mut self, line: &Node) -> Result<(), ConfError> {
        match self.entries {
            Entries::None => {
                self.entries = Entries::Ranges { ranges: Ranges::default(), default: None };
                Ok(())
            }
            Entries::Ranges { .. } => Ok(()),
            Entries::Networks(_) => {
                Err(line.fail("the \"ranges\" directive must be the first directive inside \"geo\" block"))
            }
        }
    }

    fn network(&mut self, line: &'n Node, second: &'n Word, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        if line.name.is("delete") {
            let network = read_network(line, second, cx)?;
            if self.networks().remove(network).is_none() {
                cx.warn(line.span, format!("no network \"{second}\" to delete"));
            }
            return Ok(());
        }
        let value = self.value(second);
        let networks = if line.name.is("default") {
            [Some(any_address(Ipv4Addr::UNSPECIFIED)), Some(any_address(Ipv6Addr::UNSPECIFIED))]
        } else {
            [Some(read_network(line, &line.name, cx)?), None]
        };
        for network in networks.into_iter().flatten() {
            if let Some(old) = self.networks().insert(network, value) {
                let name = &line.name;
                let old = String::from_utf8_lossy(&self.values[old as usize]);
                let message =
                    format!("duplicate network \"{name}\", value: \"{second}\", old value: \"{old}\"");
                cx.warn(line.span, message);
            }
        }
        Ok(())
    }

    fn networks(&mut self) -> &mut Networks {
        if !matches!(self.entries, Entries::Networks(_)) {
            self.entries = Entries::Networks(Networks::default());
        }
        match &mut self.entries {
            Entries::Networks(networks) => networks,
            Entries::None | Entries::Ranges { .. } => unreachable!("set just now"),
        }
    }

    fn range(&mut self, line: &'n Node, second: &'n Word, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        let deletes = line.name.is("delete");
        let value = if deletes { 0 } else { self.value(second) };
        let values = &self.values;
        let shown = |value: u32| String::from_utf8_lossy(&values[value as usize]).into_owned();
        let Entries::Ranges { ranges, default } = &mut self.entries else { return Ok(()) };
        if line.name.is("default") {
            if let Some(old) = default.replace(value) {
                let old = shown(old);
                let message =
                    format!("duplicate default geo range value: \"{second}\", old value: \"{old}\"");
                cx.warn(line.span, message);
            }
            return Ok(());
        }
        let text = if deletes { second } else { &line.name };
        let (first, last) = read_range(text).ok_or_else(|| line.fail(format!("invalid range \"{text}\"")))?;
        if deletes {
            if ranges.delete(first, last) == Deleted::Partly {
                cx.warn(line.span, format!("no address range \"{text}\" to delete"));
            }
            return Ok(());
        }
        let mut overlaps = None;
        ranges.add(first, last, value, |added| match added {
            Added::New => {}
            Added::Replaced(old) => {
                let old = shown(old);
                let message =
                    format!("duplicate range \"{text}\", value: \"{second}\", old value: \"{old}\"");
                cx.warn(line.span, message);
            }
            Added::Overlaps(first, last) => overlaps = Some((first, last)),
        });
        match overlaps {
            Some((first, last)) => {
                let first = Ipv4Addr::from_bits(first);
                let last = Ipv4Addr::from_bits(last);
                Err(line.fail(format!("range \"{text}\" overlaps \"{first}-{last}\"")))
            }
            None => Ok(()),
        }
    }

    fn value(&mut self, word: &'n Word) -> u32 {
        *self.value_numbers.entry(&word.bytes).or_insert_with(|| {
            self.values.push(word.bytes.clone());
            self.values.len() as u32 - 1
        })
    }

    /// Compiles the block for look-ups.
    pub(super) fn compile(self) -> GeoTable {
        let values = self.values;
        match self.entries {
            Entries::None => GeoTable::default(),
            Entries::Ranges { ranges, default } => {
                GeoTable { v4: ranges.compile(), v6: Intervals::default(), values, default }
            }
            Entries::Networks(Networks { v4, v6 }) => {
                let (mut list, mut list6): (Vec<_>, Vec<_>) =
                    (v4.into_iter().collect(), v6.into_iter().collect());
                list.sort_unstable();
                list6.sort_unstable();
                let v4 = list.into_iter().map(|((first, bits), value)| {
                    let rest = u32::MAX.checked_shr(bits.into()).unwrap_or(0);
                    (first, first | rest, value)
                });
                let v6 = list6.into_iter().map(|((first, bits), value)| {
                    let rest = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
                    (first, first | rest, value)
                });
                GeoTable { v4: Intervals::nested(v4), v6: Intervals::nested(v6), values, default: None }
            }
        }
    }
}

impl Networks {
    /// Adds a network and returns the value it had before.
    fn insert(&mut self, network: Network, value: u32) -> Option<u32> {
        fn put<K: std::hash::Hash + Eq>(map: &mut HashMap<K, u32>, key: K, value: u32) -> Option<u32> {
            match map.entry(key) {
                Entry::Occupied(mut occupied_entry) => Some(occupied_entry.insert(value)),
                Entry::Vacant(free) => {
                    free.insert(value);
                    None
                }
            }
        }
        match network.addr() {
            IpAddr::V4(addr) => put(&mut self.v4, (addr.to_bits(), network.bits()), value),
            IpAddr::V6(addr) => put(&mut self.v6, (addr.to_bits(), network.bits()), value),
        }
    }

    fn remove(&mut self, network: Network) -> Option<u32> {
        match network.addr() {
            IpAddr::V4(addr) => self.v4.remove(&(addr.to_bits(), network.bits())),
            IpAddr::V6(addr) => self.v6.remove(&(addr.to_bits(), network.bits())),
        }
    }
}

/// All addresses of the family of `addr`.
fn any_address(addr: impl Into<IpAddr>) -> Network {
    Network::new(addr.into(), 0)
}

/// Reads `first-last`.
fn read_range(text: &Word) -> Option<(u32, u32)> {
    let dash = text.bytes.iter().position(|&byte| byte == b'-')?;
    let first = network::ipv4(&text.bytes[..dash])?.to_bits();
    let last = network::ipv4(&text.bytes[dash + 1..])?.to_bits();
    (first <= last).then_some((first, last))
}
