//! The program and its libraries as they are mapped in this process: pages of files, which the kernel drops when memory is short.
//!
//! There are two ways to keep them. To lock them (mlock(2)) keeps the pages of the files, and counts against `RLIMIT_MEMLOCK`. To
//! copy them counts against nothing: a page of a private mapping that was written to belongs to the process, and there is no file
//! that it could be read from again, so without swap it stays. Both take the same memory. A copy is at the same addresses, in
//! the same mapping, and can be run and looked at like the page before it.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::mm::{Advice, madvise};

use crate::memory;

/// Bytes that are copied at once.
const COPY_SIZE: usize = 256 << 10;

/// Mapped segment of the program or of a library. It stays mapped until the process ends: nothing here unloads a library.
#[derive(Debug, PartialEq, Eq)]
pub struct Segment {
    kind: Kind,
    addresses: Range<usize>,
}

/// Most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Code,
    Constants,
    /// Writable data.
    Data,
}

/// All segments, code first. Errors: `/proc` cannot be read.
pub fn segments() -> io::Result<Vec<Segment>> {
    Ok(parts_of(&fs::read_to_string("/proc/self/maps")?))
}

impl Segment {
    /// Bytes, in whole pages.
    pub fn size(&self) -> usize {
        self.addresses.len()
    }

    /// Loads the segment and locks it in memory. May wait for disks. Errors: those of [`memory::lock`].
    pub fn lock(&self) -> io::Result<()> {
        memory::lock(&self.addresses)
    }
}

/// Writer that replaces segments by private copies.
#[derive(Debug)]
pub struct Copier(File);

impl Copier {
    /// Errors: a process that gave up its privileges may not (`EACCES`).
    pub fn new() -> io::Result<Self> {
        Ok(Self(File::options().read(true).write(true).open("/proc/self/mem")?))
    }

    /// Loads a segment and replaces it by a private copy. May wait for disks.
    ///
    /// Errors: a kernel that lets nobody write to memory like this (`proc_mem.force_override`), or for what is written one before
    /// 5.14 (`EINVAL`). What was copied by then stays so.
    pub fn copy(&self, part: &Segment) -> io::Result<()> {
        if part.kind == Kind::Data {
            let start = std::ptr::without_provenance_mut(part.addresses.start);
            // SAFETY: pages become the process's own as if they were written to, but with what they hold.
            return Ok(unsafe { madvise(start, part.size(), Advice::LinuxPopulateWrite) }?);
        }
        let mut buf = vec![0; COPY_SIZE.min(part.size())];
        part.addresses.clone().step_by(COPY_SIZE).try_for_each(|at| {
            let piece = &mut buf[..COPY_SIZE.min(part.addresses.end - at)];
            // No thread writes to these pages, so writing back what was read changes nothing.
            self.0.read_exact_at(piece, at as u64)?;
            self.0.write_all_at(piece, at as u64)
        })
    }
}

/// From proc_pid_maps(5): `5500-5600 r-xp 00001000 fe:00 1234 /usr/sbin/tailwater`. A file of which nothing can be run is not a
/// part of the program, and may be unmapped at any time.
fn parts_of(maps: &str) -> Vec<Segment> {
    let mapped: Vec<_> = maps.lines().filter_map(mapped_file).collect();
    let is_program = |path: &str| mapped.iter().any(|(kind, _, of)| *kind == Kind::Code && *of == path);
    let parts = mapped.iter().filter(|(_, _, path)| is_program(path));
    let mut parts: Vec<_> =
        parts.map(|(kind, addresses, _)| Segment { kind: *kind, addresses: addresses.clone() }).collect();
    parts.sort_by_key(|part| part.kind);
    parts
}

fn mapped_file(line: &str) -> Option<(Kind, Range<usize>, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let addresses = fields.next()?;
    let rights = fields.next()?;
    let path = fields.nth(3)?;
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let kind = match rights {
        "r-xp" => Kind::Code,
        "r--p" => Kind::Constants,
        "rw-p" => Kind::Data,
        _ => return None,
    };
    path.starts_with('/').then_some((kind, number(start)?..number(end)?, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::{Lacks, leave_out};

    const MAPS: &str = "\
        55e0-55e4 r--p 00000000 fe:00 11                         /usr/sbin/tailwater\n\
        55e4-55ec r-xp 00004000 fe:00 11                         /usr/sbin/tailwater\n\
        55ec-55ed rw-p 0000c000 fe:00 11                         /usr/sbin/tailwater\n\
        55ed-55f0 rw-p 00000000 00:00 0                          [heap]\n\
        7f00-7f01 ---p 00000000 fe:00 12                         /lib/libc.so.6\n\
        7f01-7f03 r-xp 00001000 fe:00 12                         /lib/libc.so.6 (deleted)\n\
        7f10-7f20 rw-p 00000000 00:00 0\n\
        7f20-7f21 rw-s 00000000 00:0f 9                          anon_inode:[io_uring]\n\
        7f30-7f31 r--s 00000000 fe:00 13                         /srv/html/large\n\
        7f40-7f41 r--p 00000000 fe:00 14                         /usr/lib/locale/locale-archive\n\
        7ffe-7fff r-xp 00000000 00:00 0                          [vdso]\n\
        odd line\n";

    #[test]
    fn code_comes_first_and_other_mappings_are_left_out() {
        let expected = [
            (Kind::Code, 0x55e4..0x55ec),
            (Kind::Code, 0x7f01..0x7f03),
            (Kind::Constants, 0x55e0..0x55e4),
            (Kind::Data, 0x55ec..0x55ed),
        ];
        assert_eq!(parts_of(MAPS), expected.map(|(kind, addresses)| Segment { kind, addresses }));
        assert!(parts_of("").is_empty());
    }

    /// Kilobytes of each part of the program in this process that no file has.
    fn own() -> Vec<(Range<usize>, usize)> {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut results = Vec::new();
        let mut at = None;
        for line in smaps.lines() {
            if let Some((_, addresses, _)) = mapped_file(line) {
                at = Some(addresses);
            } else if let Some(number) = line.strip_prefix("Anonymous:")
                && let Some(addresses) = at.take()
            {
                results.push((addresses, number.trim().trim_end_matches(" kB").parse().unwrap()));
            }
        }
        results
    }

    #[test]
    fn copy_is_identical_and_private() {
        static WRITTEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(7);
        let parts = segments().unwrap();
        let code = |parts: &[Segment]| parts.iter().filter(|part| part.kind == Kind::Code).count();
        assert!(code(&parts) >= 2, "the program and a library: {parts:?}");
        let copier = Copier::new().unwrap();
        let copy = || parts.iter().try_for_each(|part| copier.copy(part));
        if let Err(error) = copy() {
            return leave_out(Lacks::Machine, format_args!("the program cannot be copied: {error}"));
        }
        let own = own();
        for part in &parts {
            let (_, kib) = own.iter().find(|(addresses, _)| *addresses == part.addresses).unwrap();
            assert_eq!(*kib << 10, part.size(), "{part:?}");
        }
        // This is run from it.
        assert_eq!(WRITTEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed), 7);
        assert_eq!(segments().unwrap(), parts);
        copy().unwrap();
    }
}
