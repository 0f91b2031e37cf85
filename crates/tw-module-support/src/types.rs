//! Lists of media types that a filter works on (`gzip_types`, `sub_filter_types` and their like).

use std::sync::Arc;

use tw_conf::{Cx, Node, Setting};
use tw_http::ResponseHead;

/// A list as written.
pub type RawTypes = Setting<TypeList>;

/// Media types in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeList {
    /// `*`
    Any,
    /// Types of a list.
    These(Vec<Box<[u8]>>),
}

/// The media types a filter works on.
#[derive(Debug, Clone)]
pub struct Types(Arc<TypeList>);

/// Adds the words of `node` to the types a filter works on by itself, which are in lower case. Like nginx, warns about a
/// type that is there already, and takes nothing more after `*`.
pub fn add(raw: &mut RawTypes, node: &Node, defaults: &[&str], cx: &mut Cx<'_>) {
    if !raw.is_set() {
        let defaults = defaults.iter().map(|name| name.as_bytes().into()).collect();
        raw.replace(node, TypeList::These(defaults));
    }
    let Some(list) = raw.get_mut() else { return };
    for word in &node.args {
        let TypeList::These(types) = list else { return };
        let name = word.bytes.to_ascii_lowercase().into_boxed_slice();
        if *name == *b"*" {
            *list = TypeList::Any;
        } else if types.contains(&name) {
            cx.warn(word.span, format!("duplicate MIME type \"{}\"", String::from_utf8_lossy(&name)));
        } else {
            types.push(name);
        }
    }
}

impl Types {
    /// The list as used: this one, else the outer block's, else the defaults.
    pub fn resolve(raw: RawTypes, outer: Option<&Self>, defaults: &[&str]) -> Self {
        match (raw.take(), outer) {
            (Some(list), _) => Self(Arc::new(list)),
            (None, Some(outer)) => outer.clone(),
            (None, None) => {
                let defaults = defaults.iter().map(|name| name.as_bytes().into()).collect();
                Self(Arc::new(TypeList::These(defaults)))
            }
        }
    }

    /// Returns `true` if a response with this head has one of the types. Parameters of the type do not matter. Does not
    /// allocate.
    pub fn contain(&self, head: &ResponseHead) -> bool {
        let TypeList::These(types) = &*self.0 else { return true };
        let name = head.content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        // DIFF(nginx): the two names of JavaScript are one.
        let is_script = is_javascript(name);
        types
            .iter()
            .any(|candidate| name.eq_ignore_ascii_case(candidate) || is_script && is_javascript(candidate))
    }
}

/// Returns `true` for JavaScript, by its name of RFC 9239 or the one it had before.
fn is_javascript(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"text/javascript") || name.eq_ignore_ascii_case(b"application/javascript")
}

#[cfg(test)]
mod tests {
    use tw_conf::{Diagnostics, HTTP, MemoryFiles, Reader, Tree};

    use super::*;

    const DEFAULTS: &[&str] = &["text/html"];

    fn read(text: &str) -> (Types, usize) {
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
        let mut raw = RawTypes::default();
        for node in &tree.nodes {
            add(&mut raw, node, DEFAULTS, &mut cx);
        }
        (Types::resolve(raw, None, DEFAULTS), diagnostics.iter().count())
    }

    #[test]
    fn lists() {
        for (text, warnings, content_type, expected) in [
            ("", 0, "text/html", true),
            ("", 0, "TEXT/html ; charset=x", true),
            ("", 0, "text/htmlx", false),
            ("", 0, "", false),
            ("t text/css;", 0, "text/html", true),
            ("t Text/CSS; t a/b;", 0, "text/css", true),
            ("t Text/CSS; t a/b;", 0, "a/b;c", true),
            ("t text/html a/b a/b;", 2, "a/b", true),
            ("t *;", 0, "anything", true),
            ("t *;", 0, "", true),
            ("t a/b *; t text/html;", 0, "x/y", true),
            ("", 0, "text/javascript", false),
            ("t text/javascript;", 0, "Application/JavaScript; charset=utf-8", true),
            ("t application/javascript;", 0, "text/javascript", true),
            ("t application/javascript text/javascript;", 0, "text/javascript", true),
            ("t application/javascript;", 0, "text/x-javascript", false),
        ] {
            let (types, warned) = read(text);
            let mut head = ResponseHead::new(200);
            head.content_type = content_type.as_bytes().to_vec().into();
            assert_eq!((warned, types.contain(&head)), (warnings, expected), "{text} {content_type}");
        }
    }
}
