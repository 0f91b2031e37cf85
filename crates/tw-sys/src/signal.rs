//! Signals as data: blocked in every thread and read from a descriptor, so no handler ever runs.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A descriptor that becomes readable when one of its signals arrives.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

/// One arrived signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Signal number, as in `signal.h`.
    pub signal: i32,
    /// Process id of the sender, 0 for the kernel.
    pub pid: i32,
    /// User id of the sender.
    pub uid: u32,
}

impl SignalFd {
    /// Blocks `signals` in the calling thread and in every thread it starts from now on, takes them back from whoever
    /// ignored them, and opens the descriptor.
    /// Call it before any other thread exists. It does not wait on reads (`WouldBlock`).
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the pointer is valid for one `sigset_t`, which the call fills in.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: filled in by `sigemptyset`, which cannot fail for a valid pointer.
        let mut set = unsafe { set.assume_init() };
        for &signal in signals {
            // SAFETY: `set` is an initialised signal set; a number out of range is refused with EINVAL.
            if unsafe { libc::sigaddset(&mut set, signal) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: `set` is initialised; the old mask is not asked for.
        let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if rc != 0 {
            return Err(io::Error::from_raw_os_error(rc));
        }
        for &signal in signals {
            // The parent process may have ignored this signal. For an ignored SIGCHLD the kernel sends nothing, and a
            // child that has ended is gone before anybody waits for it.
            // SAFETY: the default action is no handler.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened and owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The oldest signal that waits to be read; `WouldBlock` when there is none.
    pub fn read(&self) -> io::Result<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the pointer and `size` describe one writable `signalfd_siginfo`.
        let n = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: integers only, for which zero bytes are valid; a signalfd returns whole records.
        let info = unsafe { info.assume_init() };
        Ok(Arrived { signal: info.ssi_signo as i32, pid: info.ssi_pid as i32, uid: info.ssi_uid })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
