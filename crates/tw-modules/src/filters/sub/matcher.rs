//! Finds many words in a text that arrives in pieces: Aho-Corasick, which reads each byte once for any number of words.
//! Letter case of ASCII does not matter.
//!
//! Of words that begin at the same byte the one listed first wins, of overlapping matches the one that begins first. At
//! most the length of the longest word is held back between two pieces: bytes that may still be the beginning of a
//! match.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The words, compiled. Cost: some 50 bytes per byte of the words.
pub(crate) struct WordList {
    nodes: Vec<Node>,
    /// Children of all nodes: byte and node, sorted within a node.
    edges: Vec<(u8, u32)>,
    /// Set for each byte that a word begins with.
    begins: [bool; 256],
    /// Length of each word.
    lens: Vec<usize>,
}

#[derive(Clone)]
struct Node {
    /// Range of its children.
    edges: (u32, u32),
    /// Node of the longest proper suffix of the path to this node that begins a word.
    fail: u32,
    /// Nearest node among those suffixes at which a word ends; 0 is none.
    ends_at: u32,
    /// Bytes that lead here.
    depth: u32,
    /// Words that end here, best first.
    words: Vec<u8>,
    /// The best word below.
    best_below: u16,
}

const ROOT: u32 = 0;
const NO_WORD: u16 = u16::MAX;

impl WordList {
    /// Compiles words in lower case, none of them empty, at most 255.
    pub(crate) fn new<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let node = |depth| Node {
            edges: (0, 0),
            fail: ROOT,
            ends_at: ROOT,
            depth,
            words: Vec::new(),
            best_below: NO_WORD,
        };
        let mut nodes = vec![node(0)];
        let mut children: Vec<Vec<(u8, u32)>> = vec![Vec::new()];
        let mut lens = Vec::new();
        for (index, word) in (0..=u8::MAX).zip(words) {
            let mut at = ROOT;
            for byte in word {
                let below = &mut nodes[at as usize].best_below;
                *below = (*below).min(index.into());
                let list = &mut children[at as usize];
                at = match list.binary_search_by_key(byte, |(b, _)| *b) {
                    Ok(found_value) => list[found_value].1,
                    Err(place) => {
                        let new = nodes.len() as u32;
                        list.insert(place, (*byte, new));
                        let depth = nodes[at as usize].depth + 1;
                        nodes.push(node(depth));
                        children.push(Vec::new());
                        new
                    }
                };
            }
            nodes[at as usize].words.push(index);
            lens.push(word.len());
        }
        let mut edges = Vec::with_capacity(nodes.len());
        for (node, list) in nodes.iter_mut().zip(&children) {
            let start = edges.len() as u32;
            edges.extend_from_slice(list);
            node.edges = (start, edges.len() as u32);
        }
        let mut begins = [false; 256];
        for (byte, _) in &children[0] {
            begins[usize::from(*byte)] = true;
            begins[usize::from(byte.to_ascii_uppercase())] = true;
        }
        let mut compiled = Self { nodes, edges, begins, lens };
        compiled.connection();
        compiled
    }

    /// Number of words.
    pub(super) fn count(&self) -> usize {
        self.lens.len()
    }

    /// The place of the match in `text` that ends first, at `from` or behind it. Linear in the bytes up to there.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let mut state = ROOT;
        let mut at = from;
        loop {
            if state == ROOT {
                at += text.get(at..)?.iter().position(|byte| self.begins[usize::from(*byte)])?;
            }
            state = self.step(state, text.get(at)?.to_ascii_lowercase());
            at += 1;
            let node = &self.nodes[state as usize];
            let ends_at = if node.words.is_empty() { node.ends_at } else { state };
            if ends_at != ROOT {
                return Some(at - self.nodes[ends_at as usize].depth as usize..at);
            }
        }
    }

    /// Sets `fail` and `ends_at`, level by level.
    fn connection(&mut self) {
        let mut level: Vec<u32> = self.children(ROOT).map(|(_, child)| child).collect();
        while !level.is_empty() {
            let mut next = Vec::new();
            for at in level {
                let of = self.nodes[at as usize].clone();
                for (byte, child) in self.children(at).collect::<Vec<_>>() {
                    let fail = self.step(of.fail, byte);
                    let ends = &self.nodes[fail as usize];
                    let ends_at = if ends.words.is_empty() { ends.ends_at } else { fail };
                    let child_node = &mut self.nodes[child as usize];
                    (child_node.fail, child_node.ends_at) = (fail, ends_at);
                    next.push(child);
                }
            }
            level = next;
        }
    }

    fn children(&self, at: u32) -> impl Iterator<Item = (u8, u32)> + '_ {
        let (start, end) = self.nodes[at as usize].edges;
        self.edges[start as usize..end as usize].iter().copied()
    }

    /// The state after `byte`, which is in lower case.
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            let (start, end) = self.nodes[at as usize].edges;
            let edges = &self.edges[start as usize..end as usize];
            if let Ok(found_value) = edges.binary_search_by_key(&byte, |(b, _)| *b) {
                return edges[found_value].1;
            }
            if at == ROOT {
                return ROOT;
            }
            at = self.nodes[at as usize].fail;
        }
    }
}

/// Treatment of a word that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occurrences {
    /// Every time it is found.
    Always,
    /// The first time only.
    Once,
}

/// Replaces words in a text that comes in pieces.
pub(super) struct Replacer {
    words: Arc<WordList>,
    repeat: Occurrences,
    /// Words that are not looked for any more.
    used: Vec<bool>,
    used_count: usize,
    state: u32,
    /// Bytes that may still begin a match, each with the best word that begins there.
    pending_bytes: VecDeque<(u8, u16)>,
}

impl Replacer {
    pub(super) fn new(words: Arc<WordList>, repeat: Occurrences) -> Self {
        let used = vec![false; words.count()];
        Self { words, repeat, used, used_count: 0, state: ROOT, pending_bytes: VecDeque::new() }
    }

    /// Returns `true` if no word is left to look for and nothing is held back: the rest of the text stays as it is.
    pub(super) fn is_over(&self) -> bool {
        self.used_count == self.used.len() && self.pending_bytes.is_empty()
    }

    /// Returns `true` if `text` goes through unchanged, and nothing is held back before and after it.
    pub(super) fn passes(&self, text: &[u8]) -> bool {
        self.pending_bytes.is_empty() && !text.iter().any(|byte| self.words.begins[usize::from(*byte)])
    }

    /// Takes the next bytes, and appends to `out` those that are decided. `replace` appends the replacement of the word
    /// of this number.
    pub(super) fn push(&mut self, text: &[u8], out: &mut Vec<u8>, replace: &mut dyn FnMut(u8, &mut Vec<u8>)) {
        let mut rest = text;
        while !rest.is_empty() {
            if self.pending_bytes.is_empty() {
                let plain = if self.used_count == self.used.len() {
                    rest.len()
                } else {
                    let begin = rest.iter().position(|byte| self.words.begins[usize::from(*byte)]);
                    begin.unwrap_or(rest.len())
                };
                out.extend_from_slice(&rest[..plain]);
                rest = &rest[plain..];
            }
            let Some((byte, tail)) = rest.split_first() else { break };
            rest = tail;
            self.take(*byte);
            self.settle(out, replace);
        }
    }

    /// Ends the text: appends the bytes held back.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>, replace: &mut dyn FnMut(u8, &mut Vec<u8>)) {
        while !self.pending_bytes.is_empty() {
            // At the end of the text no word that has begun can be completed.
            self.state = ROOT;
            self.settle(out, replace);
        }
    }

    fn take(&mut self, byte: u8) {
        let words = &*self.words;
        self.pending_bytes.push_back((byte, NO_WORD));
        self.state = words.step(self.state, byte.to_ascii_lowercase());
        let mut at = self.state;
        while at != ROOT {
            let node = &words.nodes[at as usize];
            let best = node.words.iter().find(|word| !self.used[usize::from(**word)]);
            if let Some(word) = best
                && let Some(start) = self.pending_bytes.len().checked_sub(node.depth as usize)
                && let Some((_, known_value)) = self.pending_bytes.get_mut(start)
            {
                *known_value = (*known_value).min((*word).into());
            }
            at = node.ends_at;
        }
    }

    /// Decides about every byte at which no word can begin any more but those that have ended.
    fn settle(&mut self, out: &mut Vec<u8>, replace: &mut dyn FnMut(u8, &mut Vec<u8>)) {
        while let Some(&(byte, value)) = self.pending_bytes.front() {
            let state = &self.words.nodes[self.state as usize];
            // The path from the root to the state spells the last bytes held. If it spells all of them, the first byte
            // may still begin a longer match.
            if state.depth as usize == self.pending_bytes.len() && value >= state.best_below {
                return;
            }
            let Ok(word) = u8::try_from(value) else {
                out.push(byte);
                self.pending_bytes.pop_front();
                continue;
            };
            replace(word, out);
            let len = self.words.lens[usize::from(word)].min(self.pending_bytes.len());
            self.pending_bytes.drain(..len);
            match self.repeat {
                Occurrences::Always => self.forget_before(),
                Occurrences::Once => {
                    self.used[usize::from(word)] = true;
                    self.used_count += 1;
                    self.rescan();
                }
            }
        }
        self.forget_before();
    }

    /// Drops candidates that begin before the first byte that is held.
    fn forget_before(&mut self) {
        loop {
            let state = &self.words.nodes[self.state as usize];
            if state.depth as usize <= self.pending_bytes.len() {
                return;
            }
            self.state = state.fail;
        }
    }

    /// Searches the held bytes again, without the word that has just been used up. Happens once per word.
    fn rescan(&mut self) {
        self.state = ROOT;
        for (byte, _) in std::mem::take(&mut self.pending_bytes) {
            self.take(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces each word by its number in angle brackets; the text comes in pieces of this size.
    fn replaced(words: &[&str], repeat: Occurrences, text: &[u8], size: usize) -> String {
        let compiled = Arc::new(WordList::new(words.iter().map(|word| word.as_bytes())));
        let longest = words.iter().map(|word| word.len()).max().unwrap();
        let mut replacer = Replacer::new(compiled, repeat);
        let mut out = Vec::new();
        let mut replace = |word: u8, out: &mut Vec<u8>| out.extend_from_slice(format!("<{word}>").as_bytes());
        for piece in text.chunks(size) {
            replacer.push(piece, &mut out, &mut replace);
            assert!(
                replacer.pending_bytes.len() <= longest,
                "{words:?}: {} bytes held",
                replacer.pending_bytes.len()
            );
        }
        replacer.finish(&mut out, &mut replace);
        assert!(replacer.pending_bytes.is_empty());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn words_are_found_however_the_text_is_split() {
        use Occurrences::{Always, Once};
        let table: &[(&[&str], Occurrences, &str, &str)] = &[
            (&["a"], Always, "", ""),
            (&["a"], Always, "xyz", "xyz"),
            (&["a"], Always, "bAna", "b<0>n<0>"),
            (&["a"], Once, "bAna", "b<0>na"),
            (&["aab"], Always, "aaab", "a<0>"),
            (&["aab"], Always, "aaaaaa", "aaaaaa"),
            // The first to begin wins, then the first that was given.
            (&["abcdef", "cd"], Always, "abcdef abcd abcdx", "<0> ab<1> ab<1>x"),
            (&["ab", "abc"], Always, "abcabc", "<0>c<0>c"),
            (&["abc", "ab"], Always, "abcab", "<0><1>"),
            (&["bc", "abcd"], Always, "abcabcd", "a<0><1>"),
            (&["b", "abcx"], Always, "abcabcx", "a<0>c<1>"),
            // Overlapping candidates: words inside a match that failed are found.
            (&["aaaab", "a"], Always, "aaaaaaab!", "<1><1><1><0>!"),
            (&["abab"], Always, "abababab", "<0><0>"),
            (&["abab"], Always, "aabababx", "a<0>abx"),
            // With `Once`, each word is replaced once; of two equal words the second one takes the second occurrence.
            (&["a", "a", "b"], Once, "abaab", "<0><2><1>ab"),
            (&["ab", "a"], Once, "aabab", "<1><0>ab"),
            (&["a", "ab"], Once, "ababab", "<0>b<1>ab"),
            (&["aab", "a"], Once, "aaaab", "<1>a<0>"),
            (&["x"], Once, "axbxc", "a<0>bxc"),
        ];
        for (words, repeat, text, expected) in table {
            for size in 1..=text.len().max(1) {
                let found_text = replaced(words, *repeat, text.as_bytes(), size);
                assert_eq!(found_text, *expected, "{words:?} {repeat:?} {text} by {size}");
            }
        }
    }

    /// Reference implementation: tries every word at every place.
    fn replace_naively(words: &[&str], repeat: Occurrences, text: &[u8]) -> String {
        let mut used = vec![false; words.len()];
        let mut out = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let begins = |word: &str| {
                text[at..].len() >= word.len()
                    && text[at..at + word.len()].eq_ignore_ascii_case(word.as_bytes())
            };
            match words.iter().enumerate().find(|(n, word)| !used[*n] && begins(word)) {
                Some((n, word)) => {
                    used[n] = repeat == Occurrences::Once;
                    out.extend_from_slice(format!("<{n}>").as_bytes());
                    at += word.len();
                }
                None => {
                    out.push(text[at]);
                    at += 1;
                }
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn words_are_found_from_a_place_on() {
        let of = |words: &[&str]| WordList::new(words.iter().map(|word| word.as_bytes()));
        for (words, text, from, expected) in [
            (&["aab"][..], "xaaAB", 0, Some(2..5)),
            (&["aab"], "xaaab", 2, Some(2..5)),
            (&["aab"], "xaaab", 3, None),
            (&["aab"], "", 0, None),
            (&["aab"], "aab", 4, None),
            (&["aab"], "aaxaa", 0, None),
            (&["xaab", "aa"], "xaab", 0, Some(1..3)),
        ] {
            assert_eq!(of(words).find(text.as_bytes(), from), expected, "{words:?} {text} {from}");
        }
    }

    #[test]
    fn any_words_in_any_text() {
        // A small generator with a fixed seed: letters a and b make many partial matches.
        let mut seed = 7_u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..3000 {
            let mut text = |len| (0..len).map(|_| ['a', 'b', 'B'][random(3) as usize]).collect::<String>();
            let one = text(1);
            let two = text(2);
            let three = text(4);
            let haystack = text(24);
            let words = [one, two, three].map(|word| word.to_ascii_lowercase());
            let order = [[0, 1, 2], [2, 1, 0], [1, 2, 0]][random(3) as usize];
            let words: Vec<&str> = order.iter().map(|n| &*words[*n]).collect();
            for repeat in [Occurrences::Always, Occurrences::Once] {
                let expected = replace_naively(&words, repeat, haystack.as_bytes());
                for size in [1, 3, 24] {
                    let found_text = replaced(&words, repeat, haystack.as_bytes(), size);
                    assert_eq!(found_text, expected, "{words:?} {repeat:?} {haystack} by {size}");
                }
            }
        }
    }

    #[test]
    fn partial_matches_cost_no_more() {
        let word = format!("{}b", "a".repeat(2000));
        let text = vec![b'a'; 1 << 20];
        assert_eq!(replaced(&[&word], Occurrences::Always, &text, 4096).len(), text.len());
    }
}
