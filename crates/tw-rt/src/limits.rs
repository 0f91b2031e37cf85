//! Limits and priority of the process: `worker_rlimit_nofile`, `worker_rlimit_core`, `worker_priority`,
//! `worker_memory_lock`.
//!
//! The kernel keeps the priority per thread and hands it to threads that are started later, so all of this happens
//! before the first worker starts.

use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setpriority_process, setrlimit,
};

/// Largest number of open descriptors of this process; `None` means without limit.
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// `worker_rlimit_nofile`: both limits on open descriptors. Errors: `EPERM` when it raises the hard limit without
/// the privilege to.
pub fn set_open_files(count: u64) -> io::Result<()> {
    set(Resource::Nofile, count)
}

/// `worker_rlimit_core`: both limits on the size of a core file, in bytes.
pub fn set_core_size(size: u64) -> io::Result<()> {
    set(Resource::Core, size)
}

/// Largest amount of memory that this process may lock, in bytes; `None` means without limit.
pub fn locked_memory() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Allows as much memory to be locked as can be had.
pub fn raise_locked_memory() {
    let hard = getrlimit(Resource::Memlock).maximum;
    let raise = |limit| setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit });
    // Without the privilege, the existing limit holds. The code that locks memory reports what is missing.
    let _ = raise(None).or_else(|_| raise(hard));
}

/// Lets a process that gave up its privileges leave a core file, which the kernel otherwise refuses it.
pub fn allow_core_files() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Disables core files of this process, because it has secrets. From then on only root sees what it has open.
pub fn forbid_core_files() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// `worker_priority`: -20 (first) to 19 (last). Errors: `EACCES` when it raises the priority without the privilege
/// to.
pub fn set_priority(nice: i32) -> io::Result<()> {
    Ok(setpriority_process(None, nice)?)
}

fn set(resource: Resource, limit: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?)
}
