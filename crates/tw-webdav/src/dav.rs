//! `dav_methods`: PUT, DELETE, MKCOL, COPY and MOVE of files and collections (nginx: ngx_http_dav_module). Content
//! phase.
//!
//! Nothing is written in place: a body goes to a temporary file, a copy to a name beside its target, and a rename makes
//! it visible. If the disk fails or is full, the old file stays. The job that renames or removes a file checks the
//! preconditions of its request.

pub(crate) mod destination;
mod path_locks;
pub(crate) mod preconditions;
mod put;
mod transfer;
mod tree;

use std::ffi::{CStr, CString};
use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_disk::{Disk, DiskError, Errno, FileKind, FileMeta, JobClass, JobSource, Op};
use tw_http::escape::Escape;
use tw_http::{Framing, HeaderName, Method};
use tw_log::{Level, Text};
use tw_request::config::location::{Location, Symlinks};
use tw_request::config::permissions;
use tw_request::files;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;

use self::preconditions::{Checks, NotChanged};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Words of `dav_methods`.
const METHODS: [(&str, u32); 6] =
    [("off", OFF), ("put", PUT), ("delete", DELETE), ("mkcol", MKCOL), ("copy", COPY), ("move", MOVE)];

const OFF: u32 = 1;
const PUT: u32 = 2;
const DELETE: u32 = 4;
const MKCOL: u32 = 8;
const COPY: u32 = 16;
const MOVE: u32 = 32;

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    methods: Setting<u32>,
    create_full_put_path: Setting<bool>,
    min_delete_depth: Setting<u64>,
    access: Setting<u32>,
}

/// Methods allowed at one location, and their settings.
pub struct Dav {
    methods: u32,
    create_full_put_path: bool,
    min_delete_depth: u64,
    /// Permission bits of files; those of directories follow from them.
    access: u32,
    /// `$scheme`, which a whole URI of this server begins with.
    scheme: Template,
}

impl Settings<Http> for Dav {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = tree::LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("dav_methods", "off | method …", ALL, Args::at_least(1))
            .default("off")
            .doc("Methods of WebDAV that are allowed: PUT, DELETE, MKCOL, COPY, MOVE.")
            .set(|raw, node, cx| raw.methods.add_bits(node, &METHODS, cx)),
        record::flag("create_full_put_path", ALL)
            .default("off")
            .doc("Makes the directories that a PUT misses.")
            .set(|raw, node, _| raw.create_full_put_path.set_flag(node)),
        record::number("min_delete_depth", ALL)
            .default("0")
            .doc("Names a path must have at least for a DELETE.")
            .set(|raw, node, _| raw.min_delete_depth.set_number(node)),
        record::new("dav_access", "users:permissions …", ALL, Args::range(1, 3))
            .default("user:rw")
            .doc("Permissions of new files and directories: user, group, all; r or rw.")
            .set(|raw, node, _| raw.access.set_with(node, permissions::read)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self {
            methods: raw.methods.or(outer.map(|o| o.methods), OFF),
            create_full_put_path: raw.create_full_put_path.or(outer.map(|o| o.create_full_put_path), false),
            min_delete_depth: raw.min_delete_depth.or(outer.map(|o| o.min_delete_depth), 0),
            access: raw.access.or(outer.map(|o| o.access), 0o600),
            scheme: cx.template_text(b"$scheme", None)?,
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.methods & !OFF != 0 {
            plan.add(Phase::Content, self.clone());
            plan.parts.put(self.clone());
        }
    }

    fn reach(&self, core: &Location, reach: &mut Reach) {
        if self.methods & !OFF != 0 {
            reach.changes(&core.root.path, core.root.at);
        }
    }
}

impl Handler for Dav {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let method = match r.method() {
            Method::Put => PUT,
            Method::Delete => DELETE,
            Method::Mkcol => MKCOL,
            Method::Copy => COPY,
            Method::Move => MOVE,
            _ => return Step::PASS,
        };
        if self.methods & method == 0 {
            return Step::PASS;
        }
        Step::Wait(Box::pin(async move {
            let class = std::mem::replace(&mut r.costs.account.class, JobClass::Fill);
            let done = match method {
                PUT => self.put(r).await,
                DELETE => self.delete(r).await,
                MKCOL => self.mkcol(r).await,
                _ => self.transfer(r).await,
            };
            r.costs.account.class = class;
            match done {
                Ok(outcome) => outcome,
                Err(status) => Outcome::Status(status),
            }
        }))
    }
}

impl Dav {
    /// Names of the methods that are allowed.
    pub(crate) fn methods(&self) -> impl Iterator<Item = String> {
        let allowed = METHODS.into_iter().filter(|(_, bit)| self.methods & bit & !OFF != 0);
        allowed.map(|(name, _)| name.to_ascii_uppercase())
    }

    /// Permission bits of new files.
    pub(crate) fn access(&self) -> u32 {
        self.access
    }

    async fn mkcol(&self, r: &mut Request) -> Result<Outcome, u16> {
        refuse_body(r, "MKCOL with body is unsupported")?;
        if !is_collection(r) {
            r.log(Level::Error, format_args!("MKCOL can create a collection only"));
            return Err(409);
        }
        let disk = disk(r)?;
        let path = target(r, Slash::Without)?;
        check_links(r, &path, Links::Above).await?;
        let checks = Checks::of(r, &path);
        if !checks.hold_for_nothing() && !exists(r, &disk, &path).await {
            return Err(412);
        }
        let mode = permissions::of_directory(self.access);
        if let Err(error) = disk.mkdir(&mut r.costs.account, &path, mode).await {
            return Err(fail(r, &error, &path, 409));
        }
        r.response.location = escaped(&r.uri.path);
        Ok(Outcome::Status(201))
    }

    async fn delete(&self, r: &mut Request) -> Result<Outcome, u16> {
        refuse_body(r, "DELETE with body is unsupported")?;
        if let Err(depth) = deep_enough(&r.uri.path, self.min_delete_depth) {
            r.log(Level::Error, format_args!("insufficient URI depth:{depth} to DELETE"));
            return Err(409);
        }
        let disk = disk(r)?;
        let path = target(r, Slash::AsIs)?;
        check_links(r, &path, Links::of_source(r)).await?;
        let meta = match stat_source(r, &disk, &path).await {
            Ok(meta) => meta,
            Err(error) => {
                let status = if error.errno() == Some(Errno::NOTDIR) { 409 } else { 404 };
                return Err(fail(r, &error, &path, status));
            }
        };
        let is_directory = meta.kind == FileKind::Directory;
        if is_directory && !is_collection(r) {
            let what = tw_base::Errno::from(Errno::ISDIR);
            r.log(Level::Error, format_args!("DELETE \"{}\" failed ({what})", Text(path.to_bytes())));
            return Err(409);
        }
        let default = if is_directory { Depth::Infinity } else { Depth::Zero };
        match depth(r, default)? {
            Depth::Infinity => {}
            Depth::Zero if !is_directory => {}
            _ => {
                let or = if is_directory { "infinity" } else { "0 or infinity" };
                r.log(Level::Error, format_args!("\"Depth\" header must be {or}"));
                return Err(400);
            }
        }
        let checks = Checks::of(r, &path);
        if is_directory {
            checks.check(r, &disk).await?;
            let path = target(r, Slash::Without)?;
            tree::remove(r, &disk, &path, meta.kind).await?;
            return Ok(Outcome::Status(204));
        }
        match checks.unlink(r, &disk, &path).await {
            Ok(()) => Ok(Outcome::Status(204)),
            Err(NotChanged::PreconditionFailed) => Err(412),
            Err(NotChanged::Failed(error)) => Err(fail(r, &error, &path, 404)),
        }
    }
}

/// Returns true if something has this name.
async fn exists(r: &mut Request, disk: &Disk, path: &CStr) -> bool {
    disk.stat_link(&mut r.costs.account, path).await.is_ok()
}

/// Metadata of the file at a path. A link is no collection, even where a slash at the end of `path` would follow it.
// DIFF(nginx): it follows such a link, and removes what is outside the root.
async fn stat_source(r: &mut Request, disk: &Disk, path: &CStr) -> Result<FileMeta, DiskError> {
    if let Some(name) = path.to_bytes().strip_suffix(b"/").filter(|name| !name.is_empty())
        && let Ok(name) = CString::new(name)
        && disk.stat_link(&mut r.costs.account, &name).await?.kind == FileKind::Symlink
    {
        return Err(Op::StatLink.failed(Errno::NOTDIR));
    }
    disk.stat_link(&mut r.costs.account, path).await
}

/// Returns `true` if the URI names a collection.
pub(crate) fn is_collection(r: &Request) -> bool {
    r.uri.path.last() == Some(&b'/')
}

/// Refuses a request with a body that means nothing.
fn refuse_body(r: &Request, why: &str) -> Result<(), u16> {
    match r.head.framing() {
        Framing::None | Framing::Length(0) => Ok(()),
        Framing::Length(_) | Framing::Chunked => {
            r.log(Level::Error, format_args!("{why}"));
            Err(415)
        }
    }
}

pub(crate) fn disk(r: &Request) -> Result<Disk, u16> {
    r.disk().cloned().ok_or(500)
}

/// Treatment of the slash at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slash {
    AsIs,
    Without,
}

/// The path of the request's URI.
pub(crate) fn target(r: &mut Request, slash: Slash) -> Result<CString, u16> {
    let path = path_of(r, &r.uri.path, slash)?;
    r.costs.account.source = JobSource::of(path.to_bytes());
    Ok(path)
}

/// The path of `uri` at this location, with one slash where there are several.
pub(crate) fn path_of(r: &Request, uri: &[u8], slash: Slash) -> Result<CString, u16> {
    let mut path = Vec::new();
    r.append_filename(uri, &mut path);
    path.dedup_by(|next, last| *next == b'/' && *last == b'/');
    if slash == Slash::Without && path.len() > 1 && path.last() == Some(&b'/') {
        path.pop();
    }
    // A NUL can be in it only if a variable of `root` brought one: no file has that name.
    CString::new(path).map_err(|_| 404)
}

/// Part of a path that must be free of links if `disable_symlinks` is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// All but the last name, which is replaced or removed and not followed.
    Above,
    /// All of it.
    All,
}

impl Links {
    /// A slash at the end follows a link.
    fn of_source(r: &Request) -> Self {
        if is_collection(r) { Self::All } else { Self::Above }
    }
}

/// Refuses a path with a link that `disable_symlinks` forbids.
// DIFF(nginx): its module for WebDAV does not know `disable_symlinks`.
pub(crate) async fn check_links(r: &mut Request, path: &CStr, which: Links) -> Result<(), u16> {
    if matches!(r.plan().core.files.symlinks, Symlinks::Follow) {
        return Ok(());
    }
    let mut path = match which {
        Links::All => path.to_bytes().strip_suffix(b"/").unwrap_or(path.to_bytes()),
        Links::Above => above(path.to_bytes()),
    };
    loop {
        let name = CString::new(path).map_err(|_| 404_u16)?;
        match files::stat(r, name.clone()).await {
            Ok(_) => return Ok(()),
            // A name that does not exist yet is no link, but the directories above it may be.
            Err(error) if error.errno() == Some(Errno::NOENT) && above(path).len() < path.len() => {
                path = above(path);
            }
            Err(error) if error.errno() == Some(Errno::LOOP) => {
                r.log(Level::Error, format_args!("{}", error.on(&name)));
                return Err(403);
            }
            Err(error) => return Err(fail(r, &error, &name, 404)),
        }
    }
}

/// The directory of a path; of `/` and of a name alone, itself.
fn above(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) => b"/",
        Some(end) => &path[..end],
        None => path,
    }
}

/// Depth of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Zero,
    One,
    Infinity,
}

pub(crate) fn depth(r: &Request, default: Depth) -> Result<Depth, u16> {
    match r.head.field("Depth") {
        None => Ok(default),
        Some(b"0") => Ok(Depth::Zero),
        Some(b"1") => Ok(Depth::One),
        Some(b"infinity") => Ok(Depth::Infinity),
        Some(other) => {
            r.log(Level::Error, format_args!("client sent invalid \"Depth\" header: \"{}\"", Text(other)));
            Err(400)
        }
    }
}

/// Checks that a URI has at least `min` names; the error is their number.
fn deep_enough(uri: &[u8], min: u64) -> Result<(), u64> {
    if min == 0 {
        return Ok(());
    }
    let mut slashes = 0;
    for (at, _) in uri.iter().enumerate().filter(|(_, b)| **b == b'/') {
        slashes += 1;
        if slashes >= min && at + 1 < uri.len() {
            return Ok(());
        }
    }
    Err(slashes)
}

fn escaped(uri: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(uri.len());
    Escape::Uri.push(uri, &mut out);
    out.into()
}

/// Logs why an operation failed and gives the status for it; `absent` is that of a path that is not there.
pub(crate) fn fail(r: &mut Request, error: &DiskError, path: &CStr, absent: u16) -> u16 {
    let (status, level) = status_of(error, absent);
    if status == 503 {
        r.response.fields.set(HeaderName::RetryAfter, "1");
    }
    r.log(level, format_args!("{}", error.on(path)));
    status
}

fn status_of(error: &DiskError, absent: u16) -> (u16, Level) {
    match error.errno() {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => (absent, Level::Error),
        Some(Errno::ACCESS | Errno::PERM) => (403, Level::Error),
        Some(Errno::EXIST) => (405, Level::Error),
        Some(Errno::NOSPC) => (507, Level::Crit),
        Some(_) => (500, Level::Crit),
        None => (503, Level::Error),
    }
}

/// Response to a file that could not be put in its place. A client's mistake is no alarm of the disk's.
// DIFF(nginx): all of it is 500 and `crit`; RFC 4918 wants 409 where the directory is missing.
fn status_of_place(error: &DiskError) -> (u16, Level) {
    match error.errno() {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP) => (409, Level::Error),
        Some(Errno::ACCESS | Errno::PERM) => (403, Level::Error),
        Some(_) => (500, Level::Crit),
        None => (503, Level::Error),
    }
}

/// A failed rename: nginx's words name both paths. The status is that for a file.
fn fail_rename(r: &mut Request, error: &DiskError, from: &CStr, to: &CStr) -> u16 {
    let (status, level) = status_of_place(error);
    if status == 503 {
        r.response.fields.set(HeaderName::RetryAfter, "1");
    }
    let from = Text(from.to_bytes());
    let to = Text(to.to_bytes());
    match error.errno() {
        Some(errno) => {
            let why = tw_base::Errno::from(errno);
            r.log(level, format_args!("rename() \"{from}\" to \"{to}\" failed ({why})"));
        }
        None => r.log(level, format_args!("{error}")),
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_of_uris() {
        for (uri, min, expected) in [
            ("/", 0, Ok(())),
            ("/", 1, Err(1)),
            ("/a", 1, Ok(())),
            ("/a", 2, Err(1)),
            ("/a/", 2, Err(2)),
            ("/a/b", 2, Ok(())),
            ("/a/b", u64::MAX, Err(2)),
        ] {
            assert_eq!(deep_enough(uri.as_bytes(), min), expected, "{uri} {min}");
        }
    }

    #[test]
    fn directories_above() {
        for (path, expected) in
            [("/a/b", "/a"), ("/a/b/", "/a"), ("/a", "/"), ("/", ""), ("a", "a"), ("a/b", "a")]
        {
            assert_eq!(above(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }

    #[test]
    fn bits_of_directories() {
        for (file, directory) in [(0o600, 0o700), (0o644, 0o755), (0o640, 0o750), (0o660, 0o770)] {
            assert_eq!(permissions::of_directory(file), directory);
        }
    }
}
