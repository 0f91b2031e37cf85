//! Location that purges one key of a cache (`cache_purge zone key`).

use bytes::Bytes;
use tw_cache::Purge;

use super::{PurgeOutcome, PurgeScope, run};
use crate::settings::purge_rule::PurgeLocation;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::request::Request;

/// Response to a purge in the form of the free module, whose clients expect 200.
const PURGED: &[u8] = b"Successful purge\n";

/// Response if other nodes of the fleet purge later.
const QUEUED: &[u8] = b"Successful purge, queued for other nodes\n";

impl Handler for PurgeLocation {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Wait(Box::pin(async {
            let scope = PurgeScope::of_text(&self.key.value(r));
            match run(r, &self.cache, &scope, Purge::Hard).await {
                Ok(PurgeOutcome::Done) => {
                    r.response.status = 200;
                    r.response.content_type = Bytes::from_static(b"text/plain");
                    Outcome::Respond(Body::Bytes(Bytes::from_static(PURGED)))
                }
                Ok(PurgeOutcome::Nothing) => Outcome::Status(404),
                Ok(PurgeOutcome::Queued) => {
                    r.response.status = 202;
                    r.response.content_type = Bytes::from_static(b"text/plain");
                    Outcome::Respond(Body::Bytes(Bytes::from_static(QUEUED)))
                }
                Ok(PurgeOutcome::Unpublished) => Outcome::Status(503),
                Err(status) => Outcome::Status(status),
            }
        }))
    }
}
