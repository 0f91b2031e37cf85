//! Files of users and their passwords: `name:hash[:comment]`, one per line, read through the disk door.
//!
//! A file is cached while its metadata stays the same; the metadata is checked for every request.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::time::Duration;

use tw_base::FatalMutex;
use tw_disk::{Account, Disk, DiskError, Errno, FileMeta, Now, Op, OpenOptions};
use tw_rt::clock::UnixTime;

use super::hash::HashKind;
use crate::zone::ZoneTable;

/// The largest file of users.
pub(super) const FILE_SIZE_MAX: u64 = 16 << 20;
/// Bytes of files of users that a configuration keeps in memory.
pub(super) const KEPT_SIZE_MAX: u64 = 32 << 20;
/// Bytes of a file read at a time.
const PIECE: usize = 256 << 10;
/// Age below which a changed file is not cached: it may be changed again without a trace in its times.
const SETTLED: Duration = Duration::from_secs(2);
/// Memory of an entry besides its bytes.
const ENTRY_SIZE: u64 = 256;

/// Users and the hashes of their passwords.
#[derive(Debug, Default)]
pub(super) struct Users {
    hashes: HashMap<Box<[u8]>, Arc<[u8]>>,
    /// A hash of the kind that most users have, if that is slow.
    decoy: Option<(HashKind, Arc<[u8]>)>,
}

impl Users {
    /// Reads a file. Of several lines of a user the first counts.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut users = HashMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            if matches!(line.first(), None | Some(b'#' | b'\r')) {
                continue;
            }
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let hash =
                line[colon + 1..].split(|byte| matches!(byte, b':' | b'\r')).next().unwrap_or_default();
            users.entry(line[..colon].into()).or_insert_with(|| hash.into());
        }
        let decoy = decoy(&users);
        Self { hashes: users, decoy }
    }

    /// The hash of a user's password.
    pub(super) fn hash_of(&self, user: &[u8]) -> Option<Arc<[u8]>> {
        self.hashes.get(user).cloned()
    }

    /// Slow hash to compare with the password of an unknown user, so that the response takes as long as for most known
    /// ones.
    pub(super) fn decoy(&self) -> Option<(HashKind, Arc<[u8]>)> {
        self.decoy.clone()
    }
}

/// A hash of the most common kind, if that kind is slow.
fn decoy(users: &HashMap<Box<[u8]>, Arc<[u8]>>) -> Option<(HashKind, Arc<[u8]>)> {
    let mut kinds: Vec<(HashKind, usize, &Arc<[u8]>)> = Vec::new();
    for hash in users.values() {
        let Some(kind) = HashKind::of(hash) else { continue };
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, count, _)) => *count += 1,
            None => kinds.push((kind, 1, hash)),
        }
    }
    let (kind, _, hash) = kinds.into_iter().max_by_key(|(_, count, _)| *count)?;
    (!kind.is_quick()).then(|| (kind, hash.clone()))
}

/// Why a file gives no users.
pub(super) enum UserFileError {
    Disk(DiskError),
    /// Larger than [`FILE_SIZE_MAX`].
    TooLarge,
}

/// Files that were read, shared by all loops. Its lock is held for a look-up.
pub(super) struct CachedUsers(FatalMutex<ZoneTable<Arc<Version>>>);

struct Version {
    meta: FileMeta,
    users: Arc<Users>,
}

impl Default for CachedUsers {
    fn default() -> Self {
        Self(FatalMutex::new(ZoneTable::new(KEPT_SIZE_MAX)))
    }
}

impl CachedUsers {
    /// Users of a file, if it is cached and its version can be checked without waiting.
    pub(super) fn users_now(&self, disk: &Disk, path: &CStr) -> Option<Arc<Users>> {
        let Now::Ready(Ok(meta)) = disk.probe_now(path) else { return None };
        self.find(path, &meta)
    }

    /// The users of a file, waiting for the disk if need be.
    pub(super) async fn users(
        &self,
        disk: &Disk,
        by: &mut Account,
        path: &CString,
    ) -> Result<Arc<Users>, UserFileError> {
        let file = disk.open(by, path, &OpenOptions::READ).await.map_err(UserFileError::Disk)?;
        let meta = *file.meta();
        if let Some(users) = self.find(path, &meta) {
            return Ok(users);
        }
        let mut text = Vec::new();
        loop {
            if text.len() as u64 > FILE_SIZE_MAX {
                return Err(UserFileError::TooLarge);
            }
            let piece = disk.read(by, &file, text.len() as u64, vec![0; PIECE]).await;
            match piece.map_err(UserFileError::Disk)? {
                piece if piece.is_empty() => break,
                piece => text.extend_from_slice(&piece),
            }
        }
        let size = text.len() as u64;
        // A large file takes milliseconds to parse.
        let users =
            disk.pool().run(by, move || Arc::new(Users::parse(&text))).await.map_err(UserFileError::Disk)?;
        if is_settled(&meta, tw_rt::clock::unix()) {
            self.keep(path, Version { meta, users: users.clone() }, ENTRY_SIZE + size);
        }
        Ok(users)
    }

    fn find(&self, path: &CStr, meta: &FileMeta) -> Option<Arc<Users>> {
        let mut table = self.0.lock();
        let id = table.find(path.to_bytes())?;
        table.touch(id);
        let version = table.get(id);
        version.meta.is_same_version(meta).then(|| version.users.clone())
    }

    /// Caches a version in place of an older one; least recently used files make room.
    fn keep(&self, path: &CStr, version: Version, cost: u64) {
        let mut table = self.0.lock();
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

/// Returns `true` if a file was changed long enough ago for its times to tell it from every later version.
fn is_settled(meta: &FileMeta, now: UnixTime) -> bool {
    let settled = now.secs - SETTLED.as_secs() as i64;
    meta.mtime_sec < settled && meta.ctime_sec < settled
}

/// Returns `true` if a file does not exist.
pub(super) fn is_missing(error: &DiskError) -> bool {
    error.errno() == Some(Errno::NOENT)
}

/// The error of a name that no file can have.
pub(super) fn no_such_file() -> DiskError {
    Op::Open.failed(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_users() {
        let users = Users::parse(
            b"# c:omment\n\nplain:{PLAIN}x\r\nshell:hash:comment:more\nplain:second\n:empty\nnocolon\n\r:a\n sp:b\nlast:end",
        );
        let hash = |user: &str| {
            users.hash_of(user.as_bytes()).map(|hash| String::from_utf8_lossy(&hash).into_owned())
        };
        for (user, expected) in [
            ("plain", Some("{PLAIN}x")),
            ("shell", Some("hash")),
            ("", Some("empty")),
            (" sp", Some("b")),
            ("last", Some("end")),
            ("nocolon", None),
            ("# c", None),
            ("omment", None),
            ("plai", None),
            ("Plain", None),
        ] {
            assert_eq!(hash(user), expected.map(str::to_owned), "{user}");
        }
        assert_eq!(Users::parse(b"").hashes.len(), 0);
    }

    #[test]
    fn a_decoy_is_of_the_most_common_kind() {
        for (text, expected) in [
            ("", None),
            ("a:{PLAIN}x\nb:{PLAIN}y\nc:$apr1$z", None),
            ("a:{PLAIN}x\nb:$apr1$z\nc:$apr1$z", Some(HashKind::Md5("$apr1$"))),
            ("a:$7$x\nb:$7$y\nc:$6$z", Some(HashKind::Sha2)),
        ] {
            let decoy = Users::parse(text.as_bytes()).decoy();
            assert_eq!(decoy.map(|(kind, _)| kind), expected, "{text}");
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
