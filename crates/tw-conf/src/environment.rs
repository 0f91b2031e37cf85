//! `${env:NAME}` in the arguments of directives: values of the environment of the process that reads the configuration.

use std::borrow::Cow;

use crate::error::ConfError;
use crate::source::ConfFiles;
use crate::tree::Word;

/// Beginning of an expression.
const BEGIN: &[u8] = b"${env:";

/// An expression, and the text behind it.
struct Expression<'t> {
    name: &'t str,
    /// Text behind `:-`.
    default: Option<&'t [u8]>,
    rest: &'t [u8],
}

// DIFF(nginx): it has no such expressions.
/// Expands `${env:NAME}` and `${env:NAME:-default}`; the default counts if the variable is missing or empty. Other texts stay
/// as they are, and so does an expression behind a `\`.
///
/// # Errors
/// A variable is missing and has no default.
pub(crate) fn expand(word: &mut Word, files: &dyn ConfFiles) -> Result<(), ConfError> {
    let Some(first) = find(&word.bytes) else { return Ok(()) };
    let mut expanded = Vec::new();
    let (mut before, mut rest) = word.bytes.split_at(first);
    loop {
        expanded.extend_from_slice(before);
        match Expression::parse(rest).filter(|_| before.last() != Some(&b'\\')) {
            Some(expression) => {
                expanded.extend_from_slice(&expression.value(files).map_err(|error| error.at(word.span))?);
                rest = expression.rest;
            }
            None => {
                expanded.extend_from_slice(BEGIN);
                rest = &rest[BEGIN.len()..];
            }
        }
        match find(rest) {
            Some(next) => (before, rest) = rest.split_at(next),
            None => break,
        }
    }
    expanded.extend_from_slice(rest);
    word.bytes = expanded.into();
    Ok(())
}

/// Place of the next beginning of an expression.
fn find(text: &[u8]) -> Option<usize> {
    // Most words contain no dollar sign.
    let dollar = text.iter().position(|byte| *byte == b'$')?;
    text[dollar..].windows(BEGIN.len()).position(|window| window == BEGIN).map(|at| dollar + at)
}

impl<'t> Expression<'t> {
    /// Reads the expression that a text begins with.
    fn parse(text: &'t [u8]) -> Option<Self> {
        let inner = text.strip_prefix(BEGIN)?;
        let len = inner.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        let (name, behind) = inner.split_at(len);
        if name.first().is_none_or(u8::is_ascii_digit) {
            return None;
        }
        let name = str::from_utf8(name).ok()?;
        if let Some(rest) = behind.strip_prefix(b"}") {
            return Some(Self { name, default: None, rest });
        }
        let default = behind.strip_prefix(b":-")?;
        let end = default.iter().position(|byte| *byte == b'}')?;
        Some(Self { name, default: Some(&default[..end]), rest: &default[end + 1..] })
    }

    fn value(&self, files: &dyn ConfFiles) -> Result<Cow<'t, [u8]>, ConfError> {
        match (files.environment(self.name), self.default) {
            (Some(value), Some(default)) if value.is_empty() => Ok(Cow::Borrowed(default)),
            (Some(value), _) => Ok(Cow::Owned(value)),
            (None, Some(default)) => Ok(Cow::Borrowed(default)),
            (None, None) => {
                let name = self.name;
                Err(ConfError::new(format!("environment variable \"{name}\" is not set"))
                    .hint(format!("set it for the server, or give a default: ${{env:{name}:-default}}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemoryFiles;
    use crate::span::Span;

    fn expanded(text: &str) -> Result<String, String> {
        let mut files = MemoryFiles::default();
        files.insert_environment("A", "a value");
        files.insert_environment("EMPTY", "");
        files.insert_environment("DOLLAR", "${env:A}");
        let mut word = Word { bytes: text.as_bytes().into(), span: Span::default(), quoted: false };
        expand(&mut word, &files).map_err(|error| error.message)?;
        Ok(word.to_string())
    }

    #[test]
    fn expressions_are_expanded_once() {
        for (text, expected) in [
            ("${env:A}", "a value"),
            ("x${env:A}y${env:A}z", "xa valueya valuez"),
            ("${env:EMPTY}", ""),
            ("${env:EMPTY:-b}", "b"),
            ("${env:NONE:-}", ""),
            ("${env:NONE:-a:-b$x}", "a:-b$x"),
            ("${env:A:-b}", "a value"),
            ("${env:DOLLAR}", "${env:A}"),
            // Text that is no expression stays as it is.
            ("$env", "$env"),
            ("${env}", "${env}"),
            ("${env:}", "${env:}"),
            ("${env:1}", "${env:1}"),
            ("${env:A", "${env:A"),
            ("${env:A-b}", "${env:A-b}"),
            ("${env:A:-b", "${env:A:-b"),
            ("\\${env:A}", "\\${env:A}"),
            ("${env:${env:A}", "${env:a value"),
            ("$${env:A}", "$a value"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn missing_variable_is_an_error() {
        assert_eq!(expanded("${env:NONE}"), Err("environment variable \"NONE\" is not set".to_owned()));
    }
}
