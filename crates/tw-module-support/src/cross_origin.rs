//! Requests that a browser sends for a page of another site.

use tw_http::RequestHead;

/// Returns true if a browser sent the request for a page of another origin.
pub fn is_cross_origin(head: &RequestHead) -> bool {
    if let Some(site) = head.field("Sec-Fetch-Site") {
        return !matches!(site, b"same-origin" | b"none");
    }
    let Some(origin) = head.field("Origin") else { return false };
    let authority = [&b"http://"[..], b"https://"].iter().find_map(|scheme| origin.strip_prefix(*scheme));
    match (authority, head.field("Host")) {
        (Some(authority), Some(host)) => !authority.eq_ignore_ascii_case(host),
        _ => true,
    }
}
