//! What a response carries. Pulled, never pushed: whoever writes to the client asks for the next piece when there is room.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::Bytes;

use super::files::OpenFile;
use super::plan::LocalFuture;
use tw_disk::{Account, Disk};

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

/// Where a body that is read piece by piece gets what it needs from the disk.
pub struct Source<'a> {
    /// The disk of the location.
    pub disk: &'a Disk,
    /// The request's account of disk time.
    pub account: &'a mut Account,
}

/// A body that makes its bytes as they are asked for.
pub trait Stream {
    /// The next piece, at most about `want` bytes; `None` at the end. Dropping the future is safe.
    fn next<'a>(&'a mut self, want: usize, source: Source<'a>) -> LocalFuture<'a, io::Result<Option<Bytes>>>;

    /// Bytes still to come, if known.
    fn remaining(&self) -> Option<u64> {
        None
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
        mut source: Source<'a>,
    ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            match self {
                Self::Empty => Ok(None),
                Self::Bytes(bytes) => {
                    let piece = bytes.split_to(want.min(bytes.len()));
                    Ok((!piece.is_empty()).then_some(piece))
                }
                Self::File(span) => span.next(want, &mut source).await,
                Self::Parts(parts) => {
                    while let Some(first) = parts.front_mut() {
                        let part = Source { disk: source.disk, account: &mut *source.account };
                        if let Some(piece) = first.next(want, part).await? {
                            return Ok(Some(piece));
                        }
                        parts.pop_front();
                    }
                    Ok(None)
                }
                Self::Stream(stream) => stream.next(want, source).await,
            }
        })
    }
}

impl FileSpan {
    async fn next(&mut self, want: usize, source: &mut Source<'_>) -> io::Result<Option<Bytes>> {
        if self.len == 0 {
            return Ok(None);
        }
        let want = want.min(usize::try_from(self.len).unwrap_or(usize::MAX));
        let piece = self.file.read(self.offset, want, source).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += piece.len() as u64;
        self.len -= piece.len() as u64;
        Ok(Some(piece))
    }
}
