//! The operations of the simulated disk: the same names and shapes as in `os`.

use super::tree::{Passing, PathTarget};
use super::{Node, Sim, State, lock};
use crate::meta::{Entry, FileKind, FileMeta, Listing, ListingPart, Space};
use crate::op::Op;
use crate::open_options::{Access, Existing, Links, OpenOptions, WriteBack};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, MutexGuard};

/// The most a transfer to a socket moves at once.
const SENDFILE_STEP_SIZE: usize = 64 * 1024;

impl Links {
    fn passing(self) -> Passing {
        match self {
            Links::Follow => Passing::All,
            Links::Refuse { from } => Passing::None(from as usize),
            Links::SameOwner { from } => Passing::SameOwner(from as usize),
        }
    }
}

impl Sim {
    fn node(
        self: &Arc<Self>,
        state: &mut State,
        ino: u64,
        access: Access,
    ) -> Result<(Node, FileMeta), Errno> {
        state.tree.open(ino)?;
        let meta = state.tree.meta(ino)?;
        let appends = access == Access::Append;
        Ok((Node { sim: self.clone(), ino, boot: state.tree.boot, appends }, meta))
    }

    /// Begins an operation on an open file.
    fn enter_file(&self, op: Op, node: &Node) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.enter(op)?;
        if node.boot == state.tree.boot { Ok(state) } else { Err(Errno::IO) }
    }

    pub(crate) fn open(
        self: &Arc<Self>,
        path: &CStr,
        options: &OpenOptions,
    ) -> Result<(Node, FileMeta), Errno> {
        let mut state = self.enter(Op::Open)?;
        let place = state.tree.walk(path.to_bytes(), true, options.links.passing())?;
        let ino = place.ino.ok_or(Errno::NOENT)?;
        let is_writing = matches!(options.access, Access::ReadWrite | Access::Append);
        if is_writing && state.tree.get(ino)?.kind == FileKind::Directory {
            return Err(Errno::ISDIR);
        }
        self.node(&mut state, ino, options.access)
    }

    pub(crate) fn open_now(
        self: &Arc<Self>,
        path: &CStr,
        options: &OpenOptions,
    ) -> Option<Result<(Node, FileMeta), Errno>> {
        if matches!(options.access, Access::ReadWrite | Access::Append) {
            return None;
        }
        let mut state = self.enter_now(Op::Open)?;
        let path_target = state.tree.walk(path.to_bytes(), true, options.links.passing());
        match path_target.and_then(|place| place.ino.ok_or(Errno::NOENT)) {
            Err(errno) => Some(Err(errno)),
            Ok(ino) if state.tree.get(ino).is_ok_and(|inode| inode.is_warm) => {
                Some(self.node(&mut state, ino, options.access))
            }
            Ok(_) => None,
        }
    }

    pub(crate) fn probe_now(&self, path: &CStr) -> Option<Result<FileMeta, Errno>> {
        let state = self.enter_now(Op::Stat)?;
        match state.tree.find(path.to_bytes(), true) {
            Err(errno) => Some(Err(errno)),
            Ok(ino) if state.tree.get(ino).is_ok_and(|inode| inode.is_warm) => Some(state.tree.meta(ino)),
            Ok(_) => None,
        }
    }

    pub(crate) fn create(
        self: &Arc<Self>,
        path: &CStr,
        access: Access,
        existing: Existing,
        mode: u32,
    ) -> Result<(Node, FileMeta), Errno> {
        let mut state = self.enter(Op::Create)?;
        let place = state.tree.walk(path.to_bytes(), existing != Existing::Fail, Passing::All)?;
        let ino = match (place.ino, existing) {
            (Some(_), Existing::Fail) => return Err(Errno::EXIST),
            (Some(ino), _) if state.tree.get(ino)?.kind == FileKind::Directory => return Err(Errno::ISDIR),
            (Some(ino), Existing::Keep) => ino,
            (Some(ino), Existing::Truncate) => {
                state.resize(ino, 0)?;
                ino
            }
            (None, _) => {
                let ino = state.tree.add(FileKind::File, mode & 0o7777, 0);
                state.tree.change(vec![(place.dir, place.name, Some(ino))])?;
                ino
            }
        };
        self.node(&mut state, ino, access)
    }

    pub(crate) fn create_nameless(
        self: &Arc<Self>,
        dir: &CStr,
        mode: u32,
    ) -> Result<(Node, FileMeta), Errno> {
        let mut state = self.enter(Op::Create)?;
        let dir = state.tree.find(dir.to_bytes(), true)?;
        if state.tree.get(dir)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let ino = state.tree.add(FileKind::File, mode & 0o7777, 0);
        self.node(&mut state, ino, Access::ReadWrite)
    }

    pub(crate) fn stat(&self, path: &CStr, follow: bool) -> Result<FileMeta, Errno> {
        let mut state = self.enter(if follow { Op::Stat } else { Op::StatLink })?;
        let ino = state.tree.find(path.to_bytes(), follow)?;
        state.tree.get_mut(ino)?.is_warm = true;
        state.tree.meta(ino)
    }

    pub(crate) fn fstat_now(&self, node: &Node) -> Result<FileMeta, Errno> {
        self.enter_file(Op::Fstat, node)?.tree.meta(node.ino)
    }

    pub(crate) fn list(&self, path: &CStr, max: usize, links_from: Option<u32>) -> Result<Listing, Errno> {
        let state = self.enter(Op::List)?;
        let passing = links_from.map_or(Passing::All, |from| Passing::None(from as usize));
        let dir = state.tree.walk(path.to_bytes(), true, passing)?.ino.ok_or(Errno::NOENT)?;
        let names = state.tree.names(dir)?;
        let mut listing = Listing { entries: Vec::new(), truncated: names.len() > max, hidden_by: None };
        for (name, ino) in names.into_iter().take(max) {
            let path = [path.to_bytes(), b"/", &name].concat();
            let meta = if links_from.is_none() {
                state.tree.meta(state.tree.find(&path, true).unwrap_or(ino))?
            } else {
                state.tree.meta(ino)?
            };
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            listing.entries.push(Entry { name, meta });
        }
        Ok(listing)
    }

    /// Parts of two names.
    pub(crate) fn list_part(&self, node: &Node, from: u64) -> Result<ListingPart, Errno> {
        const PART: usize = 2;
        let state = self.enter_file(Op::List, node)?;
        let names = state.tree.names(node.ino)?;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(names.len());
        let mut part = ListingPart::default();
        for (name, ino) in names.into_iter().skip(from).take(PART) {
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            part.entries.push(Entry { name, meta: state.tree.meta(ino)? });
        }
        part.next = (!part.entries.is_empty()).then_some((from + part.entries.len()) as u64);
        Ok(part)
    }

    pub(crate) fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.enter_file(Op::Read, node)?;
        state.tree.get_mut(node.ino)?.is_warm = true;
        state.copy_out(node.ino, offset, buf)
    }

    pub(crate) fn read_now(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Option<Result<usize, Errno>> {
        let mut state = self.enter_now(Op::Read)?;
        let is_here =
            node.boot == state.tree.boot && state.tree.get(node.ino).is_ok_and(|inode| inode.is_warm);
        is_here.then(|| state.copy_out(node.ino, offset, buf))
    }

    pub(crate) fn write_parts(
        &self,
        node: &Node,
        offset: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let data: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.write(node, Some(offset), &data)
    }

    pub(crate) fn write(&self, node: &Node, offset: Option<u64>, data: &[u8]) -> Result<usize, Errno> {
        let mut state = self.enter_file(Op::Write, node)?;
        let State { tree, faults, rng, .. } = &mut *state;
        let size = tree.get(node.ino)?.data.len();
        let offset = match offset {
            Some(offset) if !node.appends => usize::try_from(offset).map_err(|_| Errno::FBIG)?,
            _ => size,
        };
        let mut len = data.len();
        if len > 1 && rng.happens(faults.short) {
            len = 1 + rng.below(len as u64 - 1) as usize;
        }
        let room = tree.capacity.saturating_sub(tree.used());
        let growth = (offset + len).saturating_sub(size) as u64;
        if growth > room {
            len = len.saturating_sub((growth - room) as usize);
        }
        if len == 0 && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        let now_ns = tree.now_ns();
        let inode = tree.get_mut(node.ino)?;
        if inode.data.len() < offset + len {
            inode.data.resize(offset + len, 0);
        }
        inode.data[offset..offset + len].copy_from_slice(&data[..len]);
        (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        Ok(len)
    }

    pub(crate) fn mkdir(&self, path: &CStr, mode: u32) -> Result<(), Errno> {
        let mut state = self.enter(Op::Mkdir)?;
        let place = state.tree.walk(path.to_bytes(), false, Passing::All)?;
        if place.ino.is_some() {
            return Err(Errno::EXIST);
        }
        let ino = state.tree.add(FileKind::Directory, mode & 0o7777, 0);
        state.tree.change(vec![(place.dir, place.name, Some(ino))])
    }

    pub(crate) fn rename(&self, from: &CStr, to: &CStr) -> Result<(), Errno> {
        let mut state = self.enter(Op::Rename)?;
        let old = state.tree.walk(from.to_bytes(), false, Passing::All)?;
        let new = state.tree.walk(to.to_bytes(), false, Passing::All)?;
        let ino = old.ino.ok_or(Errno::NOENT)?;
        if new.ino == Some(ino) {
            return Ok(());
        }
        if let Some(there) = new.ino {
            let is_dir = state.tree.get(ino)?.kind == FileKind::Directory;
            match (is_dir, state.tree.get(there)?.kind == FileKind::Directory) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !state.tree.is_empty_dir(there)? => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        state.tree.change(vec![(new.dir, new.name, Some(ino)), (old.dir, old.name, None)])
    }

    pub(crate) fn rename_new(&self, from: &CStr, to: &CStr) -> Result<(), Errno> {
        let mut state = self.enter(Op::Rename)?;
        let old = state.tree.walk(from.to_bytes(), false, Passing::All)?;
        let new = state.tree.walk(to.to_bytes(), false, Passing::All)?;
        let ino = old.ino.ok_or(Errno::NOENT)?;
        if new.ino.is_some() {
            return Err(Errno::EXIST);
        }
        state.tree.change(vec![(new.dir, new.name, Some(ino)), (old.dir, old.name, None)])
    }

    pub(crate) fn link(&self, from: &CStr, to: &CStr) -> Result<(), Errno> {
        let mut state = self.enter(Op::Link)?;
        let ino = state.tree.find(from.to_bytes(), false)?;
        let new = state.tree.walk(to.to_bytes(), false, Passing::All)?;
        if new.ino.is_some() {
            return Err(Errno::EXIST);
        }
        if state.tree.get(ino)?.kind == FileKind::Directory {
            return Err(Errno::PERM);
        }
        state.tree.change(vec![(new.dir, new.name, Some(ino))])
    }

    pub(crate) fn unlink(&self, path: &CStr) -> Result<(), Errno> {
        self.unlink_passing(path, Passing::All)
    }

    pub(crate) fn unlink_below(&self, path: &CStr, from: u32) -> Result<(), Errno> {
        self.unlink_passing(path, Passing::None(from as usize))
    }

    fn unlink_passing(&self, path: &CStr, passing: Passing) -> Result<(), Errno> {
        let mut state = self.enter(Op::Unlink)?;
        let PathTarget { dir, name, ino } = state.tree.walk(path.to_bytes(), false, passing)?;
        if state.tree.get(ino.ok_or(Errno::NOENT)?)?.kind == FileKind::Directory {
            return Err(Errno::ISDIR);
        }
        state.tree.change(vec![(dir, name, None)])
    }

    pub(crate) fn rmdir(&self, path: &CStr) -> Result<(), Errno> {
        self.rmdir_passing(path, Passing::All)
    }

    pub(crate) fn rmdir_below(&self, path: &CStr, from: u32) -> Result<(), Errno> {
        self.rmdir_passing(path, Passing::None(from as usize))
    }

    fn rmdir_passing(&self, path: &CStr, passing: Passing) -> Result<(), Errno> {
        let mut state = self.enter(Op::Rmdir)?;
        let PathTarget { dir, name, ino } = state.tree.walk(path.to_bytes(), false, passing)?;
        let ino = ino.ok_or(Errno::NOENT)?;
        if state.tree.get(ino)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        if !state.tree.is_empty_dir(ino)? {
            return Err(Errno::NOTEMPTY);
        }
        state.tree.change(vec![(dir, name, None)])
    }

    pub(crate) fn fsync(&self, node: &Node, _data_only: bool) -> Result<(), Errno> {
        self.enter_file(Op::Fsync, node)?.tree.sync_data(node.ino)
    }

    pub(crate) fn write_back(&self, node: &Node, options: &WriteBack) -> Result<(), Errno> {
        match self.enter_file(Op::WriteBack, node) {
            Ok(mut state) => {
                if options.needless_to > 0 {
                    state.tree.get_mut(node.ino)?.is_warm = false;
                }
                Ok(())
            }
            Err(errno) => {
                let mut state = lock(&self.state);
                if node.boot == state.tree.boot {
                    let State { tree, rng, .. } = &mut *state;
                    let parts = [&options.finish, &options.begin].into_iter().filter(|part| !part.is_empty());
                    let from = parts.map(|part| part.start).min().unwrap_or(u64::MAX);
                    tree.lose(node.ino, from, rng);
                }
                Err(errno)
            }
        }
    }

    pub(crate) fn sync_dir(&self, path: &CStr) -> Result<(), Errno> {
        let mut state = self.enter(Op::Fsync)?;
        let dir = state.tree.find(path.to_bytes(), true)?;
        if state.tree.get(dir)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        state.tree.sync_names();
        Ok(())
    }

    pub(crate) fn set_mtime(&self, node: &Node, sec: i64, nsec: u32) -> Result<(), Errno> {
        let mut state = self.enter_file(Op::SetTimes, node)?;
        let now_ns = state.tree.now_ns();
        let inode = state.tree.get_mut(node.ino)?;
        inode.mtime_ns = u64::try_from(sec).unwrap_or(0).saturating_mul(1_000_000_000) + u64::from(nsec);
        inode.ctime_ns = now_ns;
        Ok(())
    }

    pub(crate) fn set_mode(&self, node: &Node, mode: u32) -> Result<(), Errno> {
        let mut state = self.enter_file(Op::SetMode, node)?;
        let now_ns = state.tree.now_ns();
        let inode = state.tree.get_mut(node.ino)?;
        (inode.mode, inode.ctime_ns) = (mode & 0o7777, now_ns);
        Ok(())
    }

    pub(crate) fn truncate(&self, node: &Node, size: u64) -> Result<(), Errno> {
        let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
        self.enter_file(Op::Truncate, node)?.resize(node.ino, size)
    }

    pub(crate) fn space(&self, path: &CStr) -> Result<Space, Errno> {
        let state = self.enter(Op::Space)?;
        state.tree.find(path.to_bytes(), true)?;
        let total = state.tree.capacity;
        let free = total.saturating_sub(state.tree.used());
        Ok(Space { total, free, available: free, block_size: 4096 })
    }

    pub(crate) fn readlink(&self, path: &CStr) -> Result<CString, Errno> {
        let state = self.enter(Op::Readlink)?;
        let inode = state.tree.get(state.tree.find(path.to_bytes(), false)?)?;
        if inode.kind != FileKind::Symlink {
            return Err(Errno::INVAL);
        }
        CString::new(inode.data.clone()).map_err(|_| Errno::INVAL)
    }

    pub(crate) fn realpath(&self, path: &CStr) -> Result<CString, Errno> {
        let state = self.enter(Op::Realpath)?;
        let ino = state.tree.find(path.to_bytes(), true)?;
        CString::new(state.tree.path_of(ino).ok_or(Errno::NOENT)?).map_err(|_| Errno::INVAL)
    }

    pub(crate) fn sendfile(
        &self,
        socket: BorrowedFd<'_>,
        node: &Node,
        offset: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut step = vec![0; len.min(SENDFILE_STEP_SIZE)];
        let n = self.enter_file(Op::Sendfile, node)?.copy_out(node.ino, offset, &mut step)?;
        // Outside the lock: the socket is real.
        if n == 0 { Ok(0) } else { rustix::io::write(socket, &step[..n]) }
    }
}

impl State {
    fn copy_out(&mut self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.tree.get(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(Errno::ISDIR);
        }
        let rest = usize::try_from(offset).ok().and_then(|at| inode.data.get(at..)).unwrap_or_default();
        let mut n = rest.len().min(buf.len());
        if n > 1 && self.rng.happens(self.faults.short) {
            n = 1 + self.rng.below(n as u64 - 1) as usize;
        }
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn resize(&mut self, ino: u64, size: usize) -> Result<(), Errno> {
        let now_ns = self.tree.now_ns();
        let inode = self.tree.get_mut(ino)?;
        inode.data.resize(size, 0);
        (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        Ok(())
    }
}
