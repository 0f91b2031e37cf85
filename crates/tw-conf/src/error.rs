//! Errors and warnings of a configuration, in nginx's words, and the sink that collects them.

use crate::span::{Sources, Span};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

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

    /// Messages so far, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfError> {
        self.messages.iter()
    }

    /// Returns `true` if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Merges equal messages. A file that is included several times causes one message per place; a hint gives their
/// number.
pub fn said_once(messages: Vec<ConfError>) -> Vec<ConfError> {
    let mut counts: HashMap<(String, Option<Span>), usize> = HashMap::new();
    let mut kept = Vec::with_capacity(messages.len());
    for message in messages {
        let count = counts.entry((message.message.clone(), message.span)).or_default();
        *count += 1;
        if *count == 1 {
            kept.push(message);
        }
    }
    for message in &mut kept {
        let key = (std::mem::take(&mut message.message), message.span);
        let count = counts.get(&key).copied().unwrap_or(1);
        message.message = key.0;
        if count > 1 && message.span.is_some() {
            let places = format!("the same in {count} places: a file that is included counts each time");
            message.hint = Some(match message.hint.take() {
                Some(hint) => format!("{hint} ({places})"),
                None => places,
            });
        }
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
        sources.add(Origin::File((*b"/n.conf").into()), std::sync::Arc::default());
        let span = Span { file: 0, line: 3, start: 0, end: 0 };
        let error = ConfError::new("unknown directive \"foo\"");
        assert_eq!(error.line(&sources), "unknown directive \"foo\"");
        assert_eq!(error.at(span).line(&sources), "unknown directive \"foo\" in /n.conf:3");
    }

    #[test]
    fn repeated_message_is_kept_once() {
        let at = |start| Span { file: 1, line: 3, start, end: 9 };
        let messages = vec![
            ConfError::warn("a").at(at(1)),
            ConfError::warn("b").at(at(1)).hint("try c"),
            ConfError::warn("a").at(at(1)),
            ConfError::warn("a").at(at(2)),
            ConfError::warn("b").at(at(1)).hint("try c"),
            ConfError::warn("a").at(at(1)),
            ConfError::warn("no place"),
            ConfError::warn("no place"),
        ];
        let said = said_once(messages).into_iter();
        let said: Vec<_> = said.map(|m| (m.message, m.span, m.hint)).collect();
        let places = |count| format!("the same in {count} places: a file that is included counts each time");
        let expected = [
            ("a".to_owned(), Some(at(1)), Some(places(3))),
            ("b".to_owned(), Some(at(1)), Some(format!("try c ({})", places(2)))),
            ("a".to_owned(), Some(at(2)), None),
            ("no place".to_owned(), None, None),
        ];
        assert_eq!(said, expected);
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
