//! Fields that are not stored with a response (RFC 9111 section 3.1).

use tw_http::{Fields, HeaderName, hop};

use super::rfc9111::ResponseDirectives;
use super::{IgnoredFields, Rules, Ruleset};

/// Fields of proxy authentication: they belong to one client of the proxy.
const OF_PROXIES: [&[u8]; 2] = [b"Proxy-Authenticate", b"Proxy-Authentication-Info"];

/// Removes connection-specific fields, and, by the rules of RFC 9111, proxy authentication and the fields named by
/// `no-cache="…"` and `private="…"` (sections 5.2.2.4 and 5.2.2.7). Cost: copies these names.
pub fn exclude(fields: &mut Fields, rules: &Rules, ignored: IgnoredFields) {
    let connection: Vec<Vec<u8>> = fields.get_all(b"Connection").map(<[u8]>::to_vec).collect();
    let mut named = Vec::new();
    if rules.reading == Ruleset::Rfc9111 {
        let control = ResponseDirectives::of(fields, rules, ignored);
        let no_cache = &control.says.no_cache;
        let private = &control.says.private;
        if !no_cache.is_empty() || !private.is_empty() {
            let is_named = |name: &&[u8]| no_cache.has(name) || private.has(name);
            named = fields.iter().map(|(name, _)| name).filter(is_named).map(<[u8]>::to_vec).collect();
        }
    }
    let is_rfc = rules.reading == Ruleset::Rfc9111;
    fields.retain(|name, known_name| {
        let is_named = named.iter().any(|one| one.eq_ignore_ascii_case(name));
        !is_named && !belongs_to_hop(name, known_name, connection.iter().map(Vec::as_slice), is_rfc)
    });
}

/// Returns `true` for a hop-by-hop field, which is not forwarded; `connection` has the lines of `Connection`, and `known_name` is the
/// result of [`HeaderName::find`] for the name.
pub(super) fn belongs_to_hop<'a>(
    name: &[u8],
    known_name: Option<HeaderName>,
    connection: impl IntoIterator<Item = &'a [u8]>,
    also_proxies: bool,
) -> bool {
    known_name.is_some_and(hop::is_hop_by_hop)
        || also_proxies
            && (known_name == Some(HeaderName::ProxyAuthorization)
                || OF_PROXIES.iter().any(|one| one.eq_ignore_ascii_case(name)))
        || hop::is_named(connection, name)
}
