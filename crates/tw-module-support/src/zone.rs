//! Zones: tables of counters by key that all loops share and that outlive a configuration (nginx: shared memory zones).
//!
//! The size of an entry is counted as nginx's slabs take it, so a zone of one size holds as many entries.

mod table;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tw_base::{Counter, FatalMutex, FatalMutexGuard};
use tw_conf::{ConfError, Node, Setting, Span, Word, units};
use tw_core::load::Resolve;
use tw_core::metrics::{Samples, Scrape};
use tw_core::module::Protocol;
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_log::{Level, Text};

pub use self::table::{Id, ZoneTable};

/// Smallest zone: eight pages, as in nginx.
const SIZE_MIN: u64 = 8 * PAGE;
/// nginx's page; larger entries take whole pages.
const PAGE: u64 = 4096;
/// Bytes of a part of a zone that has a lock of its own. Keys are up to 64 KiB long, so smaller parts would fill too early.
const SHARD_SIZE: u64 = 1 << 20;
/// The most parts of a zone.
const SHARDS_MAX: u64 = 16;

/// `zone=name:size` as written.
pub struct ZoneParameter {
    /// The name; not empty.
    pub name: Box<[u8]>,
    /// Bytes.
    pub size: u64,
}

impl ZoneParameter {
    /// Reads the value of a `zone=` parameter; `None` if it has no name, which is complained about once all are read.
    pub fn read(node: &Node, word: &Word, value: &[u8]) -> Result<Option<Self>, ConfError> {
        let invalid = || node.fail(format!("invalid zone size \"{word}\"")).at(word.span);
        let colon = value.iter().position(|byte| *byte == b':').ok_or_else(invalid)?;
        let size = units::size(&value[colon + 1..]).ok_or_else(invalid)?;
        let size = large_enough(node, word, size)?;
        let name: Box<[u8]> = value[..colon].into();
        Ok((!name.is_empty()).then_some(Self { name, size }))
    }

    /// Reads a name and a size that are two words.
    pub fn of_words(node: &Node, name: &Word, size: &Word) -> Result<Self, ConfError> {
        let invalid = || node.fail(format!("invalid zone size \"{size}\"")).at(size.span);
        let bytes = large_enough(node, size, size.size().ok_or_else(invalid)?)?;
        Ok(Self { name: name.bytes.clone(), size: bytes })
    }
}

/// Refuses zones in which nothing has room.
fn large_enough(node: &Node, word: &Word, size: u64) -> Result<u64, ConfError> {
    if size < SIZE_MIN {
        Err(node.fail(format!("zone \"{word}\" is too small")).at(word.span))
    } else {
        Ok(size)
    }
}

/// Owner of a name: names of zones are shared by all modules.
#[derive(PartialEq)]
struct Owner {
    protocol: &'static str,
    module: &'static str,
}

/// Claims the name of a zone for a module of the protocol.
///
/// # Errors
/// Another kind of zone has the name.
pub fn claim<P: Protocol>(
    cx: &mut Resolve<'_, P>,
    name: &[u8],
    module: &'static str,
) -> Result<(), ConfError> {
    let owner = || Owner { protocol: P::NAME, module };
    if *cx.keep(name, |known_owner: &Owner| *known_owner == owner(), owner) == owner() {
        return Ok(());
    }
    let name = Text(name);
    Err(ConfError::new(format!("the shared memory zone \"{name}\" is already declared for a different use")))
}

/// Counters of a zone, which outlive configurations.
pub trait ZoneCounters: Send + Sync + 'static {
    /// Counters of one key.
    type Value;

    /// The zone.
    fn zone(&self) -> &Zone<Self::Value>;
}

/// A sample of every zone whose counters are `T`, in the order of their names.
pub fn values<T: ZoneCounters>(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: impl Fn(&T) -> u64) {
    for counted in scrape.shared_objects::<T>() {
        out.value(&[&counted.zone().name], of(counted));
    }
}

/// Words of a directive that declares zones.
pub struct ZoneMessages {
    /// Module that owns the zones.
    pub owner: &'static str,
    /// The directive.
    pub directive: &'static str,
    /// Directive that messages about another key name.
    pub keyed: &'static str,
}

/// Takes a zone declared with this key into use, new or from an earlier configuration; `previous` is an earlier
/// declaration of its name in this configuration.
///
/// # Errors
/// The name is taken, or the declaration differs from an earlier one.
pub fn declare<P: Protocol, T: ZoneCounters>(
    cx: &mut Resolve<'_, P>,
    words: &ZoneMessages,
    key: &Word,
    zone_parameter: &ZoneParameter,
    span: Span,
    previous: Option<&T>,
    make: impl FnOnce(Zone<T::Value>) -> T,
) -> Result<(Template<P::Session>, Arc<T>), ConfError> {
    let ZoneParameter { name, size } = zone_parameter;
    claim(cx, name, words.owner).map_err(|error| error.at(span))?;
    if let Some(previous) = previous {
        let zone = previous.zone();
        let message = declared_twice(words.directive, name, [zone.size, *size], &zone.key);
        return Err(ConfError::new(message).at(span));
    }
    let template = cx.template(key)?;
    let fits = |previous: &T| previous.zone().size == *size;
    let counted = cx.keep(name, fits, || make(Zone::new(name, *size, &key.lossy())));
    let before = &counted.zone().key;
    if **before != *key.lossy() {
        let name = Text(name);
        let keyed = words.keyed;
        return Err(ConfError::new(format!(
            "{keyed} \"{name}\" uses the \"{key}\" key while previously it used the \"{before}\" key"
        )));
    }
    Ok((template, counted))
}

/// The error of a directive without `zone=`.
pub fn missing(node: &Node) -> ConfError {
    node.fail(format!("\"{}\" must have \"zone\" parameter", node.name))
}

/// Error of the second of two declarations of a zone in one configuration.
fn declared_twice(directive: &str, name: &[u8], sizes: [u64; 2], key: &str) -> String {
    let name = Text(name);
    let [first, second] = sizes;
    if first == second {
        format!("{directive} \"{name}\" is already bound to key \"{key}\"")
    } else {
        format!(
            "the size {second} of shared memory zone \"{name}\" conflicts with already declared size {first}"
        )
    }
}

/// The error of a name that no directive declares.
pub fn undeclared(name: &[u8], at: Span) -> ConfError {
    ConfError::new(format!("zero size shared memory zone \"{}\"", Text(name)))
        .at(at)
        .hint("a zone of this name is used, and nothing in \"http\" defines one")
}

/// Zones of a configuration by name.
pub type Zones<Z> = HashMap<Box<[u8]>, Arc<Z>>;

/// Directive that limits requests by the counters of a zone, as written.
pub struct RawLimit<V> {
    /// Name of the zone.
    pub zone: Box<[u8]>,
    /// Parameters besides the zone.
    pub values: V,
    /// Position of the directive in the configuration.
    pub span: Span,
}

impl<V> RawLimit<V> {
    /// Refuses a second limit by a zone in one block.
    pub fn refuse_duplicate(limits: &Setting<Vec<Self>>, zone: &[u8], node: &Node) -> Result<(), ConfError> {
        if limits.get().is_some_and(|limits| limits.iter().any(|limit| *limit.zone == *zone)) {
            Err(node.error("is duplicate"))
        } else {
            Ok(())
        }
    }
}

/// Limits of one block: its own, made by `make` for the zone of each, or those of the enclosing block.
///
/// # Errors
/// No directive declares the zone, or those of `make`.
pub fn resolve_limits<P: Protocol, Z, V, L>(
    raw: Setting<Vec<RawLimit<V>>>,
    outer: Option<&Arc<[L]>>,
    zones: &Zones<Z>,
    owner: &'static str,
    cx: &mut Resolve<'_, P>,
    make: impl Fn(Arc<Z>, V, &mut Resolve<'_, P>) -> Result<L, ConfError>,
) -> Result<Arc<[L]>, ConfError> {
    let Some(limits) = raw.take() else { return Ok(outer.cloned().unwrap_or_else(|| [].into())) };
    let used = |limit: RawLimit<V>| match zones.get(&limit.zone) {
        Some(zone) => make(zone.clone(), limit.values, cx),
        None => {
            claim(cx, &limit.zone, owner)?;
            Err(undeclared(&limit.zone, limit.span))
        }
    };
    limits.into_iter().map(used).collect()
}

/// Evaluates the key of a zone into `key`. Returns `false` if the session is not counted there: its key is empty, or longer
/// than `max`, which is logged.
pub fn eval_key<S: Session, V>(
    s: &S,
    template: &Template<S>,
    zone: &Zone<V>,
    max: usize,
    key: &mut Vec<u8>,
) -> bool {
    key.clear();
    template.eval(s, key);
    if key.len() > max {
        let name = &zone.key;
        let key = Text(key);
        let message = format_args!("the value of the \"{name}\" key is more than {max} bytes: \"{key}\"");
        s.log(Level::Error, message);
        return false;
    }
    !key.is_empty()
}

/// Bytes that nginx's slabs take for `bytes`: a power of two up to half a page, then whole pages.
pub fn slab_cost(bytes: usize) -> u64 {
    let bytes = bytes as u64;
    if bytes <= PAGE / 2 { bytes.next_power_of_two().max(8) } else { bytes.next_multiple_of(PAGE) }
}

/// A table in parts, each with a lock. Locks are held for some tens of nanoseconds and never across an await.
pub struct Zone<V> {
    /// Name of the zone.
    pub name: Box<str>,
    /// Size in bytes.
    pub size: u64,
    /// The text of its key.
    pub key: Box<str>,
    /// Entries in it now.
    pub entries: Counter,
    /// Keyed by random numbers, so that a client cannot choose keys of one part.
    hasher: RandomState,
    shards: Box<[FatalMutex<ZoneTable<V>>]>,
}

impl<V> Zone<V> {
    /// An empty zone.
    pub fn new(name: &[u8], size: u64, key: &str) -> Self {
        let count = (size / SHARD_SIZE).clamp(1, SHARDS_MAX);
        Self {
            name: String::from_utf8_lossy(name).into(),
            size,
            key: key.into(),
            entries: Counter::default(),
            hasher: RandomState::new(),
            shards: (0..count).map(|_| FatalMutex::new(ZoneTable::new(size / count))).collect(),
        }
    }

    /// The part that `key` lies in.
    pub fn shard_of(&self, key: &[u8]) -> usize {
        // There are at most 16 shards.
        (self.hasher.hash_one(key) % self.shards.len() as u64) as usize
    }

    /// Number of parts.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Locks one part after the other.
    pub fn shards(&self) -> impl Iterator<Item = FatalMutexGuard<'_, ZoneTable<V>>> {
        self.shards.iter().map(FatalMutex::lock)
    }

    /// Locks a part.
    pub fn lock(&self, shard: usize) -> FatalMutexGuard<'_, ZoneTable<V>> {
        self.shards[shard].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_slabs() {
        for (bytes, cost) in [(0, 8), (36, 64), (84, 128), (128, 128), (129, 256), (2048, 2048), (2049, 4096)]
        {
            assert_eq!(slab_cost(bytes), cost, "{bytes}");
        }
        assert_eq!(slab_cost(65_535 + 80), 17 * 4096);
    }

    #[test]
    fn large_zones_have_several_parts() {
        for (size, shards) in [(32 << 10, 1), (1 << 20, 1), (10 << 20, 10), (1 << 30, 16)] {
            let zone = Zone::<u32>::new(b"a", size, "$key");
            assert_eq!(zone.shards.len(), shards, "{size}");
            assert!(zone.shard_of(b"anything") < shards);
        }
    }
}
