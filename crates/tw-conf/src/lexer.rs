//! Lexer: bytes to words and the ends of directives.
//!
//! A directive is a run of words ended by `;` or `{`. Blanks separate words, `#` at the start of a word begins a
//! comment, quotes keep blanks, `\` keeps the next byte from having a meaning, and a `{` after `$` belongs to the
//! word. Source: nginx 1.31, `ngx_conf_read_token`; the limit on a word and its odd edges are nginx's too.

use crate::advice::{line_of, unfinished};
use crate::error::ConfError;
use crate::lua::end_of_block;
use crate::span::Span;
use crate::tree::Word;
use std::sync::Arc;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of one word of a configuration.
    ///
    /// Largest length of one word with its end: nginx's read buffer.
    pub const MAX_PARAMETER_SIZE: usize = 4096, bytes, "the configuration is refused";
}

/// Bytes that have no meaning of their own: neither blanks nor ends of lines, quotes, braces, `;`, `#`, `$` or `\\`.
const IS_PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let special = b" \t\r\n\"'{};#$\\";
    let mut at = 0;
    while at < special.len() {
        plain[special[at] as usize] = false;
        at += 1;
    }
    plain
};

/// Item that the lexer found.
#[derive(Debug)]
pub(crate) enum Item {
    /// At least one word.
    Directive {
        /// The name and the arguments.
        words: Vec<Word>,
        /// Ended by `{`, not by `;`.
        opens: bool,
        /// The byte that ended it.
        end: Span,
    },
    /// A `}`.
    Close(Span),
    /// The end of the text.
    End(Span),
}

/// Reads one text.
pub(crate) struct Lexer {
    text: Arc<[u8]>,
    file: u32,
    /// True for the text of `-g`, which ends differently and has no limit on words.
    is_param: bool,
    pos: usize,
    line: u32,
    /// Unquoted words of the last directive with a quantifier in braces.
    bare_quantifiers: Vec<Span>,
}

impl Lexer {
    pub(crate) fn new(text: Arc<[u8]>, file: u32, is_param: bool) -> Self {
        Self { text, file, is_param, pos: 0, line: 1, bare_quantifiers: Vec::new() }
    }

    /// Errors of the last directive that do not keep its words from being read.
    pub(crate) fn take_errors(&mut self) -> Vec<ConfError> {
        let text = Arc::clone(&self.text);
        let spans = std::mem::take(&mut self.bare_quantifiers).into_iter();
        spans
            .map(|span| {
                let word = String::from_utf8_lossy(&text[span.start as usize..span.end as usize]);
                ConfError::new(format!("unexpected \"{{\" in \"{word}\""))
                    .at(span)
                    .hint(format!("a regular expression with braces must be in quotes: \"{word}\""))
            })
            .collect()
    }

    /// Passes a block of Lua, whose `{` was the last byte, and returns the place of its `}`.
    pub(crate) fn skip_lua(&mut self, name: &Word) -> Result<Span, ConfError> {
        let Some(end) = end_of_block(&self.text, self.pos) else {
            let error = ConfError::new("unexpected end of file, expecting \"}\"").at(name.span);
            return Err(error.hint(format!("the block of Lua of \"{name}\" is never closed")));
        };
        while self.pos < end {
            self.bump();
        }
        let close = self.here(1);
        self.bump();
        Ok(close)
    }

    /// Size of a quantifier such as `{8,}` at the current byte.
    fn quantifier(&self) -> Option<usize> {
        let rest = self.text[self.pos..].strip_prefix(b"{")?;
        let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let least = Some(digits(rest)).filter(|count| *count > 0)?;
        let most = match rest.get(least) {
            Some(b',') => 1 + digits(&rest[least + 1..]),
            _ => 0,
        };
        (rest.get(least + most) == Some(&b'}')).then_some(least + most + 2)
    }

    /// Next directive or brace. Must not be called after an error or `End`.
    pub(crate) fn next(&mut self) -> Result<Item, ConfError> {
        let mut words = Vec::new();
        loop {
            let start = self.pos;
            let Some(byte) = self.peek() else {
                return match words.last() {
                    None => Ok(Item::End(self.here(0))),
                    Some(last) => Err(unfinished(self.unexpected_end(), last, false, &self.text)),
                };
            };
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.skip_blanks(),
                b'#' => self.comment()?,
                b';' | b'{' | b'}' if words.is_empty() != (byte == b'}') => {
                    let error = self.unexpected(byte);
                    return Err(match words.last() {
                        Some(last) => unfinished(error, last, false, &self.text),
                        None => error,
                    });
                }
                b';' | b'{' => {
                    let end = self.here(1);
                    self.bump();
                    return Ok(Item::Directive { words, opens: byte == b'{', end });
                }
                b'}' => {
                    let end = self.here(1);
                    self.bump();
                    return Ok(Item::Close(end));
                }
                b'"' | b'\'' => words.push(self.quoted(byte)?),
                _ => words.push(self.unquoted(start)?),
            }
        }
    }

    /// Skips blanks and ends of lines.
    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.bump();
        }
    }

    /// Skips bytes of a word, up to its limit, that have no meaning of their own anywhere in a configuration. Most bytes have
    /// none, and need no look one by one.
    fn skip_plain(&mut self, started: &Start) {
        let end = if self.is_param {
            self.text.len()
        } else {
            self.text.len().min(started.pos + MAX_PARAMETER_SIZE)
        };
        let rest = self.text.get(self.pos..end).unwrap_or_default();
        self.pos += rest.iter().take_while(|byte| IS_PLAIN[usize::from(**byte)]).count();
    }

    /// Skips to the end of the line.
    fn comment(&mut self) -> Result<(), ConfError> {
        let started = Start { pos: self.pos, line: self.line, quote: None };
        while self.peek_within(&started)?.is_some_and(|byte| byte != b'\n') {
            self.bump();
            self.skip_plain(&started);
        }
        Ok(())
    }

    /// Reads a quoted word. It must be followed by a blank, the end of the directive, or a `)`, which begins a new
    /// word.
    fn quoted(&mut self, quote: u8) -> Result<Word, ConfError> {
        let mut started = Start { pos: self.pos + 1, line: self.line, quote: Some(quote) };
        self.bump();
        loop {
            match self.peek_within(&started)? {
                None => return Err(self.unclosed(self.unexpected_end(), &started)),
                Some(byte) if byte == quote => break,
                Some(b'\\') => self.bump_escaped(&started)?,
                Some(_) => {
                    self.bump();
                    self.skip_plain(&started);
                }
            }
        }
        let word = self.word(&started, true);
        self.bump();

        started.quote = None;
        match self.peek_within(&started)? {
            None => return Err(self.unexpected_end()),
            Some(b' ' | b'\t' | b'\r' | b'\n') => {
                self.bump();
                self.peek_within(&started)?;
            }
            Some(b';' | b'{' | b')') => {}
            Some(other) => {
                let hint = "after the closing quote, a blank or \";\" must follow";
                return Err(self.unexpected(other).hint(hint));
            }
        }
        Ok(word)
    }

    /// Reads an unquoted word, up to a blank, `;` or `{`.
    fn unquoted(&mut self, start: usize) -> Result<Word, ConfError> {
        let started = Start { pos: start, line: self.line, quote: None };
        let mut after_dollar = false;
        let mut has_quantifier = false;
        let word = loop {
            match self.peek_within(&started)? {
                None => return Err(self.unexpected_end()),
                Some(b'{') if after_dollar => {
                    self.bump();
                    continue;
                }
                Some(b' ' | b'\t' | b'\r' | b'\n') => {
                    let word = self.word(&started, false);
                    self.bump();
                    self.peek_within(&started)?;
                    break word;
                }
                // No directive begins with "8}", so this is a quantifier and not a block.
                Some(b'{') if self.quantifier().is_some() => {
                    has_quantifier = true;
                    self.pos += self.quantifier().unwrap_or(1);
                }
                Some(b';' | b'{') => break self.word(&started, false),
                Some(b'\\') => {
                    after_dollar = false;
                    self.bump_escaped(&started)?;
                }
                Some(b'$') => {
                    after_dollar = true;
                    self.bump();
                }
                Some(_) => {
                    after_dollar = false;
                    self.bump();
                    self.skip_plain(&started);
                }
            }
        };
        if has_quantifier {
            self.bare_quantifiers.push(word.span);
        }
        Ok(word)
    }

    /// The word from its start to the current byte.
    fn word(&self, started: &Start, quoted: bool) -> Word {
        let raw = &self.text[started.pos..self.pos];
        let bytes = if raw.contains(&b'\\') { unescape(raw).into() } else { raw.into() };
        let span =
            Span { file: self.file, line: started.line, start: started.pos as u32, end: self.pos as u32 };
        Word { bytes, span, quoted }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.pos).copied()
    }

    /// The next byte, unless the word has used up its buffer.
    fn peek_within(&self, started: &Start) -> Result<Option<u8>, ConfError> {
        let byte = self.peek();
        if byte.is_none() || self.is_param || self.pos - started.pos < MAX_PARAMETER_SIZE {
            return Ok(byte);
        }
        let span = Span {
            file: self.file,
            line: started.line,
            start: started.pos as u32,
            end: started.pos as u32 + 10,
        };
        let message = match started.quote {
            Some(quote) => {
                format!("too long parameter, probably missing terminating \"{}\" character", quote as char)
            }
            None => {
                let head = String::from_utf8_lossy(&self.text[started.pos..started.pos + 10]);
                format!("too long parameter \"{head}...\" started")
            }
        };
        let error = ConfError::new(message).at(span);
        Err(if started.quote.is_some() { self.unclosed(error, started) } else { error })
    }

    /// The hint for a quote that is never closed. The message keeps its line.
    fn unclosed(&self, error: ConfError, started: &Start) -> ConfError {
        let Some(span) = error.span else { return error };
        let start = started.pos as u32 - 1;
        let line = line_of(&self.text, started.pos - 1);
        error
            .at(Span { start, end: start + 1, ..span })
            .hint(format!("this quote, in line {line}, is never closed"))
    }

    fn bump(&mut self) {
        if self.text[self.pos] == b'\n' {
            self.line += 1;
        }
        self.pos += 1;
    }

    /// Passes a `\` and the byte it protects.
    fn bump_escaped(&mut self, started: &Start) -> Result<(), ConfError> {
        self.bump();
        if self.peek_within(started)?.is_some() {
            self.bump();
        }
        Ok(())
    }

    /// The current place, `size` bytes long.
    fn here(&self, size: u32) -> Span {
        let start = self.pos as u32;
        Span { file: self.file, line: self.line, start, end: start + size }
    }

    fn unexpected(&self, byte: u8) -> ConfError {
        let shown = String::from_utf8_lossy(&[byte]).into_owned();
        ConfError::new(format!("unexpected \"{shown}\"")).at(self.here(1))
    }

    fn unexpected_end(&self) -> ConfError {
        let message = if self.is_param {
            "unexpected end of parameter, expecting \";\""
        } else {
            "unexpected end of file, expecting \";\" or \"}\""
        };
        ConfError::new(message).at(self.here(0))
    }
}

/// Start of a word or comment, for its span and its limit.
struct Start {
    pos: usize,
    line: u32,
    quote: Option<u8>,
}

/// Resolves `\"`, `\'`, `\\`, `\t`, `\r` and `\n`; every other backslash stays.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let resolved = match (byte, after.first()) {
            (b'\\', Some(&next @ (b'"' | b'\'' | b'\\'))) => Some(next),
            (b'\\', Some(b't')) => Some(b'\t'),
            (b'\\', Some(b'r')) => Some(b'\r'),
            (b'\\', Some(b'n')) => Some(b'\n'),
            _ => None,
        };
        if resolved.is_some() {
            rest = &after[1..];
        }
        bytes.push(resolved.unwrap_or(byte));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every item as text: words in `<>`, `!` after a quoted one.
    fn items(text: &[u8], is_param: bool) -> String {
        let mut lexer = Lexer::new(text.into(), 0, is_param);
        let mut out = Vec::new();
        loop {
            match lexer.next() {
                Ok(Item::Directive { words, opens, end }) => {
                    let words: Vec<String> = words
                        .iter()
                        .map(|word| format!("<{word}>{}", if word.quoted { "!" } else { "" }))
                        .collect();
                    out.push(format!("{}{}@{}", words.join(""), if opens { '{' } else { ';' }, end.line));
                }
                Ok(Item::Close(end)) => out.push(format!("}}@{}", end.line)),
                Ok(Item::End(_)) => return out.join(" "),
                Err(error) => {
                    out.push(format!("{error}@{}", error.span.unwrap().line));
                    return out.join(" ");
                }
            }
        }
    }

    #[test]
    fn words_and_braces() {
        let table: [(&str, &str); 34] = [
            ("", ""),
            (" \t\r\n", ""),
            ("# comment", ""),
            ("# comment\na;# more\nb;", "<a>;@2 <b>;@3"),
            ("a#b;", "<a#b>;@1"),
            ("a b\nc;", "<a><b><c>;@2"),
            ("a{b;}", "<a>{@1 <b>;@1 }@1"),
            ("a b};", "<a><b}>;@1"),
            ("a \"b c\" 'd e';", "<a><b c>!<d e>!;@1"),
            ("a \"\" '';", "<a><>!<>!;@1"),
            ("a b\"c d\"e;", "<a><b\"c><d\"e>;@1"),
            ("'a' b;", "<a>!<b>;@1"),
            ("a ${b}c;", "<a><${b}c>;@1"),
            ("a ${{b;", "<a><${{b>;@1"),
            ("a x${b}{", "<a><x${b}>{@1"),
            ("a $b{", "<a><$b>{@1"),
            ("a $\\{b;", "<a><$\\{b>;@1"),
            ("a \\{b\\;c\\ d;", "<a><\\{b\\;c\\ d>;@1"),
            ("a \\\"b;", "<a><\"b>;@1"),
            ("a \"b\\\"c\\'d\\\\e\\t\\r\\n\\.f\";", "<a><b\"c'd\\e\t\r\n\\.f>!;@1"),
            ("a b\\\"c\\'d\\\\e\\t\\r\\n\\.f;", "<a><b\"c'd\\e\t\r\n\\.f>;@1"),
            ("if ($a = \"b\") {", "<if><($a><=><b>!<)>{@1"),
            ("a 'b\nc' d\n;", "<a><b\nc>!<d>;@3"),
            ("a \"b\"c;", "unexpected \"c\"@1"),
            ("a \"b\"}", "unexpected \"}\"@1"),
            ("\n;", "unexpected \";\"@2"),
            ("{", "unexpected \"{\"@1"),
            ("a }", "unexpected \"}\"@1"),
            ("}", "}@1"),
            ("a\n\n", "unexpected end of file, expecting \";\" or \"}\"@3"),
            ("a", "unexpected end of file, expecting \";\" or \"}\"@1"),
            ("a \"b", "unexpected end of file, expecting \";\" or \"}\"@1"),
            ("a \"b\"", "unexpected end of file, expecting \";\" or \"}\"@1"),
            ("a b\\", "unexpected end of file, expecting \";\" or \"}\"@1"),
        ];
        for (text, expected) in table {
            assert_eq!(items(text.as_bytes(), false), expected, "{text:?}");
        }
    }

    #[test]
    fn command_line() {
        let end = "unexpected end of parameter, expecting \";\"@1";
        assert_eq!(items(b"daemon off; pid", true), format!("<daemon><off>;@1 {end}"));
        let long = "x".repeat(2 * MAX_PARAMETER_SIZE);
        assert_eq!(items(format!("{long};").as_bytes(), true), format!("<{long}>;@1"));
    }

    #[test]
    fn invalid_utf8_is_kept() {
        let mut lexer = Lexer::new((*b"a \xff\x00\xfe;").into(), 0, false);
        let Ok(Item::Directive { words, .. }) = lexer.next() else { panic!("no directive") };
        assert_eq!(*words[1].bytes, *b"\xff\x00\xfe");
        assert_eq!((words[1].span.start, words[1].span.end), (2, 5));
    }

    /// The longest words that pass, and their neighbours that do not; verified against nginx 1.31.5.
    #[test]
    fn limit_of_a_word() {
        let long = |size: usize| "x".repeat(size);
        let passes = |text: String| !items(text.as_bytes(), false).contains("too long");
        let table = [
            (format!("{};", long(4095)), true),
            (format!("{};", long(4096)), false),
            (format!("{} ;", long(4094)), true),
            (format!("{} ;", long(4095)), false),
            (format!("'{}';", long(4094)), true),
            (format!("'{}';", long(4095)), false),
            (format!("'{}' ;", long(4093)), true),
            (format!("'{}' ;", long(4094)), false),
            (format!("#{}\n", long(4094)), true),
            (format!("#{}\n", long(4095)), false),
            (format!("a {};", " ".repeat(9999)), true),
        ];
        for (text, expected) in table {
            assert_eq!(passes(text.clone()), expected, "{} bytes: {}", text.len(), &text[..3]);
        }
        assert_eq!(
            items(format!("\n\n{};", long(5000)).as_bytes(), false),
            "too long parameter \"xxxxxxxxxx...\" started@3"
        );
        assert_eq!(
            items(format!("\n\"\n{}", long(5000)).as_bytes(), false),
            "too long parameter, probably missing terminating \"\"\" character@2"
        );
    }
}
