//! FUSE interface of the disk: each request goes through the faults, then to the content.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;

use crate::fault::{Faults, Op, Verdict, lock};
use crate::store::{Change, DirEntry, EntryName, FreeSpace, Owner, Store};

/// Requests the kernel may have outstanding: more than any test holds, so that those held block no others.
const BACKGROUND_COUNT: u16 = 4096;
/// Stack of a thread that holds an operation. There may be thousands of them.
const HELD_STACK_SIZE: usize = 256 << 10;

/// State shared by the owner of the mount and the file system.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    pub(crate) store: S,
    pub(crate) faults: Arc<Faults>,
    remember_ns: AtomicU64,
    /// Names in open directories, as of the last time that they were read from the beginning.
    listings: Mutex<HashMap<u64, Arc<[DirEntry]>>>,
    next_listing: AtomicU64,
}

/// Handler of FUSE requests.
#[derive(Debug)]
pub(crate) struct Front<S> {
    shared: Arc<Shared<S>>,
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

impl<S> Shared<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            faults: Arc::default(),
            remember_ns: AtomicU64::new(0),
            listings: Mutex::default(),
            next_listing: AtomicU64::new(0),
        }
    }

    pub(crate) fn remember(&self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.remember_ns.store(ns, Ordering::Relaxed);
    }

    fn ttl(&self) -> Duration {
        Duration::from_nanos(self.remember_ns.load(Ordering::Relaxed))
    }
}

impl<S: Store> Shared<S> {
    /// Room on the disk, which is full with what the settings say.
    fn room(&self) -> Result<FreeSpace, Errno> {
        let mut room = self.store.room()?;
        if let Some(capacity) = self.faults.settings().capacity() {
            let size = u64::from(room.block_size.max(1));
            let all = (capacity / size).min(room.blocks[0]);
            let free = all.saturating_sub(self.store.used().div_ceil(size));
            room.blocks = [all, free.min(room.blocks[1]), free.min(room.blocks[2])];
        }
        Ok(room)
    }

    /// Entries of an open directory from `offset` on; read anew from the beginning.
    fn listing(&self, ino: u64, handle: u64, offset: u64) -> Result<Arc<[DirEntry]>, Errno> {
        if offset > 0
            && let Some(listing) = lock(&self.listings).get(&handle)
        {
            return Ok(Arc::clone(listing));
        }
        let listing: Arc<[DirEntry]> = self.store.list(ino)?.into();
        lock(&self.listings).insert(handle, Arc::clone(&listing));
        Ok(listing)
    }
}

impl<S: Store> Front<S> {
    pub(crate) fn new(shared: Arc<Shared<S>>) -> Self {
        Self { shared }
    }

    /// Performs an operation on the content and sends the response: now, or when the operation's fault is lifted.
    fn answer<R: Refuse, T>(
        &self,
        op: Op,
        name: &OsStr,
        reply: R,
        operation: impl FnOnce(&Shared<S>) -> Result<T, Errno> + Send + 'static,
        send: impl FnOnce(R, Duration, T) + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        let finish = move |reply: R| match operation(&shared) {
            Ok(answer) => send(reply, shared.ttl(), answer),
            Err(errno) => reply.refuse(errno),
        };
        match self.shared.faults.apply(op, name, || self.shared.store.used()) {
            Verdict::Go => finish(reply),
            Verdict::Fail(errno) => reply.refuse(errno),
            Verdict::Wait(held_operation, error) => {
                // The session's threads serve the others meanwhile. If no thread can be started the closure is
                // dropped with the reply in it, and a dropped reply answers EIO.
                let thread = thread::Builder::new().name("held".to_owned()).stack_size(HELD_STACK_SIZE);
                let _ = thread.spawn(move || {
                    held_operation.wait();
                    match error {
                        Some(errno) => reply.refuse(errno),
                        None => finish(reply),
                    }
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
        operation: impl FnOnce(&Shared<S>) -> Result<T, Errno> + Send + 'static,
        send: impl FnOnce(R, Duration, T) + Send + 'static,
    ) {
        let name = self.shared.store.name(ino.0);
        self.answer(op, &name, reply, operation, send);
    }
}

impl<S: Store> Filesystem for Front<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // These calls fail only for values out of range, or on kernels too old to hold lookups one by one.
        let _ = config.set_max_background(BACKGROUND_COUNT);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let operation =
            by_name(parent, name, |shared: &Shared<S>, at| shared.store.lookup(at.parent, at.name));
        self.answer(Op::Lookup, name, reply, operation, send_entry);
    }

    fn forget(&self, _: &Request, ino: INodeNo, uses: u64) {
        self.shared.store.forget(ino.0, uses);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer_for(Op::Getattr, ino, reply, move |shared| shared.store.attr(ino.0), send_attr);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let accessed = atime.map(time);
        let modified = mtime.map(time);
        let handle = handle.map(|handle| handle.0);
        let change = Change { mode, uid, gid, size, accessed, modified, handle };
        let operation = move |shared: &Shared<S>| shared.store.change(ino.0, &change);
        self.answer_for(Op::Setattr, ino, reply, operation, send_attr);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let operation = move |shared: &Shared<S>| shared.store.link_target(ino.0);
        self.answer_for(Op::Readlink, ino, reply, operation, |reply, _, target| {
            reply.data(target.as_encoded_bytes());
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let operation = move |shared: &Shared<S>| shared.store.open(ino.0, flags.0);
        self.answer_for(Op::Open, ino, reply, operation, |reply, _, handle| {
            reply.opened(FileHandle(handle), FopenFlags::empty())
        });
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.shared.store.close(ino.0, handle.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let operation = move |shared: &Shared<S>| shared.store.read(ino.0, handle.0, offset, size as usize);
        self.answer_for(Op::Read, ino, reply, operation, |reply, _, data| reply.data(&data));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
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
        let operation = move |shared: &Shared<S>| shared.store.write(ino.0, handle.0, offset, &data);
        self.answer_for(Op::Write, ino, reply, operation, move |reply, _, ()| reply.written(count));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let owner = owner(request);
        let operation =
            by_name(parent, name, move |shared: &Shared<S>, at| shared.store.create(at, mode, flags, owner));
        self.answer(Op::Create, name, reply, operation, |reply, ttl, (attr, handle)| {
            reply.created(&ttl, &attr, Generation(0), FileHandle(handle), FopenFlags::empty());
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let owner = owner(request);
        let operation =
            by_name(parent, name, move |shared: &Shared<S>, at| shared.store.make_dir(at, mode, owner));
        self.answer(Op::Mkdir, name, reply, operation, send_entry);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let owner = owner(request);
        let target = target.to_owned();
        let operation =
            by_name(parent, name, move |shared: &Shared<S>, at| shared.store.make_link(at, &target, owner));
        self.answer(Op::Link, name, reply, operation, send_entry);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let operation = by_name(parent, name, |shared: &Shared<S>, at| shared.store.unlink(at));
        self.answer(Op::Unlink, name, reply, operation, send_nothing);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let operation = by_name(parent, name, |shared: &Shared<S>, at| shared.store.remove_dir(at));
        self.answer(Op::Rmdir, name, reply, operation, send_nothing);
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
        let operation = by_name(parent, name, move |shared: &Shared<S>, from| {
            let to = EntryName { parent: to.0, name: &to_name };
            shared.store.rename(from, to, replace)
        });
        self.answer(Op::Rename, name, reply, operation, send_nothing);
    }

    fn link(&self, _: &Request, ino: INodeNo, to: INodeNo, to_name: &OsStr, reply: ReplyEntry) {
        let operation = by_name(to, to_name, move |shared: &Shared<S>, at| shared.store.link(ino.0, at));
        self.answer_for(Op::Link, ino, reply, operation, send_entry);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let operation = move |shared: &Shared<S>| shared.store.sync(ino.0, handle.0, data_only);
        self.answer_for(Op::Fsync, ino, reply, operation, send_nothing);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer_for(Op::Fsync, ino, reply, move |shared| shared.store.sync_dir(ino.0), send_nothing);
    }

    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.answer_for(Op::Flush, ino, reply, |_| Ok(()), send_nothing);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let handle = self.shared.next_listing.fetch_add(1, Ordering::Relaxed);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        let operation = move |shared: &Shared<S>| shared.listing(ino.0, handle.0, offset);
        self.answer_for(Op::Readdir, ino, reply, operation, move |mut reply, _, entries| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            for (index, entry) in entries.iter().enumerate().skip(start) {
                // The offset of an entry is where the next listing goes on.
                if reply.add(INodeNo(entry.ino), index as u64 + 1, entry.kind, &entry.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        lock(&self.shared.listings).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let operation = |shared: &Shared<S>| shared.room();
        self.answer_for(Op::Statfs, ino, reply, operation, |reply, _, room| {
            let FreeSpace { block_size, blocks: [all, free, available], files, free_files } = room;
            reply.statfs(all, free, available, files, free_files, block_size, 255, block_size);
        });
    }
}

/// Owned operation on a name, for a later response.
fn by_name<S, T>(
    parent: INodeNo,
    name: &OsStr,
    operation: impl FnOnce(&Shared<S>, EntryName<'_>) -> Result<T, Errno> + Send + 'static,
) -> impl FnOnce(&Shared<S>) -> Result<T, Errno> + Send + 'static {
    let name = name.to_owned();
    move |shared| operation(shared, EntryName { parent: parent.0, name: &name })
}

fn owner(request: &Request) -> Owner {
    Owner { uid: request.uid(), gid: request.gid() }
}

fn time(time: TimeOrNow) -> Option<SystemTime> {
    match time {
        TimeOrNow::SpecificTime(time) => Some(time),
        TimeOrNow::Now => None,
    }
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
