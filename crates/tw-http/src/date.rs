//! Dates of HTTP fields: written as IMF-fixdate, read in all three forms (RFC 9110 section 5.6.7).

use std::cell::Cell;

/// Bytes of an IMF-fixdate, e.g. `Sun, 06 Nov 1994 08:49:37 GMT`.
pub const DATE_LEN: usize = 29;

/// Dates that are remembered, each at the place of its second.
const WRITTEN_COUNT: usize = 64;

const SECONDS_PER_DAY: i64 = 86_400;

/// 9999-12-31 23:59:59: the last second that has a four-digit year.
const LAST: i64 = 253_402_300_799;

const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Writes seconds since 1970 as an IMF-fixdate. Times before 1970 and after 9999 are written as the nearest of
/// these bounds. Cost: some divisions; callers that write many keep the result for the second.
pub fn format(seconds: i64) -> [u8; DATE_LEN] {
    let seconds = seconds.clamp(0, LAST);
    let days = seconds / SECONDS_PER_DAY;
    let second = seconds % SECONDS_PER_DAY;
    let (year, month, day) = civil(days);

    let [d1, d2, d3] = **at(&DAYS, days % 7);
    let [m1, m2, m3] = **at(&MONTHS, month - 1);
    let [day_1, day_2] = two(day);
    let [y1, y2] = two(year / 100);
    let [y3, y4] = two(year % 100);
    let [h1, h2] = two(second / 3600);
    let [i1, i2] = two(second / 60 % 60);
    let [s1, s2] = two(second % 60);
    [
        d1, d2, d3, b',', b' ', day_1, day_2, b' ', m1, m2, m3, b' ', y1, y2, y3, y4, b' ', h1, h2, b':', i1,
        i2, b':', s1, s2, b' ', b'G', b'M', b'T',
    ]
}

/// Dates as they were written lately. What a server writes is most often one of a few: now, and when its files were
/// changed.
#[derive(Debug)]
pub struct DateCache([Cell<(i64, [u8; DATE_LEN])>; WRITTEN_COUNT]);

impl Default for DateCache {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cell::new((0, format(0)))))
    }
}

impl DateCache {
    /// Formatted date, as by [`format()`]. Cost: one comparison, unless the cached date is another.
    pub fn text(&self, seconds: i64) -> [u8; DATE_LEN] {
        let Some(place) = self.0.get(seconds.rem_euclid(WRITTEN_COUNT as i64) as usize) else {
            return format(seconds);
        };
        let (at, text) = place.get();
        if at == seconds {
            return text;
        }
        let text = format(seconds);
        place.set((seconds, text));
        text
    }
}

/// Formats a date for cookies: `Thu, 31-Dec-37 23:55:55 GMT`, with four digits of the year after 2037.
pub fn format_cookie(seconds: i64) -> Vec<u8> {
    let mut text = format(seconds).to_vec();
    for gap in [7, 11] {
        if let Some(byte) = text.get_mut(gap) {
            *byte = b'-';
        }
    }
    if text.get(12..16).is_some_and(|year| year <= &b"2037"[..]) {
        text.drain(12..14);
    }
    text
}

fn at<T, const N: usize>(table: &[T; N], index: i64) -> &T {
    let index = usize::try_from(index).unwrap_or(0) % N;
    table.get(index).expect("the index was taken modulo the length")
}

fn two(number: i64) -> [u8; 2] {
    [b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]
}

/// Year, month and day of a day number since 1970, in the proleptic Gregorian calendar: 400-year eras of 146097 days
/// whose years begin in March, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468; // days from 0000-03-01 to 1970-01-01
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The day number since 1970 of a date; the inverse of [`civil`].
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Reads a date in any of the three forms as seconds since 1970; None if it is none of them. As lenient as nginx: the
/// name of the day and the zone are not looked at, nor is what follows. A two-digit year below 70 is in this century.
///
/// ```text
/// Sun, 06 Nov 1994 08:49:37 GMT    IMF-fixdate
/// Sunday, 06-Nov-94 08:49:37 GMT   RFC 850
/// Sun Nov  6 08:49:37 1994         asctime
/// ```
pub fn parse(text: &[u8]) -> Option<i64> {
    read(text).map(|(seconds, _)| seconds)
}

/// Reads a date as a cache does for computing freshness: only in GMT, and without trailing text (RFC 9111 section
/// 4.2). An asctime date has no zone.
pub fn parse_gmt(text: &[u8]) -> Option<i64> {
    let (seconds, rest) = read(text)?;
    let is_gmt = match rest {
        Rest::OfAsctime(rest) => rest.is_empty(),
        Rest::Zone(zone) => zone.eq_ignore_ascii_case(b" GMT"),
    };
    is_gmt.then_some(seconds)
}

/// Rest of a text after a time.
enum Rest<'a> {
    /// Must be empty.
    OfAsctime(&'a [u8]),
    /// A space and the zone must follow.
    Zone(&'a [u8]),
}

fn read(text: &[u8]) -> Option<(i64, Rest<'_>)> {
    let name_end = text.iter().position(|byte| matches!(byte, b',' | b' '))?;
    let is_asctime = text.get(name_end) == Some(&b' ');
    let mut rest = Reader(text.get(name_end + 1..)?);
    rest.spaces();

    let (year, month, day, clock);
    if is_asctime {
        month = rest.month()?;
        rest.byte(b' ')?;
        rest.skip(b' ');
        day = rest.up_to_two_digits()?;
        rest.byte(b' ')?;
        clock = rest.clock()?;
        rest.byte(b' ')?;
        year = rest.digits(4)?;
    } else {
        day = rest.digits(2)?;
        let separator = rest.one()?;
        month = rest.month()?;
        rest.byte(separator)?;
        year = match separator {
            b' ' => rest.digits(4)?,
            b'-' => {
                let short = rest.digits(2)?;
                short + if short < 70 { 2000 } else { 1900 }
            }
            _ => return None,
        };
        rest.byte(b' ')?;
        clock = rest.clock()?;
    }

    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last_day = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if day == 0 || day > last_day {
        return None;
    }
    let rest = if is_asctime { Rest::OfAsctime(rest.0) } else { Rest::Zone(rest.0) };
    Some((day_number(year, month, day) * SECONDS_PER_DAY + clock, rest))
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn one(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn byte(&mut self, expected: u8) -> Option<()> {
        (self.one()? == expected).then_some(())
    }

    fn skip(&mut self, byte: u8) {
        self.0 = self.0.strip_prefix(&[byte]).unwrap_or(self.0);
    }

    fn spaces(&mut self) {
        while let Some(rest) = self.0.strip_prefix(b" ") {
            self.0 = rest;
        }
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let mut number = 0;
        for _ in 0..count {
            let digit = self.one()?;
            number = number * 10 + i64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        }
        Some(number)
    }

    fn up_to_two_digits(&mut self) -> Option<i64> {
        let first = self.digits(1)?;
        match self.0.first() {
            Some(b' ') => Some(first),
            _ => Some(first * 10 + self.digits(1)?),
        }
    }

    /// The number of the month, from 1.
    fn month(&mut self) -> Option<i64> {
        let (name, rest) = self.0.split_first_chunk::<3>()?;
        self.0 = rest;
        let index = MONTHS.iter().position(|month| *month == name)?;
        i64::try_from(index).ok().map(|index| index + 1)
    }

    /// Seconds of `hh:mm:ss`; a leap second is none.
    fn clock(&mut self) -> Option<i64> {
        let hours = self.digits(2)?;
        self.byte(b':')?;
        let minutes = self.digits(2)?;
        self.byte(b':')?;
        let seconds = self.digits(2)?;
        (hours < 24 && minutes < 60 && seconds < 60).then_some(hours * 3600 + minutes * 60 + seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_date_equals_a_new_one() {
        let date_cache = DateCache::default();
        for seconds in [0, 64, 0, -1, 784_111_777, 784_111_777 + 64, 784_111_777, i64::MAX, i64::MIN, LAST] {
            assert_eq!(date_cache.text(seconds), format(seconds), "{seconds}");
            assert_eq!(date_cache.text(seconds), format(seconds), "{seconds} again");
        }
    }

    #[test]
    fn three_forms_rfc9110_section_5_6_7() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov 06 08:49:37 1994",
            "Xyz,   06 Nov 1994 08:49:37 nowhere",
            ", 06 Nov 1994 08:49:37",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn other_zones_are_refused_rfc9111_section_4_2() {
        for (text, is_date) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:37 gmt", true),
            ("Sunday, 06-Nov-94 08:49:37 GMT", true),
            ("Sun Nov  6 08:49:37 1994", true),
            ("Sun Nov  6 08:49:37 1994 UTC", false),
            ("Sun, 06 Nov 1994 08:49:37 UTC", false),
            ("Sun, 06 Nov 1994 08:49:37 AEST", false),
            ("Sun, 06 Nov 1994 08:49:37 +0000", false),
            ("Sunday, 06-Nov-94 08:49:37 EST", false),
            ("Sun, 06 Nov 1994 08:49:37", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT x", false),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
            assert_eq!(parse_gmt(text.as_bytes()), is_date.then_some(784_111_777), "{text}");
        }
    }

    #[test]
    fn invalid_dates_are_refused() {
        for text in [
            "",
            "now",
            "784111777",
            "Sun, 06 Nov 1994",
            "Sun, 06 Nov 1994 08:49",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun, 29 Feb 2023 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 23:59:60 GMT",
            "Sun, 06 Nov 1994 23:60:00 GMT",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06-Nov 94 08:49:37 GMT",
            "Sun, 06/Nov/94 08:49:37 GMT",
            "Sun, -6 Nov 1994 08:49:37 GMT",
            "Sun Nov 6 08:49:37 94",
            "Sun Nov",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn dates_are_formatted() {
        let table = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (86_399, "Thu, 01 Jan 1970 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_700_000_000, "Tue, 14 Nov 2023 22:13:20 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (LAST, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (LAST + 1, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (-1, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (i64::MIN, "Thu, 01 Jan 1970 00:00:00 GMT"),
        ];
        for (seconds, text) in table {
            assert_eq!(format(seconds).escape_ascii().to_string(), text, "{seconds}");
        }
        assert_eq!(parse(b"Wed, 31 Dec 1969 23:59:59 GMT"), Some(-1));
    }

    #[test]
    fn written_dates_read_back() {
        let mut seconds = 0;
        while seconds < LAST {
            assert_eq!(parse(&format(seconds)), Some(seconds));
            seconds += 86_400 * 13 + 3_607;
        }
    }

    #[test]
    fn two_digit_years() {
        assert_eq!(parse(b"x, 01-Jan-69 00:00:00 GMT"), parse(b"x, 01 Jan 2069 00:00:00 GMT"));
        assert_eq!(parse(b"x, 01-Jan-70 00:00:00 GMT"), Some(0));
    }
}
