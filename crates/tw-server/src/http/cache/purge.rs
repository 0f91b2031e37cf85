//! Requests that purge: what they name is not used again, or stale, from the moment in which they are answered.

use std::sync::Arc;

use tw_cache::{Key, Purge, Tag};
use tw_disk::{Account, Class, Disk, DiskError, Errno, Source};
use tw_log::Level;

use super::settings::CacheSettings;
use super::zone::{Cache, Held};
use crate::http::request::Request;

/// Purges what `r` names: tags, all keys that begin like its own, or its own. The status tells what came of it.
pub(super) async fn purge(
    r: &mut Request,
    settings: &CacheSettings,
    cache: &Arc<Cache>,
    text: &[u8],
    purge: Purge,
) -> u16 {
    let Some(disk) = r.disk().cloned() else { return 500 };
    let held = cache.held(&disk, |level, message| r.log(level, message)).await;
    let tags = settings.purged_tags(r);
    let purged = if !tags.is_empty() {
        for tag in &tags {
            held.purges.purge_tag(Tag::of(tag), purge);
        }
        cache.part_with_fills(|meta| meta.tags.iter().any(|tag| tags.iter().any(|named| **named == *tag)));
        cache.save_purges(held, &disk).await.map(|()| 204)
    } else if let Some(prefix) = text.strip_suffix(b"*") {
        held.purges.purge_prefix(prefix, purge);
        cache.part_with_fills(|meta| meta.key_text.starts_with(prefix));
        cache.save_purges(held, &disk).await.map(|()| 204)
    } else {
        one(cache, held, &disk, Key::of(text), purge).await
    };
    match purged {
        Ok(status) => status,
        Err(error) => {
            // It is purged, and a restart could undo that.
            let name = tw_log::Text(cache.name());
            r.log(Level::Crit, format_args!("{error} while purging, cache \"{name}\""));
            500
        }
    }
}

async fn one(cache: &Arc<Cache>, held: &Held, disk: &Disk, key: Key, purge: Purge) -> Result<u16, DiskError> {
    if purge == Purge::Soft {
        held.purges.purge_key(key, purge);
        cache.part_with_fill(key);
        return cache.save_purges(held, disk).await.map(|()| 204);
    }
    let purged = held.index.purge(key);
    let was_coming = cache.part_with_fill(key);
    let mut by = Account::new(Class::Hit, Source::NONE);
    let removed = disk.unlink(&mut by, &cache.place.path(key)).await;
    cache.zone.counts.purged.add(u64::from(purged.gone.is_some()));
    match removed {
        Ok(()) => Ok(204),
        Err(error) if error.errno() == Some(Errno::NOENT) => {
            Ok(if purged.gone.is_some() || was_coming { 204 } else { 404 })
        }
        Err(error) => Err(error),
    }
}
