//! Values of JavaScript as bytes, and bytes as values.
//!
//! The memory of an `ArrayBuffer` belongs to the engine, which only unsafe code can look into. Its bytes come out as base64, which the engine
//! writes faster than it could be asked for them one by one.

use std::borrow::Cow;

use rquickjs::{Ctx, Error, IntoJs, TypedArray, Value};

use crate::state::State;

/// Text of bytes: what is not UTF-8 becomes U+FFFD, as in njs.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A new `Uint8Array` with these bytes, whose memory counts for the limit of the context.
pub(crate) fn array<'js>(ctx: &Ctx<'js>, bytes: &[u8]) -> rquickjs::Result<Value<'js>> {
    Ok(TypedArray::<u8>::new_copy(ctx.clone(), bytes)?.into_value())
}

/// A `Uint8Array`, or `undefined`.
pub(crate) fn optional_array<'js>(ctx: &Ctx<'js>, bytes: Option<&[u8]>) -> rquickjs::Result<Value<'js>> {
    match bytes {
        Some(bytes) => array(ctx, bytes),
        None => rquickjs::Undefined.into_js(ctx),
    }
}

impl State {
    /// Bytes of a value: of binary ones their own, of all others those of their text. `undefined` and `null` have none.
    pub(crate) fn bytes<'js>(&self, ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Vec<u8>> {
        if value.is_undefined() || value.is_null() {
            return Ok(Vec::new());
        }
        if value.is_object() {
            let base64: Option<String> = self.core_function(ctx, "encode")?.call((value.clone(),))?;
            if let Some(base64) = base64 {
                return Ok(decode_base64(base64.as_bytes()));
            }
        }
        Ok(self.string(ctx, value)?.into_bytes())
    }

    /// Bytes of a value, or `None` for `undefined` and `null`.
    pub(crate) fn optional_bytes<'js>(
        &self,
        ctx: &Ctx<'js>,
        value: &Value<'js>,
    ) -> rquickjs::Result<Option<Vec<u8>>> {
        if value.is_undefined() || value.is_null() {
            return Ok(None);
        }
        self.bytes(ctx, value).map(Some)
    }

    /// Text of a value; lone surrogates become U+FFFD.
    pub(crate) fn string<'js>(&self, ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<String> {
        if let Some(string) = value.as_string() {
            match string.to_string() {
                Err(Error::Utf8(_)) => {}
                result => return result,
            }
        }
        self.core_function(ctx, "text")?.call((value.clone(),))
    }
}

/// Decodes what `Uint8Array.prototype.toBase64` of the engine has written.
fn decode_base64(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        let mut count = 0;
        for &letter in group.iter().filter(|letter| **letter != b'=') {
            bits = bits << 6 | u32::from(sextet(letter));
            count += 1;
        }
        bits <<= 6 * (4 - count);
        let [_, first, second, third] = bits.to_be_bytes();
        let decoded = [first, second, third];
        bytes.extend_from_slice(decoded.get(..count * 3 / 4).unwrap_or_default());
    }
    bytes
}

/// Six bits of a letter.
const fn sextet(letter: u8) -> u8 {
    match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length_is_decoded() {
        for (text, expected) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("+/8A", &[251, 255, 0]),
            ("AAECAwQ=", &[0, 1, 2, 3, 4]),
        ] {
            assert_eq!(decode_base64(text.as_bytes()), expected, "{text}");
        }
    }
}
