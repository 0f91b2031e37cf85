//! Regular expressions as PCRE reads them, translated for an engine that runs in linear time.
//!
//! Look-around, backreferences, atomic groups and possessive quantifiers are refused, because such an engine has none. Most else is read alike.
//! The translation escapes what only PCRE takes literally.

use regex_automata::meta::{self, Regex};
use regex_automata::util::syntax;
use regex_syntax::hir::Hir;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of the compiled form of one regular expression of a rule.
    const REGEX_SIZE_MAX: usize = 32 << 20, bytes, "the configuration is refused";
    /// Bytes that one thread keeps of the states of one regular expression of a rule.
    ///
    /// The states are made while values are searched. The default of the library, 2 MB for each of 320 expressions, is too much.
    const STATES_SIZE_MAX: usize = 512 << 10, bytes, "states are made again when they are needed";
}

/// Nesting of groups in an expression.
const NESTING_MAX: u32 = 200;

/// Options with which every expression is read: bytes, no Unicode, a dot matches line ends, `$` only the end.
pub(crate) fn options() -> syntax::Config {
    syntax::Config::new().utf8(false).unicode(false).dot_matches_new_line(true).nest_limit(NESTING_MAX)
}

/// Compiles `pattern`. The error is its reason.
pub(crate) fn compile(pattern: &[u8]) -> Result<(Regex, Hir), String> {
    let text = translate(pattern)?;
    let hir = syntax::parse_with(&text, &options()).map_err(|error| reason(&error.to_string()))?;
    let config = meta::Config::new()
        .utf8_empty(false)
        .nfa_size_limit(Some(REGEX_SIZE_MAX))
        .hybrid_cache_capacity(STATES_SIZE_MAX)
        .dfa(false);
    let regex = Regex::builder().configure(config).build_from_hir(&hir);
    Ok((regex.map_err(|error| reason(&error.to_string()))?, hir))
}

/// Last line of an error of the library, whose other lines show the pattern.
fn reason(text: &str) -> String {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    last.trim().trim_start_matches("error: ").to_owned()
}

/// Position in a pattern.
struct Cursor<'a> {
    pattern: &'a [u8],
    at: usize,
    out: String,
}

/// Translates `pattern`.
pub(crate) fn translate(pattern: &[u8]) -> Result<String, String> {
    let mut cursor = Cursor { pattern, at: 0, out: String::with_capacity(pattern.len() + 8) };
    while let Some(byte) = cursor.next() {
        cursor.item(byte)?;
    }
    Ok(cursor.out)
}

impl Cursor<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.pattern.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.pattern.get(self.at).copied()
    }

    fn rest(&self) -> &[u8] {
        self.pattern.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, byte: u8) {
        if byte.is_ascii() {
            self.out.push(char::from(byte));
        } else {
            self.out.push_str(&format!("\\x{byte:02X}"));
        }
    }

    fn item(&mut self, byte: u8) -> Result<(), String> {
        match byte {
            b'\\' => self.escape(Within::Pattern),
            b'[' => self.class(),
            b'(' => self.group(),
            b'*' | b'+' | b'?' => {
                self.push(byte);
                self.behind_quantifier()
            }
            b'{' => {
                let Some(length) = counted(self.rest()) else {
                    self.out.push_str("\\{");
                    return Ok(());
                };
                let bounds = self.rest().get(..length).unwrap_or_default().to_vec();
                self.at += length;
                self.push(b'{');
                // PCRE2 reads `{,n}` as `{0,n}`.
                if bounds.first() == Some(&b',') {
                    self.push(b'0');
                }
                bounds.into_iter().for_each(|byte| self.push(byte));
                self.behind_quantifier()
            }
            b'}' | b']' => {
                self.push(b'\\');
                self.push(byte);
                Ok(())
            }
            _ => {
                self.push(byte);
                Ok(())
            }
        }
    }

    fn behind_quantifier(&mut self) -> Result<(), String> {
        match self.peek() {
            Some(b'+') => Err("possessive quantifiers are not supported".to_owned()),
            Some(b'?') => {
                self.at += 1;
                self.push(b'?');
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn group(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let refused = |what: &str| Err(format!("{what} are not supported"));
        if rest.starts_with(b"?#") {
            while self.next().is_some_and(|byte| byte != b')') {}
            return Ok(());
        }
        if rest.starts_with(b"?=")
            || rest.starts_with(b"?!")
            || rest.starts_with(b"?<=")
            || rest.starts_with(b"?<!")
        {
            return refused("look-around assertions");
        }
        if rest.starts_with(b"?>") {
            return refused("atomic groups");
        }
        if rest.starts_with(b"?|")
            || rest.starts_with(b"?R")
            || rest.starts_with(b"?(")
            || rest.starts_with(b"?&")
        {
            return refused("recursion, conditions and branch resets");
        }
        if rest.starts_with(b"*") {
            return refused("backtracking verbs");
        }
        let has_flags = rest.starts_with(b"?");
        self.push(b'(');
        if has_flags {
            self.at += 1;
            self.push(b'?');
        }
        Ok(())
    }

    fn escape(&mut self, within: Within) -> Result<(), String> {
        let Some(byte) = self.next() else { return Err("a backslash ends the expression".to_owned()) };
        let text = match byte {
            b'1'..=b'9' if within == Within::Pattern => {
                return Err("backreferences are not supported".to_owned());
            }
            b'k' | b'g' | b'K' | b'G' | b'R' | b'X' | b'C' => {
                return Err(format!("\\{} is not supported", char::from(byte)));
            }
            b'0'..=b'7' => {
                let digits =
                    self.rest().iter().take(2).take_while(|byte| (b'0'..=b'7').contains(*byte)).count();
                let mut value = u32::from(byte - b'0');
                for _ in 0..digits {
                    value = value * 8 + u32::from(self.next().unwrap_or(b'0') - b'0');
                }
                self.out.push_str(&format!("\\x{:02X}", value & 0xff));
                return Ok(());
            }
            b'h' if within == Within::Pattern => "[\\t ]",
            b'h' => "\\t ",
            b'N' => "[^\\n]",
            b'e' => "\\x1B",
            b'Z' | b'z' => "\\z",
            b'Q' => {
                while !self.rest().is_empty() && !self.rest().starts_with(b"\\E") {
                    let byte = self.next().unwrap_or_default();
                    self.out.push_str(&format!("\\x{byte:02X}"));
                }
                self.at += self.rest().len().min(2);
                return Ok(());
            }
            b'x' => {
                if self.peek() == Some(b'{') {
                    return self.braced_byte();
                }
                let digits = self.rest().iter().take(2).take_while(|byte| byte.is_ascii_hexdigit()).count();
                let text =
                    String::from_utf8_lossy(self.rest().get(..digits).unwrap_or_default()).into_owned();
                self.at += digits;
                self.out.push_str(&format!("\\x{text:0>2}"));
                return Ok(());
            }
            _ if byte.is_ascii_punctuation() && byte != b'<' && byte != b'>' => {
                self.push(b'\\');
                self.push(byte);
                return Ok(());
            }
            b'<' | b'>' | b' ' => {
                self.push(byte);
                return Ok(());
            }
            _ if byte.is_ascii_alphanumeric() => {
                self.push(b'\\');
                self.push(byte);
                return Ok(());
            }
            _ => {
                self.push(byte);
                return Ok(());
            }
        };
        self.out.push_str(text);
        Ok(())
    }

    /// Code of `\x{…}`, behind its `x`.
    fn braced_byte(&mut self) -> Result<(), String> {
        let end = self.rest().iter().position(|byte| *byte == b'}').ok_or("unterminated \\x{")?;
        let digits = String::from_utf8_lossy(self.rest().get(1..end).unwrap_or_default()).into_owned();
        self.at += end + 1;
        let Ok(byte) = u8::from_str_radix(&digits, 16) else {
            return Err(format!("\\x{{{digits}}} is no byte"));
        };
        self.out.push_str(&format!("\\x{byte:02X}"));
        Ok(())
    }

    /// Bracketed class, behind its first bracket.
    fn class(&mut self) -> Result<(), String> {
        self.push(b'[');
        if self.peek() == Some(b'^') {
            self.at += 1;
            self.push(b'^');
        }
        let mut is_first = true;
        // Set after something that cannot begin a range: a hyphen behind it is literal.
        let mut is_set = false;
        loop {
            let Some(byte) = self.next() else { return Err("unterminated character class".to_owned()) };
            let begins_set = match byte {
                b']' if !is_first => {
                    self.push(b']');
                    return Ok(());
                }
                b'[' if self.rest().starts_with(b":") && self.rest().windows(2).any(|two| two == b":]") => {
                    self.push(b'[');
                    while let Some(byte) = self.next() {
                        self.push(byte);
                        if byte == b']' {
                            break;
                        }
                    }
                    true
                }
                b'\\' => {
                    let is_set = matches!(self.peek(), Some(b'd' | b'D' | b's' | b'S' | b'w' | b'W' | b'h'));
                    if self.peek() == Some(b'b') {
                        self.at += 1;
                        self.out.push_str("\\x08");
                    } else {
                        self.escape(Within::Class)?;
                    }
                    is_set
                }
                b'-' => {
                    let ends_set = self.rest().starts_with(b"\\")
                        && matches!(self.rest().get(1), Some(b'd' | b'D' | b's' | b'S' | b'w' | b'W'));
                    if is_first || is_set || ends_set || self.peek() == Some(b']') {
                        self.out.push_str("\\-");
                    } else {
                        self.push(b'-');
                    }
                    false
                }
                b'[' | b']' | b'&' | b'~' => {
                    self.push(b'\\');
                    self.push(byte);
                    false
                }
                _ => {
                    self.push(byte);
                    false
                }
            };
            is_set = begins_set;
            is_first = false;
        }
    }
}

/// Position of an escape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Pattern,
    Class,
}

/// Length of the bounds of a counted repetition with its last brace, if `rest` begins with some.
fn counted(rest: &[u8]) -> Option<usize> {
    let end = rest.iter().position(|byte| *byte == b'}')?;
    let bounds = rest.get(..end)?;
    let commas = bounds.iter().filter(|byte| **byte == b',').count();
    let has_digit = bounds.iter().any(u8::is_ascii_digit);
    let is_counted =
        commas <= 1 && has_digit && bounds.iter().all(|byte| byte.is_ascii_digit() || *byte == b',');
    is_counted.then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_of_pcre_is_translated() {
        let cases: &[(&[u8], &[u8], bool)] = &[
            (b"a{", b"xa{", true),
            (b"^[\\w-.]+$", b"a-b.c", true),
            (b"^[[]$", b"[", true),
            (b"^[^]]$", b"]", false),
            (b"a.b", b"a\nb", true),
            (b"a$", b"a\n", false),
            (b"\\/\\_\\\"", b"/_\"", true),
            (b"^[a&&b]+$", b"&ab", true),
            (b"\\x5c\\0", b"\\\0", true),
            (b"^\\Qa.b\\E$", b"a.b", true),
            (b"\xe4", b"\xe4", true),
            (b"x{2,3}?y", b"xxy", true),
            (b"^a}]$", b"a}]", true),
            (b"^[a\\x{fe}-\\x{ff}]$", b"\xff", true),
        ];
        for (pattern, value, expected) in cases {
            let (regex, _) = compile(pattern).unwrap();
            assert_eq!(regex.is_match(*value), *expected, "{}", String::from_utf8_lossy(pattern));
        }
    }

    #[test]
    fn expressions_without_a_linear_engine_are_refused() {
        for pattern in
            [&b"a(?=b)"[..], b"(?<!a)b", b"(a)\\1", b"(?>a)", b"a++", b"a{1,2}+", b"a\\", b"[a", b"(a"]
        {
            assert!(compile(pattern).is_err(), "{}", String::from_utf8_lossy(pattern));
        }
    }
}
