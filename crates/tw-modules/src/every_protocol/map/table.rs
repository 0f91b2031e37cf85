//! The look-up of `map`: names, wildcards and regular expressions to values. Independent of the protocol.

use tw_core::host_names::HostNames;
use tw_core::regex::{Match, Regex};
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_module_support::mapped_values::Values;

/// Mapping of a text to a value.
pub(crate) struct MapTable<S> {
    /// Exact names and wildcards to indices of `values`.
    pub(crate) names: HostNames<u32>,
    /// Tried in this order when no name is found.
    pub(crate) regexes: Vec<(Regex, u32)>,
    pub(crate) values: Values<S>,
    /// Text that is looked up.
    pub(crate) subject: Subject,
}

/// Preparation of the text that is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Unchanged.
    Text,
    /// Without the dot at its end (`hostnames`).
    Host,
}

impl<S: Session> MapTable<S> {
    /// Appends the value for the text of `source`. Allocates only to grow `out`.
    pub(crate) fn eval(&self, s: &S, source: &Template<S>, out: &mut Vec<u8>) {
        let start = out.len();
        source.eval(s, out);
        if self.subject == Subject::Host && out.len() > start && out.last() == Some(&b'.') {
            out.pop();
        }
        let end = out.len();
        out.extend_from_within(start..);
        out[end..].make_ascii_lowercase();
        let value = self.names.find(&out[end..]).or_else(|| self.matching(s, &out[start..end]));
        out.truncate(start);
        self.values.push(s, value, out);
    }

    /// The value of the first regular expression that matches. As in nginx none matches an empty text, and none is tried
    /// after one that fails.
    fn matching(&self, s: &S, subject: &[u8]) -> Option<u32> {
        if subject.is_empty() {
            return None;
        }
        for (regex, value) in &self.regexes {
            if s.matches(regex, subject).ok()? == Match::Yes {
                return Some(*value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fmt;
    use std::rc::Rc;

    use tw_core::host_names::{HostName, Wildcards};
    use tw_core::regex::Caseless;
    use tw_core::vars::{Bindings, Slots, VarTable};
    use tw_log::Level;
    use tw_module_support::mapped_values::Text;
    use tw_net::Addr;

    use super::*;

    /// A session that has captures and no other variables.
    struct Plain {
        slots: Slots<Self>,
        bindings: Bindings,
        scratch: Cell<Vec<u8>>,
    }

    impl Session for Plain {
        fn client_addr(&self) -> &Addr {
            unreachable!("a map asks for no address")
        }

        fn log(&self, _: Level, _: fmt::Arguments<'_>) {}

        fn slots(&self) -> &Slots<Self> {
            &self.slots
        }

        fn bindings(&self) -> &Bindings {
            &self.bindings
        }

        fn scratch(&self) -> &Cell<Vec<u8>> {
            &self.scratch
        }

        fn hold<T: 'static>(&mut self, _: Rc<T>) {
            unreachable!("a map holds nothing")
        }
    }

    fn template(text: &str) -> Template<Plain> {
        Template::compile(text.as_bytes(), None, &mut VarTable::default()).unwrap()
    }

    fn table_of(subject: Subject, default: Option<u32>) -> MapTable<Plain> {
        let mut names = HostNames::default();
        for (name, value) in [("one", 0), ("*.example.com", 1), ("", 2)] {
            names.add(HostName::parse(name.as_bytes(), Wildcards::Allowed).unwrap(), value).unwrap();
        }
        let regex = |pattern: &str, caseless| Regex::new(pattern.as_bytes(), caseless).unwrap();
        MapTable {
            names,
            regexes: vec![
                (regex("^B(.)", Caseless::No), 3),
                (regex("^b(.)", Caseless::Yes), 4),
                (regex("^((a|aa)+)+(?!x)\\1c$", Caseless::No), 0),
                (regex("^aaaa", Caseless::No), 0),
            ],
            values: Values {
                texts: vec![
                    Text::Constant((*b"1").into()),
                    Text::Constant((*b"wild").into()),
                    Text::Constant((*b"empty").into()),
                    Text::Template(template("B<$1>")),
                    Text::Template(template("b<$1>")),
                    Text::Template(template("default")),
                ],
                default,
            },
            subject,
        }
    }

    fn look_up(table: &MapTable<Plain>, text: &str) -> String {
        let slots = VarTable::default().finish();
        let s = Plain { slots, bindings: Bindings::default(), scratch: Cell::default() };
        let mut out = b"-".to_vec();
        table.eval(&s, &Template::text(text.as_bytes()), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_then_regexes_then_the_default() {
        let table = table_of(Subject::Host, Some(5));
        for (text, expected) in [
            ("one", "-1"),
            ("ONE.", "-1"),
            ("x.Example.com.", "-wild"),
            ("", "-empty"),
            (".", "-empty"),
            ("Bx", "-B<x>"),
            ("bX", "-b<X>"),
            ("other", "-default"),
            ("one..", "-default"),
        ] {
            assert_eq!(look_up(&table, text), expected, "{text}");
        }
        let hostless = table_of(Subject::Text, None);
        for (text, expected) in [("one", "-1"), ("one.", "-"), ("other", "-")] {
            assert_eq!(look_up(&hostless, text), expected, "{text}");
        }
    }

    #[test]
    fn after_a_regex_that_fails_none_is_tried() {
        let subject = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        assert_eq!(look_up(&table_of(Subject::Text, Some(5)), subject), "-default");
    }
}
