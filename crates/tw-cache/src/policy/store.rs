//! Storability of a response and its lifetime (RFC 9111 section 3), with the reason if it may not be stored.

use super::{Lifetime, NoStoreReason, Request, Response, Rules, Ruleset, StoreSettings, nginx, rfc9111};

/// Decides on storing a response, and returns its lifetime. `now` is the time at which its head was received. Cost:
/// some passes over the fields.
///
/// # Errors
/// The reason for not storing it.
pub fn may_store(
    request: &impl Request,
    response: &Response<'_>,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    // DIFF(nginx): nginx stores a 304 that answers a condition of the client's own, and gives it to others.
    if response.status < 200 || response.status == 304 {
        return Err(NoStoreReason::Status);
    }
    match rules.reading {
        Ruleset::Nginx => nginx::may_store(response, now, rules, terms),
        Ruleset::Rfc9111 => rfc9111::may_store(request, response, now, rules, terms),
    }
}
