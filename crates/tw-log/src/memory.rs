//! `error_log memory:size`: the newest lines, in a file that is only in memory.
//!
//! ```text
//! │ newest … newest │ mark │ oldest … oldest │
//!                   └ the next line goes here
//! ```
//!
//! `cat /proc/PID/fd/N` shows it, whatever the process is doing; `ls -l /proc/PID/fd` shows which N.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pwrite};

use crate::target::Memory;

/// Mark after the newest line. The line after it may be cut.
const MARK: &[u8] = b"--- the newest line is above, the oldest below ---\n";
/// The kernel takes no longer names.
const NAME_MAX: usize = 200;

/// The smallest buffer, bytes: a line and the mark.
pub const SIZE_MIN: usize = crate::LINE_MAX + MARK.len();

/// A cyclic buffer.
#[derive(Debug)]
pub(crate) struct Cyclic {
    file: OwnedFd,
    size: usize,
    at: usize,
}

impl Cyclic {
    pub(crate) fn new(memory: &Memory) -> Result<Self, Errno> {
        let mut name: String = memory.name.chars().filter(|c| !c.is_control()).collect();
        while name.len() > NAME_MAX {
            name.pop();
        }
        let file = memfd_create(name.as_str(), MemfdFlags::CLOEXEC)?;
        Ok(Self { file, size: memory.size.max(SIZE_MIN), at: 0 })
    }

    /// Appends lines, whole ones, over the oldest.
    pub(crate) fn write<'l>(&mut self, lines: impl Iterator<Item = &'l [u8]>) -> Result<(), Errno> {
        for line in lines {
            let line = &line[..line.len().min(self.size - MARK.len())];
            if self.at + line.len() + MARK.len() > self.size {
                self.blank_rest()?;
                self.at = 0;
            }
            self.put(line)?;
            self.at += line.len();
        }
        self.put(MARK)
    }

    /// Blanks the old bytes after the newest line at the end of the file, which would otherwise be read as lines
    /// before the oldest.
    fn blank_rest(&mut self) -> Result<(), Errno> {
        let mut blank = vec![b' '; self.size - self.at];
        if let Some(last) = blank.last_mut() {
            *last = b'\n';
        }
        self.put(&blank)
    }

    fn put(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        let mut at = self.at as u64;
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, at) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    at += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::pread;

    use super::*;

    fn text(cyclic: &Cyclic) -> String {
        let mut bytes = vec![0; cyclic.size + 1];
        let n = pread(&cyclic.file, &mut bytes[..], 0).unwrap();
        assert!(n <= cyclic.size);
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    }

    #[test]
    fn newest_lines_stay_and_only_the_one_after_the_mark_is_cut() {
        let mut cyclic = Cyclic::new(&Memory { name: "test".into(), size: SIZE_MIN }).unwrap();
        let line = |n: usize| format!("line {n} {}\n", "x".repeat(n * 37 % 150));
        let mark = str::from_utf8(MARK).unwrap();
        for n in 0..500 {
            cyclic.write([line(n).as_bytes()].into_iter()).unwrap();
            let text = text(&cyclic);
            let (newest, oldest) = text.split_once(mark).unwrap();
            let newest: Vec<&str> = newest.lines().collect();
            let first = n + 1 - newest.len();
            for (at, line_seen) in newest.iter().enumerate() {
                assert_eq!(format!("{line_seen}\n"), line(first + at));
            }
            let old: Vec<&str> = oldest.lines().skip(1).filter(|line| !line.trim().is_empty()).collect();
            // A cut line and blanks are no lines; the others are those before the newest.
            let old: Vec<&&str> = old.iter().filter(|line| line.starts_with("line ")).collect();
            for (back, line_seen) in old.iter().rev().enumerate() {
                assert_eq!(
                    format!("{}\n", line_seen.trim_end()).trim_end(),
                    line(first - 1 - back).trim_end()
                );
            }
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let mut cyclic = Cyclic::new(&Memory { name: "n".repeat(300), size: 0 }).unwrap();
        cyclic.write([&[b'y'; 10_000][..], b"next\n"].into_iter()).unwrap();
        assert!(text(&cyclic).starts_with("next\n---"));
    }
}
