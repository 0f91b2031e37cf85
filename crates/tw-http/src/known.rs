//! The field names the server itself looks at, as one small number each.
//!
//! A parsed head keeps one slot per known name, so a lookup on the hot path costs an index instead of a
//! comparison per field. A name is recognised by a perfect hash over its length, first and last letter (the
//! multiplier is found at compile time) and one comparison.

macro_rules! known {
    ($($variant:ident = $name:literal,)*) => {
        /// A field name the server knows; the discriminant is its slot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Known {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        const ALL: &[(Known, &str)] = &[$((Known::$variant, $name),)*];
    };
}

known! {
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
pub const KNOWN_COUNT: usize = ALL.len();

const _: () = assert!(KNOWN_COUNT < 64);

/// Slots of the hash table: 512 keeps the search for a multiplier short and the table at 8 cache lines.
const TABLE_BITS: u32 = 9;
const EMPTY: u8 = u8::MAX;

struct Table {
    multiplier: u32,
    slots: [u8; 1 << TABLE_BITS],
}

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
        while i < KNOWN_COUNT {
            let name = ALL[i].1.as_bytes();
            let at = hash(name.len(), name[0], name[name.len() - 1], multiplier);
            if slots[at] != EMPTY {
                break;
            }
            slots[at] = i as u8;
            i += 1;
        }
        if i == KNOWN_COUNT {
            return Table { multiplier, slots };
        }
        multiplier = multiplier.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f) | 1;
    }
}

impl Known {
    /// Recognises a name in any case. Cost: one multiplication and one comparison.
    #[inline]
    pub fn find(name: &[u8]) -> Option<Known> {
        let (&first, &last) = (name.first()?, name.last()?);
        let slot = *TABLE.slots.get(hash(name.len(), first, last, TABLE.multiplier))?;
        let &(known, text) = ALL.get(usize::from(slot))?;
        name.eq_ignore_ascii_case(text.as_bytes()).then_some(known)
    }

    /// The name as nginx and the RFCs write it, e.g. `Content-Type`.
    #[inline]
    pub fn as_str(self) -> &'static str {
        ALL.get(self.slot()).map_or("", |entry| entry.1)
    }

    /// The number of the name: `0..KNOWN_COUNT`.
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
        for &(known, text) in ALL {
            assert_eq!(Known::find(text.as_bytes()), Some(known), "{text}");
            assert_eq!(Known::find(text.to_ascii_lowercase().as_bytes()), Some(known), "{text}");
            assert_eq!(Known::find(text.to_ascii_uppercase().as_bytes()), Some(known), "{text}");
            assert_eq!(known.as_str(), text);
        }
    }

    #[test]
    fn strangers_are_not_known() {
        for name in ["", "h", "hose", "Hast", "X-Forwarded-Far", "content_length", "Content-Length "] {
            assert_eq!(Known::find(name.as_bytes()), None, "{name:?}");
        }
    }
}
