//! `json_set`: variables with values of JSON documents in other variables (nginx: ngx_http_json_module). Computed variables.
//!
//! A document is parsed once for each source and request: a slot of the source, whose name no configuration can write, keeps the
//! values of all its variables.

mod document;
mod path;

use std::collections::HashSet;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, Node, Setting, Word, record};
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::Value;
use tw_log::Level;
use tw_module_support::block::variable_name;
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{SlotKind, Template};

use self::document::{SIZE_MAX, Unusable};
use self::path::PathNode;

/// Default of `json_max_depth`.
const DEPTH_DEFAULT: u64 = 32;
/// Largest `json_max_depth`.
const DEPTH_MAX: u64 = 256;

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    variables: Vec<RawVariable>,
    max_depth: Setting<u64>,
}

/// `json_set $variable $source path`
struct RawVariable {
    variable: Word,
    /// `$source`
    source: Word,
    path: Word,
}

/// Module without settings: its variables belong to the whole configuration.
pub(crate) struct Json;

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// A JSON document of `json_set`.
    constant bytes SIZE_MAX, "its variables are missing";
    /// Depth of a JSON document of `json_set`.
    directive "json_max_depth", "its variables are missing";
}

impl Settings<Http> for Json {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("json_set", "$variable $source path", HTTP, Args::exact(3))
            .since("1.31.5")
            .doc("Defines a variable whose value stands in the JSON document that another variable has: members of objects are separated by dots or written as [\"name\"], elements of arrays as [0]. Numbers, objects and arrays are given as they are written.")
            .set(|raw, node, _| {
                raw.variables.push(RawVariable::read(node)?);
                Ok(())
            }),
        record::number("json_max_depth", HTTP)
            .default("32")
            .since("1.31.5")
            .doc("Largest depth of JSON documents of json_set; the variables of a deeper one are missing.")
            .set(|raw, node, _| {
                raw.max_depth.set_with(node, |node| match node.number()? {
                    depth @ 1..=DEPTH_MAX => Ok(depth),
                    _ => Err(node.fail(format!("value must be between 1 and {DEPTH_MAX}"))),
                })
            }),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let max_depth = raw.max_depth.or(None, DEPTH_DEFAULT) as usize;
        let mut sources: Vec<Source> = Vec::new();
        let mut defined = HashSet::new();
        for variable in raw.variables {
            let name = variable.variable.lossy().to_ascii_lowercase();
            if !defined.insert(name) {
                let name = variable.variable.lossy();
                let message =
                    format!("json_set variable \"{}\" is already defined", name.trim_start_matches('$'));
                return Err(ConfError::new(message).at(variable.variable.span));
            }
            let source = variable.source.lossy().to_ascii_lowercase();
            let at =
                sources.iter().position(|known_source| *known_source.name == source).unwrap_or_else(|| {
                    sources.push(Source::new(source, variable.source.clone()));
                    sources.len() - 1
                });
            sources[at].add(variable)?;
        }
        for source in sources {
            source.define(max_depth, cx)?;
        }
        Ok(Self)
    }

    fn are_shared(&self) -> bool {
        true
    }
}

impl RawVariable {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let [variable, source, path] = node.words()?;
        variable_name(node, variable)?;
        variable_name(node, source)?;
        Ok(Self { variable: variable.clone(), source: source.clone(), path: path.clone() })
    }
}

/// Variables of one document.
struct Source {
    /// `$source` in lower case.
    name: String,
    word: Word,
    /// Names of the variables, in the order of the numbers in `paths`.
    variables: Vec<Word>,
    paths: PathNode,
}

impl Source {
    fn new(name: String, word: Word) -> Self {
        Self { name, word, variables: Vec::new(), paths: PathNode::default() }
    }

    fn add(&mut self, RawVariable { variable, path, .. }: RawVariable) -> Result<(), ConfError> {
        let number = self.variables.len();
        self.paths.insert(&path.bytes, number).map_err(|error| error.into_error(&path))?;
        self.variables.push(variable);
        Ok(())
    }

    fn define(self, max_depth: usize, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
        let paths = self.paths;
        let count = self.variables.len();
        // The name of the source is a name, so this is no pattern of several.
        let source = cx.template(&self.word)?;
        let parse = move |r: &Request, out: &mut Vec<u8>| extract(r, &source, &paths, count, max_depth, out);
        let document =
            cx.vars.define(&format!("json_set {}", self.name), SlotKind::Computed(Arc::new(parse)));
        for (number, variable) in self.variables.iter().enumerate() {
            let pick = move |r: &Request, out: &mut Vec<u8>| pick(r, document, number, out);
            tw_module_support::block::define(cx, variable, SlotKind::Computed(Arc::new(pick)), None)?;
        }
        Ok(())
    }
}

/// Appends the values of all `count` variables of a source, encoded by [`encode`]; nothing if it has no document that can be
/// used.
fn extract(
    r: &Request,
    source: &Template,
    paths: &PathNode,
    count: usize,
    max_depth: usize,
    out: &mut Vec<u8>,
) -> Value {
    let text = source.value(r);
    if text.is_empty() {
        return Value::Missing;
    }
    match document::extract(&text, paths, count, max_depth) {
        Ok(values) => {
            encode(&values, out);
            Value::Found
        }
        Err(Unusable::TooLarge) => {
            let size = text.len();
            r.log(
                Level::Info,
                format_args!("json_set: document of {size} bytes is larger than {SIZE_MAX} bytes"),
            );
            Value::Missing
        }
        Err(Unusable::Invalid) => {
            r.debug(format_args!("json_set: invalid JSON source"));
            Value::Missing
        }
    }
}

/// Appends the value with this number of those that the slot of a document has.
fn pick(r: &Request, document: u16, number: usize, out: &mut Vec<u8>) -> Value {
    let start = out.len();
    r.slot(document, out);
    let range = decode(&out[start..], number).map(|value| (start + value.start)..(start + value.end));
    match range {
        Some(value) => {
            let len = value.len();
            out.copy_within(value, start);
            out.truncate(start + len);
            Value::Found
        }
        None => {
            out.truncate(start);
            Value::Missing
        }
    }
}

/// Appends values one after the other, each behind its length and 1, or 0 if it is missing.
fn encode(values: &[Option<Vec<u8>>], out: &mut Vec<u8>) {
    for value in values {
        // The values are parts of a document, which is shorter than 4 GiB, so the cast is exact.
        let mark = value.as_ref().map_or(0, |value| value.len() as u32 + 1);
        out.extend_from_slice(&mark.to_le_bytes());
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
}

/// Place of a value among those that [`encode`] has written.
fn decode(mut rest: &[u8], number: usize) -> Option<std::ops::Range<usize>> {
    let mut at = 0;
    for current in 0..=number {
        let (mark, after) = rest.split_first_chunk::<4>()?;
        let mark = u32::from_le_bytes(*mark) as usize;
        let len = mark.saturating_sub(1);
        at += 4;
        if current == number {
            return (mark > 0).then_some(at..at + len);
        }
        rest = after.get(len..)?;
        at += len;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_and_decoded() {
        let values = [Some(b"a".to_vec()), None, Some(Vec::new()), Some(b"bcd".to_vec())];
        let mut text = Vec::new();
        encode(&values, &mut text);
        for (number, value) in values.iter().enumerate() {
            let found_value = decode(&text, number).map(|value| text[value].to_vec());
            assert_eq!(found_value, *value, "{number}");
        }
        assert_eq!(decode(&text, 4), None);
        assert_eq!(decode(b"", 0), None);
    }
}
