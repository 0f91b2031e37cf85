//! Message as the operator sees it: nginx's line, and below it the text it is about.
//!
//! ```text
//! tailwater: [emerg] unknown directive "servr_name" in /etc/nginx/nginx.conf:12
//!     12 |     servr_name example.org;
//!        |     ^^^^^^^^^^
//!        = did you mean "server_name"?
//! ```

use crate::error::{ConfError, Level};
use crate::narrow::narrowed;
use crate::span::{Sources, Span};
use std::fmt::{self, Write as _};

/// The most characters of a source line that are shown.
const MAX_SHOWN: usize = 100;
/// Largest number of columns shown before the place, if the line is longer.
const MAX_BEFORE: usize = 40;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const BLUE: &str = "\x1b[1;34m";
const PLAIN: &str = "\x1b[0m";

/// A message with the texts it points into. `Display` is the one line of nginx: `tailwater: [emerg] … in PATH:3`.
#[derive(Clone, Copy, Debug)]
pub struct Diagnostic<'a> {
    /// The message.
    pub error: &'a ConfError,
    /// The texts of the configuration.
    pub sources: &'a Sources,
}

impl fmt::Display for Diagnostic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tailwater: [{}] {}", self.error.level.word(), self.error.line(self.sources))
    }
}

impl Diagnostic<'_> {
    /// Line with the quoted source below it: for files, pipes and journals.
    pub fn plain(&self) -> String {
        let mut out = self.to_string();
        self.below(false, &mut out);
        out
    }

    /// The line, the source line with the place marked, and the hint; without a line end after the last.
    ///
    /// Control characters of the source are replaced, so that a file cannot steer the terminal.
    pub fn terminal(&self, colour: bool) -> String {
        let paint = |code: &'static str| if colour { code } else { "" };
        let mark = paint(self.colour());
        let plain = paint(PLAIN);
        let mut out = format!(
            "tailwater: {mark}[{}]{plain} {}{}{plain}",
            self.error.level.word(),
            paint(BOLD),
            printable(self.error.line(self.sources).as_bytes())
        );
        self.below(colour, &mut out);
        out
    }

    fn colour(&self) -> &'static str {
        match self.error.level {
            Level::Emerg | Level::Crit => RED,
            Level::Warn => YELLOW,
            Level::Notice => BLUE,
        }
    }

    /// Adds the source line and the hint, each with the line end before it.
    fn below(&self, colour: bool, out: &mut String) {
        let paint = |code: &'static str| if colour { code } else { "" };
        let mark = paint(self.colour());
        let plain = paint(PLAIN);
        let place = narrowed(self.error, self.sources);
        let shown = place.and_then(|span| Shown::new(self.sources, span));
        let (number, width) = match &shown {
            Some(shown) => (shown.line.to_string(), shown.line.to_string().len() + 4),
            None => (String::new(), 3),
        };
        let dim = paint(BLUE);
        // Writing into a String does not fail.
        if let Some(shown) = shown {
            let text = shown.text;
            let before = " ".repeat(shown.before);
            let carets = "^".repeat(shown.size);
            let _ = write!(out, "\n{dim}{number:>width$} |{plain} {text}");
            let _ = write!(out, "\n{dim}{:>width$} |{plain} {before}{mark}{carets}{plain}", "");
        }
        if let Some(hint) = &self.error.hint {
            let _ = write!(out, "\n{dim}{:>width$} ={plain} {}", "", printable(hint.as_bytes()));
        }
    }
}

/// A source line ready to be printed, and the place in it.
struct Shown {
    /// The number of the line, counted from 1.
    line: usize,
    text: String,
    /// Characters before the place.
    before: usize,
    /// Characters of the place, at least 1.
    size: usize,
}

impl Shown {
    fn new(sources: &Sources, span: Span) -> Option<Self> {
        let text = &sources.file(span.file)?.text;
        let start = (span.start as usize).min(text.len());
        let line_start = text[..start].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let line_end =
            text[start..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |size| start + size);
        let end = (span.end as usize).clamp(start, line_end);

        let line = text[..start].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let before = printable(&text[line_start..start]);
        let place = printable(&text[start..end]);
        let after = printable(text[end..line_end].trim_ascii_end());

        let chars: Vec<char> = [before.as_str(), &place, &after].concat().chars().collect();
        let mut before = before.chars().count();
        let mut size = place.chars().count().max(1);
        let mut shown = &chars[..];
        if chars.len() > MAX_SHOWN {
            let skip = before.saturating_sub(MAX_BEFORE);
            shown = &chars[skip..chars.len().min(skip + MAX_SHOWN)];
            before -= skip;
            size = size.min(MAX_SHOWN - before);
        }
        Some(Self { line, text: shown.iter().collect(), before, size })
    }
}

/// Bytes as characters of one column each: no control characters, a tab as a space.
fn printable(bytes: &[u8]) -> String {
    let show = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    String::from_utf8_lossy(bytes).chars().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Origin;

    fn terminal(text: &str, start: u32, end: u32, hint: Option<&str>, colour: bool) -> String {
        let mut sources = Sources::default();
        let file = sources.add(Origin::File((*b"/n.conf").into()), text.as_bytes().into());
        let mut error = ConfError::warn("odd").at(Span { file, line: 9, start, end });
        error.hint = hint.map(str::to_owned);
        Diagnostic { error: &error, sources: &sources }.terminal(colour)
    }

    #[test]
    fn places() {
        let table = [
            ("a b;\n", 2, 3, "    1 | a b;\n      |   ^"),
            ("a;\n\tbc d;", 4, 6, "    2 |  bc d;\n      |  ^^"),
            // Of a span of several lines only the first line is shown.
            ("a b\nc;", 0, 6, "    1 | a b\n      | ^^^"),
            // The end of the file is a place without a size.
            ("a", 1, 1, "    1 | a\n      |  ^"),
            ("a\x1b[2J b", 6, 7, "    1 | a\u{fffd}[2J b\n      |       ^"),
            ("", 77, 99, "    1 | \n      | ^"),
        ];
        for (text, start, end, expected) in table {
            let expected = format!("tailwater: [warn] odd in /n.conf:9\n{expected}");
            assert_eq!(terminal(text, start, end, None, false), expected, "{text:?}");
        }
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let text = format!("{}bad{}", "x".repeat(500), "y".repeat(500));
        let out = terminal(&text, 500, 503, None, false);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[1], format!("    1 | {}bad{}", "x".repeat(40), "y".repeat(57)));
        assert_eq!(lines[2], format!("      | {}^^^", " ".repeat(40)));
    }

    #[test]
    fn plain_diagnostic_equals_the_log_line() {
        let mut sources = Sources::default();
        let file = sources.add(Origin::File((*b"/n.conf").into()), (*b"a\x07 b;").into());
        let error = ConfError::new("bad \x07").at(Span { file, line: 1, start: 0, end: 2 });
        let plain = Diagnostic { error: &error, sources: &sources }.plain();
        let expected = "tailwater: [emerg] bad \x07 in /n.conf:1\n    1 | a\u{fffd} b;\n      | ^^";
        assert_eq!(plain, expected);
    }

    #[test]
    fn hints_and_colour() {
        let expected =
            "tailwater: [warn] odd in /n.conf:9\n    1 | a\n      | ^\n      = did you mean \"b\"?";
        assert_eq!(terminal("a", 0, 1, Some("did you mean \"b\"?"), false), expected);

        let coloured = terminal("a", 0, 1, Some("did you mean \"b\"?"), true);
        let mut plain = coloured.clone();
        for code in [BOLD, RED, YELLOW, BLUE, PLAIN] {
            plain = plain.replace(code, "");
        }
        assert!(coloured.contains(YELLOW) && !coloured.contains(RED));
        assert_eq!(plain, expected);
    }
}
