//! `match`: conditions on the response to a health check. All lines of the block must hold.

use std::ops::RangeInclusive;

use tw_conf::{ConfError, Node, Word};
use tw_core::regex::{Caseless, Match, Regex};
use tw_http::Fields;
use tw_log::Text;
use tw_module_support::block::{refuse_block, variable_name};
use tw_proxy::health::HealthCriteria;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Conditions of a `match` block.
pub(super) struct MatchBlock {
    pub(super) name: Box<[u8]>,
    shown: Box<str>,
    tests: Tests,
    required: Vec<(Box<str>, Template)>,
}

/// Conditions as written.
pub(super) struct RawMatchBlock {
    pub(super) name: Box<[u8]>,
    tests: Tests,
    required: Vec<Word>,
}

/// Conditions on the response itself.
#[derive(Default)]
struct Tests {
    statuses: Vec<(Sense, Vec<RangeInclusive<u16>>)>,
    fields: Vec<(Box<[u8]>, FieldTest)>,
    bodies: Vec<(Sense, Regex)>,
}

/// Sense of a condition: required or forbidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sense {
    Is,
    IsNot,
}

/// Condition on a field.
enum FieldTest {
    /// The field exists.
    Present,
    /// The field does not exist.
    Missing,
    /// The field exists, with or without this value.
    Value(Sense, Box<[u8]>),
    /// The field exists, with a value like this or without one.
    Like(Sense, Regex),
}

impl Sense {
    fn holds(self, so: bool) -> bool {
        so == (self == Self::Is)
    }
}

impl RawMatchBlock {
    /// Reads a block.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut raw =
            Self { name: node.arg(0)?.bytes.clone(), tests: Tests::default(), required: Vec::new() };
        for line in node.children()? {
            refuse_block(line)?;
            match &*line.name.bytes {
                b"status" => raw.tests.statuses.push(statuses(line)?),
                b"header" => raw.tests.fields.push(field(line)?),
                b"body" => raw.tests.bodies.push(body(line)?),
                b"require" if !line.args.is_empty() => {
                    for word in &line.args {
                        variable_name(line, word)?;
                        raw.required.push(word.clone());
                    }
                }
                b"require" => return Err(line.invalid_count()),
                b"send" | b"expect" => {
                    return Err(line
                        .fail(format!("\"{}\" belongs to a \"match\" of the stream block", line.name))
                        .hint("an answer over HTTP is tested by \"status\", \"header\", \"body\" and \"require\""));
                }
                _ => {
                    return Err(line
                        .fail(format!("unknown test \"{}\" in \"match\"", line.name))
                        .hint("there are \"status\", \"header\", \"body\" and \"require\""));
                }
            }
        }
        Ok(raw)
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<MatchBlock, ConfError> {
        let mut required = Vec::with_capacity(self.required.len());
        for word in self.required {
            required.push((word.lossy().into(), cx.template(&word)?));
        }
        let shown = String::from_utf8_lossy(&self.name).into();
        Ok(MatchBlock { name: self.name, shown, tests: self.tests, required })
    }
}

impl HealthCriteria for MatchBlock {
    fn name(&self) -> &str {
        &self.shown
    }

    fn wants_body(&self) -> bool {
        !self.tests.bodies.is_empty()
    }

    fn failure(&self, r: &Request, body: &[u8]) -> Option<String> {
        let answer = &r.upstream.answer;
        self.tests.failure(answer.status, &answer.fields, body).or_else(|| {
            let is_unset = |template: &Template| matches!(&*template.value(r), b"" | b"0");
            let unset = self.required.iter().find(|(_, template)| is_unset(template));
            unset.map(|(name, _)| format!("{name} is empty or 0"))
        })
    }
}

impl Tests {
    /// The first thing that is not as it must be.
    fn failure(&self, status: u16, fields: &Fields, body: &[u8]) -> Option<String> {
        let is_in = |ranges: &[RangeInclusive<u16>]| ranges.iter().any(|range| range.contains(&status));
        if self.statuses.iter().any(|(sense, ranges)| !sense.holds(is_in(ranges))) {
            return Some(format!("status {status}"));
        }
        for (name, test) in &self.fields {
            let first = fields.get_all(name).next();
            let has = |like: &dyn Fn(&[u8]) -> bool| fields.get_all(name).any(like);
            let holds = match test {
                FieldTest::Present => first.is_some(),
                FieldTest::Missing => first.is_none(),
                FieldTest::Value(sense, value) => {
                    first.is_some() && sense.holds(has(&|candidate| *candidate == **value))
                }
                FieldTest::Like(sense, regex) => {
                    first.is_some() && sense.holds(has(&|candidate| is_like(regex, candidate)))
                }
            };
            if !holds {
                let name = Text(name);
                return Some(match first {
                    Some(value) => format!("header \"{name}: {}\"", Text(value)),
                    None => format!("no header \"{name}\""),
                });
            }
        }
        let is_wrong = |(sense, regex): &&(Sense, Regex)| !sense.holds(is_like(regex, body));
        let (sense, regex) = self.bodies.iter().find(is_wrong)?;
        let verb = if *sense == Sense::Is { "does not match" } else { "matches" };
        Some(format!("body {verb} \"{}\"", regex.pattern()))
    }
}

/// A match that was given up is none.
fn is_like(regex: &Regex, text: &[u8]) -> bool {
    regex.is_match(text) == Ok(Match::Yes)
}

/// `status [!] code[-code] …`
fn statuses(line: &Node) -> Result<(Sense, Vec<RangeInclusive<u16>>), ConfError> {
    let (sense, words) = match line.args.split_first() {
        Some((first, rest)) if first.is("!") => (Sense::IsNot, rest),
        _ => (Sense::Is, &*line.args),
    };
    if words.is_empty() {
        return Err(line.invalid_count());
    }
    let ranges = words
        .iter()
        .map(|word| range(&word.bytes).ok_or_else(|| line.fail(format!("invalid status \"{word}\""))));
    Ok((sense, ranges.collect::<Result<_, _>>()?))
}

fn range(text: &[u8]) -> Option<RangeInclusive<u16>> {
    let text = std::str::from_utf8(text).ok()?;
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let code = |text: &str| match text.as_bytes() {
        [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => text.parse::<u16>().ok(),
        _ => None,
    };
    let range = code(from)?..=code(to)?;
    (!range.is_empty()).then_some(range)
}

/// `header name`, `header ! name`, `header name =|!=|~|!~ value`
fn field(line: &Node) -> Result<(Box<[u8]>, FieldTest), ConfError> {
    Ok(match &*line.args {
        [not, name] if not.is("!") => (name.bytes.clone(), FieldTest::Missing),
        [name] if !name.is("!") => (name.bytes.clone(), FieldTest::Present),
        [name, operator, value] => {
            let test = match &*operator.bytes {
                b"=" => FieldTest::Value(Sense::Is, value.bytes.clone()),
                b"!=" => FieldTest::Value(Sense::IsNot, value.bytes.clone()),
                _ => {
                    let (sense, regex) = pattern(line, operator, value)?;
                    FieldTest::Like(sense, regex)
                }
            };
            (name.bytes.clone(), test)
        }
        _ => return Err(line.invalid_count()),
    })
}

/// `body ~|!~ pattern`
fn body(line: &Node) -> Result<(Sense, Regex), ConfError> {
    let [operator, value] = line.words()?;
    pattern(line, operator, value)
}

fn pattern(line: &Node, operator: &Word, value: &Word) -> Result<(Sense, Regex), ConfError> {
    let (sense, caseless) = match &*operator.bytes {
        b"~" => (Sense::Is, Caseless::No),
        b"~*" => (Sense::Is, Caseless::Yes),
        b"!~" => (Sense::IsNot, Caseless::No),
        b"!~*" => (Sense::IsNot, Caseless::Yes),
        _ => return Err(line.fail(format!("invalid operator \"{operator}\""))),
    };
    let failed = |error| line.fail(format!("regex compilation failed: {error} in \"{value}\""));
    Ok((sense, Regex::new(&value.bytes, caseless).map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Reader, Tree};
    use tw_http::fields::{Name, Value};

    use super::*;

    fn read(lines: &str) -> Result<Tests, String> {
        let mut tree = Tree::default();
        let text = format!("match m {{ {lines} }}");
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"test.conf", text.as_bytes()).unwrap();
        RawMatchBlock::read(&tree.nodes[0]).map(|raw| raw.tests).map_err(|error| error.message)
    }

    #[test]
    fn statuses_that_pass() {
        for (lines, passing, failing) in [
            ("", &[200, 500][..], &[][..]),
            ("status 200;", &[200], &[201, 500]),
            ("status ! 500;", &[200, 501], &[500]),
            ("status 200 204;", &[200, 204], &[201]),
            ("status ! 301 302;", &[200, 303], &[301, 302]),
            ("status 200-399;", &[200, 299, 399], &[199, 400]),
            ("status ! 400-599;", &[399, 600], &[400, 599]),
            ("status 301-303 307;", &[301, 302, 303, 307], &[300, 304]),
            ("status 200-299; status ! 204;", &[200, 205], &[204, 300]),
        ] {
            let tests = read(lines).unwrap();
            for status in passing {
                assert_eq!(tests.failure(*status, &Fields::default(), b""), None, "{lines}");
            }
            for status in failing {
                let failure = tests.failure(*status, &Fields::default(), b"");
                assert_eq!(failure, Some(format!("status {status}")), "{lines}");
            }
        }
    }

    #[test]
    fn fields_and_bodies_that_pass() {
        let mut fields = Fields::default();
        for (name, value) in [("Content-Type", "text/html"), ("Via", "a"), ("via", "b")] {
            fields.append(Name::Copy(name.as_bytes()), Value::Copy(value.as_bytes()));
        }
        for (line, failure) in [
            ("header content-type = text/html", None),
            ("header Content-Type = text/plain", Some("header \"Content-Type: text/html\"")),
            ("header Content-Type != text/plain", None),
            ("header Content-Type != text/html", Some("header \"Content-Type: text/html\"")),
            ("header Refresh != a", Some("no header \"Refresh\"")),
            ("header Via = b", None),
            ("header Via != b", Some("header \"Via: a\"")),
            ("header Via ~ ^B$", Some("header \"Via: a\"")),
            ("header Via ~* ^B$", None),
            ("header Via !~ c", None),
            ("header Via !~* B", Some("header \"Via: a\"")),
            ("header Refresh !~ a", Some("no header \"Refresh\"")),
            ("header Via", None),
            ("header Refresh", Some("no header \"Refresh\"")),
            ("header ! Refresh", None),
            ("header ! Via", Some("header \"Via: a\"")),
            ("body ~ \"Welcome to\"", None),
            ("body ~ welcome", Some("body does not match \"welcome\"")),
            ("body !~ maintenance", None),
            ("body !~* WELCOME", Some("body matches \"WELCOME\"")),
        ] {
            let tests = read(&format!("{line};")).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(tests.failure(200, &fields, b"Welcome to us").as_deref(), failure, "{line}");
        }
    }

    #[test]
    fn mistakes() {
        for (line, error) in [
            ("status", "invalid number of arguments in \"status\" directive"),
            ("status !", "invalid number of arguments in \"status\" directive"),
            ("status !500", "invalid status \"!500\""),
            ("status 99", "invalid status \"99\""),
            ("status 0200", "invalid status \"0200\""),
            ("status 300-200", "invalid status \"300-200\""),
            ("status 200-", "invalid status \"200-\""),
            ("status 200-300-400", "invalid status \"200-300-400\""),
            ("header", "invalid number of arguments in \"header\" directive"),
            ("header !", "invalid number of arguments in \"header\" directive"),
            ("header A b", "invalid number of arguments in \"header\" directive"),
            ("header A == b", "invalid operator \"==\""),
            ("body", "invalid number of arguments in \"body\" directive"),
            ("body = a", "invalid operator \"=\""),
            ("require", "invalid number of arguments in \"require\" directive"),
            ("require a", "invalid variable name \"a\""),
            ("expect ~ a", "\"expect\" belongs to a \"match\" of the stream block"),
            ("stats 200", "unknown test \"stats\" in \"match\""),
        ] {
            assert_eq!(read(&format!("{line};")).err().as_deref(), Some(error), "{line}");
        }
        let given_up = read("body ~ (a;").err().unwrap();
        assert!(given_up.starts_with("regex compilation failed: "), "{given_up}");
        assert_eq!(read("status 200 { }").err().as_deref(), Some("unexpected \"{\""));
    }
}
