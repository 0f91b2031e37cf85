//! Everything that is wrong with a configuration, so that it need not be found one run at a time.
//!
//! The first one is what nginx would have said. What only follows from another mistake is not said: after a mistake in
//! reading, settings are made only to find the variables that are missing.

use std::collections::HashSet;

use tw_base::Limit;
use tw_conf::{ConfError, Diagnostics, Guess, Node, Span};

use crate::vars::{VarTable, names_in};

/// How many are kept. A configuration of another server has as many as it has lines; nobody reads that many.
const MAX_MISTAKES: usize = 10_000;

/// After how many it is no longer looked for what was meant by a name: twice as many as are said one by one.
const MAX_GUESSED: usize = 100;

/// What bounds them.
pub const LIMITS: &[Limit] = &[
    Limit::count(
        "MAX_MISTAKES",
        MAX_MISTAKES as u64,
        "Mistakes of one configuration that are listed",
        "further ones are found by the next test",
    ),
    Limit::count(
        "MAX_GUESSED",
        MAX_GUESSED as u64,
        "Mistakes of one configuration among which the nearest name is looked for",
        "further ones have no such hint",
    ),
];

/// Mistakes, in the order in which they were found.
// DIFF(nginx): nginx ends at the first one.
#[derive(Default)]
pub struct Mistakes {
    list: Vec<ConfError>,
    /// Variables in directives that are missing themselves.
    variables: Vec<(String, Span)>,
}

impl Mistakes {
    /// Keeps one.
    pub fn add(&mut self, mistake: ConfError) {
        if self.list.len() < MAX_MISTAKES && self.list.last() != Some(&mistake) {
            self.list.push(mistake);
        }
    }

    /// Whether nobody needs to look for more.
    pub fn are_enough(&self) -> bool {
        self.list.len() >= MAX_MISTAKES
    }

    /// Whether it is looked for what was meant by the next name that nobody knows.
    pub fn guess(&self) -> Guess {
        if self.list.len() < MAX_GUESSED { Guess::Nearest } else { Guess::None }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Remembers the variables in the words of a directive that is not read.
    pub fn use_variables(&mut self, node: &Node) {
        for word in &node.args {
            for name in names_in(&word.bytes) {
                if self.variables.len() < MAX_MISTAKES {
                    self.variables.push((name, word.span));
                }
            }
        }
    }

    /// Takes in what was found when settings were made, with `vars` as the names that are defined then.
    pub fn follow<S: 'static>(&mut self, later: Mistakes, vars: &VarTable<S>) {
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
                    let meant = match self.guess() {
                        Guess::Nearest => vars.nearest(&name),
                        Guess::None => None,
                    };
                    self.add(match meant {
                        Some(meant) => error.hint(format!("did you mean \"${meant}\"?")),
                        None => error,
                    });
                }
                None => {}
            }
        }
    }

    /// The first mistake; the others go to `diagnostics`.
    pub fn into_first(self, diagnostics: &mut Diagnostics) -> Option<ConfError> {
        let mut list = self.list.into_iter();
        let first = list.next();
        list.for_each(|mistake| diagnostics.push(mistake));
        first
    }
}
