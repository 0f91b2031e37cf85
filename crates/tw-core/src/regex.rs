//! Regular expressions as nginx users write them: PCRE syntax on bytes, named captures, a bounded amount of backtracking.
//!
//! A pattern without lookaround or backreferences runs on an automaton in linear time; the rest backtracks at most
//! [`BACKTRACK_LIMIT`] steps and then fails, so that one hostile client cannot hold a loop.

mod pcre;
mod property;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use fancy_regex::{BytesMode, RegexBuilder};

tw_base::limits! {
    /// Limits of a match.
    pub(crate) const LIMITS;

    /// Steps of one match of a regular expression.
    pub const BACKTRACK_LIMIT: usize = 500_000, count, "500, and a line in the error log";
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Regex {
    inner: fancy_regex::Regex,
    end: End,
    /// Names of capture groups in lower case, as variables have them, by group number.
    names: Vec<(usize, Box<str>)>,
    pattern: Box<str>,
    effort: Effort,
}

/// Meaning of `$` for a subject whose last byte is a line break.
#[derive(Debug)]
enum End {
    /// There is no `$`.
    Plain,
    /// A subject that does not match may match without the line break.
    WithoutNewline,
    /// Pattern whose `$` sees a line break at the end, matched by backtracking.
    Exact(Box<fancy_regex::Regex>),
}

/// Cost of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Linear in the length of the subject.
    Linear,
    /// Up to [`BACKTRACK_LIMIT`] steps: long enough for a stalled loop to name it.
    Backtracking,
}

impl Effort {
    /// Only looking around and back, and groups that are not entered again, need backtracking.
    fn of(pattern: &str) -> Self {
        let looks = ["(?=", "(?!", "(?<=", "(?<!", "(?>"].iter().any(|group| pattern.contains(group));
        let digit = |pair: &[u8]| pair[0] == b'\\' && matches!(pair[1], b'1'..=b'9' | b'k');
        if looks || pattern.as_bytes().windows(2).any(digit) { Self::Backtracking } else { Self::Linear }
    }
}

/// The match ran into [`BACKTRACK_LIMIT`]; the request that caused it gets a 500.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacktrackLimit;

/// Result of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// The pattern matched, and the captures are set.
    Yes,
    /// The pattern did not match; earlier captures are kept.
    No,
}

/// Captures of the last successful match: `$0` to `$9` and names.
#[derive(Debug, Default, Clone)]
pub struct Captures {
    subject: Vec<u8>,
    spans: Vec<Option<(u32, u32)>>,
}

impl Captures {
    /// The bytes of group `n`, or `None` when it took no part in the match.
    pub fn group(&self, n: usize) -> Option<&[u8]> {
        let (start, end) = (*self.spans.get(n)?)?;
        self.subject.get(start as usize..end as usize)
    }

    fn set(&mut self, subject: &[u8], spans: impl Iterator<Item = Option<Range<usize>>>) {
        self.clear();
        self.subject.extend_from_slice(subject);
        self.spans.extend(spans.map(|span| span.map(|span| (span.start as u32, span.end as u32))));
    }

    /// Forgets everything, keeps the capacity.
    pub fn clear(&mut self) {
        self.subject.clear();
        self.spans.clear();
    }
}

impl Regex {
    /// Compiles `pattern`. The error is the compiler's text.
    pub fn new(pattern: &[u8], caseless: Caseless) -> Result<Self, String> {
        let translated = pcre::translate(pattern)?;
        let mode = match translated.mode {
            pcre::Mode::Bytes => BytesMode::Ascii,
            pcre::Mode::Utf8 => BytesMode::UnicodeBytes,
        };
        let build = |pattern: &str| {
            let mut builder = RegexBuilder::new(pattern);
            builder.bytes_mode(mode).case_insensitive(caseless == Caseless::Yes);
            builder.backtrack_limit(BACKTRACK_LIMIT).build().map_err(|e| e.to_string())
        };
        let inner = build(&translated.pattern)?;
        let names = inner
            .capture_names()
            .enumerate()
            .filter_map(|(n, name)| name.map(|name| (n, name.to_ascii_lowercase().into())))
            .collect();
        let effort = Effort::of(&translated.pattern);
        let end = match (translated.end, effort) {
            (pcre::End::Plain, _) => End::Plain,
            (pcre::End::WithoutNewline, Effort::Linear) => End::WithoutNewline,
            // A lookaround may look for the end of the text, so the pattern needs an exact translation of `$`.
            (pcre::End::WithoutNewline, Effort::Backtracking) | (pcre::End::Exact, _) => {
                End::Exact(build(&pcre::translate_exactly(pattern)?)?.into())
            }
        };
        Ok(Self { inner, end, names, effort, pattern: String::from_utf8_lossy(pattern).into() })
    }

    /// The pattern as written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns `true` if a match takes up to [`BACKTRACK_LIMIT`] steps, and not only as many as the subject has bytes.
    pub fn backtracks(&self) -> bool {
        self.effort == Effort::Backtracking || matches!(self.end, End::Exact(_))
    }

    /// Number of its groups.
    pub fn group_count(&self) -> usize {
        self.inner.capture_names().count().saturating_sub(1)
    }

    /// Named groups in lower case with their numbers.
    pub fn names(&self) -> &[(usize, Box<str>)] {
        &self.names
    }

    /// Matches the pattern anywhere in `subject`. Linear in its length, or bounded by [`BACKTRACK_LIMIT`].
    pub fn is_match(&self, subject: &[u8]) -> Result<Match, BacktrackLimit> {
        let is_match =
            |regex: &fancy_regex::Regex, subject: &[u8]| Ok(regex.is_match(subject)?.then_some(()));
        match self.watched(|| self.find(subject, is_match)) {
            Ok(Some(())) => Ok(Match::Yes),
            Ok(None) => Ok(Match::No),
            Err(_) => Err(BacktrackLimit),
        }
    }

    /// Runs a match; the report of a stalled loop names one that may have taken long.
    fn watched<T>(&self, run: impl FnOnce() -> T) -> T {
        match self.effort {
            Effort::Linear => run(),
            Effort::Backtracking => tw_rt::watch::operation("regular expression", run),
        }
    }

    // DIFF(nginx): a lazy quantifier takes the line break at the end if it may.
    /// Applies `find`. As in PCRE, `$` matches before a line break at the end, too: a rule for a path is a rule for the path
    /// with `%0A` behind it, whatever the server behind this one makes of that.
    fn find<'s, T>(
        &self,
        subject: &'s [u8],
        find: impl Fn(&fancy_regex::Regex, &'s [u8]) -> Result<Option<T>, fancy_regex::Error>,
    ) -> Result<Option<T>, fancy_regex::Error> {
        let Some(cut) = subject.strip_suffix(b"\n") else { return find(&self.inner, subject) };
        match &self.end {
            End::Plain => find(&self.inner, subject),
            End::WithoutNewline => match find(&self.inner, subject)? {
                None => find(&self.inner, cut),
                result => Ok(result),
            },
            End::Exact(exact) => find(exact, subject),
        }
    }

    /// Matches `subject`; captures are looked for only in what matches. Of a list of expressions most do not, and a plain
    /// miss takes a third of the time of a miss with captures (17 ns, 53 ns).
    ///
    /// # Errors
    /// [`BacktrackLimit`]
    pub fn captures_of_match(&self, subject: &[u8], out: &mut Captures) -> Result<Match, BacktrackLimit> {
        match self.is_match(subject)? {
            Match::Yes => self.captures(subject, out),
            Match::No => Ok(Match::No),
        }
    }

    /// Matches `subject` and stores what was captured in `out`.
    pub fn captures(&self, subject: &[u8], out: &mut Captures) -> Result<Match, BacktrackLimit> {
        let found_captures = self.find(subject, |regex, subject| regex.captures(subject));
        let Some(found_captures) = found_captures.map_err(|_| BacktrackLimit)? else {
            return Ok(Match::No);
        };
        out.set(
            subject,
            (0..found_captures.len()).map(|n| found_captures.get(n).map(|m| m.start()..m.end())),
        );
        Ok(Match::Yes)
    }

    /// Finds the next match that begins at byte `from` of `subject` or behind it, and stores what was captured in `out`: of
    /// the subject no more than that is copied. Returns the place of the match. Nothing matches behind a line break at the
    /// end.
    ///
    /// # Errors
    /// [`BacktrackLimit`]
    pub fn captures_from(
        &self,
        subject: &[u8],
        from: usize,
        out: &mut Captures,
    ) -> Result<Option<Range<usize>>, BacktrackLimit> {
        let find = |regex: &fancy_regex::Regex, subject: &[u8]| {
            if from > subject.len() {
                return Ok(None);
            }
            let Some(captures) = regex.captures_from_pos(subject, from)? else { return Ok(None) };
            let place = |n| captures.get(n).map(|m| m.start()..m.end());
            let spans: Vec<Option<Range<usize>>> = (0..captures.len()).map(place).collect();
            Ok(match spans.first() {
                Some(Some(whole)) if whole.start < subject.len() || !subject.ends_with(b"\n") => Some(spans),
                _ => None,
            })
        };
        let ranges = self.watched(|| self.find(subject, find)).map_err(|_| BacktrackLimit)?;
        let Some(mut spans) = ranges else { return Ok(None) };
        let place = spans.first().cloned().flatten();
        // Groups inside a lookaround may lie outside the match.
        let start = spans.iter().flatten().map(|span| span.start).min().unwrap_or_default();
        let end = spans.iter().flatten().map(|span| span.end).max().unwrap_or_default();
        spans.iter_mut().flatten().for_each(|span| *span = span.start - start..span.end - start);
        out.set(subject.get(start..end).unwrap_or_default(), spans.into_iter());
        Ok(place)
    }
}

/// The expressions of a configuration, each compiled once: the same one often stands in many servers.
#[derive(Default)]
pub struct Regexes(HashMap<(Box<[u8]>, Caseless), Arc<Regex>>);

impl Regexes {
    /// The compiled `pattern`. The error is the compiler's text.
    pub fn compile(&mut self, pattern: &[u8], caseless: Caseless) -> Result<Arc<Regex>, String> {
        let key = (pattern.into(), caseless);
        if let Some(known_regex) = self.0.get(&key) {
            return Ok(known_regex.clone());
        }
        let regex = Arc::new(Regex::new(pattern, caseless)?);
        self.0.insert(key, regex.clone());
        Ok(regex)
    }
}

/// Case sensitivity (`~` or `~*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Caseless {
    /// `~*`
    Yes,
    /// `~`
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_bytes_and_names() {
        let re = Regex::new(br"^/u/(?<User>[^/]+)/(.*)$", Caseless::No).unwrap();
        let mut c = Captures::default();
        assert_eq!(re.captures(b"/u/\xffx/rest", &mut c), Ok(Match::Yes));
        assert_eq!(c.group(1), Some(&b"\xffx"[..]));
        assert_eq!(c.group(2), Some(&b"rest"[..]));
        assert_eq!(re.names(), &[(1, Box::from("user"))]);
        assert_eq!(re.captures(b"/other", &mut c), Ok(Match::No));
        assert_eq!(c.group(2), Some(&b"rest"[..]), "a failed match keeps the captures");
    }

    #[test]
    fn dollar_matches_before_a_line_break_at_the_end_as_in_pcre() {
        let yes = [
            (r"^(.+\.php)(/.+)$", "/x.php/pi\n", Some("/pi")),
            (r"^(.+?\.php)(/.*|)$", "/x.php\n", Some("")),
            (r"\.php$", "/x.php\n", None),
            (r"^(.*)(b)\Z", "ab\n", Some("b")),
            (r"^(/foo)(/|$)", "/foo\n", Some("")),
            (r"^/(?:admin|root$)", "/root\n", None),
            // Greedy expressions take the line break if they can.
            (r"^(/)([^/]+)$", "/a\n", Some("a\n")),
            // In these expressions something may follow `$`.
            (r"^(a)(b$\n)", "ab\n", Some("b\n")),
            (r"^(a)(b)$\n\z", "ab\n", Some("b")),
            (r"^(?!/api$)(/)(.*)$", "/app\n", Some("app")),
            (r"(?m)^(a)(b)$", "x\nab\ny\n", Some("b")),
            (r"(?m)^(a)(b)$\n", "x\nab\ny\n", Some("b")),
            (r"(?x) ^ (a) (b) $ # the end", "ab\n", Some("b")),
        ];
        for (pattern, subject, second) in yes {
            let re = Regex::new(pattern.as_bytes(), Caseless::No).unwrap();
            let mut captures = Captures::default();
            assert_eq!(re.is_match(subject.as_bytes()), Ok(Match::Yes), "{pattern}");
            assert_eq!(re.captures(subject.as_bytes(), &mut captures), Ok(Match::Yes), "{pattern}");
            assert_eq!(captures.group(2), second.map(str::as_bytes), "{pattern}");
        }
        for (pattern, subject) in [
            (r"^a\z", "a\n"),
            (r"^(?:a\z|b$)", "a\n"),
            (r"^a$", "a\n\n"),
            (r"^a$", "a\nb"),
            (r"^a$", "a\r\n"),
            (r"^a\$", "a\n"),
            (r"^a[$]", "a\n"),
            (r"^a\Q$\E", "a\n"),
            (r"^(?!/api$)/", "/api\n"),
            (r"^/(?!api\Z)", "/api\n"),
        ] {
            let re = Regex::new(pattern.as_bytes(), Caseless::No).unwrap();
            assert_eq!(re.is_match(subject.as_bytes()), Ok(Match::No), "{pattern}");
        }
    }

    #[test]
    fn matches_are_found_one_after_the_other() {
        for (pattern, subject, expected) in [
            (r"(a)b|(c)", "xabcab", &[(1..3, "a", ""), (3..4, "", "c"), (4..6, "a", "")][..]),
            (r"^a", "aa", &[(0..1, "", "")]),
            (r"\ba", "a aa", &[(0..1, "", ""), (2..3, "", "")]),
            (r"(?<=(a))b(?=(c))", "abcb", &[(1..2, "a", "c")]),
            (r"$", "ab\n", &[(2..2, "", "")]),
            (r"$", "ab", &[(2..2, "", "")]),
            (r"(b)$", "ab\n", &[(1..2, "b", "")]),
            (r"(\s*)$", "a \n", &[(1..3, " \n", "")]),
            (r"(\n)", "a\n", &[(1..2, "\n", "")]),
            (r"x*", "ax\n", &[(0..0, "", ""), (1..2, "", ""), (2..2, "", "")]),
            (r"x", "", &[]),
        ] {
            let re = Regex::new(pattern.as_bytes(), Caseless::No).unwrap();
            let mut captures = Captures::default();
            let mut result = Vec::new();
            let mut from = 0;
            while let Some(place) = re.captures_from(subject.as_bytes(), from, &mut captures).unwrap() {
                let group = |n| String::from_utf8(captures.group(n).unwrap_or_default().to_vec()).unwrap();
                assert_eq!(group(0), subject[place.clone()], "{pattern}");
                from = place.end.max(place.start + 1);
                result.push((place, group(1), group(2)));
            }
            let expected: Vec<_> = expected
                .iter()
                .map(|(place, one, two)| (place.clone(), (*one).to_owned(), (*two).to_owned()))
                .collect();
            assert_eq!(result, expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn pcre_features_and_limits() {
        for (pattern, subject, expected) in [
            (&br"\.(gif|jpe?g)$"[..], &b"/a.JPG"[..], Ok(Match::Yes)),
            (br"^/(?!api/)", b"/api/x", Ok(Match::No)),
            (br"^/(a+)\1$", b"/aaaa", Ok(Match::Yes)),
            (
                br"^((a|aa)+)+(?!x)\1c$",
                b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                Err(BacktrackLimit),
            ),
        ] {
            let re = Regex::new(pattern, Caseless::Yes).unwrap();
            assert_eq!(re.is_match(subject), expected, "{}", re.pattern());
        }
        assert!(Regex::new(b"(", Caseless::No).is_err());
    }
}
