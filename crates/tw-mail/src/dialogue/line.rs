//! Lines of POP3 and SMTP: a command and its arguments, separated by blanks.

use std::ops::Range;

use super::input::Input;

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// Bytes of the line in the input, without the line end.
    pub text: Range<usize>,
    /// Bytes of the line with the line end.
    pub len: usize,
}

/// Finds the first line of the input; `None` if its end has not arrived. `scanned` are the bytes that were looked at before.
pub fn find_line(input: &Input, scanned: &mut usize) -> Option<CommandLine> {
    let bytes = input.bytes();
    let rest = bytes.get(*scanned..).unwrap_or_default();
    let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
        *scanned = bytes.len();
        return None;
    };
    let end = *scanned + at;
    *scanned = 0;
    let text = bytes.get(..end).unwrap_or_default();
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    Some(CommandLine { text: 0..text.len(), len: end + 1 })
}

/// Words of a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Words<'a> {
    /// The command, in letters of any case.
    pub command: &'a [u8],
    /// The arguments.
    pub args: Vec<&'a [u8]>,
}

/// Splits a line into its command and at most `args_max` arguments. For a command of which `is_rest` says so, everything behind the
/// blanks is one argument. `None` if the line is no command.
pub fn split<'a>(line: &'a [u8], args_max: usize, is_rest: impl Fn(&[u8]) -> bool) -> Option<Words<'a>> {
    // A carriage return stands only at the end of a line.
    if line.contains(&b'\r') {
        return None;
    }
    let len = line.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let (command, rest) = line.split_at_checked(len)?;
    if command.is_empty() || !(rest.is_empty() || rest.starts_with(b" ")) {
        return None;
    }
    if is_rest(command) {
        let arg = rest.trim_ascii_start_blanks();
        let args = if arg.is_empty() { Vec::new() } else { vec![arg] };
        return Some(Words { command, args });
    }
    let args = words(rest, args_max)?;
    Some(Words { command, args })
}

/// The words of a text, `max` at most.
pub fn words(text: &[u8], max: usize) -> Option<Vec<&[u8]>> {
    let words: Vec<_> = text.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    (words.len() <= max).then_some(words)
}

/// Blanks at the beginning of a text.
trait Blanks {
    /// The text without them.
    fn trim_ascii_start_blanks(&self) -> &Self;
}

impl Blanks for [u8] {
    fn trim_ascii_start_blanks(&self) -> &Self {
        let blanks = self.iter().take_while(|byte| **byte == b' ').count();
        self.get(blanks..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_a_line_feed() {
        let mut input = Input::new(64);
        let mut scanned = 0;
        input.push(b"NOOP");
        assert_eq!(find_line(&input, &mut scanned), None);
        assert_eq!(scanned, 4);
        input.push(b"\r");
        assert_eq!(find_line(&input, &mut scanned), None);
        input.push(b"\nQUIT\n");
        assert_eq!(find_line(&input, &mut scanned), Some(CommandLine { text: 0..4, len: 6 }));
        input.consume(6);
        assert_eq!(find_line(&input, &mut scanned), Some(CommandLine { text: 0..4, len: 5 }));
    }

    #[test]
    fn words_of_commands() {
        let is_rest = |command: &[u8]| command.eq_ignore_ascii_case(b"PASS");
        let split = |line: &'static str| {
            split(line.as_bytes(), 2, is_rest).map(|words| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (text(words.command), words.args.iter().map(|arg| text(arg)).collect::<Vec<_>>())
            })
        };
        let command = |name: &str, args: &[&str]| {
            Some((name.to_owned(), args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>()))
        };
        for (line, expected) in [
            ("NOOP", command("NOOP", &[])),
            ("noop  ", command("noop", &[])),
            ("AUTH PLAIN  abc", command("AUTH", &["PLAIN", "abc"])),
            ("AUTH a b c", None),
            ("PASS  two words ", command("PASS", &["two words "])),
            ("pass", command("pass", &[])),
            ("", None),
            (" NOOP", None),
            ("NO-OP", None),
            ("NOOP\rX", None),
            ("USER a\rb", None),
        ] {
            assert_eq!(split(line), expected, "{line:?}");
        }
    }
}
