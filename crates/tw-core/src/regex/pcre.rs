//! From PCRE's way of writing a pattern to that of the engine, so that patterns of existing configurations mean the same.
//!
//! As in nginx a pattern is a row of bytes unless it starts with `(*UTF8)`. What needs no translation is copied; what
//! neither side knows is left to the engine's own message. Source: pcre2pattern(3).
//!
//! `$` and `\Z` of PCRE match at the end, and also before a line break that is the last byte. The engine's `$` matches at
//! the end only. A subject rarely ends with a line break, so the translation leaves that case to [`End`].

use std::ops::Range;

use self::scan::{digits, is_number, number, until};
use super::property;

mod scan;

/// A pattern as the engine wants it.
pub(super) struct Translated {
    pub(super) pattern: String,
    pub(super) mode: Mode,
    pub(super) end: End,
}

/// Meaning of a pattern for a subject whose last byte is a line break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The line break is a byte like any other: there is no `$`.
    Plain,
    /// The subject may also end before the line break: each `$` stands where a branch ends.
    WithoutNewline,
    /// Each `$` looks whether a line break follows: something may follow it, or `\z` is in the pattern, too.
    Exact,
}

/// Form in which `$` and `\Z` are written.
#[derive(Clone, Copy)]
enum Dollar {
    /// The end of the subject.
    AtEnd,
    /// The end, or before a line break that is the last byte.
    BeforeLineBreak,
}

/// Unit of a pattern: bytes or characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Bytes,
    /// Characters; nothing matches what is not UTF-8.
    Utf8,
}

/// Translates `pattern`. The error describes the mistake in the pattern.
pub(super) fn translate(pattern: &[u8]) -> Result<Translated, String> {
    translate_with(pattern, Dollar::AtEnd)
}

/// Translates `pattern` for subjects that end with a line break, which `$` sees.
pub(super) fn translate_exactly(pattern: &[u8]) -> Result<String, String> {
    Ok(translate_with(pattern, Dollar::BeforeLineBreak)?.pattern)
}

fn translate_with(pattern: &[u8], dollar: Dollar) -> Result<Translated, String> {
    let (mode, pattern) = mode_of(pattern);
    // A number after a backslash is a group or a character, depending on how many groups there are.
    let groups = Translator::new(pattern, mode, dollar, 0).run()?.groups;
    let done = Translator::new(pattern, mode, dollar, groups).run()?;
    let end = match (done.dollars, done.has_very_end || done.is_inner) {
        (0, _) => End::Plain,
        (_, false) => End::WithoutNewline,
        (_, true) => End::Exact,
    };
    Ok(Translated { pattern: done.out, mode, end })
}

fn mode_of(mut pattern: &[u8]) -> (Mode, &[u8]) {
    let mut mode = Mode::Bytes;
    loop {
        let (found_mode, rest) = match pattern {
            [b'(', b'*', b'U', b'T', b'F', b'8', b')', rest @ ..]
            | [b'(', b'*', b'U', b'T', b'F', b')', rest @ ..] => (Mode::Utf8, rest),
            [b'(', b'*', b'U', b'C', b'P', b')', rest @ ..] => (mode, rest),
            _ => return (mode, pattern),
        };
        (mode, pattern) = (found_mode, rest);
    }
}

/// A member of a class, or what stands outside of one.
enum Item {
    /// One byte or character.
    One(u32),
    /// Several: what goes between brackets.
    Set(String),
    /// Everything but these.
    Not(String),
}

struct Translator<'a> {
    rest: &'a [u8],
    mode: Mode,
    out: String,
    /// Groups begun so far.
    groups: usize,
    /// Groups of the whole pattern.
    total: usize,
    dollar: Dollar,
    /// `$` and `\Z` so far.
    dollars: usize,
    /// True if something other than the end of a branch follows one of them.
    is_inner: bool,
    /// True if there is a `\z`.
    has_very_end: bool,
}

impl<'a> Translator<'a> {
    fn new(pattern: &'a [u8], mode: Mode, dollar: Dollar, total: usize) -> Self {
        Self {
            rest: pattern,
            mode,
            out: String::with_capacity(pattern.len() + 16),
            groups: 0,
            total,
            dollar,
            dollars: 0,
            is_inner: false,
            has_very_end: false,
        }
    }

    fn run(mut self) -> Result<Self, String> {
        while let Some(&byte) = self.rest.first() {
            match byte {
                b'\\' => self.escape()?,
                b'[' => self.class()?,
                b'(' => self.group(),
                b'$' => {
                    self.rest = &self.rest[1..];
                    self.push_dollar("$");
                }
                0x80.. => {
                    let one = self.one()?;
                    self.push_one(one);
                }
                _ => {
                    self.rest = &self.rest[1..];
                    self.out.push(byte as char);
                }
            }
        }
        Ok(self)
    }

    /// Takes one byte, or one character of a pattern of characters.
    fn one(&mut self) -> Result<u32, String> {
        let len = match (self.mode, self.rest.first()) {
            (_, None) => return Err("\\ at end of pattern".to_owned()),
            (Mode::Utf8, Some(&first)) => utf8_len(first),
            (Mode::Bytes, Some(_)) => 1,
        };
        let (one, rest) = self.rest.split_at_checked(len).ok_or(NOT_UTF8)?;
        self.rest = rest;
        match (self.mode, one) {
            (Mode::Bytes, one) => Ok(u32::from(one[0])),
            (Mode::Utf8, one) => {
                let text = std::str::from_utf8(one).map_err(|_| NOT_UTF8)?;
                Ok(text.chars().next().map_or(0, u32::from))
            }
        }
    }

    /// Writes `$` or `\Z`, at the end as `at_end`.
    fn push_dollar(&mut self, at_end: &str) {
        self.dollars += 1;
        self.is_inner |= !matches!(self.rest.first(), None | Some(b')' | b'|'));
        match self.dollar {
            Dollar::BeforeLineBreak => self.out.push_str(&format!(r"(?:{at_end}|(?=\n\z))")),
            Dollar::AtEnd => self.out.push_str(at_end),
        }
    }

    fn push_one(&mut self, one: u32) {
        push_one(one, &mut self.out);
    }

    /// Translates an item that begins with a parenthesis: counts groups, leaves comments out, and writes calls of
    /// groups in the engine's syntax.
    fn group(&mut self) {
        if let Some(comment) = self.rest.strip_prefix(b"(?#") {
            self.rest = until(comment, b')').1;
            return;
        }
        let call = self.rest.strip_prefix(b"(?").and_then(|after| {
            let end = after.iter().position(|b| *b == b')')?;
            let name = match &after[..end] {
                b"R" => "0".to_owned(),
                [b'&', name @ ..] | [b'P', b'>', name @ ..] => String::from_utf8_lossy(name).into_owned(),
                [sign @ (b'+' | b'-'), digits @ ..] if is_number(digits) => {
                    let by = number(digits);
                    // Counted from the last group that was begun.
                    let group =
                        if *sign == b'+' { self.groups + by } else { (self.groups + 1).saturating_sub(by) };
                    group.to_string()
                }
                digits if is_number(digits) => number(digits).to_string(),
                _ => return None,
            };
            Some((name, &after[end + 1..]))
        });
        if let Some((name, rest)) = call {
            self.rest = rest;
            self.out.push_str(&format!("\\g<{name}>"));
            return;
        }
        // The condition of `(?(1)yes|no)` is no group.
        let taken = if self.rest.starts_with(b"(?(") && self.rest.get(3) != Some(&b'?') { 3 } else { 1 };
        match self.rest {
            [b'(', b'?', b'<', b'=' | b'!', ..] => {}
            [b'(', b'?', b'<' | b'\'', ..] | [b'(', b'?', b'P', b'<', ..] => self.groups += 1,
            [b'(', b'?' | b'*', ..] => {}
            _ => self.groups += 1,
        }
        self.out.push_str(&String::from_utf8_lossy(&self.rest[..taken]));
        self.rest = &self.rest[taken..];
    }

    /// Translates an escape sequence outside of a class.
    fn escape(&mut self) -> Result<(), String> {
        let after = &self.rest[1..];
        match after.first() {
            Some(b'Q') => {
                for one in self.quoted()? {
                    self.push_one(one);
                }
            }
            Some(b'E') => self.rest = &after[1..],
            Some(b'1'..=b'9') => {
                let digits = digits(after, 10, usize::MAX);
                let group = number(digits);
                if group < 10 || group <= self.total {
                    self.rest = &after[digits.len()..];
                    self.push_back_reference(group);
                } else {
                    let item = self.item()?;
                    self.push_item(item);
                }
            }
            Some(b'g' | b'k') => self.reference(),
            // `\C` is one byte whatever the mode; the engine has no such thing among characters.
            Some(b'C') if self.mode == Mode::Bytes => {
                self.rest = &after[1..];
                self.out.push_str("(?s:.)");
            }
            Some(b'Z') => {
                self.rest = &after[1..];
                self.push_dollar(r"\z");
            }
            Some(b'A' | b'B' | b'C' | b'G' | b'K' | b'N' | b'R' | b'X' | b'b' | b'z') => {
                self.has_very_end |= after[0] == b'z';
                self.out.push('\\');
                self.out.push(after[0] as char);
                self.rest = &after[1..];
            }
            _ => {
                let item = self.item()?;
                self.push_item(item);
            }
        }
        Ok(())
    }

    /// `\g` and `\k`: back references by number or name, and calls of groups.
    fn reference(&mut self) {
        let [_, kind, after @ ..] = self.rest else { return };
        let (name, rest) = match after {
            [b'{', inner @ ..] => until(inner, b'}'),
            [b'<', inner @ ..] if *kind == b'k' => until(inner, b'>'),
            [b'\'', inner @ ..] if *kind == b'k' => until(inner, b'\''),
            [b'<' | b'\'', ..] => (&[][..], after),
            _ => {
                let len = usize::from(after.first() == Some(&b'-'))
                    + digits(after.strip_prefix(b"-").unwrap_or(after), 10, 9).len();
                after.split_at(len)
            }
        };
        self.rest = rest;
        match name {
            [] => {
                self.out.push('\\');
                self.out.push(*kind as char);
            }
            [b'-', back @ ..] if is_number(back) => {
                self.push_back_reference((self.groups + 1).saturating_sub(number(back)));
            }
            name if is_number(name) => self.push_back_reference(number(name)),
            name => self.out.push_str(&format!("\\k<{}>", String::from_utf8_lossy(name))),
        }
    }

    /// In parentheses, as a digit may follow.
    fn push_back_reference(&mut self, group: usize) {
        self.out.push_str(&format!("(?:\\{group})"));
    }

    fn push_item(&mut self, item: Item) {
        match item {
            Item::One(one) => self.push_one(one),
            // `\d` and its like stand for themselves.
            Item::Set(set) if set.starts_with('\\') && set.len() == 2 => self.out.push_str(&set),
            Item::Set(set) => self.out.push_str(&format!("[{set}]")),
            Item::Not(set) => self.out.push_str(&format!("[^{set}]")),
        }
    }

    /// `[…]`
    fn class(&mut self) -> Result<(), String> {
        const UNENDED: &str = "missing terminating ] for character class";
        self.rest = &self.rest[1..];
        self.out.push('[');
        if self.rest.first() == Some(&b'^') {
            self.rest = &self.rest[1..];
            self.out.push('^');
        }
        let mut is_first = true;
        loop {
            match self.rest {
                [] => return Err(UNENDED.to_owned()),
                [b']', rest @ ..] if !is_first => {
                    self.rest = rest;
                    self.out.push(']');
                    return Ok(());
                }
                [b'\\', b'Q', ..] => {
                    for one in self.quoted()? {
                        self.push_one(one);
                    }
                }
                [b'\\', b'E', rest @ ..] => self.rest = rest,
                _ => self.member()?,
            }
            is_first = false;
        }
    }

    /// A member of a class, or a range of them.
    fn member(&mut self) -> Result<(), String> {
        match self.class_item()? {
            Item::One(first) => {
                self.push_one(first);
                if let [b'-', next, ..] = self.rest
                    && *next != b']'
                {
                    self.rest = &self.rest[1..];
                    let Item::One(last) = self.class_item()? else {
                        return Err("invalid range in character class".to_owned());
                    };
                    self.out.push('-');
                    self.push_one(last);
                }
            }
            set => self.push_member(set),
        }
        Ok(())
    }

    fn push_member(&mut self, item: Item) {
        match item {
            Item::One(one) => self.push_one(one),
            Item::Set(set) => self.out.push_str(&set),
            Item::Not(set) => self.out.push_str(&format!("[^{set}]")),
        }
    }

    fn class_item(&mut self) -> Result<Item, String> {
        match self.rest {
            [b'[', b':', inner @ ..] => {
                let (name, rest) = until(inner, b':');
                if rest.first() == Some(&b']') && name.iter().all(|b| b.is_ascii_lowercase() || *b == b'^') {
                    self.rest = &rest[1..];
                    return Ok(Item::Set(format!("[:{}:]", String::from_utf8_lossy(name))));
                }
                self.one().map(Item::One)
            }
            [b'\\', b'b', rest @ ..] => {
                self.rest = rest;
                Ok(Item::One(8))
            }
            [b'\\', ..] => self.item(),
            _ => self.one().map(Item::One),
        }
    }

    /// Reads an escape sequence that means the same in a class and outside.
    fn item(&mut self) -> Result<Item, String> {
        self.rest = &self.rest[1..];
        let Some(&byte) = self.rest.first() else { return self.one().map(Item::One) };
        if matches!(byte, b'0'..=b'7') {
            let digits = digits(self.rest, 8, 3);
            self.rest = &self.rest[digits.len()..];
            return self.character(digits, 8).map(Item::One);
        }
        if !byte.is_ascii_alphanumeric() {
            return self.one().map(Item::One);
        }
        self.rest = &self.rest[1..];
        Ok(match byte {
            b'a' => Item::One(7),
            b'e' => Item::One(27),
            b'f' => Item::One(12),
            b'n' => Item::One(10),
            b'r' => Item::One(13),
            b't' => Item::One(9),
            b'c' => match self.one()? {
                one @ 32..127 => Item::One(u32::from((one as u8).to_ascii_uppercase()) ^ 64),
                _ => return Err("\\c must be followed by a printable ASCII character".to_owned()),
            },
            b'x' | b'o' => {
                let base = if byte == b'x' { 16 } else { 8 };
                let digits = match self.rest {
                    [b'{', inner @ ..] => {
                        let (digits, rest) = until(inner, b'}');
                        self.rest = rest;
                        digits
                    }
                    rest => {
                        let digits = digits(rest, base, if byte == b'x' { 2 } else { 0 });
                        self.rest = &rest[digits.len()..];
                        digits
                    }
                };
                Item::One(self.character(digits, base)?)
            }
            b'h' => Item::Set(r"\t\x20\xa0".to_owned()),
            b'H' => Item::Not(r"\t\x20\xa0".to_owned()),
            b'v' => Item::Set(r"\n-\r\x85".to_owned()),
            b'V' => Item::Not(r"\n-\r\x85".to_owned()),
            b'p' | b'P' => return self.property(byte),
            other => Item::Set(format!("\\{}", other as char)),
        })
    }

    /// `\p{…}` or `\P{…}`, behind its letter.
    fn property(&mut self, kind: u8) -> Result<Item, String> {
        const UNKNOWN: &str = "unknown property name after \\P or \\p";
        let (name, rest) = match self.rest {
            [b'{', inner @ ..] => until(inner, b'}'),
            rest => rest.split_at_checked(1).ok_or(UNKNOWN)?,
        };
        self.rest = rest;
        let name = String::from_utf8_lossy(name).into_owned();
        let (negated, name) = match name.strip_prefix('^') {
            Some(name) => (kind == b'p', name),
            None => (kind == b'P', &*name),
        };
        let set = match self.mode {
            Mode::Utf8 => format!("\\p{{{name}}}"),
            Mode::Bytes => property::bytes(name).ok_or(UNKNOWN)?,
        };
        Ok(if negated { Item::Not(set) } else { Item::Set(set) })
    }

    fn character(&self, digits: &[u8], base: u32) -> Result<u32, String> {
        const TOO_LARGE: &str = "character code point value in \\x{} or \\o{} is too large";
        let text = String::from_utf8_lossy(digits);
        let code = if text.is_empty() { Ok(0) } else { u32::from_str_radix(&text, base) };
        let code = code.map_err(|_| "invalid character in \\x{} or \\o{}".to_owned())?;
        let is_valid = match self.mode {
            Mode::Bytes => code < 256,
            Mode::Utf8 => char::from_u32(code).is_some(),
        };
        if is_valid { Ok(code) } else { Err(TOO_LARGE.to_owned()) }
    }

    /// `\Q…\E`
    fn quoted(&mut self) -> Result<Vec<u32>, String> {
        self.rest = &self.rest[2..];
        let mut all = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with(b"\\E") {
            all.push(self.one()?);
        }
        self.rest = self.rest.get(2..).unwrap_or_default();
        Ok(all)
    }
}

const NOT_UTF8: &str = "the pattern is not valid UTF-8";

/// Writes one byte or character so that it means itself, in a class and outside.
fn push_one(one: u32, out: &mut String) {
    match char::from_u32(one) {
        Some(c) if c.is_ascii_alphanumeric() => out.push(c),
        _ if one < 256 => out.push_str(&format!("\\x{one:02x}")),
        _ => out.push_str(&format!("\\x{{{one:x}}}")),
    }
}

fn utf8_len(first: u8) -> usize {
    const LENGTHS: [(Range<u8>, usize); 3] = [(0xc0..0xe0, 2), (0xe0..0xf0, 3), (0xf0..0xff, 4)];
    LENGTHS.iter().find(|(range, _)| range.contains(&first)).map_or(1, |(_, len)| *len)
}

#[cfg(test)]
mod tests;
