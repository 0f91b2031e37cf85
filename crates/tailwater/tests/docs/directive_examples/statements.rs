//! The statements of a part of a configuration.

/// Statements at the outermost level, with their blocks. Comments between them are left out.
pub(super) fn statements(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut statements = Vec::new();
    let mut start = None;
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let here = at;
        let begins_word = here == 0 || b" \n;{}(".contains(&bytes[here - 1]);
        let is_comment = byte == b'#' && begins_word;
        at = match byte {
            b'#' if is_comment => end_of(text, here, '\n'),
            b'"' | b'\'' if begins_word => end_of_quote(bytes, here),
            b'$' if bytes.get(here + 1) == Some(&b'{') => end_of(text, here, '}'),
            _ => here + 1,
        };
        if is_comment || byte.is_ascii_whitespace() && start.is_none() {
            continue;
        }
        let from = *start.get_or_insert(here);
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(byte, b';' | b'}') {
            statements.push(&text[from..at]);
            start = None;
        }
    }
    assert!(start.is_none() && depth == 0, "the example is incomplete:\n{text}");
    statements
}

/// Position behind the next `end`.
fn end_of(text: &str, at: usize, end: char) -> usize {
    text[at..].find(end).map_or(text.len(), |length| at + length + 1)
}

/// Position behind a text in quotes.
fn end_of_quote(bytes: &[u8], at: usize) -> usize {
    let mut is_escaped = false;
    let end = bytes.iter().skip(at + 1).position(|byte| {
        let is_end = *byte == bytes[at] && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(bytes.len(), |length| at + length + 2)
}

#[test]
fn statements_are_found() {
    for (text, expected) in [
        ("a b;\nc { d; e { } }\n", vec!["a b;", "c { d; e { } }"]),
        ("# x; y\na; # {\n", vec!["a;"]),
        ("a \"x;{\" 'it\\'s;' ${b}c;\nd;", vec!["a \"x;{\" 'it\\'s;' ${b}c;", "d;"]),
        ("a#b; c it's;", vec!["a#b;", "c it's;"]),
        ("", vec![]),
    ] {
        assert_eq!(statements(text), expected, "{text}");
    }
}
