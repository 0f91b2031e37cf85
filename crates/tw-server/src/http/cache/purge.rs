//! Purging: what is named is not used again, or stale, from the moment in which that is answered. Requests order it, the API of
//! a running server, and `tailwater purge`; what is done is the same.

use std::fmt;
use std::sync::Arc;

use tw_base::Limit;
use tw_cache::{Key, Purge};
use tw_disk::{Disk, DiskError};
use tw_log::Level;

use super::purge_rule::PurgeRequest;
use super::settings::CacheSettings;
use super::zone::{Cache, CacheUser};
use crate::http::request::Request;

/// Purges by `tailwater purge` that one process is busy with: a disk that stands still holds a thread for each.
pub const PURGES_MAX: usize = 16;

pub(super) const LIMITS: &[Limit] = &[Limit::count(
    "PURGES_MAX",
    PURGES_MAX as u64,
    "Purges by `tailwater purge` that wait for a disk at the same time",
    "further ones are refused",
)];

/// What is to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// What has this key, with its variants.
    Key(Vec<u8>),
    /// All whose keys begin like this.
    Prefix(Vec<u8>),
    /// All that have one of these tags.
    Tags(Vec<Vec<u8>>),
}

impl Scope {
    /// What the text of a key means where a `*` at its end stands for all that begin like it.
    pub fn of_text(text: &[u8]) -> Self {
        match text.strip_suffix(b"*") {
            Some(prefix) => Self::Prefix(prefix.to_vec()),
            None => Self::Key(text.to_vec()),
        }
    }
}

/// What came of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purged {
    /// What was named is not used again, or stale.
    Done,
    /// There was nothing with this key.
    Nothing,
}

impl Cache {
    /// Purges what `scope` names. Waits for the disk.
    ///
    /// # Errors
    /// It is purged, and a restart could undo that.
    pub async fn purge(
        self: &Arc<Self>,
        disk: &Disk,
        scope: &Scope,
        how: Purge,
        log: impl FnOnce(Level, fmt::Arguments<'_>),
    ) -> Result<Purged, DiskError> {
        let held = self.held(CacheUser::Request, disk, log).await?;
        match scope {
            Scope::Key(text) => {
                let was_there = self.purge_key(held, disk, Key::of(text), how).await?;
                return Ok(if was_there { Purged::Done } else { Purged::Nothing });
            }
            Scope::Prefix(prefix) => self.purge_prefix(held, disk, prefix, how).await?,
            Scope::Tags(tags) => self.purge_tags(held, disk, tags, how).await?,
        }
        Ok(Purged::Done)
    }
}

/// Purges what `r` names: tags, all keys that begin like its own, its own, or the whole cache. The status tells what came of it.
pub(super) async fn purge(
    r: &mut Request,
    settings: &CacheSettings,
    cache: &Arc<Cache>,
    text: &[u8],
    asked: PurgeRequest,
) -> u16 {
    let tags = settings.purged_tags(r);
    let scope = match tags.is_empty() {
        _ if asked.whole => Scope::Prefix(Vec::new()),
        true => Scope::of_text(text),
        false => Scope::Tags(tags),
    };
    match run(r, cache, &scope, asked.how).await {
        Ok(Purged::Done) => asked.status,
        Ok(Purged::Nothing) => 404,
        Err(status) => status,
    }
}

/// Purges `scope` for `r`. The error is a status; it was logged.
pub(super) async fn run(
    r: &mut Request,
    cache: &Arc<Cache>,
    scope: &Scope,
    how: Purge,
) -> Result<Purged, u16> {
    let Some(disk) = cache.disk_of(r).cloned() else { return Err(500) };
    cache.purge(&disk, scope, how, |level, message| r.log(level, message)).await.map_err(|error| {
        let name = tw_log::Text(cache.name());
        r.log(Level::Crit, format_args!("{error} while purging, cache \"{name}\""));
        500
    })
}
