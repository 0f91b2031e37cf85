//! Body of a response. Pulled, never pushed: the sender asks for the next piece when there is room.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::Context;

use bytes::Bytes;
use tw_connect::relay::RelayEnd;

use crate::files::OpenFile;
use crate::plan::LocalFuture;
use crate::request::Request;

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
    Pull(Box<dyn Pull>),
    /// No body: after the head the connection belongs to another protocol (101).
    Upgraded(Box<dyn Upgraded>),
}

/// Protocol of a connection after a switch.
pub trait Upgraded {
    /// Runs until it is over. `client` is the connection or the stream of the client, `early` what it has sent behind its request.
    fn run<'a>(
        self: Box<Self>,
        r: &'a mut Request,
        client: &'a dyn RelayEnd,
        early: Bytes,
    ) -> LocalFuture<'a, ()>;
}

/// The error of a body that was logged already.
#[derive(Debug)]
pub struct AlreadyLogged;

impl fmt::Display for AlreadyLogged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("logged before")
    }
}

impl std::error::Error for AlreadyLogged {}

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
pub trait Pull {
    /// The next piece of the body of `r`, at most about `want` bytes; `None` at the end, however often it is asked for.
    /// An empty piece is none yet, and lets others run. Dropping the future is safe.
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>>;

    /// Bytes still to come, if known.
    fn remaining(&self) -> Option<u64> {
        None
    }

    /// A second stream, of the `len` bytes that follow the first `start`; `None` if that makes or reads any byte in front of
    /// them. `Range` asks for several, anywhere: where one costs what is in front of it, few short requests cost a lot.
    fn part(&self, _start: u64, _len: u64) -> Option<Box<dyn Pull>> {
        None
    }

    /// Goes on while the client does not take what was made, as far as that needs no waiting: what reads from a server that is
    /// faster than the client lets go of the server. The task is woken when there is more to do.
    fn run_ahead(&mut self, _cx: &mut Context<'_>) {}

    /// Returns true if the client gets pieces before more is waited for (an upstream that is not buffered): a filter then holds
    /// nothing back while there is no next piece.
    fn flushes(&self) -> bool {
        false
    }

    /// Returns true if the head waits for the first piece. If that fails, nothing is sent, and the connection is closed.
    fn holds_head(&self) -> bool {
        false
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Empty => "Empty",
            Self::Bytes(_) => "Bytes",
            Self::File(_) => "File",
            Self::Parts(_) => "Parts",
            Self::Pull(_) => "Pull",
            Self::Upgraded(_) => "Upgraded",
        };
        write!(f, "Body::{kind}({:?} bytes)", self.len())
    }
}

impl Body {
    /// Bytes still to come; `None` when only the end will tell.
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Empty | Self::Upgraded(_) => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(span) => Some(span.len),
            Self::Parts(parts) => parts.iter().map(Self::len).sum(),
            Self::Pull(stream) => stream.remaining(),
        }
    }

    /// All of it, if it is in memory as it is; copies nothing.
    pub fn in_memory(&self) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes.clone()),
            Self::File(span) => span.content(),
            Self::Empty | Self::Parts(_) | Self::Pull(_) | Self::Upgraded(_) => None,
        }
    }

    /// Returns a second body with the `len` bytes after the first `start`, or fewer if the body ends earlier. `None`
    /// if the bytes in front of them would have to be made, see [`Pull::part`].
    pub fn part(&self, start: u64, len: u64) -> Option<Self> {
        let at = |n: u64, of: usize| usize::try_from(n).unwrap_or(usize::MAX).min(of);
        match self {
            Self::Empty | Self::Upgraded(_) => Some(Self::Empty),
            Self::Bytes(bytes) => {
                let (start, end) = (at(start, bytes.len()), at(start.saturating_add(len), bytes.len()));
                Some(Self::Bytes(bytes.slice(start..end)))
            }
            Self::File(span) => {
                let skipped = start.min(span.len);
                let offset = span.offset + skipped;
                let len = len.min(span.len - skipped);
                Some(Self::File(FileSpan { file: span.file.clone(), offset, len }))
            }
            Self::Parts(parts) => {
                let mut skip = start;
                let mut remaining = len;
                let mut bodies = VecDeque::new();
                for part in parts {
                    if remaining == 0 {
                        break;
                    }
                    let size = part.len()?;
                    let taken = size.saturating_sub(skip).min(remaining);
                    if taken > 0 {
                        bodies.push_back(part.part(skip, taken)?);
                    }
                    skip = skip.saturating_sub(size);
                    remaining -= taken;
                }
                Some(Self::Parts(bodies))
            }
            Self::Pull(stream) => stream.part(start, len).map(Self::Pull),
        }
    }

    /// See [`Pull::run_ahead`].
    pub fn run_ahead(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::Empty | Self::Bytes(_) | Self::File(_) | Self::Upgraded(_) => {}
            Self::Parts(parts) => parts.iter_mut().for_each(|part| part.run_ahead(cx)),
            Self::Pull(stream) => stream.run_ahead(cx),
        }
    }

    /// See [`Pull::flushes`].
    pub fn flushes(&self) -> bool {
        match self {
            Self::Empty | Self::Bytes(_) | Self::File(_) | Self::Upgraded(_) => false,
            Self::Parts(parts) => parts.front().is_some_and(Self::flushes),
            Self::Pull(stream) => stream.flushes(),
        }
    }

    /// See [`Pull::holds_head`].
    pub fn holds_head(&self) -> bool {
        matches!(self, Self::Pull(stream) if stream.holds_head())
    }

    /// Returns true if no piece follows.
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
                Self::Empty | Self::Upgraded(_) => Ok(None),
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
                Self::Pull(stream) => stream.next(want, r).await,
            }
        })
    }
}

/// Body of a response to `HEAD`: no bytes, only their announced number.
pub struct AnnouncedLength(pub Option<u64>);

impl Pull for AnnouncedLength {
    fn next<'a>(&'a mut self, _: usize, _: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        self.0 = Some(0);
        Box::pin(async { Ok(None) })
    }

    fn remaining(&self) -> Option<u64> {
        self.0
    }
}

impl FileSpan {
    /// All of it, if the contents of the file are kept in memory.
    pub fn content(&self) -> Option<Bytes> {
        let content = self.file.content()?;
        let start = usize::try_from(self.offset).ok()?;
        let end = start.checked_add(usize::try_from(self.len).ok()?)?;
        (end <= content.len()).then(|| content.slice(start..end))
    }

    /// Number of leading bytes that may go out as they are read; others are compared with their checksums first.
    pub fn verified_len(&self) -> u64 {
        self.file.verified_len(self.offset, self.len)
    }

    /// Goes on behind the next `count` bytes.
    pub fn advance(&mut self, count: usize) {
        self.offset += count as u64;
        self.len -= count as u64;
    }

    async fn next(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        if self.len == 0 {
            return Ok(None);
        }
        let want = want.min(usize::try_from(self.len).unwrap_or(usize::MAX));
        let piece = self.file.read(self.offset, want, r).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.advance(piece.len());
        Ok(Some(piece))
    }
}
