//! Files and directories in memory, by inode number, as a file system sees them.
//!
//! Nothing is ever freed: a file without a name can still be open, and the tree lives as long as one test.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use fuser::{FileAttr, FileType, INodeNo};
use rustix::io::Errno;

use crate::fault::lock;
use crate::store::{Change, DirEntry, EntryName, FreeSpace, Owner, ROOT, Store};

/// Size of the disk in `statfs`, in bytes.
const CAPACITY: u64 = 1 << 30;
const BLOCK_SIZE: u32 = 4096;
/// Handle of all open files, which is not used: files are read and written by inode.
const NO_HANDLE: u64 = 0;

/// Content in memory.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Tree>);

/// The whole content of a disk.
#[derive(Debug)]
struct Tree {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

/// A file or a directory.
#[derive(Debug)]
struct Node {
    /// The name it was last given; what faults are matched with.
    name: OsString,
    kind: Kind,
    /// Permission bits.
    mode: u16,
    modified: SystemTime,
    changed: SystemTime,
    /// Number of links.
    links: u32,
}

#[derive(Debug)]
enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<OsString, u64>),
}

impl Memory {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.0)
    }

    /// Writes a whole file by path, with the directories above it.
    pub fn put(&self, path: &Path, content: &[u8]) {
        self.tree().put(path, content);
    }

    /// Content of a file by path.
    #[must_use]
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        self.tree().content(path)
    }
}

impl Store for Memory {
    fn name(&self, ino: u64) -> OsString {
        self.tree().name(ino)
    }

    fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        let tree = self.tree();
        tree.attr(tree.lookup(parent, name)?)
    }

    // Inodes are never freed.
    fn forget(&self, _: u64, _: u64) {}

    fn attr(&self, ino: u64) -> Result<FileAttr, Errno> {
        self.tree().attr(ino)
    }

    fn change(&self, ino: u64, change: &Change) -> Result<FileAttr, Errno> {
        let mut tree = self.tree();
        if let Some(size) = change.size {
            tree.truncate(ino, size)?;
        }
        let node = tree.node_mut(ino)?;
        if let Some(mode) = change.mode {
            node.mode = permissions(mode);
        }
        if let Some(time) = change.modified {
            node.modified = time.unwrap_or_else(SystemTime::now);
        }
        tree.attr(ino)
    }

    fn link_target(&self, _: u64) -> Result<OsString, Errno> {
        Err(Errno::INVAL)
    }

    fn open(&self, ino: u64, _: i32) -> Result<u64, Errno> {
        self.tree().node(ino).map(|_| NO_HANDLE)
    }

    fn close(&self, _: u64, _: u64) {}

    fn read(&self, ino: u64, _: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        self.tree().read(ino, offset, size).map(<[u8]>::to_owned)
    }

    fn write(&self, ino: u64, _: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.tree().write(ino, offset, data)
    }

    fn sync(&self, _: u64, _: u64, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn sync_dir(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn create(&self, at: EntryName<'_>, mode: u32, _: i32, _: Owner) -> Result<(FileAttr, u64), Errno> {
        let mut tree = self.tree();
        let ino = tree.make(at.parent, at.name, Kind::File(Vec::new()), permissions(mode))?;
        Ok((tree.attr(ino)?, NO_HANDLE))
    }

    fn make_dir(&self, at: EntryName<'_>, mode: u32, _: Owner) -> Result<FileAttr, Errno> {
        let mut tree = self.tree();
        let ino = tree.make(at.parent, at.name, Kind::Dir(BTreeMap::new()), permissions(mode))?;
        tree.attr(ino)
    }

    fn make_link(&self, _: EntryName<'_>, _: &Path, _: Owner) -> Result<FileAttr, Errno> {
        Err(Errno::PERM)
    }

    fn link(&self, ino: u64, at: EntryName<'_>) -> Result<FileAttr, Errno> {
        let mut tree = self.tree();
        tree.link(ino, at.parent, at.name)?;
        tree.attr(ino)
    }

    fn unlink(&self, at: EntryName<'_>) -> Result<(), Errno> {
        self.tree().unlink(at.parent, at.name)
    }

    fn remove_dir(&self, at: EntryName<'_>) -> Result<(), Errno> {
        self.tree().rmdir(at.parent, at.name)
    }

    fn rename(&self, from: EntryName<'_>, to: EntryName<'_>, replace: bool) -> Result<(), Errno> {
        self.tree().rename(from, to, replace)
    }

    fn list(&self, ino: u64) -> Result<Vec<DirEntry>, Errno> {
        let tree = self.tree();
        let dots = [".", ".."].map(|name| DirEntry { ino, kind: FileType::Directory, name: name.into() });
        let mut list = Vec::from(dots);
        for (name, &ino) in tree.entries(ino)? {
            list.push(DirEntry { ino, kind: file_type(&tree.node(ino)?.kind), name: name.clone() });
        }
        Ok(list)
    }

    fn room(&self) -> Result<FreeSpace, Errno> {
        let blocks = CAPACITY / u64::from(BLOCK_SIZE);
        let free = blocks.saturating_sub(self.used().div_ceil(u64::from(BLOCK_SIZE)));
        Ok(FreeSpace {
            block_size: BLOCK_SIZE,
            blocks: [blocks, free, free],
            files: blocks,
            free_files: free,
        })
    }

    fn used(&self) -> u64 {
        self.tree().used()
    }
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File(_) => FileType::RegularFile,
        Kind::Dir(_) => FileType::Directory,
    }
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node::new(OsStr::new(""), Kind::Dir(BTreeMap::new()), 0o755);
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }
}

impl Node {
    fn new(name: &OsStr, kind: Kind, mode: u16) -> Self {
        let now = SystemTime::now();
        let links = if matches!(kind, Kind::Dir(_)) { 2 } else { 1 };
        Self { name: name.to_owned(), kind, mode, modified: now, changed: now, links }
    }

    /// Size in bytes; 0 for a directory.
    fn size(&self) -> u64 {
        match &self.kind {
            Kind::File(data) => data.len() as u64,
            Kind::Dir(_) => 0,
        }
    }

    fn touch(&mut self) {
        self.modified = SystemTime::now();
        self.changed = self.modified;
    }
}

impl Tree {
    fn node(&self, ino: u64) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::NOENT)
    }

    fn node_mut(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    /// The name a node was last given; empty for one that does not exist.
    fn name(&self, ino: u64) -> OsString {
        self.nodes.get(&ino).map(|node| node.name.clone()).unwrap_or_default()
    }

    fn attr(&self, ino: u64) -> Result<FileAttr, Errno> {
        let node = self.node(ino)?;
        Ok(FileAttr {
            ino: INodeNo(ino),
            size: node.size(),
            blocks: node.size().div_ceil(512),
            atime: node.modified,
            mtime: node.modified,
            ctime: node.changed,
            crtime: node.changed,
            kind: file_type(&node.kind),
            perm: node.mode,
            nlink: node.links,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: BLOCK_SIZE,
            flags: 0,
        })
    }

    fn lookup(&self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        self.entries(parent)?.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Names and numbers in a directory, in order.
    fn entries(&self, ino: u64) -> Result<&BTreeMap<OsString, u64>, Errno> {
        match &self.node(ino)?.kind {
            Kind::Dir(entries) => Ok(entries),
            Kind::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// Creates an empty file or directory.
    fn make(&mut self, parent: u64, name: &OsStr, kind: Kind, mode: u16) -> Result<u64, Errno> {
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let ino = self.next;
        self.enter(parent, name, ino)?;
        self.next += 1;
        self.nodes.insert(ino, Node::new(name, kind, mode));
        Ok(ino)
    }

    /// Up to `size` bytes from `offset`; fewer at the end of the file.
    fn read(&self, ino: u64, offset: u64, size: usize) -> Result<&[u8], Errno> {
        let Kind::File(data) = &self.node(ino)?.kind else { return Err(Errno::ISDIR) };
        let start = usize::try_from(offset).map_or(data.len(), |offset| offset.min(data.len()));
        let end = start.saturating_add(size).min(data.len());
        Ok(&data[start..end])
    }

    fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        let Kind::File(data) = &mut node.kind else { return Err(Errno::ISDIR) };
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        let end = start.checked_add(bytes.len()).ok_or(Errno::FBIG)?;
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(bytes);
        node.touch();
        Ok(())
    }

    fn truncate(&mut self, ino: u64, size: u64) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        let Kind::File(data) = &mut node.kind else { return Err(Errno::ISDIR) };
        data.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
        node.touch();
        Ok(())
    }

    fn unlink(&mut self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let ino = self.lookup(parent, name)?;
        if matches!(self.node(ino)?.kind, Kind::Dir(_)) {
            return Err(Errno::ISDIR);
        }
        self.leave(parent, name)?;
        self.node_mut(ino)?.links -= 1;
        Ok(())
    }

    fn rmdir(&mut self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let ino = self.lookup(parent, name)?;
        if !self.entries(ino)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.leave(parent, name)?;
        self.node_mut(ino)?.links = 0;
        Ok(())
    }

    fn link(&mut self, ino: u64, parent: u64, name: &OsStr) -> Result<(), Errno> {
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.node(ino)?;
        self.enter(parent, name, ino)?;
        self.node_mut(ino)?.links += 1;
        Ok(())
    }

    /// Renames a file as `rename` does; fails if `replace` is false and the new name exists.
    fn rename(&mut self, from: EntryName<'_>, to: EntryName<'_>, replace: bool) -> Result<(), Errno> {
        let ino = self.lookup(from.parent, from.name)?;
        match self.lookup(to.parent, to.name) {
            Ok(old) if old == ino => return Ok(()),
            Ok(_) if !replace => return Err(Errno::EXIST),
            Ok(old) => match self.node(old)?.kind {
                Kind::File(_) => self.unlink(to.parent, to.name)?,
                Kind::Dir(_) => self.rmdir(to.parent, to.name)?,
            },
            Err(_) => {}
        }
        self.enter(to.parent, to.name, ino)?;
        self.leave(from.parent, from.name)?;
        let node = self.node_mut(ino)?;
        to.name.clone_into(&mut node.name);
        node.changed = SystemTime::now();
        Ok(())
    }

    /// Bytes in all files.
    fn used(&self) -> u64 {
        self.nodes.values().map(Node::size).sum()
    }

    /// Writes a whole file by path, with the directories above it.
    fn put(&mut self, path: &Path, content: &[u8]) {
        let names = names(path);
        let Some((file, dirs)) = names.split_last() else { return };
        let mut parent = ROOT;
        for dir in dirs {
            let made = self.make(parent, dir, Kind::Dir(BTreeMap::new()), 0o755);
            parent = made.or_else(|_| self.lookup(parent, dir)).unwrap_or(parent);
        }
        let made = self.make(parent, file, Kind::File(Vec::new()), 0o644);
        if let Ok(node) = made.or_else(|_| self.lookup(parent, file)).and_then(|ino| self.node_mut(ino)) {
            node.kind = Kind::File(content.to_owned());
            node.touch();
        }
    }

    /// A whole file by path.
    fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let ino = names(path).iter().try_fold(ROOT, |parent, name| self.lookup(parent, name)).ok()?;
        self.read(ino, 0, usize::MAX).ok().map(<[u8]>::to_owned)
    }

    fn enter(&mut self, parent: u64, name: &OsStr, ino: u64) -> Result<(), Errno> {
        let node = self.node_mut(parent)?;
        let Kind::Dir(entries) = &mut node.kind else { return Err(Errno::NOTDIR) };
        entries.insert(name.to_owned(), ino);
        node.touch();
        Ok(())
    }

    fn leave(&mut self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let node = self.node_mut(parent)?;
        let Kind::Dir(entries) = &mut node.kind else { return Err(Errno::NOTDIR) };
        entries.remove(name);
        node.touch();
        Ok(())
    }
}

fn names(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    fn file() -> Kind {
        Kind::File(Vec::new())
    }

    #[test]
    fn reads_and_writes_have_the_limits_of_a_file() {
        let mut tree = Tree::default();
        let f = tree.make(ROOT, os("f"), file(), 0o644).unwrap();
        tree.write(f, 2, b"abc").unwrap();
        for (offset, size, expected) in
            [(0, 9, &b"\0\0abc"[..]), (2, 2, b"ab"), (4, 9, b"c"), (5, 1, b""), (99, 1, b"")]
        {
            assert_eq!(tree.read(f, offset, size).unwrap(), expected, "{offset} {size}");
        }
        tree.truncate(f, 3).unwrap();
        assert_eq!(tree.content(Path::new("f")).unwrap(), b"\0\0a");
        assert_eq!(tree.read(ROOT, 0, 1), Err(Errno::ISDIR));
        assert_eq!(tree.used(), 3);
    }

    #[test]
    fn names_follow_the_rules_of_posix() {
        let mut tree = Tree::default();
        tree.put(Path::new("/d/f"), b"1");
        tree.put(Path::new("g"), b"2");
        let d = tree.lookup(ROOT, os("d")).unwrap();

        assert_eq!(tree.make(d, os("f"), file(), 0o644), Err(Errno::EXIST));
        assert_eq!(tree.rmdir(ROOT, os("d")), Err(Errno::NOTEMPTY));
        assert_eq!(tree.unlink(ROOT, os("d")), Err(Errno::ISDIR));
        assert_eq!(tree.rmdir(ROOT, os("g")), Err(Errno::NOTDIR));
        let old = EntryName { parent: ROOT, name: os("g") };
        let new = EntryName { parent: d, name: os("f") };
        assert_eq!(tree.rename(old, new, false), Err(Errno::EXIST));

        let replaced = tree.lookup(d, os("f")).unwrap();
        tree.rename(old, new, true).unwrap();
        assert_eq!(tree.content(Path::new("d/f")).unwrap(), b"2");
        assert_eq!(tree.content(Path::new("g")), None);
        assert_eq!(tree.node(replaced).unwrap().links, 0);
        assert_eq!(tree.read(replaced, 0, 9).unwrap(), b"1", "a file without a name can still be open");

        let f = tree.lookup(d, os("f")).unwrap();
        tree.link(f, ROOT, os("h")).unwrap();
        assert_eq!(tree.node(f).unwrap().links, 2);
        tree.unlink(d, os("f")).unwrap();
        tree.rmdir(ROOT, os("d")).unwrap();
        assert_eq!(tree.content(Path::new("h")).unwrap(), b"2");
    }
}
