//! What carries frames of HTTP/2, to a client or to an upstream server, as the crate `h2` reads and writes it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that gathers what is written, until it has nothing more to do for now.
pub(crate) trait Gathers {
    /// Reads what is there.
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Takes what is to be written, as much of it as there is room for.
    fn poll_write(&self, cx: &mut Context<'_>, given: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Writes what was gathered. Ready when all of it has left.
    fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Nothing more is written. A peer that was faster has ended it already.
    fn end(&self);
}

/// It, for the crate, which owns what it is given.
pub(crate) struct Frames<T>(pub(crate) Rc<T>);

impl<T: Gathers> AsyncRead for Frames<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }
}

impl<T: Gathers> AsyncWrite for Frames<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was gathered leaves when the connection has nothing more to do for now.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_out(cx))?;
        self.0.end();
        Poll::Ready(Ok(()))
    }
}
