//! Descriptors handed over by the process that started this one: listening sockets of a binary upgrade or of the
//! master, sockets of systemd.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::FdFlags;

/// Takes ownership of an inherited descriptor and makes it close-on-exec.
///
/// A number can be taken once: everything this process opens itself is close-on-exec, so a descriptor without that
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

/// Keeps every descriptor this process has, but for the standard streams, from the programs it starts. Whoever started it
/// may have left some open: a program with fewer rights must not get them.
///
/// Errors: kernels before 5.11 cannot do it.
pub fn keep_to_ourselves() -> io::Result<()> {
    // SAFETY: sets a flag of descriptors, whoever owns them; no memory is touched.
    let status = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use tw_testkit::{Lacks, leave_out};

    #[test]
    fn only_an_inherited_descriptor_can_be_taken_and_only_once() {
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

        match keep_to_ourselves() {
            Ok(()) => assert!(rustix::io::fcntl_getfd(&kept).unwrap().contains(FdFlags::CLOEXEC)),
            Err(error) => leave_out(Lacks::Machine, format_args!("no close_range(): {error}")),
        }
    }
}
