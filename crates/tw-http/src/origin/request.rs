//! Requests to an origin: a new head, written line by line, and the framing of a chunked body.
//!
//! Nothing that could end a line or be ambiguous is ever written: a value with CR, LF or NUL, a target with a space,
//! a second length, a length beside a coding. These are errors, after which the part of the head already written is
//! removed.
// DIFF(nginx): nginx writes what its variables have.

use std::fmt;

use crate::chunked::{CHUNK_END, ChunkHead, LAST_CHUNK};
use crate::fields::Fields;
use crate::head::Framing;
use crate::header_name::HeaderName;
use crate::method::Version;
use crate::{hop, num, scan};

/// Why a request cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The method is not a token (RFC 9110 section 5.6.2).
    Method,
    /// The target is empty, or has a space or a control character.
    Target,
    /// The name of a field is empty, or has a space, a colon or a control character.
    Name,
    /// The value of a field has CR, LF or NUL.
    Value,
    /// `Host`, `Content-Length` or `Transfer-Encoding` is there already.
    Duplicate(HeaderName),
    /// `Content-Length` is not a number.
    ContentLength,
    /// `Transfer-Encoding` is not `chunked`, or the version has none.
    TransferEncoding,
    /// `Content-Length` and `Transfer-Encoding` together.
    LengthAndTransferEncoding,
    /// A trailer that may not be one.
    Trailer,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteError::Method => "the method of the request to the upstream is invalid",
            WriteError::Target => "the URI of the request to the upstream has a space or a control character",
            WriteError::Name => "the name of a header of the request to the upstream is invalid",
            WriteError::Value => "a header of the request to the upstream has a line break or a null",
            WriteError::Duplicate(name) => {
                return write!(f, "the request to the upstream has two \"{}\" headers", name.as_str());
            }
            WriteError::ContentLength => {
                "the request to the upstream has an invalid \"Content-Length\" header"
            }
            WriteError::TransferEncoding => {
                "the request to the upstream has an invalid \"Transfer-Encoding\" header"
            }
            WriteError::LengthAndTransferEncoding => {
                "the request to the upstream has \"Content-Length\" and \"Transfer-Encoding\" headers"
            }
            WriteError::Trailer => "the request to the upstream has an invalid trailer",
        })
    }
}

impl std::error::Error for WriteError {}

/// Writes the head of one request to the end of a buffer. Dropped before [`end`](Self::end), it leaves the buffer as
/// it was.
#[derive(Debug)]
#[must_use]
pub struct RequestWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Start of the head, or its end once it is complete.
    keep: usize,
    version: Version,
    framing: Framing,
    has_host: bool,
}

impl<'a> RequestWriter<'a> {
    /// Writes the request line, with the target as given.
    ///
    /// # Errors
    /// A part cannot be written in a request line.
    pub fn begin(
        out: &'a mut Vec<u8>,
        method: &[u8],
        target: &[u8],
        version: Version,
    ) -> Result<Self, WriteError> {
        if method.is_empty() || !method.iter().all(|&byte| scan::is_token(byte)) {
            return Err(WriteError::Method);
        }
        if target.is_empty() || scan::target_len(target) < target.len() {
            return Err(WriteError::Target);
        }
        let keep = out.len();
        for piece in [method, b" ", target] {
            out.extend_from_slice(piece);
        }
        let is_10 = version < Version::HTTP_11;
        out.extend_from_slice(if is_10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
        Ok(RequestWriter { out, keep, version, framing: Framing::None, has_host: false })
    }

    /// Writes a field, name and value as they are.
    ///
    /// # Errors
    /// The field cannot be written, or contradicts an earlier one.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.field_known(name, HeaderName::find(name), value)
    }

    /// Writes a field; `known_name` is the result of [`HeaderName::find`] for the name.
    ///
    /// # Errors
    /// As [`field`](Self::field).
    pub fn field_known(
        &mut self,
        name: &[u8],
        known_name: Option<HeaderName>,
        value: &[u8],
    ) -> Result<(), WriteError> {
        debug_assert_eq!(known_name, HeaderName::find(name));
        if known_name.is_none() && !is_name(name) {
            return Err(WriteError::Name);
        }
        if scan::value_len(value) < value.len() {
            return Err(WriteError::Value);
        }
        match known_name {
            Some(HeaderName::Host) => self.host()?,
            Some(HeaderName::ContentLength) => {
                let length = num::parse_length(value).ok_or(WriteError::ContentLength)?;
                self.announce(Framing::Length(length))?;
            }
            Some(HeaderName::TransferEncoding) if !value.eq_ignore_ascii_case(b"chunked") => {
                return Err(WriteError::TransferEncoding);
            }
            Some(HeaderName::TransferEncoding) => self.announce(Framing::Chunked)?,
            _ => {}
        }
        for piece in [name, b": ", value, b"\r\n"] {
            self.out.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Writes the fields that announce a body with this framing; nothing for [`Framing::None`].
    ///
    /// # Errors
    /// A body was announced before, or is chunked in HTTP/1.0.
    pub fn framing(&mut self, framing: Framing) -> Result<(), WriteError> {
        match framing {
            Framing::None => {}
            Framing::Length(length) => {
                self.announce(framing)?;
                self.out.extend_from_slice(b"Content-Length: ");
                num::push_decimal(self.out, length);
                self.out.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => {
                self.announce(framing)?;
                self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
        }
        Ok(())
    }

    /// Ends the head, and returns the framing of the body that must follow.
    pub fn end(self) -> Framing {
        let mut whole = self;
        whole.out.extend_from_slice(b"\r\n");
        whole.keep = whole.out.len();
        whole.framing
    }

    fn host(&mut self) -> Result<(), WriteError> {
        if self.has_host {
            return Err(WriteError::Duplicate(HeaderName::Host));
        }
        self.has_host = true;
        Ok(())
    }

    fn announce(&mut self, framing: Framing) -> Result<(), WriteError> {
        match (self.framing, framing) {
            (Framing::None, Framing::Chunked) if self.version < Version::HTTP_11 => {
                return Err(WriteError::TransferEncoding);
            }
            (Framing::None, _) => self.framing = framing,
            (Framing::Length(_), Framing::Length(_)) => {
                return Err(WriteError::Duplicate(HeaderName::ContentLength));
            }
            (Framing::Chunked, Framing::Chunked) => {
                return Err(WriteError::Duplicate(HeaderName::TransferEncoding));
            }
            _ => return Err(WriteError::LengthAndTransferEncoding),
        }
        Ok(())
    }
}

impl Drop for RequestWriter<'_> {
    fn drop(&mut self) {
        self.out.truncate(self.keep);
    }
}

/// Returns `true` if a name is unambiguous. It may have characters that RFC 9110 does not allow: nginx forwards
/// fields that `ignore_invalid_headers off` admits.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && scan::before_colon(name) == name.len() && !name.contains(&0x7f)
}

/// Appends one chunk of a body; nothing without data, because an empty chunk ends the body.
pub fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        out.extend_from_slice(ChunkHead::new(data.len() as u64).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(CHUNK_END);
    }
}

/// Appends the end of a chunked body with its trailers.
///
/// # Errors
/// A trailer that cannot be written or is not permitted; nothing is written then.
pub fn push_last_chunk(out: &mut Vec<u8>, trailers: &Fields) -> Result<(), WriteError> {
    for (name, value) in trailers.iter() {
        if !is_name(name) {
            return Err(WriteError::Name);
        }
        if scan::value_len(value) < value.len() {
            return Err(WriteError::Value);
        }
        if !hop::may_be_trailer(name, HeaderName::find(name)) {
            return Err(WriteError::Trailer);
        }
    }
    out.extend_from_slice(LAST_CHUNK);
    for (name, value) in trailers.iter() {
        for piece in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(piece);
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V11: Version = Version::HTTP_11;

    type Line = (&'static [u8], &'static [u8]);

    fn write_request(
        method: &[u8],
        target: &[u8],
        version: Version,
        fields: &[Line],
    ) -> Result<(String, Framing), WriteError> {
        let mut out = b"before".to_vec();
        let framing = (|| {
            let mut writer = RequestWriter::begin(&mut out, method, target, version)?;
            fields.iter().try_for_each(|(name, value)| writer.field(name, value))?;
            Ok(writer.end())
        })();
        if framing.is_err() {
            assert_eq!(out, b"before", "a head that is wrong leaves nothing");
        }
        framing.map(|framing| (String::from_utf8(out.split_off(6)).unwrap(), framing))
    }

    #[test]
    fn order_and_case_are_kept() {
        let fields: &[Line] = &[
            (b"hOST", b"a"),
            (b"X-b", b""),
            (b"x_C", b" d\t"),
            (b"content-length", b"5"),
            (b"X-b", b"\xc3\xa9"),
        ];
        let expected =
            "POST /a?b HTTP/1.1\r\nhOST: a\r\nX-b: \r\nx_C:  d\t\r\ncontent-length: 5\r\nX-b: é\r\n\r\n";
        let got = write_request(b"POST", b"/a?b", V11, fields);
        assert_eq!(got, Ok((expected.to_owned(), Framing::Length(5))));
    }

    #[test]
    fn request_lines() {
        let table: &[(Line, Result<&str, WriteError>)] = &[
            ((b"GET", b"/"), Ok("GET / HTTP/1.1\r\n\r\n")),
            ((b"OPTIONS", b"*"), Ok("OPTIONS * HTTP/1.1\r\n\r\n")),
            ((b"CONNECT", b"a:443"), Ok("CONNECT a:443 HTTP/1.1\r\n\r\n")),
            ((b"M-SEARCH", b"http://a/"), Ok("M-SEARCH http://a/ HTTP/1.1\r\n\r\n")),
            ((b"", b"/"), Err(WriteError::Method)),
            ((b"G T", b"/"), Err(WriteError::Method)),
            ((b"GET\r", b"/"), Err(WriteError::Method)),
            ((b"G\0", b"/"), Err(WriteError::Method)),
            ((b"G:", b"/"), Err(WriteError::Method)),
            ((b"GET", b""), Err(WriteError::Target)),
            ((b"GET", b"/a b"), Err(WriteError::Target)),
            ((b"GET", b"/ HTTP/1.1\r\nX: y"), Err(WriteError::Target)),
            ((b"GET", b"/\r"), Err(WriteError::Target)),
            ((b"GET", b"/\n"), Err(WriteError::Target)),
            ((b"GET", b"/\t"), Err(WriteError::Target)),
            ((b"GET", b"/\0"), Err(WriteError::Target)),
            ((b"GET", b"/\x7f"), Err(WriteError::Target)),
        ];
        for ((method, target), expected) in table {
            let got = write_request(method, target, V11, &[]).map(|(text, _)| text);
            assert_eq!(got, expected.map(str::to_owned), "{:?}", target.escape_ascii().to_string());
        }
        let old = write_request(b"GET", b"/", Version::HTTP_10, &[]).map(|(text, _)| text);
        assert_eq!(old.as_deref(), Ok("GET / HTTP/1.0\r\n\r\n"));
    }

    #[test]
    fn invalid_request_parts_are_refused() {
        const LENGTH: Line = (b"Content-Length", b"1");
        const CHUNKED: Line = (b"Transfer-Encoding", b"Chunked");
        let table: &[(&[Line], WriteError)] = &[
            (&[(b"", b"a")], WriteError::Name),
            (&[(b"X ", b"a")], WriteError::Name),
            (&[(b" X", b"a")], WriteError::Name),
            (&[(b"X\t", b"a")], WriteError::Name),
            (&[(b"X:", b"a")], WriteError::Name),
            (&[(b"X\r\nY", b"a")], WriteError::Name),
            (&[(b"X\x7f", b"a")], WriteError::Name),
            (&[(b"X\0", b"a")], WriteError::Name),
            (&[(b"X", b"a\rb")], WriteError::Value),
            (&[(b"X", b"a\n")], WriteError::Value),
            (&[(b"Cookie", b"a\r\nHost: b")], WriteError::Value),
            (&[(b"X", b"\0")], WriteError::Value),
            (&[(b"Host", b"a"), (b"host", b"a")], WriteError::Duplicate(HeaderName::Host)),
            (&[LENGTH, LENGTH], WriteError::Duplicate(HeaderName::ContentLength)),
            (&[CHUNKED, CHUNKED], WriteError::Duplicate(HeaderName::TransferEncoding)),
            (&[LENGTH, CHUNKED], WriteError::LengthAndTransferEncoding),
            (&[CHUNKED, LENGTH], WriteError::LengthAndTransferEncoding),
            (&[(b"Content-Length", b"1, 1")], WriteError::ContentLength),
            (&[(b"Content-Length", b"+1")], WriteError::ContentLength),
            (&[(b"Content-Length", b"")], WriteError::ContentLength),
            (&[(b"Transfer-Encoding", b"gzip, chunked")], WriteError::TransferEncoding),
            (&[(b"Transfer-Encoding", b" chunked")], WriteError::TransferEncoding),
            (&[(b"Transfer-Encoding", b"")], WriteError::TransferEncoding),
        ];
        for (fields, expected) in table {
            assert_eq!(write_request(b"GET", b"/", V11, fields), Err(*expected), "{fields:?}");
            assert!(!expected.to_string().is_empty());
        }
        assert_eq!(
            write_request(b"GET", b"/", Version::HTTP_10, &[CHUNKED]),
            Err(WriteError::TransferEncoding)
        );
    }

    #[test]
    fn the_framing_is_announced_once() {
        let table = [
            (Framing::None, ""),
            (Framing::Length(0), "Content-Length: 0\r\n"),
            (Framing::Length(1234), "Content-Length: 1234\r\n"),
            (Framing::Chunked, "Transfer-Encoding: chunked\r\n"),
        ];
        for (framing, line) in table {
            let mut out = Vec::new();
            let mut writer = RequestWriter::begin(&mut out, b"PUT", b"/", V11).unwrap();
            writer.framing(framing).unwrap();
            if framing != Framing::None {
                assert!(
                    writer.framing(Framing::Length(1)).is_err() && writer.framing(Framing::Chunked).is_err()
                );
            }
            assert_eq!(writer.end(), framing);
            assert_eq!(out, format!("PUT / HTTP/1.1\r\n{line}\r\n").as_bytes());
        }
    }

    #[test]
    fn chunks_and_trailers() {
        let mut out = Vec::new();
        push_chunk(&mut out, b"0123456789abcdef");
        push_chunk(&mut out, b"");
        let mut trailers = Fields::new();
        trailers.append("X-Sum", "1");
        assert_eq!(push_last_chunk(&mut out, &trailers), Ok(()));
        assert_eq!(out, b"10\r\n0123456789abcdef\r\n0\r\nX-Sum: 1\r\n\r\n");
        for (name, value, error) in [
            ("X\r", "1", WriteError::Name),
            ("X", "1\n", WriteError::Value),
            ("Content-Length", "1", WriteError::Trailer),
        ] {
            let mut wrong = trailers.clone();
            wrong.append(name, value);
            let mut out = Vec::new();
            assert_eq!((push_last_chunk(&mut out, &wrong), out.len()), (Err(error), 0), "{name}");
        }
    }
}
