//! Reuse of a stored response (RFC 9111 section 4): whether it may be sent to a client, and what has to be done
//! first.

use super::rfc9111::with_request_directives;
use super::{CacheControl, Directives, Duties, Lifetime, Request, Rules, Ruleset, current_age};

/// Permission to send an expired response in one situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The response itself allows that it is used.
    Open,
    /// Not granted by the response; the operator may grant it (`proxy_cache_use_stale`).
    Closed,
    /// Forbidden to caches.
    Forbidden,
}

/// Reason to validate a response that might be fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidateReason {
    /// `no-cache` in the response.
    NoCache,
    /// `no-cache` in the request.
    RequestNoCache,
    /// Older than the client accepts (`max-age`).
    RequestMaxAge,
    /// Fresh for a shorter time than the client wants (`min-fresh`).
    RequestMinFresh,
}

/// Permitted use of a stored response. `age` is the value of `Age`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Fresh: may be sent.
    Fresh {
        /// See above.
        age: u32,
    },
    /// Expired, but the client accepts stale responses (`max-stale`): may be sent.
    Accepted {
        /// See above.
        age: u32,
    },
    /// Expired: has to be validated with the origin.
    Stale {
        /// See above.
        age: u32,
        /// Permission to send it at once while it is being revalidated.
        while_revalidate: Window,
        /// Permission to send it if the origin fails.
        if_error: Window,
    },
    /// Possibly fresh, but has to be validated with the origin.
    Validate {
        /// See above.
        age: u32,
        /// Why.
        because: ValidateReason,
        /// Permission to send it if the origin fails.
        if_error: Window,
    },
    /// May not be sent, and the client does not want the origin to be contacted (`only-if-cached`): 504.
    Unsatisfiable,
}

/// Permitted use of a stored response at this time. Cost: by nginx's rules, some comparisons; by those of RFC 9111 a
/// search for one field, and a pass over it if it is present.
#[must_use]
pub fn may_use(stored: &Lifetime, request: &impl Request, now: i64, rules: &Rules) -> Reuse {
    match rules.reading {
        Ruleset::Nginx => by_nginx(stored, now),
        Ruleset::Rfc9111 => {
            with_request_directives(request, |directives| by_rfc9111(stored, directives, now))
        }
    }
}

/// Returns `true` if the client wants a stored response or none (`only-if-cached`, RFC 9111 section 5.2.1.7): without
/// one it gets a 504.
#[must_use]
pub fn wants_only_stored(request: &impl Request, rules: &Rules) -> bool {
    rules.reading == Ruleset::Rfc9111
        && with_request_directives(request, |directives| directives.has(Directives::ONLY_IF_CACHED))
}

/// Returns `true` if nothing of this exchange may be stored (`no-store`, RFC 9111 section 5.2.1.5): other requests
/// may not wait for its response either.
#[must_use]
pub fn wants_nothing_stored(request: &impl Request, rules: &Rules) -> bool {
    rules.reading == Ruleset::Rfc9111
        && with_request_directives(request, |directives| directives.has(Directives::NO_STORE))
}

/// Permission that lasts for a number of seconds after `end`, including the last one. Zero seconds give none.
fn within(end: i64, seconds: u32, now: i64) -> Window {
    let is_open = seconds > 0 && end.saturating_add(i64::from(seconds)) >= now;
    if is_open { Window::Open } else { Window::Closed }
}

/// `ngx_http_file_cache_read`: fresh until the second has passed.
fn by_nginx(stored: &Lifetime, now: i64) -> Reuse {
    let age = current_age(stored, now);
    if stored.valid_until >= now {
        return Reuse::Fresh { age };
    }
    Reuse::Stale {
        age,
        while_revalidate: within(stored.valid_until, stored.stale_while_revalidate_s, now),
        if_error: within(stored.valid_until, stored.stale_if_error_s, now),
    }
}

fn by_rfc9111(stored: &Lifetime, directives: &CacheControl<'_>, now: i64) -> Reuse {
    let reuse = ignoring_cost(stored, directives, now);
    let needs_origin = match reuse {
        Reuse::Fresh { .. } | Reuse::Accepted { .. } | Reuse::Unsatisfiable => false,
        Reuse::Stale { while_revalidate, .. } => while_revalidate != Window::Open,
        Reuse::Validate { .. } => true,
    };
    // Section 5.2.1.7.
    if needs_origin && directives.has(Directives::ONLY_IF_CACHED) { Reuse::Unsatisfiable } else { reuse }
}

fn ignoring_cost(stored: &Lifetime, directives: &CacheControl<'_>, now: i64) -> Reuse {
    // A clock that goes back makes nothing younger.
    let now = now.max(stored.responded);
    let age = current_age(stored, now);
    // Section 4.2: fresh while the lifetime is longer than the age.
    let is_fresh = now < stored.valid_until;
    let never_stale = stored.duties.has(Duties::NEVER_STALE);
    let late = now.saturating_sub(stored.valid_until);
    // RFC 5861 section 4: the client may open this window, too.
    let if_error = match () {
        () if is_fresh => Window::Closed,
        () if never_stale => Window::Forbidden,
        () => within(
            stored.valid_until,
            stored.stale_if_error_s.max(directives.stale_if_error.unwrap_or(0)),
            now,
        ),
    };
    // Section 5.2.2.4.
    if stored.duties.has(Duties::VALIDATE) {
        return Reuse::Validate { age, because: ValidateReason::NoCache, if_error: Window::Forbidden };
    }
    // Section 5.2.1.4.
    if directives.has(Directives::NO_CACHE) {
        return Reuse::Validate { age, because: ValidateReason::RequestNoCache, if_error };
    }
    // Sections 5.2.1.1 and 5.2.1.3. RFC 8246 section 2: reloading asks nothing that is not known.
    let is_too_old = directives.max_age.is_some_and(|max_age| age > max_age)
        && !(is_fresh && stored.duties.has(Duties::IMMUTABLE));
    let is_too_late = directives
        .min_fresh
        .is_some_and(|seconds| stored.valid_until.saturating_sub(now) < i64::from(seconds));
    if is_fresh {
        let because = match (is_too_old, is_too_late) {
            (true, _) => ValidateReason::RequestMaxAge,
            (false, true) => ValidateReason::RequestMinFresh,
            (false, false) => return Reuse::Fresh { age },
        };
        return Reuse::Validate { age, because, if_error };
    }
    // Section 5.2.1.2; a client cannot allow what the response forbids (4.2.4).
    let is_refused = is_too_old || directives.min_fresh.is_some_and(|seconds| seconds > 0);
    let is_accepted = directives.max_stale.is_some_and(|seconds| late <= i64::from(seconds));
    if is_accepted && !is_refused && !never_stale {
        return Reuse::Accepted { age };
    }
    let while_revalidate = match () {
        () if never_stale || is_refused => Window::Forbidden,
        () => within(stored.valid_until, stored.stale_while_revalidate_s, now),
    };
    Reuse::Stale { age, while_revalidate, if_error }
}
