//! Escaping and unescaping: percent-encoding of URIs (RFC 3986 section 2), and HTML.
//!
//! The set of escaped bytes is nginx's, since redirects and proxied requests expose it.

use crate::scan;

/// Context of escaped text, which determines the bytes to escape. Controls, DEL, bytes above ASCII, space and
/// `"<>\^`{|}` always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A path: also `#`, `%`, `?`.
    Uri,
    /// A value among arguments: also `#`, `%`, `?`, `&`, `+`, `;`.
    Args,
    /// Anything but letters, digits and `-._~`.
    Component,
    /// A link in a HTML page: also `#`, `%`, `'`.
    Html,
    /// An address in a page that refreshes itself: `"'<>\^`{|~` only.
    Refresh,
    /// A key of memcached: `%` only, and what would end it.
    Memcached,
}

const URI: u8 = 1;
const ARGS: u8 = 2;
const COMPONENT: u8 = 4;
const HTML: u8 = 8;
const REFRESH: u8 = 16;
const MEMCACHED: u8 = 32;

static CLASSES: [u8; 256] = classes();

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let c = byte as u8;
        let always = c <= b' ' || c >= 0x7f;
        if always || matches!(c, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}') {
            table[byte] = URI | ARGS | HTML;
        }
        if always || matches!(c, b'"' | b'\'' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'~') {
            table[byte] |= REFRESH;
        }
        if matches!(c, b'#' | b'%') {
            table[byte] = URI | ARGS | HTML;
        }
        if c == b'?' {
            table[byte] = URI | ARGS;
        }
        if matches!(c, b'&' | b'+' | b';') {
            table[byte] = ARGS;
        }
        if c == b'\'' {
            table[byte] |= HTML;
        }
        if !(c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~')) {
            table[byte] |= COMPONENT;
        }
        if c <= b' ' || c == b'%' {
            table[byte] |= MEMCACHED;
        }
        byte += 1;
    }
    table
}

impl Escape {
    #[inline]
    fn applies_to(self, byte: u8) -> bool {
        let bit = match self {
            Escape::Uri => URI,
            Escape::Args => ARGS,
            Escape::Component => COMPONENT,
            Escape::Html => HTML,
            Escape::Refresh => REFRESH,
            Escape::Memcached => MEMCACHED,
        };
        CLASSES.get(usize::from(byte)).is_some_and(|classes| classes & bit != 0)
    }

    /// Returns `true` if any byte has to be escaped.
    pub fn is_needed(self, text: &[u8]) -> bool {
        text.iter().any(|&byte| self.applies_to(byte))
    }

    /// Appends the text with percent escapes.
    pub fn push(self, text: &[u8], out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
        out.reserve(text.len());
        for &byte in text {
            if self.applies_to(byte) {
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 0xf)]);
            } else {
                out.push(byte);
            }
        }
    }
}

/// Extent of [`unescape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unescape {
    /// Everything.
    All,
    /// Up to and including the first `?`, escaped or not; what follows is left as it is.
    Uri,
    /// As `Uri`, but only escapes of characters that are valid in a redirect: above `%`, below DEL.
    Redirect,
}

/// Appends the text without percent escapes. Malformed escapes are treated as in nginx: a wrong first digit drops the
/// `%`, a wrong second digit drops all three characters.
pub fn unescape(text: &[u8], mode: Unescape, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let raw_end = byte == b'?' && mode != Unescape::All;
        if byte != b'%' {
            out.push(byte);
            if raw_end {
                break;
            }
            continue;
        }
        let Some((&first, tail)) = rest.split_first() else { return };
        rest = tail;
        let Some(high) = scan::hex(first) else {
            out.push(first);
            continue;
        };
        let Some((&second, tail)) = rest.split_first() else { return };
        rest = tail;
        let Some(low) = scan::hex(second) else { continue };

        let decoded = high << 4 | low;
        if mode == Unescape::Redirect && decoded != b'?' && !(decoded > b'%' && decoded < 0x7f) {
            out.extend_from_slice(&[b'%', first, second]);
            continue;
        }
        out.push(decoded);
        if decoded == b'?' && mode != Unescape::All {
            break;
        }
    }
    out.extend_from_slice(rest);
}

/// Appends text for a HTML page: `<`, `>`, `&` and `"` as entities.
pub fn push_html(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len());
    for &byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_printable_characters() {
        let table = [
            (Escape::Uri, " \"#%<>?\\^`{|}"),
            (Escape::Args, " \"#%&+;<>?\\^`{|}"),
            (Escape::Component, " !\"#$%&'()*+,/:;<=>?@[\\]^`{|}"),
            (Escape::Html, " \"#%'<>\\^`{|}"),
            (Escape::Refresh, " \"'<>\\^`{|~"),
        ];
        for (escape, expected) in table {
            let got: String = (b' '..=b'~').filter(|&byte| escape.applies_to(byte)).map(char::from).collect();
            assert_eq!(got, expected, "{escape:?}");
            let others = (0..b' ').chain(0x7f..=255);
            assert!(others.into_iter().all(|byte| escape.applies_to(byte)), "{escape:?}");
        }
    }

    #[test]
    fn escaped_text_unescapes_to_the_original() {
        let every: Vec<u8> = (0..=255).collect();
        for escape in [Escape::Uri, Escape::Args, Escape::Component] {
            let mut escaped = Vec::new();
            let mut back = Vec::new();
            escape.push(&every, &mut escaped);
            assert!(escape.is_needed(&every) && !escape.is_needed(b"/plain-._~".get(1..).unwrap()));
            unescape(&escaped, Unescape::All, &mut back);
            assert_eq!(back, every, "{escape:?}");
        }
    }

    #[test]
    fn escaped_texts() {
        let table = [
            (Escape::Uri, "/a b?c%d", "/a%20b%3Fc%25d"),
            (Escape::Uri, "/\u{e9}", "/%C3%A9"),
            (Escape::Component, "/a&b=c", "%2Fa%26b%3Dc"),
            (Escape::Args, "a&b=c/d", "a%26b=c/d"),
        ];
        for (escape, text, expected) in table {
            let mut out = Vec::new();
            escape.push(text.as_bytes(), &mut out);
            assert_eq!(out, expected.as_bytes(), "{escape:?} {text}");
        }
    }

    #[test]
    fn unescaped_texts() {
        let table = [
            (Unescape::All, "%41%2f?%42", "A/?B"),
            (Unescape::All, "%zz%4", "zz"),
            (Unescape::All, "a%4gb%", "ab"),
            (Unescape::Uri, "%41?%42", "A?%42"),
            (Unescape::Uri, "%41%3f%42", "A?%42"),
            (Unescape::Redirect, "%41%20%0a%25%7f%26?%42", "A%20%0a%25%7f&?%42"),
            (Unescape::Redirect, "%3F%41", "?%41"),
        ];
        for (mode, text, expected) in table {
            let mut out = Vec::new();
            unescape(text.as_bytes(), mode, &mut out);
            assert_eq!(out, expected.as_bytes(), "{mode:?} {text}");
        }
    }

    #[test]
    fn html() {
        let mut out = Vec::new();
        push_html(b"<a href=\"x?y&z\">'</a>", &mut out);
        assert_eq!(out, b"&lt;a href=&quot;x?y&amp;z&quot;&gt;'&lt;/a&gt;");
    }
}
