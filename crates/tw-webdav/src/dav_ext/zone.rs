//! Zones of locks, which all loops share and which outlive configurations.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_base::FatalMutex;
use tw_conf::{ConfError, Node, Span};
use tw_core::metrics::{Samples, Scrape};
use tw_log::Text;
use tw_module_support::zone::{self, ZoneParameter};
use tw_request::protocol::Resolve;

use super::locks::LockTable;

/// Owner of the names of these zones.
const OWNER: &str = "dav_ext";
/// Time of a lock if the directive names none.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A zone with its locks.
pub(super) struct LockZone {
    name: Box<str>,
    size: u64,
    locks: FatalMutex<LockTable>,
    /// Number of locks, for metrics.
    count: AtomicU64,
}

/// A zone as one configuration uses it.
#[derive(Clone)]
pub(super) struct ConfiguredZone {
    pub(super) zone: Arc<LockZone>,
    /// Longest time of a lock.
    pub(super) timeout: Duration,
}

/// `dav_ext_lock_zone` as written.
pub(super) struct RawZone {
    parameter: ZoneParameter,
    timeout: Duration,
    span: Span,
}

/// `dav_ext_lock` as written.
pub(super) struct RawLockZone {
    name: Box<[u8]>,
    span: Span,
}

/// Zones by name.
pub(super) type LockZones = HashMap<Box<[u8]>, ConfiguredZone>;

impl LockZone {
    fn new(name: &[u8], size: u64) -> Self {
        Self {
            name: String::from_utf8_lossy(name).into(),
            size,
            locks: FatalMutex::new(LockTable::new(size)),
            count: AtomicU64::new(0),
        }
    }

    /// Name of the zone.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` with the locks that have not expired. Other loops wait meanwhile: microseconds.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut LockTable) -> T) -> T {
        let mut locks = self.locks.lock();
        locks.expire(tw_rt::clock::now());
        let result = work(&mut locks);
        self.count.store(locks.len() as u64, Relaxed);
        result
    }

    /// Returns true if nothing is locked. Takes no lock; one that was given meanwhile counts from now on.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// A sample of every zone.
    pub(super) fn counts(scrape: &Scrape<'_>, out: &mut Samples<'_>) {
        for zone in scrape.shared_objects::<Self>() {
            out.value(&[&zone.name], zone.count.load(Relaxed));
        }
    }
}

impl RawZone {
    /// Reads `dav_ext_lock_zone`.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut parameter = None;
        let mut timeout = TIMEOUT;
        for word in &node.args {
            if let Some(value) = word.param("zone") {
                parameter = ZoneParameter::read(node, word, value)?;
            } else if let Some(value) = word.param("timeout") {
                timeout = tw_conf::units::sec(value)
                    .filter(|timeout| !timeout.is_zero())
                    .ok_or_else(|| node.fail(format!("invalid timeout value \"{word}\"")).at(word.span))?;
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        let parameter = parameter.ok_or_else(|| zone::missing(node))?;
        Ok(Self { parameter, timeout, span: node.span })
    }
}

impl RawLockZone {
    /// Reads `dav_ext_lock`.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let word = node.arg(0)?;
        let name = word.param("zone").ok_or_else(|| node.invalid_parameter(word))?;
        Ok(Self { name: name.into(), span: node.span })
    }
}

/// Takes the zones of a configuration into use.
pub(super) fn declare(raw: Vec<RawZone>, cx: &mut Resolve<'_>) -> Result<LockZones, ConfError> {
    let mut zones = LockZones::new();
    for RawZone { parameter: ZoneParameter { name, size }, timeout, span } in raw {
        zone::claim(cx, &name, OWNER).map_err(|error| error.at(span))?;
        if zones.contains_key(&name) {
            return Err(ConfError::new(format!("duplicate zone \"{}\"", Text(&name))).at(span));
        }
        let zone =
            cx.keep(&name, |lock_zone: &LockZone| lock_zone.size == size, || LockZone::new(&name, size));
        zones.insert(name, ConfiguredZone { zone, timeout });
    }
    Ok(zones)
}

/// The zone that `dav_ext_lock` names.
pub(super) fn used(
    raw: &RawLockZone,
    zones: &LockZones,
    cx: &mut Resolve<'_>,
) -> Result<ConfiguredZone, ConfError> {
    if let Some(zone) = zones.get(&raw.name) {
        return Ok(zone.clone());
    }
    zone::claim(cx, &raw.name, OWNER).map_err(|error| error.at(raw.span))?;
    Err(zone::undeclared(&raw.name, raw.span))
}
