//! The look-up of `map`: names, wildcards and regular expressions to values. It knows no protocol.

use tw_server::regex::{Match, Regex};
use tw_server::session::Session;

use tw_server::names::Names;

/// What a map does with a text.
pub(crate) struct Table<T> {
    /// Exact names and wildcards to indices of `values`.
    pub(crate) names: Names<u32>,
    /// Tried in this order when no name is found.
    pub(crate) regexes: Vec<(Regex, u32)>,
    /// All values, each once.
    pub(crate) values: Vec<Text<T>>,
    /// The value of `default`.
    pub(crate) default: Option<u32>,
    /// What is looked up.
    pub(crate) subject: Subject,
}

/// How a text is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// As it is.
    Text,
    /// Without the dot at its end (`hostnames`).
    Host,
}

/// A value.
pub(crate) enum Text<T> {
    /// Without variables.
    Constant(Box<[u8]>),
    /// With variables.
    Template(T),
}

impl<T> Table<T> {
    /// Appends the value for the text of `source`. Allocates only to grow `out`.
    pub(crate) fn eval<S: Session<Template = T>>(&self, s: &S, source: &T, out: &mut Vec<u8>) {
        let start = out.len();
        s.eval(source, out);
        if self.subject == Subject::Host && out.len() > start && out.last() == Some(&b'.') {
            out.pop();
        }
        let end = out.len();
        out.extend_from_within(start..);
        out[end..].make_ascii_lowercase();
        let found = self.names.find(&out[end..]).or_else(|| self.matching(s, &out[start..end]));
        out.truncate(start);
        match found.or(self.default).and_then(|at| self.values.get(at as usize)) {
            Some(Text::Constant(text)) => out.extend_from_slice(text),
            Some(Text::Template(template)) => s.eval(template, out),
            None => {}
        }
    }

    /// The value of the first regular expression that matches. As in nginx none matches an empty text, and none is tried
    /// after one that fails.
    fn matching(&self, s: &impl Session, subject: &[u8]) -> Option<u32> {
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
    use std::cell::RefCell;
    use std::fmt;

    use tw_log::Level;
    use tw_net::Addr;
    use tw_server::regex::{BacktrackLimit, Captures, Caseless};

    use super::*;
    use tw_server::names::{HostName, Wildcards};

    /// A session whose templates are texts in which `$1` is the first group.
    #[derive(Default)]
    struct Plain(RefCell<Captures>);

    impl Session for Plain {
        type Template = &'static str;

        fn client_addr(&self) -> &Addr {
            unreachable!("a map asks for no address")
        }

        fn eval(&self, template: &&'static str, out: &mut Vec<u8>) {
            let captures = self.0.borrow();
            let group = String::from_utf8_lossy(captures.group(1).unwrap_or_default()).into_owned();
            out.extend_from_slice(template.replace("$1", &group).as_bytes());
        }

        fn matches(&self, regex: &Regex, subject: &[u8]) -> Result<Match, BacktrackLimit> {
            regex.captures(subject, &mut self.0.borrow_mut())
        }

        fn log(&self, _: Level, _: fmt::Arguments<'_>) {}
    }

    fn table_of(subject: Subject, default: Option<u32>) -> Table<&'static str> {
        let mut names = Names::default();
        for (name, value) in [("one", 0), ("*.example.com", 1), ("", 2)] {
            names.add(HostName::parse(name.as_bytes(), Wildcards::Allowed).unwrap(), value).unwrap();
        }
        let regex = |pattern: &str, caseless| Regex::new(pattern.as_bytes(), caseless).unwrap();
        Table {
            names,
            regexes: vec![
                (regex("^B(.)", Caseless::No), 3),
                (regex("^b(.)", Caseless::Yes), 4),
                (regex("^((a|aa)+)+(?!x)\\1c$", Caseless::No), 0),
                (regex("^aaaa", Caseless::No), 0),
            ],
            values: vec![
                Text::Constant((*b"1").into()),
                Text::Constant((*b"wild").into()),
                Text::Constant((*b"empty").into()),
                Text::Template("B<$1>"),
                Text::Template("b<$1>"),
                Text::Template("default"),
            ],
            default,
            subject,
        }
    }

    fn look_up(table: &Table<&'static str>, text: &'static str) -> String {
        let mut out = b"-".to_vec();
        table.eval(&Plain::default(), &text, &mut out);
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
