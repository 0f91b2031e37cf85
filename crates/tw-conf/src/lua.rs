//! Blocks of Lua: their braces and quotes are those of another language, so they are passed over as a whole.

/// Returns true if Lua follows the `{` of this directive.
pub(crate) fn opens_lua(name: &[u8]) -> bool {
    name.ends_with(b"_by_lua_block")
}

/// Offset of the `}` that closes a block of Lua whose text begins at `start`; `None` if it is not closed.
pub(crate) fn end_of_block(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0_usize;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            b'"' | b'\'' => {
                at = end_of_string(text, at)?;
                continue;
            }
            b'-' if text.get(at + 1) == Some(&b'-') => {
                at = match long_bracket(text, at + 2) {
                    Some(open) => end_of_long(text, at + 2, open)?,
                    None => at + text[at..].iter().position(|byte| *byte == b'\n')?,
                };
                continue;
            }
            b'[' => {
                if let Some(open) = long_bracket(text, at) {
                    at = end_of_long(text, at, open)?;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The byte after a string in quotes that begins at `at`.
fn end_of_string(text: &[u8], at: usize) -> Option<usize> {
    let quote = text[at];
    let mut at = at + 1;
    loop {
        match *text.get(at)? {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The number of `=` in a long bracket (`[[`, `[=[`) that begins at `at`.
fn long_bracket(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?.strip_prefix(b"[")?;
    let level = rest.iter().take_while(|byte| **byte == b'=').count();
    (rest.get(level) == Some(&b'[')).then_some(level)
}

/// The byte after the end of a long bracket of this level that begins at `at`.
fn end_of_long(text: &[u8], at: usize, level: usize) -> Option<usize> {
    let close = [&b"]"[..], &vec![b'='; level], b"]"].concat();
    let start = at + level + 2;
    let position = text.get(start..)?.windows(close.len()).position(|window| window == close)?;
    Some(start + position + close.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_of_lua_are_counted_as_lua_does() {
        for (text, rest) in [
            ("}", Some("")),
            (" local t = { a = {} } } x", Some(" x")),
            ("ngx.say('}') } x", Some(" x")),
            ("ngx.say(\"a\\\"}\") } x", Some(" x")),
            ("-- it's }\n} x", Some(" x")),
            ("--[[ it's }\n }]] } x", Some(" x")),
            ("s = [==[ }]] ]==] } x", Some(" x")),
            ("t[1] = [[}]] } x", Some(" x")),
            ("{ }", None),
            ("' }", None),
            ("-- }", None),
        ] {
            let end = end_of_block(text.as_bytes(), 0);
            assert_eq!(end.map(|end| &text[end + 1..]), rest, "{text}");
        }
    }
}
