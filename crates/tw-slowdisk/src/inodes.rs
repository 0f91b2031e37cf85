//! Inodes of a directory that is passed on: numbers for the kernel, and the way back to names and open files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::store::ROOT;

/// Device and inode number of a file below.
pub(crate) type Identity = (u64, u64);

/// Inodes that the kernel knows, and open files.
#[derive(Debug)]
pub(crate) struct Inodes {
    by_number: HashMap<u64, Inode>,
    by_identity: HashMap<Identity, u64>,
    handles: HashMap<u64, Arc<OwnedFd>>,
    next_number: u64,
    next_handle: u64,
}

#[derive(Debug)]
struct Inode {
    identity: Identity,
    /// Directory and name under which it was found last.
    parent: u64,
    name: OsString,
    /// Uses by the kernel.
    uses: u64,
    handles: Vec<u64>,
}

impl Inodes {
    /// The top directory and nothing else.
    pub(crate) fn new(root: Identity) -> Self {
        let top = Inode { identity: root, parent: ROOT, name: OsString::new(), uses: 1, handles: Vec::new() };
        Self {
            by_number: HashMap::from([(ROOT, top)]),
            by_identity: HashMap::from([(root, ROOT)]),
            handles: HashMap::new(),
            next_number: ROOT + 1,
            next_handle: 1,
        }
    }

    /// Last known name; empty for an inode that is unknown.
    pub(crate) fn name(&self, number: u64) -> OsString {
        self.by_number.get(&number).map(|inode| inode.name.clone()).unwrap_or_default()
    }

    /// Identity of an inode.
    pub(crate) fn identity(&self, number: u64) -> Result<Identity, Errno> {
        self.by_number.get(&number).map(|inode| inode.identity).ok_or(Errno::STALE)
    }

    /// Number of the file that was found under this name, for one more use by the kernel.
    pub(crate) fn add_lookup(&mut self, identity: Identity, parent: u64, name: &OsStr) -> u64 {
        let number = *self.by_identity.entry(identity).or_insert(self.next_number);
        self.next_number = self.next_number.max(number + 1);
        let inode = self.by_number.entry(number).or_insert_with(|| Inode {
            identity,
            parent,
            name: OsString::new(),
            uses: 0,
            handles: Vec::new(),
        });
        inode.uses += 1;
        if number != ROOT {
            inode.parent = parent;
            name.clone_into(&mut inode.name);
        }
        number
    }

    /// Notes the new name of a file, if the kernel knows it.
    pub(crate) fn renamed(&mut self, identity: Identity, parent: u64, name: &OsStr) {
        let number = self.by_identity.get(&identity);
        if let Some(inode) = number.and_then(|number| self.by_number.get_mut(number)) {
            inode.parent = parent;
            name.clone_into(&mut inode.name);
        }
    }

    /// Ends so many uses by the kernel.
    pub(crate) fn forget(&mut self, number: u64, uses: u64) {
        let Some(inode) = self.by_number.get_mut(&number) else { return };
        inode.uses = inode.uses.saturating_sub(uses);
        if inode.uses == 0 && inode.handles.is_empty() && number != ROOT {
            let identity = inode.identity;
            self.by_number.remove(&number);
            self.by_identity.remove(&identity);
        }
    }

    /// Number of the directory that an inode is in, with its name there; `None` for the top.
    pub(crate) fn place(&self, number: u64) -> Result<Option<(u64, OsString)>, Errno> {
        let inode = self.by_number.get(&number).ok_or(Errno::STALE)?;
        Ok((number != ROOT).then(|| (inode.parent, inode.name.clone())))
    }

    /// Path of a directory below the top; empty for the top itself.
    pub(crate) fn path(&self, number: u64) -> Result<OsString, Errno> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let inode = self.by_number.get(&at).ok_or(Errno::STALE)?;
            names.push(&*inode.name);
            at = inode.parent;
            // Directories that were moved below may seem to contain each other for a moment.
            if names.len() > self.by_number.len() {
                return Err(Errno::STALE);
            }
        }
        names.reverse();
        Ok(names.join(OsStr::new("/")))
    }

    /// Handle of a file that was opened.
    pub(crate) fn opened(&mut self, number: u64, file: OwnedFd) -> u64 {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, Arc::new(file));
        if let Some(inode) = self.by_number.get_mut(&number) {
            inode.handles.push(handle);
        }
        handle
    }

    /// The open file of a handle.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OwnedFd>, Errno> {
        self.handles.get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Any open file of an inode.
    pub(crate) fn any_file(&self, number: u64) -> Option<Arc<OwnedFd>> {
        let handle = self.by_number.get(&number)?.handles.first()?;
        self.handles.get(handle).cloned()
    }

    /// Returns `true` if a file is open.
    pub(crate) fn is_open(&self, identity: Identity) -> bool {
        let number = self.by_identity.get(&identity);
        number.and_then(|number| self.by_number.get(number)).is_some_and(|inode| !inode.handles.is_empty())
    }

    /// Takes a handle out: its file, and true if the inode has no other.
    pub(crate) fn closed(&mut self, number: u64, handle: u64) -> Option<(Arc<OwnedFd>, bool)> {
        let file = self.handles.remove(&handle)?;
        let Some(inode) = self.by_number.get_mut(&number) else { return Some((file, true)) };
        inode.handles.retain(|candidate| *candidate != handle);
        let is_last = inode.handles.is_empty();
        self.forget(number, 0);
        Some((file, is_last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_follow_names_and_end_with_their_last_use() {
        let mut inodes = Inodes::new((1, 1));
        let os = |name: &'static str| OsStr::new(name);
        let dir = inodes.add_lookup((1, 2), ROOT, os("d"));
        let file = inodes.add_lookup((1, 3), dir, os("f"));
        assert_eq!(inodes.add_lookup((1, 3), dir, os("f")), file);
        assert_eq!(inodes.path(file).unwrap(), "d/f");
        inodes.renamed((1, 2), ROOT, os("e"));
        assert_eq!(inodes.path(file).unwrap(), "e/f");
        assert_eq!(inodes.place(ROOT), Ok(None));
        inodes.forget(file, 1);
        assert_eq!(inodes.name(file), "f");
        let handle = inodes.opened(file, std::fs::File::open("/dev/null").unwrap().into());
        inodes.forget(file, 1);
        assert!(inodes.is_open((1, 3)) && inodes.any_file(file).is_some());
        assert!(inodes.closed(file, handle).unwrap().1);
        assert_eq!(inodes.path(file), Err(Errno::STALE));
        assert_ne!(inodes.add_lookup((1, 3), dir, os("f")), file, "numbers are not used twice");
    }
}
