//! Structured fields (RFC 9651), as far as message signatures need them: dictionaries, inner lists of strings, and parameters. Values
//! stay as they were written, because signatures are over their text.

use tw_http::base64::{self, Alphabet};

/// A text that is no structured field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Member of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member<'a> {
    pub(super) key: &'a str,
    /// Value with its parameters, as written.
    pub(super) value: &'a str,
}

/// Parameters of a value, as written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Parameters<'a>(&'a str);

/// Members of a dictionary in their order; ends after an error.
pub(super) fn members(text: &str) -> impl Iterator<Item = Result<Member<'_>, Malformed>> {
    let mut rest = Some(text.trim_matches(' '));
    std::iter::from_fn(move || {
        let text = rest.take().filter(|text| !text.is_empty())?;
        Some(member(text).map(|(member, next)| {
            rest = next;
            member
        }))
    })
}

/// Reads the first member, and what follows its comma.
fn member(text: &str) -> Result<(Member<'_>, Option<&str>), Malformed> {
    let (key, after) = text.split_at(key_len(text)?);
    let (value, after) = match after.strip_prefix('=') {
        Some(value) => value.split_at(value_len(value)?),
        // True, with its parameters.
        None => after.split_at(parameters_len(after)?),
    };
    let member = Member { key, value };
    let after = after.trim_start_matches([' ', '\t']);
    match after.strip_prefix(',') {
        None if after.is_empty() => Ok((member, None)),
        Some(next) if !next.trim_start_matches([' ', '\t']).is_empty() => {
            Ok((member, Some(next.trim_start_matches([' ', '\t']))))
        }
        _ => Err(Malformed),
    }
}

impl Member<'_> {
    /// Bytes of a value that is a byte sequence.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        let (text, parameters) = self.value.strip_prefix(':')?.split_once(':')?;
        let mut bytes = Vec::new();
        base64::decode(text.as_bytes(), Alphabet::Standard, &mut bytes).ok()?;
        (parameters_len(parameters) == Ok(parameters.len())).then_some(bytes)
    }
}

/// Strings of an inner list with their parameters, and the parameters of the list.
pub(super) fn inner_list(value: &str) -> Option<(Vec<(String, Parameters<'_>)>, Parameters<'_>)> {
    let mut rest = value.strip_prefix('(')?;
    let mut items = Vec::new();
    loop {
        let trimmed = rest.trim_start_matches(' ');
        if let Some(parameters) = trimmed.strip_prefix(')') {
            let is_whole = parameters_len(parameters) == Ok(parameters.len());
            return is_whole.then_some((items, Parameters(parameters)));
        }
        // Items stand apart.
        if !items.is_empty() && trimmed.len() == rest.len() {
            return None;
        }
        let (string, after) = trimmed.split_at(string_len(trimmed).ok()?);
        let (parameters, after) = after.split_at(parameters_len(after).ok()?);
        items.push((unquote(string), Parameters(parameters)));
        rest = after;
    }
}

impl<'a> Parameters<'a> {
    /// The text, which begins with a semicolon unless it is empty.
    pub(super) fn raw(&self) -> &'a str {
        self.0
    }

    fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let text = rest.strip_prefix(';')?.trim_start_matches(' ');
            let (key, after) = text.split_at(key_len(text).ok()?);
            let (value, after) = match after.strip_prefix('=') {
                Some(value) => value.split_at(bare_item_len(value).ok()?),
                None => ("?1", after),
            };
            rest = after;
            Some((key, value))
        })
    }

    /// Number of parameters.
    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    /// The last value of a name, which counts.
    fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().filter(|(key, _)| *key == name).last().map(|(_, value)| value)
    }

    /// Value that is a string.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| value.starts_with('"')).map(unquote)
    }

    /// Value that is a whole number and not negative.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
    }
}

/// Length of the key at the begin of a text.
fn key_len(text: &str) -> Result<usize, Malformed> {
    if !text.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '*') {
        return Err(Malformed);
    }
    let is_part = |byte: &u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
    };
    Ok(text.as_bytes().iter().take_while(|byte| is_part(byte)).count())
}

/// Length of an item or inner list with its parameters.
fn value_len(text: &str) -> Result<usize, Malformed> {
    let len = if text.starts_with('(') { list_len(text)? } else { bare_item_len(text)? };
    Ok(len + parameters_len(&text[len..])?)
}

/// Length of an inner list up to its bracket; its items may be of any kind.
fn list_len(text: &str) -> Result<usize, Malformed> {
    let mut at = 1;
    loop {
        let rest = &text[at..];
        let spaces = rest.len() - rest.trim_start_matches(' ').len();
        at += spaces;
        if text[at..].starts_with(')') {
            return Ok(at + 1);
        }
        at += bare_item_len(&text[at..])?;
        at += parameters_len(&text[at..])?;
    }
}

/// Length of all parameters.
fn parameters_len(text: &str) -> Result<usize, Malformed> {
    let mut at = 0;
    while let Some(rest) = text[at..].strip_prefix(';') {
        let trimmed = rest.trim_start_matches(' ');
        at += 1 + rest.len() - trimmed.len();
        at += key_len(trimmed)?;
        if let Some(value) = text[at..].strip_prefix('=') {
            at += 1 + bare_item_len(value)?;
        }
    }
    Ok(at)
}

/// Length of a string, a byte sequence, or a word: number, token, boolean, date.
fn bare_item_len(text: &str) -> Result<usize, Malformed> {
    match text.as_bytes() {
        [b'"', ..] => string_len(text),
        [b':', rest @ ..] => rest.iter().position(|byte| *byte == b':').map(|at| at + 2).ok_or(Malformed),
        bytes => {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/?@".contains(byte);
            match bytes.iter().take_while(|byte| is_part(byte)).count() {
                0 => Err(Malformed),
                len => Ok(len),
            }
        }
    }
}

/// Length of a string with its quotes.
fn string_len(text: &str) -> Result<usize, Malformed> {
    let mut bytes = text.bytes().enumerate();
    if bytes.next() != Some((0, b'"')) {
        return Err(Malformed);
    }
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' if matches!(bytes.next(), Some((_, b'"' | b'\\'))) => {}
            b' '..=b'~' if byte != b'\\' => {}
            _ => return Err(Malformed),
        }
    }
    Err(Malformed)
}

/// Content of a string, which has quotes around it.
fn unquote(string: &str) -> String {
    let inner = string.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default();
    let mut letters = inner.chars();
    let mut content = String::with_capacity(inner.len());
    while let Some(letter) = letters.next() {
        content.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<(&str, &str)>, Malformed> {
        members(text).map(|member| member.map(|member| (member.key, member.value))).collect()
    }

    #[test]
    fn dictionaries() {
        for (text, expected) in [
            ("", Ok(vec![])),
            ("a=1", Ok(vec![("a", "1")])),
            ("a=1, b=\"x,y\";p=2 ,\tc", Ok(vec![("a", "1"), ("b", "\"x,y\";p=2"), ("c", "")])),
            (
                "sig=(\"a\" \"b\";key=\"c, d\");created=1",
                Ok(vec![("sig", "(\"a\" \"b\";key=\"c, d\");created=1")]),
            ),
            ("sig=:AA==:;x, t=tok/en", Ok(vec![("sig", ":AA==:;x"), ("t", "tok/en")])),
            ("a=1,", Err(Malformed)),
            ("a=1 b=2", Err(Malformed)),
            ("A=1", Err(Malformed)),
            ("a=", Err(Malformed)),
            ("a=\"x", Err(Malformed)),
            ("a=\"\\x\"", Err(Malformed)),
            ("a=(\"x\"", Err(Malformed)),
            ("a=:AA", Err(Malformed)),
            ("a=1;", Err(Malformed)),
            ("ä=1", Err(Malformed)),
            ("a=\"ä\"", Err(Malformed)),
        ] {
            assert_eq!(all(text), expected, "{text}");
        }
    }

    #[test]
    fn inner_lists() {
        let (items, parameters) =
            inner_list("( \"a\"  \"b\\\"\";key=\"k\";x );n=5;t=\"\\\\\";n=7;m=-1").unwrap();
        let items: Vec<_> =
            items.iter().map(|(name, parameters)| (name.as_str(), parameters.raw())).collect();
        assert_eq!(items, [("a", ""), ("b\"", ";key=\"k\";x")]);
        assert_eq!((parameters.number("n"), parameters.number("m"), parameters.len()), (Some(7), None, 4));
        assert_eq!((parameters.text("t").as_deref(), parameters.text("n")), (Some("\\"), None));
        for text in ["", "(", "(a)", "(\"a\"\"b\")", "(\"a\") ", "(\"a\");", "\"a\""] {
            assert_eq!(inner_list(text), None, "{text}");
        }
    }

    #[test]
    fn byte_sequences() {
        for (value, expected) in [
            (":AQI=:", Some(vec![1, 2])),
            (":AQI=:;a=1", Some(vec![1, 2])),
            (":AQI", None),
            ("AQI=", None),
            (":*:", None),
            (":AQI=:x", None),
        ] {
            assert_eq!(Member { key: "a", value }.bytes(), expected, "{value}");
        }
    }

    #[test]
    fn no_text_panics() {
        let text = "sig=(\"@a\" \"b\";key=\"ä\");created=1;tag=\"w\", x=:AA=:, y";
        for (start, _) in text.char_indices() {
            for (end, _) in text.char_indices().filter(|(end, _)| *end >= start) {
                for member in members(&text[start..end]).map_while(Result::ok) {
                    let _ = (inner_list(member.value), member.bytes());
                }
            }
        }
    }
}
