//! The head of a response as HTTP/2 and HTTP/3 send it: each field goes straight into the frame.

use std::borrow::Cow;

use tw_fields::FieldWriter;
use tw_http::response::list_fields;
use tw_http::{ConnectionField, EncodeContext, Fields, HeaderName};

use tw_phases::{error_response, prepare_response};
use tw_request::request::Request;

/// Writes the head of the response to `r`.
pub(crate) fn write(r: &Request, fields: &mut FieldWriter<'_>) {
    let server = error_response::server_name(r);
    let mut address = Vec::new();
    let context = EncodeContext {
        now: tw_rt::clock::unix().secs,
        dates: &r.client().event_loop.dates,
        server: &server,
        connection: ConnectionField::Close,
        chunked: false,
        location_base: prepare_response::location_base(r, &mut address),
        vary_accept_encoding: r.response.varies_by_coding && r.plan().core.compression.vary,
    };
    fields.status(r.response.status);
    r.response.list(&context, &mut |name, known_name, value| push(fields, name, known_name, value));
}

/// Writes these fields alone, of a head before the response or of trailers.
pub(crate) fn push_all(written_fields: &mut FieldWriter<'_>, fields: &Fields) {
    list_fields(fields, &mut |name, known_name, value| push(written_fields, name, known_name, value));
}

/// Returns true if there is a field that can be sent.
pub(crate) fn has_any(fields: &Fields) -> bool {
    let mut has_any = false;
    list_fields(fields, &mut |name, known_name, _| has_any |= known_name.is_some() || is_name(name));
    has_any
}

fn push(fields: &mut FieldWriter<'_>, name: &[u8], known_name: Option<HeaderName>, value: &[u8]) {
    // A field whose name is not a token would make the message malformed (RFC 9113 section 8.2.1), so it is left out.
    if known_name.is_some() || is_name(name) {
        fields.push(name, &harmless(value));
    }
}

/// RFC 9110 section 5.6.2.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().fold(true, |all, byte| all & IS_OF_NAME[usize::from(*byte)])
}

/// True for each byte that a name may have.
static IS_OF_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let other = b"!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < other.len() {
        table[other[at] as usize] = true;
        at += 1;
    }
    table
};

// DIFF(nginx): CR, LF and other control characters of a value become spaces, as RFC 9110 section 5.5 has it; none stands at its
// ends.
fn harmless(value: &[u8]) -> Cow<'_, [u8]> {
    let is_harmless = |byte: u8| (byte == b'\t') | (byte >= b' ') & (byte != 0x7f);
    // The whole value is checked without an early exit, so that many bytes are checked by one instruction.
    if value.iter().fold(true, |all, &byte| all & is_harmless(byte)) {
        return value.trim_ascii().into();
    }
    let value: Vec<u8> = value.iter().map(|&byte| if is_harmless(byte) { byte } else { b' ' }).collect();
    value.trim_ascii().to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_become_two() {
        for (value, expected) in [
            (&b"as it is"[..], &b"as it is"[..]),
            (b" a\tb ", b"a\tb"),
            (b"a\r\nb: c", b"a  b: c"),
            (b"\0a\x7f\x1fb\n", b"a  b"),
            (b"caf\xe9", b"caf\xe9"),
            (b"", b""),
        ] {
            assert_eq!(&*harmless(value), expected);
        }
    }

    #[test]
    fn invalid_names_are_not_sent() {
        for (name, expected) in
            [("X-One", true), ("a~1", true), ("", false), ("a b", false), ("a:", false), ("\u{e9}", false)]
        {
            assert_eq!(is_name(name.as_bytes()), expected, "{name}");
        }
    }
}
