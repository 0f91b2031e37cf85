//! A stream as the wire of its request.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_base::memory::MemoryHolder;
use tw_net::{Addr, TcpInfo};

use super::RequestStream;
use super::send_response::{send_early_hints, send_response};
use crate::http::body::Body;
use crate::http::client_gone::ClientGone;
use crate::http::local_future::LocalFuture;
use crate::http::request::Request;
use crate::http::wire::Wire;

/// Status of a request that its client has canceled. As in nginx, a stream whose connection was cut counts as closed by its client.
const CLIENT_CLOSED_REQUEST: u16 = 499;

impl<S: RequestStream + 'static> Wire<Request, Body> for S {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        RequestStream::poll_gone(self, cx)
    }

    fn begin_sleep(&self, span: Duration) {
        self.state().set_deadline(span);
    }

    fn poll_sleep(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.state().poll_elapsed(cx)
    }

    fn send<'r>(self: Rc<Self>, r: &'r mut Request, body: Body) -> Option<LocalFuture<'r, ()>> {
        Some(Box::pin(send_response(self, r, body)))
    }

    fn inform(&self, r: &mut Request) {
        send_early_hints(self, r);
    }

    fn status_if_cut(&self) -> u16 {
        CLIENT_CLOSED_REQUEST
    }

    fn holder(&self) -> MemoryHolder {
        S::PROTOCOL.holder
    }

    fn local_addr(&self) -> Option<Addr> {
        RequestStream::local_addr(self)
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        RequestStream::tcp_info(self)
    }
}
