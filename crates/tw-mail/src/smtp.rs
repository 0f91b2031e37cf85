//! SMTP up to the login (RFC 5321, RFC 4954), without I/O.

use std::borrow::Cow;

use tw_log::Text;

use crate::dialogue::{DialogueFacts, Envelope, ErrorCount, Login, Next, Step, too_long};
use crate::input::Input;
use crate::line::{find_line, split, words};
use crate::sasl::{self, AuthMethod, Expected, SaslStep};
use crate::secret::Secret;

const OK: &[u8] = b"250 2.0.0 OK\r\n";
const BYE: &[u8] = b"221 2.0.0 Bye\r\n";
const START_TLS: &[u8] = b"220 2.0.0 Start TLS\r\n";
const INVALID: &[u8] = b"500 5.5.1 Invalid command\r\n";
const INVALID_ARGUMENT: &[u8] = b"501 5.5.4 Invalid argument\r\n";
const AUTH_REQUIRED: &[u8] = b"530 5.7.1 Authentication required\r\n";
const BAD_SEQUENCE: &[u8] = b"503 5.5.1 Bad sequence of commands\r\n";
/// Reply to a client that sends before the greeting.
pub const INVALID_PIPELINING: &[u8] = b"503 5.5.0 Improper use of SMTP command pipelining\r\n";
/// Code in front of the text of an auth server that sends none.
pub const ERROR_CODE: &[u8] = b"535 5.7.0";
/// Arguments of a command at most.
const ARGS_MAX: usize = 11;

/// Dialogue with a client of SMTP.
#[derive(Default)]
pub struct SmtpDialogue {
    expected: Expected,
    scanned: usize,
    errors: ErrorCount,
}

impl SmtpDialogue {
    /// Begins with a command again.
    pub fn restart(&mut self) {
        self.expected = Expected::Command;
    }

    /// Looks at the input for the next command.
    pub fn advance(&mut self, input: &mut Input, login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        let Some(line) = find_line(input, &mut self.scanned) else {
            if !input.is_full() {
                return Step::RECEIVE;
            }
            self.scanned = 0;
            return too_long(input, INVALID);
        };
        let text = input.bytes().get(line.text).unwrap_or_default();
        let step = match self.expected {
            Expected::Command | Expected::Pass => self.command(text, login, facts),
            expected => match words(text, ARGS_MAX) {
                None => self.invalid(facts),
                Some(words) => {
                    let response = words.first().copied().unwrap_or_default();
                    self.after_sasl(sasl::respond(expected, response, login))
                }
            },
        };
        match step.next {
            // RFC 3207 section 4.2: all that the client has said before is forgotten.
            Next::StartTls => {
                login.envelope = Envelope::default();
                input.clear();
            }
            _ => input.consume(line.len),
        }
        step
    }

    fn command(&mut self, text: &[u8], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        let Some(words) = split(text, ARGS_MAX, |_| false) else { return self.invalid(facts) };
        match &*words.command.to_ascii_uppercase() {
            b"HELO" => self.hello(&words.args, login, facts, IsExtended::No),
            b"EHLO" => self.hello(&words.args, login, facts, IsExtended::Yes),
            b"AUTH" => self.auth(&words.args, login, facts),
            b"MAIL" => self.mail(text, &words.args, login, facts),
            b"RCPT" => self.rcpt(text, &words.args, login),
            b"RSET" => {
                login.envelope.from.clear();
                login.envelope.to.clear();
                Step::reply(OK)
            }
            b"NOOP" => Step::reply(OK),
            b"QUIT" => Step::close(BYE),
            b"STARTTLS" if facts.offers_tls() => Step::start_tls(START_TLS),
            b"STARTTLS" | b"VRFY" | b"EXPN" | b"HELP" => self.refuse(),
            _ => self.invalid(facts),
        }
    }

    fn hello(
        &mut self,
        args: &[&[u8]],
        login: &mut Login,
        facts: &DialogueFacts<'_>,
        is_extended: IsExtended,
    ) -> Step {
        let [name] = args else { return Step::reply(INVALID_ARGUMENT) };
        let is_esmtp = login.envelope.is_esmtp || is_extended == IsExtended::Yes;
        login.envelope = Envelope { helo: name.to_vec(), is_esmtp, ..Envelope::default() };
        Step::reply(match is_extended {
            IsExtended::No => &*facts.texts.short,
            IsExtended::Yes => facts.capability(),
        })
    }

    fn auth(&mut self, args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        if facts.requires_tls() {
            return self.refuse();
        }
        if args.is_empty() {
            return Step::reply(INVALID_ARGUMENT);
        }
        let begun = sasl::begin(args, login, facts);
        self.after_sasl(begun)
    }

    /// `MAIL FROM`, for which a server without logins waits until there is a recipient.
    fn mail(&mut self, text: &[u8], args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        if !facts.methods.has(AuthMethod::None) {
            let note = format!("client was rejected: \"{}\"", Text(text));
            return Step::reply(AUTH_REQUIRED).noted(Some(note.into()));
        }
        // DIFF(nginx): `starttls only` holds for mail without a login, too.
        if facts.requires_tls() {
            return self.refuse();
        }
        if !login.envelope.from.is_empty() {
            return Step::reply(BAD_SEQUENCE);
        }
        if args.is_empty() {
            return Step::reply(INVALID_ARGUMENT);
        }
        login.envelope.from = text.trim_ascii_end().to_vec();
        (login.user, login.password) = (Secret::default(), None);
        Step::reply(OK)
    }

    fn rcpt(&mut self, text: &[u8], args: &[&[u8]], login: &mut Login) -> Step {
        if login.envelope.from.is_empty() {
            return Step::reply(BAD_SEQUENCE);
        }
        if args.is_empty() {
            return Step::reply(INVALID_ARGUMENT);
        }
        login.envelope.to = text.trim_ascii_end().to_vec();
        login.method = AuthMethod::None;
        Step::LOGIN
    }

    fn after_sasl(&mut self, step: SaslStep) -> Step {
        match step {
            SaslStep::Challenge(challenge, expected) => {
                self.expected = expected;
                Step::reply([b"334 ", &*challenge, b"\r\n"].concat())
            }
            SaslStep::Done => Step::LOGIN,
            SaslStep::Invalid(note) => self.refuse().noted(note),
        }
    }

    /// Refuses a command that is well-formed.
    fn refuse(&mut self) -> Step {
        self.restart();
        Step::reply(INVALID)
    }

    fn invalid(&mut self, facts: &DialogueFacts<'_>) -> Step {
        self.restart();
        self.errors.invalid(INVALID, facts)
    }
}

/// Kind of a greeting of the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsExtended {
    /// `HELO`
    No,
    /// `EHLO`
    Yes,
}

/// Line for the log about a client that has sent `input` before the greeting.
pub fn early_note(input: &[u8]) -> Cow<'static, str> {
    let is_line_end = |byte: u8| byte == b'\r' || byte == b'\n';
    let text: Vec<u8> = input.iter().map(|byte| if is_line_end(*byte) { b'_' } else { *byte }).collect();
    format!("client was rejected before greeting: \"{}\"", Text(&text)).into()
}

/// Returns true if a name has only letters, digits, dots and hyphens (RFC 1034, section 3.5).
pub fn is_host_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::StartTls;
    use crate::testing::{Script, facts};

    #[test]
    fn hello_and_its_mistakes() {
        let mut script = Script::smtp(facts());
        script.says("HELO", "501 5.5.4 Invalid argument\r\n");
        script.says("HELO example.com", "SHORT");
        assert!(!script.login.envelope.is_esmtp);
        script.says("EHLO example.com", "PLAIN");
        assert!(script.login.envelope.is_esmtp);
        assert_eq!(script.login.envelope.helo, b"example.com");
        script.says("AUTH", "501 5.5.4 Invalid argument\r\n");
        script.says("VRFY x", "500 5.5.1 Invalid command\r\n");
        script.says("MAIL FROM:<a@b>", "530 5.7.1 Authentication required\r\n");
        script.says("RCPT TO:<a@b>", "503 5.5.1 Bad sequence of commands\r\n");
        script.says("QUIT", "221 2.0.0 Bye\r\nCLOSE");
        assert_eq!(script.notes, ["client was rejected: \"MAIL FROM:<a@b>\""]);
    }

    #[test]
    fn mail_without_login_keeps_its_commands() {
        let mut facts = facts();
        facts.methods.add(AuthMethod::None);
        let mut script = Script::smtp(facts);
        script.says("MAIL FROM:<a@b>  SIZE=1 ", "250 2.0.0 OK\r\n");
        script.says("MAIL FROM:<c@d>", "503 5.5.1 Bad sequence of commands\r\n");
        script.says("rcpt to:<e@f>", "LOGIN");
        assert_eq!(script.login.envelope.from, b"MAIL FROM:<a@b>  SIZE=1");
        assert_eq!(script.login.envelope.to, b"rcpt to:<e@f>");
        assert_eq!(script.login.method, AuthMethod::None);
        script.says("RSET", "250 2.0.0 OK\r\n");
        script.says("RCPT TO:<e@f>", "503 5.5.1 Bad sequence of commands\r\n");
    }

    #[test]
    fn login_in_pieces() {
        let mut script = Script::smtp(facts());
        script.says("AUTH LOGIN", "334 VXNlcm5hbWU6\r\n");
        script.says("dXNlcg==", "334 UGFzc3dvcmQ6\r\n");
        script.says("cGFzcw==", "LOGIN");
        assert_eq!(script.login.user, Secret::copy(b"user"));
        assert_eq!(script.login.password, Some(Secret::copy(b"pass")));
        script.dialogue.restart();
        script.says("AUTH PLAIN", "334 \r\n");
        script.says("*", "500 5.5.1 Invalid command\r\n");
    }

    #[test]
    fn starttls_forgets_what_was_said() {
        let mut facts = facts();
        facts.starttls = StartTls::On;
        let mut script = Script::smtp(facts);
        script.says("EHLO example.com", "ON");
        script.says("STARTTLS\r\nMAIL FROM:<injected@example.com>", "220 2.0.0 Start TLS\r\nTLS");
        assert!(script.input.bytes().is_empty() && script.login.envelope.helo.is_empty());
    }

    #[test]
    fn early_bytes_are_one_line_of_the_log() {
        assert_eq!(early_note(b"HELO x\r\nQUIT"), "client was rejected before greeting: \"HELO x__QUIT\"");
        assert!(is_host_name(b"a-1.example") && !is_host_name(b"") && !is_host_name(b"a_b"));
    }
}
