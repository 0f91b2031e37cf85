//! The connection as the wire of its requests.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_base::memory::MemoryHolder;
use tw_net::{Addr, TcpInfo};

use super::Http1Connection;
use super::response_head::{Delimiter, delimiter};
use super::send;
use tw_request::body::Body;
use tw_request::client_gone::ClientGone;
use tw_request::local_future::LocalFuture;
use tw_request::request::Request;
use tw_request::wire::Wire;

impl Wire<Request, Body> for Http1Connection {
    /// The client may have closed its side behind unread input.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        self.transport.poll_closed(cx).map(ClientGone::new)
    }

    fn begin_sleep(&self, span: Duration) {
        self.set_write_deadline(span);
    }

    fn poll_sleep(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_write_elapsed(cx)
    }

    fn send<'r>(self: Rc<Self>, r: &'r mut Request, body: Body) -> Option<LocalFuture<'r, ()>> {
        send::send(self, r, body)
    }

    fn inform(&self, r: &mut Request) {
        send::inform(self, r);
    }

    fn transfer_coding(&self, r: &Request) -> Option<&'static str> {
        (delimiter(r) == Delimiter::Chunked).then_some("chunked")
    }

    fn reset_on_close(&self) {
        // A plain close does as well, only that a body without a length seems complete.
        let _ = self.transport.socket().reset_on_close();
    }

    fn status_if_cut(&self) -> u16 {
        0
    }

    fn holder(&self) -> MemoryHolder {
        MemoryHolder::Http1
    }

    fn local_addr(&self) -> Option<Addr> {
        self.transport.local_addr().ok()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.transport.tcp_info()
    }
}
