//! Tables of responses and requests. `model` is a slow, literal RFC 9111 for generated ones.

mod model;
mod nginx;
mod rfc9111;

use tw_http::{Fields, Method, Name};

use super::*;

/// Sun, 06 Nov 1994 08:49:37 GMT
const NOW: i64 = 784_111_777;

/// Lines of a head.
type Lines<'a> = &'a [&'a str];

/// Fields from lines, `Name: value`.
fn fields(lines: &[&str]) -> Fields {
    let mut fields = Fields::new();
    for line in lines {
        let (name, value) = line.split_once(':').expect("a colon");
        fields.append_copy(Name::Copy(name.as_bytes()), value.trim().as_bytes());
    }
    fields
}

/// Result for a response with status 200 to a GET without fields.
fn stored(lines: &[&str], rules: &Rules, terms: &StoreSettings) -> Result<Lifetime, NoStoreReason> {
    stored_as(200, &[], lines, rules, terms)
}

fn stored_as(
    status: u16,
    request: &[&str],
    lines: &[&str],
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    let request = fields(request);
    let response = fields(lines);
    let response = Response { status, fields: &response, request_time: NOW, is_slice: false };
    may_store(&(Method::Get, &request), &response, NOW, rules, terms)
}

#[test]
fn validators_are_those_of_content() {
    let long = format!("ETag: \"{}\"", "a".repeat(1024));
    let got = |status, lines: Lines<'_>| {
        let fields = fields(lines);
        let found_validators = validators(status, &fields);
        (found_validators.etag.map(<[u8]>::len), found_validators.last_modified)
    };
    let lines = ["ETag: W/\"a\"", "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"];
    assert_eq!(got(200, &lines), (Some(5), Some(NOW)));
    assert_eq!(got(206, &["ETag: ", "Last-Modified: x"]), (None, None));
    assert_eq!(got(200, &[long.as_str()]), (None, None));
    assert_eq!(got(404, &lines), (None, None));
}

#[test]
fn reasons_have_distinct_words() {
    let all = [
        NoStoreReason::Method,
        NoStoreReason::Status,
        NoStoreReason::Partial,
        NoStoreReason::NotUnderstood,
        NoStoreReason::NoStore,
        NoStoreReason::RequestNoStore,
        NoStoreReason::Private,
        NoStoreReason::NoCache,
        NoStoreReason::Authorization,
        NoStoreReason::SetCookie,
        NoStoreReason::VaryStar,
        NoStoreReason::VaryTooLong,
        NoStoreReason::AccelExpires,
        NoStoreReason::MaxAge,
        NoStoreReason::BadNumber,
        NoStoreReason::Expired,
        NoStoreReason::NoValidity,
    ];
    let mut words: Vec<_> = all.iter().map(|why| why.to_string()).collect();
    words.sort();
    words.dedup();
    assert_eq!(words.len(), all.len());
    assert!(words.iter().all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
}
