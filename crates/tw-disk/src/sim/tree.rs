//! The files and directories of the simulated disk, as they are and as a power failure would leave them.

use super::{Loss, Rng};
use crate::meta::{FileKind, FileMeta};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;

/// Unit, in bytes, that a disk writes as a whole.
const SECTOR_SIZE: usize = 512;
/// Links followed in one path, as on Linux.
const LINKS_MAX: u32 = 40;
const ROOT: u64 = 1;
/// Nanoseconds per operation: every operation has a time of its own.
const TICK_NS: u64 = 1_000_000;

type Names = BTreeMap<Vec<u8>, u64>;

/// One change of names, all or nothing: each entry is a directory, a name, and what it leads to from now on.
type Change = Vec<(u64, Vec<u8>, Option<u64>)>;

pub(super) struct Inode {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) mtime_ns: u64,
    pub(super) ctime_ns: u64,
    /// Content of a file, or target of a link.
    pub(super) data: Vec<u8>,
    /// Content that is safe.
    safe_data: Vec<u8>,
    names: Names,
    safe_names: Names,
    /// Names that lead here.
    links: u32,
    opens: u32,
    pub(super) is_warm: bool,
}

pub(super) struct Tree {
    inodes: HashMap<u64, Inode>,
    next_ino: u64,
    pub(super) boot: u64,
    pub(super) capacity: u64,
    now_ns: u64,
    /// Changes of names since the last one that is safe, oldest first.
    changes: Vec<Change>,
}

/// Links that a path walk may pass.
#[derive(Clone, Copy)]
pub(super) enum Passing {
    All,
    /// None behind this many bytes of the path.
    None(usize),
    /// Behind this many bytes, only those whose owner owns what they lead to.
    SameOwner(usize),
}

/// Target of a path: the directory, the last name, and the entry there.
pub(super) struct PathTarget {
    pub(super) dir: u64,
    pub(super) name: Vec<u8>,
    pub(super) ino: Option<u64>,
}

impl Tree {
    pub(super) fn new(capacity: u64) -> Self {
        let mut tree = Self {
            inodes: HashMap::new(),
            next_ino: ROOT,
            boot: 0,
            capacity,
            // Any day will do, as long as times have seconds and nanoseconds.
            now_ns: 1_700_000_000_000_000_000,
            changes: Vec::new(),
        };
        let root = tree.add(FileKind::Directory, 0o755, 0);
        if let Some(root) = tree.inodes.get_mut(&root) {
            root.links = 1;
        }
        tree
    }

    pub(super) fn tick(&mut self) {
        self.now_ns += TICK_NS;
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn add(&mut self, kind: FileKind, mode: u32, uid: u32) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        let inode = Inode {
            kind,
            mode,
            uid,
            mtime_ns: self.now_ns,
            ctime_ns: self.now_ns,
            data: Vec::new(),
            safe_data: Vec::new(),
            names: Names::new(),
            safe_names: Names::new(),
            links: 0,
            opens: 0,
            is_warm: true,
        };
        self.inodes.insert(ino, inode);
        ino
    }

    pub(super) fn get(&self, ino: u64) -> Result<&Inode, Errno> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    pub(super) fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    pub(super) fn open(&mut self, ino: u64) -> Result<(), Errno> {
        let inode = self.get_mut(ino)?;
        inode.opens += 1;
        inode.is_warm = true;
        Ok(())
    }

    pub(super) fn close(&mut self, ino: u64, boot: u64) {
        if boot != self.boot {
            return;
        }
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens -= 1;
        }
        self.free_if_unused(ino);
    }

    fn free_if_unused(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.links == 0 && inode.opens == 0) {
            // A file whose removal is not durable yet may come back after a power failure, so its durable content
            // stays.
            let is_needed =
                self.inodes.values().any(|dir| dir.safe_names.values().any(|&named| named == ino))
                    || self.changes.iter().flatten().any(|(_, _, named)| *named == Some(ino));
            if !is_needed {
                self.inodes.remove(&ino);
            }
        }
    }

    /// Bytes in use, in whole sectors.
    pub(super) fn used(&self) -> u64 {
        let live = self.inodes.values().filter(|inode| inode.links > 0 || inode.opens > 0);
        live.map(|inode| inode.data.len().next_multiple_of(SECTOR_SIZE) as u64).sum()
    }

    /// Changes names, all at once.
    pub(super) fn change(&mut self, change: Change) -> Result<(), Errno> {
        let mut loose = Vec::new();
        for (dir, name, ino) in &change {
            let now_ns = self.now_ns;
            let dir = self.get_mut(*dir)?;
            (dir.mtime_ns, dir.ctime_ns) = (now_ns, now_ns);
            let old = match ino {
                Some(ino) => dir.names.insert(name.clone(), *ino),
                None => dir.names.remove(name),
            };
            for (ino, step) in ino.iter().map(|ino| (*ino, 1)).chain(old.map(|ino| (ino, -1))) {
                let inode = self.get_mut(ino)?;
                inode.links = inode.links.saturating_add_signed(step);
                inode.ctime_ns = now_ns;
                loose.push(ino);
            }
        }
        self.changes.push(change);
        loose.into_iter().for_each(|ino| self.free_if_unused(ino));
        Ok(())
    }

    /// Makes all names safe.
    pub(super) fn sync_names(&mut self) {
        let all = self.changes.len();
        self.keep_changes(all);
        // Inodes that were kept only for a power failure are not needed any more.
        let inos: Vec<u64> = self.inodes.keys().copied().collect();
        inos.into_iter().for_each(|ino| self.free_if_unused(ino));
    }

    fn keep_changes(&mut self, count: usize) {
        let rest = self.changes.split_off(count);
        for (dir, name, ino) in std::mem::replace(&mut self.changes, rest).into_iter().flatten() {
            let Some(dir) = self.inodes.get_mut(&dir) else { continue };
            match ino {
                Some(ino) => dir.safe_names.insert(name, ino),
                None => dir.safe_names.remove(&name),
            };
        }
    }

    /// Makes the content of one file safe.
    pub(super) fn sync_data(&mut self, ino: u64) -> Result<(), Errno> {
        let inode = self.get_mut(ino)?;
        inode.safe_data.clone_from(&inode.data);
        Ok(())
    }

    /// The disk has not taken what lies behind `from`: of its sectors some are gone.
    pub(super) fn lose(&mut self, ino: u64, from: u64, rng: &mut Rng) {
        let Some(inode) = self.inodes.get_mut(&ino) else { return };
        let from = usize::try_from(from).unwrap_or(usize::MAX).next_multiple_of(SECTOR_SIZE);
        for sector in inode.data.get_mut(from..).unwrap_or_default().chunks_mut(SECTOR_SIZE) {
            if rng.below(2) == 0 {
                sector.fill(0);
            }
        }
    }

    /// Closes all handles of open files.
    pub(super) fn close_all(&mut self) {
        self.boot += 1;
        let inos: Vec<u64> = self.inodes.keys().copied().collect();
        self.inodes.values_mut().for_each(|inode| inode.opens = 0);
        inos.into_iter().filter(|ino| *ino != ROOT).for_each(|ino| self.free_if_unused(ino));
    }

    /// The power fails, and comes back.
    pub(super) fn crash(&mut self, rng: &mut Rng, loss: Loss) {
        self.boot += 1;
        let kept = rng.below(self.changes.len() as u64 + 1) as usize;
        self.keep_changes(kept);
        self.changes.clear();
        // Inodes are visited in numerical order, because a hash map has none, and the same seed must give the same
        // result.
        let mut inos: Vec<u64> = self.inodes.keys().copied().collect();
        inos.sort_unstable();
        for ino in &inos {
            let Some(inode) = self.inodes.get_mut(ino) else { continue };
            inode.names.clone_from(&inode.safe_names);
            if inode.kind == FileKind::File {
                inode.data = match loss {
                    Loss::Any => torn(&inode.safe_data, &inode.data, rng),
                    Loss::Nothing | Loss::Ordered => cut(&inode.safe_data, &inode.data, rng),
                };
                inode.safe_data.clone_from(&inode.data);
            }
            (inode.links, inode.opens, inode.is_warm) = (u32::from(*ino == ROOT), 0, false);
        }
        self.count_links(ROOT);
        self.inodes.retain(|_, inode| inode.links > 0);
    }

    fn count_links(&mut self, dir: u64) {
        let named: Vec<u64> =
            self.inodes.get(&dir).map_or(Vec::new(), |d| d.names.values().copied().collect());
        for ino in named {
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.links += 1;
                if inode.kind == FileKind::Directory {
                    self.count_links(ino);
                }
            }
        }
    }

    /// Walks a path. Follows a link in the last place only if `follow`.
    pub(super) fn walk(&self, path: &[u8], follow: bool, passing: Passing) -> Result<PathTarget, Errno> {
        self.walk_from(ROOT, path, follow, passing, 0, &mut 0)
    }

    fn walk_from(
        &self,
        start: u64,
        path: &[u8],
        follow: bool,
        passing: Passing,
        mut at: usize,
        links: &mut u32,
    ) -> Result<PathTarget, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut dir = if path.starts_with(b"/") { ROOT } else { start };
        let mut place = PathTarget { dir, name: b".".to_vec(), ino: Some(dir) };
        let mut names = path.split(|&b| b == b'/').peekable();
        while let Some(name) = names.next() {
            let begins_at = at;
            at += name.len() + 1;
            if name.is_empty() || name == b"." {
                continue;
            }
            dir = place.ino.ok_or(Errno::NOENT)?;
            let inode = self.get(dir)?;
            if inode.kind != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            place = PathTarget { dir, name: name.to_vec(), ino: inode.names.get(name).copied() };
            let is_last = names.peek().is_none();
            let Some(result) = place.ino.map(|ino| self.get(ino)).transpose()? else { continue };
            if result.kind != FileKind::Symlink || (is_last && !follow) {
                continue;
            }
            *links += 1;
            if *links > LINKS_MAX || matches!(passing, Passing::None(from) if begins_at >= from) {
                return Err(Errno::LOOP);
            }
            place = self.walk_from(dir, &result.data, true, Passing::All, 0, links)?;
            if let (Passing::SameOwner(from), Some(ino)) = (passing, place.ino)
                && begins_at >= from
                && self.get(ino)?.uid != result.uid
            {
                return Err(Errno::LOOP);
            }
        }
        match place.ino.map(|ino| self.get(ino)).transpose()? {
            Some(result) if path.ends_with(b"/") && result.kind != FileKind::Directory => Err(Errno::NOTDIR),
            _ => Ok(place),
        }
    }

    /// Finds the target of a path.
    pub(super) fn find(&self, path: &[u8], follow: bool) -> Result<u64, Errno> {
        self.walk(path, follow, Passing::All)?.ino.ok_or(Errno::NOENT)
    }

    pub(super) fn meta(&self, ino: u64) -> Result<FileMeta, Errno> {
        let inode = self.get(ino)?;
        let time = |ns: u64| ((ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as u32);
        let (mtime_sec, mtime_nsec) = time(inode.mtime_ns);
        let (ctime_sec, ctime_nsec) = time(inode.ctime_ns);
        let size = inode.data.len() as u64;
        let sectors = inode.data.len().div_ceil(SECTOR_SIZE) as u64;
        Ok(FileMeta {
            // A device number no real disk has.
            dev: u64::MAX,
            ino,
            size,
            mtime_sec,
            mtime_nsec,
            ctime_sec,
            ctime_nsec,
            mode: inode.mode,
            kind: inode.kind,
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.uid,
            blocks: sectors,
        })
    }

    pub(super) fn names(&self, dir: u64) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
        let inode = self.get(dir)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(inode.names.iter().map(|(name, ino)| (name.clone(), *ino)).collect())
    }

    pub(super) fn is_empty_dir(&self, ino: u64) -> Result<bool, Errno> {
        self.get(ino).map(|inode| inode.names.is_empty())
    }

    pub(super) fn put(&mut self, path: &[u8], content: &[u8]) -> Result<(), Errno> {
        let ends = (1..path.len()).filter(|&i| path[i] == b'/' && path[i - 1] != b'/');
        for end in ends {
            let place = self.walk(&path[..end], true, Passing::All)?;
            if place.ino.is_none() {
                let ino = self.add(FileKind::Directory, 0o755, 0);
                self.change(vec![(place.dir, place.name, Some(ino))])?;
            }
        }
        let place = self.walk(path, true, Passing::All)?;
        let ino = match place.ino {
            Some(ino) if self.get(ino)?.kind != FileKind::File => return Err(Errno::ISDIR),
            Some(ino) => ino,
            None => {
                let ino = self.add(FileKind::File, 0o644, 0);
                self.change(vec![(place.dir, place.name, Some(ino))])?;
                ino
            }
        };
        let now_ns = self.now_ns;
        let inode = self.get_mut(ino)?;
        (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        inode.data = content.to_vec();
        self.sync_data(ino)?;
        self.sync_names();
        self.tick();
        Ok(())
    }

    pub(super) fn put_link(&mut self, path: &[u8], target: &[u8], uid: u32) -> Result<(), Errno> {
        let place = self.walk(path, false, Passing::All)?;
        if place.ino.is_some() {
            return Err(Errno::EXIST);
        }
        let ino = self.add(FileKind::Symlink, 0o777, uid);
        self.get_mut(ino)?.data = target.to_vec();
        self.change(vec![(place.dir, place.name, Some(ino))])?;
        self.sync_names();
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &[u8]) -> Result<(), Errno> {
        let place = self.walk(path, false, Passing::All)?;
        place.ino.ok_or(Errno::NOENT)?;
        self.change(vec![(place.dir, place.name, None)])
    }

    pub(super) fn content(&self, path: &[u8]) -> Option<Vec<u8>> {
        let inode = self.get(self.find(path, true).ok()?).ok()?;
        (inode.kind == FileKind::File).then(|| inode.data.clone())
    }

    pub(super) fn paths(&self) -> Vec<CString> {
        let mut paths = Vec::new();
        self.collect(ROOT, b"", &mut paths);
        paths
    }

    fn collect(&self, dir: u64, above: &[u8], paths: &mut Vec<CString>) {
        for (name, ino) in self.names(dir).unwrap_or_default() {
            let path = [above, b"/", &name].concat();
            match self.get(ino).map(|inode| inode.kind) {
                Ok(FileKind::Directory) => self.collect(ino, &path, paths),
                Ok(FileKind::File) => paths.extend(CString::new(path)),
                _ => {}
            }
        }
    }

    /// The path of a file or directory that has a name.
    pub(super) fn path_of(&self, ino: u64) -> Option<Vec<u8>> {
        if ino == ROOT {
            return Some(b"/".to_vec());
        }
        let (dir, name) = self.inodes.iter().find_map(|(dir, inode)| {
            let named = inode.names.iter().find(|(_, named)| **named == ino)?;
            (inode.links > 0).then_some((*dir, named.0))
        })?;
        let above = self.path_of(dir)?;
        let above = above.strip_suffix(b"/").unwrap_or(&above);
        Some([above, b"/", name].concat())
    }

    pub(super) fn chill(&mut self) {
        self.inodes.values_mut().for_each(|inode| inode.is_warm = false);
    }
}

/// Rest of a write that was not synced, if the length is written last: of existing data each sector is the old or the new
/// one, and of appended data there is a beginning.
fn cut(old: &[u8], new: &[u8], rng: &mut Rng) -> Vec<u8> {
    let grown = new.len().saturating_sub(old.len());
    let kept = match rng.below(3) {
        0 => 0,
        1 => grown,
        _ => rng.below(grown as u64 + 1) as usize,
    };
    let mut rest = new.get(..old.len() + kept).unwrap_or(new).to_vec();
    for (i, sector) in rest.chunks_mut(SECTOR_SIZE).enumerate() {
        let from = old.get(i * SECTOR_SIZE..).unwrap_or_default();
        let n = from.len().min(sector.len());
        if rng.below(2) == 0 {
            sector[..n].copy_from_slice(&from[..n]);
        }
    }
    rest
}

/// Rest of a write that was not synced: sector by sector the old or the new, and one of the two lengths or any sector in
/// between.
fn torn(old: &[u8], new: &[u8], rng: &mut Rng) -> Vec<u8> {
    if old == new {
        return new.to_vec();
    }
    let short = old.len().min(new.len());
    let long = old.len().max(new.len());
    let between = short.next_multiple_of(SECTOR_SIZE).min(long);
    let len = match rng.below(3) {
        0 => old.len(),
        1 => new.len(),
        _ => between,
    };
    let mut rest = vec![0; len];
    for (i, sector) in rest.chunks_mut(SECTOR_SIZE).enumerate() {
        let source = if rng.below(2) == 0 { old } else { new };
        let from = source.get(i * SECTOR_SIZE..).unwrap_or_default();
        let n = from.len().min(sector.len());
        sector[..n].copy_from_slice(&from[..n]);
    }
    rest
}
