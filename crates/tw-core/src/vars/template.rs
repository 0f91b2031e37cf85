//! Text with variables.

use tw_conf::{ConfError, Span};

use super::table::located;
use super::{Value, Var, VarTable};
use crate::session::Session;

/// The names of variables in a text, in lower case, whatever the text is for.
pub fn names_in(text: &[u8]) -> impl Iterator<Item = String> + '_ {
    text.split(|byte| *byte == b'$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix(b"{").unwrap_or(rest);
        let size = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let name = String::from_utf8_lossy(&rest[..size]).to_ascii_lowercase();
        Some(name).filter(|name| !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The name of a variable at the beginning of a text behind its `$`, and the rest; `None` if there is none, or a capture.
pub(super) fn split_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"{");
    let name_at = inner.unwrap_or(text);
    let len = name_at.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let (name, rest) = name_at.split_at(len);
    let rest = if inner.is_some() { rest.strip_prefix(b"}")? } else { rest };
    (!name.first()?.is_ascii_digit()).then_some((name, rest))
}

/// Text with variables, compiled at load.
pub struct Template<S> {
    parts: Box<[Part<S>]>,
}

enum Part<S> {
    Text(Box<[u8]>),
    Var(Var<S>),
    /// `$1` … `$9`: what the last regular expression captured.
    Capture(u8),
}

impl<S: 'static> Template<S> {
    /// Compiles `text`. Errors are nginx's (`invalid variable name`).
    pub fn compile(text: &[u8], at: Option<Span>, vars: &mut VarTable<S>) -> Result<Self, ConfError> {
        Self::compile_with(text, at, |name| vars.bind(name, at))
    }

    /// Compiles a text of the program itself: its variables are those that modules declare, whatever the configuration defines.
    pub fn compile_own(text: &str, vars: &mut VarTable<S>) -> Result<Self, ConfError> {
        Self::compile_with(text.as_bytes(), None, |name| vars.bind_declared(name))
    }

    fn compile_with(
        text: &[u8],
        at: Option<Span>,
        mut bind: impl FnMut(&str) -> Var<S>,
    ) -> Result<Self, ConfError> {
        let fail = |message: String| located(ConfError::new(message), at);
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.iter().position(|&b| b == b'$') {
            literal.extend_from_slice(&rest[..dollar]);
            rest = &rest[dollar + 1..];
            if let [digit @ b'0'..=b'9', tail @ ..] = rest {
                flush(&mut literal, &mut parts);
                parts.push(Part::Capture(digit - b'0'));
                rest = tail;
                continue;
            }
            let braced = rest.first() == Some(&b'{');
            let name_at = &rest[usize::from(braced)..];
            let len = name_at.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
            let name = String::from_utf8_lossy(&name_at[..len]).into_owned();
            rest = &name_at[len..];
            if braced {
                rest = rest
                    .strip_prefix(b"}")
                    .ok_or_else(|| fail(format!("the closing bracket in \"{name}\" variable is missing")))?;
            }
            if name.is_empty() {
                return Err(fail(format!("invalid variable name in \"{}\"", String::from_utf8_lossy(text))));
            }
            flush(&mut literal, &mut parts);
            parts.push(match name.as_bytes() {
                [digit @ b'0'..=b'9'] => Part::Capture(digit - b'0'),
                _ => Part::Var(bind(&name)),
            });
        }
        literal.extend_from_slice(rest);
        flush(&mut literal, &mut parts);
        Ok(Self { parts: parts.into() })
    }

    /// A template without variables.
    pub fn text(text: &[u8]) -> Self {
        Self { parts: if text.is_empty() { [].into() } else { [Part::Text(text.into())].into() } }
    }

    /// The texts of several templates after each other.
    pub fn joined(templates: impl IntoIterator<Item = Self>) -> Self {
        let mut parts: Vec<Part<S>> = Vec::new();
        for part in templates.into_iter().flat_map(|template| template.parts) {
            match (parts.last_mut(), part) {
                (Some(Part::Text(last)), Part::Text(text)) => *last = [&**last, &*text].concat().into(),
                (_, part) => parts.push(part),
            }
        }
        Self { parts: parts.into() }
    }

    /// The text, if there is no variable in it.
    pub fn constant(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first variable.
    pub fn prefix(&self) -> &[u8] {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => b"",
        }
    }
}

impl<S: Session> Template<S> {
    /// Appends the text for `s`; a missing variable adds nothing. Never waits; allocates only to grow `out`.
    pub fn eval(&self, s: &S, out: &mut Vec<u8>) {
        match &*self.parts {
            // Most templates are a single variable.
            [Part::Var(var)] => _ = var.eval(s, out),
            _ => self.eval_each(s, out, |_, _, _| {}),
        }
    }

    /// Evaluates like [`Template::eval`], and calls `each` after every variable with the start of its value in `out` and its
    /// presence: for callers that escape values or mark missing ones, as an access log does.
    pub fn eval_each(&self, s: &S, out: &mut Vec<u8>, mut each: impl FnMut(&mut Vec<u8>, usize, Value)) {
        for part in &self.parts {
            let start = out.len();
            let value = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                Part::Var(var) => var.eval(s, out),
                Part::Capture(n) => match s.bindings().captures.borrow().group(usize::from(*n)) {
                    Some(group) => {
                        out.extend_from_slice(group);
                        Value::Found
                    }
                    None => Value::Missing,
                },
            };
            each(out, start, value);
        }
    }

    /// As [`Template::eval`], but what regular expressions captured is written by `capture`, which escapes it.
    pub fn eval_captures(&self, s: &S, out: &mut Vec<u8>, capture: impl Fn(&[u8], &mut Vec<u8>)) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Var(var) => {
                    var.eval(s, out);
                }
                Part::Capture(n) => {
                    if let Some(group) = s.bindings().captures.borrow().group(usize::from(*n)) {
                        capture(group, out);
                    }
                }
            }
        }
    }

    /// Returns `true` if the byte at `at` of the text for `s` is not of the configuration: it comes from a capture, or from a variable that
    /// the configuration does not define, such as a field of the request. Evaluates the text again.
    pub fn is_given(&self, s: &S, at: usize) -> bool {
        let mut out = Vec::new();
        let is_behind = |part: &&Part<S>| {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Var(var) => _ = var.eval(s, &mut out),
                Part::Capture(n) => {
                    let captures = s.bindings().captures.borrow();
                    out.extend_from_slice(captures.group(usize::from(*n)).unwrap_or_default());
                }
            }
            out.len() > at
        };
        match self.parts.iter().find(is_behind) {
            Some(Part::Var(var)) => var.is_given(s),
            Some(Part::Capture(_)) => true,
            Some(Part::Text(_)) | None => false,
        }
    }

    /// Returns `true` if the text for `s` is neither empty nor `0`.
    pub fn is_set(&self, s: &S) -> bool {
        !matches!(&*self.value(s), b"" | b"0")
    }

    /// The text for `s` as a new vector.
    pub fn value(&self, s: &S) -> Vec<u8> {
        let mut out = Vec::new();
        self.eval(s, &mut out);
        out
    }
}

impl<S> Clone for Part<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Text(text) => Self::Text(text.clone()),
            Self::Var(var) => Self::Var(var.clone()),
            Self::Capture(n) => Self::Capture(*n),
        }
    }
}

impl<S> Clone for Template<S> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone() }
    }
}

fn flush<S>(literal: &mut Vec<u8>, parts: &mut Vec<Part<S>>) {
    if !literal.is_empty() {
        parts.push(Part::Text(std::mem::take(literal).into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Plain, table};

    #[test]
    fn templates_distinguish_missing_and_empty_values() {
        let mut vars = table();
        let templates = ["a", "", "$found", "<$missing>", "$in_X$in_deep_y|${in_}z", "$1"]
            .map(|text| Template::compile(text.as_bytes(), None, &mut vars).unwrap());
        let s = Plain::new(vars);
        let values = templates.map(|template| {
            let mut out = b"=".to_vec();
            template.eval_each(&s, &mut out, |out, start, value| match value {
                Value::Found => out.insert(start, b'+'),
                Value::Missing => out.push(b'-'),
            });
            [out, template.value(&s)].map(|text| String::from_utf8(text).unwrap())
        });
        let expected = [
            ["=a", "a"],
            ["=", ""],
            ["=+f", "f"],
            ["=<->", "<>"],
            ["=+x+deep y|+z", "xdeep y|z"],
            ["=-", ""],
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn joined_templates_keep_their_names_apart() {
        let mut vars = table();
        let parts = ["x ", "", "y$found", "found$open", "z", "w"];
        let parts = parts.map(|text| Template::compile(text.as_bytes(), None, &mut vars).unwrap());
        let joined = Template::joined(parts);
        assert_eq!(joined.parts.len(), 5);
        assert_eq!(joined.value(&Plain::new(vars)), b"x yffoundozw");
        assert_eq!(Template::<Plain>::joined([]).constant(), Some(&b""[..]));
    }
}
