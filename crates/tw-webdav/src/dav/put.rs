//! PUT: the body becomes the file, all at once.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tw_disk::{CreateOptions, Disk, DiskError, Errno, File, FileKind};
use tw_http::HeaderName;
use tw_http::date;
use tw_log::{Level, Text};
use tw_request::body::Body;
use tw_request::config::permissions;
use tw_request::plan::Outcome;
use tw_request::request::Request;
use tw_request::request_body;

use super::preconditions::{Checks, NotChanged};
use super::{Dav, Links, Slash};

/// Names tried for a copy before giving up.
const TRIES: u32 = 64;

/// The next number of a copy.
static NEXT_COPY: AtomicU32 = AtomicU32::new(0);

impl Dav {
    pub(super) async fn put(&self, r: &mut Request) -> Result<Outcome, u16> {
        if super::is_collection(r) {
            r.log(Level::Error, format_args!("cannot PUT to a collection"));
            return Err(409);
        }
        if r.head.field("Content-Range").is_some() {
            r.log(Level::Error, format_args!("PUT with range is unsupported"));
            return Err(501);
        }
        let disk = super::disk(r)?;
        let path = super::target(r, Slash::AsIs)?;
        let checks = Checks::of(r, &path);
        super::check_links(r, &path, Links::Above).await?;
        // A client that waits for permission to send its body learns here that the change would be refused.
        checks.check(r, &disk).await?;
        request_body::read::read_to_file(r).await?;
        // A link may have come while the body was read.
        super::check_links(r, &path, Links::Above).await?;
        let Some((file, temp)) = r.body.named_file().map(|(file, name)| (file.clone(), name.to_owned()))
        else {
            return Err(500);
        };
        let status = match disk.stat(&mut r.costs.account, &path).await {
            Ok(meta) if meta.kind == FileKind::Directory => {
                let why = tw_base::Errno::from(Errno::ISDIR);
                let path = Text(path.to_bytes());
                r.log(Level::Error, format_args!("\"{path}\" could not be created ({why})"));
                return Err(409);
            }
            Ok(_) => 204,
            Err(_) => 201,
        };
        let mtime = r.head.field_known(HeaderName::Date).and_then(date::parse);
        if let Err(error) = set_attributes(r, &disk, &file, self.access, mtime).await {
            return Err(fail(r, &error, &temp));
        }
        let parents = self.create_full_put_path.then(|| permissions::of_directory(self.access));
        match rename(r, &disk, &temp, &path, parents, &checks).await {
            Ok(()) => {}
            Err(NotChanged::PreconditionFailed) => return Err(412),
            Err(NotChanged::Failed(error)) if error.errno() == Some(Errno::XDEV) => {
                let copy = copy_beside(r, &disk, &temp, &path, self.access, mtime).await?;
                replace(r, &disk, &copy, &path, &checks).await?;
                // The temporary file goes with the request.
                return Ok(stored(r, status));
            }
            Err(NotChanged::Failed(error)) => {
                return Err(super::fail_rename(r, &error, &temp, &path));
            }
        }
        r.body.give_file_away();
        Ok(stored(r, status))
    }
}

fn stored(r: &mut Request, status: u16) -> Outcome {
    if status == 201 {
        r.response.location = super::escaped(&r.uri.path);
    }
    r.response.status = status;
    Outcome::Respond(Body::Empty)
}

/// Gives a file its permissions and its time.
async fn set_attributes(
    r: &mut Request,
    disk: &Disk,
    file: &File,
    access: u32,
    mtime: Option<i64>,
) -> Result<(), DiskError> {
    disk.set_mode(&mut r.costs.account, file, access).await?;
    date_file(r, disk, file, mtime).await
}

async fn date_file(r: &mut Request, disk: &Disk, file: &File, mtime: Option<i64>) -> Result<(), DiskError> {
    match mtime {
        Some(mtime) => disk.set_mtime(&mut r.costs.account, file, mtime, 0).await,
        None => Ok(()),
    }
}

fn fail(r: &mut Request, error: &DiskError, path: &CStr) -> u16 {
    let (status, level) = super::status_of_place(error);
    if status == 503 {
        r.response.fields.set(HeaderName::RetryAfter, "1");
    }
    r.log(level, format_args!("{}", error.on(path)));
    status
}

/// Renames, making the directories that miss with these permissions if there are any.
pub(super) async fn rename(
    r: &mut Request,
    disk: &Disk,
    from: &CStr,
    to: &CStr,
    parents: Option<u32>,
    checks: &Checks,
) -> Result<(), NotChanged> {
    let renamed = checks.rename(r, disk, from, to).await;
    match (renamed, parents) {
        (Err(NotChanged::Failed(error)), Some(mode)) if error.errno() == Some(Errno::NOENT) => {
            if let Ok(above) = CString::new(super::above(to.to_bytes())) {
                disk.mkdir_all(&mut r.costs.account, &above, mode).await?;
            }
            checks.rename(r, disk, from, to).await
        }
        (renamed, _) => renamed,
    }
}

/// Copies `from` to a new file beside `to`, whose name is returned. The umask applies to `mode`.
pub(super) async fn copy_beside(
    r: &mut Request,
    disk: &Disk,
    from: &CStr,
    to: &CStr,
    mode: u32,
    mtime: Option<i64>,
) -> Result<CString, u16> {
    for tried in 1.. {
        let number = NEXT_COPY.fetch_add(1, Relaxed);
        let mut name = to.to_bytes().to_vec();
        name.extend_from_slice(format!(".{number:010}").as_bytes());
        let name = CString::new(name).map_err(|_| 404_u16)?;
        let options = CreateOptions { mode, ..CreateOptions::NEW };
        let event_loop = r.client().event_loop.clone();
        let follow = tw_disk::Links::Follow;
        let copy = async || disk.copy(&mut r.costs.account, from, follow, &name, &options).await;
        let copied = match event_loop.retry_with_descriptor(copy).await {
            Ok(file) => date_file(r, disk, &file, mtime).await,
            Err(error) if error.errno() == Some(Errno::EXIST) && tried < TRIES => continue,
            Err(error) => return Err(fail(r, &error, &name)),
        };
        if let Err(error) = copied {
            discard(r, disk, &name).await;
            return Err(fail(r, &error, &name));
        }
        return Ok(name);
    }
    Err(500)
}

/// Renames a copy to the name it was made for; it is removed if that fails.
pub(super) async fn replace(
    r: &mut Request,
    disk: &Disk,
    copy: &CStr,
    to: &CStr,
    checks: &Checks,
) -> Result<(), u16> {
    let status = match checks.rename(r, disk, copy, to).await {
        Ok(()) => return Ok(()),
        Err(NotChanged::PreconditionFailed) => 412,
        Err(NotChanged::Failed(error)) => super::fail_rename(r, &error, copy, to),
    };
    discard(r, disk, copy).await;
    Err(status)
}

/// Removes a copy that is of no use.
async fn discard(r: &mut Request, disk: &Disk, copy: &CStr) {
    if let Err(error) = disk.unlink(&mut r.costs.account, copy).await {
        r.log(Level::Crit, format_args!("{}", error.on(copy)));
    }
}
