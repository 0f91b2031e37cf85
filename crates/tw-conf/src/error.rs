//! Errors and warnings of a configuration, in nginx's words, and the sink that collects them.

use crate::span::{Sources, Span};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Severity, in the words of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The configuration cannot be used.
    Emerg,
    /// A file of the configuration cannot be read: it cannot be used either.
    Crit,
    /// The configuration works, perhaps not as meant.
    Warn,
    /// Worth knowing.
    Notice,
}

impl Level {
    /// Word in the brackets of a log line.
    pub fn word(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Crit => "crit",
            Level::Warn => "warn",
            Level::Notice => "notice",
        }
    }
}

/// One message about the configuration. `Display` is the bare message; [`ConfError::line`] adds the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfError {
    /// Severity of the message.
    pub level: Level,
    /// The message, without the place.
    pub message: String,
    /// The place, if the message is about one.
    pub span: Option<Span>,
    /// Advice for the operator, shown below nginx's line.
    pub hint: Option<String>,
    /// Missing feature, if that is the only thing wrong.
    pub missing: Option<MissingFeature>,
}

/// Something that nginx has and we have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFeature {
    /// A directive, or a variable with its `$`.
    pub name: Cow<'static, str>,
    /// Module of nginx that has it.
    pub module: Cow<'static, str>,
}

impl MissingFeature {
    /// Something of a module.
    pub fn new(name: impl Into<Cow<'static, str>>, module: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), module: module.into() }
    }
}

impl ConfError {
    /// A note, without a place yet.
    pub fn notice(message: impl Into<String>) -> Self {
        Self { level: Level::Notice, ..Self::new(message) }
    }

    /// An error that makes the configuration unusable, without a place yet.
    pub fn new(message: impl Into<String>) -> Self {
        Self { level: Level::Emerg, message: message.into(), span: None, hint: None, missing: None }
    }

    /// A warning, without a place yet.
    pub fn warn(message: impl Into<String>) -> Self {
        Self { level: Level::Warn, ..Self::new(message) }
    }

    /// Adds the place.
    pub fn at(mut self, span: Span) -> Self {
        self.span = Some(span);
        self
    }

    /// Adds a hint for the operator, if there is one and no other.
    pub fn or_hint(self, hint: Option<String>) -> Self {
        Self { hint: self.hint.or(hint), ..self }
    }

    /// Adds a hint for the operator.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the message as one about a feature that nginx has and Tailwater lacks.
    pub fn missing(mut self, missing: MissingFeature) -> Self {
        self.missing = Some(missing);
        self
    }

    /// The message as nginx logs it: `unknown directive "foo" in /etc/nginx/nginx.conf:3`.
    pub fn line(&self, sources: &Sources) -> String {
        let tail = self.span.map(|span| sources.tail(span)).unwrap_or_default();
        format!("{}{tail}", self.message)
    }
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfError {}

/// Messages collected while a configuration is read and resolved, in order.
#[derive(Debug, Default)]
pub struct Diagnostics {
    messages: Vec<ConfError>,
    /// Checks of the machine, if there is somebody who makes them.
    checks: Option<Vec<MachineCheck>>,
}

/// A message that depends on the machine, not on the configuration alone. Only a test of the configuration looks whether it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCheck {
    /// Thing that has to be there.
    pub subject: MachineSubject,
    /// The message if it is not.
    pub message: ConfError,
}

/// Something outside of the configuration that the configuration expects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MachineSubject {
    /// A file or directory, by its full name.
    Path(Box<[u8]>),
    /// An address of an interface.
    Address(IpAddr),
    /// A host name with an address.
    Host(Arc<str>),
}

impl Diagnostics {
    /// Keeps a message of any level.
    pub fn push(&mut self, message: ConfError) {
        self.messages.push(message);
    }

    /// Keeps a warning about a place.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.push(ConfError::warn(message).at(span));
    }

    /// A sink that also keeps checks of the machine.
    pub fn with_checks() -> Self {
        Self { messages: Vec::new(), checks: Some(Vec::new()) }
    }

    /// Keeps a message that a test of the configuration says if `subject` is not there.
    pub fn expect(&mut self, subject: MachineSubject, message: impl FnOnce() -> ConfError) {
        if let Some(checks) = &mut self.checks {
            checks.push(MachineCheck { subject, message: message() });
        }
    }

    /// Takes the checks out.
    pub fn take_checks(&mut self) -> Vec<MachineCheck> {
        self.checks.take().unwrap_or_default()
    }

    /// Messages so far, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfError> {
        self.messages.iter()
    }

    /// Returns `true` if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Merges equal messages; a hint gives the number of their places. Errors are merged only at one place, as in a file that is included
/// several times: each of the others has to be mended.
pub fn said_once(messages: Vec<ConfError>, sources: &Sources) -> Vec<ConfError> {
    type Key = (String, Option<String>, Option<Span>);
    let key_of = |message: &ConfError| -> Key {
        let is_error = matches!(message.level, Level::Emerg | Level::Crit);
        (message.message.clone(), message.hint.clone(), message.span.filter(|_| is_error))
    };
    let mut places: HashMap<Key, Vec<Option<Span>>> = HashMap::new();
    let mut kept = Vec::with_capacity(messages.len());
    for message in messages {
        let known_spans = places.entry(key_of(&message)).or_default();
        known_spans.push(message.span);
        if known_spans.len() == 1 {
            kept.push(message);
        }
    }
    for message in &mut kept {
        let spans = places.remove(&key_of(message)).unwrap_or_default();
        let count = spans.len();
        let spans = spans.into_iter().flatten().collect::<Vec<_>>();
        if count == 1 || spans.is_empty() {
            continue;
        }
        let is_included = spans.iter().all(|span| *span == spans[0]);
        let places = if is_included {
            format!("the same in {count} places: a file that is included counts each time")
        } else {
            format!("the same in {count} places: {}", sources.places(&spans))
        };
        message.hint = Some(match message.hint.take() {
            Some(hint) => format!("{hint} ({places})"),
            None => places,
        });
    }
    kept
}

impl IntoIterator for Diagnostics {
    type Item = ConfError;
    type IntoIter = std::vec::IntoIter<ConfError>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Origin;

    #[test]
    fn line_adds_the_place() {
        let mut sources = Sources::default();
        sources.add(Origin::File((*b"/n.conf").into()), Arc::default());
        let span = Span { file: 0, line: 3, start: 0, end: 0 };
        let error = ConfError::new("unknown directive \"foo\"");
        assert_eq!(error.line(&sources), "unknown directive \"foo\"");
        assert_eq!(error.at(span).line(&sources), "unknown directive \"foo\" in /n.conf:3");
    }

    #[test]
    fn repeated_message_is_kept_once() {
        let mut sources = Sources::default();
        sources.add(Origin::File((*b"/n.conf").into()), Arc::default());
        let at = |line| Span { file: 0, line, start: line, end: 99 };
        let warn = |text: &str, line| ConfError::warn(text).at(at(line));
        let messages = vec![
            warn("a", 1),
            warn("b", 1).hint("try c"),
            warn("a", 1),
            warn("d", 1),
            warn("d", 2),
            warn("b", 1).hint("try c"),
            ConfError::new("e").at(at(1)),
            ConfError::new("e").at(at(2)),
            ConfError::new("e").at(at(1)),
            warn("d", 3),
            warn("d", 3).hint("another"),
            ConfError::warn("no place"),
            ConfError::warn("no place"),
        ];
        let said = said_once(messages, &sources).into_iter();
        let said: Vec<_> = said.map(|m| (m.message, m.span.map(|at| at.line), m.hint)).collect();
        let included = "the same in 2 places: a file that is included counts each time";
        let expected = [
            ("a", Some(1), Some(included.to_owned())),
            ("b", Some(1), Some(format!("try c ({included})"))),
            ("d", Some(1), Some("the same in 3 places: /n.conf:1, 2, 3".to_owned())),
            ("e", Some(1), Some(included.to_owned())),
            ("e", Some(2), None),
            ("d", Some(3), Some("another".to_owned())),
            ("no place", None, None),
        ];
        assert_eq!(said, expected.map(|(message, line, hint)| (message.to_owned(), line, hint)));
    }

    #[test]
    fn sink_keeps_order() {
        let mut sink = Diagnostics::default();
        assert!(sink.is_empty());
        sink.push(ConfError::new("a"));
        sink.warn(Span { file: 0, line: 1, start: 0, end: 0 }, "b");
        let said: Vec<_> = sink.iter().map(|m| (m.level.word(), m.to_string())).collect();
        assert_eq!(said, [("emerg", "a".to_owned()), ("warn", "b".to_owned())]);
        assert_eq!(sink.into_iter().count(), 2);
    }
}
