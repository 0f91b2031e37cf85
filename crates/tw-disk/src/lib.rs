//! The one door to the disk.
//!
//! An event loop must never wait for a file. So every file operation goes through a [`Disk`]: it first tries to finish in
//! memory (`openat2(RESOLVE_CACHED)`, `preadv2(RWF_NOWAIT)`), and otherwise becomes a job of a named [`Pool`] of threads,
//! with owned buffers and paths, a [`JobClass`] and a [`JobSource`]. The crate needs no particular runtime: its futures wake
//! whoever polls them.
//!
//! ```no_run
//! # async fn example() -> Result<(), tw_disk::DiskError> {
//! use tw_disk::{Account, Aio, Disk, JobSource, OpenOptions, Pool};
//!
//! let pool = Pool::with_defaults().expect("threads can be started");
//! let disk = Disk::new(pool, Aio::Threads);
//! let mut by = Account::hit(JobSource::of(b"/srv/a"));
//! let file = disk.open(&mut by, c"/srv/a", &OpenOptions::READ).await?;
//! let first = disk.read(&mut by, &file, 0, vec![0; 4096]).await?;
//! # let _ = first; Ok(()) }
//! ```
//!
//! A path of `debug_disk_fault` counts as a disk of its own of which nothing is in memory, so that faults are met by jobs only (`faults`).

mod access_time;
mod account;
mod device;
mod direct;
mod disk;
mod driver;
mod error;
mod faults;
mod file;
mod hot;
mod idle_threads;
mod links;
mod lock;
mod meta;
mod mounts;
mod notice;
mod op;
mod open_options;
mod ops;
mod os;
mod pool;
mod pool_size;
mod put_each;
mod queue;
mod read_ahead;
mod read_window;
mod ring;
mod sandbox_denial;
pub mod sim;
mod stats;
mod task;
mod temp;
mod watch;

tw_base::limits! {
    /// The limits kept here, for documents.
    pub const LIMITS;

    section "disks and files";
    use device::LIMITS;
    use read_ahead::LIMITS;
    use mounts::LIMITS;
    use pool::LIMITS;
    use watch::LIMITS;
    use ring::LIMITS;
    use ops::LIMITS;
    use lock::LIMITS;
}

pub use account::{Account, DiskWait, JobClass, JobSource};
pub use device::{DEVICES_MAX, DeviceStats, Reads, devices};
pub use disk::{Aio, Disk, SocketFd};
pub use driver::{Sent, SentEnd};
pub use error::DiskError;
pub use faults::{FaultCount, FaultEffect, FaultRule, fault_counts, set_fault_rules};
pub use file::{File, Now};
pub use links::{make_log_directories, open_log};
pub use lock::{FileCheck, LOCK_FILE_MAX, LOCK_FILE_MIN, LockedFile, Locks, Refusal, Sending};
pub use meta::{Entry, FileKind, FileMeta, Listing, ListingPart, Space};
pub use notice::Notice;
pub use op::Op;
pub use open_options::{Access, CreateOptions, Existing, Links, OpenOptions, TempOptions, WriteBack};
pub use ops::{Durable, LIST_MAX, PathCalls};
pub use pool::Pool;
pub use pool_size::{DEFAULT_DEVICE_TIMEOUT, DEFAULT_MAX_QUEUE, DEFAULT_NAME, DEFAULT_THREADS, PoolSize};
pub use put_each::{MakeParts, NewFile};
pub use ring::RING_PLACES;
pub use rustix::io::Errno;
pub use sandbox_denial::{AllowedPaths, DenialSource, sandbox_denial, set_allowed_paths};
pub use stats::{HungDevice, OpStats, PoolStats};
pub use temp::TempFile;
