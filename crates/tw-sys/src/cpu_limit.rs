//! Limit of the CPU time of one thread, kept by the kernel: the process says last words and ends, whatever code is running.
//!
//! A timer counts the CPU time of the thread that made it and fires every few milliseconds of it, so that the begin and the end of a piece of
//! work are stores in memory and no system calls. Its signal arrives in the middle of any code, native or not. If the running piece of work
//! has used up its time, the handler writes a prepared message to a socket and ends the process.
//!
//! Finished messages that wait to be written together are [held](hold): the handler writes them if the next piece of work takes long.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

/// Signal of the timer. Nothing else sends it.
const SIGNAL: libc::c_int = libc::SIGVTALRM;
/// CPU time between two signals: a piece of work may take this much longer than its limit. A kernel whose clock ticks more slowly sends
/// fewer signals.
const TICK: Duration = Duration::from_millis(5);

/// Longest last words, in bytes. Longer ones are not sent.
pub const LAST_WORDS_MAX: usize = 1024;
/// Most bytes that are held.
pub const HELD_MAX: usize = 4096;
/// Status of a process that has ended itself.
const STATUS: libc::c_int = 124;

/// Socket for the last words, or -1.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static WORDS: [AtomicU8; LAST_WORDS_MAX] = [const { AtomicU8::new(0) }; LAST_WORDS_MAX];
static WORDS_SIZE: AtomicUsize = AtomicUsize::new(0);
static HELD: [AtomicU8; HELD_MAX] = [const { AtomicU8::new(0) }; HELD_MAX];
static HELD_SIZE: AtomicUsize = AtomicUsize::new(0);
/// Number of held bytes that the handler has written.
static HELD_SENT: AtomicUsize = AtomicUsize::new(0);
/// Set while the socket is written to: last words would stand in the middle of a message.
static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// CPU time of the running piece of work in nanoseconds; 0 while none runs.
static LIMIT_NS: AtomicU64 = AtomicU64::new(0);
/// CPU time of the thread at the first signal since the running piece of work has begun; 0 before it.
static SEEN_NS: AtomicU64 = AtomicU64::new(0);

/// A timer for the CPU time of the thread that has made it. A process has one at most.
#[derive(Debug)]
pub struct CpuLimit(libc::timer_t);

impl CpuLimit {
    /// Makes the timer and installs the handler of its signal. No piece of work runs yet.
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
        let limit = Self(unsafe { timer.assume_init() });
        limit.fire_every(TICK)?;
        Ok(limit)
    }

    /// Begins a piece of work: after `limit` of CPU time, the process writes `words` to `socket` and ends. No system call.
    ///
    /// The process ends at the second signal at the latest that finds the time used up. Words beyond [`LAST_WORDS_MAX`] are not sent.
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
        SEEN_NS.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        LIMIT_NS.store(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// Ends the piece of work. No system call.
    pub fn stop(&self) {
        LIMIT_NS.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// CPU time of the thread at the first signal since the running piece of work has begun; `None` if there was none yet.
    pub fn first_seen(&self) -> Option<Duration> {
        match SEEN_NS.load(Ordering::Relaxed) {
            0 => None,
            seen => Some(Duration::from_nanos(seen)),
        }
    }

    fn fire_every(&self, tick: Duration) -> io::Result<()> {
        let time =
            libc::timespec { tv_sec: tick.as_secs() as libc::time_t, tv_nsec: tick.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer exists as long as `self`; `times` is readable, and the old times are not asked for.
        let rc = unsafe { libc::timer_settime(self.0, 0, &times, null_mut()) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and nobody uses it afterwards.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Holds whole messages that are written to the socket of the last words later. `messages` begins with those that are held already. Returns
/// false if they do not fit.
pub fn hold(messages: &[u8]) -> bool {
    let size = HELD_SIZE.load(Ordering::Relaxed);
    if messages.len() > HELD_MAX {
        return false;
    }
    for (place, byte) in HELD.iter().zip(messages).skip(size) {
        place.store(*byte, Ordering::Relaxed);
    }
    compiler_fence(Ordering::SeqCst);
    HELD_SIZE.store(messages.len(), Ordering::Relaxed);
    true
}

/// Runs `write`, which writes to the socket of the last words: until it returns, the process would end without them. Its argument is the
/// number of held bytes that were written already; nothing is held afterwards.
pub fn while_writing<T>(write: impl FnOnce(usize) -> T) -> T {
    IS_BUSY.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = write(HELD_SENT.load(Ordering::Relaxed));
    HELD_SENT.store(0, Ordering::Relaxed);
    HELD_SIZE.store(0, Ordering::Relaxed);
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
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is initialised, and the handler has the form without SA_SIGINFO and calls only functions that are
    // allowed in signal handlers; the old action is not asked for.
    let rc = unsafe { libc::sigaction(SIGNAL, action, null_mut()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes held messages if a piece of work runs, and ends the process if that has used up its time.
extern "C" fn on_limit(_: libc::c_int) {
    let limit = LIMIT_NS.load(Ordering::Relaxed);
    if limit == 0 {
        return;
    }
    let is_busy = IS_BUSY.load(Ordering::Relaxed);
    let is_written = !is_busy && write_held();
    let now = thread_time_ns();
    let seen = SEEN_NS.load(Ordering::Relaxed);
    if seen == 0 {
        SEEN_NS.store(now, Ordering::Relaxed);
    }
    if seen == 0 || now.saturating_sub(seen) < limit {
        return;
    }
    if is_written {
        let mut words = [0; LAST_WORDS_MAX];
        send(&WORDS, WORDS_SIZE.load(Ordering::Relaxed), &mut words);
    }
    // SAFETY: ends the process and touches none of its memory.
    unsafe { libc::_exit(STATUS) };
}

/// Writes held messages; true if none is left.
fn write_held() -> bool {
    let size = HELD_SIZE.load(Ordering::Relaxed);
    let sent = HELD_SENT.load(Ordering::Relaxed);
    let mut bytes = [0; HELD_MAX];
    let number = HELD.get(sent..).map_or(0, |rest| send(rest, size.saturating_sub(sent), &mut bytes));
    HELD_SENT.store(sent + number, Ordering::Relaxed);
    sent + number == size
}

/// Writes `size` bytes of `source` to the socket by way of `copy`, without a wait; returns how many it has taken.
fn send(source: &[AtomicU8], size: usize, copy: &mut [u8]) -> usize {
    let size = size.min(source.len()).min(copy.len());
    if size == 0 {
        return 0;
    }
    for (byte, place) in copy.iter_mut().zip(source).take(size) {
        *byte = place.load(Ordering::Relaxed);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the address of the number of the last error of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: readable; the interrupted code may be about to look at it.
    let interrupted = unsafe { *errno };
    // SAFETY: the pointer and `size` describe readable bytes.
    let number = unsafe { libc::send(SOCKET.load(Ordering::Relaxed), copy.as_ptr().cast(), size, flags) };
    // SAFETY: writable; no other thread has this address.
    unsafe { *errno = interrupted };
    usize::try_from(number).unwrap_or(0)
}

/// CPU time of this thread in nanoseconds, never 0. Signal handlers may call it.
fn thread_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64).max(1)
}
