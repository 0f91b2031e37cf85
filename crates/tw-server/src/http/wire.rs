//! How a request talks to its client: a closed set of protocols behind the same verbs.
//!
//! Phases, plans, filters, logs and modules never see which one it is. A part of another request has the wire of its
//! client, by which it learns that the client is gone; its response is pulled by its parent instead of being sent. A request that nobody waits for has none.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tw_net::{Addr, TcpInfo};
use tw_rt::Deadline;

use super::body::Body;
use super::h1::{self, Delimiter};
use super::h2;
use super::request::Request;

/// The way to the client of a request.
#[derive(Clone)]
pub enum Wire {
    /// HTTP/1.1 and before.
    H1(Rc<h1::Conn>),
    /// A stream of HTTP/2.
    H2(Rc<h2::StreamHandle>),
    /// Nobody waits for a response, or is gone: the request runs beside another, or after its own response.
    Nobody,
}

/// The client of a request went away: it closed its side of the connection, or that failed.
#[derive(Debug)]
pub struct Gone(io::Error);

impl Gone {
    pub(crate) fn new(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<Gone> for io::Error {
    fn from(gone: Gone) -> Self {
        gone.0
    }
}

/// As nginx words it in the error log.
impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("client prematurely closed connection")?;
        match self.0.raw_os_error() {
            Some(errno) => write!(f, " ({})", tw_base::Errno(errno)),
            None => Ok(()),
        }
    }
}

impl Wire {
    /// Sends the response whose head is `r.out`. How it went, `r.costs.sent` and `r.course.after` tell.
    pub(crate) async fn send(&self, r: &mut Request, body: Body) {
        match self {
            Self::H1(conn) => h1::send(conn, r, body).await,
            Self::H2(exchange) => h2::send(exchange, r, body).await,
            Self::Nobody => {}
        }
    }

    /// Tells the client something before the response: the fields of the last answer, as `103 Early Hints`. Nothing to a
    /// client that knows no such thing, or does not take it at once.
    pub(crate) fn inform(&self, r: &mut Request) {
        match self {
            Self::H1(conn) => h1::inform(conn, r),
            Self::H2(exchange) => h2::inform(exchange, r),
            Self::Nobody => {}
        }
    }

    /// Waits until the client is gone.
    pub async fn gone(&self) -> Gone {
        match self {
            Self::H1(conn) => conn.gone().await,
            Self::H2(exchange) => exchange.gone().await,
            Self::Nobody => std::future::pending().await,
        }
    }

    /// Waits for `future`, unless the client goes away first: then the future is dropped.
    pub async fn unless_gone<F: Future>(&self, future: F) -> Result<F::Output, Gone> {
        match self {
            Self::H1(conn) => conn.unless_gone(future).await,
            Self::H2(exchange) => exchange.unless_gone(future).await,
            Self::Nobody => Ok(future.await),
        }
    }

    /// Sleeps, unless the client goes away meanwhile.
    pub async fn sleep(&self, span: Duration) -> Result<(), Gone> {
        match self {
            Self::H1(conn) => conn.sleep(span).await,
            Self::H2(exchange) => exchange.sleep(span).await,
            Self::Nobody => {
                let mut deadline = Deadline::new();
                deadline.set(span);
                deadline.elapsed().await;
                Ok(())
            }
        }
    }

    /// The transfer coding of the response to `r`; `None` if there is none.
    pub(crate) fn transfer_coding(&self, r: &Request) -> Option<&'static str> {
        match self {
            Self::H1(_) => (h1::delimiter(r) == Delimiter::Chunked).then_some("chunked"),
            Self::H2(_) | Self::Nobody => None,
        }
    }

    /// Status in the access log of a request whose connection was cut before a head was sent. As in nginx, a stream of HTTP/2
    /// counts as closed by its client.
    pub(crate) fn status_if_cut(&self) -> u16 {
        match self {
            Self::H2(_) => 499,
            Self::H1(_) | Self::Nobody => 0,
        }
    }

    /// The address the client connected to. One system call.
    pub(crate) fn local_addr(&self) -> Option<Addr> {
        match self {
            Self::H1(conn) => conn.transport.local_addr().ok(),
            Self::H2(exchange) => exchange.conn.transport.local_addr().ok(),
            Self::Nobody => None,
        }
    }

    /// What the kernel knows about a TCP connection, for `$tcpinfo_*`. One system call.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        match self {
            Self::H1(conn) => conn.transport.tcp_info(),
            Self::H2(exchange) => exchange.conn.transport.tcp_info(),
            Self::Nobody => None,
        }
    }
}
