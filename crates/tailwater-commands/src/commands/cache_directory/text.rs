//! Numbers and keys as text.

use std::fmt::Write as _;

/// Bytes in a unit that is easy to read, such as `1.5 GiB`.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Number with a comma behind each three digits.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Time span in its largest unit, such as `3d`; a negative one has a minus sign.
pub(super) fn span(seconds: i64) -> String {
    let (sign, abs) = if seconds < 0 { ("-", seconds.unsigned_abs()) } else { ("", seconds.unsigned_abs()) };
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if abs >= 2 * length {
            return format!("{sign}{}{unit}", abs / length);
        }
    }
    format!("{sign}{abs}s")
}

/// Key as one line: what is no printable text is written as `\xNN`.
pub(super) fn key(text: &[u8]) -> String {
    let mut line = String::new();
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => line.push_str("\\\\"),
                // Writing into a String does not fail.
                c if c.is_control() => _ = write!(line, "\\x{:02x}", u32::from(c)),
                c => line.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(line, "\\x{byte:02x}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 40, "5.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), expected);
        }
        assert_eq!(
            (count(7), count(1000), count(1_234_567)),
            ("7".into(), "1,000".into(), "1,234,567".into())
        );
        assert_eq!(
            (span(119), span(120), span(-7200), span(200_000)),
            ("119s".into(), "2m".into(), "-2h".into(), "2d".into())
        );
    }

    #[test]
    fn keys_are_one_line() {
        assert_eq!(key("a/ü?b".as_bytes()), "a/ü?b");
        assert_eq!(key(b"a\nb\\\xff"), "a\\x0ab\\\\\\xff");
    }
}
