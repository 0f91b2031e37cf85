//! Native function of the module `xml`: the tokens of a document. `xml.js` makes the tree of them.
//!
//! Entities are those of XML itself; a reference to another one is nothing in a document with a `DOCTYPE`, and an error without. Nothing outside
//! of the text is read.

use std::borrow::Cow;
use std::rc::Rc;

use quick_xml::Reader;
use quick_xml::escape::{resolve_predefined_entity, unescape};
use quick_xml::events::{BytesRef, BytesStart, Event};
use rquickjs::{Ctx, Exception, Object, Value};

use super::function::natives;
use crate::state::State;

tw_base::limits! {
    /// Limits of XML.
    pub(crate) const LIMITS;

    /// Elements inside of each other.
    const DEPTH_MAX: usize = 128, count, "parsing fails";
    /// Attributes of one element.
    const ATTRIBUTES_MAX: usize = 1024, count, "parsing fails";
}

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        parse_xml(text: Value<'js>);
    }
    Ok(())
}

/// Token: its kind, then its parts. Kinds are `start` (name, attributes as name and value), `end`, `text`, `comment` and `instruction` (target,
/// data).
type Token = Vec<String>;

/// Mistake of a document, with its offset.
struct Mistake {
    reason: String,
    offset: usize,
}

/// Tokens of a document.
fn tokens(text: &str) -> Result<Vec<Token>, Mistake> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    reader.config_mut().check_comments = true;
    let mut document = Document::default();
    loop {
        let offset = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let mistake = |reason: String| Mistake { reason, offset };
        let event = reader.read_event().map_err(|error| Mistake {
            reason: error.to_string(),
            offset: usize::try_from(reader.error_position()).unwrap_or(usize::MAX),
        })?;
        if event == Event::Eof {
            return document.end().map_err(mistake);
        }
        document.take(event).map_err(mistake)?;
    }
}

/// A document as far as it was read.
#[derive(Default)]
struct Document {
    tokens: Vec<Token>,
    depth: usize,
    has_root: bool,
    has_doctype: bool,
}

impl Document {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Start(start) => self.start(&start),
            Event::End(_) => {
                self.depth = self.depth.saturating_sub(1);
                self.push("end", []);
                Ok(())
            }
            // Elements without content were expanded.
            Event::Empty(_) | Event::Eof | Event::Decl(_) => Ok(()),
            Event::Text(text) => self.text(&lines(&decoded(&text)?)),
            Event::CData(text) => self.text(&lines(&decoded(&text)?)),
            Event::GeneralRef(_) if self.depth == 0 => {
                Err("extra content at the end of the document".to_owned())
            }
            Event::GeneralRef(reference) => {
                let text = self.resolve(&reference)?;
                self.text(&text)
            }
            Event::Comment(text) => {
                self.push("comment", [lines(&decoded(&text)?).into_owned()]);
                Ok(())
            }
            Event::PI(instruction) => {
                let target = decoded(instruction.target())?.into_owned();
                let data = lines(decoded(instruction.content())?.trim_start()).into_owned();
                self.push("instruction", [target, data]);
                Ok(())
            }
            Event::DocType(_) if self.has_root => Err("DOCTYPE behind the root element".to_owned()),
            Event::DocType(_) => {
                self.has_doctype = true;
                Ok(())
            }
        }
    }

    fn push(&mut self, kind: &str, parts: impl IntoIterator<Item = String>) {
        self.tokens.push([kind.to_owned()].into_iter().chain(parts).collect());
    }

    fn start(&mut self, start: &BytesStart<'_>) -> Result<(), String> {
        if self.depth == 0 && self.has_root {
            return Err("extra content at the end of the document".to_owned());
        }
        if self.depth == DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} elements inside of each other"));
        }
        self.depth += 1;
        self.has_root = true;
        let mut parts = vec![name(start.name().as_ref())?];
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| error.to_string())?;
            if parts.len() > 2 * ATTRIBUTES_MAX {
                return Err(format!("more than {ATTRIBUTES_MAX} attributes"));
            }
            parts.push(name(attribute.key.as_ref())?);
            parts.push(self.attribute(&decoded(&attribute.value)?)?);
        }
        self.push("start", parts);
        Ok(())
    }

    /// Value of an attribute: white space is spaces, unless it was written as references.
    fn attribute(&self, raw: &str) -> Result<String, String> {
        if raw.contains('<') {
            return Err("unescaped '<' in the value of an attribute".to_owned());
        }
        let spaced = lines(raw).replace(['\t', '\n', '\r'], " ");
        match unescape(&spaced) {
            Ok(value) => Ok(value.into_owned()),
            // Entities of a DOCTYPE are not expanded.
            Err(_) if self.has_doctype => Ok(without_references(&spaced)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn text(&mut self, text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        if self.depth > 0 {
            match self.tokens.last_mut().map(Vec::as_mut_slice) {
                Some([kind, known]) if kind == "text" => known.push_str(text),
                _ => self.push("text", [text.to_owned()]),
            }
            return Ok(());
        }
        match text.trim_start_matches('\u{feff}').trim().is_empty() {
            true => Ok(()),
            false if self.has_root => Err("extra content at the end of the document".to_owned()),
            false => Err("start tag expected, '<' not found".to_owned()),
        }
    }

    fn resolve(&self, reference: &BytesRef<'_>) -> Result<String, String> {
        if let Some(character) = reference.resolve_char_ref().map_err(|error| error.to_string())? {
            return Ok(character.to_string());
        }
        let name = decoded(reference)?;
        match resolve_predefined_entity(&name) {
            Some(text) => Ok(text.to_owned()),
            None if self.has_doctype => Ok(String::new()),
            None => Err(format!("entity '{name}' not defined")),
        }
    }

    fn end(self) -> Result<Vec<Token>, String> {
        match (self.depth, self.has_root) {
            (0, true) => Ok(self.tokens),
            (0, false) => Err("start tag expected, '<' not found".to_owned()),
            _ => Err("an element is not closed".to_owned()),
        }
    }
}

fn decoded(bytes: &[u8]) -> Result<Cow<'_, str>, String> {
    str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| "the document is not UTF-8".to_owned())
}

/// Text whose lines end as XML has it.
fn lines(text: &str) -> Cow<'_, str> {
    match text.contains('\r') {
        true => Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n")),
        false => Cow::Borrowed(text),
    }
}

/// A name of XML.
fn name(bytes: &[u8]) -> Result<String, String> {
    let text = decoded(bytes)?;
    let is_start = |character: char| character == '_' || character == ':' || character.is_alphabetic();
    let is_part = |character: char| {
        is_start(character)
            || matches!(character, '-' | '.' | '\u{b7}')
            || character.is_numeric()
            || character > '\u{2ff}'
    };
    match text.starts_with(is_start) && text.chars().all(is_part) {
        true => Ok(text.into_owned()),
        false => Err(format!("\"{text}\" is no name")),
    }
}

/// A value with its predefined references resolved and all others removed.
fn without_references(value: &str) -> String {
    let mut parts = value.split('&');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (reference, rest) = part.split_once(';').unwrap_or((part, ""));
        let resolved = unescape(&format!("&{reference};")).map(Cow::into_owned).unwrap_or_default();
        text.push_str(&resolved);
        text.push_str(rest);
    }
    text
}

/// Line and column of an offset, from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.as_bytes().get(..offset.min(text.len())).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    (line, before.len() - start + 1)
}

impl State {
    fn parse_xml<'js>(&self, ctx: &Ctx<'js>, text: Value<'js>) -> rquickjs::Result<Vec<Token>> {
        let bytes = self.bytes(ctx, &text)?;
        let Ok(text) = str::from_utf8(&bytes) else {
            return Err(Exception::throw_syntax(ctx, "failed to parse XML (the document is not UTF-8)"));
        };
        tokens(text).map_err(|Mistake { reason, offset }| {
            let (line, column) = place(text, offset);
            Exception::throw_syntax(ctx, &format!("failed to parse XML ({reason} at {line}:{column})"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, String> {
        let tokens = tokens(text).map_err(|Mistake { reason, offset }| format!("{reason} at {offset}"))?;
        Ok(tokens.iter().map(|token| token.join(",")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn tokens_of_documents() {
        for (text, expected) in [
            ("<a/>", "start,a end"),
            (
                "<?xml version=\"1.0\"?>\n<a b='1' c:d=\"&lt;&#x41;\">x&amp;y<![CDATA[<z>]]></a>\n",
                "start,a,b,1,c:d,<A text,x&y<z> end",
            ),
            ("<!-- c --><?p  q r?><a>\r\n</a>", "comment, c  instruction,p,q r start,a text,\n end"),
            ("<!DOCTYPE a [<!ENTITY e SYSTEM \"x\">]><a b=\"1&e;2&lt;\">&e;</a>", "start,a,b,12< end"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn mistakes_have_reasons() {
        let deep = "<a>".repeat(DEPTH_MAX + 1);
        for (text, reason) in [
            ("", "start tag expected"),
            ("GARBAGE", "start tag expected"),
            ("<a>", "not closed"),
            ("<a></b>", "expected `</a>`"),
            ("<a/><b/>", "extra content"),
            ("<a/>x", "extra content"),
            ("<a>&e;</a>", "entity 'e' not defined"),
            ("<a b='1' b='2'/>", "duplicate"),
            ("<a b='<'/>", "unescaped"),
            ("<1a/>", "\"1a\" is no name"),
            (&deep, "inside of each other"),
        ] {
            let error = shown(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn places_are_lines_and_columns() {
        assert_eq!((place("ab\ncd", 0), place("ab\ncd", 4)), ((1, 1), (2, 2)));
    }
}
