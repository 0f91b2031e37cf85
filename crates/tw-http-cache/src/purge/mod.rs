//! Purges: the named responses are not used again, or stale, from the moment of the answer. They are ordered by requests, by
//! the API of a running server, and by `tailwater purge`.

pub(crate) mod fleet;
pub(crate) mod invalidate;
mod location;
pub(crate) mod store_purge;

use std::fmt;
use std::sync::Arc;

use tw_cache::{Key, Purge};
use tw_disk::{Disk, DiskError};
use tw_fleet::PublishOutcome;
use tw_log::Level;

use super::settings::CacheSettings;
use super::settings::purge_rule::PurgeRequest;
use super::zone::{Cache, CacheUser};
use tw_request::request::Request;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges by `tailwater purge` that wait for a disk at the same time.
    ///
    /// Maximum number of concurrent purges by `tailwater purge`: a hanging disk blocks one thread for each.
    pub const PURGES_MAX: usize = 16, count, "further ones are refused";
}

/// Responses to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeScope {
    /// The response with this key, and its variants.
    Key(Vec<u8>),
    /// All responses whose keys have this prefix.
    Prefix(Vec<u8>),
    /// All responses with one of these tags.
    Tags(Vec<Vec<u8>>),
}

impl PurgeScope {
    /// Reads the text of a key; a `*` at its end makes it a prefix.
    pub fn of_text(text: &[u8]) -> Self {
        match text.strip_suffix(b"*") {
            Some(prefix) => Self::Prefix(prefix.to_vec()),
            None => Self::Key(text.to_vec()),
        }
    }
}

/// Result of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeOutcome {
    /// The named responses are purged.
    Done,
    /// No response had this key.
    Nothing,
    /// The named responses are purged here; other nodes of the fleet purge them when its engine is there again.
    Queued,
    /// The named responses are purged here, but other nodes of the fleet cannot be told.
    Unpublished,
}

impl Cache {
    /// Purges the responses of `scope`, here and on the other nodes of the fleet. Waits for the disk, and for the engine of the fleet
    /// as long as that may.
    ///
    /// # Errors
    /// The entry is purged, and a restart could undo that.
    pub async fn purge(
        self: &Arc<Self>,
        disk: &Disk,
        scope: &PurgeScope,
        mode: Purge,
        log: impl Fn(Level, fmt::Arguments<'_>),
    ) -> Result<PurgeOutcome, DiskError> {
        let outcome = self.purge_here(disk, scope, mode, &log).await;
        // Also if a restart could undo it here.
        let published = self.publish(scope, mode).await;
        if let Some(PublishOutcome::Unpublished(why)) = &published {
            let name = tw_log::Text(self.name());
            log(Level::Error, format_args!("a purge is not published: {why}, cache \"{name}\""));
        }
        Ok(match (outcome?, published) {
            (outcome, None) => outcome,
            // Nothing here has the key, but another node may.
            (_, Some(PublishOutcome::Published)) => PurgeOutcome::Done,
            (_, Some(PublishOutcome::Queued)) => PurgeOutcome::Queued,
            (_, Some(PublishOutcome::Unpublished(_))) => PurgeOutcome::Unpublished,
        })
    }

    async fn purge_here(
        self: &Arc<Self>,
        disk: &Disk,
        scope: &PurgeScope,
        mode: Purge,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<PurgeOutcome, DiskError> {
        if let Some(members) = &self.members {
            return self.purge_members(members, disk, scope, mode, log).await;
        }
        let zone_index = self.load_index(CacheUser::Request, disk, log).await?;
        match scope {
            PurgeScope::Key(text) => {
                let was_there = self.purge_key(zone_index, disk, Key::of(text), mode).await?;
                return Ok(if was_there { PurgeOutcome::Done } else { PurgeOutcome::Nothing });
            }
            PurgeScope::Prefix(prefix) => self.purge_prefix(zone_index, disk, prefix, mode).await?,
            PurgeScope::Tags(tags) => self.purge_tags(zone_index, disk, tags, mode).await?,
        }
        Ok(PurgeOutcome::Done)
    }
}

/// Purges the responses that `r` names: by tags, by prefix, by its own key, or the whole cache. Returns the status of the
/// response.
pub(crate) async fn purge(
    r: &Request,
    settings: &CacheSettings,
    cache: &Arc<Cache>,
    text: &[u8],
    request: PurgeRequest,
) -> u16 {
    let tags = settings.purged_tags(r);
    let scope = match tags.is_empty() {
        _ if request.whole => PurgeScope::Prefix(Vec::new()),
        true => PurgeScope::of_text(text),
        false => PurgeScope::Tags(tags),
    };
    match run(r, cache, &scope, request.mode).await {
        Ok(PurgeOutcome::Done) => request.status,
        Ok(PurgeOutcome::Nothing) => 404,
        Ok(PurgeOutcome::Queued) => 202,
        Ok(PurgeOutcome::Unpublished) => 503,
        Err(status) => status,
    }
}

/// Purges `scope` for `r`. The error is a status; its cause was logged.
pub(crate) async fn run(
    r: &Request,
    cache: &Arc<Cache>,
    scope: &PurgeScope,
    mode: Purge,
) -> Result<PurgeOutcome, u16> {
    let Some(disk) = cache.disk_of(r).cloned() else { return Err(500) };
    cache.purge(&disk, scope, mode, |level, message| r.log(level, message)).await.map_err(|error| {
        let name = tw_log::Text(cache.name());
        r.log(Level::Crit, format_args!("{error} while purging, cache \"{name}\""));
        500
    })
}
