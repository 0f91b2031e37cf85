//! Numbers in a few characters.

/// Text for an unknown value.
pub const UNKNOWN: &str = "-";

/// A number with at most four digits and a letter: `7`, `0.25`, `12.3k`, `4.56M`.
pub fn number(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G", "T"])
}

/// A whole number: `7`, `12.3k`.
pub fn count(value: f64) -> String {
    if value.abs() < 10_000.0 { format!("{value:.0}") } else { number(value) }
}

/// Bytes: `512`, `1.50K`, `12.3M`.
pub fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["", "K", "M", "G", "T"])
}

/// A span of time in seconds: `12us`, `3.4ms`, `1.25s`, `3m20s`, `2h05m`, `3d04h`.
pub fn span(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => UNKNOWN.to_owned(),
        s if s < 0.000_000_5 => "0".to_owned(),
        s if s < 0.000_999_5 => format!("{:.0}us", s * 1e6),
        s if s < 0.0995 => format!("{:.1}ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0}ms", s * 1e3),
        s if s < 99.5 => format!("{s:.2}s"),
        s if s < 6000.0 => format!("{}m{:02}s", s as u64 / 60, s as u64 % 60),
        s if s < 86_400.0 => format!("{}h{:02}m", s as u64 / 3600, s as u64 / 60 % 60),
        s => format!("{}d{:02}h", s as u64 / 86_400, s as u64 / 3600 % 24),
    }
}

/// A span of time in whole seconds: `12s`, `3m20s`.
pub fn age(seconds: f64) -> String {
    if seconds < 99.5 { format!("{seconds:.0}s") } else { span(seconds) }
}

/// A share of 1 in percent: `0.4%`, `12%`, `100%`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

/// Text of a value that may be unknown.
pub fn text_if_known(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| UNKNOWN.to_owned(), text)
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // A value that would be rounded to a fourth digit takes the next unit.
    while value.abs() >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value.abs() {
        v if v < 0.005 || (unit == 0 && v.fract() == 0.0) => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (0.001, "0"),
            (7.0, "7"),
            (0.25, "0.25"),
            (12.34, "12.3"),
            (999.0, "999"),
            (999.9, "1.00k"),
            (12_345.0, "12.3k"),
            (4_560_000.0, "4.56M"),
            (9e300, "9000"),
        ] {
            let text = number(value);
            assert!(text == expected || value > 1e20, "{value}: {text}");
        }
        for (value, expected) in [(512.0, "512"), (1536.0, "1.50K"), (1000.0, "0.98K"), (13e6, "12.4M")] {
            assert_eq!(bytes(value), expected);
        }
        for (value, expected) in [(9999.0, "9999"), (12_345.0, "12.3k")] {
            assert_eq!(count(value), expected);
        }
    }

    #[test]
    fn spans_and_shares() {
        for (value, expected) in [
            (0.0, "0"),
            (0.000_012, "12us"),
            (0.000_999_9, "1.0ms"),
            (0.0034, "3.4ms"),
            (0.25, "250ms"),
            (1.25, "1.25s"),
            (200.0, "3m20s"),
            (7500.0, "2h05m"),
            (273_600.0, "3d04h"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(span(value), expected);
        }
        for (value, expected) in
            [(0.004, "0.4%"), (0.099, "9.9%"), (0.0999, "10%"), (0.123, "12%"), (1.0, "100%")]
        {
            assert_eq!(percent(value), expected);
        }
        assert_eq!((age(3.4), age(200.0)), ("3s".to_owned(), "3m20s".to_owned()));
        assert_eq!(
            (text_if_known(None, number), text_if_known(Some(f64::NAN), number)),
            ("-".to_owned(), "-".to_owned())
        );
    }
}
