//! Numbers, sizes and times as nginx reads them.
//!
//! Everything is bounded by `i64::MAX`, nginx's largest integer; what does not fit is refused, never cut.
//! Source: nginx 1.31, `ngx_parse_size`, `ngx_parse_offset`, `ngx_parse_time`, `ngx_atoi`.

use std::time::Duration;

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
    /// A number followed by a space and no unit: seconds. Nothing may follow.
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
        // After the seconds only milliseconds may come: neither a second unit nor a bare number.
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
        rest = rest.trim_ascii_start_spaces();
    }

    if !any_digit {
        return None;
    }
    let scale = if resolution == Resolution::Milliseconds { 1000 } else { 1 };
    sum(total, scaled(value, scale)?)
}

trait TrimSpaces {
    fn trim_ascii_start_spaces(&self) -> &Self;
}

impl TrimSpaces for [u8] {
    /// Without leading spaces; tabs and line ends stay.
    fn trim_ascii_start_spaces(&self) -> &Self {
        let spaces = self.iter().take_while(|&&byte| byte == b' ').count();
        &self[spaces..]
    }
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
