//! Stacks of threads as instruction pointers: of the calling thread, and of any other one by a signal.
//!
//! ```text
//! asker: ASKED(thread) ─ tgkill ─► its handler: WRITING ─ frames ─► DONE ─► asker: IDLE
//!           └── no answer: the thread waits in the kernel and cannot be woken ──────┘
//! ```
//! An answer that comes after its asker has gone stays `DONE`, which is as good as `IDLE` for the next one.
//!
//! Nothing here opens a file, allocates, or looks at symbols: that is for a thread that may wait. The unwinder reads the
//! tables that panics need anyway; neither the kernel nor a lock is asked on the way (glibc 2.35 and later). musl comes
//! without such tables: of a thread that waits in one of its functions that one alone is known.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The most frames that are kept of a stack; the outermost are left out.
pub const FRAMES_MAX: usize = 96;

/// Interval at which the asker looks for an answer.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Results that tell the unwinder to go on, or to stop.
const URC_NO_REASON: c_int = 0;
const URC_NORMAL_STOP: c_int = 4;

unsafe extern "C" {
    // A function of the unwinder that panics use, which is linked in any case.
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, is_before: *mut c_int) -> usize;
}

/// A stack, innermost frame first: addresses within the instructions that run or have called.
#[derive(Clone, Copy)]
pub struct Frames {
    addresses: [usize; FRAMES_MAX],
    len: usize,
}

impl Frames {
    const NONE: Self = Self { addresses: [0; FRAMES_MAX], len: 0 };

    /// The addresses.
    pub fn addresses(&self) -> &[usize] {
        &self.addresses[..self.len]
    }

    fn push(&mut self, address: usize) -> bool {
        let room = self.addresses.get_mut(self.len).map(|slot| *slot = address).is_some();
        self.len += usize::from(room);
        room
    }

    /// Leaves out what was called after `address`: the handler that looked.
    fn begin_at(&mut self, address: usize) {
        match self.addresses().iter().position(|candidate| *candidate == address) {
            Some(at) => {
                self.addresses.copy_within(at..self.len, 0);
                self.len -= at;
            }
            // The way through the signal was not found: this much is certain.
            None => (self.addresses[0], self.len) = (address, 1),
        }
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.addresses().iter().map(|address| format!("{address:#x}"))).finish()
    }
}

/// The stack of the calling thread. Some microseconds a frame; no allocation, and no system call.
#[inline(never)]
pub fn of_this_thread() -> Frames {
    let mut frames = Frames::NONE;
    // SAFETY: `visit` has the form the unwinder asks for and gets `frames` back, which outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut frames).cast()) };
    frames
}

extern "C" fn visit(context: *mut c_void, frames: *mut c_void) -> c_int {
    // SAFETY: what `of_this_thread` passed: a `Frames` that nobody else uses meanwhile.
    let frames = unsafe { &mut *frames.cast::<Frames>() };
    let mut is_before = 0;
    // SAFETY: called by the unwinder with its context.
    let address = unsafe { _Unwind_GetIPInfo(context, &mut is_before) };
    // A call returns to the instruction behind it, which may belong to something else already.
    let address = if is_before == 0 { address.wrapping_sub(1) } else { address };
    if address != 0 && frames.push(address) { URC_NO_REASON } else { URC_NORMAL_STOP }
}

/// No request.
const IDLE: i32 = 0;
/// The handler writes. Any other positive number is the thread that is asked.
const WRITING: i32 = -1;
/// The frames are there.
const DONE: i32 = -2;

/// Between the asker and the handler.
struct Slot {
    state: AtomicI32,
    len: AtomicUsize,
    addresses: [AtomicUsize; FRAMES_MAX],
}

static SLOT: Slot = Slot {
    state: AtomicI32::new(IDLE),
    len: AtomicUsize::new(0),
    addresses: [const { AtomicUsize::new(0) }; FRAMES_MAX],
};

/// Lock for one request at a time.
static ASKER: Mutex<()> = Mutex::new(());

/// Reason for a missing stack.
#[derive(Debug)]
pub enum NoStack {
    /// The thread did not respond in time: it waits in the kernel uninterruptibly, as for a disk.
    Silent,
    /// The signal could not be sent: the thread has ended.
    Gone(io::Error),
}

/// Installs the signal handler for [`of_thread`]. Called once per process, on the first thread: the others inherit the
/// unblocked signal.
pub fn install_handler() -> io::Result<()> {
    // The first use of the unwinder initialises it, which must not happen in a signal handler.
    let _ = of_this_thread();
    let handler: extern "C" fn(c_int, *const libc::siginfo_t, *const c_void) = on_signal;
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let at = action.as_mut_ptr();
    // SAFETY: `at` points to one zeroed `sigaction`, whose fields are all plain integers or an optional function.
    let fields = unsafe { &mut *at };
    fields.sa_sigaction = handler as usize;
    // Interrupted system calls are restarted afterwards, where the kernel allows it.
    fields.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `fields` is initialised, the handler has the three-argument form that SA_SIGINFO asks for and does only what
    // is allowed in signal handlers; the old action is not asked for.
    if unsafe { libc::sigaction(signal(), fields, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    unblock()
}

/// A real-time signal without a meaning. The first ones belong to the C library and to service managers.
fn signal() -> c_int {
    libc::SIGRTMIN() + 20
}

fn unblock() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for one `sigset_t`, which the call fills in.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: filled in by `sigemptyset`, which cannot fail for a valid pointer.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: `set` is an initialised signal set, and the number is a signal's.
    unsafe { libc::sigaddset(&mut set, signal()) };
    // SAFETY: `set` is initialised; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

extern "C" fn on_signal(_: c_int, _: *const libc::siginfo_t, context: *const c_void) {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    // The same signal from another sender is ignored.
    if SLOT.state.compare_exchange(me, WRITING, AcqRel, Relaxed).is_err() {
        return;
    }
    // SAFETY: gives the address of this thread's error number, always.
    let error = unsafe { libc::__errno_location() };
    // SAFETY: that address is valid for the life of the thread.
    let kept = unsafe { *error };
    let mut frames = of_this_thread();
    // SAFETY: with SA_SIGINFO the kernel passes the state of the thread that was interrupted.
    frames.begin_at(interrupted_at(unsafe { &*context.cast::<libc::ucontext_t>() }));
    for (slot, address) in SLOT.addresses.iter().zip(frames.addresses()) {
        slot.store(*address, Relaxed);
    }
    SLOT.len.store(frames.len, Relaxed);
    SLOT.state.store(DONE, Release);
    // SAFETY: as above.
    unsafe { *error = kept };
}

/// The instruction that a signal interrupted.
fn interrupted_at(context: &libc::ucontext_t) -> usize {
    #[cfg(target_arch = "x86_64")]
    let address = context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned();
    #[cfg(target_arch = "aarch64")]
    let address = context.uc_mcontext.pc;
    address as usize
}

/// The stack of another thread of this process, by its number. Waits at most `timeout`, twice if the thread is slow to
/// write. Not on a loop.
pub fn of_thread(thread: i32, timeout: Duration) -> Result<Frames, NoStack> {
    let _one = ASKER.lock().unwrap_or_else(PoisonError::into_inner);
    // A handler that has not come to its end keeps the slot.
    let is_free = [IDLE, DONE].iter().any(|free| {
        // Acquire: a late handler has written its result before this one writes.
        SLOT.state.compare_exchange(*free, thread, AcqRel, Relaxed).is_ok()
    });
    if !is_free {
        return Err(NoStack::Silent);
    }
    if let Err(error) = send(thread, signal()) {
        SLOT.state.store(IDLE, Release);
        return Err(NoStack::Gone(error));
    }
    let is_silent = !is_done(thread, timeout)
        && (SLOT.state.compare_exchange(thread, IDLE, AcqRel, Acquire).is_ok() || !is_done(thread, timeout));
    if is_silent {
        // A thread that was ending has taken the signal without running the handler.
        return Err(send(thread, 0).map_or_else(NoStack::Gone, |()| NoStack::Silent));
    }
    let mut frames = Frames::NONE;
    for address in SLOT.addresses.iter().take(SLOT.len.load(Relaxed)) {
        frames.push(address.load(Relaxed));
    }
    SLOT.state.store(IDLE, Release);
    Ok(frames)
}

/// Sends a signal to a thread of this process; 0 is none, and only tells whether the thread is there.
fn send(thread: i32, signal: c_int) -> io::Result<()> {
    // SAFETY: plain numbers: this process, one of its threads, a signal that has a handler or none at all.
    match unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true if the answer comes within `timeout`, and while the thread exists.
fn is_done(thread: i32, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    loop {
        if SLOT.state.load(Acquire) == DONE {
            return true;
        }
        if Instant::now() >= until || send(thread, 0).is_err() {
            return false;
        }
        thread::park_timeout(LOOK_EVERY);
    }
}

/// The file that an address of this process comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Name of the file, as the dynamic linker knows it.
    pub file: String,
    /// Base address of the file in memory.
    pub base: usize,
    /// The exported name at or before the address.
    pub name: Option<String>,
}

/// Looks up where an address comes from. Takes the lock of the dynamic linker: not on a loop.
pub fn origin(address: usize) -> Option<Origin> {
    by_linker(address).or_else(|| by_segments(address))
}

fn by_linker(address: usize) -> Option<Origin> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is only compared; `info` is valid for one `Dl_info`.
    let value = unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) };
    if value == 0 {
        return None;
    }
    // SAFETY: zeroed and then filled in: pointers, for which null is valid.
    let info = unsafe { info.assume_init() };
    let text = |pointer: *const libc::c_char| {
        // SAFETY: not null, and a string of a file that is mapped: the addresses asked for are those of code that runs.
        (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
    };
    Some(Origin {
        file: text(info.dli_fname).unwrap_or_default(),
        base: info.dli_fbase as usize,
        name: text(info.dli_sname),
    })
}

/// The question to [`by_segments`] and its answer.
struct ObjectSearch {
    address: usize,
    origin: Option<Origin>,
}

/// Finds a symbol's file in a program without a dynamic linker, by the parts of its own file. There are no exported names then.
fn by_segments(address: usize) -> Option<Origin> {
    let mut search = ObjectSearch { address, origin: None };
    // SAFETY: `visit_object` has the form that is asked for and gets `search` back, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut search).cast()) };
    search.origin
}

/// Ends the search, by not being zero, at the file whose loaded parts surround the address.
extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: what `by_segments` passed: an `ObjectSearch` that nobody else uses meanwhile.
    let search = unsafe { &mut *search.cast::<ObjectSearch>() };
    // SAFETY: the C library passes a valid description.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the description says where the headers are and how many; they are mapped as long as the file is.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let bias = info.dlpi_addr as usize;
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let mut parts = loaded.map(|part| {
        let begin = bias.wrapping_add(part.p_vaddr as usize);
        begin..begin.wrapping_add(part.p_memsz as usize)
    });
    // Segments are in the order of their addresses.
    let Some(first) = parts.next() else { return 0 };
    let is_here = first.contains(&search.address) || parts.any(|part| part.contains(&search.address));
    if is_here {
        // SAFETY: a string, or null.
        let file = (!info.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(info.dlpi_name) });
        let file = file.unwrap_or_default().to_string_lossy().into_owned();
        search.origin = Some(Origin { file, base: first.start, name: None });
    }
    c_int::from(is_here)
}

/// Looks up the program itself.
pub fn program() -> Option<Origin> {
    origin(of_this_thread as *const () as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Long, for a machine that is busy.
    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn late_response_does_not_block_the_next_request() {
        install_handler().unwrap();
        let (sender, receiver) = channel();
        let (end, ended) = channel::<()>();
        let other = thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            ended.recv().unwrap();
        });
        let other_id = receiver.recv().unwrap();
        // The handler of a thread that its asker has given up.
        SLOT.state.store(WRITING, Release);
        assert!(matches!(of_thread(other_id, Duration::ZERO), Err(NoStack::Silent)));
        SLOT.state.store(DONE, Release);
        for _ in 0..2 {
            assert!(!of_thread(other_id, TIMEOUT).unwrap().addresses().is_empty());
        }
        end.send(()).unwrap();
        other.join().unwrap();
    }
}
