//! Times in a format of strftime() in the C locale.

use std::io::Write as _;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Longest result in bytes; longer ones are no date (nginx: NGX_HTTP_SSI_DATE_LEN).
pub const DATE_MAX: usize = 2048;
/// The format of a page that sets none.
pub const DEFAULT: &[u8] = b"%A, %d-%b-%Y %H:%M:%S %Z";

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Context in which the time is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DateZone {
    /// UTC, under the name GMT.
    Gmt,
    /// Time zone of the server.
    Local,
}

/// Appends the time; returns `false` if it is too long. `%s` alone is the number of seconds since 1970.
pub fn push(format: &[u8], unix: i64, place: DateZone, out: &mut Vec<u8>) -> bool {
    let zone = if place == DateZone::Gmt { TimeZone::UTC } else { tw_log::time::zone().clone() };
    let Ok(time) = Timestamp::from_second(unix) else { return false };
    let start = out.len();
    push_format(format, &time.to_zoned(zone), place, out);
    if out.len() - start >= DATE_MAX {
        out.truncate(start);
    }
    out.len() > start
}

fn push_format(format: &[u8], time: &Zoned, place: DateZone, out: &mut Vec<u8>) {
    let mut rest = format.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let Some(mut letter) = rest.next() else {
            out.push(b'%');
            break;
        };
        // `%E` and `%O` select alternative numbers and years of a locale; the C locale has none.
        if matches!(letter, b'E' | b'O') {
            let Some(next) = rest.next() else { break };
            letter = next;
        }
        push_field(*letter, time, place, out);
        // A field has at most a few dozen bytes, so the result exceeds the limit only by these.
        if out.len() > 2 * DATE_MAX {
            return;
        }
    }
}

fn push_field(letter: u8, time: &Zoned, place: DateZone, out: &mut Vec<u8>) {
    let date = time.date();
    let clock = time.time();
    let weekday = usize::from(date.weekday().to_sunday_zero_offset().unsigned_abs());
    let day_name = DAYS.get(weekday).copied().unwrap_or_default();
    let month_name = MONTHS.get(usize::from(date.month().unsigned_abs()) - 1).copied().unwrap_or_default();
    let year_day = i64::from(date.day_of_year());
    let hour = i64::from(clock.hour());
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let year = i64::from(date.year());
    let iso = date.iso_week_date();
    let mut number = |value: i64, width: usize| {
        write!(out, "{value:0width$}").expect("writing to memory does not fail");
    };
    match letter {
        b'C' => number(year / 100, 2),
        b'd' => number(date.day().into(), 2),
        b'G' => number(iso.year().into(), 4),
        b'g' => number(i64::from(iso.year()) % 100, 2),
        b'H' => number(hour, 2),
        b'I' => number(hour12, 2),
        b'j' => number(year_day, 3),
        b'M' => number(clock.minute().into(), 2),
        b'm' => number(date.month().into(), 2),
        b'S' => number(clock.second().into(), 2),
        b's' => number(time.timestamp().as_second(), 1),
        b'U' => number((year_day + 6 - weekday as i64) / 7, 2),
        b'u' => number(if date.weekday() == Weekday::Sunday { 7 } else { weekday as i64 }, 1),
        b'V' => number(iso.week().into(), 2),
        b'W' => number((year_day + 6 - (weekday as i64 + 6) % 7) / 7, 2),
        b'w' => number(weekday as i64, 1),
        b'Y' => number(year, 1),
        b'y' => number(year % 100, 2),
        b'e' | b'k' | b'l' => {
            let value = match letter {
                b'e' => i64::from(date.day()),
                b'k' => hour,
                _ => hour12,
            };
            write!(out, "{value:2}").expect("writing to memory does not fail");
        }
        b'A' => out.extend_from_slice(day_name.as_bytes()),
        b'a' => out.extend_from_slice(&day_name.as_bytes()[..3]),
        b'B' => out.extend_from_slice(month_name.as_bytes()),
        b'b' | b'h' => out.extend_from_slice(&month_name.as_bytes()[..3]),
        b'c' => push_format(b"%a %b %e %H:%M:%S %Y", time, place, out),
        b'D' | b'x' => push_format(b"%m/%d/%y", time, place, out),
        b'F' => push_format(b"%Y-%m-%d", time, place, out),
        b'R' => push_format(b"%H:%M", time, place, out),
        b'r' => push_format(b"%I:%M:%S %p", time, place, out),
        b'T' | b'X' => push_format(b"%H:%M:%S", time, place, out),
        b'+' => push_format(b"%a %b %e %H:%M:%S %Z %Y", time, place, out),
        b'n' => out.push(b'\n'),
        b't' => out.push(b'\t'),
        b'p' => out.extend_from_slice(if hour < 12 { b"AM" } else { b"PM" }),
        b'P' => out.extend_from_slice(if hour < 12 { b"am" } else { b"pm" }),
        b'Z' if place == DateZone::Gmt => out.extend_from_slice(b"GMT"),
        b'Z' => {
            let zone = time.time_zone().to_offset_info(time.timestamp());
            out.extend_from_slice(zone.abbreviation().as_bytes());
        }
        b'z' => {
            let minutes = time.offset().seconds() / 60;
            let sign = if minutes < 0 { '-' } else { '+' };
            let minutes = minutes.unsigned_abs();
            write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
                .expect("writing to memory does not fail");
        }
        b'%' => out.push(b'%'),
        other => out.extend_from_slice(&[b'%', other]),
    }
}

/// Writes `1994-11-06T08:49:37Z`. `unix_s`: seconds since 1970.
pub fn push_iso8601(unix_s: i64, out: &mut Vec<u8>) {
    let time = Timestamp::from_second(unix_s.max(0)).unwrap_or(Timestamp::MAX);
    let time = jiff::tz::Offset::UTC.to_datetime(time);
    let year = time.year();
    let month = time.month();
    let day = time.day();
    let hour = time.hour();
    let minute = time.minute();
    let second = time.second();
    let text = format!("{year:4}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_dates() {
        // Sunday, 6 November 1994, and Sunday, 3 January 2021, which is in the last week of 2020.
        let sunday = 784_111_777;
        let january = 1_609_682_405;
        for (format, unix, expected) in [
            ("%A, %d-%b-%Y %H:%M:%S %Z", sunday, "Sunday, 06-Nov-1994 08:49:37 GMT"),
            ("%s", sunday, "784111777"),
            ("%a %B %C %D %e %F %h %I %j", sunday, "Sun November 19 11/06/94  6 1994-11-06 Nov 08 310"),
            ("%k|%l|%M|%m|%p|%P|%R|%r|%T", sunday, " 8| 8|49|11|AM|am|08:49|08:49:37 AM|08:49:37"),
            ("%u %w %U %W %V %G %g %y %z", sunday, "7 0 45 44 44 1994 94 94 +0000"),
            ("%U %W %V %G %y %I %p", january, "01 00 53 2020 21 02 PM"),
            (
                "%c|%x|%X|%+",
                sunday,
                "Sun Nov  6 08:49:37 1994|11/06/94|08:49:37|Sun Nov  6 08:49:37 GMT 1994",
            ),
            ("%Ey %Od %% %n%t %q x%", sunday, "94 06 % \n\t %q x%"),
            ("", sunday, ""),
        ] {
            let mut out = Vec::new();
            assert_eq!(push(format.as_bytes(), unix, DateZone::Gmt, &mut out), !expected.is_empty());
            assert_eq!(String::from_utf8_lossy(&out), expected, "{format}");
        }
        let mut out = Vec::new();
        assert!(!push("%c".repeat(200).as_bytes(), sunday, DateZone::Gmt, &mut out));
        assert!(out.is_empty());
    }
}
