//! Context of a request: times, identifier, client address, trace, deadline.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::Instant;

use tw_http::Method;
use tw_net::Addr;
use tw_rt::clock::UnixTime;

use super::trace::RequestTrace;
use crate::request_deadline::RequestDeadline;

/// Context of a request.
pub struct RequestContext {
    /// Arrival of the first byte of the request.
    pub started: Started,
    /// Time at which its head was complete, in the ticks of the loop's table of files.
    pub read_at: u64,
    /// `$request_id`, made on first use.
    pub id: Cell<Option<[u8; 16]>>,
    /// Address of the client, if that is not the peer of the connection.
    pub(super) real_client_addr: Option<Box<RealClientAddr>>,
    /// Peer of the connection at the begin of the request, if it has moved since its handshake.
    pub(super) moved_peer: Option<Box<RealClientAddr>>,
    /// Position below the client's request; `None` for the latter itself.
    pub position: Option<SubrequestPosition>,
    /// Trace, made on first use.
    pub trace: OnceCell<Box<RequestTrace>>,
    /// Deadline of a client's request, if the configuration uses `request_timeout`.
    pub deadline: Option<Rc<RequestDeadline>>,
}

/// Address of the client from `real_ip_header` or its like, or after a migration.
pub(super) struct RealClientAddr {
    pub(super) addr: Addr,
    /// Address without port.
    pub(super) text: Box<str>,
}

impl RealClientAddr {
    pub(super) fn boxed(addr: Addr) -> Box<Self> {
        let text = addr.client_text();
        Box::new(Self { addr, text })
    }
}

/// Position of a subrequest below the client's request.
pub struct SubrequestPosition {
    /// Number of requests above.
    pub depth: u8,
    /// Method of the client's request if an error page has changed it; `None`: the one in the head.
    pub client_method: Option<Method>,
}

/// Begin of a request.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// Monotonic.
    pub at: Instant,
    /// Wall clock.
    pub unix: UnixTime,
    /// State of the connection at its arrival.
    pub arrival: RequestArrival,
}

/// State of a connection at the arrival of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestArrival {
    /// Idle.
    Awaited,
    /// Busy: part of the request arrived before the last response was sent (pipelining).
    Pipelined,
}

impl Started {
    /// The current time.
    pub(super) fn now(arrival: RequestArrival) -> Self {
        Self { at: tw_rt::clock::now(), unix: tw_rt::clock::unix(), arrival }
    }
}
