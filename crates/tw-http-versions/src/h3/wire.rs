//! A stream as the wire of its request.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_base::memory::MemoryHolder;
use tw_http3::{ErrorCode, StreamError};
use tw_net::{Addr, TcpInfo};

use super::protocol::PROTOCOL;
use super::stream::Http3Stream;
use crate::streams::{CLIENT_CLOSED_REQUEST, Progress, send_early_hints, send_response};
use tw_request::body::Body;
use tw_request::client_gone::ClientGone;
use tw_request::local_future::{LocalFuture, boxed};
use tw_request::request::Request;
use tw_request::wire::Wire;

impl Wire<Request, Body> for Http3Stream {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        if self.state.progress() == Progress::Over {
            return Poll::Pending;
        }
        if let Poll::Ready(error) = self.stream.poll_error(cx) {
            return Poll::Ready(self.lost(error).into());
        }
        // Perhaps no task reads the body.
        if let Poll::Ready(code) = self.conn.quic.poll_reset(self.id, cx) {
            let code = ErrorCode::from(code);
            // Errors of the frames end the connection, which finds them itself.
            let _ = self.conn.frames.receive_reset(self.id.value(), code);
            return Poll::Ready(self.lost(StreamError::Reset(code)).into());
        }
        self.conn.quic.poll_stopped(self.id, cx).map(|error| self.failed(&error).into())
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

    /// The address was recorded when the connection was accepted.
    fn local_addr(&self) -> Option<Addr> {
        None
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }
}
