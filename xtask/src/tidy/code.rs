//! Code of a Rust file: its text with blanks in place of comments and quoted text.

/// Code of a text, with as many lines. A quoted text keeps its quotes; a comment leaves nothing.
pub(super) fn of(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (len, keeps) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            '/' if rest.starts_with("/*") => (comment_len(rest), false),
            '"' => match raw_hashes(&out) {
                Some(hashes) => (raw_len(rest, hashes), true),
                None => (quoted_len(rest, '"'), true),
            },
            '\'' if is_char(rest) => (quoted_len(rest, '\''), true),
            _ => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
        };
        let (blanked, behind) = rest.split_at(len);
        let quote = if keeps { first } else { ' ' };
        out.push(quote);
        blanked.chars().filter(|c| *c == '\n').for_each(|c| out.push(c));
        out.push(quote);
        rest = behind;
    }
    out
}

/// Bytes of a block comment, which may contain others.
fn comment_len(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let step = match rest {
            _ if rest.starts_with("/*") => {
                depth += 1;
                2
            }
            _ if rest.starts_with("*/") => {
                depth = depth.saturating_sub(1);
                2
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Number of `#` before a quote that begins a raw string; `None` if it begins another one.
fn raw_hashes(before: &str) -> Option<usize> {
    let word_end = before.trim_end_matches('#');
    let start = word_end.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_').len();
    matches!(&word_end[start..], "r" | "br" | "cr").then(|| before.len() - word_end.len())
}

/// Bytes of a raw string from its first quote to its last `#`.
fn raw_len(text: &str, hashes: usize) -> usize {
    let end = format!("\"{}", "#".repeat(hashes));
    text[1..].find(&end).map_or(text.len(), |at| 1 + at + end.len())
}

/// Bytes of a quoted text with both quotes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns `true` if a `'` begins a character and not a lifetime.
fn is_char(text: &str) -> bool {
    let mut behind = text.chars().skip(1);
    match behind.next() {
        Some('\\') => true,
        Some(_) => behind.next() == Some('\''),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_comments_are_no_code() {
        for (text, expected) in [
            ("a(); // word", "a();   "),
            ("a // b\nc", "a   \nc"),
            ("a /* b /* c */ \n d */ e", "a  \n  e"),
            ("f(\"word\")", "f(\"\")"),
            ("f(\"\\\" // word\") b", "f(\"\") b"),
            ("f(\"a\nb\") c", "f(\"\n\") c"),
            ("f(r\"\\\") b", "f(r\"\") b"),
            ("f(br#\"a \" b\"#) c", "f(br#\"\") c"),
            ("for\"x\"", "for\"\""),
            ("['\"', 'a', '\\'', '\\u{41}'] b", "['', '', '', ''] b"),
            ("fn f<'a>(x: &'a str) 'x: loop", "fn f<'a>(x: &'a str) 'x: loop"),
            ("\"open", "\"\""),
            ("/* open", "  "),
            ("ä 'ö' \"ü\"", "ä '' \"\""),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
