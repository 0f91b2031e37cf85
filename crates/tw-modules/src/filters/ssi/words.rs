//! The texts inside SSI commands: variables, backslashes, expressions of `if`, URIs of `include`.

use tw_http::target::{AboveRoot, local};
use tw_log::Text;

/// Longest text that variables can make of a value, in bytes: a page could double it with each line.
pub(super) const SSI_TEXT_MAX: usize = 1 << 20;

/// Error of a command: a line for the log.
pub(super) type CommandError = String;

/// Appends the value of a variable, whose name is in lower case; without one, nothing.
pub(super) type Lookup<'a> = dyn FnMut(&[u8], &mut Vec<u8>) + 'a;

/// The text with its variables replaced and its backslashes undone: `\` in front of `\`, `'`, `"` and `$` only.
pub(super) fn evaluate(text: &[u8], lookup: &mut Lookup<'_>) -> Result<Vec<u8>, CommandError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'$' => rest = variable(text, rest, &mut out, lookup)?,
            b'\\' => {
                // A backslash at the end, or in front of a variable's name, is lost, as in nginx.
                let Some((&next, tail)) = rest.split_first() else { break };
                rest = tail;
                if !matches!(next, b'\\' | b'\'' | b'"' | b'$') {
                    out.push(b'\\');
                }
                out.push(next);
            }
            _ => out.push(byte),
        }
        if out.len() > SSI_TEXT_MAX {
            return Err(format!("too long value of \"{}\" in SSI command", Text(text)));
        }
    }
    Ok(out)
}

/// Replaces one variable; `rest` follows its dollar sign. Returns the rest behind it.
fn variable<'a>(
    text: &[u8],
    rest: &'a [u8],
    out: &mut Vec<u8>,
    lookup: &mut Lookup<'_>,
) -> Result<&'a [u8], CommandError> {
    let invalid = || format!("invalid variable name in \"{}\"", Text(text));
    let braced = rest.strip_prefix(b"{");
    let from = braced.unwrap_or(rest);
    if from.is_empty() {
        return Err(invalid());
    }
    let len = from.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    let (name, mut rest) = from.split_at(len);
    if braced.is_some() {
        let missing = || format!("the closing bracket in \"{}\" variable is missing", Text(name));
        rest = rest.strip_prefix(b"}").ok_or_else(missing)?;
    }
    if name.is_empty() {
        return Err(invalid());
    }
    lookup(&name.to_ascii_lowercase(), out);
    Ok(rest)
}

/// Condition of an `if`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expression<'a> {
    /// True if the text is not empty.
    Text(Vec<u8>),
    /// True if the text is equal to another; if `negative`, if it is not.
    Equal { left: Vec<u8>, right: &'a [u8], negative: bool },
    /// True if the text matches a pattern; if `negative`, if it does not.
    Matches { left: Vec<u8>, pattern: &'a [u8], negative: bool },
}

/// Reads an expression. The left side is in lower case afterwards, as in nginx.
pub(super) fn expression(text: &[u8]) -> Result<Expression<'_>, CommandError> {
    let invalid = || format!("invalid expression in \"{}\"", Text(text));
    let is_left = |byte: &u8| byte.is_ascii_alphanumeric() || b"${}_\"'".contains(byte);
    let len = text.iter().take_while(|byte| is_left(byte)).count();
    let (remaining_bytes, rest) = text.split_at(len);
    let remaining_bytes = remaining_bytes.to_ascii_lowercase();
    let rest = skip_spaces(rest);
    if rest.is_empty() {
        return Ok(Expression::Text(remaining_bytes));
    }
    let (rest, negative) = match rest {
        [b'=', rest @ ..] => (rest, false),
        [b'!', b'=', rest @ ..] => (rest, true),
        _ => return Err(invalid()),
    };
    match skip_spaces(rest) {
        [b'/', pattern @ .., b'/'] => Ok(Expression::Matches { left: remaining_bytes, pattern, negative }),
        [b'/', _, ..] => Err(invalid()),
        // A text that begins with a slash.
        [b'\\', right @ ..] if right.starts_with(b"/") => {
            Ok(Expression::Equal { left: remaining_bytes, right, negative })
        }
        right => Ok(Expression::Equal { left: remaining_bytes, right, negative }),
    }
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let len = text.iter().take_while(|byte| **byte == b' ').count();
    &text[len..]
}

/// Path and arguments of a URI that is to be included. The error is nginx's: it leads out of the tree.
pub(super) fn parse_uri(uri: &[u8]) -> Result<(Vec<u8>, Vec<u8>), CommandError> {
    local(uri).map_err(|AboveRoot(path)| format!("unsafe URI \"{}\" was detected", Text(&path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up_name(name: &[u8], out: &mut Vec<u8>) {
        match name {
            b"a" => out.extend_from_slice(b"A"),
            b"long" => out.resize(out.len() + SSI_TEXT_MAX / 2, b'x'),
            _ => {}
        }
    }

    #[test]
    fn texts_with_variables() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$a", "A"),
            ("${A}b$a-$none.", "AbA-."),
            (r"\$a \' \\ \x \", r"$a ' \ \x "),
            ("$a\\", "A"),
        ] {
            assert_eq!(evaluate(text.as_bytes(), &mut look_up_name).unwrap(), expected.as_bytes(), "{text}");
        }
        for (text, expected) in [
            ("x$", "invalid variable name in \"x$\""),
            ("x${", "invalid variable name in \"x${\""),
            ("$-", "invalid variable name in \"$-\""),
            ("${}", "invalid variable name in \"${}\""),
            ("${a", "the closing bracket in \"a\" variable is missing"),
            ("${a-}", "the closing bracket in \"a\" variable is missing"),
            ("$long$long$a", "too long value of \"$long$long$a\" in SSI command"),
        ] {
            assert_eq!(evaluate(text.as_bytes(), &mut look_up_name), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn expressions() {
        let equal = |left: &str, right, negative| Expression::Equal { left: left.into(), right, negative };
        let matches =
            |left: &str, pattern, negative| Expression::Matches { left: left.into(), pattern, negative };
        for (text, expected) in [
            ("", Expression::Text(b"".to_vec())),
            ("$A ", Expression::Text(b"$a".to_vec())),
            ("${a}_\"'1", Expression::Text(b"${a}_\"'1".to_vec())),
            ("$a = Text", equal("$a", b"Text", false)),
            ("$a!=x y ", equal("$a", b"x y ", true)),
            ("$a =", equal("$a", b"", false)),
            ("= x", equal("", b"x", false)),
            ("$a = /x/", matches("$a", b"x", false)),
            ("$a != /^/x$/", matches("$a", b"^/x$", true)),
            ("$a = //", matches("$a", b"", false)),
            (r"$a = \/x/", equal("$a", b"/x/", false)),
            ("$a = /", equal("$a", b"/", false)),
        ] {
            assert_eq!(expression(text.as_bytes()), Ok(expected), "{text}");
        }
        for text in ["$a x", "$a ! x", "$a = /x", "$a-b = 1", "!$a"] {
            assert_eq!(expression(text.as_bytes()), Err(format!("invalid expression in \"{text}\"")));
        }
    }

    #[test]
    fn uris_of_includes() {
        for (uri, path, args) in [
            ("/a", "/a", ""),
            ("/a?b=%41&c?d", "/a", "b=%41&c?d"),
            ("/a%20b%3f", "/a b?", ""),
            ("a/...", "a/...", ""),
            ("/%zz", "/zz", ""),
        ] {
            assert_eq!(parse_uri(uri.as_bytes()), Ok((path.into(), args.into())), "{uri}");
        }
        for uri in ["", "?a", "..", "../a", "/a/..", "/a/../b", "/a/%2e%2e/b", "/a%00", "%A!"] {
            assert!(parse_uri(uri.as_bytes()).is_err(), "{uri}");
        }
    }
}
