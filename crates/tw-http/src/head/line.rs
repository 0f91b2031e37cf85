//! Parser of the request line, a state machine that stops and resumes at any byte (RFC 9112 section 3).
//!
//! ```text
//! Method ─ BeforeTarget ─┬─ Path ──────────────────────────────────────────┬─ AfterTarget ─ Protocol ─ Major ─ Minor ─ End
//!                        ├─ Scheme ─ Slashes ─┐                            │
//!                        └─ (CONNECT) ────────┴─ Host ─┬─ Port ────────────┘
//!                                                      └─ Literal ─ Port
//! ```

use super::HeadError;
use super::span::Span;
use crate::method::{Method, Version};
use crate::scan;

/// Parser of the request line; its results are positions, nothing is decoded.
#[derive(Debug)]
pub(super) struct LineParser {
    stage: Stage,
    pos: usize,
    pub(super) method: Method,
    pub(super) method_end: usize,
    pub(super) scheme: Option<Span>,
    /// Host and port of an absolute-form or authority-form target.
    pub(super) authority: Option<Span>,
    authority_start: usize,
    pub(super) target_start: usize,
    pub(super) target_end: usize,
    /// `http://host?args`: the path is a `/` that was not sent.
    pub(super) empty_path: bool,
    protocol_start: usize,
    pub(super) protocol: Span,
    major: u16,
    minor: u16,
    /// End of the line without CR and LF.
    pub(super) end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Method,
    BeforeTarget,
    Scheme,
    /// Number of bytes of `//` seen.
    Slashes(u8),
    BeforeHost,
    HostStart,
    Host,
    Literal,
    /// After the host: `:` or what follows an authority.
    HostEnd,
    PortStart,
    Port,
    Path,
    AfterTarget,
    /// Number of bytes of `HTTP/` seen.
    Protocol(u8),
    MajorStart,
    Major,
    MinorStart,
    Minor,
    AfterVersion,
    /// After CR: only LF may follow.
    Lf,
}

const PROTOCOL: &[u8] = b"HTTP/";

impl LineParser {
    pub(super) const fn new() -> Self {
        LineParser {
            stage: Stage::Method,
            pos: 0,
            method: Method::Other,
            method_end: 0,
            scheme: None,
            authority: None,
            authority_start: 0,
            target_start: 0,
            target_end: 0,
            empty_path: false,
            protocol_start: 0,
            protocol: Span::NOTHING,
            major: 0,
            minor: 9,
            end: 0,
        }
    }

    pub(super) fn version(&self) -> Version {
        Version(self.major * 1000 + self.minor)
    }

    /// Parses `line`, the bytes from the start of the request. Returns the length of the line, line end included,
    /// once it is complete.
    #[inline]
    pub(super) fn advance(&mut self, line: &[u8]) -> Result<Option<usize>, HeadError> {
        if self.pos == 0
            && let Some(len) = self.plain_line(line)
        {
            return Ok(Some(len));
        }
        self.step(line)
    }

    /// Fast path for a complete line of the usual form; `None` leaves it to the state machine.
    #[inline]
    fn plain_line(&mut self, line: &[u8]) -> Option<usize> {
        let (method, method_end) = match line {
            [b'G', b'E', b'T', b' ', b'/', ..] => (Method::Get, 3),
            [b'H', b'E', b'A', b'D', b' ', b'/', ..] => (Method::Head, 4),
            [b'P', b'O', b'S', b'T', b' ', b'/', ..] => (Method::Post, 4),
            _ => return None,
        };
        let target_start = method_end + 1;
        let target_end = target_start + scan::target_len(line.get(target_start..)?);
        let minor = match line.get(target_end..)?.first_chunk::<11>()? {
            b" HTTP/1.1\r\n" => 1,
            b" HTTP/1.0\r\n" => 0,
            _ => return None,
        };

        (self.method, self.method_end) = (method, method_end);
        (self.target_start, self.target_end) = (target_start, target_end);
        (self.major, self.minor) = (1, minor);
        self.end = target_end + 9;
        self.protocol = Span::new(target_end + 1, self.end);
        Some(self.end + 2)
    }

    fn step(&mut self, line: &[u8]) -> Result<Option<usize>, HeadError> {
        use HeadError::{InvalidMethod, InvalidRequest, InvalidVersion};

        while let Some(&byte) = line.get(self.pos) {
            match self.stage {
                Stage::Method => {
                    let rest = line.get(self.pos..).unwrap_or(b"");
                    let is_word = |byte: u8| byte.is_ascii_uppercase() || byte == b'_' || byte == b'-';
                    let Some(len) = rest.iter().position(|&byte| !is_word(byte)) else {
                        self.pos = line.len();
                        break;
                    };
                    self.pos += len;
                    if self.pos == 0 || rest.get(len) != Some(&b' ') {
                        return Err(InvalidMethod);
                    }
                    self.method_end = self.pos;
                    self.method = Method::of(line.get(..self.pos).unwrap_or(b""));
                    let connect = self.method == Method::Connect;
                    self.stage = if connect { Stage::BeforeHost } else { Stage::BeforeTarget };
                }

                Stage::BeforeTarget => match byte {
                    b'/' => {
                        self.target_start = self.pos;
                        self.stage = Stage::Path;
                    }
                    b' ' => {}
                    _ if byte.is_ascii_alphabetic() => {
                        self.target_start = self.pos;
                        self.stage = Stage::Scheme;
                    }
                    _ => return Err(InvalidRequest),
                },

                Stage::Scheme => match byte {
                    b':' => {
                        self.scheme = Some(Span::new(self.target_start, self.pos));
                        self.stage = Stage::Slashes(0);
                    }
                    b'+' | b'-' | b'.' => {}
                    _ if byte.is_ascii_alphanumeric() => {}
                    _ => return Err(InvalidRequest),
                },

                Stage::Slashes(seen_count) => match (byte, seen_count) {
                    (b'/', 0) => {
                        // `http://host` has no path; its `/` is this one, so that the path is a piece of the line.
                        self.target_start = self.pos;
                        self.stage = Stage::Slashes(1);
                    }
                    (b'/', _) => self.stage = Stage::HostStart,
                    _ => return Err(InvalidRequest),
                },

                Stage::BeforeHost if byte == b' ' => {}
                Stage::BeforeHost | Stage::HostStart => {
                    self.authority_start = self.pos;
                    self.stage = if byte == b'[' { Stage::Literal } else { Stage::Host };
                    if self.stage == Stage::Host {
                        continue; // the byte may already end the host
                    }
                }

                Stage::Host => {
                    if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-') {
                        self.stage = Stage::HostEnd;
                        continue;
                    }
                }

                Stage::Literal => match byte {
                    b']' => self.stage = Stage::HostEnd,
                    b':' => {}
                    _ if scan::is_host(byte) && byte != b'%' => {}
                    _ => return Err(InvalidRequest),
                },

                Stage::HostEnd => match byte {
                    b':' => self.stage = Stage::PortStart,
                    _ if self.method == Method::Connect => return Err(InvalidRequest),
                    _ => self.end_authority(byte)?,
                },

                Stage::PortStart if byte.is_ascii_digit() => self.stage = Stage::Port,
                Stage::PortStart if self.method == Method::Connect => return Err(InvalidRequest),
                Stage::Port if byte.is_ascii_digit() => {}
                Stage::PortStart | Stage::Port => self.end_authority(byte)?,

                Stage::Path => {
                    let rest = line.get(self.pos..).unwrap_or(b"");
                    let len = scan::target_len(rest);
                    self.pos += len;
                    let Some(&byte) = rest.get(len) else { break };
                    self.target_end = self.pos;
                    self.stage = Stage::AfterTarget;
                    match byte {
                        b' ' => {}
                        b'\r' | b'\n' => continue,
                        _ => return Err(InvalidRequest),
                    }
                }

                Stage::AfterTarget => match byte {
                    b' ' => {}
                    b'H' => {
                        self.protocol_start = self.pos;
                        self.stage = Stage::Protocol(1);
                    }
                    b'\r' => self.carriage_return(),
                    b'\n' => return self.done(self.pos),
                    _ => return Err(InvalidRequest),
                },

                Stage::Protocol(seen_count) => {
                    if PROTOCOL.get(usize::from(seen_count)) != Some(&byte) {
                        return Err(InvalidRequest);
                    }
                    self.stage = Stage::Protocol(seen_count + 1);
                    if usize::from(seen_count) + 1 == PROTOCOL.len() {
                        self.stage = Stage::MajorStart;
                        if self.method == Method::Connect {
                            // CONNECT has no path; the `/` of `HTTP/` stands in for it.
                            (self.target_start, self.target_end) = (self.pos, self.pos + 1);
                        }
                    }
                }

                Stage::MajorStart => match byte {
                    b'1' => (self.major, self.stage) = (1, Stage::Major),
                    b'2'..=b'9' => return Err(InvalidVersion),
                    _ => return Err(InvalidRequest),
                },

                Stage::Major => match byte {
                    b'.' => self.stage = Stage::MinorStart,
                    b'0'..=b'9' => return Err(InvalidVersion),
                    _ => return Err(InvalidRequest),
                },

                Stage::MinorStart => match byte {
                    b'0'..=b'9' => (self.minor, self.stage) = (u16::from(byte - b'0'), Stage::Minor),
                    _ => return Err(InvalidRequest),
                },

                Stage::Minor => match byte {
                    b'\r' | b'\n' | b' ' => {
                        // DIFF(nginx): blanks behind it are no part of it.
                        self.protocol = Span::new(self.protocol_start, self.pos);
                        self.stage = Stage::AfterVersion;
                        continue;
                    }
                    b'0'..=b'9' if self.minor <= 99 => {
                        self.minor = self.minor * 10 + u16::from(byte - b'0');
                    }
                    _ => return Err(InvalidRequest),
                },

                Stage::AfterVersion => match byte {
                    b' ' => {}
                    b'\r' => self.carriage_return(),
                    b'\n' => return self.done(self.pos),
                    _ => return Err(InvalidRequest),
                },

                Stage::Lf => {
                    let end = self.end;
                    return if byte == b'\n' { self.done(end) } else { Err(InvalidRequest) };
                }
            }
            self.pos += 1;
        }
        Ok(None)
    }

    /// The byte after host and port of an absolute-form target.
    fn end_authority(&mut self, byte: u8) -> Result<(), HeadError> {
        self.authority = Some(Span::new(self.authority_start, self.pos));
        match (self.method, byte) {
            (Method::Connect, b' ') => self.stage = Stage::AfterTarget,
            (Method::Connect, _) => return Err(HeadError::InvalidRequest),
            (_, b'/') => {
                self.target_start = self.pos;
                self.stage = Stage::Path;
            }
            (_, b'?') => {
                self.empty_path = true;
                self.target_start = self.pos;
                self.stage = Stage::Path;
            }
            (_, b' ') => {
                self.target_end = self.target_start + 1;
                self.stage = Stage::AfterTarget;
            }
            _ => return Err(HeadError::InvalidRequest),
        }
        Ok(())
    }

    fn carriage_return(&mut self) {
        self.end = self.pos;
        self.stage = Stage::Lf;
    }

    fn done(&mut self, end: usize) -> Result<Option<usize>, HeadError> {
        self.end = end;
        if self.version() == Version::HTTP_09 && self.method != Method::Get {
            return Err(HeadError::InvalidMethodInHttp09);
        }
        Ok(Some(self.pos + 1))
    }
}
