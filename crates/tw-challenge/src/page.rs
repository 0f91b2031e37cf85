//! Page of a challenge: one file without requests to other servers, whose policy allows its own script and style and nothing else.

use std::fmt::Write as _;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use tw_http::base64;
use tw_http::escape::{Escape, push_html};

use super::token::TEXT_LEN;

/// The page with places for [`Place`].
const TEMPLATE: &str = include_str!("page.html");

/// Places of the template, and their marks.
const PLACES: [(&str, Place); 5] = [
    ("@HOST@", Place::Host),
    ("@PUZZLE@", Place::Puzzle),
    ("@BITS@", Place::Bits),
    ("@REFRESH@", Place::Refresh),
    ("@NOSCRIPT@", Place::NoScript),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Puzzle,
    Bits,
    /// Goes on after waiting, in a browser without JavaScript.
    Refresh,
    /// Explanation in a browser without JavaScript.
    NoScript,
}

/// Texts of the template, each with the place behind it.
static PARTS: LazyLock<Vec<(&str, Option<Place>)>> = LazyLock::new(|| {
    let mut parts = Vec::new();
    let mut rest = TEMPLATE;
    let next = |text: &str| {
        let results = PLACES.iter().filter_map(|(mark, place)| Some((text.find(mark)?, *mark, *place)));
        results.min_by_key(|(at, ..)| *at)
    };
    while let Some((at, mark, place)) = next(rest) {
        parts.push((&rest[..at], Some(place)));
        rest = &rest[at + mark.len()..];
    }
    parts.push((rest, None));
    parts
});

/// `Content-Security-Policy` of the page.
pub(super) static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let element = TEMPLATE.split_once(&format!("<{tag}>")).map_or("", |(_, rest)| rest);
        let content = element.split_once(&format!("</{tag}>")).map_or("", |(content, _)| content);
        String::from_utf8(base64::encode(&Sha256::digest(content))).unwrap_or_default()
    };
    let script = hash("script");
    let style = hash("style");
    format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; worker-src blob:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
});

/// Content of a page.
pub(super) struct Page<'a> {
    /// Name of the site; empty if the request has none.
    pub(super) host: &'a [u8],
    pub(super) puzzle: &'a [u8; TEXT_LEN],
    pub(super) bits: u8,
    /// Way for a browser without JavaScript, if there is one.
    pub(super) wait: Option<WaitLink<'a>>,
}

/// Way for a browser without JavaScript: after so many seconds to these arguments of the same address.
pub(super) struct WaitLink<'a> {
    pub(super) seconds: u64,
    /// Arguments of the request, without those of an earlier page.
    pub(super) args: &'a [u8],
    pub(super) token: &'a [u8; TEXT_LEN],
}

impl Page<'_> {
    /// The page as HTML.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TEMPLATE.len() + 1024);
        for (text, place) in PARTS.iter() {
            out.extend_from_slice(text.as_bytes());
            match place {
                Some(Place::Host) if self.host.is_empty() => out.extend_from_slice(b"This site"),
                Some(Place::Host) => push_html(self.host, &mut out),
                Some(Place::Puzzle) => out.extend_from_slice(self.puzzle),
                Some(Place::Bits) => out.extend_from_slice(self.bits.to_string().as_bytes()),
                Some(Place::Refresh) => self.wait.iter().for_each(|wait| wait.write_refresh(&mut out)),
                Some(Place::NoScript) => self.write_noscript(&mut out),
                None => {}
            }
        }
        out
    }

    fn write_noscript(&self, out: &mut Vec<u8>) {
        let Some(wait) = &self.wait else {
            out.extend_from_slice(
                b"<p>This needs JavaScript. Please allow it for this site, and load the page again.</p>",
            );
            return;
        };
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "<p>Your browser does not run JavaScript. You can wait instead: the page loads by itself in {} seconds, \
             or you <a href=\"",
            wait.seconds + 1
        );
        out.extend_from_slice(text.as_bytes());
        wait.write_target(out);
        out.extend_from_slice(b"\">go on</a> yourself then.</p>");
    }
}

impl WaitLink<'_> {
    fn write_refresh(&self, out: &mut Vec<u8>) {
        // The page reloads one second after the wait, because both ends of the wait are rounded to whole seconds.
        let head = format!("<noscript><meta http-equiv=\"refresh\" content=\"{};url=", self.seconds + 1);
        out.extend_from_slice(head.as_bytes());
        self.write_target(out);
        out.extend_from_slice(b"\"></noscript>");
    }

    /// Appends a relative address, for an attribute.
    fn write_target(&self, out: &mut Vec<u8>) {
        let mut target = b"?".to_vec();
        Escape::Refresh.push(self.args, &mut target);
        if !self.args.is_empty() {
            target.push(b'&');
        }
        target.extend_from_slice(super::WAIT_ARG);
        target.extend_from_slice(self.token);
        push_html(&target, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of a page without arguments.
    const PAGE_MAX: usize = 10 << 10;

    fn page(host: &str, wait: Option<WaitLink<'_>>) -> String {
        let page = Page { host: host.as_bytes(), puzzle: &[b'p'; TEXT_LEN], bits: 17, wait };
        String::from_utf8(page.write()).unwrap()
    }

    #[test]
    fn challenge_page_is_small_and_self_contained() {
        let wait = WaitLink { seconds: 10, args: b"", token: &[b't'; TEXT_LEN] };
        let page = page("a.example", Some(wait));
        assert!(page.len() < PAGE_MAX, "{} bytes", page.len());
        for outside in
            ["http:", "https:", "src=", "url(", "@import", " style=", "onclick=\"", "innerHTML", "eval("]
        {
            assert!(!page.contains(outside), "{outside}");
        }
        for mark in PLACES.map(|(mark, _)| mark) {
            assert!(!page.contains(mark), "{mark}");
        }
        assert!(page.contains("data-bits=\"17\"") && page.contains(&"p".repeat(TEXT_LEN)));
        assert_eq!(page.matches("<script>").count() + page.matches("<style>").count(), 2);
    }

    #[test]
    fn texts_of_a_client_are_escaped() {
        let args = b"a=\"><script>&b=;'\xff";
        let wait = || Some(WaitLink { seconds: 10, args, token: &[b't'; TEXT_LEN] });
        let page = page("<b>\"", wait());
        assert!(!page.contains("<b>") && page.matches("<script>").count() == 1, "{page}");
        assert!(
            page.contains("11;url=?a=%22%3E%3Cscript%3E&amp;b=;%27%FF&amp;tailwater-challenge=tttt"),
            "{page}"
        );
    }

    #[test]
    fn page_without_waiting_asks_for_javascript() {
        let page = page("", None);
        assert!(!page.contains("http-equiv=\"refresh\"") && page.contains("This needs JavaScript"));
        assert!(page.contains("<strong>This site</strong>"));
    }

    #[test]
    fn policy_has_the_hashes_of_script_and_style() {
        // `47DEQpj8HBSa` is the hash of an empty text.
        assert!(!POLICY.contains("47DEQpj8HBSa"), "{}", *POLICY);
        assert_eq!(POLICY.matches("'sha256-").count(), 2);
    }
}
