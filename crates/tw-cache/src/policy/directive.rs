//! `Cache-Control` of responses and requests (RFC 9111 section 5.2): parsed leniently, in one pass, without
//! allocation.
//!
//! Anything malformed is read so that less is stored: a lifetime that is no number is 0, and a field list that cannot
//! be parsed stands for the whole response.

use tw_http::hop;

/// Largest time in a directive, in seconds: greater ones count as this (RFC 9111 section 1.2.2).
pub const DELTA_MAX: u32 = 1 << 31;

/// Lists of field names that one `no-cache` or `private` may be spread over; a response has one or two.
pub const NAME_LISTS_MAX: usize = 4;

/// Directives without an argument that were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directives(u16);

impl Directives {
    /// `no-cache`, for the whole response
    pub const NO_CACHE: Directives = Directives(1);
    /// `no-store`
    pub const NO_STORE: Directives = Directives(1 << 1);
    /// `private`, for the whole response
    pub const PRIVATE: Directives = Directives(1 << 2);
    /// `public`
    pub const PUBLIC: Directives = Directives(1 << 3);
    /// `must-revalidate`
    pub const MUST_REVALIDATE: Directives = Directives(1 << 4);
    /// `proxy-revalidate`
    pub const PROXY_REVALIDATE: Directives = Directives(1 << 5);
    /// `must-understand`
    pub const MUST_UNDERSTAND: Directives = Directives(1 << 6);
    /// `immutable`
    pub const IMMUTABLE: Directives = Directives(1 << 7);
    /// `only-if-cached`
    pub const ONLY_IF_CACHED: Directives = Directives(1 << 8);

    /// Returns `true` if at least one of these is in the set.
    #[inline]
    #[must_use]
    pub fn has(self, one_of: Directives) -> bool {
        self.0 & one_of.0 != 0
    }

    /// Union of both sets.
    #[must_use]
    pub(super) fn and(self, other: Directives) -> Directives {
        Directives(self.0 | other.0)
    }

    fn add(&mut self, other: Directives) {
        self.0 |= other.0;
    }
}

/// Names in `no-cache="…"` or `private="…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names<'a>([Option<&'a [u8]>; NAME_LISTS_MAX]);

impl<'a> Names<'a> {
    /// Returns `true` if the list has no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().flatten().all(|list| hop::elements(list).next().is_none())
    }

    /// Returns `true` if the list has this name, in any case.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.iter().flatten().any(|list| hop::has_element(list, name))
    }

    /// Adds one more list; `false` if there is no room.
    fn add(&mut self, list: &'a [u8]) -> bool {
        let place = self.0.iter_mut().find(|place| place.is_none());
        place.map(|place| *place = Some(list)).is_some()
    }
}

/// All `Cache-Control` lines of a message, parsed. Of a repeated directive the first counts (RFC 9111 section 4.2.1).
/// Times are in seconds, at most [`DELTA_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheControl<'a> {
    /// Directives without an argument.
    pub directives: Directives,
    /// `max-age`; 0 if its argument is no number.
    pub max_age: Option<u32>,
    /// `s-maxage`; 0 if its argument is no number.
    pub s_maxage: Option<u32>,
    /// `stale-while-revalidate` (RFC 5861 section 3).
    pub stale_while_revalidate: Option<u32>,
    /// `stale-if-error` (RFC 5861 section 4).
    pub stale_if_error: Option<u32>,
    /// `max-stale` of a request; without an argument [`DELTA_MAX`].
    pub max_stale: Option<u32>,
    /// `min-fresh` of a request.
    pub min_fresh: Option<u32>,
    /// The fields that `no-cache` names.
    pub no_cache: Names<'a>,
    /// The fields that `private` names.
    pub private: Names<'a>,
}

/// Argument of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Argument<'a> {
    Nothing,
    Text(&'a [u8]),
    /// A quoted string that does not end, or with escapes, which no number and no name has.
    Broken,
}

impl<'a> CacheControl<'a> {
    /// Reads all lines. Cost: one pass.
    #[must_use]
    pub fn of(lines: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut all = Self::default();
        for line in lines {
            all.line(line);
        }
        all
    }

    /// Reads one more line.
    pub fn line(&mut self, line: &'a [u8]) {
        let mut rest = line;
        while let Some((name, argument)) = next(&mut rest) {
            self.apply(name, argument);
        }
    }

    /// Returns `true` if at least one of these directives without an argument is present.
    #[inline]
    #[must_use]
    pub fn has(&self, one_of: Directives) -> bool {
        self.directives.has(one_of)
    }

    pub(super) fn apply(&mut self, name: &[u8], argument: Argument<'a>) {
        const PLAIN: [(&[u8], Directives); 7] = [
            (b"no-store", Directives::NO_STORE),
            (b"public", Directives::PUBLIC),
            (b"must-revalidate", Directives::MUST_REVALIDATE),
            (b"proxy-revalidate", Directives::PROXY_REVALIDATE),
            (b"must-understand", Directives::MUST_UNDERSTAND),
            (b"immutable", Directives::IMMUTABLE),
            (b"only-if-cached", Directives::ONLY_IF_CACHED),
        ];
        let is = |word: &[u8]| name.eq_ignore_ascii_case(word);
        if let Some(&(_, directive)) = PLAIN.iter().find(|(word, _)| is(word)) {
            self.directives.add(directive);
        } else if is(b"no-cache") {
            let is_named = matches!(argument, Argument::Text(list) if self.no_cache.add(list));
            self.directives.add(if is_named { Directives::default() } else { Directives::NO_CACHE });
        } else if is(b"private") {
            let is_named = matches!(argument, Argument::Text(list) if self.private.add(list));
            self.directives.add(if is_named { Directives::default() } else { Directives::PRIVATE });
        } else if is(b"max-age") {
            self.max_age.get_or_insert(seconds(argument).unwrap_or(0));
        } else if is(b"s-maxage") {
            self.s_maxage.get_or_insert(seconds(argument).unwrap_or(0));
        } else if is(b"stale-while-revalidate") {
            self.stale_while_revalidate.get_or_insert(seconds(argument).unwrap_or(0));
        } else if is(b"stale-if-error") {
            self.stale_if_error.get_or_insert(seconds(argument).unwrap_or(0));
        } else if is(b"max-stale") {
            let any = (argument == Argument::Nothing).then_some(DELTA_MAX);
            self.max_stale.get_or_insert(any.or(seconds(argument)).unwrap_or(0));
        } else if is(b"min-fresh") {
            // An invalid `min-fresh` is ignored: the response would have to be fresh anyway.
            self.min_fresh.get_or_insert(seconds(argument).unwrap_or(0));
        }
    }
}

/// Delta-seconds (RFC 9111 section 1.2.2); `None` if it is not all digits.
fn seconds(argument: Argument<'_>) -> Option<u32> {
    match argument {
        Argument::Text(text) => delta(text),
        Argument::Nothing | Argument::Broken => None,
    }
}

/// As [`seconds`], of a text.
pub(super) fn delta(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = text.iter().fold(0u32, |sum, digit| {
        sum.saturating_mul(10).saturating_add(u32::from(digit - b'0')).min(DELTA_MAX)
    });
    Some(seconds)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The text in front of the first byte that ends it; `rest` begins with that byte.
fn take<'a>(rest: &mut &'a [u8], ends: impl Fn(u8) -> bool) -> &'a [u8] {
    let at = rest.iter().position(|&byte| ends(byte)).unwrap_or(rest.len());
    let (before, behind) = rest.split_at(at);
    *rest = behind;
    before
}

/// The next directive; `None` at the end of the line.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Argument<'a>)> {
    loop {
        take(rest, |byte| !is_blank(byte) && byte != b',');
        if rest.is_empty() {
            return None;
        }
        let name = take(rest, |byte| is_blank(byte) || matches!(byte, b'=' | b','));
        take(rest, |byte| !is_blank(byte));
        let argument = match rest.strip_prefix(b"=") {
            Some(behind) => {
                *rest = behind;
                read_argument(rest)
            }
            None => Argument::Nothing,
        };
        // Other bytes before the next comma belong to no directive.
        take(rest, |byte| byte == b',');
        if !name.is_empty() {
            return Some((name, argument));
        }
    }
}

/// A token, or a quoted string, whatever the directive's own syntax is (RFC 9111 section 5.2).
fn read_argument<'a>(rest: &mut &'a [u8]) -> Argument<'a> {
    take(rest, |byte| !is_blank(byte));
    let Some(behind) = rest.strip_prefix(b"\"") else {
        return Argument::Text(take(rest, |byte| is_blank(byte) || byte == b','));
    };
    *rest = behind;
    let mut has_escape = false;
    let start = *rest;
    let mut len = 0;
    loop {
        len += take(rest, |byte| matches!(byte, b'"' | b'\\')).len();
        let step = match rest.first() {
            None => return Argument::Broken,
            Some(b'\\') => 2,
            Some(_) => {
                *rest = rest.get(1..).unwrap_or(b"");
                let text = start.get(..len).unwrap_or(b"");
                return if has_escape { Argument::Broken } else { Argument::Text(text) };
            }
        };
        has_escape = true;
        len += step;
        *rest = rest.get(step..).unwrap_or(b"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> CacheControl<'_> {
        CacheControl::of([line.as_bytes()])
    }

    #[test]
    fn times_are_digits_and_bounded() {
        for (line, expected) in [
            ("max-age=10", Some(10)),
            ("MAX-AGE=10", Some(10)),
            ("max-age=\"10\"", Some(10)),
            (" , max-age = 10 , ", Some(10)),
            ("x, max-age=10;y", Some(0)),
            ("max-age=10 x", Some(10)),
            ("max-age=10, max-age=20", Some(10)),
            ("max-age=99999999999999999999", Some(DELTA_MAX)),
            ("max-age=-1", Some(0)),
            ("max-age=1.5", Some(0)),
            ("max-age=", Some(0)),
            ("max-age", Some(0)),
            ("max-age=\"10", Some(0)),
            ("max-age=\"1\\0\"", Some(0)),
            ("xmax-age=10", None),
            ("ext=\"max-age=10\"", None),
            ("ext=\"a\\\", max-age=10\"", None),
            ("ext=\"a\", max-age=10", Some(10)),
            ("=5, max-age=10", Some(10)),
            ("", None),
        ] {
            assert_eq!(read(line).max_age, expected, "{line:?}");
        }
    }

    #[test]
    fn field_lists_do_not_apply_to_the_whole_response() {
        let all = read("private=\"Set-Cookie, x-a\", no-cache=ETag, no-store");
        assert!(all.private.has(b"set-cookie") && all.private.has(b"X-A") && !all.private.has(b"x"));
        assert!(all.no_cache.has(b"etag") && all.has(Directives::NO_STORE));
        assert!(!all.has(Directives::NO_CACHE) && !all.has(Directives::PRIVATE));
        assert!(read("private").has(Directives::PRIVATE) && read("private").private.is_empty());
        assert!(read("private=\"a").has(Directives::PRIVATE));
        assert!(read("private=\"a\\b\"").has(Directives::PRIVATE));
        let many = "no-cache=a,".repeat(NAME_LISTS_MAX);
        assert!(!read(&many).has(Directives::NO_CACHE));
        assert!(read(&(many + "no-cache=b")).has(Directives::NO_CACHE));
    }

    #[test]
    fn directives_of_requests() {
        let all = CacheControl::of([&b"max-stale, min-fresh=5"[..], b"only-if-cached, no-cache"]);
        assert_eq!((all.max_stale, all.min_fresh), (Some(DELTA_MAX), Some(5)));
        assert!(all.has(Directives::ONLY_IF_CACHED) && all.has(Directives::NO_CACHE));
        assert_eq!(read("max-stale=7").max_stale, Some(7));
        assert_eq!(read("max-stale=x").max_stale, Some(0));
    }
}
