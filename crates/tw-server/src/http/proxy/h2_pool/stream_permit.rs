//! Acquires a stream for a request to a chosen server.

use std::rc::Rc;

use tw_net::ConnectOptions;
use tw_upstream::Lease;

use super::table::{StreamParams, acquire_shared};
use crate::event_loop::Loop;
use crate::http::proxy::failure::AttemptFailure;
use crate::http::proxy::keepalive_pool::PoolKey;
use crate::http::proxy::upstream_connection::UpstreamConnection;
use crate::http::proxy::upstream_request::UpstreamRequest;
use crate::http::proxy::upstream_tls::TlsPools;
use crate::http::request::Request;

/// A stream to the server of `lease`, on a connection that others use, too, or will.
pub(in crate::http::proxy) async fn acquire_stream<C>(
    r: &Request,
    order: &UpstreamRequest<'_, C>,
    home: &Rc<Loop>,
    owner: &PoolKey,
    lease: &Lease,
    options: ConnectOptions,
) -> Result<Rc<UpstreamConnection>, AttemptFailure> {
    let settings = order.settings;
    let mut keepalive = order.group.keepalive;
    if !order.group.is_named {
        // As in nginx: it ends with its last request.
        keepalive.connections = 0;
    }
    let wanted = StreamParams {
        peer: lease.peer(),
        to: lease.peer().addr(),
        options,
        keepalive,
        head_size: settings.buffer_size,
        timeout: settings.timeouts.connect,
    };
    let stream = acquire_shared(home, owner, wanted, || TlsPools::of(r.generation())).await?;
    Ok(Rc::new(UpstreamConnection::from_stream(stream)))
}
