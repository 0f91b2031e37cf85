//! Place of a message as it is shown: the word that the message quotes, if its span is a whole directive or a text with variables.

use std::ops::Range;

use crate::error::ConfError;
use crate::span::{Sources, Span};

/// The span of a message, or the part of it that the message quotes. The line stays that of the message.
pub(crate) fn narrowed(error: &ConfError, sources: &Sources) -> Option<Span> {
    let span = error.span?;
    let file = sources.file(span.file)?;
    let Some(text) = file.text.get(span.start as usize..span.end as usize) else { return Some(span) };
    let is_variable = error.message.contains("variable");
    let part = quoted(&error.message).find_map(|word| {
        let variable = if is_variable { find_variable(text, word) } else { None };
        variable.or_else(|| find_word(text, word))
    });
    Some(match part {
        Some(part) => {
            Span { start: span.start + part.start as u32, end: span.start + part.end as u32, ..span }
        }
        None => span,
    })
}

/// Texts in double quotes, in their order.
pub(crate) fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('"').skip(1).step_by(2).filter(|text| !text.is_empty())
}

/// Place of `$name` or `${name}` in a text.
fn find_variable(text: &[u8], name: &str) -> Option<Range<usize>> {
    let name = name.trim_start_matches('$').as_bytes();
    let mut dollars = text.iter().enumerate().filter(|(_, byte)| **byte == b'$').map(|(at, _)| at);
    dollars.find_map(|at| {
        let rest = &text[at + 1..];
        let (open, rest) = match rest.strip_prefix(b"{") {
            Some(rest) => (1, rest),
            None => (0, rest),
        };
        let begin = rest.get(..name.len())?;
        let next = rest.get(name.len());
        let is_longer = next.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let is_it = !name.is_empty() && begin.eq_ignore_ascii_case(name) && !is_longer;
        is_it.then(|| at..at + 1 + 2 * open + name.len())
    })
}

/// Place of a word of a directive, or of a value in one, behind the name of the directive.
fn find_word(text: &[u8], word: &str) -> Option<Range<usize>> {
    let word = word.as_bytes();
    let is_edge = |byte: Option<&u8>| {
        byte.is_none_or(|byte| byte.is_ascii_whitespace() || b"\"'=:,;{}()".contains(byte))
    };
    let mut places = text.windows(word.len()).enumerate().skip(1).filter(|(_, window)| *window == word);
    places
        .find(|(at, _)| is_edge(text.get(at - 1)) && is_edge(text.get(at + word.len())))
        .map(|(at, _)| at..at + word.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Origin;

    #[test]
    fn messages_point_at_what_they_quote() {
        for (text, message, expected) in [
            ("proxy_pass 127.0.0.1:3000", "invalid host in upstream \"127.0.0.1:3000\"", "127.0.0.1:3000"),
            ("server a fail_timeout=5x", "invalid parameter \"fail_timeout=5x\"", "fail_timeout=5x"),
            ("limit_req zone=none burst=5", "zero size shared memory zone \"none\"", "none"),
            ("add_header X a$b$remote_adr$c", "unknown \"remote_adr\" variable", "$remote_adr"),
            ("'remote_adr=${Remote_Adr}x'", "unknown \"remote_adr\" variable", "${Remote_Adr}"),
            ("a $remote_adr_x $remote_adr", "unknown \"remote_adr\" variable", "$remote_adr"),
            ("'$a $geoip_org'", "variable \"$geoip_org\" (m) is not supported", "$geoip_org"),
            // The name of a directive is no place in it, nor is a part of a word.
            ("map $uri $known", "\"map\" directive is not allowed here", "map $uri $known"),
            ("index index", "\"index\" directive is duplicate", "index"),
            ("/srv/img/", "location \"/img\" ends without a slash", "/srv/img/"),
            ("root /a", "no quotes", "root /a"),
            ("root /a", "\"", "root /a"),
        ] {
            let mut sources = Sources::default();
            let source = format!("x {text} y");
            let file = sources.add(Origin::File((*b"/n.conf").into()), source.as_bytes().into());
            let span = Span { file, line: 7, start: 2, end: 2 + text.len() as u32 };
            let found_span = narrowed(&ConfError::new(message).at(span), &sources).unwrap();
            assert_eq!(found_span.line, 7);
            assert_eq!(
                &source[found_span.start as usize..found_span.end as usize],
                expected,
                "{text}: {message}"
            );
        }
    }
}
