//! Protocol-specific access of a request to its client: a closed set of protocols with the same functions.
//!
//! Phases, plans, filters, logs and modules do not depend on the protocol. A subrequest shares the wire of its client, to learn
//! when the client is gone; its response is pulled by its parent instead of being sent. Background requests have no wire.

mod response;

use std::rc::Rc;
use std::time::Duration;

use tw_base::memory::MemoryHolder;
use tw_net::{Addr, TcpInfo};
use tw_rt::Deadline;

pub use super::client_gone::ClientGone;
use super::h1::Http1Connection;
use super::h2::Http2Stream;
use super::h3::Http3Stream;
use super::streams::RequestStream;

/// Access of a request to its client.
#[derive(Clone)]
pub enum Wire {
    /// Connection of HTTP/1.1 or before.
    H1(Rc<Http1Connection>),
    /// Stream of HTTP/2.
    H2(Rc<Http2Stream>),
    /// Stream of HTTP/3.
    H3(Rc<Http3Stream>),
    /// None: a background request, or `post_action` after the response.
    Nobody,
}

impl From<Rc<Http2Stream>> for Wire {
    fn from(stream: Rc<Http2Stream>) -> Self {
        Self::H2(stream)
    }
}

impl From<Rc<Http3Stream>> for Wire {
    fn from(stream: Rc<Http3Stream>) -> Self {
        Self::H3(stream)
    }
}

impl Wire {
    /// Waits until the client is gone.
    pub async fn gone(&self) -> ClientGone {
        match self {
            Self::H1(conn) => conn.gone().await,
            Self::H2(stream) => stream.gone().await,
            Self::H3(stream) => stream.gone().await,
            Self::Nobody => std::future::pending().await,
        }
    }

    /// Waits for `future`, unless the client goes away first: then the future is dropped.
    pub async fn unless_gone<F: Future>(&self, future: F) -> Result<F::Output, ClientGone> {
        match self {
            Self::H1(conn) => conn.unless_gone(future).await,
            Self::H2(stream) => stream.unless_gone(future).await,
            Self::H3(stream) => stream.unless_gone(future).await,
            Self::Nobody => Ok(future.await),
        }
    }

    /// Sleeps, unless the client goes away meanwhile.
    pub async fn sleep(&self, span: Duration) -> Result<(), ClientGone> {
        match self {
            Self::H1(conn) => conn.sleep(span).await,
            Self::H2(stream) => stream.sleep(span).await,
            Self::H3(stream) => stream.sleep(span).await,
            Self::Nobody => {
                let mut deadline = Deadline::new();
                deadline.set(span);
                deadline.elapsed().await;
                Ok(())
            }
        }
    }

    /// Makes the close of the connection a reset, if the request has it for itself. Streams are reset anyway.
    pub(crate) fn reset_on_close(&self) {
        if let Self::H1(conn) = self {
            // A plain close does as well, only that a body without a length seems complete.
            let _ = conn.transport.socket().reset_on_close();
        }
    }

    /// Status in the access log of a request whose connection was cut before a head was sent. As in nginx, a stream counts
    /// as closed by its client.
    pub(crate) fn status_if_cut(&self) -> u16 {
        match self {
            Self::H2(_) | Self::H3(_) => 499,
            Self::H1(_) | Self::Nobody => 0,
        }
    }

    /// Protocol for the account of memory; `None` without a client.
    pub(crate) fn holder(&self) -> Option<MemoryHolder> {
        match self {
            Self::H1(_) => Some(MemoryHolder::Http1),
            Self::H2(_) => Some(MemoryHolder::Http2),
            Self::H3(_) => Some(MemoryHolder::Http3),
            Self::Nobody => None,
        }
    }

    /// Address that the client connected to. One system call.
    pub(crate) fn local_addr(&self) -> Option<Addr> {
        match self {
            Self::H1(conn) => conn.transport.local_addr().ok(),
            Self::H2(stream) => stream.conn.transport.local_addr().ok(),
            // The local address of a QUIC connection was recorded when the connection was accepted.
            Self::H3(_) | Self::Nobody => None,
        }
    }

    /// Kernel data about a TCP connection, for `$tcpinfo_*`. One system call.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        match self {
            Self::H1(conn) => conn.transport.tcp_info(),
            Self::H2(stream) => stream.conn.transport.tcp_info(),
            Self::H3(_) | Self::Nobody => None,
        }
    }
}
