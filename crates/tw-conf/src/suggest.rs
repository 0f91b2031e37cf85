//! "Did you mean": the nearest of a list of words.

/// Largest edit distance of a suggestion, also for long words.
const MAX_DISTANCE: usize = 3;

/// Switch for suggestions of similar names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// Suggest the most similar name, if one is similar enough.
    Nearest,
    /// Not needed.
    None,
}

/// Most similar word, if at most a third of its letters differ. The first of equally similar ones wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_with_distance(word, candidates).map(|(_, nearest)| nearest)
}

/// Most similar word as of [`nearest`], and the number of letters that differ.
pub(crate) fn nearest_with_distance<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    let word: Vec<char> = word.chars().collect();
    let limit = (word.len() / 3).min(MAX_DISTANCE);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        // At least as many letters must be added or removed. Most candidates need no closer look, of which a
        // configuration of another server takes thousands.
        if candidate.chars().count().abs_diff(word.len()) > limit {
            continue;
        }
        let letters: Vec<char> = candidate.chars().collect();
        let distance = distance(&word, &letters, limit);
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best
}

/// Edit distance of two words: letters added, removed, changed or swapped with their neighbour. If it exceeds
/// `limit`, some number above `limit`.
fn distance(a: &[char], b: &[char], limit: usize) -> usize {
    // Row `i` holds the distances of the first `i` letters of `a` to every beginning of `b`.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        // A row is made of the two before it, and nothing in it is less than the least in these.
        if row.iter().chain(&last).all(|distance| *distance > limit) {
            return limit + 1;
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let table = [
            ("", "", 0),
            ("", "abc", 3),
            ("listen", "listen", 0),
            ("lisen", "listen", 1),
            ("listten", "listen", 1),
            ("lixten", "listen", 1),
            ("lsiten", "listen", 1),
            ("kitten", "sitting", 3),
        ];
        for (a, b, expected) in table {
            let [first, second] = [a, b].map(|word| word.chars().collect::<Vec<_>>());
            for limit in [expected, 10] {
                let both = (distance(&first, &second, limit), distance(&second, &first, limit));
                assert_eq!(both, (expected, expected), "{a} {b}");
            }
            if expected > 0 {
                assert!(distance(&first, &second, expected - 1) >= expected, "{a} {b}");
            }
        }
    }

    #[test]
    fn only_similar_words_are_suggested() {
        let words = ["listen", "server_name", "root", "server", "proxy_pass", "more_set_header"];
        let table = [
            ("servr_name", Some("server_name")),
            ("servername", Some("server_name")),
            ("rooot", Some("root")),
            ("proxypass", Some("proxy_pass")),
            ("foo", None),
            ("", None),
            ("completely_different", None),
            ("grpc_set_headers", None),
        ];
        for (word, expected) in table {
            assert_eq!(nearest(word, words), expected, "{word}");
        }
    }
}
