//! Native functions for texts and bytes.

use std::rc::Rc;

use rquickjs::{Ctx, Object, Value};

use super::bytes;
use super::function::natives;
use crate::state::State;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        decode(value: Value<'js>);
        encode_utf8(value: Value<'js>);
        is_utf8(value: Value<'js>);
        utf8_boundary(value: Value<'js>);
        latin(value: Value<'js>);
        decode_latin(value: Value<'js>);
        decode_url(value: Value<'js>);
    }
    Ok(())
}

impl State {
    /// Text of UTF-8.
    fn decode<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<String> {
        Ok(bytes::text(&self.bytes(ctx, &value)?).into_owned())
    }

    /// UTF-8 of a text.
    fn encode_utf8<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<Value<'js>> {
        bytes::array(ctx, self.string(ctx, &value)?.as_bytes())
    }

    fn is_utf8<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<bool> {
        Ok(std::str::from_utf8(&self.bytes(ctx, &value)?).is_ok())
    }

    /// Length without the beginning of a character at the end.
    fn utf8_boundary<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<f64> {
        let bytes = self.bytes(ctx, &value)?;
        Ok(complete_size(&bytes) as f64)
    }

    /// One character for each byte.
    fn latin<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<String> {
        Ok(self.bytes(ctx, &value)?.into_iter().map(char::from).collect())
    }

    /// Text of UTF-8, given as one character for each byte.
    fn decode_latin<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<String> {
        let text = self.string(ctx, &value)?;
        let bytes: Vec<u8> = text.chars().map(|character| u8::try_from(character).unwrap_or(b'?')).collect();
        Ok(bytes::text(&bytes).into_owned())
    }

    /// Text without percent encoding; faulty sequences stay.
    fn decode_url<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<String> {
        let text = self.string(ctx, &value)?;
        Ok(bytes::text(&percent_decode(text.as_bytes())).into_owned())
    }
}

/// Length of the part whose characters are complete.
fn complete_size(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let place = bytes.len() - back;
        let Some(&byte) = bytes.get(place) else { break };
        let size = match byte {
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            0x80..=0xBF => continue,
            _ => return bytes.len(),
        };
        return if size > back { place } else { bytes.len() };
    }
    bytes.len()
}

fn percent_decode(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut place = 0;
    while let Some(&byte) = text.get(place) {
        place += 1;
        if byte == b'%'
            && let (Some(high), Some(low)) = (digit(text.get(place)), digit(text.get(place + 1)))
        {
            decoded.push((high << 4 | low) as u8);
            place += 2;
        } else {
            decoded.push(byte);
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_character_is_left_out() {
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"ab", 2),
            ("aé".as_bytes(), 3),
            (b"a\xC3", 1),
            (b"a\xE2\x82", 1),
            (b"a\xF0\x9F\x98", 1),
            ("a€".as_bytes(), 4),
            (b"\x80\x80\x80\x80", 4),
        ] {
            assert_eq!(complete_size(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn faulty_percent_sequences_stay() {
        for (text, expected) in
            [("a%20b", "a b"), ("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("%41%42", "AB"), ("%25", "%")]
        {
            assert_eq!(percent_decode(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }
}
