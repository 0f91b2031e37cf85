//! Descriptors handed over by the process that started this one: listening sockets of a binary upgrade or of the
//! master, sockets of systemd.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::FdFlags;

/// Takes ownership of an inherited descriptor and makes it close-on-exec.
///
/// A number can be taken once, also by threads that try at the same time: everything this process opens itself is close-on-exec, so a descriptor without that
/// flag came through `exec()` and has no owner yet; taking it sets the flag.
///
/// Errors: `EBADF` when it is not open; `InvalidInput` when it is 0, 1 or 2, or was not inherited (or taken before).
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a standard stream is not a handed-over socket",
        ));
    }
    // Reading and setting the flag are two calls, between which no other thread may read it.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: not -1; used only to ask for and set its flags, which fails with EBADF when it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = rustix::io::fcntl_getfd(borrowed)?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptor was not inherited"));
    }
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: open, and without an owner: see above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets close-on-exec on every descriptor of this process but the standard streams. The parent may have left some open, and a
/// program with fewer rights must not inherit them.
///
/// Errors: kernels before 5.11 cannot do it.
pub fn set_close_on_exec() -> io::Result<()> {
    // SAFETY: sets a flag of descriptors, whoever owns them; no memory is touched.
    let status = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::Barrier;
    use tw_testkit::{Lacks, leave_out};

    /// To keep all descriptors is to keep those that another test wants to take.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn one_of_many_concurrent_callers_takes_the_descriptor() {
        const TAKERS: usize = 8;
        let _alone = ALONE.lock();
        let start = Barrier::new(TAKERS);
        for _ in 0..500 {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            rustix::io::fcntl_setfd(&socket, FdFlags::empty()).unwrap();
            let number = socket.into_raw_fd();
            let try_it = || {
                start.wait();
                // Two owners would close the descriptor twice.
                take(number).map(IntoRawFd::into_raw_fd)
            };
            let taken: Vec<_> = std::thread::scope(|scope| {
                let takers: Vec<_> = (0..TAKERS).map(|_| scope.spawn(try_it)).collect();
                takers.into_iter().filter_map(|taker| taker.join().unwrap().ok()).collect()
            });
            assert_eq!(taken, [number]);
            // SAFETY: the one who took it has given it away, and nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }

    #[test]
    fn only_an_inherited_descriptor_can_be_taken_and_only_once() {
        let _alone = ALONE.lock();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(take(listener.as_raw_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(take(2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(take(1 << 20).unwrap_err().raw_os_error(), Some(libc::EBADF));

        rustix::io::fcntl_setfd(&listener, FdFlags::empty()).unwrap();
        let kept = listener.try_clone().unwrap();
        rustix::io::fcntl_setfd(&kept, FdFlags::empty()).unwrap();
        let number = listener.into_raw_fd();
        let taken = take(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert!(rustix::io::fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(take(number).unwrap_err().kind(), io::ErrorKind::InvalidInput);

        match set_close_on_exec() {
            Ok(()) => assert!(rustix::io::fcntl_getfd(&kept).unwrap().contains(FdFlags::CLOEXEC)),
            Err(error) => leave_out(Lacks::Machine, format_args!("no close_range(): {error}")),
        }
    }
}
