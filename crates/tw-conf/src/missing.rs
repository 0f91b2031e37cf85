//! Features of one configuration that nginx has and Tailwater lacks: a list by module, with every place.
//!
//! ```text
//!     ngx_http_proxy_module
//!         proxy_pass        in /etc/nginx/nginx.conf:12, 40, /etc/nginx/conf.d/a.conf:3
//!         proxy_set_header  in /etc/nginx/nginx.conf:13
//! ```

use crate::error::ConfError;
use crate::known::hint_for_module;
use crate::span::{Sources, Span};
use std::fmt;

/// Missing features, in the order in which they were found.
pub struct MissingList<'a> {
    sources: &'a Sources,
    modules: Vec<Module<'a>>,
}

struct Module<'a> {
    name: &'a str,
    names: Vec<Name<'a>>,
}

struct Name<'a> {
    name: &'a str,
    places: Vec<Span>,
}

impl<'a> MissingList<'a> {
    /// Of these mistakes, those that are about something missing.
    pub fn new(mistakes: impl IntoIterator<Item = &'a ConfError>, sources: &'a Sources) -> Self {
        let mut list = Self { sources, modules: Vec::new() };
        for mistake in mistakes {
            if let Some(missing) = &mistake.missing {
                list.add(&missing.module, &missing.name, mistake.span);
            }
        }
        list
    }

    fn add(&mut self, module: &'a str, name: &'a str, span: Option<Span>) {
        let at =
            self.modules.iter().position(|known_module| known_module.name == module).unwrap_or_else(|| {
                self.modules.push(Module { name: module, names: Vec::new() });
                self.modules.len() - 1
            });
        let names = &mut self.modules[at].names;
        match names.iter_mut().find(|known_name| known_name.name == name) {
            Some(known_name) => known_name.places.extend(span),
            None => names.push(Name { name, places: span.into_iter().collect() }),
        }
    }

    /// Number of different missing features.
    pub fn count(&self) -> usize {
        self.modules.iter().map(|module| module.names.len()).sum()
    }

    /// Summary as text: `5 directives and 1 variable`.
    pub fn summary(&self) -> String {
        let names = || self.modules.iter().flat_map(|module| &module.names);
        let variables = names().filter(|name| name.name.starts_with('$')).count();
        let counted = |count: usize, word: &str| match count {
            0 => None,
            1 => Some(format!("1 {word}")),
            _ => Some(format!("{count} {word}s")),
        };
        let counts = [counted(names().count() - variables, "directive"), counted(variables, "variable")];
        counts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for MissingList<'_> {
    /// The list, indented, without a line end after the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hints = Vec::new();
        for (at, module) in self.modules.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            write!(f, "{gap}    {}", module.name)?;
            let width = module.names.iter().map(|name| name.name.chars().count()).max().unwrap_or(0);
            for name in &module.names {
                write!(f, "\n        {:width$}  in {}", name.name, self.sources.places(&name.places))?;
            }
            if let Some(hint) = hint_for_module(module.name)
                && !hints.contains(&hint)
            {
                hints.push(hint);
                write!(f, "\n        = {hint}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MissingFeature;
    use crate::span::Origin;

    #[test]
    fn a_list_by_module() {
        let mut sources = Sources::default();
        for name in ["/n.conf", "/a.conf"] {
            sources.add(Origin::File(name.as_bytes().into()), std::sync::Arc::default());
        }
        sources.add(Origin::CommandLine, std::sync::Arc::default());
        let error = |name: &str, module: &'static str, file, line| {
            let span = Span { file, line, start: 0, end: 0 };
            ConfError::new("x").at(span).missing(MissingFeature::new(name.to_owned(), module))
        };
        let mut mistakes = vec![
            error("proxy_pass", "ngx_http_proxy_module", 0, 3),
            error("proxy_pass", "ngx_http_proxy_module", 0, 3),
            error("env", "ngx_core_module", 2, 1),
            error("$x", "ngx_http_proxy_module", 0, 4),
            error("proxy_pass", "ngx_http_proxy_module", 0, 5),
            error("proxy_pass", "ngx_http_proxy_module", 1, 7),
            ConfError::new("something else"),
        ];
        mistakes.extend((10..20).map(|line| error("many", "m", 0, line)));
        let list = MissingList::new(&mistakes, &sources);
        assert_eq!(list.count(), 4);
        assert_eq!(list.summary(), "3 directives and 1 variable");
        let expected = "    ngx_http_proxy_module
        proxy_pass  in /n.conf:3, 5, /a.conf:7
        $x          in /n.conf:4
    ngx_core_module
        env  in the command line
    m
        many  in /n.conf:10, 11, 12, 13, 14, 15, 16, 17 and 2 more";
        assert_eq!(list.to_string(), expected);
    }
}
