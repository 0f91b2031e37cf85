//! Files that requests name, read through the disk door and kept in memory parsed: users with passwords, keys of tokens.
//!
//! A file is cached while its metadata stays the same; the metadata is checked for every request.

use std::ffi::{CStr, CString};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tw_base::FatalMutex;
use tw_conf::{ConfError, MachineSubject, Span, Word};
use tw_core::reach::Reach;
use tw_disk::{Account, Disk, DiskError, Errno, FileMeta, Now, Op, OpenOptions};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;
use tw_rt::clock::UnixTime;

use crate::zone::ZoneTable;

/// Bytes of a file read at a time.
const PIECE: usize = 256 << 10;
/// Age below which a changed file is not cached: it may be changed again without a trace in its times.
const SETTLED: Duration = Duration::from_secs(2);
/// Memory of an entry besides its bytes.
const ENTRY_SIZE: u64 = 256;

/// Kind of files, and the parser of their contents.
pub struct CachedFormat<T> {
    /// Largest size in bytes.
    pub size_max: u64,
    /// Bytes of files that are kept in memory.
    pub kept_size_max: u64,
    /// Makes the content of all bytes of the file, or says why it cannot. Runs in a pool: a large file takes milliseconds.
    pub parse: fn(&[u8]) -> Result<T, String>,
}

/// Name of a file as written, which may have variables.
pub struct RawNamedFile {
    word: Word,
    /// The directory of the configuration.
    prefix: Box<[u8]>,
}

/// Name of a file, which may have variables.
pub struct NamedFile {
    name: Template,
    /// Position in the configuration.
    at: Span,
    /// The directory of the configuration, where names that do not begin with a slash begin.
    prefix: Box<[u8]>,
}

impl RawNamedFile {
    /// The file `word` of a configuration in the directory `prefix`.
    pub fn new(word: &Word, prefix: &[u8]) -> Self {
        Self { word: word.clone(), prefix: prefix.into() }
    }

    /// Compiles the name.
    pub fn resolve(self, cx: &mut Resolve<'_>) -> Result<NamedFile, ConfError> {
        let name = cx.template(&self.word)?;
        if let Some(constant) = name.constant() {
            let path = tw_conf::full_name(&self.prefix, constant);
            let message = format!("the file \"{}\" does not exist", String::from_utf8_lossy(&path));
            cx.expect(MachineSubject::Path(path.into()), || ConfError::warn(message).at(self.word.span));
        }
        Ok(NamedFile { name, at: self.word.span, prefix: self.prefix })
    }
}

impl NamedFile {
    /// Declares the file to the sandbox. One whose name begins with a variable may be any file.
    pub fn declare(&self, reach: &mut Reach) {
        let full_name = match self.name.prefix() {
            b"" if self.name.constant().is_none() => self.name.clone(),
            [b'/', ..] => self.name.clone(),
            _ => Template::joined([Template::text(&self.prefix), self.name.clone()]),
        };
        reach.reads_file(&full_name, Some(self.at));
    }

    /// Path for `r`. A path with a NUL is that of no file, and empty.
    pub fn path(&self, r: &Request) -> CString {
        CString::new(tw_conf::full_name(&self.prefix, &self.name.value(r))).unwrap_or_default()
    }

    /// Path for `r` below the directories that the configuration names: one for which a variable has `..` among its names is
    /// empty, as are those that [`path`](Self::path) says.
    pub fn path_below(&self, r: &Request) -> CString {
        let mut name = Vec::new();
        let mut values = Vec::new();
        self.name.eval_each(r, &mut name, |name, start, _| values.push(start..name.len()));
        if leads_out(&name, &values) {
            CString::default()
        } else {
            CString::new(tw_conf::full_name(&self.prefix, &name)).unwrap_or_default()
        }
    }
}

/// Why a file has no content.
pub enum CachedFileError {
    /// The file could not be read.
    Disk(DiskError),
    /// Larger than [`CachedFormat::size_max`].
    TooLarge,
    /// The parser's reason.
    Malformed(String),
}

/// Files that were read, shared by all loops. Its lock is held for a look-up.
pub struct CachedFiles<T: 'static> {
    format: &'static CachedFormat<T>,
    versions: FatalMutex<ZoneTable<Arc<Version<T>>>>,
}

struct Version<T> {
    meta: FileMeta,
    content: Arc<T>,
}

impl<T: Send + Sync> CachedFiles<T> {
    /// No files yet.
    pub fn new(format: &'static CachedFormat<T>) -> Self {
        Self { format, versions: FatalMutex::new(ZoneTable::new(format.kept_size_max)) }
    }

    /// Content of a file, if it is cached and its version can be checked without waiting.
    pub fn content_now(&self, disk: &Disk, path: &CStr) -> Option<Arc<T>> {
        let Now::Ready(Ok(meta)) = disk.probe_now(path) else { return None };
        self.find(path, &meta)
    }

    /// Content of a file, waiting for the disk if need be.
    pub async fn content(
        &self,
        disk: &Disk,
        account: &mut Account,
        path: &CString,
    ) -> Result<Arc<T>, CachedFileError> {
        let file = disk.open(account, path, &OpenOptions::READ).await.map_err(CachedFileError::Disk)?;
        let meta = *file.meta();
        if let Some(content) = self.find(path, &meta) {
            return Ok(content);
        }
        let mut text = Vec::new();
        loop {
            if text.len() as u64 > self.format.size_max {
                return Err(CachedFileError::TooLarge);
            }
            let piece = disk.read(account, &file, text.len() as u64, vec![0; PIECE]).await;
            match piece.map_err(CachedFileError::Disk)? {
                piece if piece.is_empty() => break,
                piece => text.extend_from_slice(&piece),
            }
        }
        let size = text.len() as u64;
        let parse = self.format.parse;
        let parsed = disk.pool().run(account, move || parse(&text)).await.map_err(CachedFileError::Disk)?;
        let content = Arc::new(parsed.map_err(CachedFileError::Malformed)?);
        if is_settled(&meta, tw_rt::clock::unix()) {
            self.keep(path, Version { meta, content: content.clone() }, ENTRY_SIZE + size);
        }
        Ok(content)
    }

    fn find(&self, path: &CStr, meta: &FileMeta) -> Option<Arc<T>> {
        let mut table = self.versions.lock();
        let id = table.find(path.to_bytes())?;
        table.touch(id);
        let version = table.get(id);
        version.meta.is_same_version(meta).then(|| version.content.clone())
    }

    /// Caches a version in place of an older one; least recently used files make room.
    fn keep(&self, path: &CStr, version: Version<T>, cost: u64) {
        let mut table = self.versions.lock();
        if let Some(id) = table.find(path.to_bytes()) {
            table.remove(id);
        }
        let version = Arc::new(version);
        while table.insert(path.to_bytes(), cost, version.clone()).is_none() {
            match table.oldest() {
                Some(oldest) => table.remove(oldest),
                None => return,
            }
        }
    }
}

/// Returns `true` if a step `..` of a name is, at least in part, of one of these values of variables.
fn leads_out(name: &[u8], values: &[Range<usize>]) -> bool {
    let mut start = 0;
    name.split(|byte| *byte == b'/').any(|step| {
        let end = start + step.len();
        let is_of_value = values.iter().any(|value| value.start < end && value.end > start);
        start = end + 1;
        step == b".." && is_of_value
    })
}

/// Returns `true` if a file was changed long enough ago for its times to tell it from every later version.
fn is_settled(meta: &FileMeta, now: UnixTime) -> bool {
    let settled = now.secs - SETTLED.as_secs() as i64;
    meta.mtime_sec < settled && meta.ctime_sec < settled
}

/// Returns `true` if a file does not exist.
pub fn is_missing(error: &DiskError) -> bool {
    error.errno() == Some(Errno::NOENT)
}

/// The error of a name that no file can have.
pub fn no_such_file() -> DiskError {
    Op::Open.failed(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_lead_out_of_a_directory() {
        let leads_out_of = |parts: &[(&str, bool)]| {
            let mut name = Vec::new();
            let mut values = Vec::new();
            for (text, is_value) in parts {
                let start = name.len();
                name.extend_from_slice(text.as_bytes());
                values.extend(is_value.then_some(start..name.len()));
            }
            leads_out(&name, &values)
        };
        for (parts, expected) in [
            (&[("keys/", false), ("a.json", true)][..], false),
            (&[("keys/", false), ("a/..b/c..", true)], false),
            (&[("../", false), ("a", true)], false),
            (&[("a.", false), ("", true), ("./b", false)], false),
            (&[("..", false), ("", true)], false),
            (&[("keys/", false), ("../a", true)], true),
            (&[("keys/", false), ("a/..", true)], true),
            (&[("keys/", false), (".", true), ("./a", true)], true),
            (&[("keys/.", false), ("./a", true)], true),
            (&[("keys/", false), ("a/.", true), ("./b", false)], true),
        ] {
            assert_eq!(leads_out_of(parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn recently_changed_file_is_not_settled() {
        let meta = |mtime_sec, ctime_sec| FileMeta {
            dev: 1,
            ino: 1,
            size: 1,
            mtime_sec,
            mtime_nsec: 0,
            ctime_sec,
            ctime_nsec: 0,
            mode: 0o644,
            kind: tw_disk::FileKind::File,
            nlink: 1,
            uid: 0,
            gid: 0,
            blocks: 1,
        };
        let now = UnixTime { secs: 100, msec: 0 };
        for (mtime, ctime, expected) in [
            (90, 90, true),
            (97, 97, true),
            (98, 90, false),
            (90, 98, false),
            (100, 100, false),
            (200, 90, false),
        ] {
            assert_eq!(is_settled(&meta(mtime, ctime), now), expected, "{mtime} {ctime}");
        }
    }
}
