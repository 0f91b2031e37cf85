//! Byte ranges: the field `Range` (RFC 9110 section 14.1.2), and the multipart form of several ranges.
//!
//! nginx's rules: a malformed or unsatisfiable field is 416, not ignored; more ranges than allowed, or ranges that
//! together are longer than the representation, give the whole of it. Ranges are neither sorted nor merged.

use crate::num;

/// The largest offset a client may name.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Bytes `start..end` of a representation; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
}

impl ByteRange {
    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns `true` if there are no ranges; never for a result of [`parse`].
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Response to a request with a `Range` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// 200: the whole representation, as if there were no such field.
    Whole,
    /// 206 with one range and `Content-Range`.
    Single(ByteRange),
    /// 206 `multipart/byteranges` with the ranges that were collected.
    Multiple,
    /// 416 with `Content-Range: bytes */LENGTH`.
    NotSatisfiable,
}

/// `max_ranges`: how many ranges one request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxRanges {
    /// The default: any number, unless the multipart form would be much longer than the representation.
    Unlimited,
    /// This many; 0 turns ranges off.
    At(u32),
}

/// Reads the value of a `Range` field for a representation of `length` bytes. The ranges are collected in `ranges`,
/// which is cleared first, and are valid for [`RangeOutcome::Multiple`].
///
/// Cost: linear in the value; `ranges` grows by 16 bytes per range.
pub fn parse(value: &[u8], length: u64, max: MaxRanges, ranges: &mut Vec<ByteRange>) -> RangeOutcome {
    ranges.clear();
    let Some((unit, list)) = value.split_at_checked(6) else { return RangeOutcome::Whole };
    if max == MaxRanges::At(0) || list.is_empty() || !unit.eq_ignore_ascii_case(b"bytes=") {
        return RangeOutcome::Whole;
    }

    let mut total: u64 = 0;
    for spec in list.split(|&byte| byte == b',') {
        let Some(spec) = Spec::parse(spec) else { return RangeOutcome::NotSatisfiable };
        let (start, end) = spec.of(length);
        if start >= end {
            if start == 0 {
                return RangeOutcome::Whole; // nothing can be taken from an empty representation
            }
            continue;
        }
        total = match total.checked_add(end - start) {
            Some(total) if total <= OFFSET_MAX => total,
            _ => return RangeOutcome::NotSatisfiable,
        };
        if matches!(max, MaxRanges::At(max) if ranges.len() >= max as usize) {
            return RangeOutcome::Whole;
        }
        ranges.push(ByteRange { start, end });
    }

    match ranges.as_slice() {
        [] => RangeOutcome::NotSatisfiable,
        [range] => RangeOutcome::Single(*range),
        _ if total > length => RangeOutcome::Whole,
        // Each part has a header, which counts as 256 bytes; 4096 bytes in all are tolerated.
        many if max == MaxRanges::Unlimited
            && total.saturating_add(many.len() as u64 * 256) > length.saturating_add(4096) =>
        {
            RangeOutcome::Whole
        }
        _ => RangeOutcome::Multiple,
    }
}

/// One element of the list as written.
#[derive(Clone, Copy, Debug)]
enum Spec {
    From(u64),
    /// First and last byte.
    Between(u64, u64),
    Suffix(u64),
}

impl Spec {
    fn parse(text: &[u8]) -> Option<Spec> {
        let dash = memchr::memchr(b'-', text)?;
        let first = text.get(..dash)?;
        let last = text.get(dash + 1..)?;
        if trim(first).is_empty() {
            // A suffix may have spaces in front of its dash, but none after it.
            return number(trim_end(last)).map(Spec::Suffix);
        }
        let first = number(trim(first))?;
        match trim(last) {
            b"" => Some(Spec::From(first)),
            last => Some(Spec::Between(first, number(last)?)),
        }
    }

    /// First byte and the byte after the last one; an empty or reversed range has none.
    fn of(self, length: u64) -> (u64, u64) {
        match self {
            Spec::From(first) => (first, length),
            Spec::Between(first, last) => (first, last.saturating_add(1).min(length)),
            Spec::Suffix(count) => (length.saturating_sub(count), length),
        }
    }
}

/// Only the space is one here, not the tab.
fn trim_end(text: &[u8]) -> &[u8] {
    let spaces = text.iter().rev().take_while(|&&byte| byte == b' ').count();
    text.get(..text.len() - spaces).unwrap_or(b"")
}

fn trim(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|&&byte| byte == b' ').count();
    trim_end(text.get(spaces..).unwrap_or(b""))
}

fn number(text: &[u8]) -> Option<u64> {
    num::parse(text).filter(|&number| number <= OFFSET_MAX)
}

/// Start of the only range of a `Range` field: 0 unless there is one that counts from the start. The text after its
/// first number is ignored (nginx: ngx_http_slice_get_start).
pub fn first_byte(value: &[u8]) -> u64 {
    let Some((unit, list)) = value.split_at_checked(6) else { return 0 };
    if !unit.eq_ignore_ascii_case(b"bytes=") || list.contains(&b',') {
        return 0;
    }
    let list = trim(list);
    let digits = list.iter().take_while(|byte| byte.is_ascii_digit()).count();
    list.get(..digits).and_then(number).unwrap_or(0)
}

/// Parsed `Content-Range` of a 206.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// Byte range as sent; possibly empty or reversed.
    pub range: ByteRange,
    /// Bytes of the whole representation, if given.
    pub length: Option<u64>,
}

impl ContentRange {
    /// Reads the value: `bytes 0-99/200`, with spaces around the numbers, as nginx reads it. `None` for anything
    /// else, numbers beyond the largest offset, and a 416's.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let rest = value.strip_prefix(b"bytes ")?;
        let slash = memchr::memchr(b'/', rest)?;
        let numbers = rest.get(..slash)?;
        let length = trim(rest.get(slash + 1..)?);
        let dash = memchr::memchr(b'-', numbers)?;
        let first = number(trim(numbers.get(..dash)?))?;
        let last = number(trim(numbers.get(dash + 1..)?))?;
        let length = if length == b"*" { None } else { Some(number(length)?) };
        Some(Self { range: ByteRange { start: first, end: last + 1 }, length })
    }

    /// Returns `true` if this range covers everything that the representation has of `byte_range`.
    pub fn is_all_of(&self, byte_range: ByteRange) -> bool {
        self.length.is_some_and(|length| {
            self.range.start == byte_range.start && self.range.end == byte_range.end.min(length)
        })
    }
}

/// Appends the value of `Content-Range` for one range: `bytes 0-99/200`.
pub fn push_content_range(range: ByteRange, length: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes ");
    push_numbers(range, length, out);
}

/// Appends the value of `Content-Range` of a 416: `bytes */200`.
pub fn push_unsatisfied_range(length: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes */");
    num::push_decimal(out, length);
}

fn push_numbers(range: ByteRange, length: u64, out: &mut Vec<u8>) {
    num::push_decimal(out, range.start);
    out.push(b'-');
    num::push_decimal(out, range.end.saturating_sub(1));
    out.push(b'/');
    num::push_decimal(out, length);
}

/// The `multipart/byteranges` form of several ranges (RFC 9110 section 14.6).
#[derive(Clone, Debug)]
pub struct Multipart {
    boundary: [u8; num::DECIMAL_MAX],
    /// Everything of the head of a part up to its numbers.
    part_head: Vec<u8>,
    length: u64,
}

impl Multipart {
    /// For a representation of `length` bytes. `boundary` must not occur in it, which is left to chance: a number that
    /// differs from response to response. `content_type` is the value of the whole representation's
    /// `Content-Type`; empty if it has none.
    pub fn new(boundary: u64, content_type: &[u8], length: u64) -> Self {
        let mut digits = [0; num::DECIMAL_MAX];
        let len = num::decimal(boundary, &mut digits).len();
        let mut padded = digits;
        for digit in padded.iter_mut().take(num::DECIMAL_MAX - len) {
            *digit = b'0';
        }

        let mut part_head = Vec::with_capacity(64 + content_type.len());
        part_head.extend_from_slice(b"\r\n--");
        part_head.extend_from_slice(&padded);
        if !content_type.is_empty() {
            part_head.extend_from_slice(b"\r\nContent-Type: ");
            part_head.extend_from_slice(content_type);
        }
        part_head.extend_from_slice(b"\r\nContent-Range: bytes ");
        Multipart { boundary: padded, part_head, length }
    }

    /// Appends the value of the response's own `Content-Type`.
    pub fn push_content_type(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"multipart/byteranges; boundary=");
        out.extend_from_slice(&self.boundary);
    }

    /// Appends the part head before the bytes of a range.
    pub fn push_part_head(&self, range: ByteRange, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.part_head);
        push_numbers(range, self.length, out);
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends the end after the last range.
    pub fn push_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(&self.boundary);
        out.extend_from_slice(b"--\r\n");
    }

    /// Bytes of the whole multipart body.
    pub fn body_len(&self, ranges: &[ByteRange]) -> u64 {
        let mut digits = [0; num::DECIMAL_MAX];
        let mut width = |number| num::decimal(number, &mut digits).len();
        let end = b"\r\n--".len() + num::DECIMAL_MAX + b"--\r\n".len();
        let separators = b"-/\r\n\r\n".len();
        let length_width = width(self.length);
        ranges.iter().fold(end as u64, |sum, range| {
            let numbers = width(range.start) + width(range.end.saturating_sub(1)) + length_width;
            sum.saturating_add((self.part_head.len() + numbers + separators) as u64)
                .saturating_add(range.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(value: &str, length: u64, max: MaxRanges) -> String {
        let mut ranges = Vec::new();
        match parse(value.as_bytes(), length, max, &mut ranges) {
            RangeOutcome::Whole => "200".to_owned(),
            RangeOutcome::NotSatisfiable => "416".to_owned(),
            RangeOutcome::Single(range) => format!("{}-{}", range.start, range.end - 1),
            RangeOutcome::Multiple => {
                let parts = ranges.iter().map(|range| format!("{}-{}", range.start, range.end - 1));
                parts.collect::<Vec<_>>().join(",")
            }
        }
    }

    #[test]
    fn ranges_are_read_as_nginx_reads_them() {
        let table = [
            ("bytes=0-0", "0-0"),
            ("bytes=0-", "0-35"),
            ("bytes=5-9", "5-9"),
            ("BYTES=5-9", "5-9"),
            ("bytes=30-99", "30-35"),
            ("bytes=-5", "31-35"),
            ("bytes=-36", "0-35"),
            ("bytes=-99", "0-35"),
            ("bytes=-0", "416"),
            ("bytes=36-", "416"),
            ("bytes=36-40", "416"),
            ("bytes=9-5", "416"),
            ("bytes=0-9223372036854775807", "0-35"),
            ("bytes=0-9223372036854775808", "416"),
            ("bytes=9223372036854775808-", "416"),
            ("bytes=-9223372036854775808", "416"),
            ("bytes=0-1,3-4", "0-1,3-4"),
            ("bytes=3-4,0-1", "3-4,0-1"),
            ("bytes=0-1,0-1", "0-1,0-1"),
            ("bytes=0-1,99-", "0-1"),
            ("bytes=99-,0-1", "0-1"),
            ("bytes=9-5,0-1", "0-1"),
            ("bytes=0-,0-0", "200"),
            ("bytes=0-17,18-35", "0-17,18-35"),
            ("bytes=0-18,18-35", "200"),
            ("bytes=0-1,", "416"),
            ("bytes=,0-1", "416"),
            ("bytes=0-1,,3-4", "416"),
            ("bytes=0-1, 3-4", "0-1,3-4"),
            ("bytes= 0 - 1 , 3 - 4 ", "0-1,3-4"),
            ("bytes= -5", "31-35"),
            ("bytes=-5 ", "31-35"),
            ("bytes=- 5", "416"),
            ("bytes=0 -", "0-35"),
            ("bytes=0- ", "0-35"),
            ("bytes=0-\t1", "416"),
            ("bytes=\t0-1", "416"),
            ("bytes=0-1;3-4", "416"),
            ("bytes=x", "416"),
            ("bytes=-", "416"),
            ("bytes=--1", "416"),
            ("bytes=1", "416"),
            ("bytes=1-2-3", "416"),
            ("bytes=1-x", "416"),
            ("bytes=x-1", "416"),
            ("bytes=+1-2", "416"),
            ("bytes=0x0-1", "416"),
            ("bytes=", "200"),
            ("bytes", "200"),
            ("bytes =0-1", "200"),
            (" bytes=0-1", "200"),
            ("lines=0-1", "200"),
            ("", "200"),
        ];
        for (value, expected) in table {
            assert_eq!(outcome(value, 36, MaxRanges::Unlimited), expected, "{value:?}");
        }
    }

    #[test]
    fn an_empty_representation_is_sent_whole() {
        for (value, expected) in [
            ("bytes=0-", "200"),
            ("bytes=0-0", "200"),
            ("bytes=-5", "200"),
            ("bytes=-0", "200"),
            ("bytes=1-", "416"),
        ] {
            assert_eq!(outcome(value, 0, MaxRanges::Unlimited), expected, "{value:?}");
        }
    }

    #[test]
    fn max_ranges() {
        let table = [
            (0, "bytes=0-1", "200"),
            (1, "bytes=0-1", "0-1"),
            (1, "bytes=0-1,3-4", "200"),
            (1, "bytes=99-,0-1", "0-1"),
            (2, "bytes=0-1,3-4", "0-1,3-4"),
            (2, "bytes=0-1,3-4,x", "416"),
            (2, "bytes=0-1,3-4,6-7", "200"),
            (2, "bytes=0-1,3-4,6-7,x", "200"),
        ];
        for (max, value, expected) in table {
            assert_eq!(outcome(value, 36, MaxRanges::At(max)), expected, "{max} {value:?}");
        }
        let many = |count: usize| format!("bytes={}0-0", "0-0,".repeat(count - 1));
        let short = outcome(&many(16), 36, MaxRanges::Unlimited);
        assert_eq!(short.split(',').count(), 16);
        assert_eq!(outcome(&many(17), 36, MaxRanges::Unlimited), "200");
        assert_eq!(outcome(&many(17), 36, MaxRanges::At(100)).split(',').count(), 17);
    }

    /// RFC 9110 section 14.1.2, for a representation of 10000 bytes.
    #[test]
    fn examples_rfc9110_section_14_1_2() {
        let table = [
            ("bytes=0-499", "0-499"),
            ("bytes=500-999", "500-999"),
            ("bytes=-500", "9500-9999"),
            ("bytes=9500-", "9500-9999"),
            ("bytes=0-0,-1", "0-0,9999-9999"),
            ("bytes= 0-999, 4500-5499, -1000", "0-999,4500-5499,9000-9999"),
            ("bytes=500-600,601-999", "500-600,601-999"),
            ("bytes=500-700,601-999", "500-700,601-999"),
        ];
        for (value, expected) in table {
            assert_eq!(outcome(value, 10_000, MaxRanges::Unlimited), expected, "{value:?}");
        }
    }

    #[test]
    fn offsets_at_the_edge_do_not_overflow() {
        let length = i64::MAX as u64;
        assert_eq!(outcome("bytes=0-,0-", length, MaxRanges::At(5)), "416");
        assert_eq!(
            outcome("bytes=9223372036854775806-", length, MaxRanges::Unlimited),
            format!("{0}-{0}", length - 1)
        );
        assert_eq!(outcome("bytes=0-", u64::MAX, MaxRanges::Unlimited), "416");
    }

    #[test]
    fn multipart_form() {
        let ranges = [ByteRange { start: 0, end: 2 }, ByteRange { start: 3, end: 5 }];
        let body = |multipart: &Multipart, data: &[u8]| {
            let mut out = Vec::new();
            for range in ranges {
                multipart.push_part_head(range, &mut out);
                out.extend_from_slice(&data[range.start as usize..range.end as usize]);
            }
            multipart.push_end(&mut out);
            assert_eq!(out.len() as u64, multipart.body_len(&ranges));
            String::from_utf8(out).unwrap()
        };
        let multipart = Multipart::new(1, b"text/plain", 36);
        let expected = "\r\n--00000000000000000001\r\nContent-Type: text/plain\r\n\
            Content-Range: bytes 0-1/36\r\n\r\nab\r\n--00000000000000000001\r\n\
            Content-Type: text/plain\r\nContent-Range: bytes 3-4/36\r\n\r\nde\r\n\
            --00000000000000000001--\r\n";
        assert_eq!(body(&multipart, b"abcdef"), expected);
        assert_eq!(multipart.body_len(&ranges), 198);
        let mut value = Vec::new();
        multipart.push_content_type(&mut value);
        assert_eq!(value, b"multipart/byteranges; boundary=00000000000000000001");
        assert!(!body(&Multipart::new(u64::MAX, b"", 36), b"abcdef").contains("Content-Type"));
    }

    #[test]
    fn content_range_values() {
        let mut out = Vec::new();
        push_content_range(ByteRange { start: 5, end: 10 }, 36, &mut out);
        push_unsatisfied_range(36, &mut out);
        assert_eq!(out, b"bytes 5-9/36bytes */36");
    }

    #[test]
    fn start_of_a_single_range() {
        for (value, expected) in [
            ("bytes=0-", 0),
            ("bytes=100-", 100),
            ("BYTES=100-199", 100),
            ("bytes=  7 -9", 7),
            ("bytes=9223372036854775807-", OFFSET_MAX),
            ("bytes=9223372036854775808-", 0),
            ("bytes=-100", 0),
            ("bytes= -100", 0),
            ("bytes=5-6,7-8", 0),
            ("bytes=x", 0),
            ("bytes=", 0),
            ("bytes", 0),
            ("lines=5-", 0),
        ] {
            assert_eq!(first_byte(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn content_ranges_are_read_as_nginx_reads_them() {
        let of = |start, end, length| Some(ContentRange { range: ByteRange { start, end }, length });
        for (value, expected) in [
            ("bytes 0-99/200", of(0, 100, Some(200))),
            ("bytes   5 - 9 / 36 ", of(5, 10, Some(36))),
            ("bytes 0-0/*", of(0, 1, None)),
            ("bytes 9-5/36", of(9, 6, Some(36))),
            ("bytes 0-9223372036854775807/9223372036854775807", of(0, OFFSET_MAX + 1, Some(OFFSET_MAX))),
            ("bytes 0-9223372036854775808/5", None),
            ("bytes */200", None),
            ("bytes 0-99", None),
            ("bytes 0/200", None),
            ("bytes -99/200", None),
            ("bytes 0-/200", None),
            ("bytes 0-99/", None),
            ("bytes 0-99/200x", None),
            ("bytes 0-99/**", None),
            ("bytes=0-99/200", None),
            ("Bytes 0-99/200", None),
            ("bytes", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn content_range_covers_the_wanted_range() {
        let byte_range = ByteRange { start: 10, end: 20 };
        for (value, expected) in [
            ("bytes 10-19/36", true),
            ("bytes 10-14/15", true),
            ("bytes 10-14/36", false),
            ("bytes 10-20/36", false),
            ("bytes 9-19/36", false),
            ("bytes 10-19/*", false),
        ] {
            let said = ContentRange::parse(value.as_bytes()).unwrap();
            assert_eq!(said.is_all_of(byte_range), expected, "{value}");
        }
    }
}
