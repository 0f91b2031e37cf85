//! PROPFIND (RFC 4918 section 9.1). A collection is read by the pool part by part, as the client takes the response: memory
//! holds one part, and a list has no end.

use std::ffi::CString;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tw_disk::{Disk, Entry, File, FileKind, FileMeta, OpenOptions};
use tw_log::{Level, Text};
use tw_request::body::{AlreadyLogged, Body, Pull};
use tw_request::files;
use tw_request::plan::{LocalFuture, Outcome};
use tw_request::request::Request;

use super::lock::push_active;
use super::locks::{LockDepth, LockTable};
use super::props::{MULTISTATUS, MULTISTATUS_END, PropWriter, Resource};
use super::zone::LockZone;
use super::{DavExt, read_body, refuse, set_xml_head, xml};
use crate::dav::{self, Depth, Links, Slash};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of a response to PROPFIND that are made at once, and those of one resource more.
    pub(super) const TEXT_MAX: usize = 1 << 20, bytes, "the others are made when these are sent";
}

impl DavExt {
    /// Answers PROPFIND. One without `Depth` is about the resource alone, as in nginx.
    // DIFF(nginx): the body of a refusal of infinite depth names the condition.
    pub(super) async fn propfind(&self, r: &mut Request) -> Result<Outcome, u16> {
        let depth = dav::depth(r, Depth::Zero)?;
        let body = read_body(r).await?;
        if depth == Depth::Infinity {
            return Ok(refuse(r, "", 403, b"<D:propfind-finite-depth/>"));
        }
        let Ok(requested_props) = xml::propfind(&body) else {
            r.log(Level::Info, format_args!("client sent invalid body of PROPFIND"));
            return Err(400);
        };
        let path = dav::target(r, Slash::AsIs)?;
        dav::check_links(r, &path, Links::All).await?;
        let meta = match files::stat(r, path.clone()).await {
            Ok(meta) => meta,
            Err(error) => return Err(dav::fail(r, &error, &path, 404)),
        };
        let core = &r.plan().core;
        let writer = PropWriter {
            requested: requested_props,
            types: core.types.clone(),
            default_type: core.default_type.clone(),
            has_etags: core.etag,
            has_locks: self.locks.is_some(),
        };
        let mut uri = r.uri.path.clone();
        if meta.kind == FileKind::Directory && !uri.ends_with(b"/") {
            uri.push(b'/');
        }
        let zone = self.locks.as_ref().map(|locks| locks.zone.clone());
        let list = match depth {
            Depth::One if meta.kind == FileKind::Directory => Some(open(r, &path).await?),
            _ => None,
        };
        let path = dav::path_of(r, &r.uri.path, Slash::Without)?;
        let mut text = MULTISTATUS.to_vec();
        let locks =
            zone.as_ref().map(|zone| active(zone, |table, out| push_covering(table, path.to_bytes(), out)));
        writer.push(&Resource { uri: &uri, meta: &meta, locks: &[&locks.unwrap_or_default()] }, &mut text);
        set_xml_head(r, "207 Multi-Status", 207);
        let Some((disk, directory)) = list else {
            text.extend_from_slice(MULTISTATUS_END);
            return Ok(Outcome::Respond(Body::Bytes(text.into())));
        };
        Ok(Outcome::Respond(Body::Pull(Box::new(Multistatus {
            made: text.into(),
            next: Some(0),
            members: Arc::default(),
            written_count: 0,
            of_all: Arc::default(),
            disk,
            directory,
            path,
            uri: uri.into(),
            writer: Arc::new(writer),
            zone,
        }))))
    }
}

/// Opens a directory by the rules of the location about links.
async fn open(r: &mut Request, path: &CString) -> Result<(Disk, File), u16> {
    let disk = dav::disk(r)?;
    let options = OpenOptions { links: files::links(r, path), ..OpenOptions::READ };
    let event_loop = r.client().event_loop.clone();
    match event_loop
        .retry_with_descriptor(async || disk.open(&mut r.costs.account, path, &options).await)
        .await
    {
        Ok(file) => Ok((disk, file)),
        Err(error) => Err(dav::fail(r, &error, path, 404)),
    }
}

/// Writes elements about locks.
fn active(zone: &LockZone, write: impl FnOnce(&LockTable, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    if !zone.is_empty() {
        zone.with(|table| write(table, &mut out));
    }
    out
}

fn push_covering(table: &LockTable, path: &[u8], out: &mut Vec<u8>) {
    let now = tw_rt::clock::now();
    table.covering(path).into_iter().for_each(|lock| push_active(lock, now, out));
}

/// Response about a collection and its members.
struct Multistatus {
    /// Text that is made and not sent.
    made: Bytes,
    /// Place of the next part of the directory; `None` after the last one.
    next: Option<u64>,
    /// Members of the part that was read last.
    members: Arc<[Member]>,
    /// Number of those that were written.
    written_count: usize,
    /// Elements of the locks that cover all members.
    of_all: Arc<[u8]>,
    disk: Disk,
    directory: File,
    /// Path of the directory, without a slash at its end.
    path: CString,
    /// URI of the collection, with one.
    uri: Arc<[u8]>,
    writer: Arc<PropWriter>,
    zone: Option<Arc<LockZone>>,
}

/// Member of a collection, with the elements of its own locks.
struct Member {
    name: CString,
    meta: FileMeta,
    locks: Vec<u8>,
}

impl Multistatus {
    /// Reads the next part of the directory. Nothing changes before all of it is there.
    async fn read(&mut self, from: u64, r: &mut Request) -> io::Result<()> {
        let part = match self.disk.list_part(&mut r.costs.account, &self.directory, from).await {
            Ok(part) => part,
            Err(error) => return Err(broken(r, format_args!("{}", error.on(&self.path)))),
        };
        if let Some(errno) = part.hidden_by {
            let path = Text(self.path.to_bytes());
            let why = tw_base::Errno::from(errno);
            r.log(Level::Crit, format_args!("stat() of entries of \"{path}\" failed ({why})"));
        }
        let mut members = Vec::with_capacity(part.entries.len());
        for Entry { name, meta } in part.entries {
            let meta =
                if meta.kind == FileKind::Symlink { self.followed(&name, r).await } else { Some(meta) };
            if let Some(meta) = meta {
                members.push(Member { name, meta, locks: Vec::new() });
            }
        }
        let zone = self.zone.as_ref().filter(|zone| !zone.is_empty());
        let of_all = zone.map_or_else(Vec::new, |zone| self.add_locks(zone, &mut members));
        (self.members, self.of_all, self.written_count) = (members.into(), of_all.into(), 0);
        self.next = part.next;
        if self.next.is_none() {
            self.made = Bytes::from_static(MULTISTATUS_END);
        }
        Ok(())
    }

    /// Has the pool write the next members, until the text is long enough.
    async fn write(&mut self, r: &mut Request) -> io::Result<()> {
        let uri = self.uri.clone();
        let writer = self.writer.clone();
        let members = self.members.clone();
        let of_all = self.of_all.clone();
        let from = self.written_count;
        let write = move || {
            let mut text = Vec::new();
            let mut path = Vec::new();
            let mut written_len = from;
            for Member { name, meta, locks } in members.iter().skip(from) {
                path.clear();
                path.extend_from_slice(&uri);
                path.extend_from_slice(name.to_bytes());
                path.extend_from_slice(if meta.kind == FileKind::Directory { b"/" } else { b"" });
                writer.push(&Resource { uri: &path, meta, locks: &[locks, &of_all] }, &mut text);
                written_len += 1;
                if text.len() >= TEXT_MAX {
                    break;
                }
            }
            (text, written_len)
        };
        match self.disk.pool().run(&mut r.costs.account, write).await {
            Ok((text, written_len)) => {
                (self.made, self.written_count) = (text.into(), written_len);
                Ok(())
            }
            Err(error) => Err(broken(r, format_args!("{error}"))),
        }
    }

    /// Metadata of the file that a link leads to, if the location allows that and there is one.
    async fn followed(&self, name: &CString, r: &mut Request) -> Option<FileMeta> {
        let path = CString::new([self.path.to_bytes(), b"/", name.to_bytes()].concat()).ok()?;
        files::stat(r, path).await.ok()
    }

    /// Describes the locks that each member has itself; returns the description of those that cover all members.
    fn add_locks(&self, zone: &LockZone, members: &mut [Member]) -> Vec<u8> {
        let directory = self.path.to_bytes().strip_suffix(b"/").unwrap_or(self.path.to_bytes());
        zone.with(|table| {
            let now = tw_rt::clock::now();
            let mut of_all = Vec::new();
            let outer = table.covering(self.path.to_bytes()).into_iter();
            outer
                .filter(|lock| lock.depth == LockDepth::Infinity)
                .for_each(|lock| push_active(lock, now, &mut of_all));
            let mut path = Vec::new();
            for member in members {
                path.clear();
                path.extend_from_slice(directory);
                path.push(b'/');
                path.extend_from_slice(member.name.to_bytes());
                table.at(&path).iter().for_each(|lock| push_active(lock, now, &mut member.locks));
            }
            of_all
        })
    }
}

/// Logs why a response ends before its end.
fn broken(r: &Request, why: std::fmt::Arguments<'_>) -> io::Error {
    r.log(Level::Error, format_args!("{why} while listing \"{}\"", Text(&r.uri.path)));
    io::Error::other(AlreadyLogged)
}

impl Pull for Multistatus {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            while self.made.is_empty() {
                match self.next {
                    _ if self.written_count < self.members.len() => self.write(r).await?,
                    Some(from) => self.read(from, r).await?,
                    None => return Ok(None),
                }
            }
            Ok(Some(self.made.split_to(want.clamp(1, self.made.len()))))
        })
    }
}
