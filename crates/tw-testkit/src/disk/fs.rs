//! FUSE interface of the disk: each request goes through the faults, then to the tree.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;

use super::fault::{Faults, Op, Verdict, lock};
use super::tree::{Kind, Tree};

/// Size of the disk in `statfs`, in bytes.
const CAPACITY: u64 = 1 << 30;
const BLOCK_SIZE: u32 = 4096;
/// Requests the kernel may have outstanding: more than any test holds, so that those held block no others.
const BACKGROUND_COUNT: u16 = 4096;
/// Handle of all open files, which is not used: files are read and written by inode.
const NO_HANDLE: FileHandle = FileHandle(0);

/// State shared by the test and the file system.
#[derive(Debug, Default)]
pub(super) struct Shared {
    tree: Mutex<Tree>,
    pub(super) faults: Arc<Faults>,
    remember_ns: AtomicU64,
}

/// Handler of FUSE requests.
#[derive(Debug)]
pub(super) struct Front {
    shared: Arc<Shared>,
}

/// A reply that can also be an error.
trait Refuse: Send + 'static {
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty)*) => {$(
        impl Refuse for $reply {
            fn refuse(self, errno: Errno) {
                self.error(fuser::Errno::from_i32(errno.raw_os_error()));
            }
        }
    )*};
}
refuse! { ReplyAttr ReplyCreate ReplyData ReplyDirectory ReplyEmpty ReplyEntry ReplyOpen ReplyStatfs ReplyWrite }

impl Shared {
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.tree)
    }

    pub(super) fn remember(&self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.remember_ns.store(ns, Ordering::Relaxed);
    }

    fn ttl(&self) -> Duration {
        Duration::from_nanos(self.remember_ns.load(Ordering::Relaxed))
    }
}

impl Front {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Performs an operation on the tree and sends the response: now, or when the operation's fault is lifted.
    fn answer<R: Refuse, T>(
        &self,
        op: Op,
        name: &OsStr,
        reply: R,
        operation: impl FnOnce(&mut Tree) -> Result<T, Errno> + Send + 'static,
        send: impl FnOnce(R, Duration, T) + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        let finish = move |reply: R| {
            let answer = operation(&mut shared.tree());
            match answer {
                Ok(answer) => send(reply, shared.ttl(), answer),
                Err(errno) => reply.refuse(errno),
            }
        };
        match self.shared.faults.apply(op, name) {
            Verdict::Go => finish(reply),
            Verdict::Fail(errno) => reply.refuse(errno),
            Verdict::Wait(held) => {
                // The session's thread serves the others meanwhile. If no thread can be started the closure is
                // dropped with the reply in it, and a dropped reply answers EIO.
                let _ = thread::Builder::new().name("held".to_owned()).spawn(move || {
                    held.wait();
                    finish(reply);
                });
            }
        }
    }

    /// As [`Front::answer`], for an operation on a file instead of a name.
    fn answer_for<R: Refuse, T>(
        &self,
        op: Op,
        ino: INodeNo,
        reply: R,
        operation: impl FnOnce(&mut Tree) -> Result<T, Errno> + Send + 'static,
        send: impl FnOnce(R, Duration, T) + Send + 'static,
    ) {
        let name = self.shared.tree().name(ino.0);
        self.answer(op, &name, reply, operation, send);
    }
}

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Both are refused only for values out of range, or by kernels too old to hold lookups one by one.
        let _ = config.set_max_background(BACKGROUND_COUNT);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let operation = by_name(parent, name, |tree, parent, name| {
            let ino = tree.lookup(parent, name)?;
            attr(tree, ino)
        });
        self.answer(Op::Lookup, name, reply, operation, send_entry);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer_for(Op::Getattr, ino, reply, move |tree| attr(tree, ino.0), send_attr);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let operation = move |tree: &mut Tree| {
            if let Some(size) = size {
                tree.truncate(ino.0, size)?;
            }
            let node = tree.node_mut(ino.0)?;
            if let Some(mode) = mode {
                node.mode = permissions(mode);
            }
            match mtime {
                Some(TimeOrNow::SpecificTime(time)) => node.modified = time,
                Some(TimeOrNow::Now) => node.modified = SystemTime::now(),
                None => {}
            }
            attr(tree, ino.0)
        };
        self.answer_for(Op::Setattr, ino, reply, operation, send_attr);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let operation = move |tree: &mut Tree| tree.node(ino.0).map(drop);
        self.answer_for(Op::Open, ino, reply, operation, |reply, _, ()| {
            reply.opened(NO_HANDLE, FopenFlags::empty())
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let operation = move |tree: &mut Tree| tree.read(ino.0, offset, size as usize).map(<[u8]>::to_owned);
        self.answer_for(Op::Read, ino, reply, operation, |reply, _, data| reply.data(&data));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_owned();
        // The kernel never sends more than 16 MiB in one request.
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let operation = move |tree: &mut Tree| tree.write(ino.0, offset, &data);
        self.answer_for(Op::Write, ino, reply, operation, move |reply, _, ()| reply.written(count));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let operation = by_name(parent, name, move |tree, parent, name| {
            let ino = tree.make(parent, name, Kind::File(Vec::new()), permissions(mode))?;
            attr(tree, ino)
        });
        self.answer(Op::Create, name, reply, operation, |reply, ttl, attr| {
            reply.created(&ttl, &attr, Generation(0), NO_HANDLE, FopenFlags::empty());
        });
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let operation = by_name(parent, name, move |tree, parent, name| {
            let ino = tree.make(parent, name, Kind::Dir(BTreeMap::new()), permissions(mode))?;
            attr(tree, ino)
        });
        self.answer(Op::Mkdir, name, reply, operation, send_entry);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.answer(Op::Unlink, name, reply, by_name(parent, name, Tree::unlink), send_nothing);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.answer(Op::Rmdir, name, reply, by_name(parent, name, Tree::rmdir), send_nothing);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return reply.refuse(Errno::INVAL);
        }
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        let to_name = to_name.to_owned();
        let operation = by_name(parent, name, move |tree, parent, name| {
            tree.rename((parent, name), (to.0, &to_name), replace)
        });
        self.answer(Op::Rename, name, reply, operation, send_nothing);
    }

    fn link(&self, _: &Request, ino: INodeNo, to: INodeNo, to_name: &OsStr, reply: ReplyEntry) {
        let operation = by_name(to, to_name, move |tree, parent, name| {
            tree.link(ino.0, parent, name)?;
            attr(tree, ino.0)
        });
        self.answer_for(Op::Link, ino, reply, operation, send_entry);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer_for(Op::Fsync, ino, reply, |_| Ok(()), send_nothing);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer_for(Op::Fsync, ino, reply, |_| Ok(()), send_nothing);
    }

    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.answer_for(Op::Flush, ino, reply, |_| Ok(()), send_nothing);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        let operation = move |tree: &mut Tree| listing(tree, ino.0);
        self.answer_for(Op::Readdir, ino, reply, operation, move |mut reply, _, entries| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            for (index, (ino, kind, name)) in entries.into_iter().enumerate().skip(start) {
                // The offset of an entry is where the next listing goes on.
                if reply.add(INodeNo(ino), index as u64 + 1, kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.answer_for(
            Op::Statfs,
            ino,
            reply,
            |tree| Ok(tree.used()),
            |reply, _, used| {
                let blocks = CAPACITY / u64::from(BLOCK_SIZE);
                let free = blocks.saturating_sub(used.div_ceil(u64::from(BLOCK_SIZE)));
                reply.statfs(blocks, free, free, blocks, free, BLOCK_SIZE, 255, BLOCK_SIZE);
            },
        );
    }
}

/// Owned operation on a name, for a later response.
fn by_name<T>(
    parent: INodeNo,
    name: &OsStr,
    operation: impl FnOnce(&mut Tree, u64, &OsStr) -> Result<T, Errno> + Send + 'static,
) -> impl FnOnce(&mut Tree) -> Result<T, Errno> + Send + 'static {
    let name = name.to_owned();
    move |tree| operation(tree, parent.0, &name)
}

fn send_entry(reply: ReplyEntry, ttl: Duration, attr: FileAttr) {
    reply.entry(&ttl, &attr, Generation(0));
}

fn send_attr(reply: ReplyAttr, ttl: Duration, attr: FileAttr) {
    reply.attr(&ttl, &attr);
}

fn send_nothing(reply: ReplyEmpty, _: Duration, (): ()) {
    reply.ok();
}

fn listing(tree: &Tree, ino: u64) -> Result<Vec<(u64, FileType, OsString)>, Errno> {
    let dots = [".", ".."].map(|name| (ino, FileType::Directory, OsString::from(name)));
    let mut list = Vec::from(dots);
    for (name, &ino) in tree.entries(ino)? {
        list.push((ino, file_type(&tree.node(ino)?.kind), name.clone()));
    }
    Ok(list)
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File(_) => FileType::RegularFile,
        Kind::Dir(_) => FileType::Directory,
    }
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn attr(tree: &Tree, ino: u64) -> Result<FileAttr, Errno> {
    let node = tree.node(ino)?;
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
