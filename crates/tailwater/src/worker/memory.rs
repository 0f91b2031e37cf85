//! `worker_memory_lock`: keeps the memory that event loops use in RAM.
//!
//! Code is pages of files. When memory is short, the kernel drops those not used lately, and a loop that needs one
//! again waits for the disk in a page fault, which no filter of system calls sees. So the program and its libraries are
//! read in and kept before the first request, all of them: any part may be needed later. Each loop locks the part of
//! its stack that it is going to need. Of the 13 MB of an optimized program and its libraries 8.8 are in use after the
//! first requests anyway; the rest, 4.3 MB, is the cost.
//!
//! The limit for locked memory (`RLIMIT_MEMLOCK`) is 8 MiB on most machines: too little for the program, and all of it
//! would leave nothing for files that the kernel may send (`hot_lock_size`, `tw_disk::Locks`), which can only be kept
//! by locks. The program can be kept in another way: a copy of it is ordinary allocated memory. So it is locked if the
//! limit has room for everything, and copied if not; the stacks of loops and then files get the limit.
//!
//! Allocated memory needs no disk, unless the machine has swap. `on` locks that as well, page by page as it is touched
//! (`MCL_ONFAULT`: memory that the allocator only reserves is not filled). It has its price: locked pages cannot be
//! returned to the system when they are freed. And it requires an unlimited `RLIMIT_MEMLOCK`, because at a limit
//! allocations would fail.

use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use tailwater_commands::output::console::Console;
use tw_base::Errno;
use tw_core::generation::Config;
use tw_core::process::MemoryLock;
use tw_log::Level;
use tw_rt::limits;
use tw_sys::memory;
use tw_sys::program::{self, Copier, Segment};
use tw_sys::secret;

/// The part of a loop's stack that is locked: 256 KiB of its 2 MiB. A request takes some 20.
const STACK_SIZE: usize = 256 << 10;

/// Bytes needed to lock that: also the frames above, and pages at both ends.
const STACK_ROOM: u64 = (STACK_SIZE as u64) + (128 << 10);

/// Bytes for keys of certificates that are loaded later, those of the next configuration beside the present ones: some
/// twenty of RSA. Those that are loaded are locked already.
const ROOM_OF_KEYS: u64 = 256 << 10;

/// Below this limit locking files gains nothing, unless the limit was configured.
const LEAST_OF_FILES: u64 = 1 << 20;

/// Step in which the limit for locked files is found.
const FILES_STEP: u64 = 64 << 10;

/// Locks memory as `config` orders, in place of the earlier locks. `copier` copies the program; without it there are
/// only locks. Privileges may lock more than the limit, as long as the process has them. A refusal of the system is
/// reported once; the server runs without the lock.
pub(crate) fn lock(config: &Config, copier: Option<&Copier>, console: &Console) {
    // Unlocking cannot fail: it takes neither privileges nor resources.
    let _ = munlockall();
    secret::relock();
    let memory_lock = config.main.memory_lock;
    let (all, level) = match memory_lock {
        MemoryLock::Off => return,
        MemoryLock::Auto => (Ok(()), Level::Notice),
        MemoryLock::On => (lock_all(), Level::Alert),
    };
    // Pages that were locked without being in memory are read by now.
    let program = keep_program(config, copier);
    let word = memory_lock.word();
    match all.and(program) {
        Ok(0) => {}
        Ok(copied) => console.report(
            level,
            format_args!(
                "\"worker_memory_lock {word}\": {} KB of the program are copied into memory and not locked, so only swapping \
                 can remove them, because {}",
                copied >> 10,
                limit()
            ),
        ),
        Err(why) => console.report(level, format_args!("\"worker_memory_lock {word}\": {why}; {DANGER}")),
    }
}

/// Consequence of memory that is not locked.
const DANGER: &str = "when memory is short, an event loop may have to wait for a disk";

/// Sets the limit for locked file contents to the value of `config`, as far as the system allows it, behind the
/// stacks of the loops about to be started. Called after the process has become its final user, because privileges to
/// lock more end with the change.
pub(super) fn allow_files(config: &Config, loops_to_start: usize, console: &Console) {
    let wanted_bytes = config.lock_max;
    // Memory that is locked already may stay locked.
    let locked = config.locks.bytes();
    let stacks = match config.main.memory_lock {
        MemoryLock::Off => 0,
        MemoryLock::Auto | MemoryLock::On => STACK_ROOM * loops_to_start as u64,
    };
    let keys = if config.is_secured { ROOM_OF_KEYS } else { 0 };
    let may = |files: u64| {
        let more = (stacks + files).saturating_sub(locked);
        more == 0 || memory::may_lock(usize::try_from(more).unwrap_or(usize::MAX))
    };
    if !may(0) {
        let word = config.main.memory_lock.word();
        let size = stacks >> 10;
        let what = format!("{size} KB for the stacks of {loops_to_start} loops cannot be locked");
        console.report(
            Level::Notice,
            format_args!("\"worker_memory_lock {word}\": {what}, {}; {DANGER}", limit()),
        );
    }
    let allowed = if may(wanted_bytes + keys) {
        wanted_bytes
    } else {
        FILES_STEP * largest(wanted_bytes / FILES_STEP, |steps| may(FILES_STEP * steps + keys))
    };
    let allowed = if allowed < LEAST_OF_FILES.min(wanted_bytes) { 0 } else { allowed };
    config.locks.set_max(allowed);
    if allowed < wanted_bytes {
        let so = match allowed {
            0 => "files are copied to clients although \"sendfile\" is on".to_owned(),
            _ => format!("files beyond {} KB are copied to clients", allowed >> 10),
        };
        let shared = match config.main.memory_lock {
            MemoryLock::Off => "",
            MemoryLock::Auto | MemoryLock::On => ", and \"worker_memory_lock\" comes first",
        };
        console.report(Level::Notice, format_args!("\"hot_lock_size\": {so}, {}{shared}", limit()));
    }
}

/// The largest number up to `max` that will do, or 0, where all below one that will do do so too.
fn largest(max: u64, will_do: impl Fn(u64) -> bool) -> u64 {
    let mut least = 0;
    let mut beyond = max + 1;
    while beyond - least > 1 {
        let middle = least.midpoint(beyond);
        *(if will_do(middle) { &mut least } else { &mut beyond }) = middle;
    }
    least
}

/// Locks the stack of the calling thread, a loop that begins, if the limit leaves room for it: only swap could take it away.
pub(super) fn lock_stack() -> Result<(), Errno> {
    memory::lock_stack(STACK_SIZE).map_err(|error| Errno::from(&error))
}

/// Whatever is touched from now on.
fn lock_all() -> Result<(), String> {
    if limits::locked_memory().is_some() {
        return Err(format!("to lock all memory takes no limit, {}", limit()));
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|errno| format!("mlockall() failed ({})", Errno::from(errno)))
}

/// Keeps the program and its libraries in memory, and returns the number of bytes kept as a copy because a lock would
/// use too much of the limit. Parts that cannot be copied are locked, as far as the limit allows.
fn keep_program(config: &Config, copier: Option<&Copier>) -> Result<usize, String> {
    let parts = program::segments()
        .map_err(|error| format!("open() \"/proc/self/maps\" failed ({})", Errno::from(&error)))?;
    let size: usize = parts.iter().map(Segment::size).sum();
    let stacks = STACK_ROOM * config.main.worker_count() as u64;
    let wanted_bytes = (size as u64).saturating_add(stacks).saturating_add(config.lock_max);
    let is_short = limits::locked_memory().is_some_and(|limit| limit < wanted_bytes);
    // Machines on which all memory is to be locked have swap, where a copy would not stay in memory.
    let copies = is_short && config.main.memory_lock == MemoryLock::Auto;
    let copier = copier.filter(|_| copies);
    let mut copied = 0;
    let mut remaining = 0;
    let mut first = None;
    for part in &parts {
        if copier.is_some_and(|copier| copier.copy(part).is_ok()) {
            copied += part.size();
        } else if let Err(error) = part.lock() {
            remaining += part.size();
            first.get_or_insert(Errno::from(&error));
        }
    }
    match first {
        Some(errno) => {
            Err(format!("mlock() of {} KB of the program failed ({errno}), {}", remaining >> 10, limit()))
        }
        None => Ok(copied),
    }
}

/// Limit for locked memory, as text.
fn limit() -> String {
    match limits::locked_memory() {
        Some(size) => format!("RLIMIT_MEMLOCK is {} KB", size >> 10),
        None => "without RLIMIT_MEMLOCK".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_will_do_is_found() {
        for (max, limit, expected) in
            [(0, 5, 0), (1, 0, 0), (1, 1, 1), (7, 5, 5), (8, 8, 8), (8, 100, 8), (1024, 121, 121)]
        {
            assert_eq!(largest(max, |number| number <= limit), expected, "{max} {limit}");
        }
    }
}
