//! Times of both logs, in the local time zone, formatted once per second and thread.
//!
//! The zone is read when the first log is opened and kept, as in nginx: a loop thread never reads a file for it, and
//! never takes libc's time zone lock. Seconds and milliseconds since 1970 are arguments; nothing here reads a clock.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `2026/11/20 11:00:00`, of the error log.
pub type ErrorTime = [u8; 19];
/// `20/Nov/2026:11:00:00 +0000`, of `$time_local`.
pub type TimeLocal = [u8; 26];
/// `2026-11-20T11:00:00+00:00`, of `$time_iso8601`.
pub type TimeIso8601 = [u8; 25];
/// `Nov 20 11:00:00`, of a message to syslog.
pub type SyslogTime = [u8; 15];

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// One second in every form.
#[derive(Clone, Copy)]
struct Times {
    unix_s: i64,
    error: ErrorTime,
    local: TimeLocal,
    iso8601: TimeIso8601,
    syslog: SyslogTime,
}

/// The time of an error log line. `unix_s`: seconds since 1970.
#[must_use]
pub fn error_time(unix_s: i64) -> ErrorTime {
    times(unix_s).error
}

/// The value of `$time_local`. `unix_s`: seconds since 1970.
#[must_use]
pub fn time_local(unix_s: i64) -> TimeLocal {
    times(unix_s).local
}

/// The value of `$time_iso8601`. `unix_s`: seconds since 1970.
#[must_use]
pub fn time_iso8601(unix_s: i64) -> TimeIso8601 {
    times(unix_s).iso8601
}

/// The time of a message to syslog. `unix_s`: seconds since 1970.
#[must_use]
pub fn syslog_time(unix_s: i64) -> SyslogTime {
    times(unix_s).syslog
}

/// Appends the value of `$msec`: seconds since 1970 with three decimals. `ms`: 0 to 999.
pub fn push_msec(out: &mut Vec<u8>, unix_s: i64, ms: u16) {
    // A Vec takes every write.
    let _ = write!(out, "{unix_s}.{ms:03}");
}

static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Time zone of the system when first used, which waits for the disk; opening a log does that.
pub fn zone() -> &'static TimeZone {
    ZONE.get_or_init(TimeZone::system)
}

/// Takes `name`, as the variable `TZ` has it, for the time zone instead; UTC if there is none of that name. Waits for
/// the disk. Without effect once a zone is known: the first log has been opened.
pub fn set_zone(name: &str) {
    ZONE.get_or_init(|| named(name));
}

fn named(name: &str) -> TimeZone {
    let name = name.strip_prefix(':').unwrap_or(name);
    TimeZone::get(name).or_else(|_| TimeZone::posix(name)).unwrap_or(TimeZone::UTC)
}

fn times(unix_s: i64) -> Times {
    thread_local! {
        static LAST: Cell<Option<Times>> = const { Cell::new(None) };
    }
    match LAST.get() {
        Some(last) if last.unix_s == unix_s => last,
        _ => {
            let times = Times::new(unix_s, zone());
            LAST.set(Some(times));
            times
        }
    }
}

impl Times {
    fn new(unix_s: i64, zone: &TimeZone) -> Self {
        let stamp = Timestamp::from_second(unix_s).unwrap_or(if unix_s < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        });
        let offset = zone.to_offset(stamp);
        let t = offset.to_datetime(stamp);
        let sign = if offset.seconds() < 0 { '-' } else { '+' };
        let minutes = offset.seconds().unsigned_abs() / 60;
        let hours = minutes / 60;
        let minutes = minutes % 60;
        let year = t.year();
        let month = t.month();
        let day = t.day();
        let h = t.hour();
        let m = t.minute();
        let s = t.second();
        let name = MONTHS[usize::from(month.unsigned_abs()) - 1];
        Self {
            unix_s,
            error: fixed(format_args!("{year:04}/{month:02}/{day:02} {h:02}:{m:02}:{s:02}")),
            local: fixed(format_args!(
                "{day:02}/{name}/{year:04}:{h:02}:{m:02}:{s:02} {sign}{hours:02}{minutes:02}"
            )),
            iso8601: fixed(format_args!(
                "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}{sign}{hours:02}:{minutes:02}"
            )),
            syslog: fixed(format_args!("{name} {day:2} {h:02}:{m:02}:{s:02}")),
        }
    }
}

/// The text, cut or padded with zero bytes to `N`; only years outside 0 to 9999 do not fit exactly.
fn fixed<const N: usize>(text: std::fmt::Arguments<'_>) -> [u8; N] {
    let mut out = [0; N];
    let mut rest = &mut out[..];
    let _ = rest.write_fmt(text);
    out
}

#[cfg(test)]
mod tests {
    use jiff::tz::{Offset, TimeZone};

    use super::*;

    fn check(zone: &TimeZone, unix_s: i64, error: &str, local: &str, iso8601: &str) {
        let times = Times::new(unix_s, zone);
        assert_eq!(str::from_utf8(&times.error), Ok(error));
        assert_eq!(str::from_utf8(&times.local), Ok(local));
        assert_eq!(str::from_utf8(&times.iso8601), Ok(iso8601));
    }

    #[test]
    fn the_three_forms_in_several_zones() {
        let minutes = |m: i32| TimeZone::fixed(Offset::from_seconds(m * 60).unwrap());
        check(
            &TimeZone::UTC,
            1_795_172_400,
            "2026/11/20 11:00:00",
            "20/Nov/2026:11:00:00 +0000",
            "2026-11-20T11:00:00+00:00",
        );
        check(
            &TimeZone::UTC,
            0,
            "1970/01/01 00:00:00",
            "01/Jan/1970:00:00:00 +0000",
            "1970-01-01T00:00:00+00:00",
        );
        check(
            &minutes(5 * 60 + 45),
            1_795_172_400,
            "2026/11/20 16:45:00",
            "20/Nov/2026:16:45:00 +0545",
            "2026-11-20T16:45:00+05:45",
        );
        check(
            &minutes(-3 * 60 - 30),
            1_795_172_400,
            "2026/11/20 07:30:00",
            "20/Nov/2026:07:30:00 -0330",
            "2026-11-20T07:30:00-03:30",
        );
    }

    #[test]
    fn zones_follow_the_time_zone_variable() {
        for (name, expected) in [
            ("UTC", "1970-01-01T00:16:40+00:00"),
            ("XYZ-3:30", "1970-01-01T03:46:40+03:30"),
            (":UTC", "1970-01-01T00:16:40+00:00"),
            ("no/such/zone", "1970-01-01T00:16:40+00:00"),
            ("", "1970-01-01T00:16:40+00:00"),
        ] {
            let times = Times::new(1_000, &named(name));
            assert_eq!(String::from_utf8_lossy(&times.iso8601), expected, "{name}");
        }
    }

    #[test]
    fn summer_time_follows_the_rules_of_the_zone() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let local = |unix_s| String::from_utf8(Times::new(unix_s, &berlin).local.to_vec()).unwrap();
        assert_eq!(local(1_774_745_999), "29/Mar/2026:01:59:59 +0100");
        assert_eq!(local(1_774_746_000), "29/Mar/2026:03:00:00 +0200");
    }

    #[test]
    fn the_second_changes_with_the_argument() {
        assert_ne!(error_time(1_000), error_time(1_001));
        assert_eq!(time_local(1_000), time_local(1_000));
        assert_eq!(time_iso8601(1_000), Times::new(1_000, zone()).iso8601);
    }

    #[test]
    fn impossible_times_are_clamped() {
        assert!(Times::new(i64::MAX, &TimeZone::UTC).error.starts_with(b"9999/12/30"));
        let _ = Times::new(i64::MIN, &TimeZone::UTC);
    }

    #[test]
    fn msec_has_three_decimals() {
        for (unix_s, ms, expected) in
            [(1_795_172_400, 7, "1795172400.007"), (0, 999, "0.999"), (5, 0, "5.000")]
        {
            let mut out = Vec::new();
            push_msec(&mut out, unix_s, ms);
            assert_eq!(out, expected.as_bytes());
        }
    }
}
