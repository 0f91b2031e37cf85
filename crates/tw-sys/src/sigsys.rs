//! Handler for system calls that the loop guard refuses: the process names the call on standard error and aborts.

use std::io;
use std::mem::MaybeUninit;

use crate::nr;

/// Position of the call's number in `siginfo_t` of a SIGSYS on 64-bit Linux: three integers and padding, then the
/// address of the instruction, then the number.
const SYSCALL_OFFSET: usize = 24;

/// From now on, a thread whose seccomp filter traps a system call writes
/// `loop guard: system call openat (257) on a loop thread` to standard error, and the process aborts.
pub fn abort_with_name() -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) = on_sigsys;
    let at = action.as_mut_ptr();
    // SAFETY: `at` points to one zeroed `sigaction`, whose fields are all plain integers or an optional function.
    let fields = unsafe { &mut *at };
    fields.sa_sigaction = handler as usize;
    fields.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `fields` is initialised, the handler has the three-argument form that SA_SIGINFO asks for and calls
    // only functions that are allowed in signal handlers; the old action is not asked for.
    let rc = unsafe { libc::sigaction(libc::SIGSYS, fields, std::ptr::null_mut()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigsys(_: libc::c_int, info: *const libc::siginfo_t, _: *const libc::c_void) {
    let number = info.cast::<u8>().wrapping_add(SYSCALL_OFFSET).cast::<i32>();
    // SAFETY: the kernel passes a whole `siginfo_t`, 128 bytes, aligned for its pointers.
    let number = i64::from(unsafe { number.read() });
    let mut line = Line::default();
    line.push("loop guard: system call ");
    line.push(nr::name(number).unwrap_or("?"));
    line.push(" (");
    line.push_number(number.unsigned_abs());
    line.push(") on a loop thread\n");
    let text = line.text();
    // SAFETY: the pointer and length describe the readable text. A failure changes nothing: the process ends.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    // SAFETY: `abort` takes nothing and may be called in a signal handler.
    unsafe { libc::abort() }
}

/// A line built without allocation. What does not fit is cut.
struct Line {
    bytes: [u8; 128],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }
}

impl Line {
    fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
        }
    }

    fn push_number(&mut self, number: u64) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        let digit = (b'0' + (number % 10) as u8).into();
        self.push(char::encode_utf8(digit, &mut [0; 4]));
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_built_and_cut() {
        let mut line = Line::default();
        for (number, expected) in [(0, "0"), (9, "09"), (10, "0910"), (257, "0910257")] {
            line.push_number(number);
            assert_eq!(line.text(), expected.as_bytes());
        }
        line.push(&"x".repeat(200));
        assert_eq!(line.text().len(), 128);
    }
}
