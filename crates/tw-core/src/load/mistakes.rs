//! Mistakes of a configuration: all of them are reported at once.
//!
//! The first one is nginx's message. Each step of loading goes on after mistakes of the steps before it. Of its own mistakes, those
//! that most likely follow from an earlier one are left out: something is missing whose definition was not taken in.

use std::collections::HashSet;

use tw_conf::{ConfError, Contexts, Diagnostics, Guess, Node, Sources, Span};

use super::consequences::{Causes, MAX_CAUSES};
use crate::vars::{VarTable, names_in};

tw_base::limits! {
    /// Limits on mistakes.
    pub(crate) const LIMITS;

    /// Mistakes of one configuration that are listed.
    ///
    /// Largest number of mistakes that are kept. A configuration of another server has as many as it has lines; no one reads
    /// that many.
    const MAX_MISTAKES: usize = 10_000, count, "further ones are found by the next test";
    /// Mistakes of one configuration among which the nearest name is looked for.
    ///
    /// Number of unknown names for which suggestions are looked up: twice as many as are reported one by one.
    const MAX_GUESSED: usize = 100, count, "further ones have no such hint";
    /// Mistakes of one configuration that are searched for the definition of something that is missing.
    constant count MAX_CAUSES, "nothing that is missing is reported before some are mended";
}

/// Mistakes, in the order in which they were found.
// DIFF(nginx): nginx ends at the first one.
#[derive(Default)]
pub struct Mistakes {
    list: Vec<ConfError>,
    /// Mistakes of the step that is under way, some of which may follow from those of the list.
    later: Vec<ConfError>,
    /// Variables in directives that are missing themselves.
    variables: Vec<(String, Span, Contexts)>,
    /// Names in directives that were not taken in, which may be what defines them.
    expected: HashSet<String>,
    /// True if anything may be defined in what could not be read.
    expects_all: bool,
    /// Variables that nothing defines, as far as it was read.
    unknown: Vec<(String, ConfError)>,
}

impl Mistakes {
    /// Takes into account that a directive that was not taken in may define the variables that it names.
    pub(super) fn expect_definitions(&mut self, node: &Node) {
        for word in std::iter::once(&node.name).chain(&node.args) {
            for name in names_in(&word.bytes).take(MAX_MISTAKES.saturating_sub(self.expected.len())) {
                self.expected.insert(name);
            }
        }
        node.block.iter().flatten().for_each(|node| self.expect_definitions(node));
    }

    /// Takes into account that what could not be read may define any variable.
    pub(super) fn expect_more_definitions(&mut self) {
        self.expects_all = true;
    }

    /// Leaves out that something is misplaced in `files` with a brace that is missing or too many: it is not.
    // DIFF(nginx): nginx says that instead of the brace.
    pub(super) fn leave_out_misplaced(&mut self, files: &[u32]) {
        let is_unbalanced = |mistake: &ConfError| mistake.span.is_some_and(|span| files.contains(&span.file));
        self.list.retain(|mistake| !is_misplacement(&mistake.message) || !is_unbalanced(mistake));
    }

    /// Ends a step of loading: keeps its mistakes unless they most likely follow from those of earlier steps.
    pub(super) fn end_step(&mut self, sources: &Sources) {
        let later = std::mem::take(&mut self.later);
        if later.is_empty() {
            return;
        }
        let causes = Causes::new(&self.list, sources, self.expects_all);
        let independent: Vec<_> = later.into_iter().filter(|mistake| !causes.explain(mistake)).collect();
        independent.into_iter().for_each(|mistake| self.add(mistake));
    }

    /// Keeps the variables that nothing defines, unless something that is wrong may be their definition.
    pub(super) fn add_unknown_variables(&mut self, sources: &Sources) {
        if self.expects_all {
            return;
        }
        let mut unknown = std::mem::take(&mut self.unknown);
        for mistake in &self.list {
            let text = mistake.span.and_then(|span| {
                let text = &sources.file(span.file)?.text;
                text.get(span.start as usize..span.end as usize)
            });
            let names: HashSet<_> = text.into_iter().flat_map(names_in).collect();
            // A mistake at the very place that uses the variable is no failed definition of it.
            unknown.retain(|(name, error)| !names.contains(name) || error.span == mistake.span);
        }
        for (name, error) in unknown {
            if !self.expected.contains(&name) {
                self.add(error);
            }
        }
    }

    /// Keeps one.
    pub fn add(&mut self, mistake: ConfError) {
        if self.list.len() < MAX_MISTAKES {
            self.list.push(mistake);
        }
    }

    /// Keeps one of the step that is under way, see `end_step`.
    pub fn add_later(&mut self, mistake: ConfError) {
        if self.later.len() < MAX_MISTAKES {
            self.later.push(mistake);
        }
    }

    /// Returns true if no more mistakes are kept.
    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX_MISTAKES
    }

    /// Tells if the nearest known name is searched for the next unknown one.
    pub fn guess(&self) -> Guess {
        if self.list.len() < MAX_GUESSED { Guess::Nearest } else { Guess::None }
    }

    /// Returns true if there is no mistake.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Remembers the variables in the words of a directive that is not read.
    pub fn record_variables(&mut self, node: &Node, context: Contexts) {
        for word in &node.args {
            for name in names_in(&word.bytes) {
                if self.variables.len() < MAX_MISTAKES {
                    self.variables.push((name, word.span, context));
                }
            }
        }
    }

    /// Takes in what was found when the settings of a protocol were made, with `vars` as the names that are defined then in its
    /// `contexts`.
    pub fn follow<S: 'static>(&mut self, later: Mistakes, vars: &VarTable<S>, contexts: Contexts) {
        let mut undefined = vars.undefined();
        let unread = self.variables.extract_if(.., |(_, _, context)| *context & contexts != 0);
        let unread = unread.filter(|(name, ..)| !vars.is_defined(name));
        undefined.extend(unread.map(|(name, span, _)| (name, Some(span))));
        undefined.sort_by_key(|(_, at)| at.map(|span| (span.file, span.start)));
        later.list.into_iter().for_each(|mistake| self.add_later(mistake));
        let mut unknown = HashSet::new();
        for (name, at) in undefined {
            let located = |error: ConfError| match at {
                Some(span) => error.at(span),
                None => error,
            };
            match tw_conf::missing_variable(&name) {
                Some(missing) => self.add(located(missing)),
                None if unknown.insert(name.clone()) => {
                    let error = located(ConfError::new(format!("unknown \"{name}\" variable")));
                    let meant = if self.list.len() + unknown.len() <= MAX_GUESSED {
                        vars.nearest(&name)
                    } else {
                        None
                    };
                    let error = match meant {
                        Some(meant) => error.hint(format!("did you mean \"${meant}\"?")),
                        None => error,
                    };
                    self.unknown.push((name, error));
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

/// Returns true if a message says that a directive stands where it must not, or twice.
fn is_misplacement(message: &str) -> bool {
    const ENDS: [&str; 3] = ["is not allowed here", "is duplicate", "can be on the server level only"];
    const PARTS: [&str; 3] = ["is outside location", "cannot be inside the", "duplicate location"];
    ENDS.iter().any(|end| message.ends_with(end)) || PARTS.iter().any(|part| message.contains(part))
}
