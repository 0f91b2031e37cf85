//! Tables of `keyval_zone` in the API.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tw_core::module::Protocol;
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_http::escape::{Unescape, unescape};
use tw_http::{Method, target};
use tw_keyval::{ChangeError, KeyvalZone, Pair, PairChange};
use tw_log::Level;
use tw_mail::Mail;
use tw_request::protocol::Http;
use tw_request::request::Request;
use tw_rt::watch::Subject;
use tw_stream::Stream;

use super::body;
use super::response::{ApiError, ApiFailure, ApiResponse, json};
use super::{Block, Mode};

/// Members of a body in their order.
struct Members(Vec<(String, Given)>);

/// Value of a member.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a value is a text, null, or an object with \"value\" and \"expire\"")]
enum Given {
    Text(String),
    Pair(GivenPair),
    Null,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenPair {
    value: Option<String>,
    /// Milliseconds.
    expire: Option<u64>,
}

/// Kind of a change of pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Add,
    Change,
}

/// All tables of a block by their names.
pub(super) async fn all(r: &Request, block: Block) -> Result<ApiResponse, ApiFailure> {
    let zones = zones(r, block);
    on_pool(r, move || {
        let mut text = b"{".to_vec();
        for zone in &zones {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(&json(&zone.name));
            text.push(b':');
            text.extend_from_slice(&zone.shown());
        }
        text.push(b'}');
        ApiResponse::ok(text)
    })
    .await
}

/// Answers a request about one table.
pub(super) async fn respond(
    r: &mut Request,
    block: Block,
    name: &str,
    mode: Mode,
) -> Result<ApiResponse, ApiFailure> {
    let zone = zones(r, block).into_iter().find(|zone| &*zone.name == name).ok_or(ApiError::NO_KEYVAL)?;
    match (r.method(), mode) {
        (Method::Get | Method::Head, _) => show(r, zone).await,
        (Method::Post, Mode::Write) => {
            change(r, &zone, Intent::Add).await?;
            save(r, zone).await?;
            Ok(ApiResponse::empty(201))
        }
        (Method::Patch, Mode::Write) => {
            change(r, &zone, Intent::Change).await?;
            save(r, zone).await?;
            Ok(ApiResponse::empty(204))
        }
        (Method::Delete, Mode::Write) => {
            let cleared = zone.clone();
            on_pool(r, move || cleared.clear()).await?;
            save(r, zone).await?;
            Ok(ApiResponse::empty(204))
        }
        _ => Err(ApiError::method(methods(mode)).into()),
    }
}

/// The methods of a table, for `Allow`.
pub(super) fn methods(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "GET, HEAD",
        Mode::Write => "GET, HEAD, POST, PATCH, DELETE",
    }
}

/// Tables of a block in the order of their names.
fn zones(r: &Request, block: Block) -> Vec<Arc<KeyvalZone>> {
    let protocol = match block {
        Block::Http => Http::NAME,
        Block::Stream => Stream::NAME,
        Block::Mail => Mail::NAME,
    };
    let objects = &r.generation().process.shared_objects;
    let names = objects.of_type::<KeyvalZone>().into_iter().filter(|(_, zone)| zone.protocol == protocol);
    names.filter_map(|(name, _)| objects.find(name)).collect()
}

/// One pair if the arguments have `key`, else all.
async fn show(r: &Request, zone: Arc<KeyvalZone>) -> Result<ApiResponse, ApiFailure> {
    let Some(escaped) = target::arg(&r.uri.args, b"key") else {
        return on_pool(r, move || ApiResponse::ok(zone.shown())).await;
    };
    let mut key = Vec::new();
    unescape(escaped, Unescape::All, &mut key);
    let value = zone.get(&key).ok_or(ApiError::NO_KEY)?;
    let [key, value] = [&key[..], &value].map(String::from_utf8_lossy);
    Ok(ApiResponse::ok([b"{", &json(&key)[..], b":", &json(&value), b"}"].concat()))
}

/// Carries out what the body of `r` says. Waits for the client.
async fn change(r: &mut Request, zone: &KeyvalZone, intent: Intent) -> Result<(), ApiFailure> {
    let Members(members) = body::object(&body::read_bytes(r).await?, format)?;
    if members.is_empty() {
        return Err(format("key required".to_owned()).into());
    }
    let mut seen_values = HashSet::new();
    let mut changes = Vec::with_capacity(members.len());
    for (key, given) in &members {
        if !seen_values.insert(key) {
            return Err(format(format!("key \"{key}\" is there twice")).into());
        }
        changes.push((key.as_bytes().into(), change_of(given, zone, intent)?));
    }
    Ok(zone.change(&changes).map_err(|error| match error {
        ChangeError::NoKey => ApiError::NO_KEY,
        ChangeError::KeyExists => ApiError::new(409, "KeyvalKeyExists", "key already exists"),
        ChangeError::InvalidKey => format("invalid key format".to_owned()),
        ChangeError::Full => ApiError::new(507, "KeyvalZoneFull", "the zone has no room for it"),
    })?)
}

fn format(text: String) -> ApiError {
    ApiError::new(400, "KeyvalFormatError", text)
}

fn change_of(given: &Given, zone: &KeyvalZone, intent: Intent) -> Result<PairChange, ApiError> {
    let (value, expire) = match given {
        Given::Text(value) => (Some(value), None),
        Given::Pair(GivenPair { value, expire }) => (value.as_ref(), *expire),
        Given::Null if intent == Intent::Change => return Ok(PairChange::Remove),
        Given::Null => (None, None),
    };
    if expire.is_some() && zone.timeout.is_none() {
        return Err(format("keyval timeout is not enabled".to_owned()));
    }
    let value = value.map(|value| value.as_bytes().into());
    let expires = zone.expiry(expire.map(Duration::from_millis));
    match (intent, value) {
        (Intent::Add, Some(value)) => Ok(PairChange::Add(Pair { value, expires })),
        (Intent::Add, None) => Err(format("value required".to_owned())),
        (Intent::Change, None) if expire.is_none() => Err(format("value required".to_owned())),
        (Intent::Change, value) => Ok(PairChange::Change { value, expires }),
    }
}

/// Writes the file of a table, whatever becomes of the client meanwhile.
async fn save(r: &Request, zone: Arc<KeyvalZone>) -> Result<(), ApiFailure> {
    if zone.state_path().is_none() {
        return Ok(());
    }
    let disk = r.generation().disks.default_disk().clone();
    let of_task = zone.clone();
    let saved = in_task(r, async move { of_task.save(&disk).await }).await?;
    saved.map_err(|error| {
        let error = zone.state_path().map_or_else(String::new, |path| error.on(path).to_string());
        r.log(Level::Crit, format_args!("{error} while saving the state of a keyval zone"));
        let text = format!("the change is in force, but its state is not saved: {error}");
        ApiError::new(500, "StateNotSaved", text).into()
    })
}

/// Runs work that may take longer than a turn.
async fn on_pool<T: Send + 'static>(
    r: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiFailure> {
    let disk: Disk = r.generation().disks.default_disk().clone();
    let run = async move { disk.pool().run(&mut Account::new(JobClass::Hit, JobSource::NONE), work).await };
    in_task(r, run).await?.map_err(|error: DiskError| {
        r.log(Level::Error, format_args!("{error} while reading or changing a keyval zone"));
        ApiError::new(503, "Overload", format!("nothing was done: {error}")).into()
    })
}

/// Waits for a task of its own, which goes on when the client is gone.
async fn in_task<T: 'static>(r: &Request, work: impl Future<Output = T> + 'static) -> Result<T, ApiFailure> {
    let subject = Subject { kind: "connection", id: r.client().id };
    // An error means that the task panicked, which was logged, or that the loop is ending.
    tw_rt::spawn_local(subject, work).await.map_err(|_| ApiFailure::Status(500))
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}
