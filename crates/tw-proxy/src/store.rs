//! `proxy_store`: a copy of a response becomes a file, all at once, when the response is complete (nginx: ngx_http_upstream).
//!
//! The copy is written to a temporary file as the client takes the response. Whatever goes wrong with that costs the copy and
//! nothing else.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Context;

use bytes::Bytes;
use tw_conf::{ConfError, Node, Setting, Word};
use tw_core::reach::Reach;
use tw_disk::{Account, CreateOptions, Disk, DiskError, Errno, JobClass, Links};
use tw_log::Level;

use tw_request::body::{Body, Pull};
use tw_request::body_buffer::{BodyBuffer, Naming, SpillTarget};
use tw_request::config::location::{Location, TempPath};
use tw_request::config::permissions;
use tw_request::plan::LocalFuture;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Bytes of a copy that are written at once.
const PIECE_SIZE: usize = 64 << 10;

/// The next number of a copy that goes to another file system.
static NEXT_COPY: AtomicU32 = AtomicU32::new(0);

/// `store` as written.
pub enum RawStore {
    /// `off`
    Off,
    /// `on`: where `root` or `alias` say.
    On,
    /// The path, which may hold variables.
    To(Word),
}

/// `store` and `store_access` at one location.
#[derive(Clone)]
pub struct StoreSettings {
    /// Path of the copies; `None` where none are made.
    pub(super) store: Option<StorePath>,
    access: u32,
}

/// Directives of [`StoreSettings`] as written.
#[derive(Default)]
pub struct RawStoreSettings {
    /// `store`
    pub store: Setting<RawStore>,
    /// `store_access`
    pub access: Setting<u32>,
}

impl StoreSettings {
    pub(super) fn resolve(
        raw: RawStoreSettings,
        outer: Option<&Self>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let access = raw.access.or(outer.map(|o| o.access), 0o600);
        let store = match raw.store.take() {
            Some(store) => store.resolve(access, cx)?,
            None => outer.and_then(|o| o.store.as_ref()).map(|store| store.with_access(access)),
        };
        Ok(Self { store, access })
    }

    /// Adds to `reach` what the sandbox must allow.
    pub(super) fn reach(&self, core: &Location, reach: &mut Reach) {
        if let Some(store) = &self.store {
            store.reach(core, reach);
        }
    }
}

/// Path of the copies, and their permissions.
#[derive(Clone)]
pub(super) struct StorePath {
    /// The path; `None` is where `root` or `alias` say.
    path: Option<Template>,
    /// Permission bits of the files.
    access: u32,
}

impl RawStore {
    /// Reads `store`.
    ///
    /// # Errors
    /// An empty path.
    pub fn read(node: &Node) -> Result<Self, ConfError> {
        let word = node.arg(0)?;
        match &*word.bytes {
            b"off" => Ok(Self::Off),
            b"" => Err(node.fail("empty path")),
            b"on" => Ok(Self::On),
            _ => Ok(Self::To(word.clone())),
        }
    }

    /// Resolves it; `None` for `off`.
    fn resolve(self, access: u32, cx: &mut Resolve<'_>) -> Result<Option<StorePath>, ConfError> {
        let path = match self {
            Self::Off => return Ok(None),
            Self::On => None,
            Self::To(word) if word.bytes.starts_with(b"$") => Some(cx.template(&word)?),
            Self::To(word) => {
                let full = cx.full_path(&word.bytes);
                Some(cx.template_text(&full, Some(word.span))?)
            }
        };
        Ok(Some(StorePath { path, access }))
    }
}

impl StorePath {
    /// Copies it with other permissions.
    fn with_access(&self, access: u32) -> Self {
        Self { access, ..self.clone() }
    }

    fn reach(&self, core: &Location, reach: &mut Reach) {
        match &self.path {
            Some(path) => reach.changes(path, None),
            None => reach.changes(&core.root.path, core.root.at),
        }
    }

    /// The file of the response to `r`. `None` if it has no name.
    fn path(&self, r: &Request) -> Option<CString> {
        let mut path = Vec::new();
        match &self.path {
            Some(template) => template.eval(r, &mut path),
            None => r.append_filename(&r.uri.path, &mut path),
        }
        CString::new(path).ok().filter(|path| !path.is_empty())
    }
}

/// A body of which a copy is made.
// DIFF(nginx): a copy whose client leaves is given up.
pub(super) struct StoredBody {
    body: Body,
    /// `None` once the copy is lost, or where it belongs.
    copy: Option<StoreCopy>,
}

struct StoreCopy {
    buffer: BodyBuffer,
    store: StorePath,
    disk: Disk,
    dir: Arc<TempPath>,
}

impl StoredBody {
    /// `body`, with a copy that is made in `dir` and ends where `store` says.
    pub(super) fn of(body: Body, store: &StorePath, disk: Disk, dir: Arc<TempPath>) -> Body {
        let copy = StoreCopy { buffer: BodyBuffer::default(), store: store.clone(), disk, dir };
        Body::Pull(Box::new(Self { body, copy: Some(copy) }))
    }

    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        let piece = self.body.next(want, r).await?;
        // Should this future be dropped while the disk is waited for, the copy is lost with it.
        let Some(mut copy) = self.copy.take() else { return Ok(piece) };
        // The copy is completed with the last piece, because the end may never be asked for.
        let is_last = piece.is_none() || self.body.len() == Some(0);
        copy.buffer.push(piece.clone().unwrap_or_default());
        let stored = if is_last {
            copy.end(r).await
        } else if copy.buffer.in_memory() >= PIECE_SIZE {
            copy.spill(r).await
        } else {
            Ok(())
        };
        match stored {
            Ok(()) if is_last => {}
            Ok(()) => self.copy = Some(copy),
            Err(error) => {
                r.log(Level::Crit, format_args!("{error} while storing the response of the upstream server"));
            }
        }
        Ok(piece)
    }
}

impl Pull for StoredBody {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.piece(want, r))
    }

    fn remaining(&self) -> Option<u64> {
        self.body.len()
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

impl StoreCopy {
    async fn spill(&mut self, r: &mut Request) -> Result<(), DiskError> {
        let event_loop = r.client().event_loop.core().clone();
        let disk = self.disk.clone();
        let dir = self.dir.clone();
        let room = SpillTarget { disk, dir, naming: Naming::Named, event_loop: Some(event_loop) };
        self.buffer.spill_named(&mut r.costs.account, &room).await
    }

    /// The copy is complete: it gets its name.
    async fn end(&mut self, r: &mut Request) -> Result<(), DiskError> {
        self.spill(r).await?;
        let Some(path) = self.store.path(r) else { return Ok(()) };
        let mut account = Account::new(JobClass::Fill, r.costs.account.source);
        let modified = r.response.last_modified;
        let ended = self.publish(&mut account, &path, modified).await;
        r.costs.account.add(&account);
        if ended.is_ok() {
            r.debug(format_args!("upstream response was stored: \"{}\"", tw_log::Text(path.to_bytes())));
        }
        ended
    }

    async fn publish(
        &self,
        account: &mut Account,
        path: &CStr,
        modified: Option<i64>,
    ) -> Result<(), DiskError> {
        let Some((file, temp)) = self.buffer.named_file() else { return Ok(()) };
        let disk = &self.disk;
        let access = self.store.access;
        disk.set_mode(account, file, access).await?;
        if let Some(modified) = modified {
            disk.set_mtime(account, file, modified, 0).await?;
        }
        let renamed = match disk.rename(account, temp, path).await {
            Err(error) if error.errno() == Some(Errno::NOENT) => {
                let above = path.to_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                if let Ok(above) = CString::new(&path.to_bytes()[..above]) {
                    disk.mkdir_all(account, &above, permissions::of_directory(access)).await?;
                }
                disk.rename(account, temp, path).await
            }
            renamed => renamed,
        };
        match renamed {
            Ok(()) => {
                self.buffer.keep_file();
                Ok(())
            }
            // The store is on another file system, so the copy is copied to a name beside its own. The first copy is
            // removed with the spool.
            Err(error) if error.errno() == Some(Errno::XDEV) => {
                let number = NEXT_COPY.fetch_add(1, Relaxed);
                let copy_path = [path.to_bytes(), format!(".{number:010}").as_bytes()].concat();
                let Ok(copy_path) = CString::new(copy_path) else { return Err(error) };
                let options = CreateOptions { mode: access, ..CreateOptions::NEW };
                let copy = disk.copy(account, temp, Links::Follow, &copy_path, &options).await?;
                if let Some(modified) = modified {
                    disk.set_mtime(account, &copy, modified, 0).await?;
                }
                let renamed = disk.rename(account, &copy_path, path).await;
                if renamed.is_err() {
                    // The error of the rename is more useful than one of the removal.
                    let _ = disk.unlink(account, &copy_path).await;
                }
                renamed
            }
            Err(error) => Err(error),
        }
    }
}
