//! Parser of field lines, which stops and resumes at any byte (RFC 9112 section 5).
//!
//! ```text
//! Start ─ Name ─ BeforeValue ─ Value ─ Cr ─ (next line)
//!   └─ LastCr ─ (end of the fields)
//! ```

use super::span::Span;
use crate::header_name::HeaderName;
use crate::scan;

/// State of the parser in the current line. Positions are offsets in the bytes given to [`FieldParser::advance`].
#[derive(Debug)]
pub(crate) struct FieldParser {
    stage: Stage,
    /// The next byte to look at.
    pub(crate) pos: usize,
    /// Start of the current line.
    pub(crate) line_start: usize,
    name_end: usize,
    value_start: usize,
    /// End of the value, or the position of an error in the current line.
    pub(crate) value_end: usize,
    /// True if the name has a character other than letters, digits and `-`.
    odd_name: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Start,
    Name,
    BeforeValue,
    Value,
    Cr,
    LastCr,
}

/// Rules for the fields of requests, responses or trailers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldRules {
    /// A client's, by nginx's rules: a name without a colon is a field.
    // DIFF(nginx): nginx takes several CRs at the end of a line.
    Client {
        /// True if `_` is a normal character of a name.
        underscores: bool,
    },
    /// An origin's: no control characters but a tab in a value, one CR at the end of a line or none.
    // DIFF(nginx): nginx refuses only NUL, and skips a line that begins with `HTTP/`.
    Origin,
}

impl FieldRules {
    #[inline]
    fn value_len(self, bytes: &[u8]) -> usize {
        match self {
            FieldRules::Client { .. } => scan::value_len(bytes),
            FieldRules::Origin => scan::text_len(bytes),
        }
    }

    fn allows_underscores(self) -> bool {
        !matches!(self, FieldRules::Client { underscores: false })
    }
}

/// Result of [`FieldParser::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldEvent {
    /// The line is not complete.
    NeedMore,
    /// Complete line; `odd_name` is true for a name that nginx considers invalid.
    Field { name: Span, value: Span, known: Option<HeaderName>, odd_name: bool },
    /// The empty line.
    End,
    /// The line is wrong at `value_end`.
    Invalid,
}

impl FieldParser {
    /// Starts at `pos`, the first byte of the first line.
    pub(crate) const fn at(pos: usize) -> Self {
        FieldParser {
            stage: Stage::Start,
            pos,
            line_start: pos,
            name_end: pos,
            value_start: pos,
            value_end: pos,
            odd_name: false,
        }
    }

    /// Reads on until the end of a line or of `bytes`.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: &[u8], rules: FieldRules) -> FieldEvent {
        if matches!(self.stage, Stage::Start)
            && let Some(event) = self.plain_line(bytes, rules)
        {
            return event;
        }
        self.step(bytes, rules)
    }

    /// Fast path for a complete and regular line; `None` leaves it to the state machine.
    #[inline]
    fn plain_line(&mut self, bytes: &[u8], rules: FieldRules) -> Option<FieldEvent> {
        let line = bytes.get(self.pos..)?;
        let (name, rest) = line.split_at_checked(scan::before_colon(line))?;
        let known_name = HeaderName::find_at_start(line, name.len());
        // A known name has only proper characters.
        if known_name.is_none() && (name.is_empty() || scan::name_len(name) < name.len()) {
            return None;
        }
        let value = rest.strip_prefix(b":")?;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if value.first() == Some(&b' ') {
            return None;
        }
        let (value, rest) = value.split_at_checked(rules.value_len(value))?;
        let (Some(b'\r'), Some(b'\n')) = (rest.first(), rest.get(1)) else { return None };
        if value.last() == Some(&b' ') {
            return None;
        }

        let name = Span::new(self.pos, self.pos + name.len());
        let value_end = bytes.len() - rest.len();
        let value = Span::new(value_end - value.len(), value_end);
        self.line_start = self.pos;
        self.pos = value_end + 2;
        Some(FieldEvent::Field { name, value, known: known_name, odd_name: false })
    }

    fn step(&mut self, bytes: &[u8], rules: FieldRules) -> FieldEvent {
        while let Some(&byte) = bytes.get(self.pos) {
            match self.stage {
                Stage::Start => {
                    self.line_start = self.pos;
                    self.value_end = self.pos;
                    self.odd_name = false;
                    match byte {
                        b'\r' => self.stage = Stage::LastCr,
                        b'\n' => return self.end_of_line(FieldEvent::End),
                        b':' => return FieldEvent::Invalid,
                        _ => {
                            self.stage = Stage::Name;
                            continue;
                        }
                    }
                }

                Stage::Name => {
                    let rest = bytes.get(self.pos..).unwrap_or(b"");
                    let len = scan::name_len(rest);
                    self.pos += len;
                    let Some(&byte) = rest.get(len) else { break };
                    self.name_end = self.pos;
                    match byte {
                        b':' => self.stage = Stage::BeforeValue,
                        b'_' => self.odd_name |= !rules.allows_underscores(),
                        b'\r' | b'\n' if self.pos > self.line_start => {
                            // A line without a colon is a field without a value, for nginx.
                            self.stage = Stage::BeforeValue;
                            continue;
                        }
                        0..=b' ' | 0x7f => return self.invalid(),
                        _ => self.odd_name = true,
                    }
                }

                Stage::BeforeValue => {
                    if byte != b' ' {
                        self.value_start = self.pos;
                        self.value_end = self.pos;
                        self.stage = Stage::Value;
                        continue;
                    }
                }

                Stage::Value => {
                    let rest = bytes.get(self.pos..).unwrap_or(b"");
                    let len = rules.value_len(rest);
                    self.pos += len;
                    let Some(&byte) = rest.get(len) else { break };
                    self.trim(bytes);
                    match byte {
                        b'\r' => self.stage = Stage::Cr,
                        b'\n' => return self.field(bytes),
                        _ => return self.invalid(),
                    }
                }

                Stage::Cr => match byte {
                    b'\n' => return self.field(bytes),
                    _ => return FieldEvent::Invalid,
                },

                Stage::LastCr => match byte {
                    b'\n' => return self.end_of_line(FieldEvent::End),
                    _ => return FieldEvent::Invalid,
                },
            }
            self.pos += 1;
        }
        FieldEvent::NeedMore
    }

    /// The value ends before the spaces at its end; a tab stays, as in nginx.
    fn trim(&mut self, bytes: &[u8]) {
        let value = bytes.get(self.value_start..self.pos).unwrap_or(b"");
        let spaces = value.iter().rev().take_while(|&&byte| byte == b' ').count();
        self.value_end = self.pos - spaces;
    }

    fn field(&mut self, bytes: &[u8]) -> FieldEvent {
        let name = Span::new(self.line_start, self.name_end);
        let known_name = HeaderName::find(name.of(bytes));
        let value = Span::new(self.value_start, self.value_end);
        let odd_name = self.odd_name;
        self.end_of_line(FieldEvent::Field { name, value, known: known_name, odd_name })
    }

    fn end_of_line(&mut self, event: FieldEvent) -> FieldEvent {
        self.pos += 1;
        self.stage = Stage::Start;
        event
    }

    fn invalid(&mut self) -> FieldEvent {
        self.value_end = self.pos;
        FieldEvent::Invalid
    }
}
