//! SMTP up to the login (RFC 5321, RFC 4954), without I/O.

use std::borrow::Cow;

use tw_log::Text;

use super::auth_method::AuthMethod;
use super::facts::DialogueFacts;
use super::line::split;
use super::line_dialogue::{LineCommands, LineDialogue};
use super::login::{Envelope, Login};
use super::step::Step;
use crate::secret::Secret;

const OK: &[u8] = b"250 2.0.0 OK\r\n";
const BYE: &[u8] = b"221 2.0.0 Bye\r\n";
const START_TLS: &[u8] = b"220 2.0.0 Start TLS\r\n";
const INVALID_ARGUMENT: &[u8] = b"501 5.5.4 Invalid argument\r\n";
const AUTH_REQUIRED: &[u8] = b"530 5.7.1 Authentication required\r\n";
const BAD_SEQUENCE: &[u8] = b"503 5.5.1 Bad sequence of commands\r\n";
/// Reply to a client that sends before the greeting.
pub const INVALID_PIPELINING: &[u8] = b"503 5.5.0 Improper use of SMTP command pipelining\r\n";
/// Code in front of the text of an auth server that sends none.
pub const ERROR_CODE: &[u8] = b"535 5.7.0";

/// Commands of SMTP.
pub struct Smtp;

/// Dialogue with a client of SMTP.
pub type SmtpDialogue = LineDialogue<Smtp>;

impl LineCommands for Smtp {
    const INVALID: &'static [u8] = b"500 5.5.1 Invalid command\r\n";
    const CHALLENGE: &'static [u8] = b"334 ";
    const ARGS_MAX: usize = 11;

    fn command(
        dialogue: &mut SmtpDialogue,
        text: &[u8],
        login: &mut Login,
        facts: &DialogueFacts<'_>,
    ) -> Step {
        let Some(words) = split(text, Self::ARGS_MAX, |_| false) else { return dialogue.invalid(facts) };
        match &*words.command.to_ascii_uppercase() {
            b"HELO" => hello(&words.args, login, facts, IsExtended::No),
            b"EHLO" => hello(&words.args, login, facts, IsExtended::Yes),
            b"AUTH" => dialogue.auth(&words.args, login, facts),
            b"MAIL" => dialogue.mail(text, &words.args, login, facts),
            b"RCPT" => rcpt(text, &words.args, login),
            b"RSET" => {
                login.envelope.from.clear();
                login.envelope.to.clear();
                Step::reply(OK)
            }
            b"NOOP" => Step::reply(OK),
            b"QUIT" => Step::close(BYE),
            b"STARTTLS" if facts.offers_tls() => Step::start_tls(START_TLS),
            b"STARTTLS" | b"VRFY" | b"EXPN" | b"HELP" => dialogue.refuse(),
            _ => dialogue.invalid(facts),
        }
    }

    fn forget(login: &mut Login) {
        login.envelope = Envelope::default();
    }
}

impl SmtpDialogue {
    fn auth(&mut self, args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        if facts.requires_tls() {
            return self.refuse();
        }
        if args.is_empty() {
            return Step::reply(INVALID_ARGUMENT);
        }
        self.begin_sasl(args, login, facts)
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
}

fn hello(args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>, is_extended: IsExtended) -> Step {
    let [name] = args else { return Step::reply(INVALID_ARGUMENT) };
    let is_esmtp = login.envelope.is_esmtp || is_extended == IsExtended::Yes;
    login.envelope = Envelope { helo: name.to_vec(), is_esmtp, ..Envelope::default() };
    Step::reply(match is_extended {
        IsExtended::No => &*facts.texts.short,
        IsExtended::Yes => facts.capability(),
    })
}

fn rcpt(text: &[u8], args: &[&[u8]], login: &mut Login) -> Step {
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
    use crate::dialogue::testing::{Script, facts};

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
