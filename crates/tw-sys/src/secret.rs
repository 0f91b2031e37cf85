//! Memory of the library of cryptography (aws-lc): blocks of the program's allocator, and a vault for keys.
//!
//! By itself it takes glibc's allocator, which opens a file in `/proc` when it shrinks: no loop may do that. What a thread has
//! it allocate [`within`] the vault lies on pages that are kept in memory as far as the limit (`RLIMIT_MEMLOCK`) allows,
//! and out of core files. Whatever it frees is wiped, as it does itself.
//!
//! ```text
//! block:  mark · size · what it asked for          the mark tells where the block is from
//! vault:  steps of STEP_SIZE, locked one after the other ─ pages, each of one class ─ blocks that are free, in a list
//! ```

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memory;

/// Addresses of the vault. A key of RSA takes some 12 KB, one of ECDSA one.
const VAULT_SIZE: usize = 32 << 20;
/// Bytes that are locked at once.
const STEP_SIZE: usize = 64 << 10;
const PAGE_SIZE: usize = 4 << 10;
/// The smallest and the largest block. Larger ones are no keys.
const BLOCK_MIN: usize = 32;
const CLASSES: usize = 8;

/// In front of each block: its mark and its size. The library has a size at the same place.
const HEADER_SIZE: usize = 16;
/// No size of a block of glibc, which stands there if the library got it before it was told about this.
const PLAIN: u64 = 0xa11c_b10c_7e11_0001;
const VAULTED: u64 = 0xa11c_b10c_7e11_0002;

thread_local! {
    static IS_WITHIN: Cell<bool> = const { Cell::new(false) };
}

static VAULT: Mutex<Vault> = Mutex::new(Vault { start: 0, used: 0, locked: 0, free: [0; CLASSES] });

/// Has the library use this memory from now on; `false` if that was said before. First of all, before there are threads.
pub fn install() -> bool {
    // SAFETY: these do what malloc, realloc and free do. A block from before is told by its mark.
    unsafe { aws_lc_sys::CRYPTO_set_mem_functions(Some(allocate), Some(resize), Some(release)) == 1 }
}

/// Has what the library allocates for `work`, on this thread, be in the vault, as far as there is room. May wait, for the lock of
/// memory: not for loops. Without [`install`] it is where it always is.
pub fn within<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_WITHIN.set(self.0);
        }
    }
    let _before = Before(IS_WITHIN.replace(true));
    work()
}

/// Locks the vault again after everything was unlocked (munlockall(2)), as far as the limit allows.
pub fn relock() {
    let mut vault = vault();
    let start = vault.start;
    let used = vault.used.next_multiple_of(STEP_SIZE);
    vault.locked = (0..used)
        .step_by(STEP_SIZE)
        .filter(|step| memory::lock(&(start + step..start + step + STEP_SIZE)).is_ok())
        .count();
}

/// Bytes of the vault that are locked.
pub fn locked() -> usize {
    vault().locked * STEP_SIZE
}

fn vault() -> MutexGuard<'static, Vault> {
    VAULT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory for keys. It is never given back: the next keys get it.
struct Vault {
    /// Start address of the memory; 0 before the first block.
    start: usize,
    /// Bytes of pages that have a class.
    used: usize,
    /// Steps that are locked.
    locked: usize,
    /// The first free block of each class, which has the address of the next one; 0 is none.
    free: [usize; CLASSES],
}

impl Vault {
    /// A block of at least this size; nothing, if there is no room or it is too large.
    fn take(&mut self, size: usize) -> Option<*mut u8> {
        let class = class(size)?;
        if self.free[class] == 0 {
            self.grow(class)?;
        }
        let block = ptr::with_exposed_provenance_mut::<usize>(self.free[class]);
        // SAFETY: a block of the vault that is free, so nobody else has it, and that has the address of the next one.
        self.free[class] = unsafe { block.read() };
        Some(block.cast())
    }

    /// Takes back a block of this size, which was wiped.
    fn put(&mut self, block: *mut u8, size: usize) {
        let Some(class) = class(size) else { return };
        // SAFETY: a block of the vault that nobody has any more, large enough for an address and aligned to it.
        unsafe { block.cast::<usize>().write(self.free[class]) }
        self.free[class] = block.expose_provenance();
    }

    /// Makes a page into free blocks.
    fn grow(&mut self, class: usize) -> Option<()> {
        if self.start == 0 {
            self.start = reserve()?;
        }
        if self.used == VAULT_SIZE {
            return None;
        }
        if self.used.is_multiple_of(STEP_SIZE) {
            let step = self.start + self.used;
            // Memory that cannot be locked is still wiped, and in no core file.
            self.locked += usize::from(memory::lock(&(step..step + STEP_SIZE)).is_ok());
        }
        let page = self.start + self.used;
        self.used += PAGE_SIZE;
        let size = BLOCK_MIN << class;
        for block in (page..page + PAGE_SIZE).step_by(size).rev() {
            self.put(ptr::with_exposed_provenance_mut(block), size);
        }
        Some(())
    }
}

/// Blocks of a class are twice as large as those of the one before.
fn class(size: usize) -> Option<usize> {
    let class = size.max(BLOCK_MIN).div_ceil(BLOCK_MIN).next_power_of_two().ilog2() as usize;
    (class < CLASSES).then_some(class)
}

/// Addresses for the vault, which take no memory before they are used.
fn reserve() -> Option<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address where nothing is.
    let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), VAULT_SIZE, rights, flags) }.ok()?;
    // SAFETY: whether pages are part of core files changes nothing that is in them.
    let _ = unsafe { rustix::mm::madvise(start, VAULT_SIZE, Advice::LinuxDontDump) };
    Some(start.expose_provenance())
}

/// As malloc.
unsafe extern "C" fn allocate(size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    let Some(whole) = size.checked_add(HEADER_SIZE) else { return ptr::null_mut() };
    let vaulted = if IS_WITHIN.get() { vault().take(whole) } else { None };
    let (mark, start) = match vaulted {
        Some(start) => (VAULTED, start),
        // SAFETY: any size may be asked for.
        None => (PLAIN, unsafe { libmimalloc_sys::mi_malloc(whole) }.cast()),
    };
    if start.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the block has the size of a header and more, is aligned to words, and is nobody else's.
    unsafe { start.cast::<[u64; 2]>().write([mark, size as u64]) }
    start.wrapping_add(HEADER_SIZE).cast()
}

/// As realloc.
unsafe extern "C" fn resize(old: *mut c_void, size: usize, file: *const c_char, line: c_int) -> *mut c_void {
    // SAFETY: any size may be asked for.
    let new = unsafe { allocate(size, file, line) };
    if old.is_null() || new.is_null() {
        return new;
    }
    // SAFETY: the library gives a block that it has.
    let (_, old_size) = unsafe { header(old) };
    // SAFETY: both blocks have as many bytes, and they are two.
    unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), old_size.min(size)) }
    // SAFETY: the library has the new one instead.
    unsafe { release(old, file, line) }
    new
}

/// As free, and wipes the block.
unsafe extern "C" fn release(block: *mut c_void, _: *const c_char, _: c_int) {
    if block.is_null() {
        return;
    }
    // SAFETY: the library gives back a block that it has.
    let (mark, size) = unsafe { header(block) };
    // SAFETY: the block has so many bytes, and nobody reads them any more.
    unsafe { block.cast::<u8>().write_bytes(0, size) }
    // The next owner of the block may read it, so the compiler must not omit the zeros.
    let block = std::hint::black_box(block.cast::<u8>());
    let start = block.wrapping_sub(HEADER_SIZE);
    match mark {
        VAULTED => vault().put(start, size + HEADER_SIZE),
        // SAFETY: the mark says that the block is from this allocator, and begins there.
        PLAIN => unsafe { libmimalloc_sys::mi_free(start.cast()) },
        // SAFETY: the library got it from malloc, and has put the size in front.
        _ => unsafe { libc::free(block.wrapping_sub(size_of::<usize>()).cast()) },
    }
}

/// The mark of a block and its size.
///
/// # Safety
/// The library has the block.
unsafe fn header(block: *mut c_void) -> (u64, usize) {
    let header = block.cast::<u8>().wrapping_sub(HEADER_SIZE).cast::<[u64; 2]>();
    // SAFETY: it was written when the block was allocated; in front of the size of one of malloc stands malloc's own word.
    let [mark, size] = unsafe { header.read_unaligned() };
    (mark, usize::try_from(size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    use aws_lc_sys::{OPENSSL_free, OPENSSL_malloc, OPENSSL_realloc};

    fn is_in_vault(block: *mut c_void) -> bool {
        let start = vault().start;
        start != 0 && (start..start + VAULT_SIZE).contains(&block.addr())
    }

    fn bytes(block: *mut c_void, range: std::ops::Range<usize>) -> Vec<u8> {
        // SAFETY: a block of the vault: its pages stay, also when it is free.
        range.map(|at| unsafe { block.cast::<u8>().wrapping_add(at).read_volatile() }).collect()
    }

    #[test]
    fn allocations_within_are_in_the_vault_and_wiped() {
        // SAFETY: any size may be asked for.
        let before = unsafe { OPENSSL_malloc(100) };
        assert!(install() && !install());
        // SAFETY: it is from before.
        unsafe { OPENSSL_free(before) }
        // SAFETY: any size may be asked for.
        let outside = unsafe { OPENSSL_malloc(100) };
        assert!(!outside.is_null() && !is_in_vault(outside));
        for size in [0, 1, 16, 17, 100, 1000, 4080] {
            // SAFETY: any size may be asked for.
            let block = within(|| unsafe { OPENSSL_malloc(size) });
            assert!(is_in_vault(block) && block.addr().is_multiple_of(16), "{size}");
            // SAFETY: the block has so many bytes.
            unsafe { block.cast::<u8>().write_bytes(7, size) }
            assert_eq!(bytes(block, 0..size), vec![7; size]);
            // SAFETY: nobody has it any more.
            unsafe { OPENSSL_free(block) }
            assert_eq!(bytes(block, 0..size), vec![0; size]);
            // SAFETY: any size may be asked for.
            let again = within(|| unsafe { OPENSSL_malloc(size) });
            assert_eq!(again, block, "the next key has its place");
            // SAFETY: nobody has it any more.
            unsafe { OPENSSL_free(again) }
        }
        // SAFETY: any size may be asked for.
        let large = within(|| unsafe { OPENSSL_malloc(5000) });
        assert!(!is_in_vault(large));
        // SAFETY: a block that is there.
        let small = unsafe { OPENSSL_realloc(outside, 10) };
        // SAFETY: no block is as good.
        let first = unsafe { OPENSSL_realloc(ptr::null_mut(), 10) };
        for block in [large, small, first] {
            assert!(!block.is_null());
            // SAFETY: nobody has it any more.
            unsafe { OPENSSL_free(block) }
        }
        // The blocks take more than one step, and none overlaps another one.
        let blocks: Vec<_> = (0..200_u8)
            .map(|nth| {
                // SAFETY: any size may be asked for.
                let block = within(|| unsafe { OPENSSL_malloc(1000) });
                // SAFETY: the block has so many bytes.
                unsafe { block.cast::<u8>().write_bytes(nth, 1000) }
                block
            })
            .collect();
        for (nth, block) in (0..200_u8).zip(blocks) {
            assert_eq!(bytes(block, 0..1000), vec![nth; 1000]);
            // SAFETY: nobody has it any more.
            unsafe { OPENSSL_free(block) }
        }
        if !memory::may_lock(2 * VAULT_SIZE) && locked() == 0 {
            return tw_testkit::leave_out(tw_testkit::Lacks::Machine, "no memory may be locked");
        }
        let before = locked();
        assert!(before > 0 && before.is_multiple_of(STEP_SIZE));
        relock();
        assert_eq!(locked(), before);
    }

    #[test]
    fn classes() {
        let expected =
            [(0, Some(0)), (32, Some(0)), (33, Some(1)), (64, Some(1)), (4096, Some(7)), (4097, None)];
        for (size, expected) in expected {
            assert_eq!(class(size), expected, "{size}");
        }
    }
}
