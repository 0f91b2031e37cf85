//! Numbers, sizes and times as nginx reads them.
//!
//! Everything is bounded by `i64::MAX`, nginx's largest integer; what does not fit is refused, never cut.
//! Source: nginx 1.31, `ngx_parse_size`, `ngx_parse_offset`, `ngx_parse_time`, `ngx_atoi`.

use std::time::Duration;

use tw_base::fault::Probability;

const MAX: u64 = i64::MAX as u64;

/// `on` or `off`, in any case of letters.
pub fn flag(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"on") {
        Some(true)
    } else if text.eq_ignore_ascii_case(b"off") {
        Some(false)
    } else {
        None
    }
}

/// Decimal digits and nothing else.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0, |value, &digit| push_digit(value, digit))
}

/// Treatment of decimals after the last significant one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraDecimals {
    /// The number is refused.
    Refused,
    /// They are digits, and ignored.
    Ignored,
}

/// A number with decimals, `12.5` or `.5`, in units of its last decimal: with two `places`, hundredths. `None` for
/// anything else, and for what 63 bits do not hold.
pub fn fixed(text: &[u8], places: u32, further: ExtraDecimals) -> Option<u64> {
    let mut value = 0_u64;
    let mut decimals = 0;
    let mut has_point = false;
    for &byte in text {
        match byte {
            b'.' if !has_point => has_point = true,
            b'0'..=b'9' if decimals == places => match further {
                ExtraDecimals::Refused => return None,
                ExtraDecimals::Ignored => {}
            },
            digit => {
                value = push_digit(value, digit)?;
                decimals += u32::from(has_point);
            }
        }
    }
    let value = value.checked_mul(10_u64.checked_pow(places - decimals)?)?;
    (!text.is_empty() && value <= MAX).then_some(value)
}

/// A probability in percent, `0.1%`, with up to four decimals; `0%` to `100%`.
pub fn probability(text: &[u8]) -> Option<Probability> {
    let percent = text.strip_suffix(b"%").filter(|text| text.iter().any(u8::is_ascii_digit))?;
    let millionths = fixed(percent, 4, ExtraDecimals::Refused)?;
    u32::try_from(millionths).ok().filter(|parts| *parts <= 1_000_000).map(Probability::of_million)
}

/// Bytes: a number, then nothing, `k` or `m` in either case.
pub fn size(text: &[u8]) -> Option<u64> {
    let (digits, scale) = match text.split_last()? {
        (b'k' | b'K', digits) => (digits, 1 << 10),
        (b'm' | b'M', digits) => (digits, 1 << 20),
        _ => (text, 1),
    };
    scaled(number(digits)?, scale)
}

/// Bytes of something that may be larger than memory: as [`size`], and `g` in either case.
pub fn offset(text: &[u8]) -> Option<u64> {
    match text.split_last()? {
        (b'g' | b'G', digits) => scaled(number(digits)?, 1 << 30),
        _ => size(text),
    }
}

/// A time with a resolution of milliseconds: `30`, `1m30s`, `500ms`, `1h 30m`; the largest unit is `w`.
///
/// A number without a unit is seconds.
pub fn msec(text: &[u8]) -> Option<Duration> {
    time(text, Resolution::Milliseconds).map(Duration::from_millis)
}

/// A time with a resolution of seconds: `30`, `1m30s`, `1y6M`; no `ms`.
///
/// A number without a unit is seconds; a month is 30 days, a year 365.
pub fn sec(text: &[u8]) -> Option<Duration> {
    time(text, Resolution::Seconds).map(Duration::from_secs)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Resolution {
    Milliseconds,
    Seconds,
}

/// Units from large to small: a time names each at most once and in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
    /// A number followed by a space and no unit: seconds. Only one more such number may follow, at the end.
    Bare,
}

impl Unit {
    const fn seconds(self) -> u64 {
        match self {
            Unit::Year => 365 * 24 * 60 * 60,
            Unit::Month => 30 * 24 * 60 * 60,
            Unit::Week => 7 * 24 * 60 * 60,
            Unit::Day => 24 * 60 * 60,
            Unit::Hour => 60 * 60,
            Unit::Minute => 60,
            Unit::Second | Unit::Millisecond | Unit::Bare => 1,
        }
    }
}

/// A composite time, in the unit of the resolution.
fn time(text: &[u8], resolution: Resolution) -> Option<u64> {
    // Months and years do not exist where milliseconds count: such a time is at most weeks.
    let mut last = match resolution {
        Resolution::Milliseconds => Some(Unit::Month),
        Resolution::Seconds => None,
    };
    let mut rest = text;
    let mut total: u64 = 0;
    let mut value: u64 = 0;
    let mut any_digit = false;

    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte.is_ascii_digit() {
            value = push_digit(value, byte)?;
            any_digit = true;
            continue;
        }

        let unit = match byte {
            b'y' => Unit::Year,
            b'M' => Unit::Month,
            b'w' => Unit::Week,
            b'd' => Unit::Day,
            b'h' => Unit::Hour,
            b'm' => match rest.strip_prefix(b"s") {
                Some(after) => {
                    rest = after;
                    Unit::Millisecond
                }
                None => Unit::Minute,
            },
            b's' => Unit::Second,
            b' ' => Unit::Bare,
            _ => return None,
        };
        if unit == Unit::Millisecond && resolution == Resolution::Seconds {
            return None;
        }
        // Only milliseconds may follow seconds: neither a second unit nor a bare number.
        let ended = unit == Unit::Bare && last.is_some_and(|last| last >= Unit::Second);
        if ended || last.is_some_and(|last| unit <= last) {
            return None;
        }
        last = Some(unit);

        let scale = match (resolution, unit) {
            (Resolution::Milliseconds, Unit::Millisecond) => 1,
            (Resolution::Milliseconds, unit) => unit.seconds() * 1000,
            (Resolution::Seconds, unit) => unit.seconds(),
        };
        total = sum(total, scaled(value, scale)?)?;
        value = 0;
        rest = without_spaces(rest);
    }

    if !any_digit {
        return None;
    }
    let scale = if resolution == Resolution::Milliseconds { 1000 } else { 1 };
    sum(total, scaled(value, scale)?)
}

/// Without leading spaces; tabs and line ends stay.
fn without_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|&&byte| byte == b' ').count();
    &text[spaces..]
}

fn push_digit(value: u64, digit: u8) -> Option<u64> {
    if !digit.is_ascii_digit() {
        return None;
    }
    sum(value.checked_mul(10)?, u64::from(digit - b'0'))
}

fn scaled(value: u64, scale: u64) -> Option<u64> {
    value.checked_mul(scale).filter(|&value| value <= MAX)
}

fn sum(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b).filter(|&value| value <= MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const I64_MAX: &str = "9223372036854775807";

    #[test]
    fn flags() {
        let table = [
            ("on", Some(true)),
            ("OFF", Some(false)),
            ("On", Some(true)),
            ("", None),
            ("yes", None),
            ("1", None),
        ];
        for (text, expected) in table {
            assert_eq!(flag(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn probabilities() {
        let table = [
            ("0%", Some(0)),
            ("0.0001%", Some(1)),
            (".5%", Some(5000)),
            ("12.5%", Some(125_000)),
            ("100%", Some(1_000_000)),
            ("100.0001%", None),
            ("0.00001%", None),
            ("-1%", None),
            (".%", None),
            ("%", None),
            ("5", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(probability(text.as_bytes()), expected.map(Probability::of_million), "{text}");
        }
    }

    #[test]
    fn numbers() {
        let table = [
            ("0", Some(0)),
            ("0042", Some(42)),
            (I64_MAX, Some(MAX)),
            ("9223372036854775808", None),
            ("99999999999999999999", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1k", None),
            (" 1", None),
        ];
        for (text, expected) in table {
            assert_eq!(number(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn sizes_and_offsets() {
        // Text, as a size, as an offset.
        let table = [
            ("0", Some(0), Some(0)),
            ("512", Some(512), Some(512)),
            ("1k", Some(1024), Some(1024)),
            ("1K", Some(1024), Some(1024)),
            ("8m", Some(8 << 20), Some(8 << 20)),
            ("8M", Some(8 << 20), Some(8 << 20)),
            ("1g", None, Some(1 << 30)),
            ("2G", None, Some(2 << 30)),
            (I64_MAX, Some(MAX), Some(MAX)),
            ("9007199254740991k", Some(MAX & !1023), Some(MAX & !1023)),
            ("9007199254740992k", None, None),
            ("8796093022208m", None, None),
            ("8589934591g", None, Some(MAX & !((1 << 30) - 1))),
            ("8589934592g", None, None),
            ("", None, None),
            ("k", None, None),
            ("g", None, None),
            ("1kk", None, None),
            ("1mg", None, None),
            ("1.5k", None, None),
            ("-1k", None, None),
            ("1b", None, None),
        ];
        for (text, as_size, as_offset) in table {
            assert_eq!((size(text.as_bytes()), offset(text.as_bytes())), (as_size, as_offset), "{text}");
        }
    }

    #[test]
    fn times() {
        // Text, milliseconds by `msec`, seconds by `sec`.
        let table = [
            ("0", Some(0), Some(0)),
            ("30", Some(30_000), Some(30)),
            ("30s", Some(30_000), Some(30)),
            ("500ms", Some(500), None),
            ("1s500ms", Some(1_500), None),
            ("1s 500ms", Some(1_500), None),
            ("1m", Some(60_000), Some(60)),
            ("1m30", Some(90_000), Some(90)),
            ("1m30s", Some(90_000), Some(90)),
            ("1h30m", Some(5_400_000), Some(5_400)),
            ("1h   30m", Some(5_400_000), Some(5_400)),
            ("1h30m ", Some(5_400_000), Some(5_400)),
            ("1d", Some(86_400_000), Some(86_400)),
            ("1w2d3h4m5s6ms", Some(788_645_006), None),
            ("1w2d3h4m5s", Some(788_645_000), Some(788_645)),
            ("1M", None, Some(2_592_000)),
            ("1y", None, Some(31_536_000)),
            ("1y6M", None, Some(47_088_000)),
            ("10 5", Some(15_000), Some(15)),
            ("10 ", Some(10_000), Some(10)),
            // A unit without a number counts nothing.
            ("h5m", Some(300_000), Some(300)),
            ("", None, None),
            ("s", None, None),
            ("ms", None, None),
            (" ", None, None),
            ("30m1h", None, None),
            ("1m1m", None, None),
            ("1s1s", None, None),
            ("1ms1s", None, None),
            ("1ms1ms", None, None),
            ("1s 5 ", None, None),
            ("10 5 ", None, None),
            ("10 5s", None, None),
            ("1S", None, None),
            ("1.5s", None, None),
            ("-1", None, None),
            ("1\ts", None, None),
            ("1x", None, None),
            ("9223372036854775", Some(9_223_372_036_854_775_000), Some(9_223_372_036_854_775)),
            ("9223372036854776", None, Some(9_223_372_036_854_776)),
            ("9223372036854775807ms", Some(MAX), None),
            (I64_MAX, None, Some(MAX)),
            ("9223372036854775808", None, None),
            ("153722867280912930m", None, Some(9_223_372_036_854_775_800)),
            ("153722867280912931m", None, None),
            ("153722867280912930m7", None, Some(MAX)),
            ("153722867280912930m8", None, None),
        ];
        for (text, by_msec, by_sec) in table {
            assert_eq!(msec(text.as_bytes()), by_msec.map(Duration::from_millis), "msec {text}");
            assert_eq!(sec(text.as_bytes()), by_sec.map(Duration::from_secs), "sec {text}");
        }
    }
}
