//! Requests that get the response of another request: while it is received, or before it is stored.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tw_cache::Key;
use tw_cache::policy::{self, Reuse, Rules, Ruleset};
use tw_http::Method;

use super::cached_response::{CachedHead, CachedResponse, HeadSource};
use crate::fill::{Fill, FillHead, FillRefusal, Follower};
use crate::zone::Cache;
use tw_request::body::Body;
use tw_request::cache_info::ServedFacts;
use tw_request::request::Request;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which a request waits until a response that has just come is stored.
    const PLACING: Duration = Duration::from_secs(1), time, "the upstream server is asked";
}

/// Result of the search for a response that is complete and not stored yet.
pub(crate) enum RecentFill {
    /// There is none, or storing it takes too long.
    Nothing,
    Ready(CachedResponse),
    /// The response is stored now: search again.
    Stored,
}

/// Result of waiting for another request's response.
pub(crate) enum FollowOutcome {
    Ready(CachedResponse),
    /// The other request has failed: search again.
    Again,
    /// The response may not be shared.
    Alone,
    Late,
    /// The client has closed the connection.
    Gone,
}

/// Request that may get the response of another one.
#[derive(Clone, Copy)]
pub(crate) struct FillJoiner<'a> {
    pub(crate) r: &'a Request,
    pub(crate) cache: &'a Arc<Cache>,
    pub(crate) key: Key,
    pub(crate) rules: &'a Rules,
}

impl FillJoiner<'_> {
    /// Finds a complete response that is not stored yet. Serves it, or waits a moment until it is stored.
    pub(crate) async fn find_recent(self) -> RecentFill {
        let fill = self.cache.fill(self.key).and_then(|fill| fill.youngest_whole());
        let Some(fill) = fill else { return RecentFill::Nothing };
        let Some(begun) = fill.complete_head() else { return RecentFill::Nothing };
        let now = tw_rt::clock::unix().secs;
        let used = policy::may_use(&begun.meta.lifetime, &self.r.head, now, self.rules);
        if matches!(used, Reuse::Fresh { .. } | Reuse::Accepted { .. })
            && let Some(ready) = self.join(&fill, begun)
        {
            return RecentFill::Ready(ready);
        }
        let wire = self.r.wire().clone();
        match tw_rt::time::timeout(PLACING, wire.unless_gone(pin!(fill.wait_until_placed()))).await {
            Ok(Ok(())) => RecentFill::Stored,
            Ok(Err(_)) | Err(_) => RecentFill::Nothing,
        }
    }

    // DIFF(nginx): waiting requests get the response while it is received.
    /// Waits for the response of another request.
    pub(crate) async fn follow(self, fill: &Arc<Fill>, timeout: Duration) -> FollowOutcome {
        let wire = self.r.wire().clone();
        let is_head = self.r.method() == Method::Head;
        let waited = tw_rt::time::timeout(timeout, wire.unless_gone(pin!(fill.wait_for_head(is_head)))).await;
        let begun = match waited {
            Err(_) => return FollowOutcome::Late,
            Ok(Err(_)) => return FollowOutcome::Gone,
            Ok(Ok(Err(FillRefusal::Private))) => return FollowOutcome::Alone,
            Ok(Ok(Err(FillRefusal::Abandoned))) => return FollowOutcome::Again,
            Ok(Ok(Ok(begun))) => begun,
        };
        match self.join(fill, begun) {
            Some(ready) => FollowOutcome::Ready(ready),
            None => FollowOutcome::Alone,
        }
    }

    /// Joins a fill, unless its response is of another variant or may not be used.
    pub(crate) fn join(self, fill: &Arc<Fill>, begun: Arc<FillHead>) -> Option<CachedResponse> {
        let Self { r, cache, key, rules } = self;
        let meta = &begun.meta;
        let of_this = || policy::variant(key, &meta.vary, &r.head, rules);
        if meta.variant.is_some_and(|variant| variant != of_this()) {
            return None;
        }
        let now = tw_rt::clock::unix().secs;
        let may = policy::may_use(&meta.lifetime, &r.head, now, rules);
        if rules.reading == Ruleset::Rfc9111 && !matches!(may, Reuse::Fresh { .. } | Reuse::Accepted { .. }) {
            return None;
        }
        let disk = r.disk()?.clone();
        fill.mark_shared();
        let body = match begun.len {
            Some(0) => Body::Empty,
            len => Body::Pull(Box::new(Follower::new(fill.clone(), 0, len, disk)?)),
        };
        cache.zone.counts.collapsed.add(1);
        let facts = ServedFacts {
            age: policy::current_age(&meta.lifetime, now),
            valid_until: meta.lifetime.valid_until,
            follows: true,
        };
        Some(CachedResponse { head: CachedHead(HeadSource::Begun(begun)), body, facts })
    }
}
