//! Going to the background, with a parent that leaves only when the child is ready.

use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};

use rustix::fs::Mode;
use rustix::process::{setsid, umask};

/// The child's side of the way to the background. Dropping it, as an error does, lets the parent end with status 1.
#[derive(Debug)]
pub struct Starting(PipeWriter);

/// Continues in a child process: a session of its own, umask 0, standard input and output on `/dev/null`. Standard
/// error stays, so that what fails until [`Starting::ready`] is seen.
///
/// The parent never returns: it waits for the child and ends with status 0 once that is ready, or 1 if it is not.
///
/// Errors: other threads exist, which would be missing in the child, or `/proc` does not tell; what the system says.
pub fn detach() -> io::Result<Starting> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let (reader, writer) = io::pipe()?;
    let tasks = fs::read_dir("/proc/self/task").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("/proc is not mounted"),
        _ => error,
    });
    if tasks?.count() != 1 {
        return Err(io::Error::other("other threads are running"));
    }
    // SAFETY: this is the only thread, as was just seen, so nobody else holds a lock or is in the middle of a change
    // in the memory that the child gets a copy of.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reader);
            settle(null)?;
            Ok(Starting(writer))
        }
        _ => {
            drop(writer);
            let status = wait(reader);
            // SAFETY: ends the process, without the handlers of exit(), which belong to the child now.
            unsafe { libc::_exit(status) }
        }
    }
}

impl Starting {
    /// Lets the parent end with status 0.
    pub fn ready(mut self) {
        // A parent that was killed needs no answer.
        let _ = self.0.write_all(b"!");
    }
}

fn settle(null: File) -> io::Result<()> {
    setsid()?;
    umask(Mode::empty());
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

fn wait(mut reader: PipeReader) -> i32 {
    let mut answer = [0; 1];
    i32::from(reader.read_exact(&mut answer).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        // Started from another thread, so that there are two whatever the test runner does.
        let refused = std::thread::spawn(|| detach().unwrap_err().to_string()).join().unwrap();
        assert_eq!(refused, "other threads are running");
    }

    #[test]
    fn parent_exits_with_the_status_of_the_child() {
        let (reader, writer) = io::pipe().unwrap();
        Starting(writer).ready();
        assert_eq!(wait(reader), 0);

        let (reader, writer) = io::pipe().unwrap();
        drop(Starting(writer));
        assert_eq!(wait(reader), 1);
    }
}
