//! POP3 up to the login (RFC 1939, RFC 5034), without I/O.

use super::auth_method::AuthMethod;
use super::facts::DialogueFacts;
use super::line::split;
use super::line_dialogue::{LineCommands, LineDialogue};
use super::login::Login;
use super::sasl::{Expected, is_valid};
use super::step::Step;
use crate::secret::Secret;

const OK: &[u8] = b"+OK\r\n";

/// Commands of POP3.
pub struct Pop3;

/// Dialogue with a client of POP3.
pub type Pop3Dialogue = LineDialogue<Pop3>;

impl LineCommands for Pop3 {
    const INVALID: &'static [u8] = b"-ERR invalid command\r\n";
    const CHALLENGE: &'static [u8] = b"+ ";
    const ARGS_MAX: usize = 3;

    fn command(
        dialogue: &mut Pop3Dialogue,
        text: &[u8],
        login: &mut Login,
        facts: &DialogueFacts<'_>,
    ) -> Step {
        let is_rest =
            |command: &[u8]| command.eq_ignore_ascii_case(b"USER") || command.eq_ignore_ascii_case(b"PASS");
        let Some(words) = split(text, Self::ARGS_MAX, is_rest) else { return dialogue.invalid(facts) };
        let is_user_known = dialogue.expected == Expected::Pass;
        match &*words.command.to_ascii_uppercase() {
            b"USER" if !is_user_known => dialogue.user(&words.args, login, facts),
            b"PASS" if is_user_known => dialogue.pass(&words.args, login),
            b"APOP" if !is_user_known => dialogue.apop(&words.args, login, facts),
            b"AUTH" if !is_user_known => dialogue.auth(&words.args, login, facts),
            b"STLS" if !is_user_known && facts.offers_tls() => Step::start_tls(OK),
            b"CAPA" if is_user_known => Step::reply(&*facts.capabilities.plain),
            b"CAPA" => Step::reply(facts.capability()),
            b"NOOP" => Step::reply(OK),
            b"QUIT" => Step::close(OK),
            b"USER" | b"PASS" | b"APOP" | b"AUTH" | b"STLS" => dialogue.refuse(),
            _ => dialogue.invalid(facts),
        }
    }

    fn forget(_: &mut Login) {}
}

impl Pop3Dialogue {
    fn user(&mut self, args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        let [user] = args else { return self.refuse() };
        if facts.requires_tls() {
            return self.refuse();
        }
        login.user = Secret::copy(user);
        self.expected = Expected::Pass;
        Step::reply(OK)
    }

    fn pass(&mut self, args: &[&[u8]], login: &mut Login) -> Step {
        let [password] = args else { return self.refuse() };
        login.method = AuthMethod::Plain;
        login.password = Some(Secret::copy(password));
        self.complete(login)
    }

    fn apop(&mut self, args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        let [user, digest] = args else { return self.refuse() };
        if facts.requires_tls() || !facts.methods.has(AuthMethod::Apop) {
            return self.refuse();
        }
        login.method = AuthMethod::Apop;
        login.user = Secret::copy(user);
        login.password = Some(Secret::copy(digest));
        self.complete(login)
    }

    fn auth(&mut self, args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        if facts.requires_tls() {
            return self.refuse();
        }
        if args.is_empty() {
            return Step::reply(&*facts.texts.short);
        }
        self.begin_sasl(args, login, facts)
    }

    fn complete(&mut self, login: &Login) -> Step {
        match is_valid(login) {
            true => Step::LOGIN,
            false => self.refuse(),
        }
    }
}

/// Greeting: with the challenge of APOP and CRAM-MD5, if one of them is enabled.
pub fn greeting(facts: &DialogueFacts<'_>, login: &Login) -> Vec<u8> {
    match facts.methods.need_challenge() {
        true => format!("+OK POP3 ready {}\r\n", login.salt).into_bytes(),
        false => b"+OK POP3 ready\r\n".to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::testing::{Script, facts};

    #[test]
    fn user_and_password() {
        let mut script = Script::pop3(facts());
        script.says("USER a user", "+OK\r\n");
        script.says("NOOP", "+OK\r\n");
        script.says("PASS pass word ", "LOGIN");
        assert_eq!(script.login.user, Secret::copy(b"a user"));
        assert_eq!(script.login.password, Some(Secret::copy(b"pass word ")));
    }

    #[test]
    fn commands_out_of_place_are_invalid() {
        let mut script = Script::pop3(facts());
        for command in ["PASS x", "USER", "APOP a b", "STLS", "AUTH CRAM-MD5", "AUTH PLAIN =="] {
            script.says(command, "-ERR invalid command\r\n");
        }
        script.says("USER a", "+OK\r\n");
        script.says("USER b", "-ERR invalid command\r\n");
        script.says("PASS x", "-ERR invalid command\r\n");
        script.says("QUIT", "+OK\r\nCLOSE");
    }

    #[test]
    fn malformed_commands_are_counted() {
        let mut script = Script::pop3(facts());
        for _ in 0..4 {
            script.says("FOO BAR", "-ERR invalid command\r\n");
        }
        script.says("USER a\rb", "-ERR invalid command\r\nCLOSE");
        assert_eq!(script.notes, ["client sent too many invalid commands"]);
    }

    #[test]
    fn apop_has_its_digest() {
        let mut facts = facts();
        facts.methods.add(AuthMethod::Apop);
        let mut script = Script::pop3(facts);
        script.says("apop user 0123", "LOGIN");
        assert_eq!((script.login.method, script.login.user.bytes()), (AuthMethod::Apop, &b"user"[..]));
    }

    #[test]
    fn auth_announces_and_challenges() {
        let mut script = Script::pop3(facts());
        script.says("AUTH", "SHORT");
        script.says("AUTH PLAIN", "+ \r\n");
        script.says("AHVzZXIAcGFzcw==", "LOGIN");
        assert_eq!(script.login.user, Secret::copy(b"user"));
        script.dialogue.restart();
        script.says("CAPA", "PLAIN");
    }

    #[test]
    fn long_lines_end_the_session() {
        let mut script = Script::pop3(facts());
        let long = "x".repeat(1000);
        script.says(&long, "-ERR invalid command\r\nCLOSE");
        assert!(!script.notes[0].contains('x'), "the command may contain a password");
    }

    #[test]
    fn starttls_drops_what_was_pipelined() {
        let mut facts = facts();
        facts.starttls = crate::dialogue::StartTls::Only;
        let mut script = Script::pop3(facts);
        script.says("USER a", "-ERR invalid command\r\n");
        script.says("STLS\r\nUSER injected", "+OK\r\nTLS");
        assert!(script.input.bytes().is_empty());
    }
}
