//! Preconditions of requests that change files: `If-Match`, `If-None-Match` and `If-Unmodified-Since` (RFC 9110 section 13),
//! and `Overwrite: F`. The job that makes a change checks them, so no other request changes the file in between.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use tw_disk::{Disk, DiskError, Errno, FileKind, FileMeta, Op, PathCalls};
use tw_http::{Conditions, Etag, Validators};
use tw_request::request::Request;

use super::path_locks;

/// Conditional fields of a request, and the resource that they are about.
struct Preconditions {
    resource: CString,
    if_match: Option<Box<[u8]>>,
    if_none_match: Option<Box<[u8]>>,
    if_unmodified_since: Option<Box<[u8]>>,
    /// Set if files have entity tags.
    has_etags: bool,
}

/// Checks before a change.
#[derive(Clone)]
pub(crate) struct Checks {
    preconditions: Option<Arc<Preconditions>>,
    /// Treatment of what has the name that a file is to get.
    overwrite: Overwrite,
}

/// Treatment of what has the name that a file is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overwrite {
    Yes,
    No,
}

/// Reason why nothing was changed.
pub(super) enum NotChanged {
    /// 412
    PreconditionFailed,
    Failed(DiskError),
}

impl From<DiskError> for NotChanged {
    fn from(error: DiskError) -> Self {
        Self::Failed(error)
    }
}

impl Preconditions {
    /// The conditions of a request on the resource at a path; `None` if there are none. `If-Modified-Since` is for GET and HEAD
    /// only.
    fn of(r: &Request, resource: &CStr) -> Option<Self> {
        let Conditions { if_match, if_none_match, if_unmodified_since, .. } = Conditions::of(&r.head);
        if if_match.is_none() && if_none_match.is_none() && if_unmodified_since.is_none() {
            return None;
        }
        Some(Self {
            resource: resource.to_owned(),
            if_match: if_match.map(Box::from),
            if_none_match: if_none_match.map(Box::from),
            if_unmodified_since: if_unmodified_since.map(Box::from),
            has_etags: r.plan().core.etag,
        })
    }

    /// Returns true if they hold for a resource with this metadata, or for nothing.
    fn hold(&self, meta: Option<&FileMeta>) -> bool {
        let conditions = Conditions {
            if_match: self.if_match.as_deref(),
            if_none_match: self.if_none_match.as_deref(),
            if_modified_since: None,
            if_unmodified_since: self.if_unmodified_since.as_deref(),
        };
        let file = meta.filter(|meta| meta.kind == FileKind::File && self.has_etags);
        let etag = file.map(|meta| Etag::of_file(meta.mtime_sec, meta.size));
        let current = meta.map(|meta| Validators {
            etag: etag.as_ref().map(Etag::as_bytes),
            last_modified: Some(meta.mtime_sec),
        });
        conditions.hold_for_change(current.as_ref())
    }
}

/// Metadata of a resource, `None` if there is none.
fn current(file_meta: Result<FileMeta, DiskError>) -> Result<Option<FileMeta>, DiskError> {
    match file_meta {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::NOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

// DIFF(nginx): its WebDAV methods do not know preconditions.
impl Checks {
    /// Checks of a request that changes the resource at a path. A file that is put there replaces another one unless the request
    /// asks for a new one (`If-None-Match: *`).
    pub(crate) fn of(r: &Request, resource: &CStr) -> Self {
        let preconditions = Preconditions::of(r, resource);
        let wants_new = preconditions.as_ref().and_then(|one| one.if_none_match.as_deref()) == Some(b"*");
        let overwrite = if wants_new { Overwrite::No } else { Overwrite::Yes };
        Self { preconditions: preconditions.map(Arc::new), overwrite }
    }

    /// Checks with the same preconditions, for a change that gives a file another name.
    pub(super) fn with_overwrite(self, overwrite: Overwrite) -> Self {
        Self { overwrite, ..self }
    }

    /// Checks the preconditions as far as that is possible before the change. The error is a status.
    pub(crate) async fn check(&self, r: &mut Request, disk: &Disk) -> Result<(), u16> {
        let Some(preconditions) = &self.preconditions else { return Ok(()) };
        let resource = &preconditions.resource;
        match current(disk.stat(&mut r.costs.account, resource).await) {
            Ok(meta) if preconditions.hold(meta.as_ref()) => Ok(()),
            Ok(_) => Err(412),
            Err(error) => Err(super::fail(r, &error, resource, 404)),
        }
    }

    /// Returns true if the preconditions hold where nothing is.
    pub(super) fn hold_for_nothing(&self) -> bool {
        self.preconditions.as_ref().is_none_or(|preconditions| preconditions.hold(None))
    }

    /// Looks, in the job that makes the change, whether the preconditions hold.
    fn hold(&self, calls: &PathCalls<'_>) -> Result<bool, DiskError> {
        let Some(preconditions) = &self.preconditions else { return Ok(true) };
        let meta = current(calls.stat(&preconditions.resource))?;
        Ok(preconditions.hold(meta.as_ref()))
    }

    /// Path that the preconditions are about, or `other` without any.
    fn resource_or<'p>(&'p self, other: &'p CStr) -> &'p CStr {
        self.preconditions.as_ref().map_or(other, |preconditions| &preconditions.resource)
    }

    /// Renames `from` to `to` by one job, if the checks allow it.
    pub(super) async fn rename(
        &self,
        r: &mut Request,
        disk: &Disk,
        from: &CStr,
        to: &CStr,
    ) -> Result<(), NotChanged> {
        let checks = self.clone();
        let to = to.to_owned();
        let work = move |calls: &PathCalls<'_>, from: &CStr| {
            let _lock = path_locks::lock(&[from, &to, checks.resource_or(from)]);
            if !checks.hold(calls)? {
                return Ok(false);
            }
            match checks.overwrite {
                Overwrite::Yes => calls.rename(from, &to)?,
                Overwrite::No => match calls.rename_new(from, &to) {
                    Err(error) if error.errno() == Some(Errno::EXIST) => return Ok(false),
                    renamed => renamed?,
                },
            }
            Ok(true)
        };
        if disk.change(&mut r.costs.account, Op::Rename, from, work).await? {
            Ok(())
        } else {
            Err(NotChanged::PreconditionFailed)
        }
    }

    /// Removes the name of a file by one job, if the checks allow it.
    pub(super) async fn unlink(&self, r: &mut Request, disk: &Disk, path: &CStr) -> Result<(), NotChanged> {
        let checks = self.clone();
        let work = move |calls: &PathCalls<'_>, path: &CStr| {
            let _lock = path_locks::lock(&[path, checks.resource_or(path)]);
            let holds = checks.hold(calls)?;
            if holds {
                calls.unlink(path)?;
            }
            Ok(holds)
        };
        if disk.change(&mut r.costs.account, Op::Unlink, path, work).await? {
            Ok(())
        } else {
            Err(NotChanged::PreconditionFailed)
        }
    }
}
