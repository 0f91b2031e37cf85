//! PEM (RFC 7468, and RFC 1421 for the headers of keys that OpenSSL encrypts): sections of a text.
//!
//! Text between sections is skipped, as in OpenSSL: it holds comments. Byte order marks and blanks in front of a boundary, any line
//! end, and a missing one between two sections make no difference. Whatever looks like a part of a section and is none is an error,
//! so that no certificate is lost in silence.

use zeroize::Zeroizing;

use crate::base64;
use crate::der::{Reader, SEQUENCE};

/// Editors write it in front of a text, and whoever joins files has it in the middle.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";
/// A boundary in UTF-16, in either byte order.
const DASHES_IN_UTF_16: &[u8] = b"-\0-\0-";

/// One section: from its BEGIN to its END.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    /// Label of the section, such as `CERTIFICATE`.
    pub(crate) label: &'a str,
    /// Lines of the form `Name: value` in front of the body.
    headers: &'a [u8],
    /// Base64.
    body: &'a [u8],
}

/// Why a text is not PEM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PemError {
    /// A line begins a section and has something else behind its label.
    BadBeginLine,
    /// A section begins and does not end.
    BadEndLine,
    /// A section ends that has not begun.
    NoBeginLine,
    /// The text is UTF-16.
    Utf16,
    /// The body is not base64.
    BadBase64,
}

impl PemError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::BadBeginLine => "its line \"-----BEGIN\" is damaged",
            Self::BadEndLine => "its line \"-----END\" is missing or another one",
            Self::NoBeginLine => "its line \"-----BEGIN\" is missing",
            Self::Utf16 => "it is UTF-16, not ASCII",
            Self::BadBase64 => "what it holds is not base64",
        }
    }
}

impl<'a> Section<'a> {
    /// The bytes of the body; they are wiped.
    pub(crate) fn decode(&self) -> Result<Zeroizing<Vec<u8>>, PemError> {
        base64::decode(self.body).map_err(|base64::Malformed| PemError::BadBase64)
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        let mut lines = self.headers.split(|byte| matches!(byte, b'\n' | b'\r'));
        lines.find_map(|line| {
            let (text, value) = str::from_utf8(line).ok()?.split_once(':')?;
            (text.trim() == name).then(|| value.trim())
        })
    }
}

/// Returns true if a text is DER, as of a certificate or a key, rather than PEM.
pub(crate) fn is_der(text: &[u8]) -> bool {
    let mut reader = Reader::new(text);
    reader.expect(SEQUENCE).is_ok() && reader.end().is_ok()
}

/// Sections of a text, in order. The iterator ends after an error.
pub(crate) fn sections(text: &[u8]) -> Sections<'_> {
    Sections { rest: text }
}

/// See [`sections`].
pub(crate) struct Sections<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Sections<'a> {
    type Item = Result<Section<'a>, PemError>;

    fn next(&mut self) -> Option<Self::Item> {
        let label = loop {
            let line = trimmed(self.line()?);
            if line.starts_with(BEGIN) {
                match framed(line) {
                    Some(label) => break label,
                    None => return Some(self.fail(PemError::BadBeginLine)),
                }
            }
            if line.starts_with(END) {
                return Some(self.fail(PemError::NoBeginLine));
            }
            if line.windows(DASHES_IN_UTF_16.len()).any(|bytes| bytes == DASHES_IN_UTF_16) {
                return Some(self.fail(PemError::Utf16));
            }
        };
        let inside = self.rest;
        let mut headers_size = None;
        let mut size = 0;
        loop {
            let Some(line) = self.line() else {
                return Some(self.fail(PemError::BadEndLine));
            };
            let line = trimmed(line);
            if line.starts_with(DASHES) {
                match behind_end(line, label) {
                    Some(b"") => {}
                    // The text in front of it had no line end.
                    Some(next) if next.starts_with(BEGIN) => self.go_back_to_begin(inside, size),
                    _ => return Some(self.fail(PemError::BadEndLine)),
                }
                break;
            }
            size = inside.len() - self.rest.len();
            // RFC 1421, section 4.4: headers end with an empty line. Without a header there is none.
            if headers_size.is_none() && line.is_empty() {
                headers_size = Some(size);
            }
        }
        let (inside, _) = inside.split_at_checked(size).unwrap_or_default();
        let (headers, body) = match headers_size.and_then(|size| inside.split_at_checked(size)) {
            Some((headers, body)) if headers.contains(&b':') => (headers, body),
            _ => (&[][..], inside),
        };
        Some(Ok(Section { label, headers, body }))
    }
}

impl<'a> Sections<'a> {
    /// The next line, without its end: LF, CR LF or CR.
    fn line(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(self.rest.len());
        let (line, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.strip_prefix(b"\r\n").or_else(|| rest.get(1..)).unwrap_or_default();
        Some(line)
    }

    /// Continues with the first BEGIN in `text` behind `size` bytes.
    fn go_back_to_begin(&mut self, text: &'a [u8], size: usize) {
        let rest = text.get(size..).unwrap_or_default();
        let at = rest.windows(BEGIN.len()).position(|bytes| bytes == BEGIN);
        self.rest = at.and_then(|at| rest.get(at..)).unwrap_or_default();
    }

    fn fail(&mut self, error: PemError) -> Result<Section<'a>, PemError> {
        self.rest = &[];
        Err(error)
    }
}

/// A line without byte order marks and blanks around it. OpenSSL takes control characters for blanks at the end of a line.
fn trimmed(line: &[u8]) -> &[u8] {
    let mut line = line;
    loop {
        let shorter = line.trim_ascii_start();
        let shorter = shorter.strip_prefix(BYTE_ORDER_MARK).unwrap_or(shorter);
        if shorter.len() == line.len() {
            break;
        }
        line = shorter;
    }
    let size = line.iter().rposition(|byte| *byte > b' ').map_or(0, |at| at + 1);
    line.get(..size).unwrap_or_default()
}

/// The label of a line that begins a section.
fn framed(line: &[u8]) -> Option<&str> {
    let label = line.strip_prefix(BEGIN)?.strip_suffix(DASHES)?;
    let label = str::from_utf8(label).ok()?;
    (!label.contains('-')).then_some(label)
}

/// Text behind the boundary that ends a section.
fn behind_end<'a>(line: &'a [u8], label: &str) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(END)?.strip_prefix(label.as_bytes())?.strip_prefix(DASHES)?;
    Some(trimmed(rest))
}

/// A section of PEM.
pub(crate) fn encode(label: &str, bytes: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", base64::encode_lines(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_between_other_text() {
        let text = b"a comment\n-----BEGIN A B-----\r\nZm9v\r\n-----END A B-----\r\n# more\n-----BEGIN C-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nZm9v\nYmFy\n-----END C-----";
        let found_sections: Vec<_> = sections(text).map(Result::unwrap).collect();
        let [first, second] = found_sections.as_slice() else { panic!("{found_sections:?}") };
        assert_eq!((first.label, first.decode().unwrap().as_slice()), ("A B", &b"foo"[..]));
        assert_eq!((second.label, second.decode().unwrap().as_slice()), ("C", &b"foobar"[..]));
        assert_eq!(second.header("DEK-Info"), Some("AES-128-CBC,00"));
        assert_eq!(first.header("DEK-Info"), None);
    }

    #[test]
    fn damaged_sections_are_errors() {
        for (text, error) in [
            ("-----BEGIN A-----\nZm9v", PemError::BadEndLine),
            ("-----BEGIN A-----\n-----END B-----\n", PemError::BadEndLine),
            ("-----BEGIN A-----\n-----BEGIN A-----\n", PemError::BadEndLine),
            ("-----BEGIN A-----\n-----END A----\n", PemError::BadEndLine),
            ("-----BEGIN A-----\n-----END A----- and more\n", PemError::BadEndLine),
            ("-----BEGIN A----\nZm9v\n", PemError::BadBeginLine),
            ("-----BEGIN A----- Zm9v -----END A-----", PemError::BadBeginLine),
            ("----BEGIN A-----\nZm9v\n-----END A-----\n", PemError::NoBeginLine),
            ("text -----BEGIN A-----\nZm9v\n-----END A-----\n", PemError::NoBeginLine),
            ("\u{feff}-\0-\0-\0-\0-\0B\0E\0G\0I\0N\0", PemError::Utf16),
        ] {
            let mut sections = sections(text.as_bytes());
            assert_eq!(sections.next().unwrap().unwrap_err(), error, "{text}");
            assert!(sections.next().is_none());
        }
        assert!(sections(b"").next().is_none());
        let comment = "#-----BEGIN A-----\n#Zm9v\n#-----END A-----\n-----BEGINNING-----\n";
        assert!(sections(comment.as_bytes()).next().is_none());
    }

    #[test]
    fn texts_of_tools() {
        let one = "-----BEGIN A-----\nZm9v\nYmFy\n-----END A-----";
        for (before, between, after) in [
            ("", "\n", "\n"),
            ("\u{feff}", "\n\u{feff}", ""),
            ("\u{feff}", "\n\u{feff}\u{feff} ", "\u{feff}"),
            ("", "", ""),
            ("", "\u{feff}", "\r\n\r\n"),
            ("  ", " \t\n\t", " \n "),
            ("Bag Attributes\n    localKeyID: 01\nsubject=CN = a\n", "\nissuer=CN = b\n\n", "\n\u{1a}"),
            ("# a\n", "\n# \u{e9}\n", "\n# c"),
            ("\n\n\n", "\u{1a}\n", "\0"),
        ] {
            for line_end in ["\n", "\r\n", "\r", " \n", "\n    "] {
                let text = format!("{before}{one}{between}{one}{after}").replace('\n', line_end);
                let found_sections: Vec<_> = sections(text.as_bytes()).map(Result::unwrap).collect();
                let bodies: Vec<_> = found_sections.iter().map(|section| section.decode().unwrap()).collect();
                let [first, second] = &bodies[..] else {
                    panic!("{text:?}: {} sections", found_sections.len())
                };
                assert_eq!((&first[..], &second[..]), (&b"foobar"[..], &b"foobar"[..]), "{text:?}");
            }
        }
    }

    #[test]
    fn truncated_input_does_not_panic() {
        let text = encode("A", &[7; 100]);
        for end in 0..text.len() {
            for section in sections(&text.as_bytes()[..end]).flatten() {
                let _ = section.decode();
            }
        }
    }
}
