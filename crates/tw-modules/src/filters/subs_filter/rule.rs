//! One rule: a string or a regular expression, and its replacement.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem::Finder;
use tw_conf::{ConfError, Node, Word};
use tw_core::regex::{BacktrackLimit, Caseless, Match, Regex};
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_request::protocol::Resolve;
use tw_request::request::Request;

use crate::filters::sub::VARYING_MAX;
use crate::filters::sub::matcher::{Occurrences, WordList};

/// A rule as written.
pub(super) struct RawRule {
    source: Word,
    replacement: Word,
    syntax: Syntax,
    caseless: Caseless,
    occurrences: Occurrences,
}

/// Meaning of the source of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Text,
    Regex,
}

/// A rule of a location.
pub(super) struct Rule<S = Request> {
    source: Source<S>,
    replacement: Template<S>,
    occurrences: Occurrences,
}

/// Text that is searched for.
enum Source<S> {
    Fixed(Matcher),
    /// A string with variables.
    Varying(Template<S>, Caseless),
}

/// Finds one string or pattern.
#[derive(Clone)]
enum Matcher {
    Exact(Arc<Finder<'static>>),
    Caseless(Arc<WordList>),
    Regex(Arc<Regex>),
}

/// Limits of the work that is done at once.
pub(super) struct ApplyLimits<'a> {
    /// Size of the result in bytes.
    pub(super) room: usize,
    /// Bytes that may still be looked at.
    pub(super) work: &'a mut usize,
}

/// A rule while a body is changed.
pub(super) struct Applied {
    /// `None` if nothing is looked for, or nothing any more.
    matcher: Option<Matcher>,
    /// Replacement of a string, once it was evaluated.
    value: Option<Bytes>,
}

/// Bytes that rules search in one turn of the loop.
pub(super) const TURN_WORK: usize = 256 << 10;
/// Bytes that a match of a regular expression counts for, if the text has so many: it may read more than what matches.
const REGEX_COST: usize = 4096;
/// Bytes that a search counts for if it may backtrack.
const BACKTRACK_COST: usize = TURN_WORK / 16;

impl RawRule {
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let [source, replacement] = [node.arg(0)?, node.arg(1)?].map(Word::clone);
        let mut rule = Self {
            source,
            replacement,
            syntax: Syntax::Text,
            caseless: Caseless::No,
            occurrences: Occurrences::Always,
        };
        if rule.source.bytes.is_empty() {
            return Err(node.fail("empty search pattern"));
        }
        if let Some(flags) = node.args.get(2) {
            for flag in &flags.bytes {
                match flag {
                    b'g' => rule.occurrences = Occurrences::Always,
                    b'i' => rule.caseless = Caseless::Yes,
                    b'o' => rule.occurrences = Occurrences::Once,
                    b'r' => rule.syntax = Syntax::Regex,
                    // DIFF(nginx): that module ignores unknown flags.
                    _ => return Err(node.fail(format!("invalid parameter \"{flags}\"")).at(flags.span)),
                }
            }
        }
        let has_variable = |text: &[u8]| {
            text.windows(2).any(|pair| {
                pair[0] == b'$' && (pair[1].is_ascii_alphabetic() || matches!(pair[1], b'_' | b'{'))
            })
        };
        if rule.syntax == Syntax::Regex && has_variable(&rule.source.bytes) {
            let message = "match part cannot contain variable during regex mode";
            return Err(ConfError::new(message).at(rule.source.span));
        }
        Ok(rule)
    }

    pub(super) fn resolve(&self, cx: &mut Resolve<'_>) -> Result<Rule, ConfError> {
        let source = match self.syntax {
            Syntax::Regex => {
                let regex = cx.regex_of(&self.source.bytes, self.caseless, self.source.span)?;
                Source::Fixed(Matcher::Regex(regex))
            }
            Syntax::Text => Source::text(cx.template(&self.source)?, self.caseless),
        };
        Ok(Rule { source, replacement: cx.template(&self.replacement)?, occurrences: self.occurrences })
    }
}

impl<S: Session> Source<S> {
    fn text(text: Template<S>, caseless: Caseless) -> Self {
        match text.constant() {
            Some(text) => Self::Fixed(Matcher::text(text, caseless)),
            None => Self::Varying(text, caseless),
        }
    }
}

impl Matcher {
    /// Finds a string, which is not empty.
    fn text(text: &[u8], caseless: Caseless) -> Self {
        match caseless {
            Caseless::No => Self::Exact(Arc::new(Finder::new(text).into_owned())),
            Caseless::Yes => Self::Caseless(Arc::new(WordList::new([&*text.to_ascii_lowercase()]))),
        }
    }
}

impl<S: Session> Rule<S> {
    /// The rule for the body of `s`.
    pub(super) fn begin(&self, s: &S) -> Applied {
        let matcher = match &self.source {
            Source::Fixed(matcher) => Some(matcher.clone()),
            Source::Varying(text, caseless) => {
                let text = text.value(s);
                // DIFF(nginx): a string with variables that is too long is not looked for.
                (1..=VARYING_MAX).contains(&text.len()).then(|| Matcher::text(&text, *caseless))
            }
        };
        Applied { matcher, value: None }
    }
}

impl Applied {
    /// Returns `true` if nothing is replaced any more.
    pub(super) fn is_over(&self) -> bool {
        self.matcher.is_none()
    }

    /// Returns `true` if nothing is replaced in `text`.
    pub(super) fn misses(&self, text: &[u8]) -> bool {
        match &self.matcher {
            None => true,
            Some(Matcher::Exact(finder)) => finder.find(text).is_none(),
            Some(Matcher::Caseless(words)) => words.find(text, 0).is_none(),
            // A search that gives up counts as a match here; its error is reported when the line is changed.
            Some(Matcher::Regex(regex)) => regex.is_match(text) == Ok(Match::No),
        }
    }

    /// Bytes that a search of `len` bytes counts for.
    pub(super) fn cost(&self, len: usize) -> usize {
        match &self.matcher {
            None => 0,
            Some(Matcher::Regex(regex)) if regex.backtracks() => len.max(BACKTRACK_COST),
            Some(_) => len,
        }
    }

    /// The place of the next match at `from` or behind it; takes its cost from `work`.
    fn find<S: Session>(
        &self,
        text: &[u8],
        from: usize,
        work: &mut usize,
        s: &S,
    ) -> Result<Option<Range<usize>>, BacktrackLimit> {
        let rest = text.get(from..).unwrap_or_default();
        let (place, cost) = match &self.matcher {
            None => (None, 0),
            Some(Matcher::Exact(finder)) => {
                let start = finder.find(rest).map(|start| start + from);
                let place = start.map(|start| start..start + finder.needle().len());
                let read = place.as_ref().map_or(text.len(), |place| place.end) - from;
                (place, read)
            }
            Some(Matcher::Caseless(words)) => {
                let place = words.find(text, from);
                let read = place.as_ref().map_or(text.len(), |place| place.end) - from;
                (place, read)
            }
            Some(Matcher::Regex(regex)) => {
                let place = s.match_from(regex, text, from)?;
                let read = place.as_ref().map_or(text.len(), |place| place.end) - from;
                (place, self.cost(rest.len().min(REGEX_COST)).max(read))
            }
        };
        *work = work.saturating_sub(cost.max(1));
        Ok(place)
    }

    /// Appends `text` from byte `at` on to `out`, changed, until one of the limits is reached. Returns the byte
    /// of `text` that comes next.
    pub(super) fn apply<S: Session>(
        &mut self,
        rule: &Rule<S>,
        text: &[u8],
        mut at: usize,
        out: &mut Vec<u8>,
        limits: ApplyLimits<'_>,
        s: &S,
    ) -> Result<usize, BacktrackLimit> {
        let ApplyLimits { room, work } = limits;
        while at < text.len() && out.len() < room && *work > 0 {
            let Some(place) = self.find(text, at, work, s)? else {
                out.extend_from_slice(&text[at..]);
                return Ok(text.len());
            };
            out.extend_from_slice(&text[at..place.start]);
            self.replace(rule, out, s);
            at = place.end;
            if rule.occurrences == Occurrences::Once {
                self.matcher = None;
            } else if place.is_empty() {
                // The next match begins behind the next byte.
                out.extend(text.get(at));
                at += 1;
            }
        }
        Ok(at)
    }

    fn replace<S: Session>(&mut self, rule: &Rule<S>, out: &mut Vec<u8>, s: &S) {
        match &self.matcher {
            // The replacement may refer to captures, so it is evaluated for each match.
            Some(Matcher::Regex(_)) => rule.replacement.eval(s, out),
            _ => {
                let value = self.value.get_or_insert_with(|| rule.replacement.value(s).into());
                out.extend_from_slice(value);
            }
        }
    }
}

#[cfg(test)]
impl RawRule {
    /// The rule for a session of tests.
    pub(super) fn compile<S: Session>(&self, vars: &mut tw_core::vars::VarTable<S>) -> Rule<S> {
        let mut template = |word: &Word| Template::compile(&word.bytes, None, vars).unwrap();
        let source = match self.syntax {
            Syntax::Regex => {
                Source::Fixed(Matcher::Regex(Regex::new(&self.source.bytes, self.caseless).unwrap().into()))
            }
            Syntax::Text => Source::text(template(&self.source), self.caseless),
        };
        Rule { source, replacement: template(&self.replacement), occurrences: self.occurrences }
    }
}
