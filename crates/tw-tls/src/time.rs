//! Times of certificates (RFC 5280, section 4.1.2.5), as seconds since 1970 and as OpenSSL prints them.

use crate::der::{Element, GENERALIZED_TIME, Malformed, UTC_TIME};

const DAY: i64 = 24 * 60 * 60;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds since 1970; before 1970, less than zero.
pub(crate) fn parse(time: Element<'_>) -> Result<i64, Malformed> {
    let digits = time.content.strip_suffix(b"Z").ok_or(Malformed)?;
    let (year, rest) = match time.tag {
        UTC_TIME => {
            let (year, rest) = two(digits)?;
            // "Where YY is greater than or equal to 50, the year SHALL be interpreted as 19YY".
            (if year >= 50 { 1900 + year } else { 2000 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (century, rest) = two(digits)?;
            let (year, rest) = two(rest)?;
            (century * 100 + year, rest)
        }
        _ => return Err(Malformed),
    };
    let (month, rest) = two(rest)?;
    let (day, rest) = two(rest)?;
    let (hour, rest) = two(rest)?;
    let (minute, rest) = two(rest)?;
    let (second, rest) = two(rest)?;
    let is_time =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if !rest.is_empty() || !is_time {
        return Err(Malformed);
    }
    Ok(days(year, month, day) * DAY + hour * 3600 + minute * 60 + second)
}

/// `Nov 23 15:00:00 2026 GMT`.
pub(crate) fn text(seconds: i64) -> String {
    let (year, month, day) = date(seconds.div_euclid(DAY));
    let second = seconds.rem_euclid(DAY);
    let month = MONTHS.get(usize::try_from(month - 1).unwrap_or_default()).copied().unwrap_or_default();
    format!("{month} {day:2} {:02}:{:02}:{:02} {year} GMT", second / 3600, second / 60 % 60, second % 60)
}

fn two(digits: &[u8]) -> Result<(i64, &[u8]), Malformed> {
    match digits {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9', rest @ ..] => {
            Ok((i64::from((tens - b'0') * 10 + (ones - b'0')), rest))
        }
        _ => Err(Malformed),
    }
}

/// Days from 1970 to a date of the Gregorian calendar. Years begin in March, so that a leap day is the last of its
/// year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    // 146,097 days are 400 years; 719,468 are from March of year 0 to 1970.
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date so many days after 1970.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tag: u8, text: &str) -> Result<i64, Malformed> {
        parse(Element { tag, whole: &[], content: text.as_bytes() })
    }

    #[test]
    fn times() {
        for (tag, written_text, seconds, printed) in [
            (UTC_TIME, "700101000000Z", 0, "Jan  1 00:00:00 1970 GMT"),
            (UTC_TIME, "261123150000Z", 1_795_446_000, "Nov 23 15:00:00 2026 GMT"),
            (UTC_TIME, "500101000000Z", -631_152_000, "Jan  1 00:00:00 1950 GMT"),
            (GENERALIZED_TIME, "20500229000000Z", 2_529_705_600, "Mar  1 00:00:00 2050 GMT"),
            (GENERALIZED_TIME, "20000229235959Z", 951_868_799, "Feb 29 23:59:59 2000 GMT"),
            (GENERALIZED_TIME, "99991231235959Z", 253_402_300_799, "Dec 31 23:59:59 9999 GMT"),
        ] {
            assert_eq!(of(tag, written_text), Ok(seconds), "{written_text}");
            assert_eq!(text(seconds), printed);
        }
    }

    #[test]
    fn invalid_times_are_refused() {
        for (tag, text) in [
            (UTC_TIME, ""),
            (UTC_TIME, "7001010000Z"),
            (UTC_TIME, "700101000000"),
            (UTC_TIME, "701301000000Z"),
            (UTC_TIME, "700101240000Z"),
            (UTC_TIME, "7001010000000Z"),
            (GENERALIZED_TIME, "20000229235959.5Z"),
            (0x02, "700101000000Z"),
        ] {
            assert_eq!(of(tag, text), Err(Malformed), "{text}");
        }
    }
}
