//! IMAP up to the login (RFC 9051), without I/O: tagged commands whose arguments are atoms, quoted strings and literals.
//!
//! ```text
//! tag ─► command ─► blanks ─┬─► atom ────────────────────────┬─► blanks, or the end of the command
//!                           ├─► "quoted" ────────────────────┤
//!                           └─► {n} ─► "+ OK" ─► n bytes ────┘
//! ```
//! A command stays in the input until it is complete, so that its size is bounded by that of the input. Its bytes are looked at once.

use std::ops::Range;

use super::auth_method::AuthMethod;
use super::facts::DialogueFacts;
use super::input::Input;
use super::login::Login;
use super::sasl::{self, Expected, SaslStep, is_valid};
use super::step::{ErrorCount, Next, Step, too_long};
use crate::secret::Secret;

const NEXT: &[u8] = b"+ OK\r\n";
const COMPLETED: &str = "OK completed\r\n";
const INVALID: &str = "BAD invalid command\r\n";
const BYE: &[u8] = b"* BYE\r\n";
/// Bytes of a tag at most.
const TAG_MAX: usize = 32;
/// Bytes of a command's name at most: `AUTHENTICATE` is the longest one.
const NAME_MAX: usize = 12;
/// Arguments of a command at most.
const ARGS_MAX: usize = 3;

/// Dialogue with a client of IMAP.
#[derive(Default)]
pub struct ImapDialogue {
    expected: Expected,
    scanner: Scanner,
    errors: ErrorCount,
}

/// Position in a command of which a part has arrived.
#[derive(Default)]
struct Scanner {
    state: ScanState,
    /// Bytes of the input that were looked at.
    at: usize,
    /// Begin of the part that is looked at.
    start: usize,
    tag: Range<usize>,
    name: Range<usize>,
    args: Vec<Argument>,
}

/// An argument in the input.
struct Argument {
    text: Range<usize>,
    /// True for a quoted string, in which a backslash stands before a quote or another backslash.
    is_quoted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ScanState {
    #[default]
    Tag,
    BeforeName,
    Name,
    BeforeArgument,
    Atom,
    Quoted,
    Escaped,
    /// Digits in braces.
    LiteralSize(usize),
    /// The brace behind a size with a plus: the client does not wait.
    LiteralPlus(usize),
    /// The end of the line behind a size.
    LiteralEnd {
        size: usize,
        is_waiting: bool,
    },
    /// Bytes of a literal that are missing.
    Literal(usize),
    /// Behind a literal.
    AfterLiteral,
    /// The line feed at the end of the command.
    LineFeed,
    /// A line that is no command, up to its end.
    Invalid,
}

/// Result of looking at the input.
#[derive(Debug, PartialEq, Eq)]
enum Scanned {
    /// The command is incomplete.
    Incomplete,
    /// The client waits for a sign to send a literal.
    LiteralFollows,
    /// A command of so many bytes.
    Command(usize),
    /// No command, in so many bytes.
    Invalid(usize),
}

impl Scanner {
    /// Looks at the bytes that have arrived since the last time.
    fn scan(&mut self, bytes: &[u8]) -> Scanned {
        while let Some(&byte) = bytes.get(self.at) {
            let at = self.at;
            self.at += 1;
            match self.state.step(byte, at, self) {
                Ok(Event::Nothing) => {}
                Ok(Event::LiteralFollows) => return Scanned::LiteralFollows,
                Ok(Event::End) => return Scanned::Command(self.at),
                Err(NoCommand) => {
                    self.state = ScanState::Invalid;
                    if byte == b'\n' {
                        return Scanned::Invalid(self.at);
                    }
                }
            }
        }
        Scanned::Incomplete
    }

    /// Begins a word.
    fn begin(&mut self, at: usize, state: ScanState) {
        self.start = at;
        self.state = state;
    }

    /// Ends an argument.
    fn end_argument(&mut self, end: usize, is_quoted: bool) {
        self.args.push(Argument { text: self.start..end, is_quoted });
    }

    /// State behind a word that ended with `byte`.
    fn after_word(&mut self, byte: u8) -> Result<Event, NoCommand> {
        match byte {
            b' ' => self.state = ScanState::BeforeArgument,
            b'\r' => self.state = ScanState::LineFeed,
            b'\n' => return Ok(Event::End),
            _ => return Err(NoCommand),
        }
        Ok(Event::Nothing)
    }
}

/// Event while a command is scanned.
enum Event {
    Nothing,
    LiteralFollows,
    End,
}

/// The line is no command.
struct NoCommand;

impl ScanState {
    /// Takes in the byte at a position.
    fn step(self, byte: u8, at: usize, scanner: &mut Scanner) -> Result<Event, NoCommand> {
        match (self, byte) {
            (Self::Tag, b' ') => {
                scanner.tag = 0..at + 1;
                scanner.state = Self::BeforeName;
            }
            (Self::Tag, b'-' | b'.' | b'_') if at < TAG_MAX => {}
            (Self::Tag, byte) if byte.is_ascii_alphanumeric() && at < TAG_MAX => {}
            (Self::BeforeName, b' ') => {}
            (Self::BeforeName, byte) if byte.is_ascii_alphabetic() => scanner.begin(at, Self::Name),
            (Self::Name, b' ' | b'\r' | b'\n') => {
                scanner.name = scanner.start..at;
                return scanner.after_word(byte);
            }
            (Self::Name, byte) if byte.is_ascii_alphabetic() && at - scanner.start < NAME_MAX => {}
            (Self::BeforeArgument, b' ') => {}
            (Self::BeforeArgument, b'\r' | b'\n') => return scanner.after_word(byte),
            (Self::BeforeArgument, _) if scanner.args.len() >= ARGS_MAX => return Err(NoCommand),
            (Self::BeforeArgument, b'"') => scanner.begin(at + 1, Self::Quoted),
            (Self::BeforeArgument, b'{') => scanner.state = Self::LiteralSize(0),
            (Self::BeforeArgument, _) => scanner.begin(at, Self::Atom),
            (Self::Atom, b' ' | b'\r' | b'\n') => {
                scanner.end_argument(at, false);
                return scanner.after_word(byte);
            }
            (Self::Atom, _) => {}
            (Self::Quoted, b'"') => {
                scanner.end_argument(at, true);
                scanner.state = Self::AfterLiteral;
            }
            (Self::Quoted, b'\\') => scanner.state = Self::Escaped,
            (Self::Escaped, byte) if byte != b'\r' && byte != b'\n' => scanner.state = Self::Quoted,
            (Self::Quoted, byte) if byte != b'\r' && byte != b'\n' => {}
            (Self::LiteralSize(size), b'0'..=b'9') => {
                let size = size.checked_mul(10).and_then(|size| size.checked_add(usize::from(byte - b'0')));
                scanner.state = Self::LiteralSize(size.ok_or(NoCommand)?);
            }
            (Self::LiteralSize(size), b'+') => scanner.state = Self::LiteralPlus(size),
            (Self::LiteralSize(size), b'}') => {
                scanner.state = Self::LiteralEnd { size, is_waiting: true };
            }
            (Self::LiteralPlus(size), b'}') => {
                scanner.state = Self::LiteralEnd { size, is_waiting: false };
            }
            (Self::LiteralEnd { .. }, b'\r') => {}
            (Self::LiteralEnd { size, is_waiting }, b'\n') => {
                scanner.begin(at + 1, Self::Literal(size));
                if size == 0 {
                    scanner.end_argument(at + 1, false);
                    scanner.state = Self::AfterLiteral;
                }
                if is_waiting {
                    return Ok(Event::LiteralFollows);
                }
            }
            (Self::Literal(1), _) => {
                scanner.end_argument(at + 1, false);
                scanner.state = Self::AfterLiteral;
            }
            (Self::Literal(missing), _) => scanner.state = Self::Literal(missing - 1),
            (Self::AfterLiteral, byte) => return scanner.after_word(byte),
            (Self::LineFeed, b'\n') => return Ok(Event::End),
            _ => return Err(NoCommand),
        }
        Ok(Event::Nothing)
    }
}

/// A command that is complete.
struct Command<'a> {
    name: Vec<u8>,
    args: Vec<Secret>,
    tag: &'a [u8],
}

impl ImapDialogue {
    /// Begins with a command again.
    pub fn restart(&mut self) {
        self.expected = Expected::Command;
        self.scanner = Scanner::default();
    }

    /// Looks at the input for the next command.
    pub fn advance(&mut self, input: &mut Input, login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        if !matches!(self.expected, Expected::Command) && self.scanner.at == 0 {
            // The line is a response to a challenge; its first word counts.
            self.scanner.begin(0, ScanState::Atom);
        }
        let scanned = self.scanner.scan(input.bytes());
        let (step, len) = match scanned {
            Scanned::Incomplete if !input.is_full() => return Step::RECEIVE,
            Scanned::Incomplete => {
                let reply = self.tagged(input, INVALID, login);
                self.restart();
                return too_long(input, reply);
            }
            Scanned::LiteralFollows => return Step::reply(NEXT),
            Scanned::Invalid(len) => (self.invalid(len, input, login, facts), len),
            Scanned::Command(len) => (self.complete(input, login, facts), len),
        };
        self.scanner = Scanner::default();
        match step.next {
            // RFC 9051 section 6.2.1: nothing that came before the handshake counts.
            Next::StartTls => input.clear(),
            _ => input.consume(len),
        }
        step
    }

    /// Evaluates a command, or a response to a challenge.
    fn complete(&mut self, input: &Input, login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        let args = self.scanner.args.iter().map(|arg| arg.text(input.bytes())).collect::<Vec<_>>();
        if !matches!(self.expected, Expected::Command) {
            let tag = login.tag.clone();
            let response = args.first().map(Secret::bytes).unwrap_or_default();
            let step = sasl::respond(self.expected, response, login);
            return self.after_sasl(step, &tag);
        }
        let bytes = input.bytes();
        let tag = bytes.get(self.scanner.tag.clone()).unwrap_or_default();
        let name = bytes.get(self.scanner.name.clone()).unwrap_or_default().to_ascii_uppercase();
        self.command(&Command { name, args, tag }, login, facts)
    }

    fn command(&mut self, command: &Command<'_>, login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        let Command { name, args, tag } = command;
        let completed = || [tag, COMPLETED.as_bytes()].concat();
        match &**name {
            b"LOGIN" => {
                let [user, password] = &args[..] else { return self.refuse(tag) };
                if facts.requires_tls() || user.is_empty() {
                    return self.refuse(tag);
                }
                login.method = AuthMethod::Plain;
                login.user = user.clone();
                login.password = Some(password.clone());
                if !is_valid(login) {
                    return self.refuse(tag);
                }
                login.tag = tag.to_vec();
                Step::LOGIN
            }
            b"AUTHENTICATE" => {
                if facts.requires_tls() {
                    return self.refuse(tag);
                }
                login.tag = tag.to_vec();
                let args: Vec<_> = args.iter().map(Secret::bytes).collect();
                let begun = sasl::begin(&args, login, facts);
                self.after_sasl(begun, tag)
            }
            b"CAPABILITY" => Step::reply([facts.capability(), &completed()].concat()),
            b"NOOP" => Step::reply(completed()),
            b"LOGOUT" => Step::close([BYE, &completed()].concat()),
            b"STARTTLS" if facts.offers_tls() => Step::start_tls(completed()),
            b"STARTTLS" => self.refuse(tag),
            _ => self.errors.invalid([tag, INVALID.as_bytes()].concat(), facts),
        }
    }

    fn after_sasl(&mut self, step: SaslStep, tag: &[u8]) -> Step {
        match step {
            SaslStep::Challenge(challenge, expected) => {
                self.expected = expected;
                Step::reply([b"+ ", &*challenge, b"\r\n"].concat())
            }
            SaslStep::Done => Step::LOGIN,
            SaslStep::Invalid(note) => self.refuse(tag).noted(note),
        }
    }

    /// Refuses a command that is well-formed.
    fn refuse(&mut self, tag: &[u8]) -> Step {
        self.expected = Expected::Command;
        Step::reply([tag, INVALID.as_bytes()].concat())
    }

    /// Counts a line that is no command. If a literal follows that the client does not wait with, it would be read as commands.
    fn invalid(&mut self, len: usize, input: &Input, login: &Login, facts: &DialogueFacts<'_>) -> Step {
        let reply = self.tagged(input, INVALID, login);
        self.expected = Expected::Command;
        let line = input.bytes().get(..len).unwrap_or_default();
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line.ends_with(b"+}") {
            true => Step::abort(reply),
            false => self.errors.invalid(reply, facts),
        }
    }

    /// A reply with the tag of the command, as far as there is one.
    fn tagged(&self, input: &Input, text: &str, login: &Login) -> Vec<u8> {
        let tag = match self.expected {
            Expected::Command => input.bytes().get(self.scanner.tag.clone()).unwrap_or_default(),
            _ => &login.tag,
        };
        let tag = if tag.is_empty() { b"* " } else { tag };
        [tag, text.as_bytes()].concat()
    }
}

impl Argument {
    /// The text without the backslashes of a quoted string.
    fn text(&self, bytes: &[u8]) -> Secret {
        let text = bytes.get(self.text.clone()).unwrap_or_default();
        if !self.is_quoted || !text.contains(&b'\\') {
            return Secret::copy(text);
        }
        let mut plain = Secret::with_capacity(text.len());
        let mut rest = text;
        loop {
            rest = match rest {
                [] => return plain,
                [b'\\', escaped, behind @ ..] => {
                    plain.push(&[*escaped]);
                    behind
                }
                [byte, behind @ ..] => {
                    plain.push(&[*byte]);
                    behind
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::StartTls;
    use crate::dialogue::testing::{Script, facts};

    fn login(text: &str, replies: &str, user: &str, password: &str) {
        for is_spelled in [false, true] {
            let mut script = Script::imap(facts());
            match is_spelled {
                true => script.spells(&format!("{text}\r\n"), replies),
                false => script.says(text, replies),
            }
            assert_eq!(script.login.user, Secret::copy(user.as_bytes()), "{text}");
            assert_eq!(script.login.password, Some(Secret::copy(password.as_bytes())), "{text}");
            assert_eq!(script.login.tag, b"a1 ");
        }
    }

    #[test]
    fn arguments_of_all_kinds() {
        login("a1 LOGIN user pass", "LOGIN", "user", "pass");
        login("a1  login \"us er\" \"pa\\\\\\\"ss\"", "LOGIN", "us er", "pa\\\"ss");
        login("a1 LOGIN \"user\" \"\"", "LOGIN", "user", "");
        login("a1 LOGIN {4+}\r\nu\\er {5+}\r\np\"a s", "LOGIN", "u\\er", "p\"a s");
        login("a1 LOGIN user {0+}\r\n", "LOGIN", "user", "");
    }

    #[test]
    fn literals_are_waited_for() {
        let mut script = Script::imap(facts());
        script.says("a1 LOGIN {4}", "+ OK\r\n");
        script.says("user {4}", "+ OK\r\n");
        script.says("pass", "LOGIN");
        assert_eq!(script.login.user, Secret::copy(b"user"));
    }

    #[test]
    fn mistakes_have_the_tag_as_far_as_there_is_one() {
        for (text, expected) in [
            ("", "* BAD invalid command\r\n"),
            ("a1", "* BAD invalid command\r\n"),
            ("a(1 NOOP", "* BAD invalid command\r\n"),
            ("a1 FOO BAR", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN a b c d", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN \"\" b", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN {x}", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN {99999999999999999999}", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN a {3+}\r\nb\r\n", "a1 BAD invalid command\r\n"),
            ("a1 STARTTLS", "a1 BAD invalid command\r\n"),
            ("a1 AUTHENTICATE CRAM-MD5", "a1 BAD invalid command\r\n"),
            ("a1 FOO {3+}\r\nabc", "a1 BAD invalid command\r\n"),
            ("a1 LOGIN a b c {3+}", "a1 BAD invalid command\r\nCLOSE"),
            ("a1 LOGOUT", "* BYE\r\na1 OK completed\r\nCLOSE"),
            ("a1 CAPABILITY", "PLAINa1 OK completed\r\n"),
        ] {
            Script::imap(facts()).says(text, expected);
        }
    }

    #[test]
    fn invalid_commands_are_counted() {
        let mut script = Script::imap(facts());
        for tag in 1..5 {
            script.says(&format!("a{tag} FOO"), &format!("a{tag} BAD invalid command\r\n"));
        }
        script.says("a5 FOO", "a5 BAD invalid command\r\nCLOSE");
    }

    #[test]
    fn authenticate_keeps_its_tag() {
        let mut script = Script::imap(facts());
        script.says("t7 AUTHENTICATE PLAIN", "+ \r\n");
        script.says("AHVzZXIAcGFzcw==", "LOGIN");
        assert_eq!((script.login.user.bytes(), &*script.login.tag), (&b"user"[..], &b"t7 "[..]));
        script.dialogue.restart();
        script.says("t8 AUTHENTICATE LOGIN", "+ VXNlcm5hbWU6\r\n");
        script.says("*", "t8 BAD invalid command\r\n");
        script.says("t9 NOOP", "t9 OK completed\r\n");
        script.says("t9 AUTHENTICATE PLAIN =", "t9 BAD invalid command\r\n");
    }

    #[test]
    fn long_commands_end_the_session() {
        let mut script = Script::imap(facts());
        script.says(&format!("a1 LOGIN user {}", "x".repeat(1000)), "a1 BAD invalid command\r\nCLOSE");
        assert!(!script.notes[0].contains('x'));
        let mut script = Script::imap(facts());
        script
            .says(&format!("a1 LOGIN {{1000+}}\r\n{}", "x".repeat(1000)), "a1 BAD invalid command\r\nCLOSE");
    }

    #[test]
    fn starttls_drops_what_was_pipelined() {
        let mut facts = facts();
        facts.starttls = StartTls::Only;
        let mut script = Script::imap(facts);
        script.says("a1 LOGIN a b", "a1 BAD invalid command\r\n");
        script.says("a2 CAPABILITY", "ONLYa2 OK completed\r\n");
        script.says("a3 STARTTLS\r\na4 LOGIN injected x", "a3 OK completed\r\nTLS");
        assert!(script.input.bytes().is_empty());
    }
}
