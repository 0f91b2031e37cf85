//! An exchange with an upstream server, from its connection to the end of its response.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use tw_connect::keepalive_pool::{KeepaliveSettings, PoolKey};
use tw_connect::upstream_connection::UpstreamConnection;
use tw_upstream::{Lease, RetryPermit};

use super::send_request::RequestSender;
use super::sticky::PendingSession;

/// An exchange of one attempt. It stays in one place until its response is made: whoever cancels the attempt finds it there.
pub(super) struct Exchange<C> {
    pub(super) connection: Rc<UpstreamConnection>,
    pub(super) lease: Lease,
    pub(super) codec: C,
    /// Bytes read behind the head and not parsed yet.
    pub(super) input: Bytes,
    /// The request, which may still be under way.
    pub(super) sending: RequestSender,
    /// Key under which the connection is kept once the exchange is over.
    pub(super) pool_key: PoolKey,
    pub(super) keepalive: KeepaliveSettings,
    /// Time at which the server was chosen.
    pub(super) begun: Instant,
    /// Session of `sticky learn` to be stored when the exchange ends.
    pub(super) session: Option<Box<PendingSession>>,
    /// Permit of a retry, which lasts as long as the exchange.
    pub(super) retry: Option<RetryPermit>,
}
