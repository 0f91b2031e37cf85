//! Conditional requests (RFC 9110 section 13) in nginx's order, and entity tags.
//!
//! nginx asks `If-Unmodified-Since` first, then `If-Match`; then a 304 needs *every* one of `If-Modified-Since` and
//! `If-None-Match` that is present to agree, where the RFC ignores the former beside the latter. [`Precedence`] says
//! which of the two holds.

use crate::head::RequestHead;
use crate::header_name::HeaderName;
use crate::{date, num};

/// `if_modified_since`: how `If-Modified-Since` is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// The response is always taken as modified.
    Off,
    /// Only the very same time is unmodified: a file that was put back to an older state is a change.
    #[default]
    Exact,
    /// An equal or older time means "not modified".
    Before,
}

/// Precedence of two conditions on the same property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precedence {
    /// All count, in nginx's order.
    #[default]
    Nginx,
    /// A time counts only where no tag is given (RFC 9110 section 13.2.2).
    Rfc9110,
}

/// Validators of the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// The entity tag, quotes and `W/` included.
    pub etag: Option<&'a [u8]>,
    /// Seconds since 1970.
    pub last_modified: Option<i64>,
}

/// The values of the conditional fields of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// `If-Match`
    pub if_match: Option<&'a [u8]>,
    /// `If-None-Match`
    pub if_none_match: Option<&'a [u8]>,
    /// `If-Modified-Since`
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Unmodified-Since`
    pub if_unmodified_since: Option<&'a [u8]>,
}

/// Result of evaluating the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionOutcome {
    /// Answer as if there were no condition.
    Proceed,
    /// 304
    NotModified,
    /// 412
    PreconditionFailed,
}

impl<'a> Conditions<'a> {
    /// The conditional fields of a request.
    pub fn of(head: &'a RequestHead) -> Self {
        Conditions {
            if_match: head.field_known(HeaderName::IfMatch),
            if_none_match: head.field_known(HeaderName::IfNoneMatch),
            if_modified_since: head.field_known(HeaderName::IfModifiedSince),
            if_unmodified_since: head.field_known(HeaderName::IfUnmodifiedSince),
        }
    }

    /// Judges the conditions for a response that would be a 200.
    pub fn evaluate(
        &self,
        response: &Validators<'_>,
        mode: IfModifiedSince,
        precedence: Precedence,
    ) -> ConditionOutcome {
        let Conditions { mut if_modified_since, mut if_unmodified_since, .. } = *self;
        if precedence == Precedence::Rfc9110 {
            if_unmodified_since = if_unmodified_since.filter(|_| self.if_match.is_none());
            if_modified_since = if_modified_since.filter(|_| self.if_none_match.is_none());
        }
        if let Some(since) = if_unmodified_since
            && !is_unmodified_since(since, response.last_modified)
        {
            return ConditionOutcome::PreconditionFailed;
        }
        if let Some(list) = self.if_match
            && !tag_matches(list, response.etag, Compare::Strong)
        {
            return ConditionOutcome::PreconditionFailed;
        }
        if if_modified_since.is_none() && self.if_none_match.is_none() {
            return ConditionOutcome::Proceed;
        }
        let modified =
            if_modified_since.is_some_and(|since| is_modified_since(since, response.last_modified, mode));
        let other_tag =
            self.if_none_match.is_some_and(|list| !tag_matches(list, response.etag, Compare::Weak));
        if modified || other_tag { ConditionOutcome::Proceed } else { ConditionOutcome::NotModified }
    }
}

impl Conditions<'_> {
    /// Returns `true` if a method other than GET and HEAD may change the resource (RFC 9110 section 13.2.2). `current` are the
    /// validators of its representation, `None` if it has none.
    ///
    /// `If-Modified-Since` has no meaning for such a method, and a time that is none is ignored.
    pub fn hold_for_change(&self, current: Option<&Validators<'_>>) -> bool {
        let is_named = |list: &[u8], compare| {
            current.is_some_and(|current| tag_matches(list.trim_ascii(), current.etag, compare))
        };
        let unmodified_since =
            self.if_unmodified_since.filter(|_| self.if_match.is_none()).and_then(date::parse);
        let is_unmodified = match (unmodified_since, current.and_then(|current| current.last_modified)) {
            (Some(since), Some(last_modified)) => since >= last_modified,
            (None, _) | (_, None) => true,
        };
        self.if_match.is_none_or(|list| is_named(list, Compare::Strong))
            && is_unmodified
            && !self.if_none_match.is_some_and(|list| is_named(list, Compare::Weak))
    }
}

fn is_unmodified_since(since: &[u8], last_modified: Option<i64>) -> bool {
    let Some(last_modified) = last_modified else { return false };
    date::parse(since).is_some_and(|since| since >= last_modified)
}

fn is_modified_since(since: &[u8], last_modified: Option<i64>, mode: IfModifiedSince) -> bool {
    let (Some(last_modified), Some(since)) = (last_modified, date::parse(since)) else { return true };
    match mode {
        IfModifiedSince::Off => true,
        IfModifiedSince::Exact => since != last_modified,
        IfModifiedSince::Before => since < last_modified,
    }
}

/// Returns `true` if a `Range` applies with this `If-Range`: the tag is equal and strong, or the time is equal (RFC
/// 9110 section 13.1.5).
pub fn if_range_holds(value: &[u8], response: &Validators<'_>) -> bool {
    if value.len() >= 2 && value.ends_with(b"\"") {
        return response.etag == Some(value) && !is_weak(value);
    }
    response.last_modified.is_some_and(|last_modified| date::parse(value) == Some(last_modified))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Strong,
    Weak,
}

/// Returns `true` if a list contains a tag, or is `*`.
fn tag_matches(list: &[u8], etag: Option<&[u8]>, compare: Compare) -> bool {
    if list == b"*" {
        return true;
    }
    let bare = |tag| match compare {
        Compare::Weak => opaque(tag),
        Compare::Strong => tag,
    };
    // DIFF(nginx): two weak tags that are the same say nothing about the bytes (RFC 9110 section 8.8.3.2).
    let etag = etag.filter(|etag| compare == Compare::Weak || !is_weak(etag));
    let Some(etag) = etag.map(bare) else { return false };

    let mut rest = list;
    while !rest.is_empty() {
        // A tag may contain a comma: it is compared as a whole before the next comma is looked for.
        if let Some(after) = bare(rest).strip_prefix(etag)
            && matches!(after.trim_ascii_start().first(), None | Some(b','))
        {
            return true;
        }
        let Some(comma) = memchr::memchr(b',', rest) else { return false };
        rest = rest.get(comma + 1..).unwrap_or(b"");
        while let Some((b' ' | b'\t' | b',', tail)) = rest.split_first() {
            rest = tail;
        }
    }
    false
}

fn is_weak(tag: &[u8]) -> bool {
    tag.starts_with(b"W/")
}

/// The tag without `W/`.
fn opaque(tag: &[u8]) -> &[u8] {
    match tag.strip_prefix(b"W/") {
        Some(rest) if !rest.is_empty() => rest,
        _ => tag,
    }
}

/// Room for `"`, 16 digits, `-`, 16 digits, `"`.
const ETAG_MAX: usize = 2 * num::HEX_MAX + 3;

/// An entity tag made from a file's time and size, as nginx makes it: `"6553f100-24"`.
#[derive(Clone, Copy, Debug)]
pub struct Etag {
    bytes: [u8; ETAG_MAX],
    len: u8,
}

impl Etag {
    /// The tag of a file: seconds of its last change since 1970 and its size in bytes, in hexadecimal.
    pub fn of_file(mtime: i64, size: u64) -> Self {
        let mut time_digits = [0; num::HEX_MAX];
        let mut size_digits = [0; num::HEX_MAX];
        let time = num::hex(mtime as u64, &mut time_digits);
        let size = num::hex(size, &mut size_digits);
        let text = b"\"".iter().chain(time).chain(b"-").chain(size).chain(b"\"");
        let mut bytes = [0; ETAG_MAX];
        let len = bytes.iter_mut().zip(text).map(|(to, &from)| *to = from).count();
        Etag { bytes, len: len as u8 }
    }

    /// The tag, quotes included.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(b"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionOutcome::{NotModified, PreconditionFailed, Proceed};

    const TAG: &str = "\"6553f100-24\"";
    const OLDER: &str = "Tue, 14 Nov 2023 22:13:19 GMT";
    const SAME: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
    const NEWER: &str = "Tue, 14 Nov 2023 22:13:21 GMT";
    const FILE: Validators<'static> =
        Validators { etag: Some(TAG.as_bytes()), last_modified: Some(1_700_000_000) };

    fn conditions<'a>(fields: &[(&str, &'a str)]) -> Conditions<'a> {
        let get = |wanted_name| {
            fields.iter().find(|(name, _)| *name == wanted_name).map(|(_, value)| value.as_bytes())
        };
        Conditions {
            if_match: get("im"),
            if_none_match: get("inm"),
            if_modified_since: get("ims"),
            if_unmodified_since: get("ius"),
        }
    }

    #[test]
    fn outcomes() {
        let table: &[(&[(&str, &str)], ConditionOutcome)] = &[
            (&[], Proceed),
            (&[("ims", SAME)], NotModified),
            (&[("ims", NEWER)], Proceed),
            (&[("ims", OLDER)], Proceed),
            (&[("ims", "Tuesday, 14-Nov-23 22:13:20 GMT")], NotModified),
            (&[("ims", "Tue Nov 14 22:13:20 2023")], NotModified),
            (&[("ims", "never")], Proceed),
            (&[("ims", "")], Proceed),
            (&[("ius", OLDER)], PreconditionFailed),
            (&[("ius", SAME)], Proceed),
            (&[("ius", NEWER)], Proceed),
            (&[("ius", "never")], PreconditionFailed),
            (&[("inm", TAG)], NotModified),
            (&[("inm", "\"x\"")], Proceed),
            (&[("inm", "*")], NotModified),
            (&[("inm", "W/\"6553f100-24\"")], NotModified),
            (&[("inm", "\"x\", W/\"6553f100-24\" , \"y\"")], NotModified),
            (&[("inm", "\"x\",,\t\"6553f100-24\"")], NotModified),
            (&[("inm", "\"6553f100-24\"x")], Proceed),
            (&[("inm", "6553f100-24")], Proceed),
            (&[("inm", "*, \"x\"")], Proceed),
            (&[("inm", "")], Proceed),
            (&[("inm", ",")], Proceed),
            (&[("im", TAG)], Proceed),
            (&[("im", "*")], Proceed),
            (&[("im", "\"x\"")], PreconditionFailed),
            (&[("im", "\"x\", \"6553f100-24\"")], Proceed),
            (&[("im", "W/\"6553f100-24\"")], PreconditionFailed),
            (&[("im", "")], PreconditionFailed),
            (&[("inm", TAG), ("ims", SAME)], NotModified),
            (&[("inm", TAG), ("ims", OLDER)], Proceed),
            (&[("inm", "\"x\""), ("ims", SAME)], Proceed),
            (&[("im", TAG), ("inm", TAG)], NotModified),
            (&[("im", "\"x\""), ("inm", TAG)], PreconditionFailed),
            (&[("ius", SAME), ("ims", SAME)], NotModified),
            (&[("ius", OLDER), ("im", TAG)], PreconditionFailed),
        ];
        for (fields, expected) in table {
            let got = conditions(fields).evaluate(&FILE, IfModifiedSince::Exact, Precedence::Nginx);
            assert_eq!(got, *expected, "{fields:?}");
        }
    }

    #[test]
    fn a_tag_comes_before_a_time_rfc9110_section_13_2_2() {
        let table: &[(&[(&str, &str)], ConditionOutcome)] = &[
            (&[("inm", TAG), ("ims", OLDER)], NotModified),
            (&[("inm", TAG), ("ims", "never")], NotModified),
            (&[("inm", "\"x\""), ("ims", SAME)], Proceed),
            (&[("ims", SAME)], NotModified),
            (&[("ims", OLDER)], Proceed),
            (&[("im", TAG), ("ius", OLDER)], Proceed),
            (&[("im", "\"x\""), ("ius", SAME)], PreconditionFailed),
            (&[("ius", OLDER)], PreconditionFailed),
            (&[("im", TAG), ("ius", OLDER), ("inm", TAG), ("ims", OLDER)], NotModified),
            (&[], Proceed),
        ];
        for (fields, expected) in table {
            let got = conditions(fields).evaluate(&FILE, IfModifiedSince::Exact, Precedence::Rfc9110);
            assert_eq!(got, *expected, "{fields:?}");
        }
    }

    #[test]
    fn changes_rfc9110_section_13_2_2() {
        let without_tag = Validators { etag: None, ..FILE };
        type Fields<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Fields<'_>, [bool; 3])] = &[
            // Results for a file, for one without a tag, and for a missing one.
            (&[], [true, true, true]),
            (&[("im", "*")], [true, true, false]),
            (&[("im", TAG)], [true, false, false]),
            (&[("im", "\"x\", \"6553f100-24\"")], [true, false, false]),
            (&[("im", "W/\"6553f100-24\"")], [false, false, false]),
            (&[("im", "\"x\"")], [false, false, false]),
            (&[("im", "")], [false, false, false]),
            (&[("inm", "*")], [false, false, true]),
            (&[("inm", " * ")], [false, false, true]),
            (&[("inm", TAG)], [false, true, true]),
            (&[("inm", "W/\"6553f100-24\"")], [false, true, true]),
            (&[("inm", "\"x\"")], [true, true, true]),
            (&[("ius", OLDER)], [false, false, true]),
            (&[("ius", SAME)], [true, true, true]),
            (&[("ius", NEWER)], [true, true, true]),
            (&[("ius", "never")], [true, true, true]),
            (&[("im", TAG), ("ius", OLDER)], [true, false, false]),
            (&[("im", "*"), ("inm", "*")], [false, false, false]),
            (&[("im", TAG), ("inm", "\"x\"")], [true, false, false]),
            (&[("ius", SAME), ("inm", TAG)], [false, true, true]),
            (&[("ims", OLDER)], [true, true, true]),
            (&[("ims", SAME)], [true, true, true]),
        ];
        for (fields, expected) in table {
            let conditions = conditions(fields);
            let got =
                [Some(&FILE), Some(&without_tag), None].map(|current| conditions.hold_for_change(current));
            assert_eq!(got, *expected, "{fields:?}");
        }
    }

    #[test]
    fn modes_of_if_modified_since() {
        let table = [
            (IfModifiedSince::Off, [Proceed, Proceed, Proceed]),
            (IfModifiedSince::Exact, [Proceed, NotModified, Proceed]),
            (IfModifiedSince::Before, [Proceed, NotModified, NotModified]),
        ];
        for (mode, expected) in table {
            for (since, expected) in [OLDER, SAME, NEWER].into_iter().zip(expected) {
                let got = conditions(&[("ims", since)]).evaluate(&FILE, mode, Precedence::Nginx);
                assert_eq!(got, expected, "{mode:?} {since}");
            }
        }
    }

    #[test]
    fn a_response_without_validators() {
        let bare = Validators::default();
        let table = [
            ("ims", SAME, Proceed),
            ("ius", SAME, PreconditionFailed),
            ("inm", TAG, Proceed),
            ("im", TAG, PreconditionFailed),
        ];
        for (name, value, expected) in table {
            let got = conditions(&[(name, value)]).evaluate(&bare, IfModifiedSince::Exact, Precedence::Nginx);
            assert_eq!(got, expected, "{name}");
        }
        let any = conditions(&[("inm", "*")]);
        assert_eq!(any.evaluate(&bare, IfModifiedSince::Exact, Precedence::Nginx), NotModified);
    }

    /// RFC 9110 section 8.8.3.2.
    #[test]
    fn comparison_rfc9110_section_8_8_3_2() {
        let table = [
            ("W/\"1\"", "W/\"1\"", true, false),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", true, false),
            ("\"1\"", "W/\"1\"", true, false),
            ("\"1\"", "\"1\"", true, true),
            ("*", "W/\"1\"", true, true),
        ];
        for (one, other, weak, strong) in table {
            for (compare, expected) in [(Compare::Weak, weak), (Compare::Strong, strong)] {
                let got = tag_matches(one.as_bytes(), Some(other.as_bytes()), compare);
                assert_eq!(got, expected, "{one} {other} {compare:?}");
            }
        }
        assert!(tag_matches(b"\"a,b\", \"c\"", Some(b"\"a,b\""), Compare::Strong));
    }

    #[test]
    fn if_range() {
        let weak = Validators { etag: Some(b"W/\"1\""), last_modified: None };
        assert!(if_range_holds(TAG.as_bytes(), &FILE));
        assert!(!if_range_holds(b"\"x\"", &FILE));
        assert!(!if_range_holds(b"W/\"6553f100-24\"", &FILE));
        assert!(if_range_holds(SAME.as_bytes(), &FILE));
        assert!(!if_range_holds(NEWER.as_bytes(), &FILE));
        assert!(!if_range_holds(b"", &FILE));
        assert!(!if_range_holds(b"\"", &FILE));
        assert!(!if_range_holds(SAME.as_bytes(), &weak));
        assert!(!if_range_holds(b"\"1\"", &weak));
        assert!(!if_range_holds(b"W/\"1\"", &weak));
    }

    #[test]
    fn tags_of_files() {
        let table = [
            (1_700_000_000, 36, TAG),
            (0, 0, "\"0-0\""),
            (-1, u64::MAX, "\"ffffffffffffffff-ffffffffffffffff\""),
        ];
        for (mtime, size, expected) in table {
            assert_eq!(Etag::of_file(mtime, size).as_bytes(), expected.as_bytes());
        }
    }
}
