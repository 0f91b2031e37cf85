//! Zone of counters by server and filter, which all loops share and which outlives configurations.

use std::sync::Arc;

use tw_base::FatalMutex;
use tw_module_support::zone::{Zone, ZoneTable, slab_cost};

use super::node::{FinishedRequest, TrafficNode};

/// Bytes of a node besides its key: counters, samples and buckets.
const NODE_SIZE: usize = 1792;
/// The longest key that is counted.
pub(super) const KEY_MAX: usize = 4096;
/// Stands between the parts of a key.
const SEPARATOR: u8 = 0x1f;

/// A zone with its nodes.
pub(super) struct TrafficZone {
    /// Name of the zone.
    pub(super) name: Box<str>,
    /// Size in bytes.
    pub(super) size: u64,
    nodes: Zone<Box<TrafficNode>>,
    limited: Option<LimitedNodes>,
}

/// Nodes of filters whose number is limited.
struct LimitedNodes {
    limit: NodeLimit,
    table: FatalMutex<ZoneTable<Box<TrafficNode>>>,
}

/// `vhost_traffic_status_filter_max_node`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeLimit {
    /// Number of nodes, not 0.
    pub(super) most: usize,
    /// Groups that count begin with one of these; all count if there is none.
    pub(super) prefixes: Box<[Box<[u8]>]>,
}

/// Name of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeName<'a> {
    /// A server, or a filter without a group.
    Server(&'a [u8]),
    /// A key of a filter.
    Filter { group: &'a [u8], name: &'a [u8] },
}

/// Failure to count a request: the zone has no room for its key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ZoneFull;

/// Use of a zone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneUsage {
    pub(super) bytes: u64,
    pub(super) nodes: usize,
}

impl<'a> NodeName<'a> {
    /// Appends the key of the node.
    pub(super) fn write_key(self, out: &mut Vec<u8>) {
        match self {
            Self::Server(name) => out.extend_from_slice(name),
            Self::Filter { group, name } => {
                out.push(SEPARATOR);
                out.extend_from_slice(group);
                out.push(SEPARATOR);
                out.extend_from_slice(name);
            }
        }
    }

    /// Name of the node with this key.
    pub(super) fn of_key(key: &'a [u8]) -> Self {
        let filter = key.strip_prefix(&[SEPARATOR]).and_then(|rest| {
            let end = rest.iter().position(|byte| *byte == SEPARATOR)?;
            Some(Self::Filter { group: &rest[..end], name: &rest[end + 1..] })
        });
        filter.unwrap_or(Self::Server(key))
    }
}

/// Writes the key of a filter, or of a server if `group` writes nothing, into an empty buffer. Returns false if `name` writes
/// nothing, or the key would be that of another group.
pub(super) fn write_filter_key(
    out: &mut Vec<u8>,
    group: impl FnOnce(&mut Vec<u8>),
    name: impl FnOnce(&mut Vec<u8>),
) -> bool {
    out.push(SEPARATOR);
    group(out);
    if out.len() > 1 {
        out.push(SEPARATOR);
    } else {
        out.clear();
    }
    let len = out.len();
    name(out);
    out.len() > len && (len > 0 || out.first() != Some(&SEPARATOR))
}

impl NodeLimit {
    fn has(&self, group: &[u8]) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| group.starts_with(prefix))
    }
}

impl TrafficZone {
    /// An empty zone. Nodes whose number is limited get half of the bytes.
    pub(super) fn new(name: &[u8], size: u64, limit: Option<NodeLimit>) -> Self {
        let share = if limit.is_some() { size / 2 } else { size };
        let table = FatalMutex::new(ZoneTable::new(share));
        Self {
            name: String::from_utf8_lossy(name).into(),
            size,
            nodes: Zone::new(name, share, ""),
            limited: limit.map(|limit| LimitedNodes { limit, table }),
        }
    }

    /// Returns true if a configuration with this size and limit may go on with the zone.
    pub(super) fn fits(&self, size: u64, limit: Option<&NodeLimit>) -> bool {
        self.size == size && self.limited.as_ref().map(|limited| &limited.limit) == limit
    }

    /// Runs `work` with the table that has `key`, and the most nodes that it may have.
    fn with_table<T>(
        &self,
        key: &[u8],
        work: impl FnOnce(&mut ZoneTable<Box<TrafficNode>>, usize) -> T,
    ) -> T {
        if let Some(limited) = &self.limited
            && let NodeName::Filter { group, .. } = NodeName::of_key(key)
            && limited.limit.has(group)
        {
            return work(&mut limited.table.lock(), limited.limit.most);
        }
        work(&mut self.nodes.lock(self.nodes.shard_of(key)), usize::MAX)
    }

    /// Counts a request under `key`.
    pub(super) fn count(
        &self,
        key: &[u8],
        request: &FinishedRequest,
        bounds: &[u64],
    ) -> Result<(), ZoneFull> {
        self.with_table(key, |table, most| {
            if let Some(id) = table.find(key) {
                table.touch(id);
                table.get(id).count(request, bounds);
                return Ok(());
            }
            if table.len() >= most
                && let Some(oldest) = table.oldest()
            {
                table.remove(oldest);
            }
            let mut node = Box::<TrafficNode>::default();
            node.count(request, bounds);
            table.insert(key, slab_cost(NODE_SIZE + key.len()), node).map(|_| ()).ok_or(ZoneFull)
        })
    }

    /// Runs `work` with the node of `key`, if there is one.
    pub(super) fn with<T>(&self, key: &[u8], work: impl FnOnce(&mut TrafficNode) -> T) -> Option<T> {
        self.with_table(key, |table, _| table.find(key).map(|id| work(table.get(id))))
    }

    /// Removes the node of `key`. Returns `None` if there is none.
    pub(super) fn remove(&self, key: &[u8]) -> Option<()> {
        self.with_table(key, |table, _| table.find(key).map(|id| table.remove(id)))
    }

    /// Keys of all nodes in order.
    pub(super) fn keys(&self) -> Vec<Arc<[u8]>> {
        let mut keys = Vec::new();
        self.each_table(|table| keys.extend(table.keys().cloned()));
        keys.sort_unstable();
        keys
    }

    /// Number of nodes, and bytes that they take.
    pub(super) fn usage(&self) -> ZoneUsage {
        let mut usage = ZoneUsage::default();
        self.each_table(|table| {
            usage.bytes += table.used();
            usage.nodes += table.len();
        });
        usage
    }

    fn each_table(&self, mut work: impl FnMut(&ZoneTable<Box<TrafficNode>>)) {
        self.nodes.shards().for_each(|table| work(&table));
        if let Some(limited) = &self.limited {
            work(&limited.table.lock());
        }
    }
}

/// Name of a node as limits and variables write it: `group@name` of a filter.
pub(super) fn name_of(text: &[u8], is_filter: bool) -> NodeName<'_> {
    match text.iter().position(|byte| *byte == b'@') {
        Some(at) if is_filter => NodeName::Filter { group: &text[..at], name: &text[at + 1..] },
        _ => NodeName::Server(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: FinishedRequest =
        FinishedRequest { status: 200, received: 1, sent: 2, cache: None, time_ms: 3, at_ms: 4 };

    fn key(group: &[u8], name: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        NodeName::Filter { group, name }.write_key(&mut key);
        key
    }

    #[test]
    fn keys_name_nodes() {
        for name in [
            NodeName::Server(b""),
            NodeName::Server(b"example.com"),
            NodeName::Filter { group: b"country::a", name: b"KR" },
            NodeName::Filter { group: b"g", name: b"a@b" },
        ] {
            let mut key = Vec::new();
            name.write_key(&mut key);
            assert_eq!(NodeName::of_key(&key), name);
        }
        assert_eq!(NodeName::of_key(b"\x1fa"), NodeName::Server(b"\x1fa"));
        for (group, name, expected) in [
            (&b""[..], &b"n"[..], Some(NodeName::Server(b"n"))),
            (b"g", b"n", Some(NodeName::Filter { group: b"g", name: b"n" })),
            (b"g", b"", None),
            (b"", b"", None),
            (b"", b"\x1fg\x1fn", None),
        ] {
            let mut key = Vec::new();
            let put = |text: &'static [u8]| move |out: &mut Vec<u8>| out.extend_from_slice(text);
            let is_named = write_filter_key(&mut key, put(group), put(name));
            assert_eq!(is_named.then(|| NodeName::of_key(&key)), expected);
        }
    }

    #[test]
    fn full_zone_counts_known_keys_only() {
        let zone = TrafficZone::new(b"a", 32 << 10, None);
        let counted = (0..100_u8).filter(|n| zone.count(&[*n], &REQUEST, &[]).is_ok()).count();
        assert_eq!(zone.usage(), ZoneUsage { bytes: 32 << 10, nodes: counted });
        assert_eq!(counted, 16, "2 KiB each");
        assert_eq!(zone.count(&[99], &REQUEST, &[]), Err(ZoneFull));
        assert_eq!(zone.count(&[0], &REQUEST, &[]), Ok(()));
        assert_eq!(zone.with(&[0], |node| node.requests), Some(2));
        assert_eq!((zone.remove(&[0]), zone.remove(&[0])), (Some(()), None));
        assert_eq!(zone.count(&[99], &REQUEST, &[]), Ok(()));
        assert_eq!(zone.keys().len(), 16);
    }

    #[test]
    fn number_of_nodes_of_some_filters_is_limited() {
        let limit = NodeLimit { most: 2, prefixes: [b"uri".as_slice().into()].into() };
        let zone = TrafficZone::new(b"a", 1 << 20, Some(limit.clone()));
        for name in [b"1", b"2", b"1", b"3"] {
            zone.count(&key(b"uris::a", name), &REQUEST, &[]).unwrap();
            zone.count(&key(b"other", name), &REQUEST, &[]).unwrap();
        }
        let keys = zone.keys();
        let names = keys.iter().filter_map(|key| match NodeName::of_key(key) {
            NodeName::Filter { group: b"uris::a", name } => Some(name),
            _ => None,
        });
        assert_eq!(names.collect::<Vec<_>>(), [b"1", b"3"], "the one used last stays");
        assert_eq!(keys.len(), 5);
        assert!(zone.fits(1 << 20, Some(&limit)) && !zone.fits(1 << 20, None) && !zone.fits(1, Some(&limit)));
    }
}
