//! The static table (RFC 7541, appendix A).

/// Entries of the static table: the indices 1 to 61. The dynamic table follows.
pub(super) const ENTRIES: usize = TABLE.len();

/// The name that has the index of the first entry with `:status`.
pub(super) const STATUS: usize = 8;

/// Name and value of each entry, in the order of the indices.
static TABLE: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),                   // 1
    (b":method", b"GET"),                   // 2
    (b":method", b"POST"),                  // 3
    (b":path", b"/"),                       // 4
    (b":path", b"/index.html"),             // 5
    (b":scheme", b"http"),                  // 6
    (b":scheme", b"https"),                 // 7
    (b":status", b"200"),                   // 8
    (b":status", b"204"),                   // 9
    (b":status", b"206"),                   // 10
    (b":status", b"304"),                   // 11
    (b":status", b"400"),                   // 12
    (b":status", b"404"),                   // 13
    (b":status", b"500"),                   // 14
    (b"accept-charset", b""),               // 15
    (b"accept-encoding", b"gzip, deflate"), // 16
    (b"accept-language", b""),              // 17
    (b"accept-ranges", b""),                // 18
    (b"accept", b""),                       // 19
    (b"access-control-allow-origin", b""),  // 20
    (b"age", b""),                          // 21
    (b"allow", b""),                        // 22
    (b"authorization", b""),                // 23
    (b"cache-control", b""),                // 24
    (b"content-disposition", b""),          // 25
    (b"content-encoding", b""),             // 26
    (b"content-language", b""),             // 27
    (b"content-length", b""),               // 28
    (b"content-location", b""),             // 29
    (b"content-range", b""),                // 30
    (b"content-type", b""),                 // 31
    (b"cookie", b""),                       // 32
    (b"date", b""),                         // 33
    (b"etag", b""),                         // 34
    (b"expect", b""),                       // 35
    (b"expires", b""),                      // 36
    (b"from", b""),                         // 37
    (b"host", b""),                         // 38
    (b"if-match", b""),                     // 39
    (b"if-modified-since", b""),            // 40
    (b"if-none-match", b""),                // 41
    (b"if-range", b""),                     // 42
    (b"if-unmodified-since", b""),          // 43
    (b"last-modified", b""),                // 44
    (b"link", b""),                         // 45
    (b"location", b""),                     // 46
    (b"max-forwards", b""),                 // 47
    (b"proxy-authenticate", b""),           // 48
    (b"proxy-authorization", b""),          // 49
    (b"range", b""),                        // 50
    (b"referer", b""),                      // 51
    (b"refresh", b""),                      // 52
    (b"retry-after", b""),                  // 53
    (b"server", b""),                       // 54
    (b"set-cookie", b""),                   // 55
    (b"strict-transport-security", b""),    // 56
    (b"transfer-encoding", b""),            // 57
    (b"user-agent", b""),                   // 58
    (b"vary", b""),                         // 59
    (b"via", b""),                          // 60
    (b"www-authenticate", b""),             // 61
];

/// Name and value at an index from 1 on; `None` for 0 and beyond the table.
#[inline]
pub(super) fn entry(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    TABLE.get(index.checked_sub(1)?).copied()
}

/// The first index with this name, in whatever case it is written.
///
/// The length and the outer letters leave one name at most to compare with.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<usize> {
    let first = name.first()?;
    let last = name.last()?;
    let index = match (name.len(), first.to_ascii_lowercase(), last.to_ascii_lowercase()) {
        (3, _, b'e') => 21,     // age
        (3, _, b'a') => 60,     // via
        (4, _, b'e') => 33,     // date
        (4, _, b'g') => 34,     // etag
        (4, _, b'm') => 37,     // from
        (4, _, b't') => 38,     // host
        (4, _, b'k') => 45,     // link
        (4, _, b'y') => 59,     // vary
        (5, _, b'h') => 4,      // :path
        (5, _, b'w') => 22,     // allow
        (5, _, b'e') => 50,     // range
        (6, b'a', b't') => 19,  // accept
        (6, b'e', b't') => 35,  // expect
        (6, _, b'e') => 32,     // cookie
        (6, _, b'r') => 54,     // server
        (7, _, b'd') => 2,      // :method
        (7, _, b'e') => 6,      // :scheme
        (7, b':', b's') => 8,   // :status
        (7, b'e', b's') => 36,  // expires
        (7, _, b'r') => 51,     // referer
        (7, _, b'h') => 52,     // refresh
        (8, _, b'h') => 39,     // if-match
        (8, _, b'e') => 42,     // if-range
        (8, _, b'n') => 46,     // location
        (10, _, b'y') => 1,     // :authority
        (10, _, b'e') => 55,    // set-cookie
        (10, _, b't') => 58,    // user-agent
        (11, _, b'r') => 53,    // retry-after
        (12, _, b'e') => 31,    // content-type
        (12, _, b's') => 47,    // max-forwards
        (13, _, b's') => 18,    // accept-ranges
        (13, _, b'n') => 23,    // authorization
        (13, _, b'l') => 24,    // cache-control
        (13, _, b'e') => 30,    // content-range
        (13, _, b'h') => 41,    // if-none-match
        (13, _, b'd') => 44,    // last-modified
        (14, _, b't') => 15,    // accept-charset
        (14, _, b'h') => 28,    // content-length
        (15, _, b'g') => 16,    // accept-encoding
        (15, _, b'e') => 17,    // accept-language
        (16, _, b'g') => 26,    // content-encoding
        (16, b'c', b'e') => 27, // content-language
        (16, b'w', b'e') => 61, // www-authenticate
        (16, _, b'n') => 29,    // content-location
        (17, _, b'e') => 40,    // if-modified-since
        (17, _, b'g') => 57,    // transfer-encoding
        (18, _, b'e') => 48,    // proxy-authenticate
        (19, b'c', b'n') => 25, // content-disposition
        (19, b'p', b'n') => 49, // proxy-authorization
        (19, _, b'e') => 43,    // if-unmodified-since
        (25, _, b'y') => 56,    // strict-transport-security
        (27, _, b'n') => 20,    // access-control-allow-origin
        _ => return None,
    };
    let (known_name, _) = entry(index)?;
    // Compared without a branch for each letter, because the entry is nearly always the right one.
    let differs = name
        .iter()
        .zip(known_name)
        .fold(0, |differs, (byte, small)| differs | (byte.to_ascii_lowercase() ^ small));
    (differs == 0).then_some(index)
}

/// The index with the name that is first met at `index`, and with this value.
#[inline]
pub(super) fn find_value(index: usize, value: &[u8]) -> Option<usize> {
    Some(match (index, value) {
        (2, b"GET") => 2,
        (2, b"POST") => 3,
        (4, b"/") => 4,
        (4, b"/index.html") => 5,
        (6, b"http") => 6,
        (6, b"https") => 7,
        (STATUS, b"200") => 8,
        (STATUS, b"204") => 9,
        (STATUS, b"206") => 10,
        (STATUS, b"304") => 11,
        (STATUS, b"400") => 12,
        (STATUS, b"404") => 13,
        (STATUS, b"500") => 14,
        (16, b"gzip, deflate") => 16,
        (1 | 15 | 17..=ENTRIES, b"") => index,
        _ => return None,
    })
}

/// Returns true for names of request fields that must never be indexed, here or further on (section 7.1.3):
/// `authorization`, `cookie`, `proxy-authorization`.
#[inline]
pub(super) const fn is_secret(index: usize) -> bool {
    matches!(index, 23 | 32 | 49)
}
