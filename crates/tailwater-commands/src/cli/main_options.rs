//! nginx's options, read as nginx reads them, and the advice about words that are none.

use serde::{Deserialize, Serialize};

use super::usage_error::{UsageError, invalid};

/// The words of `-s`.
const ORDERS: [&str; 4] = ["stop", "quit", "reopen", "reload"];

/// nginx's options.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-v`, `-V`, `-h`: say something about the program; the one that says most.
    pub show: Option<Show>,
    /// Stream on which it is written.
    pub output: Output,
    /// `-t`, `-T`: test the configuration.
    pub test: Option<Test>,
    /// `--explain`: what becomes of a request for this URL.
    pub explain: Option<Vec<u8>>,
    /// `-q`: no messages but errors during a test.
    pub messages: Messages,
    /// `-p`
    pub prefix: Option<Vec<u8>>,
    /// `-c`
    pub file: Option<Vec<u8>>,
    /// `-e`
    pub error_log: Option<Vec<u8>>,
    /// `-g`
    pub globals: Option<Vec<u8>>,
    /// `-s`
    pub order: Option<SignalCommand>,
    /// `-l`: the control API.
    pub control: Option<ControlOptions>,
    /// `--enable-fault-injection`: `debug_disk_fault` in the configuration.
    pub faults: FaultInjection,
}

/// Control API of the master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlOptions {
    /// Address to listen on, as written.
    pub address: Vec<u8>,
    /// `--control-token`: the file with the token of clients.
    pub token: Option<Vec<u8>>,
}

/// Use of `debug_disk_fault`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultInjection {
    /// The directive is an error.
    #[default]
    Refused,
    /// The directive is in force.
    Enabled,
}

/// Information about the program; each variant includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Show {
    /// `-v`
    Version,
    /// `-V`
    Configuration,
    /// `-h`, `-?`
    Help,
}

/// Streams for information about the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// `-v` and `-V`, as by nginx: programs that ask for it read standard error.
    #[default]
    Error,
    /// Everything else that was asked for, such as `-h`.
    Standard,
}

/// Tests of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    /// `-t`
    Check,
    /// `-T`: and write it out.
    Dump,
}

/// Messages of a test that are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Messages {
    /// Success, too.
    #[default]
    All,
    /// Warnings and errors.
    Problems,
}

/// `-s`: what a running server is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalCommand {
    /// End now.
    Stop,
    /// End when every request is done.
    Quit,
    /// Open the logs again.
    Reopen,
    /// Read the configuration again.
    Reload,
}

/// Reads the words of a command line without a command.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Options, UsageError> {
    let mut options = Options::default();
    let mut token = None;
    while let Some(word) = words.next() {
        match &*word {
            b"--control-token" => {
                let missing = || UsageError::new("option \"--control-token\" requires file name");
                token = Some(words.next().ok_or_else(missing)?);
            }
            b"--help" => options.show(Show::Help),
            b"--version" => {
                options.show(Show::Version);
                options.output = Output::Standard;
            }
            b"--enable-fault-injection" => options.faults = FaultInjection::Enabled,
            b"--explain" => {
                let missing = || UsageError::new("option \"--explain\" requires URL");
                options.explain(words.next().ok_or_else(missing)?);
            }
            [b'-', b'-', b'e', b'x', b'p', b'l', b'a', b'i', b'n', b'=', url @ ..] => {
                options.explain(url.to_vec())
            }
            [b'-', b'-', ..] => return Err(invalid(&word)),
            _ => {
                let Some(letters) = word.strip_prefix(b"-") else { return Err(stray(&word)) };
                options.letters(letters, &mut words)?;
            }
        }
    }
    match (&mut options.control, token) {
        (Some(control), token) => control.token = token,
        (None, Some(_)) => return Err(UsageError::new("option \"--control-token\" requires \"-l\"")),
        (None, None) => {}
    }
    Ok(options)
}

impl Options {
    /// Reads one word behind its dash: letters, of which the last may take the rest or the next word as its value.
    fn letters(
        &mut self,
        letters: &[u8],
        words: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), UsageError> {
        let mut rest = letters;
        while let [letter, tail @ ..] = rest {
            rest = tail;
            match letter {
                b'?' | b'h' => self.show(Show::Help),
                b'v' => self.show(Show::Version),
                b'V' => self.show(Show::Configuration),
                b't' => self.test = self.test.max(Some(Test::Check)),
                b'T' => self.test = Some(Test::Dump),
                b'q' => self.messages = Messages::Problems,
                _ => {
                    let mut value = |what: &str| {
                        let inline = (!tail.is_empty()).then(|| tail.to_vec());
                        inline.or_else(|| words.next()).ok_or_else(|| {
                            UsageError::new(format!("option \"-{}\" requires {what}", char::from(*letter)))
                        })
                    };
                    match letter {
                        b'p' => self.prefix = Some(value("directory name")?),
                        b'c' => self.file = Some(value("file name")?),
                        b'e' => self.error_log = Some(value("file name")?),
                        b'g' => self.globals = Some(value("parameter")?),
                        b'l' => {
                            let address = value("an address")?;
                            self.control = Some(ControlOptions { address, token: None });
                        }
                        b's' => {
                            let word = value("parameter").map_err(of_order)?;
                            self.order = Some(SignalCommand::parse(&word).map_err(of_order)?);
                        }
                        other => return Err(invalid(&[b'-', *other])),
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Explaining includes a test.
    fn explain(&mut self, url: Vec<u8>) {
        self.explain = Some(url);
        self.test = self.test.max(Some(Test::Check));
    }

    pub(super) fn show(&mut self, what: Show) {
        self.show = self.show.max(Some(what));
        if what == Show::Help {
            self.output = Output::Standard;
        }
    }
}

/// The words that `-s` takes, as what to do about another one.
fn of_order(error: UsageError) -> UsageError {
    UsageError { hint: format!("-s takes one of: {}", ORDERS.join(", ")), ..error }
}

impl SignalCommand {
    fn parse(word: &[u8]) -> Result<Self, UsageError> {
        match word {
            b"stop" => Ok(SignalCommand::Stop),
            b"quit" => Ok(SignalCommand::Quit),
            b"reopen" => Ok(SignalCommand::Reopen),
            b"reload" => Ok(SignalCommand::Reload),
            _ => Err(invalid(&[b"-s ", word].concat())),
        }
    }
}

/// A word that is neither an option nor the value of one.
fn stray(word: &[u8]) -> UsageError {
    let text = String::from_utf8_lossy(word);
    const COMMANDS: [&str; 10] =
        ["serve", "proxy", "purge", "cache", "fleet", "trust", "hash-password", "top", "js", "help"];
    let meant = match &*text {
        "restart" => Some("-s reload".to_owned()),
        "start" | "run" => Some("tailwater, without a word".to_owned()),
        "test" | "check" | "configtest" => Some("-t".to_owned()),
        "version" => Some("-v".to_owned()),
        _ if text.ends_with(".conf") => Some(format!("-c {text}")),
        "." | ".." => Some(format!("tailwater serve {text}")),
        _ if text.contains("://") => Some(format!("tailwater proxy {text}")),
        _ if text.contains('/') => Some(format!("tailwater serve {text}")),
        _ => match tw_conf::nearest(&text, COMMANDS.into_iter().chain(ORDERS)) {
            Some(command) if COMMANDS.contains(&command) => Some(format!("tailwater {command}")),
            Some(order) => Some(format!("-s {order}")),
            None => None,
        },
    };
    let error = invalid(word);
    match meant {
        Some(meant) => {
            UsageError { hint: format!("did you mean: {meant}? {}", error.hint), word: None, ..error }
        }
        None => error,
    }
}
