//! Suggestions for a wrongly written directive: the operator's likely intention.

use crate::directive::DirectiveInfo;
use crate::error::ConfError;
use crate::span::{Sources, Span};
use crate::tree::{Node, Word};

/// Adds a hint to an error about `node` if its words show the cause; `info` is the record of its name.
pub fn advise(
    error: ConfError,
    node: &Node,
    info: Option<&DirectiveInfo>,
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
        let opens = info.is_some_and(|info| info.args.has_block());
        return unfinished(error, before, opens, &file.text);
    }
    let syntax = info.map_or("", |info| info.syntax);
    if error.message.contains("invalid")
        && let Some(hint) = separate_unit(node, syntax)
    {
        return error.hint(hint);
    }
    if error.hint.is_some() || !error.message.contains("invalid") {
        return error;
    }
    let in_question = |word: &&Word| error.span.is_none_or(|at| at == word.span || at == node.span);
    let words = node.args.iter().filter(|word| !word.quoted);
    match words.filter(in_question).find_map(|word| unit(&word.lossy(), &error.message, syntax)) {
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
    // The message keeps nginx's line; the excerpt below it shows where the character is missing.
    error.span = error.span.map(|span| Span { start, end: start, ..span });
    let line = line_of(text, start as usize);
    error.hint(if opens {
        format!("is a \"{{\" missing at the end of line {line}?")
    } else {
        format!("is a \";\" missing at the end of line {line}?")
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
        // A word that is the first on its line begins a directive, and the word before it lacks a semicolon.
        !word.quoted
            && indentation(text, word.span.start as usize).is_some()
            && word.as_str().is_some_and(&is_directive)
    };
    before.zip(&node.args).find(|(_, word)| begins(word)).map(|(before, _)| before)
}

/// Kind of a value with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Time,
    Size,
    /// A size that may be larger than memory.
    Offset,
    Unknown,
}

impl Quantity {
    /// Kind of a word by the documented syntax of its directive, and by the name of the parameter that it is the value of.
    fn of(name: Option<&str>, syntax: &str) -> Self {
        let Some(name) = name else {
            return match syntax.split(' ').next() {
                Some("time" | "timeout") => Self::Time,
                Some("size") => Self::Size,
                _ => Self::Unknown,
            };
        };
        let is_written = |kind: &str| syntax.contains(&format!("{name}={kind}"));
        if is_written("time") {
            return Self::Time;
        } else if is_written("size") {
            return if name == "max_size" || name == "min_free" { Self::Offset } else { Self::Size };
        }
        const TIMES: [&str; 8] =
            ["time", "timeout", "inactive", "valid", "interval", "expires", "slow_start", "flush"];
        const SIZES: [&str; 4] = ["size", "buffer", "rcvbuf", "sndbuf"];
        let ends_with = |words: &[&str]| words.iter().any(|word| name.ends_with(word));
        match () {
            () if ends_with(&TIMES) => Self::Time,
            () if ends_with(&SIZES) => Self::Size,
            () => Self::Unknown,
        }
    }

    /// The units, with a number as an example.
    fn units(self, number: u64) -> String {
        match self {
            Self::Time => format!("times end in ms, s, m, h or d: {number}s"),
            Self::Size => format!("sizes end in k, m or nothing: {number}k"),
            Self::Offset => format!("sizes end in k, m, g or nothing: {number}m"),
            Self::Unknown => format!(
                "times end in ms, s, m, h or d, such as {number}s; sizes end in k, m or nothing, such as {number}k"
            ),
        }
    }
}

/// Units as people write them, with the unit here.
fn known_unit(unit: &str) -> Option<(Quantity, &'static str)> {
    Some(match &*unit.to_ascii_lowercase() {
        "b" | "byte" | "bytes" => (Quantity::Size, ""),
        "k" | "kb" | "kib" => (Quantity::Size, "k"),
        "mb" | "mib" => (Quantity::Size, "m"),
        "g" | "gb" | "gib" => (Quantity::Offset, "g"),
        "ms" | "msec" | "msecs" | "millis" => (Quantity::Time, "ms"),
        "s" | "sec" | "secs" | "second" | "seconds" => (Quantity::Time, "s"),
        "min" | "mins" | "minute" | "minutes" => (Quantity::Time, "m"),
        "h" | "hr" | "hrs" | "hour" | "hours" => (Quantity::Time, "h"),
        "d" | "day" | "days" => (Quantity::Time, "d"),
        _ => return None,
    })
}

/// Hint for a unit that stands apart from its number: `10 mb`.
fn separate_unit(node: &Node, syntax: &str) -> Option<String> {
    let (number, unit) = node.args.iter().zip(node.args.get(1..)?).find(|(number, unit)| {
        number.number().is_some() && (known_unit(&unit.lossy()).is_some() || unit.is("m"))
    })?;
    let unit = match known_unit(&unit.lossy()) {
        Some((_, unit)) => unit,
        None => "m",
    };
    let is_quantity = Quantity::of(None, syntax) != Quantity::Unknown;
    is_quantity.then(|| format!("a unit follows its number without a blank: {number}{unit}"))
}

/// Hint for a value with a unit that is unknown, or for something else where a time or a size is expected.
fn unit(word: &str, message: &str, syntax: &str) -> Option<String> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (Some(name), value),
        None => (None, word),
    };
    let value = value.rsplit(':').next()?;
    let quantity = match Quantity::of(name, syntax) {
        Quantity::Unknown if message.contains("time value") => Quantity::Time,
        quantity => quantity,
    };
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').map(|end| value.split_at(end));
    let digits = digits.filter(|(digits, _)| digits.starts_with(|c: char| c.is_ascii_digit()));
    let Some((digits, unit)) = digits else {
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        return match quantity {
            _ if is_number => None,
            _ if value.starts_with('$') && quantity != Quantity::Unknown => {
                Some("a variable cannot stand here".to_owned())
            }
            Quantity::Time => Some("a time is a number with a unit, such as 60s or 5m".to_owned()),
            Quantity::Size => Some("a size is a number, perhaps with k or m, such as 8k".to_owned()),
            Quantity::Offset => Some("a size is a number, perhaps with k, m or g, such as 1g".to_owned()),
            Quantity::Unknown => None,
        };
    };
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
    match known_unit(unit) {
        Some((Quantity::Time, "ms")) if unit == "ms" && quantity == Quantity::Time => {
            Some("whole seconds are expected here".to_owned())
        }
        // The unit is right, so something else is wrong with the value.
        Some((own, right))
            if right == unit && (own == quantity || quantity == Quantity::Unknown) && unit != "g" =>
        {
            None
        }
        Some((Quantity::Offset, _)) if quantity != Quantity::Time => {
            Some(format!("sizes end in k or m here: {}m", number.checked_mul(1024)?))
        }
        Some((Quantity::Size, unit)) if quantity != Quantity::Time => {
            Some(format!("sizes end in k, m or nothing: {number}{unit}"))
        }
        Some((Quantity::Time, unit)) if matches!(quantity, Quantity::Time | Quantity::Unknown) => {
            Some(format!("times end in ms, s, m, h or d: {number}{unit}"))
        }
        Some(_) => Some(quantity.units(number)),
        None if quantity == Quantity::Unknown && name.is_some() => None,
        None => Some(quantity.units(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, HTTP, MemoryFiles, Reader, Tree, record};

    /// Hint and its place, for the first directive of a text.
    fn advice(text: &str, message: &str, opens: bool) -> (String, u32) {
        let info = record::new("a", "", HTTP, if opens { Args::ANY.block() } else { Args::ANY });
        advice_for(text, message, &info)
    }

    fn advice_for(text: &str, message: &str, info: &DirectiveInfo) -> (String, u32) {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        let node = &tree.nodes[0];
        let error = advise(node.fail(message), node, Some(info), &tree.sources, |name| {
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
            // A word on the same line, or in quotes, is meant as an argument.
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
            (
                "a 10x;",
                "invalid value",
                "times end in ms, s, m, h or d, such as 10s; sizes end in k, m or nothing, such as 10k",
            ),
            ("a b=10x;", "invalid value", ""),
            ("a 10mb;", "is duplicate", ""),
            ("a b;", "invalid value", ""),
            ("a 99999999999999999999mb;", "invalid value", ""),
        ] {
            assert_eq!(advice(text, message, false).0, expected, "{text}");
        }
    }

    #[test]
    fn units_are_those_of_the_syntax() {
        let time = "times end in ms, s, m, h or d: 5s";
        let size = "sizes end in k, m or nothing: 5k";
        for (syntax, words, message, expected) in [
            ("time", "5x", "invalid value", time),
            ("timeout [header_timeout]", "5x", "invalid value", time),
            ("size", "5x", "invalid value", size),
            ("time", "5mb", "invalid value", time),
            ("size", "5sec", "invalid value", size),
            ("time", "forever", "invalid value", "a time is a number with a unit, such as 60s or 5m"),
            ("size", "unlimited", "invalid value", "a size is a number, perhaps with k or m, such as 8k"),
            ("time", "$t", "invalid value", "a variable cannot stand here"),
            ("time", "5", "invalid value", ""),
            ("time", "5ms", "invalid value", "whole seconds are expected here"),
            ("size", "99999999999999999k", "invalid value", ""),
            ("on | off", "maybe", "invalid value", ""),
            ("address [parameters]", "a fail_timeout=5x", "invalid parameter", time),
            ("address [parameters]", "a weight=5x", "invalid parameter", ""),
            ("path inactive=time max_size=size", "/a inactive=5x", "invalid inactive", time),
            (
                "path inactive=time max_size=size",
                "/a max_size=5x",
                "invalid max_size",
                "sizes end in k, m, g or nothing: 5m",
            ),
            (
                "size",
                "10 MB",
                "invalid number of arguments",
                "a unit follows its number without a blank: 10m",
            ),
            ("time", "5 m", "invalid number of arguments", "a unit follows its number without a blank: 5m"),
            (
                "timeout [header_timeout]",
                "65 s",
                "invalid value",
                "a unit follows its number without a blank: 65s",
            ),
            ("[code …] time", "200 5x", "invalid time value", time),
            ("number size", "8 16 k", "invalid number of arguments", ""),
        ] {
            let info = record::new("a", syntax, HTTP, Args::ANY);
            let hint = advice_for(&format!("a {words};"), message, &info).0;
            assert_eq!(hint, expected, "{syntax}: {words}");
        }
    }
}
