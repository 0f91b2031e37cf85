//! Memory that stays: pages that the kernel may not take away (mlock(2)).

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

/// Bytes of a file that are locked or let go of at once. Meanwhile no thread of the process gets other memory, which may take
/// 0.1 ms for so many.
const STEP_SIZE: usize = 1 << 20;

/// Largest size of the frames of the callers, above the frame that locks a stack.
const ABOVE_SIZE: usize = 64 * 1024;

/// Reads in what is mapped at these addresses of this process, and keeps it in memory. May wait for disks.
///
/// Errors: `ENOMEM`, `EAGAIN` or `EPERM` over the limit (`RLIMIT_MEMLOCK`); `ENOMEM` if something of it is not mapped, and then what
/// lies before that is kept all the same.
pub fn lock(addresses: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(addresses.start);
    // SAFETY: nothing is read, written, mapped or unmapped; addresses where nothing is are an error.
    Ok(unsafe { rustix::mm::mlock(start, addresses.len()) }?)
}

/// Pages that are locked in memory and excluded from core files, as long as this exists. Other data in the first and the last
/// page is kept with them.
#[derive(Debug)]
pub struct ConcealedPages {
    pages: Range<usize>,
}

impl ConcealedPages {
    /// Locks the pages of `bytes`, which must not move meanwhile, as far as the limit (`RLIMIT_MEMLOCK`) and the kernel allow.
    pub fn new(bytes: &[u8]) -> Self {
        let page = rustix::param::page_size();
        let start = bytes.as_ptr().addr();
        let end = bytes.as_ptr().addr() + bytes.len();
        let pages = start / page * page..end.div_ceil(page) * page;
        // Memory that cannot be locked is wiped all the same.
        let _ = lock(&pages);
        let this = Self { pages };
        this.advise(Advice::LinuxDontDump);
        this
    }

    fn advise(&self, advice: Advice) {
        let start = std::ptr::without_provenance_mut(self.pages.start);
        // SAFETY: whether pages are part of core files changes nothing that is in them; addresses where nothing is are an error.
        let _ = unsafe { rustix::mm::madvise(start, self.pages.len(), advice) };
    }
}

impl Drop for ConcealedPages {
    fn drop(&mut self) {
        self.advise(Advice::LinuxDoDump);
        let start = std::ptr::without_provenance_mut(self.pages.start);
        // SAFETY: nothing is read, written or unmapped; pages that are not locked stay so.
        let _ = unsafe { rustix::mm::munlock(start, self.pages.len()) };
    }
}

/// Locks the stack of the calling thread in memory, down to `below_size` bytes below its current end.
///
/// Errors: those of [`lock`].
pub fn lock_stack(below_size: usize) -> io::Result<()> {
    let here = (&raw const below_size).addr();
    // The stack above may end anywhere, and the kernel counts it as used already.
    let _ = lock(&(here..here.saturating_add(ABOVE_SIZE)));
    lock(&(here.saturating_sub(below_size)..here))
}

/// Returns true if `len` more bytes may be locked: by the limit, or by a privilege. Locks nothing that takes memory.
pub fn may_lock(len: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address where nothing is, which nobody gets to know.
    let Ok(start) =
        (unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) })
    else {
        return false;
    };
    // SAFETY: nothing is read or written, and no page comes to be: there is none to be locked until somebody touches it.
    let locked = unsafe { rustix::mm::mlock_with(start, len, MlockFlags::ONFAULT) };
    // SAFETY: the mapping that was made here, with its length; nothing refers to it.
    let _ = unsafe { rustix::mm::munmap(start, len) };
    locked.is_ok()
}

/// Maps the first page of a file so that it could be run, and unmaps it, to try if that is allowed.
///
/// Errors: those of `mmap`; `EPERM` in the sandbox.
pub fn try_map_executable(file: BorrowedFd<'_>) -> io::Result<()> {
    const PAGE: usize = 4096;
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: a new mapping at an address where nothing is, which nobody gets to know.
    let start =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE, file, 0) }?;
    // SAFETY: the mapping that was made here, with its length; nothing refers to it.
    Ok(unsafe { rustix::mm::munmap(start, PAGE) }?)
}

/// Mapping of a file that keeps its pages in memory once they are locked. It cannot be read, so a file that became shorter
/// cannot cause a fault.
#[derive(Debug)]
pub struct MappedFile {
    start: usize,
    len: usize,
}

impl MappedFile {
    /// Maps the first `len` bytes, at least one. May write the file's access time, and wait for that.
    ///
    /// Errors: those of `mmap`, such as `ENODEV` where the file system cannot.
    pub fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let at = std::ptr::null_mut();
        let protection = ProtFlags::READ;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address where nothing is. Nobody reads through it, so it does not matter who changes the
        // file, or makes it shorter.
        let start = unsafe { rustix::mm::mmap(at, len, protection, flags, file, 0) }?;
        Ok(Self { start: start.addr(), len })
    }

    /// Reads in what is not in memory, and keeps all of it there until this is dropped. May wait for disks; who gives it a file
    /// that is in memory keeps other threads of the process from waiting for memory meanwhile.
    ///
    /// Errors: those of [`lock`]; `ENOMEM` also if the file is shorter than what is mapped.
    pub fn lock(&self) -> io::Result<()> {
        self.steps().try_for_each(|step| lock(&step))
    }

    fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.start + self.len;
        (self.start..end).step_by(STEP_SIZE).map(move |at| at..end.min(at + STEP_SIZE))
    }
}

impl Drop for MappedFile {
    /// The file may have been removed meanwhile, and have its blocks freed here: not on a loop.
    fn drop(&mut self) {
        for step in self.steps() {
            let start = std::ptr::without_provenance_mut(step.start);
            // SAFETY: a part of the mapping that `new` made, and that nothing refers to; each part goes once.
            let _ = unsafe { rustix::mm::munmap(start, step.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::fs::File;
    use std::os::fd::AsFd;
    use tw_testkit::{Lacks, leave_out};

    /// The flags of the mappings that are meant, by their addresses and the line that begins what is said of them.
    fn flags(is_meant: impl Fn(&Range<usize>, &str) -> bool) -> Vec<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut results = Vec::new();
        let mut is_it = false;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(from, to)| (number(from), number(to))) {
                is_it = is_meant(&(from..to), line);
            }
            results.extend(line.strip_prefix("VmFlags: ").filter(|_| is_it).map(str::to_owned));
        }
        results
    }

    fn has(flags: &str, flag: &str) -> bool {
        flags.split(' ').any(|candidate| candidate == flag)
    }

    /// Returns true if this address is locked. The total says nothing: tests beside this one lock and unlock memory.
    fn is_locked(at: usize) -> bool {
        flags(|range, _| range.contains(&at)).iter().any(|flags| has(flags, "lo"))
    }

    #[test]
    fn locked_pages_are_counted_and_unmapped_ones_are_an_error() {
        // The buffer has whole pages, so that no other memory is affected.
        let kept = vec![1_u8; 64 * 1024];
        let start = kept.as_ptr().addr();
        let middle = kept.as_ptr().addr() + kept.len() / 2;
        assert!(!is_locked(middle));
        if let Err(error) = lock(&(start..start + kept.len())) {
            return leave_out(Lacks::Machine, format_args!("no memory may be locked: {error}"));
        }
        assert!(is_locked(middle));
        assert_eq!(lock(&(0..4096)).unwrap_err().raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        let below = (&raw const start).addr() - 50 * 1024;
        assert!(!is_locked(below));
        lock_stack(100 * 1024).unwrap();
        assert!(is_locked(below));
    }

    #[test]
    fn concealed_pages_are_locked_and_not_in_core_files() {
        // The buffer has whole pages, so that no other memory is affected.
        let kept = vec![1_u8; 64 * 1024];
        // The flags of the mapping that has the middle of it.
        let at = kept.as_ptr().addr() + kept.len() / 2;
        let flags = || flags(|range, _| range.contains(&at)).concat();
        let has = |flag: &str| has(&flags(), flag);
        assert!(!has("dd"));
        let concealed = ConcealedPages::new(&kept);
        assert!(has("dd"), "{:?}", flags());
        if !has("lo") {
            leave_out(Lacks::Machine, "no memory may be locked");
        }
        drop(concealed);
        assert!(!has("dd") && !has("lo"), "{:?}", flags());
    }

    #[test]
    fn a_file_is_locked_as_long_as_it_is_mapped() {
        let dir = tw_testkit::TempDir::new("mapped").unwrap();
        // The file has two steps and a few bytes, which are on a page of their own.
        let path = dir.write("a", vec![1; 2 * STEP_SIZE + 5]).unwrap();
        let file = File::open(&path).unwrap();
        if !may_lock(3 * STEP_SIZE) {
            return leave_out(Lacks::Machine, "no three megabytes may be locked");
        }
        let name = std::fs::canonicalize(&path).unwrap().display().to_string();
        let locked = || {
            let flags = flags(|_, line| line.ends_with(&name));
            flags.iter().map(|flags| has(flags, "lo")).collect::<Vec<_>>()
        };
        let mapped = MappedFile::new(file.as_fd(), 2 * STEP_SIZE + 5).unwrap();
        assert_eq!(locked(), [false]);
        mapped.lock().unwrap();
        assert!(locked().contains(&true) && !locked().contains(&false), "{:?}", locked());
        // Locking a truncated file fails, and no access goes beyond its end.
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        assert_eq!(mapped.lock().unwrap_err().raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        drop(mapped);
        assert!(locked().is_empty(), "{:?}", locked());
        assert!(MappedFile::new(file.as_fd(), 0).is_err());
    }
}
