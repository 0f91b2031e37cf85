//! SecLang: the language of ModSecurity's rules.
//!
//! ```text
//! lines     logical lines and words          pattern   regular expressions of PCRE, translated
//! target    variables of a rule              action    actions of a rule
//! rule      one SecRule or SecAction         directive all directives of a file
//! settings  directives that are no rules
//! ```

pub(crate) mod action;
pub(crate) mod directive;
pub(crate) mod lines;
pub(crate) mod pattern;
pub(crate) mod rule;
pub(crate) mod settings;
pub(crate) mod target;

use std::fmt;
use std::sync::Arc;

/// Position of a rule or directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the file.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Rule or directive that cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// Position.
    pub place: Place,
    /// Reason, without the position.
    pub message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.message, self.place)
    }
}

impl std::error::Error for RuleError {}

/// One text of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Name of the file.
    pub file: Arc<str>,
    /// Line of the file on which the text begins, from 1.
    pub line: u32,
    /// Directives.
    pub text: Arc<[u8]>,
}

/// Files that rules refer to. The engine itself reads none.
pub trait Files {
    /// Bytes of the file `name`, which the file `from` names.
    ///
    /// # Errors
    /// Reason, as it is shown after the name.
    fn read(&mut self, name: &str, from: &str) -> Result<Vec<u8>, String>;

    /// Names of the files that match `pattern`, which the file `from` names, in order.
    ///
    /// # Errors
    /// Reason, as it is shown after the pattern.
    fn expand(&mut self, pattern: &str, from: &str) -> Result<Vec<String>, String>;
}
