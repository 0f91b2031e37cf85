//! tar archives in the format of POSIX (ustar), with extended headers (pax) for long names and large files.

use std::io::{self, Write};

/// Bytes of a record: a header, or the unit that content is filled up to.
const RECORD: usize = 512;
/// Bytes of a name in a header, and of a size in octal digits.
const NAME_SIZE: usize = 100;
const SIZE_MAX: u64 = 0o77_777_777_777;

/// Archive that is being written.
pub(super) struct Tar<W> {
    out: W,
    /// Bytes that the entry begun last still has to get.
    missing: u64,
    /// Bytes behind it up to a whole record.
    padding: usize,
}

impl<W: Write> Tar<W> {
    /// Begins an archive.
    pub(super) fn new(out: W) -> Self {
        Self { out, missing: 0, padding: 0 }
    }

    /// Begins a file of so many bytes, which [`Tar::write`] gets.
    ///
    /// # Errors
    /// Writing has failed, or the entry before is not complete.
    pub(super) fn begin(&mut self, name: &str, size: u64, mtime: i64) -> io::Result<()> {
        self.end_entry()?;
        let mut extended = Vec::new();
        if name.len() > NAME_SIZE || !name.is_ascii() {
            push_record("path", name, &mut extended);
        }
        if size > SIZE_MAX {
            push_record("size", &size.to_string(), &mut extended);
        }
        if !extended.is_empty() {
            self.header("pax", b'x', extended.len() as u64, mtime)?;
            self.out.write_all(&extended)?;
            self.pad(extended.len() as u64)?;
        }
        self.header(name, b'0', size, mtime)?;
        (self.missing, self.padding) = (size, padding(size));
        Ok(())
    }

    /// Writes content of the file that was begun last.
    ///
    /// # Errors
    /// Writing has failed, or these are more bytes than were announced.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let missing = self.missing.checked_sub(bytes.len() as u64);
        self.missing = missing.ok_or_else(|| io::Error::other("an entry is longer than announced"))?;
        self.out.write_all(bytes)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// As [`Tar::begin`].
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.end_entry()?;
        self.out.write_all(&[0; 2 * RECORD])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_entry(&mut self) -> io::Result<()> {
        if self.missing > 0 {
            return Err(io::Error::other("an entry is shorter than announced"));
        }
        let padding = std::mem::take(&mut self.padding);
        self.out.write_all(&[0; RECORD][..padding])
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        self.out.write_all(&[0; RECORD][..padding(size)])
    }

    fn header(&mut self, name: &str, kind: u8, size: u64, mtime: i64) -> io::Result<()> {
        let mut record = [0; RECORD];
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        let octal = |number: u64, width: usize| format!("{number:0width$o}\0").into_bytes();
        let shown: String = name.chars().filter(char::is_ascii).take(NAME_SIZE).collect();
        put(0, shown.as_bytes());
        put(100, &octal(0o644, 7));
        put(108, &octal(0, 7));
        put(116, &octal(0, 7));
        // A size that does not fit is in the extended header.
        put(124, &octal(size.min(SIZE_MAX), 11));
        put(136, &octal(u64::try_from(mtime).unwrap_or(0).min(SIZE_MAX), 11));
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u64 = record.iter().map(|byte| u64::from(*byte)).sum();
        record[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.write_all(&record)
    }
}

/// Bytes behind a content of this size up to a whole record.
fn padding(size: u64) -> usize {
    let rest = usize::try_from(size % RECORD as u64).unwrap_or(0);
    if rest == 0 { 0 } else { RECORD - rest }
}

/// Appends a record of an extended header, which begins with its own length.
fn push_record(name: &str, value: &str, out: &mut Vec<u8>) {
    let rest = name.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    out.extend_from_slice(format!("{len} {name}={value}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_records_tell_their_length() {
        for (len, expected) in [(1, 9), (89, 98), (90, 99), (91, 101), (2000, 2011)] {
            let mut out = Vec::new();
            push_record("path", &"a".repeat(len), &mut out);
            let text = String::from_utf8(out.clone()).unwrap();
            let stated_value: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!((stated_value, out.len()), (expected, expected), "{len}");
        }
    }

    #[test]
    fn entries_have_the_announced_size() {
        let mut tar = Tar::new(Vec::new());
        tar.begin("a", 3, 7).unwrap();
        assert!(tar.write(b"abcd").is_err());
        let mut tar = Tar::new(Vec::new());
        tar.begin("a", 3, 7).unwrap();
        tar.write(b"ab").unwrap();
        assert!(tar.begin("b", 0, 0).is_err());
        tar.write(b"c").unwrap();
        tar.begin(&"b".repeat(300), SIZE_MAX + 1, 0).unwrap();
        assert!(tar.finish().is_err());
        let mut tar = Tar::new(Vec::new());
        tar.begin("a", 512, 7).unwrap();
        tar.write(&[1; 512]).unwrap();
        assert_eq!(tar.finish().unwrap().len(), 4 * RECORD);
    }
}
