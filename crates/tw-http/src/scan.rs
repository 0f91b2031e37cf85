//! Search for bytes: eight at a time where lines are long, by a table where each byte decides.
//!
//! Values and targets are some tens of bytes, too short for a vector routine to pay for its call; an inlined
//! word-wise loop is faster there.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The high bit of every byte below `limit` (at most 128) is set. Exact for the lowest such byte; bytes above it may
/// be marked wrongly, because the subtraction borrows upwards.
#[inline(always)]
const fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * limit as u64) & !word & HIGHS
}

/// As [`below`], for bytes equal to `byte`.
#[inline(always)]
const fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * byte as u64), 1)
}

/// Position of the first byte for which `mark` (eight at a time) or `is` (one at a time) holds, else the length.
#[inline(always)]
fn find(bytes: &[u8], mark: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> usize {
    let mut rest = bytes;
    while let Some((chunk, tail)) = rest.split_first_chunk::<8>() {
        let marks = mark(u64::from_le_bytes(*chunk));
        if marks != 0 {
            return bytes.len() - rest.len() + (marks.trailing_zeros() / 8) as usize;
        }
        rest = tail;
    }
    let before = bytes.len() - rest.len();
    before + rest.iter().position(|&byte| is(byte)).unwrap_or(rest.len())
}

/// Length of the run of bytes a request target may have: all but controls, space and DEL.
#[inline]
pub(crate) fn target_len(bytes: &[u8]) -> usize {
    find(bytes, |word| below(word, 0x21) | equal(word, 0x7f), |byte| byte <= b' ' || byte == 0x7f)
}

/// Length of the run of bytes a field value may have: all but CR, LF and NUL.
#[inline]
pub(crate) fn value_len(bytes: &[u8]) -> usize {
    // All bytes below 14 stop the wide loop; the only valid one of them is the tab.
    let mut from = 0;
    while let Some(rest) = bytes.get(from..) {
        let at = from + find(rest, |word| below(word, 0x0e), |byte| byte < 0x0e);
        match bytes.get(at) {
            Some(b'\r' | b'\n' | 0) | None => return at,
            Some(_) => from = at + 1,
        }
    }
    bytes.len()
}

/// Length of the run of bytes that are text: all but control characters, of which a tab is none here.
#[inline]
pub(crate) fn text_len(bytes: &[u8]) -> usize {
    let mut from = 0;
    while let Some(rest) = bytes.get(from..) {
        let mark = |word| below(word, b' ') | equal(word, 0x7f);
        let at = from + find(rest, mark, |byte| byte < b' ' || byte == 0x7f);
        match bytes.get(at) {
            Some(b'\t') => from = at + 1,
            Some(_) | None => return at,
        }
    }
    bytes.len()
}

/// Length of the run of bytes in front of a colon, a space or a control character: of a field name, if the rest of its
/// bytes are as they should be.
#[inline]
pub(crate) fn before_colon(bytes: &[u8]) -> usize {
    find(bytes, |word| below(word, 0x21) | equal(word, b':'), |byte| byte <= b' ' || byte == b':')
}

/// Length of the run of bytes that make a field name: letters, digits and `-`.
#[inline]
pub(crate) fn name_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| !is_name(byte)).unwrap_or(bytes.len())
}

/// Returns `true` if a value contains a word, in any case: nginx searches `Connection` like this.
pub(crate) fn contains_word(value: &[u8], word: &[u8]) -> bool {
    value.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

/// Returns `true` if nginx accepts the byte in a field name (`_` is checked separately).
#[inline]
pub(crate) fn is_name(byte: u8) -> bool {
    class(byte) & NAME != 0
}

/// Returns `true` if the byte has no meaning for path normalisation.
#[inline]
pub(crate) fn is_plain_in_path(byte: u8) -> bool {
    class(byte) & PATH_SPECIAL == 0
}

/// Returns `true` if the byte may be in a `Host` outside brackets: unreserved, sub-delims and `%` (RFC 3986 section
/// 3.2.2).
#[inline]
pub(crate) fn is_host(byte: u8) -> bool {
    class(byte) & HOST != 0
}

/// The value of a hexadecimal digit.
#[inline]
pub(crate) fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Returns `true` if the byte may be in a token (RFC 9110 section 5.6.2).
#[inline]
pub(crate) fn is_token(byte: u8) -> bool {
    class(byte) & TOKEN != 0
}

const NAME: u8 = 1;
const PATH_SPECIAL: u8 = 2;
const HOST: u8 = 4;
const TOKEN: u8 = 8;

#[inline(always)]
fn class(byte: u8) -> u8 {
    static CLASSES: [u8; 256] = classes();
    CLASSES.get(usize::from(byte)).copied().unwrap_or(0)
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let c = byte as u8;
        if c.is_ascii_alphanumeric() || c == b'-' {
            table[byte] |= NAME;
        }
        if matches!(c, b'/' | b'.' | b'%' | b'?' | b'#') {
            table[byte] |= PATH_SPECIAL;
        }
        let unreserved = c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~');
        let sub_delim =
            matches!(c, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=');
        if unreserved || sub_delim || c == b'%' {
            table[byte] |= HOST;
        }
        let punctuation = matches!(
            c,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        if c.is_ascii_alphanumeric() || punctuation {
            table[byte] |= TOKEN;
        }
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_narrow_loops_agree_on_every_byte_and_offset() {
        for byte in 0..=255u8 {
            for at in 0..20 {
                let mut line = [b'a'; 20];
                line[at] = byte;
                let target = if byte <= b' ' || byte == 0x7f { at } else { 20 };
                assert_eq!(target_len(&line), target, "target {byte:#x} at {at}");
                let value = if matches!(byte, b'\r' | b'\n' | 0) { at } else { 20 };
                assert_eq!(value_len(&line), value, "value {byte:#x} at {at}");
                let is_text = byte == b'\t' || byte >= b' ' && byte != 0x7f;
                assert_eq!(text_len(&line), if is_text { 20 } else { at }, "text {byte:#x} at {at}");
                let colon = if byte <= b' ' || byte == b':' { at } else { 20 };
                assert_eq!(before_colon(&line), colon, "colon {byte:#x} at {at}");
                let name = if byte.is_ascii_alphanumeric() || byte == b'-' { 20 } else { at };
                assert_eq!(name_len(&line), name, "name {byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn adjacent_bytes_do_not_affect_a_match() {
        assert_eq!(value_len(b"a\tb\t\t\t\t\t\t\t\tc\x0b\r\n"), 13);
        assert_eq!(target_len(b"/\xff\x80\x21 \x20"), 4);
        assert_eq!(target_len(b""), 0);
        assert_eq!(value_len(b""), 0);
    }

    #[test]
    fn tokens_rfc9110_section_5_6_2() {
        let others: Vec<u8> = (b'!'..0x7f).filter(|&byte| !is_token(byte)).collect();
        assert_eq!(others, b"\"(),/:;<=>?@[\\]{}");
        assert!((0..=b' ').chain(0x7f..=255).all(|byte| !is_token(byte)));
    }

    #[test]
    fn hex_digits() {
        let digits: Vec<u8> = (0..=255).filter(|&byte| hex(byte).is_some()).collect();
        assert_eq!(digits, b"0123456789ABCDEFabcdef");
        assert_eq!((hex(b'9'), hex(b'a'), hex(b'F')), (Some(9), Some(10), Some(15)));
    }
}
