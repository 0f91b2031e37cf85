//! Functions of one text: quoting, escaping, encoding, hashes. Each appends its result.

use aws_lc_rs::hmac;
use md5::{Digest, Md5};
use sha1::Sha1;
use tw_http::base64::{self, Alphabet};
use tw_http::escape::{Escape, Unescape, unescape};
use tw_http::num::push_hex;

/// A string of MySQL.
pub(super) fn quote_sql(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'\'');
    for byte in text {
        let escaped = match byte {
            0 => b'0',
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            b'\r' => b'r',
            0x1a => b'Z',
            b'\\' | b'\'' | b'"' => *byte,
            _ => {
                out.push(*byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', escaped]);
    }
    out.push(b'\'');
}

/// A string of PostgreSQL with escapes (`E'…'`). It has no NUL: PostgreSQL refuses one in any form.
pub(super) fn quote_pgsql(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"E'");
    for byte in text {
        match byte {
            0 => {}
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' | b'\'' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
            _ => out.push(*byte),
        }
    }
    out.push(b'\'');
}

/// A string of JSON (RFC 8259 section 7); `null` for an empty text.
pub(super) fn quote_json(text: &[u8], out: &mut Vec<u8>) {
    if text.is_empty() {
        return out.extend_from_slice(b"null");
    }
    out.push(b'"');
    for byte in text {
        match byte {
            8 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
            0..0x20 | 0x7f => {
                out.extend_from_slice(b"\\u00");
                push_hex(&[*byte], out);
            }
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

pub(super) fn unescape_uri(text: &[u8], out: &mut Vec<u8>) {
    let text: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    unescape(&text, Unescape::All, out);
}

pub(super) fn escape_uri(text: &[u8], out: &mut Vec<u8>) {
    Escape::Component.push(text, out);
}

pub(super) fn encode_base64(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&base64::encode(text));
}

pub(super) fn encode_base64url(text: &[u8], out: &mut Vec<u8>) {
    let text = base64::encode(text).into_iter().filter(|byte| *byte != b'=');
    out.extend(text.map(|byte| match byte {
        b'+' => b'-',
        b'/' => b'_',
        _ => byte,
    }));
}

pub(super) fn decode_base64(text: &[u8], out: &mut Vec<u8>) {
    decode(text, Alphabet::Standard, out);
}

pub(super) fn decode_base64url(text: &[u8], out: &mut Vec<u8>) {
    decode(text, Alphabet::Url, out);
}

fn decode(text: &[u8], alphabet: Alphabet, out: &mut Vec<u8>) {
    let start = out.len();
    if base64::decode(text, alphabet, out).is_err() {
        out.truncate(start);
    }
}

pub(super) fn encode_hex(text: &[u8], out: &mut Vec<u8>) {
    push_hex(text, out);
}

pub(super) fn decode_hex(text: &[u8], out: &mut Vec<u8>) {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8)).collect();
    out.extend(bytes.filter(|_| rest.is_empty()).unwrap_or_default());
}

pub(super) fn sha1(text: &[u8], out: &mut Vec<u8>) {
    push_hex(&Sha1::digest(text), out);
}

pub(super) fn md5(text: &[u8], out: &mut Vec<u8>) {
    push_hex(&Md5::digest(text), out);
}

pub(super) fn hmac_sha1(key: &[u8], text: &[u8], out: &mut Vec<u8>) {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
    out.extend_from_slice(hmac::sign(&key, text).as_ref());
}

pub(super) fn hmac_sha256(key: &[u8], text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(function: impl Fn(&[u8], &mut Vec<u8>), text: &[u8]) -> String {
        let mut out = Vec::new();
        function(text, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn quoted_strings() {
        let text = b"a\n\r\t\x08'\"\\\x1a\0\xc3\xa9";
        assert_eq!(of(quote_sql, text), r#"'a\n\r\t\b\'\"\\\Z\0é'"#);
        assert_eq!(of(quote_pgsql, text), "E'a\\n\\r\\t\\b\\'\\\"\\\\\x1aé'");
        assert_eq!(of(quote_json, text), r#""a\n\r\t\b'\"\\\u001a\u0000é""#);
        assert_eq!(of(quote_json, b"\x0c\x7f"), r#""\f\u007f""#);
        assert_eq!([of(quote_sql, b""), of(quote_pgsql, b""), of(quote_json, b"")], ["''", "E''", "null"]);
    }

    #[test]
    fn escaped_and_encoded_texts() {
        for (function, text, expected) in [
            (unescape_uri as fn(&[u8], &mut Vec<u8>), "hello+world%21%2B", "hello world!+"),
            (escape_uri, "a b/c?&=~.-_\u{e9}", "a%20b%2Fc%3F%26%3D~.-_%C3%A9"),
            (encode_base64, "abcde", "YWJjZGU="),
            (decode_base64, "YWJjZGU=", "abcde"),
            (decode_base64, "YWJj*", ""),
            (encode_base64url, ">>>???>", "Pj4-Pz8_Pg"),
            (decode_base64url, "Pj4-Pz8_Pg", ">>>???>"),
            (decode_base64url, "Pj4+", ""),
            (encode_hex, "abcde\u{e9}", "6162636465c3a9"),
            (decode_hex, "6162636465C3a9", "abcde\u{e9}"),
            (decode_hex, "616", ""),
            (decode_hex, "6x", ""),
            (sha1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (md5, "abc", "900150983cd24fb0d6963f7d28e17f72"),
        ] {
            assert_eq!(of(function, text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn codes_of_rfc_2202_and_4231() {
        let hex = |function: fn(&[u8], &[u8], &mut Vec<u8>)| {
            of(
                |text, out| {
                    let mut bytes = Vec::new();
                    function(b"Jefe", text, &mut bytes);
                    push_hex(&bytes, out);
                },
                b"what do ya want for nothing?",
            )
        };
        assert_eq!(hex(hmac_sha1), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        let sha256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(hmac_sha256), sha256);
    }
}
