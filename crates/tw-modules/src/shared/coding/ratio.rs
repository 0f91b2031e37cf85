//! `$gzip_ratio` and its counterparts: the compression ratio, known at the end of the body.

/// Bytes before and after as nginx writes them: two digits, rounded. `None` if nothing came out.
pub(super) fn text(before: u64, after: u64) -> Option<String> {
    let thousandths = before.saturating_mul(1000).checked_div(after)?;
    let hundredths = thousandths / 10 + u64::from(thousandths % 10 > 4);
    Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        for (before, after, expected) in [
            (0, 20, Some("0.00")),
            (100, 50, Some("2.00")),
            (2125, 1000, Some("2.13")),
            (2124, 1000, Some("2.12")),
            (1996, 1000, Some("2.00")),
            (1, 0, None),
        ] {
            assert_eq!(text(before, after).as_deref(), expected, "{before} {after}");
        }
    }
}
