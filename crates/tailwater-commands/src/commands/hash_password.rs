//! `tailwater hash-password`: lines for `auth_basic_user_file`.
//!
//! A terminal shows a prompt and not the password; its settings come back however the reading ends.

use std::io::{self, BufRead, IsTerminal, Read};
use std::process::ExitCode;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use crate::output::console::{Console, Fault, print};
use crate::output::stdout::write_out;

/// Longest line that is read, in bytes; the longest password is far shorter.
const LINE_MAX: usize = 4096;
/// Ctrl-C.
const INTERRUPT: u8 = 3;

/// Reads a password and prints its hash, for `user` a line with both.
pub fn hash_password(user: Option<&[u8]>) -> ExitCode {
    match password().and_then(|password| line(user, &password)) {
        Ok(line) => {
            write_out(&line);
            ExitCode::SUCCESS
        }
        Err(fault) => {
            Console::new().fault(&fault);
            ExitCode::FAILURE
        }
    }
}

fn line(user: Option<&[u8]>, password: &[u8]) -> Result<String, Fault> {
    let line = match user {
        Some(user) => {
            tw_modules::password_line(user, password).map(|line| String::from_utf8_lossy(&line).into_owned())
        }
        None => tw_modules::password_hash(password).map(|hash| hash + "\n"),
    };
    line.map_err(|error| Fault::emerg(error.to_string()))
}

/// The password: asked for twice on a terminal, one line otherwise.
fn password() -> Result<Vec<u8>, Fault> {
    if !io::stdin().is_terminal() {
        return read_line();
    }
    let _hidden = HiddenInput::begin().map_err(failed)?;
    let password = ask("Password: ")?;
    if ask("Again: ")? == password { Ok(password) } else { Err(Fault::emerg("the passwords differ")) }
}

fn ask(prompt: &str) -> Result<Vec<u8>, Fault> {
    print(prompt);
    let line = read_line();
    print("\n");
    match line? {
        line if line.last() == Some(&INTERRUPT) => Err(Fault::emerg("interrupted")),
        line => Ok(line),
    }
}

/// Reads a line of up to [`LINE_MAX`] bytes from standard input, without its end.
pub(crate) fn read_line() -> Result<Vec<u8>, Fault> {
    let mut line = Vec::new();
    if io::stdin().is_terminal() {
        // Ctrl-C may end a line of a terminal, so the result of one read is a line.
        line.resize(LINE_MAX, 0);
        let length = io::stdin().lock().read(&mut line).map_err(failed)?;
        line.truncate(length);
    } else {
        io::stdin().lock().take(LINE_MAX as u64).read_until(b'\n', &mut line).map_err(failed)?;
    }
    let end = line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    line.truncate(end);
    Ok(line)
}

fn failed(error: io::Error) -> Fault {
    Fault::call("read()", "standard input", &error)
}

/// Terminal that does not show input, until this is dropped.
struct HiddenInput(Termios);

impl HiddenInput {
    /// Ctrl-C ends a line meanwhile: a process that it ended would leave the terminal as it is here.
    fn begin() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        hidden.local_modes.insert(LocalModes::ICANON);
        hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        tcsetattr(&stdin, OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
