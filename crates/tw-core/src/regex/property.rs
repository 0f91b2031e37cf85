//! `\p{…}` among bytes: general categories of the characters U+0000 to U+00FF.
//!
//! Source: UnicodeData.txt; PCRE looks up what a byte would be as a character of that number.

/// Two-letter categories and their members, written as in a class of the engine.
const CATEGORIES: [(&str, &str); 19] = [
    ("Cc", r"\x00-\x1f\x7f-\x9f"),
    ("Cf", r"\xad"),
    ("Ll", r"a-z\xb5\xdf-\xf6\xf8-\xff"),
    ("Lo", r"\xaa\xba"),
    ("Lu", r"A-Z\xc0-\xd6\xd8-\xde"),
    ("Nd", r"0-9"),
    ("No", r"\xb2\xb3\xb9\xbc-\xbe"),
    ("Pc", r"\x5f"),
    ("Pd", r"\x2d"),
    ("Pe", r"\x29\x5d\x7d"),
    ("Pf", r"\xbb"),
    ("Pi", r"\xab"),
    ("Po", r"\x21-\x23\x25-\x27\x2a\x2c\x2e\x2f\x3a\x3b\x3f\x40\x5c\xa1\xa7\xb6\xb7\xbf"),
    ("Ps", r"\x28\x5b\x7b"),
    ("Sc", r"\x24\xa2-\xa5"),
    ("Sk", r"\x5e\x60\xa8\xaf\xb4\xb8"),
    ("Sm", r"\x2b\x3c-\x3e\x7c\x7e\xac\xb1\xd7\xf7"),
    ("So", r"\xa6\xa9\xae\xb0"),
    ("Zs", r"\x20\xa0"),
];

/// The members of a category, or of all whose name begins with a letter; `None` if no byte is in it.
pub(super) fn bytes(name: &str) -> Option<String> {
    let is_wanted = |category: &str| match name {
        "L&" => matches!(category, "Ll" | "Lu"),
        "Xan" => category.starts_with(['L', 'N']),
        "Xwd" => category.starts_with(['L', 'N']) || category == "Pc",
        "Any" => true,
        _ => category == name || (name.len() == 1 && category.starts_with(name)),
    };
    let members: String =
        CATEGORIES.iter().filter(|(c, _)| is_wanted(c)).map(|(_, members)| *members).collect();
    (!members.is_empty()).then_some(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regex::{Caseless, Match, Regex};

    #[test]
    fn every_byte_is_in_one_category() {
        let categories: Vec<_> = CATEGORIES
            .iter()
            .map(|(name, _)| Regex::new(format!(r"^\p{{{name}}}$").as_bytes(), Caseless::No).unwrap())
            .collect();
        for byte in 0..=255_u8 {
            let count = categories.iter().filter(|re| re.is_match(&[byte]) == Ok(Match::Yes)).count();
            assert_eq!(count, 1, "{byte:02x}");
        }
    }

    #[test]
    fn names() {
        for (name, has) in [("N", "0-9"), ("L&", "A-Z"), ("Xwd", r"\x5f"), ("Any", r"\xad")] {
            assert!(bytes(name).unwrap().contains(has), "{name}");
        }
        assert_eq!((bytes("Lt"), bytes("Greek"), bytes("")), (None, None, None));
    }
}
