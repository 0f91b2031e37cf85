//! Files and directories in memory, by inode number, as a file system sees them.
//!
//! Nothing is ever freed: a file without a name can still be open, and the tree lives as long as one test.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};
use std::time::SystemTime;

use rustix::io::Errno;

/// Inode number of the top directory, by the FUSE protocol.
pub(super) const ROOT: u64 = 1;

/// The whole content of a disk.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

/// A file or a directory.
#[derive(Debug)]
pub(super) struct Node {
    /// The name it was last given; what faults are matched with.
    pub(super) name: OsString,
    pub(super) kind: Kind,
    /// Permission bits.
    pub(super) mode: u16,
    pub(super) modified: SystemTime,
    pub(super) changed: SystemTime,
    /// Number of links.
    pub(super) links: u32,
}

#[derive(Debug)]
pub(super) enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<OsString, u64>),
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
    pub(super) fn size(&self) -> u64 {
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
    pub(super) fn node(&self, ino: u64) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::NOENT)
    }

    pub(super) fn node_mut(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    /// The name a node was last given; empty for one that does not exist.
    pub(super) fn name(&self, ino: u64) -> OsString {
        self.nodes.get(&ino).map(|node| node.name.clone()).unwrap_or_default()
    }

    pub(super) fn lookup(&self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        self.entries(parent)?.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Names and numbers in a directory, in order.
    pub(super) fn entries(&self, ino: u64) -> Result<&BTreeMap<OsString, u64>, Errno> {
        match &self.node(ino)?.kind {
            Kind::Dir(entries) => Ok(entries),
            Kind::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// Creates an empty file or directory.
    pub(super) fn make(&mut self, parent: u64, name: &OsStr, kind: Kind, mode: u16) -> Result<u64, Errno> {
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
    pub(super) fn read(&self, ino: u64, offset: u64, size: usize) -> Result<&[u8], Errno> {
        let Kind::File(data) = &self.node(ino)?.kind else { return Err(Errno::ISDIR) };
        let start = usize::try_from(offset).map_or(data.len(), |offset| offset.min(data.len()));
        let end = start.saturating_add(size).min(data.len());
        Ok(&data[start..end])
    }

    pub(super) fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
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

    pub(super) fn truncate(&mut self, ino: u64, size: u64) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        let Kind::File(data) = &mut node.kind else { return Err(Errno::ISDIR) };
        data.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
        node.touch();
        Ok(())
    }

    pub(super) fn unlink(&mut self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let ino = self.lookup(parent, name)?;
        if matches!(self.node(ino)?.kind, Kind::Dir(_)) {
            return Err(Errno::ISDIR);
        }
        self.leave(parent, name)?;
        self.node_mut(ino)?.links -= 1;
        Ok(())
    }

    pub(super) fn rmdir(&mut self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let ino = self.lookup(parent, name)?;
        if !self.entries(ino)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.leave(parent, name)?;
        self.node_mut(ino)?.links = 0;
        Ok(())
    }

    pub(super) fn link(&mut self, ino: u64, parent: u64, name: &OsStr) -> Result<(), Errno> {
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.node(ino)?;
        self.enter(parent, name, ino)?;
        self.node_mut(ino)?.links += 1;
        Ok(())
    }

    /// Renames a file as `rename` does; fails if `replace` is false and the new name exists.
    pub(super) fn rename(
        &mut self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        replace: bool,
    ) -> Result<(), Errno> {
        let ino = self.lookup(from.0, from.1)?;
        match self.lookup(to.0, to.1) {
            Ok(old) if old == ino => return Ok(()),
            Ok(_) if !replace => return Err(Errno::EXIST),
            Ok(old) => match self.node(old)?.kind {
                Kind::File(_) => self.unlink(to.0, to.1)?,
                Kind::Dir(_) => self.rmdir(to.0, to.1)?,
            },
            Err(_) => {}
        }
        self.enter(to.0, to.1, ino)?;
        self.leave(from.0, from.1)?;
        let node = self.node_mut(ino)?;
        to.1.clone_into(&mut node.name);
        node.changed = SystemTime::now();
        Ok(())
    }

    /// Bytes in all files.
    pub(super) fn used(&self) -> u64 {
        self.nodes.values().map(Node::size).sum()
    }

    /// Writes a whole file by path, with the directories above it.
    pub(super) fn put(&mut self, path: &Path, content: &[u8]) {
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
    pub(super) fn content(&self, path: &Path) -> Option<Vec<u8>> {
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
        assert_eq!(tree.rename((ROOT, os("g")), (d, os("f")), false), Err(Errno::EXIST));

        let old = tree.lookup(d, os("f")).unwrap();
        tree.rename((ROOT, os("g")), (d, os("f")), true).unwrap();
        assert_eq!(tree.content(Path::new("d/f")).unwrap(), b"2");
        assert_eq!(tree.content(Path::new("g")), None);
        assert_eq!(tree.node(old).unwrap().links, 0);
        assert_eq!(tree.read(old, 0, 9).unwrap(), b"1", "a file without a name can still be open");

        let f = tree.lookup(d, os("f")).unwrap();
        tree.link(f, ROOT, os("h")).unwrap();
        assert_eq!(tree.node(f).unwrap().links, 2);
        tree.unlink(d, os("f")).unwrap();
        tree.rmdir(ROOT, os("d")).unwrap();
        assert_eq!(tree.content(Path::new("h")).unwrap(), b"2");
    }
}
