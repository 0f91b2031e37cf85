//! Check of locks before a method of `dav_methods` changes something, and their end with what they locked.

use std::ffi::CString;
use std::sync::Arc;

use tw_disk::{Errno, FileKind};
use tw_http::Method;
use tw_http::condition::Etag;
use tw_log::{Level, Text};
use tw_request::body::Body;
use tw_request::files;
use tw_request::plan::{Handler, HeaderFilter, Outcome, Step};
use tw_request::request::Request;

use super::if_field::{self, Condition, State};
use super::locks::LockCredentials;
use super::zone::ConfiguredZone;
use super::{DavExt, refuse};
use crate::dav::{self, Slash, destination};

/// Precontent handler that refuses changes of locked resources.
pub(super) struct LockCheck(pub(super) Arc<DavExt>);

/// Header filter that removes the locks of resources that are gone.
pub(super) struct LockRemoval(pub(super) Arc<DavExt>);

/// Change of a resource by a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Content is written; a name that is missing is added to the collection.
    Write,
    /// A name is added.
    Add,
    /// The resource and everything below it goes.
    Remove,
    /// The resource and everything below it is replaced; a name that is missing is added.
    Replace,
}

impl Handler for LockCheck {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let change = match r.method() {
            Method::Put => Change::Write,
            Method::Mkcol => Change::Add,
            Method::Delete | Method::Move => Change::Remove,
            // The source of a COPY stays as it is.
            Method::Copy => Change::Replace,
            _ => return Step::PASS,
        };
        let Some(locks) = &self.0.locks else { return Step::PASS };
        if locks.zone.is_empty() && r.head.field("If").is_none() {
            return Step::PASS;
        }
        Step::Wait(Box::pin(async move {
            match self.0.check_change(locks, r, change).await {
                Ok(None) => Outcome::Pass,
                Ok(Some(root)) => locked(r, &root),
                Err(status) => Outcome::Status(status),
            }
        }))
    }
}

/// Response to a change of what the lock of `root` protects.
pub(super) fn locked(r: &mut Request, root: &[u8]) -> Outcome {
    r.log(Level::Info, format_args!("\"{}\" is locked", Text(&r.uri.path)));
    let condition =
        [b"<D:lock-token-submitted><D:href>", root, b"</D:href></D:lock-token-submitted>"].concat();
    refuse(r, "423 Locked", 423, &condition)
}

impl DavExt {
    /// Root of a lock that is in the way of the request.
    async fn check_change(
        &self,
        locks: &ConfiguredZone,
        r: &mut Request,
        change: Change,
    ) -> Result<Option<Box<[u8]>>, u16> {
        let path = dav::path_of(r, &r.uri.path, Slash::Without)?;
        let credentials = self.credentials(locks, r, &path).await?;
        if r.method() != Method::Copy
            && let Some(root) = obstacle(locks, r, &path, change, &credentials).await
        {
            return Ok(Some(root));
        }
        if !matches!(r.method(), Method::Copy | Method::Move) {
            return Ok(None);
        }
        // A destination that is none is refused by the method itself.
        match r.head.field("Destination").map(<[u8]>::to_vec).and_then(|to| self.path_of_reference(r, &to)) {
            Some(to) => Ok(obstacle(locks, r, &to, Change::Replace, &credentials).await),
            None => Ok(None),
        }
    }

    /// Path of a URI or path that a field of the request names.
    fn path_of_reference(&self, r: &Request, reference: &[u8]) -> Option<CString> {
        let uri = destination::path(reference, &self.scheme.value(r), &r.route.host).ok()?;
        dav::path_of(r, &uri, Slash::Without).ok()
    }

    /// Tokens that the request submits in its `If` field, if that holds: 412 if it does not.
    pub(super) async fn credentials(
        &self,
        locks: &ConfiguredZone,
        r: &mut Request,
        path: &CString,
    ) -> Result<LockCredentials, u16> {
        let mut credentials = LockCredentials { tokens: Vec::new(), user: self.user.value(r).into() };
        let Some(field) = r.head.field("If").map(<[u8]>::to_vec) else { return Ok(credentials) };
        let Some(lists) = if_field::parse(&field) else {
            r.log(Level::Info, format_args!("client sent invalid \"If\" header: \"{}\"", Text(&field)));
            return Err(400);
        };
        let mut holds = false;
        for list in lists {
            let of = match list.resource {
                None => Some(path.clone()),
                Some(reference) => self.path_of_reference(r, reference),
            };
            for condition in &list.conditions {
                if let State::Token(Some(token)) = condition.state {
                    credentials.tokens.push(token);
                }
            }
            if let (false, Some(of)) = (holds, &of) {
                holds = all_hold(locks, r, of, &list.conditions).await;
            }
        }
        if holds { Ok(credentials) } else { Err(412) }
    }
}

/// Returns true if all conditions on the resource at `path` hold.
async fn all_hold(
    locks: &ConfiguredZone,
    r: &mut Request,
    path: &CString,
    conditions: &[Condition<'_>],
) -> bool {
    let mut etag = None;
    for Condition { is_negated, state } in conditions {
        let holds = match state {
            State::Token(None) => false,
            State::Token(Some(token)) => locks.zone.with(|table| table.has_token(path.to_bytes(), *token)),
            State::Etag(wanted_value) => {
                if etag.is_none() {
                    etag = Some(etag_of(r, path).await);
                }
                etag.as_ref().and_then(Option::as_ref).is_some_and(|etag| etag.as_bytes() == *wanted_value)
            }
        };
        if holds == *is_negated {
            return false;
        }
    }
    true
}

/// Entity tag of a file, if it has one.
async fn etag_of(r: &mut Request, path: &CString) -> Option<Etag> {
    if !r.plan().core.etag {
        return None;
    }
    let meta = files::stat(r, path.clone()).await.ok()?;
    (meta.kind == FileKind::File).then(|| Etag::of_file(meta.mtime_sec, meta.size))
}

/// Root of a lock that keeps the request from a change.
async fn obstacle(
    locks: &ConfiguredZone,
    r: &mut Request,
    path: &CString,
    change: Change,
    credentials: &LockCredentials,
) -> Option<Box<[u8]>> {
    let name = path.to_bytes();
    let (value, of_membership) = locks.zone.with(|table| {
        let value = match change {
            Change::Write | Change::Add => table.obstacle(name, credentials),
            Change::Remove | Change::Replace => table.obstacle_in_tree(name, credentials),
        };
        (value.map(Box::from), table.obstacle_to_membership(name, credentials).map(Box::from))
    });
    if value.is_some() || of_membership.is_none() {
        return value;
    }
    let changes_membership = match change {
        Change::Add | Change::Remove => true,
        Change::Write | Change::Replace => is_missing(r, path).await,
    };
    of_membership.filter(|_| changes_membership)
}

async fn is_missing(r: &mut Request, path: &CString) -> bool {
    let meta = files::stat(r, path.clone()).await;
    matches!(meta, Err(error) if error.errno() == Some(Errno::NOENT))
}

impl HeaderFilter for LockRemoval {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        let is_gone = match r.method() {
            Method::Delete | Method::Move => matches!(r.response.status, 201 | 204),
            _ => false,
        };
        if is_gone
            && !r.is_subrequest()
            && let Some(locks) = &self.0.locks
            && !locks.zone.is_empty()
            && let Ok(path) = dav::path_of(r, &r.uri.path, Slash::Without)
        {
            locks.zone.with(|table| table.remove_tree(path.to_bytes()));
        }
        body
    }
}
