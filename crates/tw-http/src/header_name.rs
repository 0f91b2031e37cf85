//! The field names the server itself looks at, as one small number each.
//!
//! A parsed head keeps one slot per known name, so a lookup on the hot path costs an index instead of a
//! comparison per field. A name is recognised by a perfect hash over its length, first and last letter (the
//! multiplier is found at compile time) and one comparison.

macro_rules! header_names {
    ($($variant:ident = $name:literal,)*) => {
        /// Name of a field that the server looks at; the discriminant is its slot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum HeaderName {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        const ALL: &[(HeaderName, &str)] = &[$((HeaderName::$variant, $name),)*];
    };
}

header_names! {
    Host = "Host",
    Connection = "Connection",
    UserAgent = "User-Agent",
    Accept = "Accept",
    AcceptEncoding = "Accept-Encoding",
    AcceptLanguage = "Accept-Language",
    Cookie = "Cookie",
    Referer = "Referer",
    Range = "Range",
    IfRange = "If-Range",
    IfModifiedSince = "If-Modified-Since",
    IfUnmodifiedSince = "If-Unmodified-Since",
    IfMatch = "If-Match",
    IfNoneMatch = "If-None-Match",
    Authorization = "Authorization",
    ContentLength = "Content-Length",
    TransferEncoding = "Transfer-Encoding",
    ContentType = "Content-Type",
    ContentRange = "Content-Range",
    Expect = "Expect",
    Upgrade = "Upgrade",
    Te = "TE",
    Via = "Via",
    ProxyAuthorization = "Proxy-Authorization",
    ProxyConnection = "Proxy-Connection",
    KeepAlive = "Keep-Alive",
    Http2Settings = "HTTP2-Settings",
    XForwardedFor = "X-Forwarded-For",
    XRealIp = "X-Real-IP",
    Depth = "Depth",
    Destination = "Destination",
    Overwrite = "Overwrite",
    Trailer = "Trailer",
    Date = "Date",
    CacheControl = "Cache-Control",
    Pragma = "Pragma",
    Server = "Server",
    ETag = "ETag",
    LastModified = "Last-Modified",
    Location = "Location",
    AcceptRanges = "Accept-Ranges",
    Expires = "Expires",
    Vary = "Vary",
    ContentEncoding = "Content-Encoding",
    SetCookie = "Set-Cookie",
    WwwAuthenticate = "WWW-Authenticate",
    Age = "Age",
    Refresh = "Refresh",
    Link = "Link",
    Allow = "Allow",
    RetryAfter = "Retry-After",
    Status = "Status",
    XAccelRedirect = "X-Accel-Redirect",
    XAccelExpires = "X-Accel-Expires",
    XAccelLimitRate = "X-Accel-Limit-Rate",
    XAccelBuffering = "X-Accel-Buffering",
    XAccelCharset = "X-Accel-Charset",
}

/// Number of known names; below 64, so that a set of them is one `u64`.
pub const HEADER_NAME_COUNT: usize = ALL.len();

const _: () = assert!(HEADER_NAME_COUNT < 64);

/// Slots of the hash table: 512 keeps the search for a multiplier short and the table at 8 cache lines.
const TABLE_BITS: u32 = 9;
const EMPTY: u8 = u8::MAX;

struct Table {
    multiplier: u32,
    slots: [u8; 1 << TABLE_BITS],
}

/// Number of eight-byte words that hold the longest name.
const WORDS: usize = 3;

/// Name as eight-byte words: equal to another one in any case if `words` equals the other's words with `case` set in
/// them. `case` has 0x20 at each letter and zero elsewhere, so that only letters are folded.
#[derive(Clone, Copy)]
struct Folded {
    words: [u64; WORDS],
    case: [u64; WORDS],
}

static FOLDED: [Folded; HEADER_NAME_COUNT] = fold_all();

static TABLE: Table = search();

const fn hash(len: usize, first: u8, last: u8, multiplier: u32) -> usize {
    let key = (len as u32) << 16 | ((first | 0x20) as u32) << 8 | (last | 0x20) as u32;
    (key.wrapping_mul(multiplier) >> (32 - TABLE_BITS)) as usize
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn search() -> Table {
    let mut multiplier: u32 = 0x9e37_79b1;
    loop {
        let mut slots = [EMPTY; 1 << TABLE_BITS];
        let mut i = 0;
        while i < HEADER_NAME_COUNT {
            let name = ALL[i].1.as_bytes();
            let at = hash(name.len(), name[0], name[name.len() - 1], multiplier);
            if slots[at] != EMPTY {
                break;
            }
            slots[at] = i as u8;
            i += 1;
        }
        if i == HEADER_NAME_COUNT {
            return Table { multiplier, slots };
        }
        multiplier = multiplier.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f) | 1;
    }
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn fold_all() -> [Folded; HEADER_NAME_COUNT] {
    let mut all = [Folded { words: [0; WORDS], case: [0; WORDS] }; HEADER_NAME_COUNT];
    let mut i = 0;
    while i < HEADER_NAME_COUNT {
        let name = ALL[i].1.as_bytes();
        let mut at = 0;
        while at < name.len() {
            let shift = at % 8 * 8;
            all[i].words[at / 8] |= (name[at].to_ascii_lowercase() as u64) << shift;
            all[i].case[at / 8] |= if name[at].is_ascii_alphabetic() { 0x20 << shift } else { 0 };
            at += 1;
        }
        i += 1;
    }
    all
}

/// `MASKS[len]` keeps the first `len` bytes of three words.
static MASKS: [[u64; WORDS]; WORDS * 8 + 1] = masks();

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn masks() -> [[u64; WORDS]; WORDS * 8 + 1] {
    let mut all = [[0; WORDS]; WORDS * 8 + 1];
    let mut len = 0;
    while len < all.len() {
        let mut at = 0;
        while at < len {
            all[len][at / 8] |= 0xff << (at % 8 * 8);
            at += 1;
        }
        len += 1;
    }
    all
}

impl HeaderName {
    /// Recognises a name in any case. Cost: one multiplication and the comparison of three words.
    #[inline]
    pub fn find(name: &[u8]) -> Option<HeaderName> {
        let mut padded = [0; WORDS * 8];
        padded.get_mut(..name.len())?.copy_from_slice(name);
        HeaderName::find_padded(&padded, name.len())
    }

    /// Like [`HeaderName::find`], for the first `len` bytes of `line`. Avoids the copy if the line has some more bytes,
    /// and has no branches that depend on the length of the name, which would be mispredicted.
    #[inline]
    pub(crate) fn find_at_start(line: &[u8], len: usize) -> Option<HeaderName> {
        match line.first_chunk() {
            Some(padded) => HeaderName::find_padded(padded, len),
            None => HeaderName::find(line.get(..len)?),
        }
    }

    /// Recognises the first `len` bytes; what the others are does not matter.
    #[inline]
    fn find_padded(padded: &[u8; WORDS * 8], len: usize) -> Option<HeaderName> {
        let &first = padded.first()?;
        let &last = padded.get(len.wrapping_sub(1))?;
        let slot = usize::from(*TABLE.slots.get(hash(len, first, last, TABLE.multiplier))?);
        let &(name, text) = ALL.get(slot)?;
        let folded = FOLDED.get(slot)?;
        let (words, []) = padded.as_chunks::<8>() else { return None };
        let &[a, b, c] = words else { return None };
        let [mask_a, mask_b, mask_c] = *MASKS.get(len)?;
        let [word_a, word_b, word_c] = folded.words;
        let [case_a, case_b, case_c] = folded.case;
        let differs = ((u64::from_le_bytes(a) & mask_a | case_a) ^ word_a)
            | ((u64::from_le_bytes(b) & mask_b | case_b) ^ word_b)
            | ((u64::from_le_bytes(c) & mask_c | case_c) ^ word_c);
        (differs == 0 && text.len() == len).then_some(name)
    }

    /// The name as nginx and the RFCs write it, e.g. `Content-Type`.
    #[inline]
    pub fn as_str(self) -> &'static str {
        ALL.get(self.slot()).map_or("", |entry| entry.1)
    }

    /// The number of the name: `0..HEADER_NAME_COUNT`.
    #[inline]
    pub const fn slot(self) -> usize {
        self as usize
    }

    /// The bit of the name in a `u64` set.
    #[inline]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(name, text) in ALL {
            assert_eq!(HeaderName::find(text.as_bytes()), Some(name), "{text}");
            assert_eq!(HeaderName::find(text.to_ascii_lowercase().as_bytes()), Some(name), "{text}");
            assert_eq!(HeaderName::find(text.to_ascii_uppercase().as_bytes()), Some(name), "{text}");
            assert_eq!(name.as_str(), text);
            assert!(text.len() <= WORDS * 8, "{text}");
        }
    }

    #[test]
    fn names_with_one_wrong_byte_are_unknown() {
        for &(known_name, text) in ALL {
            for at in 0..text.len() {
                for byte in 0..=255u8 {
                    let mut name = text.as_bytes().to_vec();
                    name[at] = byte;
                    let same = name.eq_ignore_ascii_case(text.as_bytes());
                    assert_eq!(HeaderName::find(&name) == Some(known_name), same, "{text} {at} {byte:#x}");
                    name.extend_from_slice(b": something long enough");
                    let found_name = HeaderName::find_at_start(&name, text.len());
                    assert_eq!(found_name == Some(known_name), same, "{text} {at} {byte:#x}");
                }
            }
        }
    }

    #[test]
    fn other_names_are_unknown() {
        for name in [
            "",
            "h",
            "hose",
            "Hast",
            "X-Forwarded-Far",
            "content_length",
            "Content-Length ",
            "TE\0",
            "X-A-Name-That-Is-Longer-Than-Any-HeaderName-One",
        ] {
            assert_eq!(HeaderName::find(name.as_bytes()), None, "{name:?}");
        }
    }
}
