//! Caches in the API, and purging them: a request has the same effect and the same responses as a purge in a location,
//! 404 if nothing was found, but needs no location for the key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tw_cache::Purge;
use tw_http_cache::{Cache, CacheSnapshot, MemberSnapshot, PurgeOutcome, PurgeScope, ResponseTotals};
use tw_log::Level;
use tw_request::cache_info::UpstreamCacheStatus;
use tw_request::request::Request;

use super::body;
use super::response::{ApiError, ApiFailure, ApiResponse, json};

/// A cache. The names are nginx's; the last five are ours.
#[derive(Serialize)]
struct View {
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_size: Option<u64>,
    cold: bool,
    hit: SumView,
    stale: SumView,
    updating: SumView,
    revalidated: SumView,
    miss: SumView,
    expired: SumView,
    bypass: SumView,
    entries: u64,
    filling: u64,
    stored: u64,
    collapsed: SumView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<MemberView>,
}

#[derive(Serialize)]
struct MemberView {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    state: &'static str,
    entries: u64,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_size: Option<u64>,
    share: f64,
}

#[derive(Serialize)]
struct SumView {
    responses: u64,
    bytes: u64,
}

/// The body of a purge.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct PurgeBody {
    key: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
    #[serde(default)]
    soft: bool,
}

#[derive(Serialize)]
struct Done {
    purged: bool,
    /// True if other nodes of the fleet purge later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    queued: bool,
}

/// All caches by their names.
pub(super) fn all(r: &Request) -> Vec<u8> {
    let caches = r.generation().process.shared_objects.of_type::<Cache>();
    let views =
        caches.into_iter().map(|(name, cache)| (String::from_utf8_lossy(name), View::of(&cache.snapshot())));
    json(&views.collect::<BTreeMap<_, _>>())
}

/// Description of one cache.
pub(super) fn cache(r: &Request, name: &str) -> Result<Vec<u8>, ApiError> {
    let cache =
        r.generation().process.shared_objects.find::<Cache>(name.as_bytes()).ok_or(ApiError::NO_CACHE)?;
    Ok(json(&View::of(&cache.snapshot())))
}

/// Purges what the body of `r` names. Waits for the client and for the disk.
pub(super) async fn purge(r: &mut Request, name: &str) -> Result<ApiResponse, ApiFailure> {
    let cache =
        r.generation().process.shared_objects.find::<Cache>(name.as_bytes()).ok_or(ApiError::NO_CACHE)?;
    let (scope, mode) = parse(&body::read_bytes(r).await?)?;
    let disk = r.generation().disks.default_disk().clone();
    match cache.purge(&disk, &scope, mode, |level, message| r.log(level, message)).await {
        Ok(PurgeOutcome::Done) => Ok(ApiResponse::ok(json(&Done { purged: true, queued: false }))),
        Ok(PurgeOutcome::Queued) => {
            Ok(ApiResponse { status: 202, ..ApiResponse::ok(json(&Done { purged: true, queued: true })) })
        }
        Ok(PurgeOutcome::Unpublished) => {
            let text =
                "it is purged on this node only, because other nodes of the fleet could not be notified";
            Err(ApiError::new(503, "PurgeNotPublished", text).into())
        }
        Ok(PurgeOutcome::Nothing) => {
            Err(ApiError::new(404, "CacheKeyNotFound", "nothing has this key").into())
        }
        Err(error) => {
            r.log(Level::Crit, format_args!("{error} while purging, cache \"{name}\""));
            let text = format!("it is purged, but that may not outlive a restart: {error}");
            Err(ApiError::new(500, "PurgeNotSaved", text).into())
        }
    }
}

fn parse(body: &[u8]) -> Result<(PurgeScope, Purge), ApiError> {
    let refuse = |text: String| ApiError::new(400, "CachePurgeFormatError", text);
    let purge_body: PurgeBody = body::object(body, refuse)?;
    let mode = if purge_body.soft { Purge::Soft } else { Purge::Hard };
    match (purge_body.key, purge_body.prefix, purge_body.tag) {
        (Some(key), None, None) => Ok((PurgeScope::Key(key.into()), mode)),
        (None, Some(prefix), None) => Ok((PurgeScope::Prefix(prefix.into()), mode)),
        (None, None, Some(tag)) if is_tag(&tag) => Ok((PurgeScope::Tags(vec![tag.into()]), mode)),
        (None, None, Some(_)) => {
            Err(refuse("a \"tag\" has letters, and neither spaces nor commas".to_owned()))
        }
        _ => Err(refuse("one of \"key\", \"prefix\" and \"tag\" is required".to_owned())),
    }
}

/// Returns `true` if a response could have the tag.
fn is_tag(tag: &str) -> bool {
    !tag.is_empty() && !tag.contains([' ', ',', '\t'])
}

impl View {
    fn of(look: &CacheSnapshot) -> Self {
        let of = |status: UpstreamCacheStatus| SumView::of(look.by_status[status as usize]);
        Self {
            size: look.size,
            max_size: look.max_size,
            cold: look.is_cold,
            hit: of(UpstreamCacheStatus::Hit),
            stale: of(UpstreamCacheStatus::Stale),
            updating: of(UpstreamCacheStatus::Updating),
            revalidated: of(UpstreamCacheStatus::Revalidated),
            miss: of(UpstreamCacheStatus::Miss),
            expired: of(UpstreamCacheStatus::Expired),
            bypass: of(UpstreamCacheStatus::Bypass),
            entries: look.entries,
            filling: look.filling,
            stored: look.stored,
            collapsed: SumView::of(look.collapsed),
            members: look.members.iter().map(MemberView::of).collect(),
        }
    }
}

impl MemberView {
    fn of(member: &MemberSnapshot) -> Self {
        let MemberSnapshot { path, device, state, entries, size, max_size, share } = member;
        let entries = *entries;
        let size = *size;
        let max_size = *max_size;
        let share = *share;
        let path = path.clone();
        let device = device.clone();
        Self { path, device, state: state.word(), entries, size, max_size, share }
    }
}

impl SumView {
    fn of(ResponseTotals { responses, bytes }: ResponseTotals) -> Self {
        Self { responses, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purges_are_read_strictly() {
        let key = |text: &str| PurgeScope::Key(text.into());
        for (body, expected) in [
            (r#"{"key":"a*"}"#, Ok((key("a*"), Purge::Hard))),
            (r#"{"key":"","soft":true}"#, Ok((key(""), Purge::Soft))),
            (r#"{"prefix":"","soft":false}"#, Ok((PurgeScope::Prefix(Vec::new()), Purge::Hard))),
            (r#"{"tag":"a"}"#, Ok((PurgeScope::Tags(vec![b"a".to_vec()]), Purge::Hard))),
            (r#"{"tag":"a b"}"#, Err("CachePurgeFormatError")),
            (r#"{"tag":""}"#, Err("CachePurgeFormatError")),
            (r#"{"key":"a","prefix":"b"}"#, Err("CachePurgeFormatError")),
            (r#"{"soft":true}"#, Err("CachePurgeFormatError")),
            (r#"{"key":"a","hard":true}"#, Err("CachePurgeFormatError")),
            (r#"{"key":7}"#, Err("CachePurgeFormatError")),
            (r#"["a"]"#, Err("CachePurgeFormatError")),
            ("{}", Err("CachePurgeFormatError")),
            ("", Err("JsonError")),
        ] {
            assert_eq!(parse(body.as_bytes()).map_err(|refusal| refusal.code), expected, "{body}");
        }
    }
}
