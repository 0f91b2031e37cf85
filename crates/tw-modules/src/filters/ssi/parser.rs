//! Finds the commands of SSI in a text that arrives in pieces: `<!--#name parameter="value" … -->`.
//!
//! ```text
//! text ─ "<!--#" ─► command ─ space ─► parameter ─ "=" ─► value ─ quote ─► … ─ "-->" ─► text
//!                      └──────────── anything unexpected ────────────► error ─ "-->" ─► text
//! ```
//!
//! Each byte is read once. At most one command is held between two pieces, and its size is limited.

/// Longest name of a command, in bytes.
pub(super) const COMMAND_LEN_MAX: usize = 32;
/// Longest name of a parameter, in bytes.
pub(super) const PARAMETER_LEN_MAX: usize = 32;
/// Most parameters of a command that are remembered; a command with more than [`PARAMETERS_MAX`] is refused.
pub(super) const PARAMETERS_MAX: usize = 16;

/// A complete command.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Command {
    /// Name, as written.
    pub(super) name: Vec<u8>,
    /// Names and values of its parameters; the backslashes of values are still there. One more than
    /// [`PARAMETERS_MAX`] stands for all the others.
    pub(super) parameters: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Next element of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SsiToken {
    /// Bytes of `<!--` from pieces before, which were no command, and then the first bytes of this piece.
    Text {
        /// Bytes of `<!--`.
        saved: usize,
        /// Bytes of the piece.
        len: usize,
    },
    /// A command, which is in [`Parser::command`].
    Command,
    /// The end of a command that is none.
    Broken,
}

/// The beginning of a command.
pub(super) const START: &[u8] = b"<!--";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Number of bytes of `<!--` seen; 0 is plain text.
    Text(usize),
    BeforeCommand,
    Command,
    BeforeParameter,
    Parameter,
    BeforeEqual,
    BeforeValue,
    Value(u8),
    /// After a backslash in a value with this quote.
    Escaped(u8),
    AfterValue,
    /// `-` has been seen.
    End1,
    /// `--` has been seen.
    End2,
    Error,
    ErrorEnd1,
    ErrorEnd2,
}

/// A parser for one text.
pub(super) struct Parser {
    state: State,
    /// Longest value, in bytes.
    value_len_max: usize,
    /// The last command.
    pub(super) command: Command,
    /// Error of the command that is being read: a line for the log, in nginx's words.
    pub(super) error: Option<String>,
}

/// Error of a command, and the state after it.
type Failure = (String, State);

impl State {
    /// State after an error at `byte`, which may begin the end of the command.
    fn at_error(byte: u8) -> Self {
        if byte == b'-' { Self::ErrorEnd1 } else { Self::Error }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\r' | b'\n' | b'\t')
}

/// Text for a line of the log.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

impl Parser {
    pub(super) fn new(value_len_max: usize) -> Self {
        Self { state: State::Text(0), value_len_max, command: Command::default(), error: None }
    }

    /// Takes bytes from the beginning of `piece`: returns their number and the token. `None` takes them all.
    pub(super) fn next(&mut self, piece: &[u8]) -> (usize, Option<SsiToken>) {
        if let State::Text(seen_count) = self.state {
            return self.text(piece, seen_count);
        }
        for (at, byte) in piece.iter().enumerate() {
            if let Some(token) = self.inside(*byte) {
                self.state = State::Text(0);
                return (at + 1, Some(token));
            }
        }
        (piece.len(), None)
    }

    /// Text up to the next command or the end of the piece.
    fn text(&mut self, piece: &[u8], before: usize) -> (usize, Option<SsiToken>) {
        // `end` is where the text ends, in front of a possible start mark.
        let mut seen_count = before;
        let mut end = 0;
        let mut at = 0;
        while let Some(byte) = piece.get(at) {
            at += 1;
            let wanted_number = START.get(seen_count);
            if wanted_number == Some(byte) {
                if seen_count == 0 {
                    end = at - 1;
                }
                seen_count += 1;
            } else if seen_count == START.len() && *byte == b'#' {
                let began_before = at <= START.len();
                self.state = State::BeforeCommand;
                self.command = Command::default();
                // A start mark that began in earlier pieces belongs to the command, unless text came in between.
                let saved = if began_before && end == 0 { 0 } else { before };
                let text = SsiToken::Text { saved, len: end };
                return (at, (saved > 0 || end > 0).then_some(text));
            } else if *byte == b'<' {
                (seen_count, end) = (1, at - 1);
            } else {
                seen_count = 0;
                let rest = piece.get(at..).unwrap_or_default();
                at += rest.iter().position(|byte| *byte == b'<').unwrap_or(rest.len());
                end = at;
            }
        }
        self.state = State::Text(seen_count);
        // The bytes held are still the beginning of a possible start mark, or all of them were text.
        let is_still_held = end == 0 && seen_count >= before + piece.len();
        let saved = if is_still_held { 0 } else { before };
        (piece.len(), (saved > 0 || end > 0).then_some(SsiToken::Text { saved, len: end }))
    }

    /// Takes one byte of a command.
    fn inside(&mut self, byte: u8) -> Option<SsiToken> {
        let next = match self.state {
            // Text is not read byte by byte.
            State::Text(_) => return None,
            State::BeforeCommand | State::Command => self.in_name(byte),
            State::BeforeParameter | State::Parameter | State::BeforeEqual => self.in_parameter(byte),
            State::BeforeValue | State::Value(_) | State::Escaped(_) | State::AfterValue => {
                self.in_value(byte)
            }
            State::End2 if byte == b'>' => return Some(SsiToken::Command),
            State::End1 if byte == b'-' => Ok(State::End2),
            State::End1 | State::End2 => {
                let command = shown(&self.command.name);
                let char = char::from(byte);
                Err((format!("unexpected \"{char}\" symbol in \"{command}\" SSI command"), State::Error))
            }
            State::ErrorEnd2 if byte == b'>' => return Some(SsiToken::Broken),
            State::ErrorEnd1 if byte == b'-' => Ok(State::ErrorEnd2),
            State::Error if byte == b'-' => Ok(State::ErrorEnd1),
            State::Error | State::ErrorEnd1 | State::ErrorEnd2 => Ok(State::Error),
        };
        self.state = next.unwrap_or_else(|(error, state)| {
            self.error = Some(error);
            state
        });
        None
    }

    /// Takes a byte of the name of the command, or of the space in front of it.
    fn in_name(&mut self, byte: u8) -> Result<State, Failure> {
        match self.state {
            State::BeforeCommand if is_space(byte) => return Ok(State::BeforeCommand),
            State::BeforeCommand => {}
            _ if is_space(byte) => return Ok(State::BeforeParameter),
            _ if byte == b'-' => return Ok(State::End1),
            _ if self.command.name.len() == COMMAND_LEN_MAX => {
                let name = shown(&self.command.name);
                let char = char::from(byte);
                return Err((format!("the \"{name}{char}...\" SSI command is too long"), State::Error));
            }
            _ => {}
        }
        self.command.name.push(byte);
        Ok(State::Command)
    }

    /// Takes a byte of the name of a parameter, or of what is between it and the command or its `=`.
    fn in_parameter(&mut self, byte: u8) -> Result<State, Failure> {
        let is_space = is_space(byte);
        match self.state {
            State::BeforeParameter if is_space => Ok(State::BeforeParameter),
            State::BeforeParameter if byte == b'-' => Ok(State::End1),
            State::BeforeParameter => {
                // Parameters beyond the maximum overwrite each other.
                self.command.parameters.truncate(PARAMETERS_MAX);
                self.command.parameters.push((vec![byte], Vec::new()));
                Ok(State::Parameter)
            }
            _ if byte == b'=' => Ok(State::BeforeValue),
            _ if is_space => Ok(State::BeforeEqual),
            State::Parameter if byte != b'-' => {
                let name = self.parameter().0.clone();
                if name.len() == PARAMETER_LEN_MAX {
                    let name = shown(&name);
                    let command = shown(&self.command.name);
                    let char = char::from(byte);
                    let error =
                        format!("too long \"{name}{char}...\" parameter in \"{command}\" SSI command");
                    return Err((error, State::Error));
                }
                self.parameter().0.push(byte);
                Ok(State::Parameter)
            }
            _ => {
                let name = shown(&self.parameter().0);
                let command = shown(&self.command.name);
                let char = char::from(byte);
                let error = format!(
                    "unexpected \"{char}\" symbol after \"{name}\" parameter in \"{command}\" SSI command"
                );
                Err((error, State::at_error(byte)))
            }
        }
    }

    /// Takes a byte of a value, of the space in front of it, or the byte behind it.
    fn in_value(&mut self, byte: u8) -> Result<State, Failure> {
        let char = char::from(byte);
        match self.state {
            State::BeforeValue if is_space(byte) => Ok(State::BeforeValue),
            State::BeforeValue if matches!(byte, b'"' | b'\'') => Ok(State::Value(byte)),
            State::BeforeValue => {
                let name = shown(&self.parameter().0);
                let command = shown(&self.command.name);
                let error = format!(
                    "unexpected \"{char}\" symbol before value of \"{name}\" parameter in \"{command}\" SSI command"
                );
                Err((error, State::at_error(byte)))
            }
            State::Value(quote) if byte == quote => Ok(State::AfterValue),
            State::Value(quote) | State::Escaped(quote) => {
                let is_escape = byte == b'\\' && self.state == State::Value(quote);
                let max = self.value_len_max;
                let (name, value) = self.parameter();
                if value.len() == max {
                    let name = shown(name);
                    let value = shown(value);
                    let command = shown(&self.command.name);
                    let error = format!(
                        "too long \"{value}{char}...\" value of \"{name}\" parameter in \"{command}\" SSI command"
                    );
                    return Err((error, State::Error));
                }
                value.push(byte);
                Ok(if is_escape { State::Escaped(quote) } else { State::Value(quote) })
            }
            _ if is_space(byte) => Ok(State::BeforeParameter),
            _ if byte == b'-' => Ok(State::End1),
            _ => {
                let (name, value) = self.parameter();
                let name = shown(name);
                let value = shown(value);
                let command = shown(&self.command.name);
                let error = format!(
                    "unexpected \"{char}\" symbol after \"{value}\" value of \"{name}\" parameter in \"{command}\" \
                     SSI command"
                );
                Err((error, State::Error))
            }
        }
    }

    /// The parameter that is being read.
    fn parameter(&mut self) -> &mut (Vec<u8>, Vec<u8>) {
        let parameters = &mut self.command.parameters;
        if parameters.is_empty() {
            parameters.push(Default::default());
        }
        let last = parameters.len() - 1;
        &mut parameters[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of a text, written down: text as it is, commands in brackets, broken ones as `[!]`.
    fn parsed(text: &str, size: usize) -> (String, Vec<String>) {
        let mut parser = Parser::new(8);
        let mut out = String::new();
        let mut errors = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            let mut rest = piece;
            while !rest.is_empty() {
                let (taken, token) = parser.next(rest);
                match token {
                    Some(SsiToken::Text { saved, len }) => {
                        out.push_str(std::str::from_utf8(&START[..saved]).unwrap());
                        out.push_str(std::str::from_utf8(&rest[..len]).unwrap());
                    }
                    Some(SsiToken::Command) => {
                        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
                        out.push_str(&format!("[{}", shown(&parser.command.name)));
                        for (name, value) in &parser.command.parameters {
                            out.push_str(&format!(" {}={}", shown(name), shown(value)));
                        }
                        out.push(']');
                    }
                    Some(SsiToken::Broken) => out.push_str("[!]"),
                    None => {}
                }
                errors.extend(parser.error.take());
                rest = &rest[taken..];
            }
        }
        (out, errors)
    }

    #[test]
    fn commands_however_the_text_is_split() {
        let long = "x".repeat(33);
        let table = [
            ("", "", ""),
            ("plain < text <! and <!- and <!-- and <!--x", "plain < text <! and <!- and <!-- and <!--x", ""),
            ("<<<!<!-<!--<!--#a-->", "<<<!<!-<!--[a]", ""),
            ("a<!--#echo var=\"x\" -->b", "a[echo var=x]b", ""),
            ("<!--# \n echo\tvar = 'x'\r\ndefault='\"' -->", "[echo var=x default=\"]", ""),
            ("<!--#else--><!--#endif -->", "[else][endif]", ""),
            ("<!--#set var='a' value='\\'\\\\b' -->", "[set var=a value=\\'\\\\b]", ""),
            ("<!--#a b='c'-->d", "[a b=c]d", ""),
            ("<!--#a b='-->' -->", "[a b=-->]", ""),
            ("<!--#a b -->c", "[!]c", "unexpected \"-\" symbol after \"b\" parameter in \"a\" SSI command"),
            ("<!--#a b-->c", "[!]c", "unexpected \"-\" symbol after \"b\" parameter in \"a\" SSI command"),
            ("<!--#a b c -->", "[!]", "unexpected \"c\" symbol after \"b\" parameter in \"a\" SSI command"),
            (
                "<!--#a b=c -->",
                "[!]",
                "unexpected \"c\" symbol before value of \"b\" parameter in \"a\" SSI command",
            ),
            (
                "<!--#a b='c'd -->",
                "[!]",
                "unexpected \"d\" symbol after \"c\" value of \"b\" parameter in \"a\" SSI command",
            ),
            ("<!--#a -x -->", "[!]", "unexpected \"x\" symbol in \"a\" SSI command"),
            ("<!--#a --- -->", "[!]", "unexpected \"-\" symbol in \"a\" SSI command"),
            (
                "<!--#a b='123456789' -->",
                "[!]",
                "too long \"123456789...\" value of \"b\" parameter in \"a\" SSI command",
            ),
            ("<!--#a b='12345678' -->", "[a b=12345678]", ""),
            ("<!--#a ", "", ""),
            ("<!--#", "", ""),
            ("a<!-", "a", ""),
        ];
        for (text, expected, error) in table {
            for size in 1..=text.len().max(1) {
                let (out, errors) = parsed(text, size);
                assert_eq!(out, expected, "{text} by {size}");
                assert_eq!(errors.join(", "), error, "{text} by {size}");
            }
        }
        let (out, errors) = parsed(&format!("<!--#{long} -->"), 7);
        assert_eq!((&*out, errors), ("[!]", vec![format!("the \"{long}...\" SSI command is too long")]));
        let (out, errors) = parsed(&format!("<!--#a {long}='' -->"), 7);
        assert_eq!((&*out, errors.len()), ("[!]", 1));
    }

    #[test]
    fn split_input_parses_like_whole_input() {
        // A small generator with a fixed seed.
        let mut seed = 11_u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        let parts = [
            "<", "!", "-", "--", "#", "<!--", "<!--#", "-->", "a", " ", "=", "\"", "'", "\\", " b='c' ", "x",
        ];
        for _ in 0..5000 {
            let text: String = (0..random(12)).map(|_| parts[random(16) as usize]).collect();
            let whole = parsed(&text, text.len().max(1));
            for size in [1, 2, 3, 5] {
                assert_eq!(parsed(&text, size), whole, "{text} by {size}");
            }
            if !text.contains("<!--#") && !text.ends_with(['<', '!', '-']) {
                assert_eq!(whole.0, text);
            }
        }
    }

    #[test]
    fn hostile_texts_are_read_once() {
        for text in ["<!--#", "<!--", "<", "<!--#a -->", "<!--# a='\\", "<!--#x y='1' "] {
            let text = text.repeat(200_000);
            assert!(parsed(&text, 4096).0.len() <= text.len());
        }
        let many = format!("<!--#a {} -->", "b='' ".repeat(100_000));
        assert!(parsed(&many, 4096).0.starts_with("[a b="));
    }
}
