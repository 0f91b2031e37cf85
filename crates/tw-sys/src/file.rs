//! Pages of files and the disk (sync_file_range(2)).

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// Kinds of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// The disk begins to take what it has not got. Waits only if it takes no more requests.
    Begin,
    /// The disk has taken it: waits for that.
    Finish,
}

/// Writes pages of a file back that lie in `range` (bytes of the file). Says nothing of the length of the file and of where its
/// blocks are: this is no `fsync`.
///
/// Errors: `EIO`, `ENOSPC` … if the disk has not taken something of this file since its descriptor was last told so; `ESPIPE` if
/// it is no file.
pub fn write_back(fd: impl AsFd, range: &Range<u64>, what: WriteBack) -> io::Result<()> {
    if range.is_empty() {
        // The kernel takes a length of 0 for the rest of the file.
        return Ok(());
    }
    let flags = match what {
        WriteBack::Begin => libc::SYNC_FILE_RANGE_WRITE,
        WriteBack::Finish => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    let offset = range.start.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let len = (range.end - range.start).try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes numbers only; the descriptor is borrowed for as long as the call takes.
    let rc = unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), offset, len, flags) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn files_are_written_back_and_pipes_are_none() {
        let path = std::env::temp_dir().join(format!("tw-sys-write-back-{}", std::process::id()));
        let mut file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        for what in [WriteBack::Begin, WriteBack::Finish] {
            for range in [0..0, 0..100_000, 4096..8192, 1 << 40..(1 << 40) + 1] {
                write_back(&file, &range, what).unwrap();
            }
            assert!(write_back(&file, &(0..u64::MAX), what).is_err());
        }
        let (pipe, _other) = io::pipe().unwrap();
        assert_eq!(
            write_back(&pipe, &(0..1), WriteBack::Begin).unwrap_err().raw_os_error(),
            Some(libc::ESPIPE)
        );
    }
}
