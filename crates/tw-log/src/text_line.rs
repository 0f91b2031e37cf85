//! One line of an error log in the format of nginx: cut at its limit, and without control characters, so that no peer can forge one.

use std::fmt::{self, Write as _};

use crate::{Level, time};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of one line of an error log.
    ///
    /// Longest line in bytes, with its line feed, as in nginx; longer ones are cut.
    pub const LINE_MAX: usize = 2048, bytes, "the line is cut";
}

/// Bytes a peer sent, for a message: valid UTF-8 as it is, other bytes as `\xFF`. Control characters are the log's
/// affair.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a>(pub &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// A line under construction, on the stack.
pub(crate) struct TextLine {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl TextLine {
    pub(crate) fn new(
        unix_s: i64,
        level: Level,
        connection: Option<u64>,
        message: fmt::Arguments<'_>,
    ) -> Self {
        let mut line = Self { bytes: [0; LINE_MAX], len: 0 };
        line.put(&time::error_time(unix_s));
        // These system calls never wait; a cached value would be wrong after fork().
        let pid = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero();
        // An error only says that the line is full.
        let _ = write!(line, " [{level}] {pid}#{tid}: ");
        if let Some(connection) = connection {
            let _ = write!(line, "*{connection} ");
        }
        let _ = line.write_fmt(message);
        line.bytes[line.len] = b'\n';
        line.len += 1;
        line
    }

    /// Appends what fits before the line feed; `false` if something did not.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let room = LINE_MAX - 1 - self.len;
        let fits = bytes.len().min(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&bytes[..fits]);
        self.len += fits;
        fits == bytes.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for TextLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // DIFF(nginx): control characters are escaped in every message; nginx writes what the peer sent.
        for piece in text.as_bytes().split_inclusive(u8::is_ascii_control) {
            let (plain, control) = match piece.split_last() {
                Some((last, plain)) if last.is_ascii_control() => (plain, Some(*last)),
                _ => (piece, None),
            };
            let fits = self.put(plain) && control.is_none_or(|byte| self.put(&crate::escape::hex(byte)));
            if !fits {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(connection: Option<u64>, message: fmt::Arguments<'_>) -> String {
        let line = TextLine::new(0, Level::Error, connection, message);
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    #[test]
    fn lines_have_the_shape_of_nginx() {
        let pid = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero();
        let line = line(Some(7), format_args!("open() \"{}\" failed", "/x"));
        let (time, rest) = line.split_at(19);
        assert!(time.bytes().zip(*b"0000/00/00 00:00:00").all(|(is, shape)| match shape {
            b'0' => is.is_ascii_digit(),
            _ => is == shape,
        }));
        assert_eq!(rest, format!(" [error] {pid}#{tid}: *7 open() \"/x\" failed\n"));
    }

    #[test]
    fn message_is_one_line_for_any_input() {
        let peer = Text(b"a\r\n2026/11/20 [emerg] \x1b[31m\x7f\xff\xc3\xa9\"");
        let line = line(None, format_args!("client sent {peer}"));
        assert!(
            line.ends_with(": client sent a\\x0D\\x0A2026/11/20 [emerg] \\x1B[31m\\x7F\\xFFé\"\n"),
            "{line}"
        );
    }

    #[test]
    fn long_messages_are_cut() {
        for len in [LINE_MAX - 100, LINE_MAX, 100_000] {
            let line = line(None, format_args!("{}\n", "m".repeat(len)));
            assert!(line.len() <= LINE_MAX);
            assert_eq!(line.matches('\n').count(), 1);
            assert!(line.ends_with('\n'));
            if len >= LINE_MAX {
                assert_eq!(line.len(), LINE_MAX);
            }
        }
    }
}
