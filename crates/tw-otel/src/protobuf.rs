//! Writer of Protocol Buffers (proto3), as far as OTLP needs them, and a reader of the few fields of its responses. The messages
//! are so few that a library with generated code would be larger than this.

/// Wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

/// Message that is being written. A field with its default value need not be written.
pub(super) struct Message<'a>(pub(super) &'a mut Vec<u8>);

impl Message<'_> {
    fn tag(&mut self, field: u32, wire: u32) {
        push_varint(self.0, u64::from(field << 3 | wire));
    }

    /// An `int64`, `uint32`, `bool` or enum.
    pub(super) fn varint(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        push_varint(self.0, value);
    }

    /// A `fixed32`.
    pub(super) fn fixed32(&mut self, field: u32, value: u32) {
        self.tag(field, FIXED32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A `fixed64`.
    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A `double`.
    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    /// Beginning of a message or of `bytes` of this length, which follow.
    pub(super) fn length(&mut self, field: u32, length: usize) {
        self.tag(field, LENGTH);
        push_varint(self.0, length as u64);
    }

    /// A `bytes`.
    pub(super) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.length(field, value.len());
        self.0.extend_from_slice(value);
    }

    /// A `string`; bytes that are no UTF-8 are replaced.
    pub(super) fn string(&mut self, field: u32, value: &[u8]) {
        self.bytes(field, String::from_utf8_lossy(value).as_bytes());
    }

    /// A message, which `write` writes.
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Message<'_>)) {
        self.tag(field, LENGTH);
        let begin = self.0.len();
        write(&mut Message(self.0));
        // The length stands in front: messages are small, so moving them costs less than measuring them first.
        let mut length = Vec::with_capacity(3);
        push_varint(&mut length, (self.0.len() - begin) as u64);
        self.0.splice(begin..begin, length);
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValue<'a> {
    /// Integer.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
}

/// Reads the next field from the front of `input`: its number and value. `None` at the end, and where the input makes no sense.
pub(super) fn next_field<'a>(input: &mut &'a [u8]) -> Option<(u64, FieldValue<'a>)> {
    let tag = take_varint(input)?;
    let value = match (tag & 7) as u32 {
        VARINT => FieldValue::Number(take_varint(input)?),
        FIXED64 => FieldValue::Number(u64::from_le_bytes(take(input, 8)?.try_into().ok()?)),
        FIXED32 => FieldValue::Number(u32::from_le_bytes(take(input, 4)?.try_into().ok()?).into()),
        LENGTH => {
            let length = usize::try_from(take_varint(input)?).ok()?;
            FieldValue::Bytes(take(input, length)?)
        }
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn take<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(taken)
}

fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let byte = *take(input, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_bytes(write: impl FnOnce(&mut Message<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Message(&mut out));
        out
    }

    #[test]
    fn fields_match_the_encoding_guide() {
        // The first three are the examples of the guide at protobuf.dev.
        assert_eq!(message_bytes(|m| m.varint(1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(message_bytes(|m| m.string(2, b"testing")), *b"\x12\x07testing");
        assert_eq!(message_bytes(|m| m.message(3, |m| m.varint(1, 150))), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(message_bytes(|m| m.fixed32(16, 1)), [0x85, 0x01, 1, 0, 0, 0]);
        assert_eq!(message_bytes(|m| m.fixed64(7, 2)), [0x39, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(message_bytes(|m| m.double(4, 1.0)), [0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(message_bytes(|m| m.string(5, b"\xff")), *b"\x2a\x03\xef\xbf\xbd");
        let long = message_bytes(|m| m.message(1, |m| m.bytes(2, &[7; 200])));
        assert_eq!(long[..6], [0x0a, 0xcb, 0x01, 0x12, 0xc8, 0x01]);
        assert_eq!(long.len(), 206);
    }

    #[test]
    fn reader_takes_what_the_writer_writes_and_stops_at_nonsense() {
        let all = message_bytes(|m| {
            m.varint(1, u64::MAX);
            m.message(2, |m| m.string(1, b"a"));
            m.fixed64(3, 5);
            m.fixed32(4, 6);
        });
        let mut input = &all[..];
        let fields: Vec<_> = std::iter::from_fn(|| next_field(&mut input)).collect();
        assert_eq!(
            fields,
            [
                (1, FieldValue::Number(u64::MAX)),
                (2, FieldValue::Bytes(&[0x0a, 1, b'a'])),
                (3, FieldValue::Number(5)),
                (4, FieldValue::Number(6)),
            ]
        );
        for bad in
            [&b""[..], b"\x08", b"\x0a\x05abc", b"\x0b", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert_eq!(next_field(&mut { bad }), None, "{bad:?}");
        }
    }
}
