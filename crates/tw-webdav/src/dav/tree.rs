//! Directory trees: removed, or copied. Each operation is a job of its own, so a large tree does not keep a thread
//! busy. Symbolic links are never followed, not even one that replaces a directory meanwhile: a link is removed, and
//! not copied.

use std::ffi::{CStr, CString};

use tw_disk::{CreateOptions, Disk, DiskError, Errno, FileKind, FileMeta, LIST_MAX, OpenOptions};
use tw_log::{Level, Text};
use tw_request::config::permissions;
use tw_request::request::Request;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Directories that wait for their turn while one more is copied, and entries of each.
    const WAITING_MAX: usize = LIST_MAX, count, "the copy ends with 500; the error log says so";
    /// Names read at once of a directory that is emptied.
    const REMOVE_BATCH: usize = 256, count, "the others are read after these are gone";
}

/// A directory that is being emptied.
struct Emptied {
    path: CString,
    /// Directories in it that were read and are still there.
    inner: Vec<CString>,
    state: Listed,
    /// Number of names of the last list that are removed.
    removed: usize,
}

/// Progress of reading a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    Nothing,
    /// The directory has more names than one list holds.
    Part,
    All,
}

/// Removes the file or directory at `path`; the error is the status of the response. Failures inside it are logged.
pub(super) async fn remove(r: &mut Request, disk: &Disk, path: &CStr, kind: FileKind) -> Result<(), u16> {
    if kind != FileKind::Directory {
        let removed = disk.unlink(&mut r.costs.account, path).await;
        return removed.map_err(|error| super::fail(r, &error, path, 404));
    }
    let from = below(path);
    let mut levels = vec![Emptied::new(path.to_owned())];
    while let Some(level) = levels.last_mut() {
        if let Some(inner) = level.inner.pop() {
            levels.push(Emptied::new(inner));
            continue;
        }
        let goes_on = level.removed > 0 && level.state == Listed::Part;
        if level.state == Listed::Nothing || goes_on {
            let is_first = level.state == Listed::Nothing;
            if let Err(error) = level.list(r, disk, from).await {
                r.log(Level::Crit, format_args!("{}", error.on(&level.path)));
                if is_first && levels.len() == 1 {
                    return Err(if error.errno().is_some() { 500 } else { 503 });
                }
                level_is_read(&mut levels);
            }
            continue;
        }
        let Some(level) = levels.pop() else { break };
        match (disk.rmdir_below(&mut r.costs.account, &level.path, from).await, levels.last_mut()) {
            (Ok(()), Some(outer)) => outer.removed += 1,
            (Ok(()), None) => return Ok(()),
            (Err(error), None) => return Err(super::fail(r, &error, &level.path, 404)),
            (Err(error), Some(_)) => {
                super::fail(r, &error, &level.path, 404);
            }
        }
    }
    Ok(())
}

/// Offset in `tree`, and the paths inside it, behind which links are refused: behind the directory that holds it.
fn below(tree: &CStr) -> u32 {
    u32::try_from(super::above(tree.to_bytes()).len()).unwrap_or(u32::MAX)
}

/// Marks the innermost directory as read to its end.
fn level_is_read(levels: &mut [Emptied]) {
    if let Some(level) = levels.last_mut() {
        level.state = Listed::All;
    }
}

impl Emptied {
    fn new(path: CString) -> Self {
        Self { path, inner: Vec::new(), state: Listed::Nothing, removed: 0 }
    }

    /// Reads names, and removes what is no directory.
    async fn list(&mut self, r: &mut Request, disk: &Disk, from: u32) -> Result<(), DiskError> {
        self.removed = 0;
        let event_loop = r.client().event_loop.clone();
        let list = async || disk.list_links(&mut r.costs.account, &self.path, REMOVE_BATCH, from).await;
        let listing = event_loop.retry_with_descriptor(list).await?;
        self.state = if listing.truncated { Listed::Part } else { Listed::All };
        // DIFF(nginx): nginx leaves links that lead nowhere where they are.
        for entry in listing.entries {
            let Some(path) = join(&self.path, &entry.name) else { continue };
            if entry.meta.kind == FileKind::Directory {
                self.inner.push(path);
                continue;
            }
            match disk.unlink_below(&mut r.costs.account, &path, from).await {
                Ok(()) => self.removed += 1,
                Err(error) => {
                    super::fail(r, &error, &path, 404);
                }
            }
        }
        Ok(())
    }
}

/// Directory to copy, or whose time is set after all below it is done.
enum Turn {
    Copy { from: CString, to: CString, meta: FileMeta },
    Time { to: CString, sec: i64 },
}

/// Copies the directory `from`, whose metadata is `meta`, to `to`, which does not exist. The error is the status to answer
/// with: something could not be copied, and was logged.
// DIFF(nginx): nginx answers 201 even if files could not be copied, and removes the source of a MOVE.
pub(super) async fn copy(
    r: &mut Request,
    disk: &Disk,
    from: &CStr,
    to: &CStr,
    meta: &FileMeta,
) -> Result<(), u16> {
    if let Err(error) = disk.mkdir(&mut r.costs.account, to, meta.mode & 0o777).await {
        return Err(super::fail(r, &error, to, 404));
    }
    let made = match disk.stat_link(&mut r.costs.account, to).await {
        Ok(made) => made,
        Err(error) => return Err(super::fail(r, &error, to, 404)),
    };
    let mut copier = Copier { disk, below: below(from), made, turns: Vec::new(), failed: None };
    copier.files(r, from, to).await?;
    while let Some(turn) = copier.turns.pop() {
        match turn {
            Turn::Copy { from, to, meta } => copier.directory(r, &from, to, &meta).await?,
            Turn::Time { to, sec } => copier.time(r, &to, sec).await,
        }
    }
    copier.failed.map_or(Ok(()), Err)
}

/// A tree that is being copied.
struct Copier<'a> {
    disk: &'a Disk,
    /// Behind so many bytes of a source no link is followed.
    below: u32,
    /// The copy itself, which may lie inside the tree behind a link.
    made: FileMeta,
    turns: Vec<Turn>,
    /// The status of the first failure.
    failed: Option<u16>,
}

impl Copier<'_> {
    async fn directory(
        &mut self,
        r: &mut Request,
        from: &CStr,
        to: CString,
        meta: &FileMeta,
    ) -> Result<(), u16> {
        let mode = permissions::of_directory(meta.mode & 0o777);
        if let Err(error) = self.disk.mkdir(&mut r.costs.account, &to, mode).await {
            return self.failure(r, &error, &to);
        }
        self.turns.push(Turn::Time { to: to.clone(), sec: meta.mtime_sec });
        self.files(r, from, &to).await
    }

    /// Copies the files of a directory; those in it wait for their turn.
    async fn files(&mut self, r: &mut Request, from: &CStr, to: &CStr) -> Result<(), u16> {
        let event_loop = r.client().event_loop.clone();
        let list = async || self.disk.list_links(&mut r.costs.account, from, LIST_MAX, self.below).await;
        let listing = match event_loop.retry_with_descriptor(list).await {
            Ok(listing) => listing,
            Err(error) => return self.failure(r, &error, from),
        };
        if listing.truncated || self.turns.len() > WAITING_MAX {
            // DIFF(nginx): nginx copies directories of any size.
            let from = Text(from.to_bytes());
            r.log(Level::Crit, format_args!("\"{from}\" has more than {LIST_MAX} entries to be copied"));
            return Err(500);
        }
        for entry in listing.entries {
            let (Some(from), Some(to)) = (join(from, &entry.name), join(to, &entry.name)) else { continue };
            match entry.meta.kind {
                FileKind::Directory if (entry.meta.dev, entry.meta.ino) == (self.made.dev, self.made.ino) => {
                }
                FileKind::Directory => self.turns.push(Turn::Copy { from, to, meta: entry.meta }),
                FileKind::File => self.file(r, &from, &to, &entry.meta).await?,
                FileKind::Symlink | FileKind::Other => {}
            }
        }
        Ok(())
    }

    async fn file(&mut self, r: &mut Request, from: &CStr, to: &CStr, meta: &FileMeta) -> Result<(), u16> {
        let options = CreateOptions { mode: meta.mode & 0o777, ..CreateOptions::NEW };
        let links = tw_disk::Links::Refuse { from: self.below };
        let event_loop = r.client().event_loop.clone();
        let copy = async || self.disk.copy(&mut r.costs.account, from, links, to, &options).await;
        let file = match event_loop.retry_with_descriptor(copy).await {
            Ok(file) => file,
            Err(error) => return self.failure(r, &error, to),
        };
        match self.disk.set_mtime(&mut r.costs.account, &file, meta.mtime_sec, meta.mtime_nsec).await {
            Ok(()) => Ok(()),
            Err(error) => self.failure(r, &error, to),
        }
    }

    /// Sets the time of a directory; without it the copy is as good.
    async fn time(&mut self, r: &mut Request, to: &CStr, sec: i64) {
        let set = match self.disk.open(&mut r.costs.account, to, &OpenOptions::READ).await {
            Ok(file) => self.disk.set_mtime(&mut r.costs.account, &file, sec, 0).await,
            Err(error) => Err(error),
        };
        if let Err(error) = set {
            r.log(Level::Alert, format_args!("{}", error.on(to)));
        }
    }

    /// Logs a failure. The error ends the copy: nothing else would fare better.
    fn failure(&mut self, r: &mut Request, error: &DiskError, path: &CStr) -> Result<(), u16> {
        let status = super::fail(r, error, path, 500);
        let status = if status == 405 { 500 } else { status };
        self.failed.get_or_insert(status);
        match error.errno() {
            Some(Errno::NOSPC) | None => Err(status),
            Some(_) => Ok(()),
        }
    }
}

fn join(directory: &CStr, name: &CStr) -> Option<CString> {
    CString::new([directory.to_bytes(), b"/", name.to_bytes()].concat()).ok()
}
