//! Cookies of a request.

/// The value of a cookie in one `Cookie` field: `name = value` up to the next `;`, spaces around `=` allowed.
pub fn find_cookie<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    line.split(|byte| *byte == b';').find_map(|pair| {
        let (found_value, rest) = trim(pair).split_at_checked(name.len())?;
        let value = trim(rest).strip_prefix(b"=")?;
        found_value.eq_ignore_ascii_case(name).then(|| trim(value))
    })
}

/// Without the spaces in front; nothing but spaces is trimmed, and nothing at the end.
pub fn trim(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|byte| **byte == b' ').count();
    &text[spaces..]
}
