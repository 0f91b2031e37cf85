//! What a response carries. Pulled, never pushed: whoever writes to the client asks for the next piece when there is room.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::Bytes;

use super::files::OpenFile;
use super::plan::LocalFuture;
use super::request::Request;

/// A response body. Plain files and bytes are sent without going through [`Body::next`].
#[derive(Default)]
pub enum Body {
    /// Nothing.
    #[default]
    Empty,
    /// Bytes in memory.
    Bytes(Bytes),
    /// A span of a file.
    File(FileSpan),
    /// Several bodies after each other (multipart/byteranges).
    Parts(VecDeque<Body>),
    /// Whatever a filter or an upstream makes.
    Stream(Box<dyn Stream>),
}

/// A span of an open file.
#[derive(Clone)]
pub struct FileSpan {
    /// The file.
    pub file: Rc<OpenFile>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A body that makes its bytes as they are asked for.
pub trait Stream {
    /// The next piece of the body of `r`, at most about `want` bytes; `None` at the end, however often it is asked for.
    /// An empty piece is none yet, and lets others run. Dropping the future is safe.
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>>;

    /// Bytes still to come, if known.
    fn remaining(&self) -> Option<u64> {
        None
    }

    /// A second stream with the same contents, where that costs nothing (`Range` asks for several parts).
    fn share(&self) -> Option<Box<dyn Stream>> {
        None
    }

    /// Whether what was made is to reach the client before more is waited for (an upstream that is not buffered): a filter
    /// then holds nothing back while there is no next piece.
    fn flushes(&self) -> bool {
        false
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::Empty => "Empty",
            Self::Bytes(_) => "Bytes",
            Self::File(_) => "File",
            Self::Parts(_) => "Parts",
            Self::Stream(_) => "Stream",
        };
        write!(f, "Body::{kind}({:?} bytes)", self.len())
    }
}

impl Body {
    /// Bytes still to come; `None` when only the end will tell.
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(span) => Some(span.len),
            Self::Parts(parts) => parts.iter().map(Self::len).sum(),
            Self::Stream(stream) => stream.remaining(),
        }
    }

    /// The `len` bytes that follow the first `start`. What is not there is not in it.
    #[must_use]
    pub fn slice(self, start: u64, len: u64) -> Self {
        let at = |n: u64, of: usize| usize::try_from(n).unwrap_or(usize::MAX).min(of);
        match self {
            Self::Empty => Self::Empty,
            Self::Bytes(bytes) => {
                let (start, end) = (at(start, bytes.len()), at(start.saturating_add(len), bytes.len()));
                Self::Bytes(bytes.slice(start..end))
            }
            Self::File(mut span) => {
                let skipped = start.min(span.len);
                span.offset += skipped;
                span.len = len.min(span.len - skipped);
                Self::File(span)
            }
            Self::Parts(parts) => {
                let (mut skip, mut left) = (start, len);
                let mut wanted = VecDeque::new();
                for part in parts {
                    let Some(size) = part.len() else { break };
                    let taken = size.saturating_sub(skip).min(left);
                    if taken > 0 {
                        wanted.push_back(part.slice(skip, taken));
                    }
                    skip = skip.saturating_sub(size);
                    left -= taken;
                }
                Self::Parts(wanted)
            }
            Self::Stream(inner) => Self::Stream(Box::new(Sliced { inner, skip: start, left: len })),
        }
    }

    /// A second body with the same contents, where that costs nothing: most streams can be read once only.
    pub fn share(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Bytes(bytes) => Some(Self::Bytes(bytes.clone())),
            Self::File(span) => Some(Self::File(span.clone())),
            Self::Parts(parts) => parts.iter().map(Self::share).collect::<Option<_>>().map(Self::Parts),
            Self::Stream(stream) => stream.share().map(Self::Stream),
        }
    }

    /// See [`Stream::flushes`].
    pub fn flushes(&self) -> bool {
        match self {
            Self::Empty | Self::Bytes(_) | Self::File(_) => false,
            Self::Parts(parts) => parts.front().is_some_and(Self::flushes),
            Self::Stream(stream) => stream.flushes(),
        }
    }

    /// Whether nothing will come.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The next piece, at most about `want` bytes; `None` at the end. May wait for the disk.
    ///
    /// Errors: what the disk says; `UnexpectedEof` when a file became shorter than promised.
    pub fn next<'a>(
        &'a mut self,
        want: usize,
        r: &'a mut Request,
    ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            match self {
                Self::Empty => Ok(None),
                Self::Bytes(bytes) => {
                    let piece = bytes.split_to(want.min(bytes.len()));
                    Ok((!piece.is_empty()).then_some(piece))
                }
                Self::File(span) => span.next(want, r).await,
                Self::Parts(parts) => {
                    while let Some(first) = parts.front_mut() {
                        if let Some(piece) = first.next(want, r).await? {
                            return Ok(Some(piece));
                        }
                        parts.pop_front();
                    }
                    Ok(None)
                }
                Self::Stream(stream) => stream.next(want, r).await,
            }
        })
    }
}

/// A part of what a stream makes.
struct Sliced {
    inner: Box<dyn Stream>,
    skip: u64,
    left: u64,
}

impl Stream for Sliced {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            if self.left == 0 {
                return Ok(None);
            }
            let Some(mut piece) = self.inner.next(want, r).await? else { return Ok(None) };
            let skipped = piece.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
            self.skip -= skipped as u64;
            // What is in front is dropped, what is behind is cut off.
            let _ = piece.split_to(skipped);
            piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= piece.len() as u64;
            Ok(Some(piece))
        })
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.left)
    }

    fn flushes(&self) -> bool {
        self.inner.flushes()
    }
}

impl FileSpan {
    async fn next(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        if self.len == 0 {
            return Ok(None);
        }
        let want = want.min(usize::try_from(self.len).unwrap_or(usize::MAX));
        let piece = self.file.read(self.offset, want, r).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += piece.len() as u64;
        self.len -= piece.len() as u64;
        Ok(Some(piece))
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::testing::with_request;

    /// Makes these pieces.
    struct Pieces(VecDeque<&'static [u8]>);

    impl Stream for Pieces {
        fn next<'a>(
            &'a mut self,
            _: usize,
            _: &'a mut Request,
        ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
            Box::pin(async { Ok(self.0.pop_front().map(Bytes::from_static)) })
        }

        fn remaining(&self) -> Option<u64> {
            Some(self.0.iter().map(|piece| piece.len() as u64).sum())
        }
    }

    fn parts() -> Body {
        let bytes = |text: &'static str| Body::Bytes(Bytes::from_static(text.as_bytes()));
        Body::Parts(
            [bytes("ab"), Body::Empty, Body::Parts([bytes("cd"), bytes("")].into()), bytes("ef")].into(),
        )
    }

    fn stream() -> Body {
        Body::Stream(Box::new(Pieces(["a", "bcd", "", "ef"].map(str::as_bytes).into())))
    }

    fn read(r: &mut Request, mut body: Body, want: usize) -> String {
        let mut all = Vec::new();
        loop {
            let left = body.len().unwrap();
            let Poll::Ready(piece) =
                body.next(want, r).as_mut().poll(&mut Context::from_waker(Waker::noop()))
            else {
                panic!("nothing here waits");
            };
            let Some(piece) = piece.unwrap() else { break };
            assert_eq!(body.len().unwrap(), left - piece.len() as u64);
            all.extend_from_slice(&piece);
        }
        assert!(body.is_empty());
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn any_part_of_any_body() {
        with_request("server { }", "GET / HTTP/1.0\r\n\r\n", |r| {
            for (start, len, expected) in
                [(0, 6, "abcdef"), (1, 4, "bcde"), (2, 2, "cd"), (5, 9, "f"), (3, 0, ""), (7, 1, "")]
            {
                for want in [1, 2, 100] {
                    assert_eq!(read(r, parts().slice(start, len), want), expected, "{start} {len}");
                }
                let of_bytes = Body::Bytes(Bytes::from_static(b"abcdef")).slice(start, len);
                assert_eq!(read(r, of_bytes, 4), expected, "{start} {len}");
                if start + len <= 6 {
                    assert_eq!(read(r, stream().slice(start, len), 4), expected, "{start} {len}");
                }
            }
            assert_eq!(read(r, parts().share().unwrap(), 9), "abcdef");
            assert!(stream().share().is_none());
        });
    }
}
