//! Names of claims and of parameters of the header: plain, nested (`auth_jwt_allow_nested`), and paths such as `.groups[0].name`.

use serde_json::{Map, Value as Json};
use tw_conf::{ConfError, Node};

/// Name of a value in a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimName {
    /// Name at the top, or a nested one.
    Plain(Box<str>),
    /// Path that begins at the top.
    Path(Box<[PathStep]>),
}

/// Step of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathStep {
    Member(Box<str>),
    Element(usize),
}

/// Syntax of nested names (`auth_jwt_allow_nested`).
#[derive(Debug, Clone)]
pub(super) struct Nesting {
    /// Text between two names; not empty.
    pub(super) delimiter: Box<str>,
    /// Text around a name that has the delimiter in it; not empty.
    pub(super) quote: Box<str>,
}

impl Default for Nesting {
    fn default() -> Self {
        Self { delimiter: ".".into(), quote: "\"".into() }
    }
}

impl Nesting {
    /// Reads `[delimiter=text] [quote=text]`.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut nesting = Self::default();
        for word in &node.args {
            let (part, text) = match (word.param("delimiter"), word.param("quote")) {
                (Some(text), _) => (&mut nesting.delimiter, text),
                (_, Some(text)) => (&mut nesting.quote, text),
                _ => return Err(node.invalid_parameter(word)),
            };
            let text = str::from_utf8(text).ok().filter(|text| !text.is_empty());
            *part = text.ok_or_else(|| node.invalid_parameter(word))?.into();
        }
        if nesting.delimiter == nesting.quote {
            return Err(node.error("has the same text as delimiter and as quote"));
        }
        Ok(nesting)
    }
}

impl ClaimName {
    /// Reads a name. One that begins with a dot is a path.
    ///
    /// # Errors
    /// A reason for the person who configures.
    pub(super) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let text = str::from_utf8(text).map_err(|_| "it is no UTF-8")?;
        match text.as_bytes() {
            [] => Err("it is empty"),
            [b'[', ..] => Err("a path begins with a name"),
            [b'.', ..] => path(text).map(Self::Path),
            _ => Ok(Self::Plain(text.into())),
        }
    }

    /// Returns `true` if this names the member `name` at the top.
    pub(super) fn is_top(&self, name: &str) -> bool {
        match self {
            Self::Plain(text) => **text == *name,
            Self::Path(steps) => matches!(&**steps, [PathStep::Member(only)] if **only == *name),
        }
    }

    /// The value of this name.
    pub(super) fn find<'j>(
        &self,
        members: &'j Map<String, Json>,
        nesting: Option<&Nesting>,
    ) -> Option<&'j Json> {
        let steps = match self {
            Self::Plain(name) => return find(members, name, nesting),
            Self::Path(steps) => steps,
        };
        let (first, rest) = steps.split_first()?;
        let PathStep::Member(first) = first else { return None };
        rest.iter().try_fold(members.get(&**first)?, |value, step| match step {
            PathStep::Member(name) => value.as_object()?.get(&**name),
            PathStep::Element(at) => value.as_array()?.get(*at),
        })
    }
}

/// The value of a name at the top, or of a nested one.
pub(super) fn find<'j>(
    members: &'j Map<String, Json>,
    name: &str,
    nesting: Option<&Nesting>,
) -> Option<&'j Json> {
    let Some(nesting) = nesting else { return members.get(name) };
    let mut members = members;
    let mut rest = name;
    loop {
        let (first, behind) = nesting.split_first(rest);
        let value = members.get(first)?;
        match behind {
            None => return Some(value),
            Some(behind) => {
                members = value.as_object()?;
                rest = behind;
            }
        }
    }
}

impl Nesting {
    /// The first name, and those behind its delimiter.
    fn split_first<'n>(&self, names: &'n str) -> (&'n str, Option<&'n str>) {
        let quoted = names.strip_prefix(&*self.quote).and_then(|inner| inner.split_once(&*self.quote));
        if let Some((name, behind)) = quoted {
            if behind.is_empty() {
                return (name, None);
            }
            if let Some(behind) = behind.strip_prefix(&*self.delimiter) {
                return (name, Some(behind));
            }
        }
        match names.split_once(&*self.delimiter) {
            Some((name, behind)) => (name, Some(behind)),
            None => (names, None),
        }
    }
}

/// Steps of a path such as `.a."b.c"[0]`.
fn path(text: &str) -> Result<Box<[PathStep]>, &'static str> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (step, behind) = if let Some(inner) = rest.strip_prefix('[') {
            let (number, behind) = inner.split_once(']').ok_or("\"]\" is missing in the path")?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().ok().filter(|_| is_number).ok_or("an element is a number")?;
            (PathStep::Element(number), behind)
        } else if let Some(inner) = rest.strip_prefix(".\"") {
            let (name, behind) = inner.split_once('"').ok_or("a quote is missing in the path")?;
            (PathStep::Member(name.into()), behind)
        } else if let Some(inner) = rest.strip_prefix('.') {
            let end = inner.find(['.', '[']).unwrap_or(inner.len());
            let (name, behind) = inner.split_at(end);
            if name.is_empty() || name.contains(['"', ']']) {
                return Err("a name is missing in the path");
            }
            (PathStep::Member(name.into()), behind)
        } else {
            return Err("a step of a path begins with \".\" or \"[\"");
        };
        steps.push(step);
        rest = behind;
    }
    Ok(steps.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_lead_to_values() {
        let claims = json!({
            "sub": "a",
            "info": { "city": "b", "dotted.key": "c" },
            "dotted.key": "d",
            "groups": [{ "name": "e" }, [1, 2]],
        });
        let claims = claims.as_object().unwrap();
        let dots = Nesting::default();
        let arrows = Nesting { delimiter: "->".into(), quote: "'".into() };
        for (name, nesting, expected) in [
            ("sub", None, Some(json!("a"))),
            ("info.city", None, None),
            ("dotted.key", None, Some(json!("d"))),
            ("info.city", Some(&dots), Some(json!("b"))),
            ("dotted.key", Some(&dots), None),
            ("\"dotted.key\"", Some(&dots), Some(json!("d"))),
            ("info.\"dotted.key\"", Some(&dots), Some(json!("c"))),
            ("info.city.x", Some(&dots), None),
            ("\"info\".city", Some(&dots), Some(json!("b"))),
            ("\"info\"city", Some(&dots), None),
            ("info->city", Some(&arrows), Some(json!("b"))),
            ("info->'dotted.key'", Some(&arrows), Some(json!("c"))),
            ("info.city", Some(&arrows), None),
            (".sub", None, Some(json!("a"))),
            (".info.city", None, Some(json!("b"))),
            (".info.city", Some(&arrows), Some(json!("b"))),
            (".\"dotted.key\"", None, Some(json!("d"))),
            (".info.\"dotted.key\"", None, Some(json!("c"))),
            (".groups[0].name", None, Some(json!("e"))),
            (".groups[1][1]", None, Some(json!(2))),
            (".groups[2]", None, None),
            (".groups.name", None, None),
            (".sub[0]", None, None),
        ] {
            let claim_name = ClaimName::parse(name.as_bytes()).unwrap();
            assert_eq!(claim_name.find(claims, nesting), expected.as_ref(), "{name}");
        }
    }

    #[test]
    fn malformed_paths_are_refused() {
        for name in [
            "",
            ".",
            "..",
            ".a.",
            ".a..b",
            ".a[",
            ".a[]",
            ".a[x]",
            ".a[-1]",
            ".a[+1]",
            ".a]",
            ".a[0]b",
            ".\"a",
            ".\"a\"b",
            "[0]",
            ".a[99999999999999999999]",
        ] {
            assert!(ClaimName::parse(name.as_bytes()).is_err(), "{name}");
        }
        assert!(ClaimName::parse(b"\xff").is_err());
    }

    #[test]
    fn names_at_the_top_are_told() {
        for (name, expected) in
            [("exp", true), (".exp", true), (".\"exp\"", true), (".a.exp", false), ("nbf", false)]
        {
            assert_eq!(ClaimName::parse(name.as_bytes()).unwrap().is_top("exp"), expected, "{name}");
        }
    }
}
