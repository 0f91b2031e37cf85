//! Times and binary texts as JetStream writes them into JSON.

pub(super) fn rfc3339(ns: u64) -> String {
    let days = ns / 1_000_000_000 / 86_400;
    let second = ns / 1_000_000_000 % 86_400;
    // Conversion of days to a civil date; years begin in March.
    let era = days + 719_468;
    let cycle = era / 146_097;
    let day = era % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let part = (5 * day + 2) / 153;
    let month = if part < 10 { part + 3 } else { part - 9 };
    let year = year + cycle * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        day - (153 * part + 2) / 5 + 1,
        second / 3600,
        second / 60 % 60,
        second % 60,
        ns % 1_000_000_000
    )
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..4).map(move |at| {
                if at <= chunk.len() {
                    char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize])
                } else {
                    '='
                }
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_texts_of_json() {
        assert_eq!(rfc3339(1_700_000_000_000_000_001), "2023-11-14T22:13:20.000000001Z");
        assert_eq!(rfc3339(951_782_400_000_000_000), "2000-02-29T00:00:00.000000000Z");
        assert_eq!([base64(b""), base64(b"a"), base64(b"ab"), base64(b"abc")], ["", "YQ==", "YWI=", "YWJj"]);
    }
}
