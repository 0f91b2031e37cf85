//! Mistakes that follow from others: something is missing because its definition was not taken in.

use std::collections::{HashMap, HashSet};

use tw_conf::{ConfError, Sources, Span, nearest};

/// Bytes before and behind a mistake in which its directive is looked for.
const MAX_DIRECTIVE: usize = 4096;
/// Number of mistakes whose directives are compared with what is missing. After more, nothing that is missing is reported.
pub(super) const MAX_CAUSES: usize = 500;
/// Blocks whose settings hold inside them alone.
const SCOPES: [&str; 4] = ["server", "location", "if", "limit_except"];

/// Mistakes that may be the causes of later ones.
pub(super) struct Causes<'a> {
    list: Vec<Cause<'a>>,
    blocks: HashMap<u32, Blocks>,
    /// True if what is missing may be defined in something that was not taken in.
    hides_all: bool,
}

impl<'a> Causes<'a> {
    /// Causes among `mistakes`. With `hides_all`, everything that is missing follows from one of them.
    pub(super) fn new(mistakes: &[ConfError], sources: &'a Sources, hides_all: bool) -> Self {
        let hides_all = hides_all || mistakes.len() > MAX_CAUSES;
        let mut causes = Self { list: Vec::new(), blocks: HashMap::new(), hides_all };
        for span in mistakes.iter().filter_map(|mistake| mistake.span).take(MAX_CAUSES) {
            let Some(file) = sources.file(span.file) else { continue };
            let blocks = causes.blocks.entry(span.file).or_insert_with(|| Blocks::of(&file.text));
            causes.list.extend(Cause::new(span, &file.text, blocks));
        }
        causes
    }

    /// Returns true if a mistake most likely follows from one of the causes.
    pub(super) fn explain(&self, mistake: &ConfError) -> bool {
        let is_absence = is_absence(&mistake.message);
        (is_absence && self.hides_all)
            || self
                .list
                .iter()
                .any(|cause| cause.has(mistake.span) || (is_absence && cause.defines(mistake, &self.blocks)))
    }
}

/// Directive of a mistake as it is written.
struct Cause<'a> {
    /// Name of the directive.
    name: &'a str,
    /// Words in it and in the heading of its block, and the parts of words that may be names.
    words: HashSet<&'a str>,
    span: Span,
    /// Beginning of the block outside of which the directive has no effect.
    scope: Option<usize>,
}

impl<'a> Cause<'a> {
    fn new(span: Span, text: &'a [u8], blocks: &Blocks) -> Option<Self> {
        let end = (span.end as usize).min(text.len());
        let start = directive_start(text, span.start as usize);
        let heading = blocks.innermost(span.start as usize);
        let rest = text.get(end..(end + MAX_DIRECTIVE).min(text.len()))?;
        let end = end + rest.iter().position(is_end).unwrap_or(rest.len());
        let own = std::str::from_utf8(text.get(start..end)?).ok()?;
        let heading = heading.and_then(|open| {
            let heading = std::str::from_utf8(text.get(directive_start(text, open)..open)?).ok()?;
            Some((open, heading))
        });
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let words_of = |text: &'a str| text.split_whitespace().chain(text.split(move |c: char| !is_part(c)));
        let scope = heading.filter(|(_, text)| SCOPES.contains(&first_word(text))).map(|(open, _)| open);
        let above = heading.map_or("", |(_, text)| text);
        let words = words_of(own).chain(words_of(above)).filter(|word| !word.is_empty()).collect();
        Some(Self { name: first_word(own), words, span, scope })
    }

    /// Returns true if another mistake is about a part of the same place.
    fn has(&self, span: Option<Span>) -> bool {
        span.is_some_and(|span| {
            span.file == self.span.file && span.start >= self.span.start && span.end <= self.span.end
        })
    }

    /// Returns true if a mistake misses something that this directive may define: it names it, or its own name is a misspelt one.
    fn defines(&self, mistake: &ConfError, blocks: &HashMap<u32, Blocks>) -> bool {
        let is_in_scope = match (self.scope, mistake.span) {
            (Some(open), Some(at)) => {
                at.file == self.span.file
                    && blocks.get(&at.file).is_some_and(|blocks| blocks.is_inside(at.start as usize, open))
            }
            _ => true,
        };
        let mut quoted = mistake.message.split('"').skip(1).step_by(2).filter(|text| !text.is_empty());
        is_in_scope && quoted.any(|text| self.words.contains(text) || nearest(self.name, [text]).is_some())
    }
}

fn is_end(byte: &u8) -> bool {
    matches!(byte, b';' | b'{' | b'}')
}

/// Beginning of the directive in which a byte is.
fn directive_start(text: &[u8], at: usize) -> usize {
    let first = at.min(text.len()).saturating_sub(MAX_DIRECTIVE);
    let before = &text[first..at.min(text.len())];
    before.iter().rposition(is_end).map_or(first, |end| first + end + 1)
}

fn first_word(text: &str) -> &str {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(str::split_whitespace).next().unwrap_or_default()
}

/// Blocks of one text.
struct Blocks {
    /// By the places of their braces, in the order of their beginnings: where each ends, and the block around it.
    list: Vec<(usize, usize, Option<usize>)>,
}

impl Blocks {
    fn of(text: &[u8]) -> Self {
        let mut list: Vec<(usize, usize, Option<usize>)> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        let mut at = 0;
        let mut is_word = false;
        while let Some(&byte) = text.get(at) {
            match byte {
                b'\\' => at += 1,
                b'"' | b'\'' if !is_word => at = string_end(text, at),
                b'#' if !is_word => {
                    at += text[at..].iter().position(|b| *b == b'\n').unwrap_or(text.len() - at)
                }
                b'{' if text.get(at.wrapping_sub(1)) != Some(&b'$') => {
                    list.push((at, text.len(), open.last().copied()));
                    open.push(list.len() - 1);
                }
                b'}' if !is_word => {
                    if let Some(closed) = open.pop() {
                        list[closed].1 = at;
                    }
                }
                _ => {}
            }
            is_word = !(byte.is_ascii_whitespace() || matches!(byte, b';' | b'{' | b'}' | b'"' | b'\''));
            at += 1;
        }
        Self { list }
    }

    /// The innermost block around a byte, as the place of its brace.
    fn innermost(&self, at: usize) -> Option<usize> {
        self.around(at).next()
    }

    /// Returns true if a byte is in the block whose brace is at `open`.
    fn is_inside(&self, at: usize, open: usize) -> bool {
        self.around(at).any(|brace| brace == open)
    }

    /// The braces of the blocks around a byte, from the inside out.
    fn around(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let last = self.list.partition_point(|(open, ..)| *open < at).checked_sub(1);
        let blocks = std::iter::successors(last, |index| self.list[*index].2);
        blocks.map(|index| self.list[index]).filter(move |(_, end, _)| at < *end).map(|(open, ..)| open)
    }
}

/// End of the string that begins at a quote.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' => at += 1,
            byte if *byte == text[start] => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Returns true if a message says that something is not there, which may be because its definition was not taken in.
fn is_absence(message: &str) -> bool {
    const BEGINS: [&str; 3] = ["unknown ", "no ", "zero size shared memory zone"];
    const PARTS: [&str; 4] = ["is unknown", "is not defined", "is missing", "requires"];
    BEGINS.iter().any(|begin| message.starts_with(begin)) || PARTS.iter().any(|part| message.contains(part))
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Node, Reader, Tree};

    use super::*;

    /// Span of the first directive of this name whose words contain `word`.
    fn find(nodes: &[Node], name: &str, word: &str) -> Option<Span> {
        nodes.iter().find_map(|node| {
            let is_it = node.name.is(name) && (word.is_empty() || node.args.iter().any(|arg| arg.is(word)));
            is_it.then_some(node.span).or_else(|| find(node.block.as_deref()?, name, word))
        })
    }

    #[test]
    fn missing_definitions_are_explained_in_their_scope() {
        let conf = "http {
            limit_req_zone $a zone=one:10mb rate=1r/s; # a } in a comment
            log_fromat main '}';
            upstream app { server http://a; }
            server { listen a; ssl_certificate x.pem; return 200 '{'; }
            server { listen b; location ~ \"^/{2}\" { limit_req zone=one; } }
        }";
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", conf.as_bytes()).unwrap();
        let explains = |cause: (&str, &str), message: &str, at: (&str, &str)| {
            let span = |(name, word)| find(&tree.nodes, name, word).unwrap();
            let causes = Causes::new(&[ConfError::new("x").at(span(cause))], &tree.sources, false);
            causes.explain(&ConfError::new(message).at(span(at)))
        };
        let no_certificate = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive";
        for (cause, message, at, expected) in [
            (("limit_req_zone", ""), "zero size shared memory zone \"one\"", ("limit_req", ""), true),
            (("limit_req_zone", ""), "zero size shared memory zone \"two\"", ("limit_req", ""), false),
            (("log_fromat", ""), "unknown log format \"main\"", ("listen", "a"), true),
            (("upstream", "app"), "no port in upstream \"app\"", ("listen", "a"), true),
            (("server", "http://a"), "no servers are inside upstream \"app\"", ("upstream", "app"), true),
            (("ssl_certificate", ""), no_certificate, ("listen", "a"), true),
            (("ssl_certificate", ""), no_certificate, ("listen", "b"), false),
            (("ssl_certificate", ""), "cannot load \"ssl_certificate\"", ("listen", "a"), false),
            (("listen", "a"), "anything", ("listen", "a"), true),
        ] {
            assert_eq!(explains(cause, message, at), expected, "{cause:?}: {message}");
        }
        let causes = Causes::new(&[], &tree.sources, true);
        assert!(causes.explain(&ConfError::new("unknown log format \"x\"")));
        assert!(!causes.explain(&ConfError::new("invalid value \"x\"")));
    }
}
