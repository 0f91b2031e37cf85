//! Responses on the wire: sending, early hints, and the log line of a failure.

use std::io;

use tw_log::Level;

use super::Wire;
use crate::http::body::{AlreadyLogged, Body};
use crate::http::h1::{self, Delimiter};
use crate::http::request::Request;
use crate::http::send_error::SendError;
use crate::http::streams::{send_early_hints, send_response};

impl Wire {
    /// Sends the response whose head is `r.response`. The result is in `r.costs.sent` and `r.state.after`.
    pub(crate) async fn send(&self, r: &mut Request, body: Body) {
        match self {
            Self::H1(conn) => h1::send(conn, r, body).await,
            Self::H2(stream) => send_response(stream, r, body).await,
            Self::H3(stream) => send_response(stream, r, body).await,
            Self::Nobody => {}
        }
    }

    /// Sends the fields of the last upstream response as `103 Early Hints`, unless the client does not know such responses or its
    /// socket is full.
    pub(crate) fn inform(&self, r: &mut Request) {
        match self {
            Self::H1(conn) => h1::inform(conn, r),
            Self::H2(stream) => send_early_hints(&**stream, r),
            Self::H3(stream) => send_early_hints(&**stream, r),
            Self::Nobody => {}
        }
    }

    /// Transfer coding of the response to `r`; `None` if there is none.
    pub(crate) fn transfer_coding(&self, r: &Request) -> Option<&'static str> {
        match self {
            Self::H1(_) => (h1::delimiter(r) == Delimiter::Chunked).then_some("chunked"),
            Self::H2(_) | Self::H3(_) | Self::Nobody => None,
        }
    }
}

impl SendError {
    /// Writes the failure into the error log of the location, unless that was done.
    pub(crate) fn log(&self, r: &Request) {
        const WHILE: &str = "while sending response to client";
        match self {
            Self::Timeout => {
                r.log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
            }
            Self::TooSlow => {
                r.client().event_loop.tally.slow_responses.add(1);
                r.log(Level::Info, format_args!("client is slower than \"send_min_rate\" {WHILE}"));
            }
            Self::Gone(e) if e.get_ref().is_some() => r.log(Level::Info, format_args!("{e} {WHILE}")),
            Self::Gone(e) => {
                let text = tw_base::Errno(e.raw_os_error().unwrap_or_default());
                r.log(Level::Info, format_args!("send() failed ({text}) {WHILE}"));
            }
            Self::Body(e) if e.get_ref().is_some_and(|error| error.is::<AlreadyLogged>()) => {}
            Self::Body(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                r.log(Level::Alert, format_args!("file was truncated {WHILE}"));
            }
            Self::Body(e) => match e.raw_os_error() {
                Some(errno) => {
                    r.log(Level::Crit, format_args!("read() failed ({}) {WHILE}", tw_base::Errno(errno)));
                }
                None => r.log(Level::Error, format_args!("{e} {WHILE}")),
            },
        }
    }
}
