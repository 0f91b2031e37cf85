//! COPY and MOVE.

use std::ffi::{CStr, CString};

use tw_disk::{Disk, Errno, FileKind, FileMeta};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_request::config::location::RootKind;
use tw_request::config::permissions;
use tw_request::plan::Outcome;
use tw_request::request::Request;

use super::destination::{self, DestinationError};
use super::preconditions::{Checks, NotChanged, Overwrite};
use super::{Dav, Depth, Links, Slash, put, tree};

/// A copy or a move, checked as far as the request itself goes.
struct Transfer {
    method: Method,
    from: CString,
    to: CString,
    /// The destination as the client wrote it, for the log.
    destination: Box<[u8]>,
    checks: Checks,
}

impl Dav {
    pub(super) async fn transfer(&self, r: &mut Request) -> Result<Outcome, u16> {
        super::refuse_body(r, "COPY and MOVE with body are unsupported")?;
        let Some(text) = r.head.field("Destination").map(Box::from) else {
            r.log(Level::Error, format_args!("client sent no \"Destination\" header"));
            return Err(400);
        };
        let scheme = self.scheme.value(r);
        let to_uri = to_uri(r, &scheme, &text)?;
        check_depth(r)?;
        let overwrite = overwrite(r)?;
        let disk = super::disk(r)?;
        let from = super::target(r, Slash::AsIs)?;
        let is_to_collection = super::path_of(r, &to_uri, Slash::AsIs)?.to_bytes().ends_with(b"/");
        let to = super::path_of(r, &to_uri, Slash::Without)?;
        let checks = Checks::of(r, &from).with_overwrite(overwrite);
        let transfer = Transfer { method: r.method(), from, to, destination: text, checks };
        transfer.check_paths(r, is_to_collection)?;
        super::check_links(r, &transfer.from, Links::of_source(r)).await?;
        super::check_links(r, &transfer.to, Links::Above).await?;

        let there = match disk.stat_link(&mut r.costs.account, &transfer.to).await {
            Ok(meta) if meta.kind == FileKind::Directory && !is_to_collection => {
                return Err(transfer.refuse_collection(r, 409));
            }
            Ok(_) if overwrite == Overwrite::No => {
                let why = tw_base::Errno::from(Errno::EXIST);
                let to = Text(transfer.to.to_bytes());
                r.log(Level::Error, format_args!("\"{to}\" could not be created ({why})"));
                return Err(412);
            }
            Ok(meta) => Some(meta),
            Err(error) if error.errno() == Some(Errno::NOENT) => None,
            Err(error) => return Err(super::fail(r, &error, &transfer.to, 404)),
        };
        let meta = match super::stat_source(r, &disk, &transfer.from).await {
            Ok(meta) => meta,
            Err(error) => return Err(super::fail(r, &error, &transfer.from, 404)),
        };
        transfer.checks.check(r, &disk).await?;
        match (meta.kind, transfer.method) {
            (FileKind::Directory, _) => transfer.collection(r, &disk, &meta, there).await,
            (_, Method::Move) => {
                let parents = permissions::of_directory(self.access);
                transfer.move_file(r, &disk, &meta, parents).await
            }
            _ => transfer.copy_file(r, &disk, &meta).await,
        }
    }
}

/// The URI of the destination.
fn to_uri(r: &Request, scheme: &[u8], text: &[u8]) -> Result<Vec<u8>, u16> {
    let shown = Text(text);
    let uri = match destination::path(text, scheme, &r.route.host) {
        Ok(uri) => uri,
        Err(refused) => {
            match refused {
                DestinationError::NoHost => r.log(Level::Error, format_args!("client sent no \"Host\" header")),
                DestinationError::Elsewhere => r.log(
                    Level::Error,
                    format_args!(
                        "\"Destination\" URI \"{shown}\" is handled by different repository than the source URI"
                    ),
                ),
                DestinationError::Unsafe(path) => {
                    r.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", Text(&path)));
                    log_invalid(r, text);
                }
                DestinationError::Invalid => log_invalid(r, text),
            }
            return Err(400);
        }
    };
    if uri.ends_with(b"/") != super::is_collection(r) {
        r.log(
            Level::Error,
            format_args!(
                "both URI \"{}\" and \"Destination\" URI \"{shown}\" should be either collections or non-collections",
                Text(&r.uri.path)
            ),
        );
        return Err(409);
    }
    // DIFF(nginx): nginx puts what follows as many bytes of any destination behind the path of an `alias`.
    if let RootKind::Alias(prefix) = r.plan().core.root.kind
        && uri.get(..prefix) != r.uri.path.get(..prefix)
    {
        log_invalid(r, text);
        return Err(400);
    }
    Ok(uri)
}

fn log_invalid(r: &Request, text: &[u8]) {
    r.log(Level::Error, format_args!("client sent invalid \"Destination\" header: \"{}\"", Text(text)));
}

/// As nginx: a depth of 0 is allowed for COPY, and means nothing.
fn check_depth(r: &Request) -> Result<(), u16> {
    let or = match (super::depth(r, Depth::Infinity)?, r.method()) {
        (Depth::Infinity, _) | (Depth::Zero, Method::Copy) => return Ok(()),
        (_, Method::Copy) => "0 or infinity",
        _ => "infinity",
    };
    r.log(Level::Error, format_args!("\"Depth\" header must be {or}"));
    Err(400)
}

/// The `Overwrite` field of a request.
fn overwrite(r: &Request) -> Result<Overwrite, u16> {
    match r.head.field("Overwrite") {
        None | Some(b"T" | b"t") => Ok(Overwrite::Yes),
        Some(b"F" | b"f") => Ok(Overwrite::No),
        Some(other) => {
            let other = Text(other);
            r.log(Level::Error, format_args!("client sent invalid \"Overwrite\" header: \"{other}\""));
            Err(400)
        }
    }
}

impl Transfer {
    /// Refuses to copy or move something onto or into itself.
    fn check_paths(&self, r: &Request, is_collection: bool) -> Result<(), u16> {
        let from = self.from.to_bytes();
        let from = from.strip_suffix(b"/").unwrap_or(from);
        let to = self.to.to_bytes();
        if from == to {
            self.log_same(r);
            return Err(403);
        }
        let is_within =
            |inner: &[u8], outer: &[u8]| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with(b"/"));
        if is_collection && (is_within(to, from) || is_within(from, to)) {
            return Err(self.refuse_collection(r, 403));
        }
        Ok(())
    }

    fn log_same(&self, r: &Request) {
        r.log(
            Level::Error,
            format_args!(
                "both URI \"{}\" and \"Destination\" URI \"{}\" point to the same location",
                Text(&r.uri.path),
                Text(&self.destination)
            ),
        );
    }

    fn refuse_collection(&self, r: &Request, status: u16) -> u16 {
        r.log(
            Level::Error,
            format_args!(
                "\"{}\" could not be {}ed to collection \"{}\"",
                Text(&r.uri.path),
                self.method.as_str(),
                Text(&self.destination)
            ),
        );
        status
    }

    async fn collection(
        &self,
        r: &mut Request,
        disk: &Disk,
        meta: &FileMeta,
        there: Option<FileMeta>,
    ) -> Result<Outcome, u16> {
        if !super::is_collection(r) {
            r.log(Level::Error, format_args!("\"{}\" is collection", Text(&r.uri.path)));
            return Err(400);
        }
        let from = self.from.to_bytes();
        let from = CString::new(from.strip_suffix(b"/").unwrap_or(from)).map_err(|_| 404_u16)?;
        if let Some(there) = there {
            // Names that differ may lead to one directory, through a link above it.
            if (there.dev, there.ino) == (meta.dev, meta.ino) {
                self.log_same(r);
                return Err(403);
            }
            tree::remove(r, disk, &self.to, there.kind).await?;
        }
        if self.method == Method::Move {
            match self.checks.rename(r, disk, &from, &self.to).await {
                Ok(()) => return Ok(Outcome::Status(201)),
                Err(NotChanged::PreconditionFailed) => return Err(412),
                Err(NotChanged::Failed(error)) if error.errno() == Some(Errno::XDEV) => {}
                Err(NotChanged::Failed(error)) if error.errno() == Some(Errno::INVAL) => {
                    return Err(self.refuse_collection(r, 403));
                }
                Err(NotChanged::Failed(error)) => {
                    super::fail_rename(r, &error, &from, &self.to);
                    return Err(super::status_of(&error, 404).0);
                }
            }
        }
        tree::copy(r, disk, &from, &self.to, meta).await?;
        if self.method == Method::Move {
            tree::remove(r, disk, &from, FileKind::Directory).await?;
        }
        Ok(Outcome::Status(201))
    }

    async fn move_file(
        &self,
        r: &mut Request,
        disk: &Disk,
        meta: &FileMeta,
        parents: u32,
    ) -> Result<Outcome, u16> {
        match put::rename(r, disk, &self.from, &self.to, Some(parents), &self.checks).await {
            Ok(()) => Ok(Outcome::Status(204)),
            Err(NotChanged::PreconditionFailed) => Err(412),
            Err(NotChanged::Failed(error)) if error.errno() == Some(Errno::XDEV) => {
                self.copy_file(r, disk, meta).await?;
                match self.checks.unlink(r, disk, &self.from).await {
                    Ok(()) => Ok(Outcome::Status(204)),
                    // Another request has changed the source meanwhile.
                    Err(NotChanged::PreconditionFailed) => Err(412),
                    Err(NotChanged::Failed(error)) => {
                        r.log(Level::Crit, format_args!("{}", error.on(&self.from)));
                        Err(500)
                    }
                }
            }
            Err(NotChanged::Failed(error)) => Err(super::fail_rename(r, &error, &self.from, &self.to)),
        }
    }

    // DIFF(nginx): nginx writes into the file that is there, through a link and into every hard link of it, and leaves it
    // cut off when the disk is full.
    async fn copy_file(&self, r: &mut Request, disk: &Disk, meta: &FileMeta) -> Result<Outcome, u16> {
        super::check_links(r, &self.from, Links::All).await?;
        let meta = match meta.kind {
            FileKind::Symlink => self.followed(r, disk).await?,
            _ => *meta,
        };
        if meta.kind != FileKind::File {
            let from = Text(self.from.to_bytes());
            // DIFF(nginx): nginx waits for the writer of a pipe, or answers 500.
            r.log(Level::Error, format_args!("\"{from}\" is not a regular file"));
            return Err(403);
        }
        let mode = meta.mode & 0o777;
        let mtime = Some(meta.mtime_sec);
        let from: &CStr = &self.from;
        let copy = put::copy_beside(r, disk, from, &self.to, mode, mtime).await?;
        // The source that was copied is the one whose preconditions held before and hold now.
        put::replace(r, disk, &copy, &self.to, &self.checks).await?;
        Ok(Outcome::Status(204))
    }

    async fn followed(&self, r: &mut Request, disk: &Disk) -> Result<FileMeta, u16> {
        match disk.stat(&mut r.costs.account, &self.from).await {
            Ok(meta) => Ok(meta),
            Err(error) => Err(super::fail(r, &error, &self.from, 500)),
        }
    }
}
