//! LOCK and UNLOCK (RFC 4918 sections 9.10 and 9.11).

use std::ffi::CString;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_disk::{CreateOptions, Disk, Errno, FileKind};
use tw_http::HeaderName;
use tw_log::{Level, Text};
use tw_request::body::Body;
use tw_request::files;
use tw_request::plan::Outcome;
use tw_request::request::Request;

use super::check::locked;
use super::locks::{Lock, LockCredentials, LockDepth, LockRefused, LockScope, LockToken};
use super::props::push_href;
use super::xml::{self, LockInfo};
use super::zone::ConfiguredZone;
use super::{DavExt, read_body, set_xml_head};
use crate::dav::preconditions::Checks;
use crate::dav::{self, Dav, Depth, Links, Slash};

/// Permissions of a file that is created where `dav_methods` says nothing.
const ACCESS: u32 = 0o600;

impl DavExt {
    /// Answers LOCK: a new lock, on a new empty file if there is none; without a body, a refresh.
    // DIFF(nginx): the module gives exclusive locks only, whatever is asked for.
    pub(super) async fn lock(&self, locks: &ConfiguredZone, r: &mut Request) -> Result<Outcome, u16> {
        let depth = match dav::depth(r, Depth::Infinity)? {
            Depth::Zero => LockDepth::Zero,
            Depth::Infinity => LockDepth::Infinity,
            Depth::One => {
                r.log(Level::Error, format_args!("\"Depth\" header must be 0 or infinity"));
                return Err(400);
            }
        };
        let body = read_body(r).await?;
        let path = dav::path_of(r, &r.uri.path, Slash::Without)?;
        let credentials = self.credentials(locks, r, &path).await?;
        let timeout = timeout(r.head.field("Timeout"), locks.timeout);
        if body.is_empty() {
            let now = tw_rt::clock::now();
            let name = path.to_bytes();
            let refreshed = locks.zone.with(|table| table.refresh(name, &credentials, now, timeout));
            return refreshed.map(|lock| answer(r, &lock, now, 200)).ok_or(412);
        }
        let Ok(LockInfo { scope, owner }) = xml::lockinfo(&body) else {
            r.log(Level::Info, format_args!("client sent invalid body of LOCK"));
            return Err(400);
        };
        let is_missing = check_resource(r, &path).await?;
        let disk = dav::disk(r)?;
        let checks = Checks::of(r, &path);
        checks.check(r, &disk).await?;
        let mut root = Vec::new();
        push_href(&r.uri.path, &mut root);
        let lock = Lock {
            token: random_token(r)?,
            scope,
            depth,
            expires: tw_rt::clock::now() + timeout,
            number: 0,
            root: root.into(),
            owner,
            user: credentials.user.clone(),
        };
        if let Some(outcome) = add(locks, r, &path, &lock, is_missing, &credentials)? {
            return Ok(outcome);
        }
        let status =
            if is_missing { create(locks, r, &disk, &path, lock.token, &checks).await? } else { 200 };
        r.response.fields.set("Lock-Token", Bytes::from(format!("<{}>", lock.token.text())));
        Ok(answer(r, &lock, tw_rt::clock::now(), status))
    }

    /// Answers UNLOCK.
    // DIFF(nginx): the module answers 204 also where nothing was locked.
    pub(super) fn unlock(&self, locks: &ConfiguredZone, r: &mut Request) -> Result<Outcome, u16> {
        let field = r.head.field("Lock-Token").unwrap_or_default().trim_ascii();
        let token = field.strip_prefix(b"<").and_then(|field| field.strip_suffix(b">"));
        let Some(token) = token else {
            r.log(
                Level::Info,
                format_args!("client sent invalid \"Lock-Token\" header: \"{}\"", Text(field)),
            );
            return Err(400);
        };
        let token = LockToken::parse(token).ok_or(409_u16)?;
        let path = dav::path_of(r, &r.uri.path, Slash::Without)?;
        let user = self.user.value(r);
        match locks.zone.with(|table| table.unlock(path.to_bytes(), token, &user)) {
            Some(true) => Ok(Outcome::Status(204)),
            Some(false) => Err(403),
            None => Err(409),
        }
    }
}

/// Checks that the resource can be locked. Returns true if there is none, and a file may be created.
async fn check_resource(r: &mut Request, path: &CString) -> Result<bool, u16> {
    let is_collection = dav::is_collection(r);
    dav::check_links(r, path, Links::All).await?;
    match files::stat(r, path.clone()).await {
        Ok(meta) if is_collection && meta.kind != FileKind::Directory => Err(409),
        Ok(_) => Ok(false),
        Err(error) if error.errno() == Some(Errno::NOENT) && !is_collection => Ok(true),
        Err(error) => Err(dav::fail(r, &error, path, 409)),
    }
}

/// Adds a lock to its zone, unless another one is in the way.
fn add(
    locks: &ConfiguredZone,
    r: &mut Request,
    path: &CString,
    lock: &Lock,
    is_missing: bool,
    credentials: &LockCredentials,
) -> Result<Option<Outcome>, u16> {
    let name = path.to_bytes();
    let added = locks.zone.with(|table| {
        match table.obstacle_to_membership(name, credentials).filter(|_| is_missing) {
            Some(root) => Err(LockRefused::Locked(root.into())),
            None => table.lock(name, lock.clone()),
        }
    });
    match added {
        Ok(()) => Ok(None),
        Err(LockRefused::Locked(root)) => Ok(Some(locked(r, &root))),
        Err(LockRefused::Full) => {
            r.log(Level::Error, format_args!("zone \"{}\" has no room for a lock", locks.zone.name()));
            r.response.fields.set(HeaderName::RetryAfter, "1");
            Err(503)
        }
    }
}

/// Creates the empty file that is locked; returns the status of the response. Without the file there is no lock either.
async fn create(
    locks: &ConfiguredZone,
    r: &mut Request,
    disk: &Disk,
    path: &CString,
    token: LockToken,
    checks: &Checks,
) -> Result<u16, u16> {
    let mode = r.plan().parts.get::<Dav>().map_or(ACCESS, |dav| dav.access());
    let options = CreateOptions { mode, ..CreateOptions::NEW };
    let event_loop = r.client().event_loop.clone();
    let create = async || disk.create(&mut r.costs.account, path, &options).await;
    let status = match event_loop.retry_with_descriptor(create).await {
        Ok(_) => return Ok(201),
        // Another request created the file first, so this one locks that file, if it may.
        Err(error) if error.errno() == Some(Errno::EXIST) => checks.check(r, disk).await.map(|()| 200),
        Err(error) => Err(dav::fail(r, &error, path, 409)),
    };
    if status.is_err() {
        locks.zone.with(|table| table.withdraw(path.to_bytes(), token));
    }
    status
}

fn random_token(r: &Request) -> Result<LockToken, u16> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(16) => Ok(LockToken::of_random(bytes)),
        result => {
            r.log(Level::Crit, format_args!("getrandom() failed ({result:?})"));
            Err(500)
        }
    }
}

/// Time of a lock: the first one of the field that is one, but no longer than `max`.
fn timeout(field: Option<&[u8]>, max: Duration) -> Duration {
    let mut wishes = field.unwrap_or_default().split(|byte| *byte == b',');
    let seconds = wishes.find_map(|wish| {
        let digits = wish.trim_ascii().strip_prefix(b"Second-")?;
        let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit & 0xf));
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| digits.iter().fold(0, add))
    });
    seconds.map_or(max, |seconds| Duration::from_secs(seconds.max(1)).min(max))
}

/// Response that describes a lock.
fn answer(r: &mut Request, lock: &Lock, now: Instant, status: u16) -> Outcome {
    set_xml_head(r, "", status);
    let mut text =
        b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:prop xmlns:D=\"DAV:\"><D:lockdiscovery>".to_vec();
    push_active(lock, now, &mut text);
    text.extend_from_slice(b"</D:lockdiscovery></D:prop>\n");
    Outcome::Respond(Body::Bytes(text.into()))
}

/// Writes the `activelock` element of a lock.
pub(super) fn push_active(lock: &Lock, now: Instant, out: &mut Vec<u8>) {
    let scope = if lock.scope == LockScope::Exclusive { "exclusive" } else { "shared" };
    let depth = if lock.depth == LockDepth::Zero { "0" } else { "infinity" };
    let seconds = lock.expires.saturating_duration_since(now).as_millis().div_ceil(1000);
    let token = lock.token.text();
    out.extend_from_slice(
        format!(
            "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/></D:lockscope>\
             <D:depth>{depth}</D:depth><D:owner>"
        )
        .as_bytes(),
    );
    out.extend_from_slice(&lock.owner);
    out.extend_from_slice(
        format!(
            "</D:owner><D:timeout>Second-{seconds}</D:timeout>\
             <D:locktoken><D:href>{token}</D:href></D:locktoken><D:lockroot><D:href>"
        )
        .as_bytes(),
    );
    out.extend_from_slice(&lock.root);
    out.extend_from_slice(b"</D:href></D:lockroot></D:activelock>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_lock_is_limited() {
        let max = Duration::from_secs(60);
        for (field, expected) in [
            (None, 60),
            (Some("Second-10"), 10),
            (Some("Second-4100000000"), 60),
            (Some("Infinite, Second-30"), 30),
            (Some("Infinite"), 60),
            (Some("Second-0"), 1),
            (Some("Second-99999999999999999999999"), 60),
            (Some("Second--1, x"), 60),
        ] {
            assert_eq!(timeout(field.map(str::as_bytes), max), Duration::from_secs(expected), "{field:?}");
        }
    }
}
