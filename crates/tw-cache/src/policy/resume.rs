//! Continuing a response that broke off, by a range request to the origin (RFC 9110 sections 13.1.5 and 14, RFC 9111
//! section 3.4).

use bytes::Bytes;
use tw_http::range::{ByteRange, ContentRange};
use tw_http::{Fields, HeaderName, date};

use super::validators::validators;

/// Seconds by which `Date` must be later than a `Last-Modified` that identifies every byte (RFC 9110 section 8.8.2.2).
const STRONG_AFTER: i64 = 1;

/// The part of a response that another response has to deliver.
#[derive(Clone, Copy, Debug)]
pub struct MissingRange {
    /// First byte of the missing range.
    pub from: u64,
    /// Bytes of the whole representation, if they are known.
    pub length: Option<u64>,
}

/// Response that delivers the missing range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// Position of the first byte of its body in the representation.
    pub begins_at: u64,
    /// Bytes of the whole representation, if they are known.
    pub length: Option<u64>,
}

/// Value of `If-Range` for a response with these fields: its validator, if that is strong. A weak or overlong entity
/// tag is not usable, and hides the `Last-Modified` beside it: the origin does not promise equal bytes.
#[must_use]
pub fn strong_validator(status: u16, fields: &Fields) -> Option<Bytes> {
    // Only a 200 response can be continued by a range.
    if status != 200 {
        return None;
    }
    let found_validators = validators(status, fields);
    if let Some(etag) = fields.get_known(HeaderName::ETag) {
        found_validators.etag?;
        return etag.starts_with(b"\"").then(|| fields.share(b"ETag")).flatten();
    }
    let date = fields.get_known(HeaderName::Date).and_then(date::parse)?;
    let is_strong = date >= found_validators.last_modified?.saturating_add(STRONG_AFTER);
    is_strong.then(|| fields.share(b"Last-Modified")).flatten()
}

/// Checks that a response continues the one with the fields `before`, of which `missing` is wanted: a 206 of exactly
/// that range, or a 200, with the same validator and coding. `None` if it does not.
#[must_use]
pub fn continues(before: &Fields, missing: MissingRange, status: u16, after: &Fields) -> Option<Resumption> {
    let is_same = |name: HeaderName| before.get_known(name) == after.get_known(name);
    let has_validator = before.has(HeaderName::ETag) || before.has(HeaderName::LastModified);
    if !has_validator || !is_same(HeaderName::ETag) || !is_same(HeaderName::ContentEncoding) {
        return None;
    }
    // With an entity tag a 206 need not repeat the rest (RFC 9110 section 15.3.7).
    let last_modified = after.get_known(HeaderName::LastModified);
    let is_told = !before.has(HeaderName::ETag) || last_modified.is_some();
    if is_told && last_modified != before.get_known(HeaderName::LastModified) {
        return None;
    }
    let length = |said: Option<u64>| match (missing.length, said) {
        (Some(known_value), Some(said)) if known_value != said => None,
        (known_value, said) => Some(known_value.or(said)),
    };
    match status {
        200 => {
            let said = after.get_known(HeaderName::ContentLength).and_then(tw_http::num::parse);
            Some(Resumption { begins_at: 0, length: length(said)? })
        }
        206 => {
            let said = after.get_known(HeaderName::ContentRange).and_then(ContentRange::parse)?;
            let byte_range = ByteRange { start: missing.from, end: u64::MAX };
            let length = length(said.length)?;
            (said.is_all_of(byte_range) && missing.from < said.range.end)
                .then_some(Resumption { begins_at: missing.from, length })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_http::Name;

    fn fields(lines: &[&str]) -> Fields {
        let mut fields = Fields::new();
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            fields.append_copy(Name::Copy(name.as_bytes()), value.as_bytes());
        }
        fields
    }

    const MODIFIED: &str = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn only_strong_validators_are_used() {
        for (lines, expected) in [
            (&["ETag: \"a\""][..], Some("\"a\"")),
            (&["ETag: W/\"a\""], None),
            (&["ETag: W/\"a\"", MODIFIED, "Date: Sun, 06 Nov 1994 09:49:37 GMT"], None),
            (&[MODIFIED], None),
            (&[MODIFIED, "Date: Sun, 06 Nov 1994 08:49:37 GMT"], None),
            (&[MODIFIED, "Date: Sun, 06 Nov 1994 08:49:38 GMT"], Some("Sun, 06 Nov 1994 08:49:37 GMT")),
            (&[], None),
        ] {
            let bytes = strong_validator(200, &fields(lines));
            assert_eq!(bytes.as_deref(), expected.map(str::as_bytes), "{lines:?}");
        }
        assert_eq!(strong_validator(206, &fields(&["ETag: \"a\""])), None);
    }

    #[test]
    fn another_validator_range_or_length_is_refused() {
        const TAG: &str = "ETag: \"a\"";
        let before = fields(&[TAG, MODIFIED]);
        let missing = MissingRange { from: 3, length: Some(10) };
        let part = Some(Resumption { begins_at: 3, length: Some(10) });
        for (status, lines, expected) in [
            (206, &[TAG, "Content-Range: bytes 3-9/10"][..], part),
            (206, &[TAG, MODIFIED, "Content-Range: bytes 3-9/10"], part),
            (206, &["ETag: \"b\"", "Content-Range: bytes 3-9/10"], None),
            (206, &["Content-Range: bytes 3-9/10"], None),
            (206, &[TAG, "Last-Modified: x", "Content-Range: bytes 3-9/10"], None),
            (206, &[TAG, "Content-Encoding: gzip", "Content-Range: bytes 3-9/10"], None),
            (206, &[TAG, "Content-Range: bytes 2-9/10"], None),
            (206, &[TAG, "Content-Range: bytes 3-8/10"], None),
            (206, &[TAG, "Content-Range: bytes 3-10/11"], None),
            (206, &[TAG, "Content-Range: bytes 3-9/*"], None),
            (206, &[TAG], None),
            (200, &[TAG], Some(Resumption { begins_at: 0, length: Some(10) })),
            (200, &[TAG, "Content-Length: 11"], None),
            (200, &["ETag: \"b\""], None),
            (416, &[TAG, "Content-Range: bytes */10"], None),
        ] {
            assert_eq!(continues(&before, missing, status, &fields(lines)), expected, "{status} {lines:?}");
        }
        let unknown = MissingRange { from: 3, length: None };
        assert_eq!(continues(&before, unknown, 206, &fields(&[TAG, "Content-Range: bytes 3-9/10"])), part);
    }
}
