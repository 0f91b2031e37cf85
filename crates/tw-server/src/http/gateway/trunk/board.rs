//! Who gets a berth: a request on its way to a server that was chosen.

use std::rc::Rc;

use tw_net::ConnectOptions;
use tw_upstream::Lease;

use super::table::{Wanted, shared};
use crate::event_loop::Loop;
use crate::http::gateway::exchange::Order;
use crate::http::gateway::fault::{Fault, Stage};
use crate::http::gateway::idle::Owner;
use crate::http::gateway::link::Link;
use crate::http::gateway::secure::Doers;
use crate::http::request::Request;

/// A stream to the server of `lease`, on a connection that others use, too, or will.
pub(in crate::http::gateway) async fn board<C>(
    r: &Request,
    order: &Order<'_, C>,
    home: &Rc<Loop>,
    owner: &Owner,
    lease: &Lease,
    options: ConnectOptions,
) -> Result<Rc<Link>, (Fault, Stage)> {
    let gateway = order.gateway;
    let mut keepalive = order.group.keepalive;
    if !order.group.is_named {
        // As in nginx: it ends with its last request.
        keepalive.connections = 0;
    }
    let wanted = Wanted {
        peer: lease.peer(),
        to: lease.peer().addr(),
        options,
        keepalive,
        head_size: gateway.buffer_size,
        timeout: gateway.connect_timeout,
    };
    let stream = shared(home, owner, wanted, || Doers::of(r.generation())).await?;
    Ok(Rc::new(Link::of_stream(stream)))
}
