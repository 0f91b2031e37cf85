//! Limit of the CPU time of one thread, kept by the kernel: the process says last words and ends, whatever code is running.
//!
//! The timer counts the CPU time of the thread that made it. Its signal arrives in the middle of any code, native or not. The handler writes a
//! prepared message to a socket and ends the process; if that did not work, the next signal ends the process by its default action.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

/// Signal of the timer. Nothing else sends it, and its default action ends the process.
const SIGNAL: libc::c_int = libc::SIGVTALRM;

/// Longest last words, in bytes. Longer ones are not sent.
pub const LAST_WORDS_MAX: usize = 1024;
/// Status of a process that has ended itself.
const STATUS: libc::c_int = 124;

/// Socket for the last words, or -1.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static WORDS: [AtomicU8; LAST_WORDS_MAX] = [const { AtomicU8::new(0) }; LAST_WORDS_MAX];
static WORDS_SIZE: AtomicUsize = AtomicUsize::new(0);
/// Set while the socket is written to: last words would stand in the middle of a message.
static IS_BUSY: AtomicBool = AtomicBool::new(false);

/// A timer for the CPU time of the thread that has made it. A process has one at most.
#[derive(Debug)]
pub struct CpuLimit(libc::timer_t);

impl CpuLimit {
    /// Makes the timer, which is not running yet, and installs the handler of its signal.
    ///
    /// # Errors
    /// The kernel has no room for a timer.
    pub fn new() -> io::Result<Self> {
        install_handler()?;
        let mut event = MaybeUninit::<libc::sigevent>::zeroed();
        // SAFETY: integers and a union of a number and a pointer, for which zero bytes are valid.
        let event = unsafe { event.assume_init_mut() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        // SAFETY: takes nothing and cannot fail.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = MaybeUninit::<libc::timer_t>::uninit();
        // SAFETY: both pointers are valid for the call, which reads the first and fills in the second.
        let rc = unsafe { libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, event, timer.as_mut_ptr()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: filled in by the call above, which has succeeded.
        Ok(Self(unsafe { timer.assume_init() }))
    }

    /// Begins a piece of work: after `limit` of CPU time, the process writes `words` to `socket` and ends.
    ///
    /// The time has the resolution of the kernel's clock tick, 1 to 10 ms. Words beyond [`LAST_WORDS_MAX`] are not sent.
    pub fn start(&self, limit: Duration, socket: impl AsFd, words: &[u8]) {
        WORDS_SIZE.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        for (place, byte) in WORDS.iter().zip(words) {
            place.store(*byte, Ordering::Relaxed);
        }
        SOCKET.store(socket.as_fd().as_raw_fd(), Ordering::Relaxed);
        // The handler runs on this thread, so only the compiler could change the order.
        compiler_fence(Ordering::SeqCst);
        let size = if words.len() <= LAST_WORDS_MAX { words.len() } else { 0 };
        WORDS_SIZE.store(size, Ordering::Relaxed);
        self.set(limit);
    }

    /// Ends the piece of work.
    pub fn stop(&self) {
        self.set(Duration::ZERO);
    }

    fn set(&self, limit: Duration) {
        let time = libc::timespec {
            tv_sec: limit.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // A second signal, in case the handler did not end the process.
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer exists as long as `self`; `times` is readable, and the old times are not asked for.
        unsafe { libc::timer_settime(self.0, 0, &times, null_mut()) };
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and nobody uses it afterwards.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Runs `write`, which writes to the socket of the last words: until it returns, the process would end without them.
pub fn while_writing<T>(write: impl FnOnce() -> T) -> T {
    IS_BUSY.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = write();
    compiler_fence(Ordering::SeqCst);
    IS_BUSY.store(false, Ordering::Relaxed);
    result
}

fn install_handler() -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(libc::c_int) = on_limit;
    // SAFETY: plain integers or an optional function, for which zero bytes are valid.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler as usize;
    // The next signal has the default action, and is not held back while the handler runs.
    action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    // SAFETY: `action` is initialised, and the handler has the form without SA_SIGINFO and calls only functions that are
    // allowed in signal handlers; the old action is not asked for.
    let rc = unsafe { libc::sigaction(SIGNAL, action, null_mut()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_limit(_: libc::c_int) {
    let mut words = [0; LAST_WORDS_MAX];
    let size = WORDS_SIZE.load(Ordering::Relaxed).min(LAST_WORDS_MAX);
    for (byte, place) in words.iter_mut().zip(&WORDS).take(size) {
        *byte = place.load(Ordering::Relaxed);
    }
    let socket = SOCKET.load(Ordering::Relaxed);
    if !IS_BUSY.load(Ordering::Relaxed) && size > 0 {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and `size` describe readable bytes. A failure changes nothing: the process ends.
        unsafe { libc::send(socket, words.as_ptr().cast(), size, flags) };
    }
    // SAFETY: ends the process and touches none of its memory.
    unsafe { libc::_exit(STATUS) };
}
