//! Everything that is wrong with a configuration, so that it need not be found one run at a time.
//!
//! The first one is what nginx would have said. What only follows from another mistake is not said: after a mistake in
//! reading, settings are made only to find the variables that are missing.

use std::collections::HashSet;

use tw_base::Limit;
use tw_conf::{ConfError, Contexts, Diagnostics, HTTP, Node, Span};

use crate::vars::{VarTable, names_in};

/// How many are kept. A configuration of another server has as many as it has lines; nobody reads that many.
const MAX_MISTAKES: usize = 10_000;

pub(crate) const LIMITS: &[Limit] = &[Limit::count(
    "MAX_MISTAKES",
    MAX_MISTAKES as u64,
    "Mistakes of one configuration that are listed",
    "further ones are found by the next test",
)];

/// Mistakes, in the order in which they were found.
// DIFF(nginx): nginx ends at the first one.
#[derive(Default)]
pub(super) struct Mistakes {
    list: Vec<ConfError>,
    /// Variables in directives that are missing themselves.
    variables: Vec<(String, Span)>,
}

impl Mistakes {
    pub(super) fn add(&mut self, mistake: ConfError) {
        if self.list.len() < MAX_MISTAKES && self.list.last() != Some(&mistake) {
            self.list.push(mistake);
        }
    }

    /// Whether nobody needs to look for more.
    pub(super) fn are_enough(&self) -> bool {
        self.list.len() >= MAX_MISTAKES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Remembers the variables in the words of a directive that stands in `context` and is not read.
    pub(super) fn use_variables(&mut self, node: &Node, context: Contexts) {
        // Those of other protocols have the same names and are others.
        if !is_http(context) {
            return;
        }
        for word in &node.args {
            for name in names_in(&word.bytes) {
                if self.variables.len() < MAX_MISTAKES {
                    self.variables.push((name, word.span));
                }
            }
        }
    }

    /// Takes in what was found when settings were made, with `vars` as the names that are defined then.
    pub(super) fn follow(&mut self, later: Mistakes, vars: &VarTable) {
        let is_first = self.is_empty();
        let mut undefined = vars.undefined();
        let unread = std::mem::take(&mut self.variables).into_iter();
        let unread = unread.filter(|(name, _)| !vars.is_defined(name));
        undefined.extend(unread.map(|(name, span)| (name, Some(span))));
        undefined.sort_by_key(|(_, at)| at.map(|span| (span.file, span.start)));
        if is_first {
            self.list = later.list;
        }
        // A name that nobody knows may be defined by what is missing, or by what was wrong.
        let is_first = self.is_empty();
        let mut unknown = HashSet::new();
        for (name, at) in undefined {
            let located = |error: ConfError| match at {
                Some(span) => error.at(span),
                None => error,
            };
            match tw_conf::missing_variable(&name) {
                Some(missing) => self.add(located(missing)),
                None if is_first && unknown.insert(name.clone()) => {
                    let error = located(ConfError::new(format!("unknown \"{name}\" variable")));
                    self.add(match vars.nearest(&name) {
                        Some(meant) => error.hint(format!("did you mean \"${meant}\"?")),
                        None => error,
                    });
                }
                None => {}
            }
        }
    }

    /// The first mistake; the others go to `diagnostics`.
    pub(super) fn into_first(self, diagnostics: &mut Diagnostics) -> Option<ConfError> {
        let mut list = self.list.into_iter();
        let first = list.next();
        list.for_each(|mistake| diagnostics.push(mistake));
        first
    }
}

/// Whether a context is one of requests.
fn is_http(context: Contexts) -> bool {
    use tw_conf::{IF_IN_LOCATION, IF_IN_SERVER, LIMIT_EXCEPT, LOCATION, SERVER, UPSTREAM};
    const ALL: Contexts = HTTP | SERVER | LOCATION | IF_IN_SERVER | IF_IN_LOCATION | LIMIT_EXCEPT | UPSTREAM;
    context & ALL != 0
}
