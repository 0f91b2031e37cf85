//! Content codings accepted by a client, as nginx reads `Accept-Encoding`.

use tw_core::regex::Match;
use tw_http::{Fields, HeaderName, date};

use crate::user_agent;
use tw_request::config::location::{
    PROXIED_ANY, PROXIED_AUTH, PROXIED_EXPIRED, PROXIED_NO_CACHE, PROXIED_NO_ETAG, PROXIED_NO_LAST_MODIFIED,
    PROXIED_NO_STORE, PROXIED_OFF, PROXIED_PRIVATE,
};
use tw_request::request::Request;

/// Returns true if `r` accepts `coding`, by `Accept-Encoding` alone. A subrequest accepts none: the whole response is encoded.
/// Does not allocate.
pub fn is_accepted(r: &Request, coding: &[u8]) -> bool {
    !r.is_subrequest()
        && r.head.field_known(HeaderName::AcceptEncoding).is_some_and(|value| accepts(value, coding))
}

/// Returns true if the response in `r.response` may be compressed with gzip: the client accepts it, and neither `gzip_http_version`
/// nor `gzip_proxied` nor `gzip_disable` forbids it. Does not allocate.
pub fn is_gzip_allowed(r: &Request) -> bool {
    let rules = &r.plan().core.compression;
    if !is_accepted(r, b"gzip") || r.head.version() < rules.http_version {
        return false;
    }
    let agent = r.head.field_known(HeaderName::UserAgent);
    if rules.disable_msie6 && agent.is_some_and(user_agent::is_old_msie) {
        return false;
    }
    if r.head.has(HeaderName::Via) && !is_proxied_allowed(r, rules.proxied) {
        return false;
    }
    // A pattern whose search gives up counts as a match, so in case of doubt the response is not compressed.
    agent.is_none_or(|agent| rules.disable.iter().all(|regex| regex.is_match(agent) == Ok(Match::No)))
}

/// `gzip_proxied`
fn is_proxied_allowed(r: &Request, rules: u32) -> bool {
    let has = |bit| rules & bit != 0;
    if has(PROXIED_OFF) {
        return false;
    }
    if has(PROXIED_ANY) || has(PROXIED_AUTH) && r.head.has(HeaderName::Authorization) {
        return true;
    }
    let fields = &r.response.fields;
    if let Some(expires) = fields.get_known(HeaderName::Expires) {
        let now = match fields.get_known(HeaderName::Date) {
            Some(value) => date::parse(value),
            None => Some(tw_rt::clock::unix().secs),
        };
        let is_past = matches!((date::parse(expires), now), (Some(expires), Some(now)) if expires < now);
        return has(PROXIED_EXPIRED) && is_past;
    }
    if fields.has(HeaderName::CacheControl) {
        return has(PROXIED_NO_CACHE) && has_directive(fields, b"no-cache")
            || has(PROXIED_NO_STORE) && has_directive(fields, b"no-store")
            || has(PROXIED_PRIVATE) && has_directive(fields, b"private");
    }
    let modified = r.response.last_modified.is_some() || fields.has(HeaderName::LastModified);
    !(has(PROXIED_NO_LAST_MODIFIED) && modified || has(PROXIED_NO_ETAG) && fields.has(HeaderName::ETag))
}

/// Returns true if `Cache-Control` has this directive, without a value.
fn has_directive(fields: &Fields, directive: &[u8]) -> bool {
    fields
        .get_all(b"Cache-Control")
        .flat_map(|value| value.split(|b| matches!(b, b',' | b';')))
        .any(|word| word.trim_ascii().eq_ignore_ascii_case(directive))
}

/// Returns true if a value of `Accept-Encoding` names `coding` (in lower case) with a quality above zero. As in nginx, the
/// first mention decides, `*` has no meaning, and an invalid quality is zero.
fn accepts(value: &[u8], coding: &[u8]) -> bool {
    let mut from = 0;
    let rest = loop {
        let Some(at) = find(value.get(from..).unwrap_or_default(), coding) else { return false };
        let start = from + at;
        let end = from + at + coding.len();
        let before = start.checked_sub(1).and_then(|at| value.get(at));
        if matches!(before, None | Some(b',' | b' ')) {
            break value.get(end..).unwrap_or_default();
        }
        from = end;
    };
    match rest.trim_ascii_start() {
        [] | [b',', ..] => true,
        [b';', parameter @ ..] => match parameter.trim_ascii_start() {
            [] => true,
            [b'q' | b'Q', b'=', quality @ ..] => is_positive(quality),
            _ => false,
        },
        _ => false,
    }
}

fn find(value: &[u8], coding: &[u8]) -> Option<usize> {
    value.windows(coding.len()).position(|window| window.eq_ignore_ascii_case(coding))
}

/// Returns true if a quality is between 0.001 and 1.
fn is_positive(quality: &[u8]) -> bool {
    let end = quality.iter().position(|b| matches!(b, b',' | b' ')).unwrap_or(quality.len());
    match quality.get(..end) {
        Some([b'1']) => true,
        Some([b'0', b'.', digits @ ..]) => {
            digits.len() <= 3
                && digits.iter().all(u8::is_ascii_digit)
                && digits.iter().any(|digit| *digit != b'0')
        }
        Some([b'1', b'.', digits @ ..]) => digits.len() <= 3 && digits.iter().all(|digit| *digit == b'0'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_http_testkit::with_request;

    #[test]
    fn codings_that_are_accepted() {
        for (value, expected) in [
            ("gzip", true),
            ("gzip, deflate", true),
            ("deflate, GZip", true),
            ("deflate gzip", true),
            ("deflate;q=1.0, gzip;q=0.5, *;q=0", true),
            ("gzip;q=1", true),
            ("gzip; q=1.000", true),
            ("gzip ; Q=0.001", true),
            ("gzip;", true),
            ("x-gzip, gzip", true),
            ("", false),
            ("gzi", false),
            ("*", false),
            ("*;q=1, identity", false),
            ("x-gzip", false),
            ("gzipped", false),
            ("gzip/2", false),
            ("gzip2, gzip", false),
            ("gzip;q", false),
            ("gzip;q=", false),
            ("gzip;q=0", false),
            ("gzip;q=0, gzip", false),
            ("gzip;q=0.", false),
            ("gzip;q=0.000", false),
            ("gzip;q=0.0001", false),
            ("gzip;q=0.5x", false),
            ("gzip;q=1.001", false),
            ("gzip;q=2", false),
            ("gzip;q=-1", false),
            ("gzip;q =1", false),
            ("gzip;level=1", false),
            ("\u{ff}gzip", false),
        ] {
            assert_eq!(accepts(value.as_bytes(), b"gzip"), expected, "{value}");
        }
        assert!(accepts(b"gzip, deflate, br", b"br"));
        assert!(!accepts(b"gzip, brotli", b"br"));
        assert!(accepts(b"zstd", b"zstd"));
    }

    #[test]
    fn a_long_value_costs_linear_time() {
        let value = b"xgzip".repeat(10_000);
        assert!(!accepts(&value, b"gzip"));
    }

    #[test]
    fn requests_of_proxies() {
        let past = ("Expires", "Thu, 01 Jan 1970 00:00:01 GMT");
        let future = ("Expires", "Fri, 31 Dec 9999 23:59:59 GMT");
        let no_cache = ("Cache-Control", "no-cache");
        let private = ("Cache-Control", "x=1, Private");
        let tag = ("ETag", "\"x\"");
        let modified = ("Last-Modified", "Thu, 01 Jan 1970 00:00:01 GMT");
        for (rule, field, expected) in [
            ("off", past, false),
            ("off any", past, false),
            ("any", future, true),
            ("expired", past, true),
            ("expired", future, false),
            ("expired", ("Expires", "never"), false),
            ("no-cache", past, false),
            ("no-cache", no_cache, true),
            ("no-store", no_cache, false),
            ("private", private, true),
            ("private", ("Cache-Control", "private=\"x\""), false),
            ("private no-cache", ("Cache-Control", "max-age=1"), false),
            ("auth", no_cache, false),
            ("auth", tag, true),
            ("no_etag", tag, false),
            ("no_etag", modified, true),
            ("no_last_modified", modified, false),
            ("no_last_modified", tag, true),
        ] {
            let conf = format!("gzip_proxied {rule}; server {{ }}");
            let head = "GET / HTTP/1.1\r\nHost: a\r\nVia: x\r\nAccept-Encoding: gzip\r\n\r\n";
            let allowed = with_request(&conf, head, move |r| {
                r.response.fields.append(field.0, field.1);
                is_gzip_allowed(r)
            });
            assert_eq!(allowed, expected, "{rule} {field:?}");
        }
    }

    #[test]
    fn versions_and_browsers() {
        let http10 = "GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n";
        let agent = |name| {
            format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nUser-Agent: {name}\r\n\r\n")
        };
        let old = agent("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)");
        let other = agent("Bot");
        for (rule, head, expected) in [
            ("", http10, false),
            ("gzip_http_version 1.0;", http10, true),
            ("", &old, true),
            ("gzip_disable msie6;", &old, false),
            ("gzip_disable msie6;", &other, true),
            ("gzip_disable ^bot x;", &other, false),
            ("gzip_disable ^bot x;", &old, true),
            (r"gzip_disable ^((a|aa)+)+(?!x)\1c$;", &agent(&"a".repeat(60)), false),
        ] {
            let conf = format!("{rule} server {{ }}");
            assert_eq!(with_request(&conf, head, |r| is_gzip_allowed(r)), expected, "{rule} {head}");
        }
        assert!(!with_request("server { }", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |r| is_gzip_allowed(r)));
    }
}
