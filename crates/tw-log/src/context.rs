//! Facts behind the message of an error log line: client, server, request.
//!
//! In text they follow the message as nginx writes them; in JSON each is a member of the line's object.

use std::fmt;

/// Facts about the subject of a line.
pub trait LineContext {
    /// Passes every fact to `visitor`, tags last.
    fn visit(&self, visitor: &mut dyn ContextVisitor);
}

/// Writer of facts in the format of a line.
pub trait ContextVisitor {
    /// Appends text to a line of text.
    fn text(&mut self, text: fmt::Arguments<'_>);

    /// Adds a member to a line of JSON. `name` needs no escapes.
    fn member(&mut self, name: &str, value: fmt::Arguments<'_>);

    /// Adds a member of `tags` to a line of JSON.
    fn tag(&mut self, name: &str, value: &[u8]);

    /// Returns true if the line has tags; they may be costly.
    fn has_tags(&self) -> bool;

    /// A fact that is `, name: value` in text.
    fn bare(&mut self, name: &str, value: fmt::Arguments<'_>) {
        self.text(format_args!(", {name}: {value}"));
        self.member(name, value);
    }

    /// A fact that is `, name: "value"` in text.
    fn quoted(&mut self, name: &str, value: fmt::Arguments<'_>) {
        self.text(format_args!(", {name}: \"{value}\""));
        self.member(name, value);
    }
}

/// Context as the end of a line of text.
pub struct ContextText<'a>(pub &'a dyn LineContext);

/// Writes facts as text.
struct TextVisitor<'a, 'f> {
    f: &'a mut fmt::Formatter<'f>,
    result: fmt::Result,
}

impl ContextVisitor for TextVisitor<'_, '_> {
    fn text(&mut self, text: fmt::Arguments<'_>) {
        if self.result.is_ok() {
            self.result = self.f.write_fmt(text);
        }
    }

    fn member(&mut self, _: &str, _: fmt::Arguments<'_>) {}

    fn tag(&mut self, _: &str, _: &[u8]) {}

    fn has_tags(&self) -> bool {
        false
    }
}

impl fmt::Display for ContextText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut visitor = TextVisitor { f, result: Ok(()) };
        self.0.visit(&mut visitor);
        visitor.result
    }
}
