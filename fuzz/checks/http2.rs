//! What clients of HTTP/2 send, behind their preface: frames in any order, fields of any kind.
//!
//! The frames go through the crate as they do in the server, and what it makes a request of becomes a head. A look at frames
//! sees the same however they are cut.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tw_http::{Content, HeadError, HeadLimits, Pseudo, RequestHead};
use tw_server::http::h2::sight::{Seen, Sight};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that has said all it will say, and takes whatever it is told.
struct Client<'a>(&'a [u8]);

impl AsyncRead for Client<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (some, rest) = self.0.split_at(self.0.len().min(room.remaining()));
        room.put_slice(some);
        self.0 = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub(crate) fn check(data: &[u8]) {
    let whole = seen(data, usize::MAX);
    for size in [1, 9, 10] {
        assert_eq!(seen(data, size), whole, "in pieces of {size}");
    }
    serve(&[PREFACE, data].concat());
}

fn seen(data: &[u8], size: usize) -> Vec<String> {
    let (mut sight, mut seen) = (Sight::new(), Vec::new());
    let mut see = |what: Seen<'_>| seen.push(format!("{what:?}"));
    sight.look(PREFACE, &mut see);
    data.chunks(size.min(data.len().max(1))).for_each(|piece| sight.look(piece, &mut see));
    seen
}

fn serve(data: &[u8]) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut settings = h2::server::Builder::new();
    settings.max_header_list_size(1 << 12).max_concurrent_streams(8).enable_connect_protocol();
    let mut handshake = pin!(settings.handshake::<_, Bytes>(Client(data)));
    let Poll::Ready(Ok(mut connection)) = handshake.as_mut().poll(&mut cx) else { return };
    let mut bodies = Vec::new();
    while let Poll::Ready(Some(Ok((request, mut respond)))) = connection.poll_accept(&mut cx) {
        let (parts, mut body) = request.into_parts();
        let content = if body.is_end_stream() { Content::None } else { Content::Follows };
        if let Ok(head) = head(&parts, content) {
            // What was taken has a method, a path from the root, and a host.
            assert!(!head.request_line().is_empty() && head.host().is_some());
            assert!(head.path().starts_with(b"/"));
        }
        let _ = respond.send_response(http::Response::new(()), true);
        while let Poll::Ready(Some(Ok(bytes))) = body.poll_data(&mut cx) {
            let _ = body.flow_control().release_capacity(bytes.len());
        }
        bodies.push(body);
    }
}

fn head(parts: &Parts, content: Content) -> Result<RequestHead, HeadError> {
    let limits = HeadLimits::default();
    let mut head = RequestHead::new();
    let pseudo = Pseudo {
        method: parts.method.as_str().as_bytes(),
        target: parts.uri.path_and_query().map_or(&b""[..], |target| target.as_str().as_bytes()),
        authority: parts.uri.authority().map(|authority| authority.as_str().as_bytes()),
    };
    head.begin_list(&pseudo, &limits)?;
    for (name, value) in &parts.headers {
        head.push_listed(name.as_str().as_bytes(), value.as_bytes(), &limits)?;
    }
    head.end_list(content)?;
    Ok(head)
}
