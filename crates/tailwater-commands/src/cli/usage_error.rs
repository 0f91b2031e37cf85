//! Errors of the command line.

use std::fmt;

use super::meant_option;

/// Why a command line is refused. Displays in nginx's words.
#[derive(Debug, PartialEq, Eq)]
pub struct UsageError {
    pub(super) message: String,
    /// Advice to the operator.
    pub hint: String,
    /// The word that is no option.
    pub(super) word: Option<String>,
}

impl UsageError {
    /// An error with the hint that leads to all options.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: "tailwater -h lists the options".into(), word: None }
    }

    /// Adds the option of a command that is most likely meant; without a name, of `tailwater` itself.
    pub(super) fn suggest(self, command: &str) -> Self {
        match self.word.as_deref().and_then(|word| meant_option::find(command, word)) {
            Some(meant) => Self { hint: format!("did you mean: {meant}? {}", self.hint), ..self },
            None => self,
        }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Error about a word that is no option.
pub(super) fn invalid(word: &[u8]) -> UsageError {
    let word = String::from_utf8_lossy(word);
    UsageError { word: Some(word.clone().into()), ..UsageError::new(format!("invalid option: \"{word}\"")) }
}
