//! The escapes of `log_format … escape=default|json|none`, as nginx writes them.

/// Escaping of variables in a log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Escape {
    /// `"`, `\`, control characters and bytes from 0x7F up become `\x22`; a missing value is `-`.
    #[default]
    Default,
    /// As inside a JSON string, where bytes that are not UTF-8 become U+FFFD; a missing value is empty.
    Json,
    /// As they are; a missing value is empty.
    None,
}

impl Escape {
    /// The escape of `escape=WORD`.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        match word {
            b"default" => Some(Self::Default),
            b"json" => Some(Self::Json),
            b"none" => Some(Self::None),
            _ => None,
        }
    }

    /// Appends `value`, or the replacement of a missing one, to `out`. Allocates only if `out` has to grow.
    pub fn push(self, out: &mut Vec<u8>, value: Option<&[u8]>) {
        let start = out.len();
        match value {
            Some(value) => {
                out.extend_from_slice(value);
                self.escape(out, start);
            }
            None => self.push_missing(out),
        }
    }

    /// Appends the replacement of a missing value.
    pub fn push_missing(self, out: &mut Vec<u8>) {
        if self == Self::Default {
            out.push(b'-');
        }
    }

    /// Escapes a value in place, from `start` to the end of `out`. Most values need no escaping and are only scanned.
    /// Allocates only if `out` has to grow.
    pub fn escape(self, out: &mut Vec<u8>, start: usize) {
        match self {
            Self::Default => escape_from(out, start, InText, |out, byte| out.extend(hex(byte))),
            Self::Json => {
                escape_from(out, start, InJson, push_json);
                replace_invalid(out, start);
            }
            Self::None => {}
        }
    }
}

/// A byte as `\x0A`, with capital digits.
pub(crate) fn hex(byte: u8) -> [u8; 4] {
    [b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
}

const HEX: [u8; 16] = *b"0123456789ABCDEF";

/// Bytes that are escaped.
trait Specials: Copy {
    fn has(self, byte: u8) -> bool;

    /// The high bit of a byte of the result is set for each special byte of `word`, up to the first one at least: a carry may
    /// mark bytes behind it.
    fn marks(self, word: u64) -> u64;
}

#[derive(Clone, Copy)]
struct InText;

#[derive(Clone, Copy)]
struct InJson;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Marks bytes below `limit`, which is at most 0x80, as [`Specials::marks`].
const fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(LOW * limit as u64) & !word & HIGH
}

/// Marks bytes that are `byte`.
const fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (LOW * byte as u64), 1)
}

impl Specials for InText {
    fn has(self, byte: u8) -> bool {
        matches!(byte, 0..=0x1F | b'"' | b'\\' | 0x7F..)
    }

    fn marks(self, word: u64) -> u64 {
        // The high bit, and 0x7F, which one more makes it.
        InJson.marks(word) | (word | (word & !HIGH).wrapping_add(LOW)) & HIGH
    }
}

impl Specials for InJson {
    fn has(self, byte: u8) -> bool {
        matches!(byte, 0..=0x1F | b'"' | b'\\')
    }

    fn marks(self, word: u64) -> u64 {
        below(word, 0x20) | equal(word, b'"') | equal(word, b'\\')
    }
}

fn push_json(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0C => b'f',
        b'"' | b'\\' => byte,
        _ => {
            return out.extend([
                b'\\',
                b'u',
                b'0',
                b'0',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        }
    };
    out.extend([b'\\', short]);
}

/// Bytes that are examined together.
const STEP: usize = size_of::<u64>();

/// Offset of the first special byte. Whole steps are examined without a branch per byte.
fn find_special(value: &[u8], specials: impl Specials) -> Option<usize> {
    let (steps, rest) = value.as_chunks::<STEP>();
    let has_any = |step: &[u8; STEP]| specials.marks(u64::from_le_bytes(*step)) != 0;
    let has_special = match value.last_chunk::<STEP>() {
        // The last step overlaps the one before.
        Some(last) => steps.iter().any(has_any) || !rest.is_empty() && has_any(last),
        None => true,
    };
    if !has_special {
        return None;
    }
    value.iter().position(|byte| specials.has(*byte))
}

fn escape_from(out: &mut Vec<u8>, start: usize, specials: impl Specials, push: impl Fn(&mut Vec<u8>, u8)) {
    let Some(first) = find_special(&out[start..], specials) else { return };
    // The escaped form is made behind the value, which then gives way.
    let first = start + first;
    let end = out.len();
    for at in first..end {
        match out[at] {
            byte if specials.has(byte) => push(out, byte),
            byte => out.push(byte),
        }
    }
    out.drain(first..end);
}

// DIFF(nginx): nginx writes bytes that are not UTF-8 as they are, so that a client can make a line that no reader of JSON accepts.
/// Replaces what is not UTF-8 by U+FFFD, from `start` to the end of `out`.
fn replace_invalid(out: &mut Vec<u8>, start: usize) {
    if str::from_utf8(&out[start..]).is_ok() {
        return;
    }
    // As in `escape_from`, the new form is made behind the value.
    let mut at = start;
    let end = out.len();
    while at < end {
        let (valid, invalid) = match str::from_utf8(&out[at..end]) {
            Ok(text) => (text.len(), 0),
            Err(error) => {
                let rest = end - at - error.valid_up_to();
                (error.valid_up_to(), error.error_len().unwrap_or(rest))
            }
        };
        out.extend_from_within(at..at + valid);
        if invalid > 0 {
            out.extend(char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]).as_bytes());
        }
        at += valid + invalid;
    }
    out.drain(start..end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(escape: Escape, value: &[u8], expected: &[u8]) {
        let mut out = b"|".to_vec();
        escape.push(&mut out, Some(value));
        assert_eq!(out[1..].escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn default_escapes_quotes_controls_and_high_bytes() {
        for (value, expected) in [
            (&b""[..], &b""[..]),
            (b"GET / HTTP/1.1", b"GET / HTTP/1.1"),
            (b"a\"b\\c", b"a\\x22b\\x5Cc"),
            (b"\0\x1f\x7f\x80\xff", b"\\x00\\x1F\\x7F\\x80\\xFF"),
            (b"line\r\nbreak", b"line\\x0D\\x0Abreak"),
            ("é".as_bytes(), b"\\xC3\\xA9"),
            (b" ~!'", b" ~!'"),
        ] {
            check(Escape::Default, value, expected);
        }
    }

    #[test]
    fn json_escapes_as_a_string() {
        for (value, expected) in [
            (&b"a\"b\\c/"[..], &b"a\\\"b\\\\c/"[..]),
            (b"\n\r\t\x08\x0c", b"\\n\\r\\t\\b\\f"),
            (b"\0\x0b\x1f", b"\\u0000\\u000B\\u001F"),
            (b"\x7f", b"\x7f"),
            ("é\"".as_bytes(), "é\\\"".as_bytes()),
            (b"\xff", "\u{fffd}".as_bytes()),
            (b"a\xe2\x82\"b\xe2\x82\xac\xc3", "a\u{fffd}\\\"b€\u{fffd}".as_bytes()),
        ] {
            check(Escape::Json, value, expected);
        }
    }

    #[test]
    fn json_replaces_invalid_utf8_as_the_standard_library_does() {
        let mut state = 1_u32;
        for len in 0..200 {
            let value: Vec<u8> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Bytes that begin and continue characters, and letters.
                    [b'a', 0x80, 0xBF, 0xC3, 0xE2, 0xF0, 0xED, 0xFF][(state >> 24) as usize % 8]
                })
                .collect();
            check(Escape::Json, &value, String::from_utf8_lossy(&value).as_bytes());
        }
    }

    #[test]
    fn special_bytes_are_found_anywhere() {
        for len in 0..50 {
            for at in 0..len {
                let mut value = vec![b'a'; len];
                value[at] = b'"';
                let mut expected = value[..at].to_vec();
                expected.extend_from_slice(b"\\x22");
                expected.extend_from_slice(&value[at + 1..]);
                check(Escape::Default, &value, &expected);
            }
            check(Escape::Default, &vec![b'a'; len], &vec![b'a'; len]);
        }
    }

    #[test]
    fn steps_find_the_same_bytes_as_single_ones() {
        fn check(specials: impl Specials) {
            for byte in 0..=255 {
                for at in 0..STEP {
                    for around in [b'a', b' ', b'~', b'!', b'#', b'[', b']'] {
                        let mut step = [around; STEP];
                        step[at] = byte;
                        let expected = specials.has(byte);
                        assert_eq!(
                            specials.marks(u64::from_le_bytes(step)) != 0,
                            expected,
                            "{byte} {at} {around}"
                        );
                    }
                }
            }
        }
        check(InText);
        check(InJson);
    }

    #[test]
    fn text_before_the_value_is_not_escaped() {
        let mut out = b"\"\n|a\"b".to_vec();
        Escape::Default.escape(&mut out, 3);
        assert_eq!(out, b"\"\n|a\\x22b");
    }

    #[test]
    fn none_changes_nothing() {
        let all: Vec<u8> = (0..=255).collect();
        check(Escape::None, &all, &all);
    }

    #[test]
    fn a_missing_value_is_a_dash_only_by_default() {
        for (word, expected) in [("default", "-"), ("json", ""), ("none", "")] {
            let mut out = Vec::new();
            Escape::parse(word.as_bytes()).unwrap().push(&mut out, None);
            assert_eq!(out, expected.as_bytes(), "{word}");
        }
        assert_eq!(Escape::parse(b"JSON"), None);
    }
}
