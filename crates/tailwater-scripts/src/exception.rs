//! Exceptions of scripts as messages have them.

use rquickjs::{CaughtError, Ctx, Error, Value, convert::Coerced};
use tw_script::Exception;

/// Prefix of the names of sources that belong to the program; their lines are no part of a stack.
pub(crate) const BUILTIN_PREFIX: &str = "tailwater:";

/// The exception that `error` stands for.
pub(crate) fn caught(ctx: &Ctx<'_>, error: Error) -> Box<Exception> {
    match CaughtError::from_error(ctx, error) {
        CaughtError::Exception(exception) => from_value(exception.as_value()),
        CaughtError::Value(value) => from_value(&value),
        CaughtError::Error(error) => with_message(&error.to_string()),
    }
}

/// The exception of a thrown value.
pub(crate) fn from_value(value: &Value<'_>) -> Box<Exception> {
    let text = |value: &Value<'_>| {
        let result = value.get::<Coerced<String>>();
        if result.is_err() {
            let _ = value.ctx().catch();
        }
        result.map(|text| text.0)
    };
    let message = text(value).unwrap_or_else(|_| "an exception without a text".to_owned());
    let stack = value
        .as_object()
        .filter(|object| object.is_error())
        .and_then(|object| object.get::<_, Value<'_>>("stack").ok())
        .filter(Value::is_string)
        .and_then(|stack| text(&stack).ok())
        .unwrap_or_default();
    let mut exception = Exception { message, stack: own_lines(&stack), ..Exception::default() };
    if let Some(frame) = exception.stack.lines().find_map(parse_frame) {
        exception.function = frame.function;
        exception.file = frame.file;
        exception.line = frame.line;
    }
    Box::new(exception)
}

/// An exception without a place.
pub(crate) fn with_message(message: &str) -> Box<Exception> {
    Box::new(Exception { message: message.to_owned(), ..Exception::default() })
}

/// The lines of a stack that belong to scripts.
fn own_lines(stack: &str) -> String {
    let is_own = |line: &&str| !line.contains(BUILTIN_PREFIX) && !line.trim().is_empty();
    stack.lines().filter(is_own).collect::<Vec<_>>().join("\n")
}

/// A line of a stack: `    at function (file:line:column)`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) function: String,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// Parses a line of a stack; native functions have no place and are skipped.
pub(crate) fn parse_frame(line: &str) -> Option<Frame> {
    let rest = line.trim().strip_prefix("at ")?;
    let (function, place) = match rest.rsplit_once(" (") {
        Some((function, place)) => (function, place.strip_suffix(')')?),
        None => ("", rest),
    };
    let (rest, column) = place.rsplit_once(':')?;
    let (file, line) = rest.rsplit_once(':')?;
    Some(Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line: line.parse().ok()?,
        column: column.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_function_file_line_and_column() {
        let frame = |function: &str, file: &str, line, column| {
            Some(Frame { function: function.to_owned(), file: file.to_owned(), line, column })
        };
        for (line, expected) in [
            ("    at f (a.js:3:7)", frame("f", "a.js", 3, 7)),
            ("    at <anonymous> (/x y/(b).js:12:1)", frame("<anonymous>", "/x y/(b).js", 12, 1)),
            ("    at a.js:1:2", frame("", "a.js", 1, 2)),
            ("    at parse (native)", None),
            ("", None),
        ] {
            assert_eq!(parse_frame(line), expected, "{line}");
        }
    }

    #[test]
    fn builtin_lines_are_removed() {
        let stack = "    at get (tailwater:request:1:2)\n    at f (a.js:3:7)\n";
        assert_eq!(own_lines(stack), "    at f (a.js:3:7)");
    }
}
