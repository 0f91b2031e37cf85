//! The static table (RFC 9204, appendix A).

/// Name and value of each entry, in the order of the indices.
#[rustfmt::skip]
static TABLE: [(&[u8], &[u8]); 99] = [
    (b":authority", b""), // 0
    (b":path", b"/"), // 1
    (b"age", b"0"), // 2
    (b"content-disposition", b""), // 3
    (b"content-length", b"0"), // 4
    (b"cookie", b""), // 5
    (b"date", b""), // 6
    (b"etag", b""), // 7
    (b"if-modified-since", b""), // 8
    (b"if-none-match", b""), // 9
    (b"last-modified", b""), // 10
    (b"link", b""), // 11
    (b"location", b""), // 12
    (b"referer", b""), // 13
    (b"set-cookie", b""), // 14
    (b":method", b"CONNECT"), // 15
    (b":method", b"DELETE"), // 16
    (b":method", b"GET"), // 17
    (b":method", b"HEAD"), // 18
    (b":method", b"OPTIONS"), // 19
    (b":method", b"POST"), // 20
    (b":method", b"PUT"), // 21
    (b":scheme", b"http"), // 22
    (b":scheme", b"https"), // 23
    (b":status", b"103"), // 24
    (b":status", b"200"), // 25
    (b":status", b"304"), // 26
    (b":status", b"404"), // 27
    (b":status", b"503"), // 28
    (b"accept", b"*/*"), // 29
    (b"accept", b"application/dns-message"), // 30
    (b"accept-encoding", b"gzip, deflate, br"), // 31
    (b"accept-ranges", b"bytes"), // 32
    (b"access-control-allow-headers", b"cache-control"), // 33
    (b"access-control-allow-headers", b"content-type"), // 34
    (b"access-control-allow-origin", b"*"), // 35
    (b"cache-control", b"max-age=0"), // 36
    (b"cache-control", b"max-age=2592000"), // 37
    (b"cache-control", b"max-age=604800"), // 38
    (b"cache-control", b"no-cache"), // 39
    (b"cache-control", b"no-store"), // 40
    (b"cache-control", b"public, max-age=31536000"), // 41
    (b"content-encoding", b"br"), // 42
    (b"content-encoding", b"gzip"), // 43
    (b"content-type", b"application/dns-message"), // 44
    (b"content-type", b"application/javascript"), // 45
    (b"content-type", b"application/json"), // 46
    (b"content-type", b"application/x-www-form-urlencoded"), // 47
    (b"content-type", b"image/gif"), // 48
    (b"content-type", b"image/jpeg"), // 49
    (b"content-type", b"image/png"), // 50
    (b"content-type", b"text/css"), // 51
    (b"content-type", b"text/html; charset=utf-8"), // 52
    (b"content-type", b"text/plain"), // 53
    (b"content-type", b"text/plain;charset=utf-8"), // 54
    (b"range", b"bytes=0-"), // 55
    (b"strict-transport-security", b"max-age=31536000"), // 56
    (b"strict-transport-security", b"max-age=31536000; includesubdomains"), // 57
    (b"strict-transport-security", b"max-age=31536000; includesubdomains; preload"), // 58
    (b"vary", b"accept-encoding"), // 59
    (b"vary", b"origin"), // 60
    (b"x-content-type-options", b"nosniff"), // 61
    (b"x-xss-protection", b"1; mode=block"), // 62
    (b":status", b"100"), // 63
    (b":status", b"204"), // 64
    (b":status", b"206"), // 65
    (b":status", b"302"), // 66
    (b":status", b"400"), // 67
    (b":status", b"403"), // 68
    (b":status", b"421"), // 69
    (b":status", b"425"), // 70
    (b":status", b"500"), // 71
    (b"accept-language", b""), // 72
    (b"access-control-allow-credentials", b"FALSE"), // 73
    (b"access-control-allow-credentials", b"TRUE"), // 74
    (b"access-control-allow-headers", b"*"), // 75
    (b"access-control-allow-methods", b"get"), // 76
    (b"access-control-allow-methods", b"get, post, options"), // 77
    (b"access-control-allow-methods", b"options"), // 78
    (b"access-control-expose-headers", b"content-length"), // 79
    (b"access-control-request-headers", b"content-type"), // 80
    (b"access-control-request-method", b"get"), // 81
    (b"access-control-request-method", b"post"), // 82
    (b"alt-svc", b"clear"), // 83
    (b"authorization", b""), // 84
    (b"content-security-policy", b"script-src 'none'; object-src 'none'; base-uri 'none'"), // 85
    (b"early-data", b"1"), // 86
    (b"expect-ct", b""), // 87
    (b"forwarded", b""), // 88
    (b"if-range", b""), // 89
    (b"origin", b""), // 90
    (b"purpose", b"prefetch"), // 91
    (b"server", b""), // 92
    (b"timing-allow-origin", b"*"), // 93
    (b"upgrade-insecure-requests", b"1"), // 94
    (b"user-agent", b""), // 95
    (b"x-forwarded-for", b""), // 96
    (b"x-frame-options", b"deny"), // 97
    (b"x-frame-options", b"sameorigin"), // 98
];

/// First index of `:status`.
pub(super) const STATUS: usize = 24;
/// Second group of `:status`.
const STATUS_MORE: usize = 63;
/// The two groups of `access-control-allow-headers`.
const ALLOW_HEADERS: usize = 33;
const ALLOW_HEADERS_MORE: usize = 75;

/// Name and value at an index; `None` beyond the table.
#[inline]
pub(super) fn entry(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    TABLE.get(index).copied()
}

/// The first index with this name, in whatever case it is written.
///
/// The length and one or two letters leave one name at most to compare with.
#[inline]
#[rustfmt::skip]
pub(super) fn find(name: &[u8]) -> Option<usize> {
    let first = name.first()?;
    let last = name.last()?;
    let index = match (name.len(), first.to_ascii_lowercase(), last.to_ascii_lowercase()) {
        (3, _, _) => 2, // age
        (4, _, b'e') => 6, // date
        (4, _, b'g') => 7, // etag
        (4, _, b'k') => 11, // link
        (4, _, b'y') => 59, // vary
        (5, _, b'h') => 1, // :path
        (5, _, b'e') => 55, // range
        (6, _, b't') => 29, // accept
        (6, _, b'e') => 5, // cookie
        (6, _, b'n') => 90, // origin
        (6, _, b'r') => 92, // server
        (7, _, b'd') => 15, // :method
        (7, b':', b'e') => 22, // :scheme
        (7, _, b's') => 24, // :status
        (7, _, b'c') => 83, // alt-svc
        (7, b'p', _) => 91, // purpose
        (7, _, b'r') => 13, // referer
        (8, _, b'e') => 89, // if-range
        (8, _, b'n') => 12, // location
        (9, _, b't') => 87, // expect-ct
        (9, _, b'd') => 88, // forwarded
        (10, _, b'y') => 0, // :authority
        (10, _, b'a') => 86, // early-data
        (10, _, b'e') => 14, // set-cookie
        (10, _, b't') => 95, // user-agent
        (12, _, _) => 44, // content-type
        (13, _, b's') => 32, // accept-ranges
        (13, _, b'n') => 84, // authorization
        (13, _, b'l') => 36, // cache-control
        (13, _, b'h') => 9, // if-none-match
        (13, _, b'd') => 10, // last-modified
        (14, _, _) => 4, // content-length
        (15, _, b'g') => 31, // accept-encoding
        (15, _, b'e') => 72, // accept-language
        (15, _, b'r') => 96, // x-forwarded-for
        (15, _, b's') => 97, // x-frame-options
        (16, _, b'g') => 42, // content-encoding
        (16, _, b'n') => 62, // x-xss-protection
        (17, _, _) => 8, // if-modified-since
        (19, b'c', _) => 3, // content-disposition
        (19, b't', _) => 93, // timing-allow-origin
        (22, _, _) => 61, // x-content-type-options
        (23, _, _) => 85, // content-security-policy
        (25, _, b'y') => 56, // strict-transport-security
        (25, _, b's') => 94, // upgrade-insecure-requests
        (27, _, _) => 35, // access-control-allow-origin
        (28, _, _) if name.get(21).is_some_and(|letter| letter | 0x20 == b'h') => ALLOW_HEADERS,
        (28, _, _) => 76, // access-control-allow-methods
        (29, _, b's') => 79, // access-control-expose-headers
        (29, _, b'd') => 81, // access-control-request-method
        (30, _, _) => 80, // access-control-request-headers
        (32, _, _) => 73, // access-control-allow-credentials
        _ => return None,
    };
    let (known_name, _) = entry(index)?;
    name.eq_ignore_ascii_case(known_name).then_some(index)
}

/// The index with the name that is first met at `index`, and with this value.
#[inline]
pub(super) fn find_value(index: usize, value: &[u8]) -> Option<usize> {
    let more = match index {
        STATUS => STATUS_MORE,
        ALLOW_HEADERS => ALLOW_HEADERS_MORE,
        _ => index,
    };
    let (name, _) = entry(index)?;
    // Entries of a name are neighbours, but for these two.
    [index, more].into_iter().find_map(|start| {
        let entries = TABLE.iter().enumerate().skip(start);
        let mut same = entries.take_while(|(_, (candidate, _))| *candidate == name);
        same.find(|(_, (_, candidate))| *candidate == value).map(|(index, _)| index)
    })
}

/// Returns true for names of fields whose values are of one person or one request, so that nothing is gained by storing them:
/// `location`, `set-cookie`.
#[inline]
pub(super) const fn is_personal(index: usize) -> bool {
    matches!(index, 12 | 14)
}

/// Returns true for names of fields that no one on the way may index (RFC 9204 section 7.1.3): `cookie`, `authorization`.
#[inline]
pub(super) const fn is_secret(index: usize) -> bool {
    matches!(index, 5 | 84)
}
