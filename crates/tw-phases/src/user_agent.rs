//! Browsers that are not to be trusted with some things (`keepalive_disable`, `gzip_disable`), by `User-Agent`.

use tw_http::HeaderName;

use tw_request::config::location::{DISABLE_MSIE6, DISABLE_SAFARI};
use tw_request::request::Request;

/// Returns true if the location refuses keep-alive to this client. Reads the field only where it matters.
pub fn keepalive_is_disabled(r: &Request) -> bool {
    let disable = r.plan().core.keepalive.disable;
    let posts = r.head.method() == tw_http::Method::Post;
    let agent = || r.head.field_known(HeaderName::UserAgent).unwrap_or_default();
    (disable & DISABLE_MSIE6 != 0 && posts && is_old_msie(agent()))
        || (disable & DISABLE_SAFARI != 0 && is_mac_safari(agent()))
}

/// Internet Explorer 4 to 6, but for the one of Windows XP SP2 (`SV1`).
pub(crate) fn is_old_msie(agent: &[u8]) -> bool {
    let Some(at) = memchr::memmem::find(agent, b"MSIE ") else { return false };
    if has(agent, b"Opera") {
        return false;
    }
    match agent.get(at + 5..) {
        Some([b'4' | b'5', b'.', _, ..]) => true,
        Some([b'6', b'.', _, rest @ ..]) => !has(rest, b"SV1"),
        _ => false,
    }
}

/// Internet Explorer; Opera may say that it is one.
pub fn is_msie(agent: &[u8]) -> bool {
    // As nginx: a version of at least three characters must follow.
    memchr::memmem::find(agent, b"MSIE ").is_some_and(|at| at + 7 < agent.len()) && !has(agent, b"Opera")
}

/// A browser that shows a page of its own instead of a short one.
pub(crate) fn shows_own_pages(agent: &[u8]) -> bool {
    let is_chrome = || has(agent, b"Chrome/") && !has(agent, b"Opera") && !has(agent, b"Gecko/");
    is_msie(agent) || is_chrome()
}

/// Safari on a Mac; several others say `Safari`, too.
fn is_mac_safari(agent: &[u8]) -> bool {
    has(agent, b"Safari/")
        && has(agent, b"Mac OS X")
        && ![&b"MSIE "[..], b"Opera", b"Gecko/", b"Chrome/"].iter().any(|other| has(agent, other))
}

fn has(agent: &[u8], word: &[u8]) -> bool {
    memchr::memmem::find(agent, word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers() {
        for (agent, msie, safari) in [
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", true, false),
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)", false, false),
            ("Mozilla/4.0 (compatible; MSIE 5.5; Windows 98; SV1)", true, false),
            ("MSIE 4.0", true, false),
            ("MSIE 4.", false, false),
            ("Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 6.0)", false, false),
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; en) Opera 8.50", false, false),
            ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_6) (KHTML, like Gecko) Safari/534.48.3", false, true),
            ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15) Chrome/120.0 Safari/537.36", false, false),
            ("Mozilla/5.0 (Windows NT 6.1) Safari/534.50", false, false),
            ("", false, false),
        ] {
            let entry = (is_old_msie(agent.as_bytes()), is_mac_safari(agent.as_bytes()));
            assert_eq!(entry, (msie, safari), "{agent}");
        }
    }

    #[test]
    fn pages_and_redirects() {
        for (agent, msie, own_pages) in [
            ("Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 6.0)", true, true),
            ("MSIE 10", false, false),
            ("MSIE 9.0", true, true),
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; en) Opera 8.50", false, false),
            (
                "Mozilla/5.0 (X11; Linux) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36",
                false,
                true,
            ),
            ("Mozilla/5.0 (X11; Linux) Gecko/2010 Chrome/1", false, false),
            ("Mozilla/5.0 (X11; Linux) Gecko/20100101 Firefox/120.0", false, false),
            ("", false, false),
        ] {
            let entry = (is_msie(agent.as_bytes()), shows_own_pages(agent.as_bytes()));
            assert_eq!(entry, (msie, own_pages), "{agent}");
        }
    }
}
