//! Parser of the status line, a state machine that stops and resumes at any byte (RFC 9112 section 4).
//!
//! ```text
//! Prefix ─ Minor ─ AfterVersion ─ Status ─ AfterStatus ─ Reason ─ Lf
//! ```

use super::OriginError;
use crate::head::Span;
use crate::method::Version;
use crate::{num, scan};

/// Parts of the status line. Positions are offsets in the bytes given to [`StatusLine::advance`].
#[derive(Debug)]
pub(super) struct StatusLine {
    stage: Stage,
    pos: usize,
    pub(super) version: Version,
    pub(super) status: u16,
    /// From the first digit of the status to the end of the line.
    pub(super) text: Span,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Prefix,
    Minor,
    AfterVersion,
    /// Number of digits seen.
    Status(u8),
    AfterStatus,
    Reason,
    /// After CR: only LF may follow.
    Lf,
}

const PREFIX: &[u8] = b"HTTP/1.";

/// Length of the part of [`PREFIX`] that identifies a status line.
const NAME_LEN: usize = 5;

impl StatusLine {
    pub(super) const fn new() -> Self {
        StatusLine { stage: Stage::Prefix, pos: 0, version: Version::HTTP_10, status: 0, text: Span::NOTHING }
    }

    /// Parses `bytes`, which start with the line. Returns the length of the line, line end included, once it is
    /// complete.
    #[inline]
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, OriginError> {
        if self.pos == 0
            && let Some(len) = self.plain_line(bytes)
        {
            return Ok(Some(len));
        }
        self.step(bytes)
    }

    /// Fast path for a complete line of the usual form; `None` leaves it to the state machine.
    #[inline]
    fn plain_line(&mut self, bytes: &[u8]) -> Option<usize> {
        let (start, rest) = bytes.split_first_chunk::<9>()?;
        let version = match start {
            b"HTTP/1.1 " => Version::HTTP_11,
            b"HTTP/1.0 " => Version::HTTP_10,
            _ => return None,
        };
        let status = num::parse(rest.get(..3)?).filter(|&status| status >= 100)?;
        if rest.get(3) != Some(&b' ') {
            return None;
        }
        let end = start.len() + scan::text_len(rest);
        let (b'\r', b'\n') = (*bytes.get(end)?, *bytes.get(end + 1)?) else { return None };

        (self.version, self.status) = (version, status as u16);
        self.text = Span::new(start.len(), end);
        Some(end + 2)
    }

    fn step(&mut self, bytes: &[u8]) -> Result<Option<usize>, OriginError> {
        use OriginError::{InvalidStatusLine, NoStatusLine};

        while let Some(&byte) = bytes.get(self.pos) {
            match self.stage {
                Stage::Prefix => {
                    if PREFIX.get(self.pos) != Some(&byte) {
                        return Err(if self.pos < NAME_LEN { NoStatusLine } else { InvalidStatusLine });
                    }
                    if self.pos + 1 == PREFIX.len() {
                        self.stage = Stage::Minor;
                    }
                }

                Stage::Minor if byte.is_ascii_digit() => {
                    self.version = Version(1000 + u16::from(byte - b'0'));
                    self.stage = Stage::AfterVersion;
                }

                Stage::AfterVersion if byte == b' ' => self.stage = Stage::Status(0),

                // nginx skips spaces in front of the status, and they can mean nothing else.
                Stage::Status(0) if byte == b' ' => {}

                Stage::Status(seen_count) if byte.is_ascii_digit() => {
                    if seen_count == 0 {
                        if byte == b'0' {
                            return Err(InvalidStatusLine);
                        }
                        self.text = Span::new(self.pos, self.pos);
                    }
                    self.status = self.status * 10 + u16::from(byte - b'0');
                    self.stage =
                        if seen_count == 2 { Stage::AfterStatus } else { Stage::Status(seen_count + 1) };
                }

                Stage::AfterStatus => match byte {
                    b' ' => self.stage = Stage::Reason,
                    b'\r' => self.carriage_return(),
                    b'\n' => return Ok(Some(self.line_feed())),
                    _ => return Err(InvalidStatusLine),
                },

                Stage::Reason => {
                    let rest = bytes.get(self.pos..).unwrap_or(b"");
                    let len = scan::text_len(rest);
                    self.pos += len;
                    match rest.get(len) {
                        None => break,
                        Some(b'\r') => self.carriage_return(),
                        Some(b'\n') => return Ok(Some(self.line_feed())),
                        Some(_) => return Err(InvalidStatusLine),
                    }
                }

                Stage::Lf if byte == b'\n' => return Ok(Some(self.pos + 1)),

                Stage::Minor | Stage::AfterVersion | Stage::Status(_) | Stage::Lf => {
                    return Err(InvalidStatusLine);
                }
            }
            self.pos += 1;
        }
        Ok(None)
    }

    fn carriage_return(&mut self) {
        self.text = Span::new(self.text.start(), self.pos);
        self.stage = Stage::Lf;
    }

    fn line_feed(&mut self) -> usize {
        self.text = Span::new(self.text.start(), self.pos);
        self.pos + 1
    }
}
