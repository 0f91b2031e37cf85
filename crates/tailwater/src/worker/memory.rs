//! `worker_memory_lock`: what event loops run on stays in memory.
//!
//! Code is pages of files. When memory is short, the kernel drops those that nobody used lately, and a loop that comes back to
//! one waits for the disk in a page fault, which no filter of system calls sees. So the program and its libraries are read in
//! and locked before anybody is served, all of them: what was never used may be needed tomorrow. Each loop locks the part of
//! its stack that it is going to need. Of the 13 MB of an optimized program and its libraries 8.8 are in use after the first
//! requests anyway; the rest, 4.3 MB, is what it costs.
//!
//! What is allocated needs no disk, unless the machine has swap. `on` locks that as well, whatever is touched from then on
//! (`MCL_ONFAULT`: what the allocator only reserves is not filled). It has its price: pages that are locked cannot be given back
//! to the system when they are freed. And it needs to be without limit, because at a limit allocations would fail.
//!
//! `hot_lock_size` comes behind that, with what may be locked by then: files that loops have the kernel send (`tw_disk::Locks`).

use std::fs;
use std::ops::Range;

use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use tw_base::Errno;
use tw_core::process::{MainSettings, MemoryLock};
use tw_log::Level;
use tw_rt::limits;
use tw_server::http::generation::Config;
use tw_sys::memory;

use crate::console::Console;

/// The part of a loop's stack that is locked: 256 KiB of its 2 MiB. A request takes some 20.
const STACK_SIZE: usize = 256 << 10;

/// What it takes to lock that: also the frames above, and pages at both ends.
const STACK_ROOM: u64 = (STACK_SIZE as u64) + (128 << 10);

/// With less than that nothing is gained by locking files, unless it is what was asked for.
const LEAST_OF_FILES: u64 = 1 << 20;

/// Does for the process what `main` says, instead of what was done before. Privileges may lock more than the limit: while they
/// are there. What the system refuses is reported once; the server runs without it.
pub(crate) fn lock(main: &MainSettings, console: &Console) {
    // It cannot fail: there is nothing that it could lack.
    let _ = munlockall();
    let (all, level) = match main.memory_lock {
        MemoryLock::Off => return,
        MemoryLock::Auto => (Ok(()), Level::Notice),
        MemoryLock::On => (lock_all(), Level::Alert),
    };
    // Behind that: what was locked without being read in is now.
    let program = lock_program();
    if let Err(why) = all.and(program) {
        console
            .say(level, format_args!("\"worker_memory_lock {}\": {why}; {DANGER}", main.memory_lock.word()));
    }
}

/// What it means that something is not locked.
const DANGER: &str = "when memory is short, an event loop may have to wait for a disk";

/// Lets as much of files be locked as `config` says and may be, instead of what was allowed before, behind the stacks of as
/// many loops as are about to be started. For a process that is who it will be: what privileges may do more ends with them.
pub(super) fn allow_files(config: &Config, loops_to_start: usize, console: &Console) {
    let wanted = config.lock_max;
    // What is locked already may stay.
    let locked = config.locks.bytes();
    let stacks = match config.main.memory_lock {
        MemoryLock::Off => 0,
        MemoryLock::Auto | MemoryLock::On => STACK_ROOM * loops_to_start as u64,
    };
    let may = |files: u64| {
        let more = (stacks + files).saturating_sub(locked);
        more == 0 || memory::may_lock(usize::try_from(more).unwrap_or(usize::MAX))
    };
    if !may(0) {
        let (word, size) = (config.main.memory_lock.word(), stacks >> 10);
        let what = format!("{size} KB for the stacks of {loops_to_start} loops cannot be locked");
        console
            .say(Level::Notice, format_args!("\"worker_memory_lock {word}\": {what}, {}; {DANGER}", limit()));
    }
    let allowed = std::iter::successors(Some(wanted), |size| Some(size / 2))
        .take_while(|size| *size >= LEAST_OF_FILES)
        .find(|size| may(*size));
    let allowed = allowed.unwrap_or(if wanted < LEAST_OF_FILES { wanted } else { 0 });
    config.locks.set_max(allowed);
    if allowed < wanted {
        let so = match allowed {
            0 => "files are copied to clients although \"sendfile\" is on".to_owned(),
            _ => format!("files beyond {} KB are copied to clients", allowed >> 10),
        };
        let shared = match config.main.memory_lock {
            MemoryLock::Off => "",
            MemoryLock::Auto | MemoryLock::On => ", and \"worker_memory_lock\" comes first",
        };
        console.say(Level::Notice, format_args!("\"hot_lock_size\": {so}, {}{shared}", limit()));
    }
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

/// The program and its libraries, as much of them as may be.
fn lock_program() -> Result<(), String> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|error| format!("open() \"/proc/self/maps\" failed ({})", Errno::from(&error)))?;
    let (mut left, mut first) = (0, None);
    for addresses in mapped_files(&maps) {
        if let Err(error) = memory::lock(&addresses) {
            left += addresses.len();
            first.get_or_insert(Errno::from(&error));
        }
    }
    match first {
        Some(errno) => {
            Err(format!("mlock() of {} KB of the program failed ({errno}), {}", left >> 10, limit()))
        }
        None => Ok(()),
    }
}

/// What may be locked, in words.
fn limit() -> String {
    match limits::locked_memory() {
        Some(size) => format!("RLIMIT_MEMLOCK is {} KB", size >> 10),
        None => "without RLIMIT_MEMLOCK".to_owned(),
    }
}

/// Where files are mapped: code first, then constants, then what is written. From proc_pid_maps(5): `5500-5600 r-xp 00001000
/// fe:00 1234 /usr/sbin/tailwater`.
fn mapped_files(maps: &str) -> Vec<Range<usize>> {
    let mut found: Vec<_> = maps.lines().filter_map(mapped_file).collect();
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().map(|(_, addresses)| addresses).collect()
}

fn mapped_file(line: &str) -> Option<(u8, Range<usize>)> {
    let mut fields = line.split_ascii_whitespace();
    let (addresses, rights, path) = (fields.next()?, fields.next()?.as_bytes(), fields.nth(3)?);
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let order = match rights {
        [b'r', _, b'x', ..] => 0,
        [b'r', b'-', ..] => 1,
        [b'r', ..] => 2,
        _ => return None,
    };
    path.starts_with('/').then_some((order, number(start)?..number(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        55e0-55e4 r--p 00000000 fe:00 11                         /usr/sbin/tailwater\n\
        55e4-55ec r-xp 00004000 fe:00 11                         /usr/sbin/tailwater\n\
        55ec-55ed rw-p 0000c000 fe:00 11                         /usr/sbin/tailwater\n\
        55ed-55f0 rw-p 00000000 00:00 0                          [heap]\n\
        7f00-7f01 ---p 00000000 fe:00 12                         /lib/libc.so.6\n\
        7f01-7f03 r-xp 00001000 fe:00 12                         /lib/libc.so.6 (deleted)\n\
        7f10-7f20 rw-p 00000000 00:00 0\n\
        7f20-7f21 rw-s 00000000 00:0f 9                          anon_inode:[io_uring]\n\
        7ffe-7fff r-xp 00000000 00:00 0                          [vdso]\n\
        odd line\n";

    #[test]
    fn code_comes_first_and_what_is_no_file_not_at_all() {
        let expected = [0x55e4..0x55ec, 0x7f01..0x7f03, 0x55e0..0x55e4, 0x55ec..0x55ed];
        assert_eq!(mapped_files(MAPS), expected);
        assert!(mapped_files("").is_empty());
    }
}
