//! PEM (RFC 7468, and RFC 1421 for the headers of keys that OpenSSL encrypts): sections of a text.
//!
//! Text between sections is skipped, as in OpenSSL: it holds comments.

use zeroize::Zeroizing;

use crate::base64;
use crate::der::{Reader, SEQUENCE};

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
    /// A section begins and does not end.
    BadEndLine,
    /// The body is not base64.
    BadBase64,
}

impl PemError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::BadEndLine => "its line \"-----END\" is missing or another one",
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
        lines(self.headers).find_map(|line| {
            let (found, value) = str::from_utf8(line).ok()?.split_once(':')?;
            (found.trim() == name).then(|| value.trim())
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
            let line = self.line()?;
            if let Some(label) = framed(line, b"-----BEGIN ") {
                break label;
            }
        };
        let inside = self.rest;
        let mut size = 0;
        let mut headers_size = None;
        loop {
            let Some(line) = self.line() else {
                return Some(Err(PemError::BadEndLine));
            };
            if line.starts_with(b"-----") {
                if framed(line, b"-----END ") != Some(label) {
                    self.rest = &[];
                    return Some(Err(PemError::BadEndLine));
                }
                break;
            }
            size = inside.len() - self.rest.len();
            // RFC 1421, section 4.4: headers end with an empty line. Without a header there is none.
            if headers_size.is_none() && line.trim_ascii().is_empty() {
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
    fn line(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.iter().position(|byte| *byte == b'\n').map_or(self.rest.len(), |at| at + 1);
        let (line, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some(line)
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// The label of a line that begins so and ends as it should.
fn framed<'a>(line: &'a [u8], start: &[u8]) -> Option<&'a str> {
    let label = line.trim_ascii_end().strip_prefix(start)?.strip_suffix(b"-----")?;
    str::from_utf8(label).ok()
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
        let found: Vec<_> = sections(text).map(Result::unwrap).collect();
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.label, first.decode().unwrap().as_slice()), ("A B", &b"foo"[..]));
        assert_eq!((second.label, second.decode().unwrap().as_slice()), ("C", &b"foobar"[..]));
        assert_eq!(second.header("DEK-Info"), Some("AES-128-CBC,00"));
        assert_eq!(first.header("DEK-Info"), None);
    }

    #[test]
    fn sections_that_do_not_end() {
        for text in [
            "-----BEGIN A-----\nZm9v",
            "-----BEGIN A-----\n-----END B-----\n",
            "-----BEGIN A-----\n-----BEGIN A-----\n",
        ] {
            assert_eq!(
                sections(text.as_bytes()).next().unwrap().unwrap_err(),
                PemError::BadEndLine,
                "{text}"
            );
        }
        assert!(sections(b"-----BEGIN A----\nZm9v\n").next().is_none());
        assert!(sections(b"").next().is_none());
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
