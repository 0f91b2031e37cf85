//! Variables that are 1 for requests with a property, made of `map`. Properties that several matches have share one.

use std::collections::BTreeMap;

use crate::cluster::gateway::{PathMatch, RouteMatch, ValueMatch};
use crate::cluster::object::ObjectName;
use crate::quote;

/// Variables and the lines that define them.
#[derive(Debug, Default)]
pub(super) struct Predicates {
    /// Variables by their definition.
    names: BTreeMap<(String, String), String>,
    /// Lines with the route that needs them first.
    pub(super) lines: Vec<(ObjectName, String)>,
}

impl Predicates {
    /// Variable, with its dollar, that is 1 if a request meets all conditions of a match.
    ///
    /// # Errors
    /// A condition cannot be expressed.
    pub(super) fn of_match(
        &mut self,
        route_match: &RouteMatch,
        owner: &ObjectName,
    ) -> Result<String, String> {
        let mut tests = vec![("$uri".to_owned(), path_regex(&route_match.path))];
        if matches!(&route_match.path, PathMatch::Prefix(path) if path.is_empty()) {
            tests.clear();
        }
        if let Some(method) = &route_match.method {
            tests.push(("$request_method".to_owned(), format!("^{}\\z", quote::regex_escaped(method))));
        }
        for (name, value) in &route_match.headers {
            if !quote::is_field_name(name) {
                return Err(format!("field name \"{name}\""));
            }
            let variable = format!("$http_{}", name.to_ascii_lowercase().replace('-', "_"));
            tests.push((variable, whole(value)));
        }
        for (name, value) in &route_match.params {
            let name = argument(name);
            let value = match value {
                ValueMatch::Exact(value) => argument(value),
                // The expression must not match beyond the argument.
                ValueMatch::Regex(regex)
                    if regex.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte)) =>
                {
                    regex.clone()
                }
                ValueMatch::Regex(regex) => {
                    return Err(format!("regular expression \"{regex}\" for an argument of the query"));
                }
            };
            tests.push(("$args".to_owned(), format!("(?:^|&){name}={value}(?:&|$)")));
        }
        let mut variables = Vec::new();
        for (source, regex) in tests {
            let word = quote::verbatim(&format!("~{regex}")).ok_or("a value with control characters")?;
            variables.push(self.define(source, &format!("{word} 1;"), owner));
        }
        match &*variables {
            [one] => Ok(one.clone()),
            _ => {
                let all = "1".repeat(variables.len());
                Ok(self.define(format!("\"{}\"", variables.concat()), &format!("{all} 1;"), owner))
            }
        }
    }

    fn define(&mut self, source: String, line: &str, owner: &ObjectName) -> String {
        let next = self.names.len() + 1;
        let key = (source.clone(), line.to_owned());
        let lines = &mut self.lines;
        let name = self.names.entry(key).or_insert_with(|| {
            let name = format!("$gateway_is_{next}");
            lines.push((owner.clone(), format!("map {source} {name} {{ default 0; {line} }}")));
            name
        });
        name.clone()
    }
}

/// Regular expression of the paths that a match has.
pub(super) fn path_regex(path: &PathMatch) -> String {
    match path {
        PathMatch::Exact(path) => format!("^{}\\z", quote::regex_escaped(path)),
        PathMatch::Prefix(path) => format!("^{}(/|\\z)", quote::regex_escaped(path)),
        PathMatch::Regex(regex) => format!("^(?:{regex})\\z"),
    }
}

fn whole(value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(value) => format!("^{}\\z", quote::regex_escaped(value)),
        ValueMatch::Regex(regex) => format!("^(?:{regex})\\z"),
    }
}

/// Regular expression of a name or value in a query, in each way that it may be encoded.
fn argument(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        let encoded: String = format!("%{byte:02X}")
            .chars()
            .map(|c| match c {
                'A'..='F' => format!("[{c}{}]", c.to_ascii_lowercase()),
                c => c.to_string(),
            })
            .collect();
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            b' ' => out += "(?:%20|\\+)",
            // These bytes have a meaning of their own if they are not encoded.
            b'&' | b'=' | b'+' | b'#' | b'%' => out += &encoded,
            byte if byte.is_ascii_graphic() => out += &format!("(?:\\{}|{encoded})", char::from(byte)),
            _ => out += &encoded,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_all_their_encodings() {
        assert_eq!(argument("a1"), "a1");
        assert_eq!(argument("a b"), "a(?:%20|\\+)b");
        assert_eq!(argument("a-b"), "a(?:\\-|%2[Dd])b");
        assert_eq!(argument("="), "%3[Dd]");
        assert_eq!(argument("ä"), "%[Cc]3%[Aa]4");
    }

    #[test]
    fn properties_are_shared() {
        let mut predicates = Predicates::default();
        let owner = ObjectName::new("n", "HTTPRoute/a");
        let mut route_match = RouteMatch {
            path: PathMatch::Prefix(String::new()),
            method: Some("GET".to_owned()),
            headers: vec![("X-V".to_owned(), ValueMatch::Exact("2".to_owned()))],
            params: Vec::new(),
        };
        assert_eq!(predicates.of_match(&route_match, &owner).unwrap(), "$gateway_is_3");
        assert_eq!(predicates.of_match(&route_match, &owner).unwrap(), "$gateway_is_3");
        route_match.headers.clear();
        assert_eq!(predicates.of_match(&route_match, &owner).unwrap(), "$gateway_is_1");
        assert_eq!(predicates.lines.len(), 3);
        route_match.headers.push(("a;b".to_owned(), ValueMatch::Exact(String::new())));
        assert!(predicates.of_match(&route_match, &owner).is_err());
    }
}
