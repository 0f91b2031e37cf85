//! Text of a case, for a file: each line is a word and an escaped value. Answers may follow (see `answers`).
//!
//! A file stays valid when the generators change, which give other cases to the same seeds then.

use std::fmt::Write;

use crate::case::Case;
use crate::failure::Failure;
use crate::node::{self, Node};
use crate::request::{Exchange, Request, RequestBody, Wire};

/// Word and value of a line.
pub(crate) type Line<'a> = (&'a str, String);

/// Text of a case.
pub(crate) fn write(case: &Case) -> String {
    let mut text = String::new();
    for line in node::render(&case.nodes).lines() {
        push(&mut text, "config", line.as_bytes());
    }
    for response in &case.script {
        push(&mut text, "script", response.as_bytes());
    }
    for exchange in &case.exchanges {
        let wire = if exchange.wire == Wire::Http2 { "http2" } else { "http1" };
        push(&mut text, "exchange", wire.as_bytes());
        exchange.requests.iter().for_each(|request| write_request(&mut text, request));
    }
    text
}

fn write_request(text: &mut String, request: &Request) {
    push(text, "method", request.method.as_bytes());
    push(text, "target", request.target.as_bytes());
    push(text, "protocol", request.protocol.as_bytes());
    for (name, value) in &request.fields {
        push(text, "field", format!("{name}: {value}").as_bytes());
    }
    match &request.body {
        RequestBody::Absent => {}
        RequestBody::Sized(body) => push(text, "sized", body.as_bytes()),
        RequestBody::Chunked(chunks) => chunks.iter().for_each(|chunk| push(text, "chunk", chunk.as_bytes())),
    }
}

/// Appends a line.
pub(crate) fn push(text: &mut String, word: &str, value: &[u8]) {
    let _ = writeln!(text, "{word} {}", value.escape_ascii());
}

/// Lines of a file, without comments and empty ones.
///
/// # Errors
/// A line without a value, or with an escape that is unknown.
pub(crate) fn lines(text: &str) -> Result<Vec<Line<'_>>, Failure> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (word, value) = line.split_once(' ').ok_or_else(|| format!("no value: {line}"))?;
            Ok((word, unescape(value).ok_or_else(|| format!("unknown escape: {line}"))?))
        })
        .collect()
}

/// Reads the case of a file. Lines of answers are left to `answers`.
///
/// # Errors
/// Text that is no case.
pub(crate) fn read(lines: &[Line<'_>]) -> Result<Case, Failure> {
    let values = |wanted_name: &str| {
        let of_word = lines.iter().filter(|(word, _)| *word == wanted_name).map(|(_, value)| value.clone());
        of_word.collect::<Vec<String>>()
    };
    let nodes = nodes(&values("config"))?;
    let mut exchanges = Vec::<Exchange>::new();
    for (word, value) in lines {
        read_request_line(&mut exchanges, word, value).ok_or_else(|| format!("misplaced: {word} {value}"))?;
    }
    Ok(Case { nodes, script: values("script"), exchanges })
}

/// Adds what a line says to the last request. `None` if there is none.
fn read_request_line(exchanges: &mut Vec<Exchange>, word: &str, value: &str) -> Option<()> {
    if word == "exchange" {
        let wire = if value == "http2" { Wire::Http2 } else { Wire::Http1 };
        exchanges.push(Exchange { wire, requests: Vec::new() });
        return Some(());
    }
    if !matches!(word, "method" | "target" | "protocol" | "field" | "sized" | "chunk") {
        return Some(());
    }
    let requests = &mut exchanges.last_mut()?.requests;
    if word == "method" {
        requests.push(Request {
            method: value.to_owned(),
            target: String::new(),
            protocol: String::new(),
            fields: Vec::new(),
            body: RequestBody::Absent,
        });
        return Some(());
    }
    let request = requests.last_mut()?;
    match word {
        "target" => value.clone_into(&mut request.target),
        "protocol" => value.clone_into(&mut request.protocol),
        "field" => {
            let (name, value) = value.split_once(": ")?;
            request.fields.push((name.to_owned(), value.to_owned()));
        }
        "sized" => request.body = RequestBody::Sized(value.to_owned()),
        _ => match &mut request.body {
            RequestBody::Chunked(chunks) => chunks.push(value.to_owned()),
            body => *body = RequestBody::Chunked(vec![value.to_owned()]),
        },
    }
    Some(())
}

/// Directives of rendered lines.
fn nodes(lines: &[String]) -> Result<Vec<Node>, Failure> {
    let mut open: Vec<(String, Vec<Node>)> = vec![(String::new(), Vec::new())];
    for line in lines {
        let line = line.trim();
        let done = if line == "}" {
            let (words, inner) = open.pop().unwrap_or_default();
            node::block(words, inner)
        } else if let Some(words) = line.strip_suffix(" {") {
            open.push((words.to_owned(), Vec::new()));
            continue;
        } else {
            node::line(line.strip_suffix(';').unwrap_or(line))
        };
        open.last_mut().ok_or_else(|| format!("unexpected: {line}"))?.1.push(done);
    }
    match open.pop() {
        Some((_, nodes)) if open.is_empty() => Ok(nodes),
        _ => Err("a block is open at the end of the configuration".to_owned()),
    }
}

/// Reverses `escape_ascii`. Bytes that are not UTF-8 are replaced.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return None,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{self, AREAS};

    #[test]
    fn cases_survive_their_files() {
        for (name, area) in AREAS {
            for seed in 1..20 {
                let case = generate::case(seed, *area);
                let text = write(&case);
                let again = read(&lines(&text).unwrap()).unwrap();
                assert_eq!(node::render(&again.nodes), node::render(&case.nodes), "{name} {seed}");
                assert_eq!((again.script, again.exchanges), (case.script, case.exchanges), "{name} {seed}");
            }
        }
    }

    #[test]
    fn text_that_is_no_case_is_refused() {
        for text in ["config", "config \\q", "config \\x4", "target /", "config a {", "config }\nconfig }"] {
            assert!(lines(text).and_then(|lines| read(&lines)).is_err(), "{text}");
        }
        assert_eq!(unescape("a\\x41\\n\\\\\\'").unwrap(), "aA\n\\'");
    }
}
