//! Caches of a configuration: they take over the contents of those before.

use std::sync::Arc;

use tw_cache::RendezvousMember;
use tw_conf::ConfError;
use tw_fleet::find_fleet;

use crate::cache_path::{CachePath, MemberPath, RawCachePath, device};
use crate::member_group::Members;
use crate::store::Store;
use crate::store::files::temp_file::WRITE_BACK_SIZE;
use crate::zone::{Cache, CacheZone, Caches};
use tw_request::protocol::Resolve;

/// Declares the caches of `raw`.
///
/// # Errors
/// Two of one name.
pub(crate) fn declare(raw: Vec<RawCachePath>, cx: &mut Resolve<'_>) -> Result<Caches, ConfError> {
    let mut caches = Caches::new();
    for raw in raw {
        let span = raw.span;
        if caches.contains_key(raw.name()) {
            let name = tw_log::Text(raw.name());
            return Err(ConfError::new(format!("duplicate zone \"{name}\"")).at(span));
        }
        let cache = Cache::declare(raw, cx)?;
        caches.insert(cache.name.clone(), cache);
    }
    Ok(caches)
}

impl Cache {
    /// Declares a cache of the configuration; it takes over the contents of a previous one with the same directory.
    ///
    /// # Errors
    /// A thread pool that does not exist.
    fn declare(raw: RawCachePath, cx: &mut Resolve<'_>) -> Result<Arc<Self>, ConfError> {
        if let Some((pool, at)) = raw.pool() {
            cx.pool(pool, at)?;
        }
        let fleet = match raw.fleet() {
            None => None,
            Some((name, at)) => Some(find_fleet(name, at, |name| cx.find(name))?),
        };
        let name: Box<[u8]> = raw.name().into();
        let span = raw.span;
        let device = match raw.device() {
            Some((path, at)) => Some(device::open(cx, path, at)?),
            None => None,
        };
        let mut place = CachePath { device, ..raw.resolve(|path| cx.full_path_c(path)) };
        for member in &mut place.members {
            device::open_of_member(cx, member, span);
        }
        let place = place;
        let previous = cx.previous::<Self>(&name);
        let is_other_store = |before: &Self| {
            before.place.is_where(&place)
                && (!before.zone.store.suits(&place)
                    || place.members.is_empty() && before.place.device != place.device)
        };
        if previous.iter().flat_map(|before| before.parts()).any(is_other_store) {
            cx.warn(span, "a change of \"store\" or \"device\" takes effect after a restart of the server");
        }
        // Made at the start, as directories of temporary files are.
        match &*place.members {
            [] => cx.block.cache_directory(place.dir.clone(), span),
            members => {
                members.iter().for_each(|member| cx.block.member_directory(member.dir.clone(), span));
            }
        }
        let is_same_fleet = |known_cache: &Self| match (&known_cache.fleet, &fleet) {
            (Some(known_fleet), Some(fleet)) => Arc::ptr_eq(known_fleet, fleet),
            (known_fleet, fleet) => known_fleet.is_none() && fleet.is_none(),
        };
        let fits = |known_cache: &Self| known_cache.place == place && is_same_fleet(known_cache);
        let cache = cx.keep(&name, fits, || {
            let before =
                previous.iter().flat_map(|before| before.parts()).find(|part| part.place.is_where(&place));
            let (members, zone) = match before {
                _ if !place.members.is_empty() => {
                    let members = Members::declare(&name, &place, previous.as_ref());
                    (Some(members), Arc::new(CacheZone::new(&place)))
                }
                Some(before) => {
                    before.zone.resize(&place);
                    (None, before.zone.clone())
                }
                None => (None, Arc::new(CacheZone::new(&place))),
            };
            let (name, place, fleet) = (name.clone(), place.clone(), fleet.clone());
            Self { name, place, zone, write_back_size: WRITE_BACK_SIZE, members, fleet }
        });
        if let Some(group) = cache.group() {
            group.set_members(cache.held_parts().iter().map(Arc::downgrade));
        }
        Ok(cache)
    }
}

impl Members<Cache> {
    /// Declares the members of `place`; those of `before` with the same directories go on.
    fn declare(name: &[u8], place: &CachePath, before: Option<&Arc<Cache>>) -> Self {
        let group = before.and_then(|before| before.group()).unwrap_or_default();
        let member = |path: &MemberPath| {
            let place = place.of_member(path);
            let cache = before.and_then(|before| before.parts().find(|part| part.place.goes_on_in(&place)));
            let zone = match cache {
                Some(cache) => {
                    cache.zone.resize(&place);
                    cache.zone.clone()
                }
                None => Arc::new(CacheZone::new(&place)),
            };
            zone.member.join(&group);
            Arc::new(Cache {
                name: name.into(),
                place,
                zone,
                write_back_size: WRITE_BACK_SIZE,
                members: None,
                fleet: None,
            })
        };
        let list: Box<[_]> = place.members.iter().map(member).collect();
        let choice = place.members.iter();
        let choice = choice.map(|path| RendezvousMember::new(path.dir.to_bytes(), path.weight)).collect();
        Self { list, choice, group }
    }
}
