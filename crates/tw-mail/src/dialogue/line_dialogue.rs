//! Dialogue of a protocol whose commands are lines, which are POP3 and SMTP: each line is a command, or the response to a challenge.

use std::marker::PhantomData;

use super::facts::DialogueFacts;
use super::input::Input;
use super::line::{find_line, words};
use super::login::Login;
use super::sasl::{self, Expected, SaslStep};
use super::step::{ErrorCount, Next, Step, too_long};

/// Commands of a protocol of lines.
pub trait LineCommands: Sized {
    /// Reply to a command that is unknown or not allowed.
    const INVALID: &'static [u8];
    /// Beginning of a reply that is a challenge.
    const CHALLENGE: &'static [u8];
    /// Arguments of a command at most.
    const ARGS_MAX: usize;

    /// Evaluates a command, a line without its end.
    fn command(
        dialogue: &mut LineDialogue<Self>,
        text: &[u8],
        login: &mut Login,
        facts: &DialogueFacts<'_>,
    ) -> Step;

    /// Forgets what must not outlast the begin of TLS.
    fn forget(login: &mut Login);
}

/// Dialogue with a client of the protocol that has the commands `C`.
pub struct LineDialogue<C> {
    pub(super) expected: Expected,
    scanned: usize,
    errors: ErrorCount,
    commands: PhantomData<C>,
}

impl<C> Default for LineDialogue<C> {
    fn default() -> Self {
        Self { expected: Expected::Command, scanned: 0, errors: ErrorCount::default(), commands: PhantomData }
    }
}

impl<C: LineCommands> LineDialogue<C> {
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
            return too_long(input, C::INVALID);
        };
        let text = input.bytes().get(line.text).unwrap_or_default();
        let step = match self.expected {
            Expected::Command | Expected::Pass => C::command(self, text, login, facts),
            expected => match words(text, C::ARGS_MAX) {
                None => self.invalid(facts),
                Some(words) => {
                    let response = words.first().copied().unwrap_or_default();
                    self.after_sasl(sasl::respond(expected, response, login))
                }
            },
        };
        match step.next {
            // RFC 2595 section 4, RFC 3207 section 4.2: nothing that came before the handshake counts.
            Next::StartTls => {
                C::forget(login);
                input.clear();
            }
            _ => input.consume(line.len),
        }
        step
    }

    /// Begins an authentication with the arguments of its command.
    pub(super) fn begin_sasl(
        &mut self,
        args: &[&[u8]],
        login: &mut Login,
        facts: &DialogueFacts<'_>,
    ) -> Step {
        let begun = sasl::begin(args, login, facts);
        self.after_sasl(begun)
    }

    fn after_sasl(&mut self, step: SaslStep) -> Step {
        match step {
            SaslStep::Challenge(challenge, expected) => {
                self.expected = expected;
                Step::reply([C::CHALLENGE, &*challenge, b"\r\n"].concat())
            }
            SaslStep::Done => Step::LOGIN,
            SaslStep::Invalid(note) => self.refuse().noted(note),
        }
    }

    /// Refuses a command that is well-formed.
    pub(super) fn refuse(&mut self) -> Step {
        self.restart();
        Step::reply(C::INVALID)
    }

    /// Refuses a line that is no command, and counts it.
    pub(super) fn invalid(&mut self, facts: &DialogueFacts<'_>) -> Step {
        self.restart();
        self.errors.invalid(C::INVALID, facts)
    }
}
