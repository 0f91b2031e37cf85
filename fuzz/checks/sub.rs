//! Invariants for any words in any text: the result of a search for every word at every place, however the text is
//! split, with no more held back than the longest word.
//!
//! The first byte has the number of replacements per word and the number of words; they follow, each with its length
//! in front, and then the text.

use std::sync::Arc;

use super::matcher::{Occurrences, Replacer, WordList};

/// Longest word.
const WORD_MAX: u8 = 24;

pub(crate) fn check(data: &[u8]) {
    let Some((&[how, cut], mut rest)) = data.split_first_chunk() else { return };
    let repeat = if how & 1 == 0 { Occurrences::Always } else { Occurrences::Once };
    let mut words = Vec::new();
    for _ in 0..=how / 2 % 8 {
        let Some((len, tail)) = rest.split_first() else { return };
        let Some((word, tail)) = tail.split_at_checked(usize::from(len % WORD_MAX) + 1) else { return };
        words.push(word.to_ascii_lowercase());
        rest = tail;
    }
    let text = rest;
    let expected = slowly(&words, repeat, text);
    let compiled = Arc::new(WordList::new(words.iter().map(|word| &**word)));
    let at = usize::from(cut) % (text.len() + 1);
    let (first, second) = text.split_at(at);
    assert_eq!(replaced(&compiled, repeat, &[text]), expected);
    assert_eq!(replaced(&compiled, repeat, &[first, second]), expected, "split at {at}");
    let bytes: Vec<&[u8]> = text.chunks(1).collect();
    assert_eq!(replaced(&compiled, repeat, &bytes), expected, "byte by byte");
}

/// Replacement of a word: text of another length that contains no word.
fn stand(word: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'<', word, b'>']);
}

fn replaced(words: &Arc<WordList>, repeat: Occurrences, pieces: &[&[u8]]) -> Vec<u8> {
    let mut replacer = Replacer::new(words.clone(), repeat);
    let mut out = Vec::new();
    for piece in pieces {
        if replacer.passes(piece) {
            out.extend_from_slice(piece);
            continue;
        }
        if replacer.is_over() {
            out.extend_from_slice(piece);
            continue;
        }
        replacer.push(piece, &mut out, &mut stand);
    }
    replacer.finish(&mut out, &mut stand);
    out
}

/// Reference result by trying every word at every place.
fn slowly(words: &[Vec<u8>], repeat: Occurrences, text: &[u8]) -> Vec<u8> {
    let mut used = vec![false; words.len()];
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let begins =
            |word: &[u8]| text[at..].get(..word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word));
        match words.iter().enumerate().find(|(n, word)| !used[*n] && begins(word)) {
            Some((n, word)) => {
                used[n] = repeat == Occurrences::Once;
                stand(n as u8, &mut out);
                at += word.len();
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}
