//! Update of a stored response by a 304 (RFC 9111 sections 3.2 and 4.3.4).

use tw_http::{Fields, HeaderName, Name};

use super::exclusion::belongs_to_hop;
use super::rfc9111::{self, ResponseDirectives};
use super::{Lifetime, NoStoreReason, Request, Response, Rules, Ruleset, StoreSettings, nginx};

/// Returns `true` if a 304 is about the response that is stored with this entity tag, empty for none (RFC 9111
/// section 4.3.4). A 304 with another strong tag is not; by nginx's rules it is.
#[must_use]
pub fn is_about(etag: &[u8], update: &Fields, rules: &Rules) -> bool {
    let new_etag = update.get_known(HeaderName::ETag).filter(|new_etag| new_etag.starts_with(b"\""));
    rules.reading == Ruleset::Nginx || new_etag.is_none_or(|new_etag| new_etag == etag)
}

/// Updates the stored fields with those of a 304. By nginx's rules they stay as they are.
///
/// Section 3.2: each field of the 304 replaces all stored ones of its name. Those that describe the stored bytes do
/// not (`Content-Length`, `Content-Encoding`, `Content-Range`), and a cookie is for the client that the 304 was for.
/// `Age` and `Date` tell when a response was made, so the old ones go in any case. A `Vary` that changes makes
/// another variant of it.
pub fn merge(stored: &mut Fields, update: &Fields, rules: &Rules) {
    if rules.reading == Ruleset::Nginx {
        return;
    }
    stored.remove_known(HeaderName::Age);
    stored.remove_known(HeaderName::Date);
    let is_update = |name: &[u8], known_name: Option<HeaderName>| {
        let of_content = matches!(
            known_name,
            Some(
                HeaderName::ContentLength
                    | HeaderName::ContentEncoding
                    | HeaderName::ContentRange
                    | HeaderName::SetCookie
            )
        );
        !of_content && !belongs_to_hop(name, known_name, update.get_all(b"Connection"), true)
    };
    let updates = || update.iter_known().filter(|(name, known_name, _)| is_update(name, *known_name));
    for (name, ..) in updates() {
        stored.remove(name);
    }
    for (name, _, value) in updates() {
        stored.append_copy(Name::Copy(name), value);
    }
}

/// Lifetime of a stored response after a 304 (`update`) has validated it. `stored` has its own status and the fields
/// as [`merge`] left them; `terms` are those of its status, not of 304.
///
/// # Errors
/// By the rules of RFC 9111 the response may not be reused, or nothing gives it a lifetime
/// ([`NoStoreReason::NoValidity`]); it may still be sent to this client. By nginx's rules it stays stored as it was.
pub fn freshen(
    request: &impl Request,
    stored: &Response<'_>,
    update: &Fields,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    match rules.reading {
        Ruleset::Nginx => nginx::freshen(update, stored.fields, now, rules, terms),
        Ruleset::Rfc9111 => {
            let control = ResponseDirectives::of(stored.fields, rules, terms.ignored);
            rfc9111::allows(request, stored, &control, terms)?;
            rfc9111::lifetime(stored, &control, now, rules, terms)
        }
    }
}
