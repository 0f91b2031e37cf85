//! Value of `Cache-Status` (RFC 9211): how a cache handled a request.

use tw_http::num;

/// Reason for forwarding a request to the origin (RFC 9211 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardReason {
    /// The configuration had the cache left out.
    Bypass,
    /// The method.
    Method,
    /// No stored response for the URL.
    UriMiss,
    /// Something is stored for the URL, but not for requests like this one.
    VaryMiss,
    /// No stored response that could be used.
    Miss,
    /// A directive of the request, although something fresh was stored.
    Request,
    /// The stored response was stale.
    Stale,
    /// A stored part, but others are needed.
    Partial,
}

impl ForwardReason {
    /// Word of RFC 9211.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ForwardReason::Bypass => "bypass",
            ForwardReason::Method => "method",
            ForwardReason::UriMiss => "uri-miss",
            ForwardReason::VaryMiss => "vary-miss",
            ForwardReason::Miss => "miss",
            ForwardReason::Request => "request",
            ForwardReason::Stale => "stale",
            ForwardReason::Partial => "partial",
        }
    }
}

/// Handling of one request by a cache, as `Cache-Status` reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// The name of the cache.
    pub cache: &'a str,
    /// Reason for forwarding the request to the origin; `None` for a hit.
    pub forward: Option<ForwardReason>,
    /// The status that the origin answered with.
    pub forward_status: Option<u16>,
    /// For how many seconds the response is still fresh; negative if it has expired.
    pub ttl_s: Option<i64>,
    /// True if the response was stored.
    pub is_stored: bool,
    /// True if the request was collapsed with others into one to the origin.
    pub is_collapsed: bool,
    /// The text of the key; left out if it is not ASCII.
    pub key: Option<&'a [u8]>,
    /// Additional detail, e.g. the word of [`NoStoreReason`](super::NoStoreReason).
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// Appends the value.
    pub fn write(&self, out: &mut Vec<u8>) {
        push_word(out, self.cache.as_bytes());
        match self.forward {
            None => out.extend_from_slice(b"; hit"),
            Some(forward) => {
                out.extend_from_slice(b"; fwd=");
                out.extend_from_slice(forward.word().as_bytes());
                if let Some(status) = self.forward_status {
                    out.extend_from_slice(b"; fwd-status=");
                    num::push_decimal(out, u64::from(status));
                }
            }
        }
        if let Some(seconds) = self.ttl_s {
            out.extend_from_slice(if seconds < 0 { b"; ttl=-" } else { b"; ttl=" });
            num::push_decimal(out, seconds.unsigned_abs().min(INTEGER_MAX));
        }
        if self.is_stored {
            out.extend_from_slice(b"; stored");
        }
        if self.is_collapsed {
            out.extend_from_slice(b"; collapsed");
        }
        if let Some(key) = self.key.filter(|key| is_text(key)) {
            out.extend_from_slice(b"; key=");
            push_string(out, key);
        }
        if let Some(detail) = self.detail.filter(|detail| is_text(detail.as_bytes())) {
            out.extend_from_slice(b"; detail=");
            push_word(out, detail.as_bytes());
        }
    }
}

/// RFC 9651 section 3.3.1: integers have at most 15 digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;

fn is_text(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A token if it can be one, else a string. What a string cannot hold is a `?`.
fn push_word(out: &mut Vec<u8>, text: &[u8]) {
    let is_token = text.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'*')
        && text.iter().all(|byte| byte.is_ascii_graphic() && !b"\"(),;<=>?@[\\]{}".contains(byte));
    if is_token { out.extend_from_slice(text) } else { push_string(out, text) }
}

fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => out.push(b'?'),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_items_with_parameters() {
        let hit = CacheStatus { cache: "Tailwater", ttl_s: Some(376), ..CacheStatus::default() };
        let table = [
            (hit, "Tailwater; hit; ttl=376"),
            (CacheStatus { ttl_s: Some(-412), ..hit }, "Tailwater; hit; ttl=-412"),
            (
                CacheStatus {
                    cache: "two words",
                    forward: Some(ForwardReason::Stale),
                    forward_status: Some(304),
                    is_stored: true,
                    is_collapsed: true,
                    key: Some(b"/a\"\\"),
                    detail: Some("set-cookie"),
                    ..CacheStatus::default()
                },
                "\"two words\"; fwd=stale; fwd-status=304; stored; collapsed; key=\"/a\\\"\\\\\"; detail=set-cookie",
            ),
            (
                CacheStatus {
                    forward: Some(ForwardReason::UriMiss),
                    ttl_s: None,
                    key: Some(b"\xff"),
                    detail: Some("a\r\nb"),
                    ..hit
                },
                "Tailwater; fwd=uri-miss",
            ),
        ];
        for (status, expected) in table {
            let mut out = Vec::new();
            status.write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
