//! Stored responses that an unsafe request invalidates (RFC 9111 section 4.4).

use tw_http::{Fields, HeaderName, Method};

use super::{Rules, Ruleset};

/// Scheme and authority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UriOrigin<'a> {
    /// True for a request over TLS.
    pub is_https: bool,
    /// The host without a port, an address of IPv6 in brackets.
    pub host: &'a [u8],
    /// The port, unless it is the scheme's own.
    pub port: Option<u16>,
}

impl UriOrigin<'_> {
    fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_https { 443 } else { 80 })
    }

    /// Returns `true` if a URI's authority is this one. An authority with user information never is.
    fn is(&self, authority: &[u8]) -> bool {
        let host_end = match authority.iter().position(|&byte| byte == b']') {
            Some(bracket) => bracket + 1,
            None => authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len()),
        };
        let Some((host, port)) = authority.split_at_checked(host_end) else { return false };
        let port = match port {
            b"" | b":" => Some(if self.is_https { 443 } else { 80 }),
            _ => port.strip_prefix(b":").and_then(tw_http::num::parse),
        };
        host.eq_ignore_ascii_case(self.host) && port == Some(u64::from(self.port()))
    }
}

/// Shows path and query of each URL whose stored responses are invalid after this response to a request for `target`:
/// the request's own, and those of `Location` and `Content-Location` if they are of the same site. They begin with
/// `/`. By nginx's rules there are none. Cost: allocates for a `Location`.
pub fn invalidated(
    method: Method,
    status: u16,
    site: &UriOrigin<'_>,
    target: &[u8],
    fields: &Fields,
    rules: &Rules,
    see: &mut dyn FnMut(&[u8]),
) {
    let is_success = (200..400).contains(&status);
    if rules.reading == Ruleset::Nginx || method.is_safe() || !is_success {
        return;
    }
    let target = without_fragment(target);
    see(target);
    let location = fields.get_known(HeaderName::Location);
    for reference in [location, fields.get(b"Content-Location")].into_iter().flatten() {
        if let Some(path) = resolve(reference, site, target)
            && path != target
        {
            see(&path);
        }
    }
}

fn without_fragment(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == b'#').next().unwrap_or(b"")
}

/// Path and query of a reference (RFC 3986 section 5.2); `None` if it leads to another site.
fn resolve(reference: &[u8], site: &UriOrigin<'_>, base: &[u8]) -> Option<Vec<u8>> {
    let reference = without_fragment(reference);
    let ends = |text: &[u8], of: &[u8]| text.iter().position(|byte| of.contains(byte)).unwrap_or(text.len());
    let mut rest = reference;
    let scheme_end = ends(rest, b":/?");
    let has_scheme = rest.get(scheme_end) == Some(&b':');
    if has_scheme {
        let scheme: &[u8] = if site.is_https { b"https" } else { b"http" };
        let (name, behind) = rest.split_at_checked(scheme_end)?;
        if !name.eq_ignore_ascii_case(scheme) {
            return None;
        }
        rest = behind.strip_prefix(b":")?;
    }
    if let Some(behind) = rest.strip_prefix(b"//") {
        let (authority, path) = behind.split_at_checked(ends(behind, b"/?"))?;
        if !site.is(authority) {
            return None;
        }
        rest = path;
        if !rest.starts_with(b"/") {
            return Some([b"/", rest].concat());
        }
    } else if has_scheme {
        return None;
    }
    let (base_path, _) = base.split_at_checked(ends(base, b"?"))?;
    let (path, query) = rest.split_at_checked(ends(rest, b"?"))?;
    let mut all = match path.first() {
        None if query.is_empty() => return Some(base.to_vec()),
        None => base_path.to_vec(),
        Some(b'/') => without_dots(path),
        Some(_) => {
            let folder = base_path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
            without_dots(&[base_path.get(..folder)?, path].concat())
        }
    };
    all.extend_from_slice(query);
    Some(all)
}

/// A path without `.` and `..` (RFC 3986 section 5.2.4), which begins with `/`.
fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut segments = path.strip_prefix(b"/").unwrap_or(path).split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." | b".." => {
                if segment == b".." {
                    out.truncate(out.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                }
                if is_last {
                    out.push(b'/');
                }
            }
            _ => {
                out.push(b'/');
                out.extend_from_slice(segment);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: UriOrigin<'_> = UriOrigin { is_https: false, host: b"example.com", port: None };

    #[test]
    fn references_rfc3986_section_5_4() {
        let base = "/b/c/d;p?q";
        for (reference, expected) in [
            ("g", Some("/b/c/g")),
            ("./g", Some("/b/c/g")),
            ("g/", Some("/b/c/g/")),
            ("/g", Some("/g")),
            ("?y", Some("/b/c/d;p?y")),
            ("g?y", Some("/b/c/g?y")),
            ("#s", Some("/b/c/d;p?q")),
            ("g#s", Some("/b/c/g")),
            ("", Some("/b/c/d;p?q")),
            (".", Some("/b/c/")),
            ("..", Some("/b/")),
            ("../../g", Some("/g")),
            ("../../../g", Some("/g")),
            ("/a/./b/../c?x=/../y", Some("/a/c?x=/../y")),
            ("//example.com", Some("/")),
            ("//EXAMPLE.com:80/x", Some("/x")),
            ("http://example.com?x", Some("/?x")),
            ("http://example.com:8080/", None),
            ("https://example.com/", None),
            ("http://example.com.evil/", None),
            ("http://user@example.com/", None),
            ("http:g", None),
            ("mailto:a", None),
            ("//[::1]/", None),
        ] {
            let got = resolve(reference.as_bytes(), &SITE, base.as_bytes());
            assert_eq!(got.as_deref(), expected.map(str::as_bytes), "{reference:?}");
        }
        let site = UriOrigin { is_https: true, host: b"[::1]", port: Some(8443) };
        assert_eq!(resolve(b"https://[::1]:8443/x", &site, b"/").as_deref(), Some(&b"/x"[..]));
        assert_eq!(resolve(b"https://[::1]/x", &site, b"/"), None);
    }

    #[test]
    fn only_unsafe_methods_invalidate() {
        let mut fields = Fields::new();
        fields.append(HeaderName::Location, "http://example.com/new");
        fields.append("Content-Location", "list#1");
        let paths = |method, status, rules: &Rules| {
            let mut all = Vec::new();
            let mut see = |path: &[u8]| all.push(String::from_utf8(path.to_vec()).unwrap());
            invalidated(method, status, &SITE, b"/a/list", &fields, rules, &mut see);
            all
        };
        let both = ["/a/list", "/new"];
        assert_eq!(paths(Method::Post, 201, &Rules::RFC9111), both);
        assert_eq!(paths(Method::Other, 303, &Rules::RFC9111), both);
        for (method, status) in [(Method::Get, 200), (Method::Post, 404), (Method::Head, 200)] {
            assert!(paths(method, status, &Rules::RFC9111).is_empty(), "{method:?} {status}");
        }
        assert!(paths(Method::Post, 200, &Rules::NGINX).is_empty());
    }
}
