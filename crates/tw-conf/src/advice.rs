//! Suggestions for a wrongly written directive: the operator's likely intention.

use crate::error::ConfError;
use crate::span::{Sources, Span};
use crate::tree::{Node, Word};

/// Adds a hint to an error about `node` if its words show the cause; `opens` is true if a block should follow.
pub fn advise(
    error: ConfError,
    node: &Node,
    opens: bool,
    sources: &Sources,
    is_directive: impl Fn(&str) -> bool,
) -> ConfError {
    if error.missing.is_some() {
        return error;
    }
    if let Some(hint) = typography(node) {
        return error.hint(hint);
    }
    let Some(file) = sources.file(node.span.file) else { return error };
    if let Some(before) = swallowed(node, &file.text, is_directive) {
        return unfinished(error, before, opens, &file.text);
    }
    if error.hint.is_some() || !error.message.contains("invalid") {
        return error;
    }
    let in_question = |word: &&Word| error.span.is_none_or(|at| at == word.span || at == node.span);
    let words = node.args.iter().filter(|word| !word.quoted);
    match words.filter(in_question).find_map(|word| unit(&word.lossy(), &error.message)) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Hint about typographic characters, as word processors and web pages insert them.
fn typography(node: &Node) -> Option<String> {
    let words = || std::iter::once(&node.name).chain(&node.args);
    let has = |is: fn(char) -> bool| words().find_map(|word| word.as_str()?.chars().find(|c| is(*c)));
    if let Some(quote) = has(|c| matches!(c, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}')) {
        return Some(format!("{quote} is no quote here: write \" or '"));
    }
    let blank = has(|c| matches!(c, '\u{a0}' | '\u{2000}'..='\u{200b}' | '\u{202f}' | '\u{3000}'))?;
    let number = u32::from(blank);
    Some(format!(
        "an odd blank (U+{number:04X}, perhaps non-breaking) does not separate words: write a space"
    ))
}

/// Hint for a directive that should have ended after `word`.
pub(crate) fn unfinished(mut error: ConfError, word: &Word, opens: bool, text: &[u8]) -> ConfError {
    let start = word.span.end + u32::from(word.quoted);
    // The message keeps its line, which is nginx's; what is shown below it is where the character is missing.
    error.span = error.span.map(|span| Span { start, end: start, ..span });
    let line = line_of(text, start as usize);
    error.hint(match opens {
        true => format!("is a \"{{\" missing at the end of line {line}?"),
        false => format!("is a \";\" missing at the end of line {line}?"),
    })
}

/// Number of the line that contains a byte.
pub(crate) fn line_of(text: &[u8], at: usize) -> usize {
    1 + text[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Number of blanks before a byte on its line; `None` if other bytes stand there too. Looks at no more of the line
/// than that: a generated configuration may be one line of a megabyte.
pub(crate) fn indentation(text: &[u8], at: usize) -> Option<usize> {
    let before = &text[..at.min(text.len())];
    let blanks = before.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    matches!(before[..before.len() - blanks].last(), None | Some(b'\n')).then_some(blanks)
}

/// Word before one on a line of its own that begins another directive.
fn swallowed<'n>(node: &'n Node, text: &[u8], is_directive: impl Fn(&str) -> bool) -> Option<&'n Word> {
    let before = std::iter::once(&node.name).chain(&node.args);
    let begins = |word: &Word| {
        // What ends the word before it stands on an earlier line.
        !word.quoted
            && indentation(text, word.span.start as usize).is_some()
            && word.as_str().is_some_and(&is_directive)
    };
    before.zip(&node.args).find(|(_, word)| begins(word)).map(|(before, _)| before)
}

/// Suggested replacement for a number with an unknown unit.
fn unit(word: &str, message: &str) -> Option<String> {
    let value = word.rsplit(['=', ':']).next()?;
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').map(|end| value.split_at(end));
    let (digits, unit) = digits.filter(|(digits, _)| digits.starts_with(|c: char| c.is_ascii_digit()))?;
    if digits.contains('.') {
        return Some("numbers are whole, without a point".to_owned());
    }
    if !unit.chars().all(|c| c.is_ascii_alphabetic()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    if message.contains("invalid number") {
        return Some(format!("a number without a unit is expected, such as {number}"));
    }
    let size = |letter: &str| Some(format!("sizes end in k, m or nothing: {number}{letter}"));
    let time = |letter: &str| Some(format!("times end in ms, s, m, h or d: {number}{letter}"));
    match &*unit.to_ascii_lowercase() {
        "b" | "byte" | "bytes" => size(""),
        "kb" | "kib" => size("k"),
        "mb" | "mib" => size("m"),
        "g" | "gb" | "gib" => Some(format!("sizes end in k or m here: {}m", number.checked_mul(1024)?)),
        "msec" | "msecs" | "millis" => time("ms"),
        "sec" | "secs" | "second" | "seconds" => time("s"),
        "min" | "mins" | "minute" | "minutes" => time("m"),
        "hr" | "hrs" | "hour" | "hours" => time("h"),
        "day" | "days" => time("d"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryFiles, Reader, Tree};

    /// Hint and its place, for the first directive of a text.
    fn advice(text: &str, message: &str, opens: bool) -> (String, u32) {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        let node = &tree.nodes[0];
        let error = advise(node.fail(message), node, opens, &tree.sources, |name| {
            ["root", "index", "listen"].contains(&name)
        });
        (error.hint.unwrap_or_default(), error.span.unwrap().start)
    }

    #[test]
    fn indentation_of_a_line() {
        for (text, at, expected) in [
            ("a", 0, Some(0)),
            ("  a { b", 2, Some(2)),
            ("  a { b", 6, None),
            ("x\n\t b", 4, Some(2)),
            ("x\n\nb", 3, Some(0)),
            ("x", 9, None),
        ] {
            assert_eq!(indentation(text.as_bytes(), at), expected, "{text:?} {at}");
        }
    }

    #[test]
    fn missing_semicolon_is_suggested() {
        let semicolon = |line| format!("is a \";\" missing at the end of line {line}?");
        let brace = "is a \"{\" missing at the end of line 1?".to_owned();
        for (text, opens, hint, start) in [
            ("root /srv\n  index a;", false, semicolon(1), 9),
            ("\nroot 'a'\n  index a;", false, semicolon(2), 9),
            ("root\n/srv\nindex a;", false, semicolon(2), 9),
            ("server\n  listen 80;", true, brace, 6),
            // On one line, or in quotes: meant so.
            ("root index listen;", false, String::new(), 0),
            ("root /srv\n  'index';", false, String::new(), 0),
            ("root /srv\n  other;", false, String::new(), 0),
        ] {
            assert_eq!(advice(text, "invalid number of arguments", opens), (hint, start), "{text}");
        }
    }

    #[test]
    fn typographic_characters_are_named() {
        for (text, expected) in [
            ("a \u{201c}b c\u{201d};", "\u{201c} is no quote here: write \" or '"),
            (
                "a\u{a0}b;",
                "an odd blank (U+00A0, perhaps non-breaking) does not separate words: write a space",
            ),
            ("a b;", ""),
        ] {
            assert_eq!(advice(text, "invalid number of arguments", false).0, expected, "{text}");
        }
    }

    #[test]
    fn unknown_units_have_suggestions() {
        for (text, message, expected) in [
            ("a 10mb;", "invalid value", "sizes end in k, m or nothing: 10m"),
            ("a 4KB;", "invalid value", "sizes end in k, m or nothing: 4k"),
            ("a 2g;", "invalid value", "sizes end in k or m here: 2048m"),
            ("a zone=x:10mb;", "invalid zone size", "sizes end in k, m or nothing: 10m"),
            ("a 5min;", "invalid value", "times end in ms, s, m, h or d: 5m"),
            ("a 1.5m;", "invalid value", "numbers are whole, without a point"),
            ("a 10k;", "invalid number", "a number without a unit is expected, such as 10"),
            ("a 10x;", "invalid value", ""),
            ("a 10mb;", "is duplicate", ""),
            ("a b;", "invalid value", ""),
            ("a 99999999999999999999mb;", "invalid value", ""),
        ] {
            assert_eq!(advice(text, message, false).0, expected, "{text}");
        }
    }
}
