//! One directive: the responses or requests that it is for, and changes of their fields.

use bytes::Bytes;
use tw_conf::{ConfError, Cx, Node, Word};
use tw_http::fields::is_name;
use tw_http::{HeaderName, hop};
use tw_request::protocol::Resolve;
use tw_request::vars::Template;

/// Message whose fields are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// Meaning of the directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Sets fields, or removes those without a value.
    Set,
    /// Removes fields.
    Clear,
}

/// Effect of a field on those of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Replaces those that are there.
    Set,
    /// `-a`: stands behind them.
    Add,
    /// `-r`: replaces them if there are any.
    Replace,
}

/// A directive as written.
#[derive(Debug)]
pub(super) struct RawRule {
    statuses: Vec<u16>,
    types: Vec<Box<[u8]>>,
    mode: Mode,
    fields: Vec<RawField>,
}

/// Names of fields, and their value; an empty one removes them.
#[derive(Debug)]
struct RawField {
    names: FieldNames,
    value: Word,
}

/// Names of the fields that a change is about.
#[derive(Debug, Clone)]
pub(super) enum FieldNames {
    One(Bytes, Option<HeaderName>),
    /// Names that begin like this.
    Prefix(Box<[u8]>),
}

/// A directive as used.
pub(super) struct Rule {
    /// None: all.
    statuses: Box<[u16]>,
    /// Media types without parameters; none: all.
    types: Box<[Box<[u8]>]>,
    pub(super) changes: Box<[Change]>,
}

/// A change of fields.
pub(super) struct Change {
    pub(super) names: FieldNames,
    pub(super) effect: Effect,
}

/// Effect on the fields of these names.
pub(super) enum Effect {
    Remove,
    Write(Mode, Template),
}

impl RawRule {
    /// Reads a directive.
    pub(super) fn read(node: &Node, verb: Verb, side: Side, cx: &mut Cx<'_>) -> Result<Self, ConfError> {
        let mut rule = Self { statuses: Vec::new(), types: Vec::new(), mode: Mode::Set, fields: Vec::new() };
        let mut words = node.args.iter();
        let mut has_field = false;
        while let Some(word) = words.next() {
            match (&*word.bytes, side) {
                (b"-t", _) | (b"-s", Side::Response) => {
                    let list = words.next().ok_or_else(|| {
                        node.error(&format!("has no value behind \"{word}\"")).at(word.span)
                    })?;
                    rule.add_condition(node, word, list)?;
                }
                (b"-a", Side::Response) if verb == Verb::Set => rule.mode = Mode::Add,
                (b"-r", Side::Request) if verb == Verb::Set => rule.mode = Mode::Replace,
                ([b'-', ..], _) => return Err(node.invalid_parameter(word)),
                _ => {
                    has_field = true;
                    rule.fields.extend(RawField::read(node, word, verb, side, cx)?);
                }
            }
        }
        if has_field { Ok(rule) } else { Err(node.error("names no field")) }
    }

    /// Adds the words of `-s` or `-t`.
    fn add_condition(&mut self, node: &Node, option: &Word, list: &Word) -> Result<(), ConfError> {
        let words = list.bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        for word in words {
            if option.is("-t") {
                self.types.push(word.into());
                continue;
            }
            let status = tw_conf::units::number(word).and_then(|code| u16::try_from(code).ok());
            self.statuses.push(status.filter(|code| *code <= 999).ok_or_else(|| node.invalid_value(list))?);
        }
        Ok(())
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<Rule, ConfError> {
        let mode = self.mode;
        let changes = self.fields.into_iter().map(|field| {
            let effect = if field.value.bytes.is_empty() {
                Effect::Remove
            } else {
                Effect::Write(mode, cx.template(&field.value)?)
            };
            Ok(Change { names: field.names, effect })
        });
        let changes = changes.collect::<Result<_, ConfError>>()?;
        Ok(Rule { statuses: self.statuses.into(), types: self.types.into(), changes })
    }
}

impl RawField {
    /// Reads `Name: value`, or `Name`; `None`, and a warning, if the server alone may write it.
    fn read(
        node: &Node,
        word: &Word,
        verb: Verb,
        side: Side,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Self>, ConfError> {
        let mut parts = word.bytes.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default().trim_ascii();
        let value = parts.next().filter(|_| verb == Verb::Set).unwrap_or_default().trim_ascii_start();
        let shown = String::from_utf8_lossy(name).into_owned();
        if name.contains(&b'$') {
            let error = node.fail(format!("variables are not allowed in the name \"{shown}\"")).at(word.span);
            return Err(error);
        }
        let names = match name.strip_suffix(b"*") {
            Some(_) if !value.is_empty() => {
                return Err(node.fail(format!("\"{shown}\" with \"*\" can only be removed")).at(word.span));
            }
            Some(prefix) if prefix.is_empty() || is_name(prefix) => FieldNames::Prefix(prefix.into()),
            None if is_name(name) => FieldNames::One(Bytes::copy_from_slice(name), HeaderName::find(name)),
            _ => return Err(node.fail(format!("invalid name of a field \"{shown}\"")).at(word.span)),
        };
        if is_refused(&names, side, value) {
            cx.warn(
                word.span,
                format!("\"{shown}\" frames the message and is written by the server, ignored"),
            );
            return Ok(None);
        }
        Ok(Some(Self { names, value: Word { bytes: value.into(), ..word.clone() } }))
    }
}

/// Returns `true` for a change after which the message could be taken for another one.
// DIFF(nginx): the length of a response can be removed but not set, and neither can that of a request be changed.
fn is_refused(names: &FieldNames, side: Side, value: &[u8]) -> bool {
    let FieldNames::One(_, Some(name)) = *names else { return false };
    match side {
        Side::Response => hop::is_framing(name) && (name != HeaderName::ContentLength || !value.is_empty()),
        // A protocol that the client has not offered could be switched to, a body awaited that it holds back.
        Side::Request if !value.is_empty() => {
            hop::is_framing(name) || hop::is_hop_by_hop(name) || name == HeaderName::Expect
        }
        Side::Request => hop::is_framing(name),
    }
}

impl FieldNames {
    /// Returns `true` for the name of a field that is meant. Those that frame a message are not, unless they are named.
    pub(super) fn have(&self, name: &[u8]) -> bool {
        match self {
            Self::One(one, _) => one.eq_ignore_ascii_case(name),
            Self::Prefix(prefix) => {
                name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
                    && !HeaderName::find(name).is_some_and(hop::is_framing)
            }
        }
    }
}

impl Rule {
    /// Returns `true` if responses with this status are meant.
    pub(super) fn has_status(&self, status: u16) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&status)
    }

    /// Returns `true` if messages with this `Content-Type` are meant; its parameters do not matter.
    pub(super) fn has_type(&self, content_type: &[u8]) -> bool {
        let name = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        self.types.is_empty() || self.types.iter().any(|one| one.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use tw_conf::{Diagnostics, HTTP, MemoryFiles, Reader, Tree};

    use super::*;

    /// The rule as text, or the error; and the number of warnings.
    fn read(text: &str, verb: Verb, side: Side) -> (String, usize) {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        let mut diagnostics = Diagnostics::default();
        let mut cx = Cx {
            sources: &tree.sources,
            diagnostics: &mut diagnostics,
            prefix: b"",
            conf_prefix: b"",
            context: HTTP,
        };
        let shown = match RawRule::read(&tree.nodes[0], verb, side, &mut cx) {
            Ok(RawRule { statuses, types, mode, fields }) => {
                let types = types.iter().map(|one| String::from_utf8_lossy(one)).collect::<Vec<_>>();
                let fields = fields.iter().map(|field| match &field.names {
                    FieldNames::One(name, _) => format!("{}={}", String::from_utf8_lossy(name), field.value),
                    FieldNames::Prefix(prefix) => format!("{}*", String::from_utf8_lossy(prefix)),
                });
                format!("{statuses:?} {types:?} {mode:?} {:?}", fields.collect::<Vec<_>>())
            }
            Err(error) => error.message,
        };
        (shown, diagnostics.iter().count())
    }

    #[test]
    fn directives_as_written() {
        let response = |text: &str| read(text, Verb::Set, Side::Response);
        for (text, expected, warnings) in [
            ("m 'A: b';", r#"[] [] Set ["A=b"]"#, 0),
            ("m 'A: b : c ' B 'C:' D*;", r#"[] [] Set ["A=b : c ", "B=", "C=", "D*"]"#, 0),
            (
                "m -s '404 500' -s 413 -t 'a/b  c/d' -a 'A: b';",
                r#"[404, 500, 413] ["a/b", "c/d"] Add ["A=b"]"#,
                0,
            ),
            ("m -s '' -t '' 'A:$b';", r#"[] [] Set ["A=$b"]"#, 0),
            ("m 'Content-Length: 3' 'Connection: x' 'Transfer-Encoding:' A;", r#"[] [] Set ["A="]"#, 3),
            ("m Content-Length;", r#"[] [] Set ["Content-Length="]"#, 0),
            ("m *;", r#"[] [] Set ["*"]"#, 0),
            ("m 'A*: b';", "\"A*\" with \"*\" can only be removed", 0),
            ("m 'A b: c';", "invalid name of a field \"A b\"", 0),
            ("m ': c';", "invalid name of a field \"\"", 0),
            ("m 'A*B';", r#"[] [] Set ["A*B="]"#, 0),
            ("m 'X-$a: c';", "variables are not allowed in the name \"X-$a\"", 0),
            ("m -s 404;", "\"m\" directive names no field", 0),
            ("m A -s;", "\"m\" directive has no value behind \"-s\"", 0),
            ("m -s 4x4 A;", "invalid value \"4x4\"", 0),
            ("m -s 1000 A;", "invalid value \"1000\"", 0),
            ("m -r A;", "invalid parameter \"-r\"", 0),
        ] {
            assert_eq!(response(text), (expected.to_owned(), warnings), "{text}");
        }
        for (text, verb, expected, warnings) in [
            ("m -r 'A: b';", Verb::Set, r#"[] [] Replace ["A=b"]"#, 0),
            ("m -t a/b 'A: b';", Verb::Clear, r#"[] ["a/b"] Set ["A="]"#, 0),
            ("m -s 404 A;", Verb::Set, "invalid parameter \"-s\"", 0),
            ("m -a A;", Verb::Set, "invalid parameter \"-a\"", 0),
            ("m -r A;", Verb::Clear, "invalid parameter \"-r\"", 0),
            ("m 'Upgrade: x' 'Expect: y' Content-Length Host;", Verb::Set, r#"[] [] Set ["Host="]"#, 3),
            ("m Upgrade Expect Transfer-Encoding;", Verb::Clear, r#"[] [] Set ["Upgrade=", "Expect="]"#, 1),
        ] {
            assert_eq!(read(text, verb, Side::Request), (expected.to_owned(), warnings), "{text}");
        }
    }

    #[test]
    fn conditions_of_rules() {
        let rule = |statuses: &[u16], types: &[&str]| Rule {
            statuses: statuses.into(),
            types: types.iter().map(|one| one.as_bytes().into()).collect(),
            changes: [].into(),
        };
        for (status, expected) in [(404, true), (200, false)] {
            assert_eq!(rule(&[404, 500], &[]).has_status(status), expected, "{status}");
        }
        for (content_type, expected) in
            [("text/HTML; charset=x", true), ("text/htmlx", false), ("", false), ("a/b", true)]
        {
            let is_found = rule(&[], &["Text/html", "a/b"]).has_type(content_type.as_bytes());
            assert_eq!(is_found, expected, "{content_type}");
        }
        assert!(rule(&[], &[]).has_type(b"") && rule(&[], &[]).has_status(200));
    }

    #[test]
    fn prefixes_do_not_match_framing_fields() {
        let all = FieldNames::Prefix([].into());
        let hidden = FieldNames::Prefix(b"X-Hidden-".as_slice().into());
        for (name, in_all, in_hidden) in [
            ("x-hidden-a", true, true),
            ("X-Hidden-", true, true),
            ("X-Hidden", true, false),
            ("Content-Length", false, false),
        ] {
            assert_eq!(
                (all.have(name.as_bytes()), hidden.have(name.as_bytes())),
                (in_all, in_hidden),
                "{name}"
            );
        }
    }
}
