//! A stream as the wire of its request.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_base::memory::MemoryHolder;
use tw_net::{Addr, TcpInfo};

use super::protocol::PROTOCOL;
use super::stream::Http2Stream;
use crate::streams::{CLIENT_CLOSED_REQUEST, Progress, send_early_hints, send_response};
use tw_request::body::Body;
use tw_request::client_gone::ClientGone;
use tw_request::local_future::{LocalFuture, boxed};
use tw_request::request::Request;
use tw_request::wire::Wire;

impl Wire<Request, Body> for Http2Stream {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        match self.state.progress() {
            Progress::Head | Progress::Body => {
                self.stream.poll_error(cx).map(|error| self.lost(error).into())
            }
            Progress::Over => Poll::Pending,
        }
    }

    fn begin_sleep(&self, span: Duration) {
        self.state.set_deadline(span);
    }

    fn poll_sleep(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.state.poll_elapsed(cx)
    }

    fn send<'r>(self: Rc<Self>, r: &'r mut Request, body: Body) -> Option<LocalFuture<'r, ()>> {
        Some(boxed(move || send_response(self, r, body)))
    }

    fn inform(&self, r: &mut Request) {
        send_early_hints(self, r);
    }

    fn status_if_cut(&self) -> u16 {
        CLIENT_CLOSED_REQUEST
    }

    fn holder(&self) -> MemoryHolder {
        PROTOCOL.holder
    }

    fn local_addr(&self) -> Option<Addr> {
        self.conn.transport.local_addr().ok()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.conn.transport.tcp_info()
    }
}
