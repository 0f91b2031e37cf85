//! Counters of a resolver: those that NGINX Plus shows, and unusable responses.

use tw_base::Counter;

use crate::answer::Reply;
use crate::error::ResolveError;

/// The counters of a resolver (`status_zone=`). Several loops add to them.
#[derive(Debug, Default)]
pub struct Stats {
    /// Lookups of the addresses of a name, from the cache or not.
    pub name: Counter,
    /// Lookups of the servers of a service.
    pub srv: Counter,
    /// Lookups of the name of an address.
    pub addr: Counter,
    /// Answers with the code 0.
    pub noerror: Counter,
    /// Answers with the code 1, and answers that could not be read.
    pub formerr: Counter,
    /// Answers with the code 2.
    pub servfail: Counter,
    /// Answers with the code 3.
    pub nxdomain: Counter,
    /// Answers with the code 4.
    pub notimp: Counter,
    /// Answers with the code 5.
    pub refused: Counter,
    /// Questions that a server has not answered in time.
    pub timedout: Counter,
    /// Answers with another code.
    pub unknown: Counter,
    /// Messages that did not match their query: forged, late, or garbage.
    pub unmatched: Counter,
    /// Truncated responses, repeated over TCP.
    pub truncated: Counter,
    /// Questions that the cache has answered.
    pub cached: Counter,
    /// Old answers that were used because no server had answered.
    pub stale: Counter,
}

impl Stats {
    /// Counts an answer.
    pub(crate) fn count(&self, reply: &Reply) {
        let counter = match reply {
            Reply::Found { .. } | Reply::Alias { .. } | Reply::Missing { is_name: false, .. } => {
                &self.noerror
            }
            Reply::Missing { is_name: true, .. } => &self.nxdomain,
            Reply::Failed(ResolveError::Format) => &self.formerr,
            Reply::Failed(ResolveError::ServerFailure) => &self.servfail,
            Reply::Failed(ResolveError::NotImplemented) => &self.notimp,
            Reply::Failed(ResolveError::Refused) => &self.refused,
            Reply::Failed(_) => &self.unknown,
        };
        counter.add(1);
    }
}
