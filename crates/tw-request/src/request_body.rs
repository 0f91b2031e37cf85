//! Body of a request: read on demand from the client, or discarded.
//!
//! ```text
//! Source ─ read ──→ BodyBuffer  (memory up to client_body_buffer_size, then a temporary file)
//!    ├──── take ──→ a handler that pulls the body itself, also while the response is sent
//!    └──── drain ─→ discarded after the response, so that the connection can be used again
//! ```
//! The temporary file is removed with its owner.

mod error;
mod incoming_body;
mod progress;
pub mod read;

use std::ffi::CStr;
use std::rc::Rc;

use bytes::Bytes;
use tw_disk::{Account, File, JobClass, JobSource};
use tw_http::Framing;

pub use self::error::{BodyError, BodyLimits, Drained, InputError};
pub use self::incoming_body::{BodyInput, IncomingBody, Piece, Received};
pub use self::progress::BodyProgress;
use super::body_buffer::{BodyBuffer, Reader};
use super::file_reads::Pieces;
use super::request_deadline::RequestDeadline;

/// Body of a request.
#[derive(Default)]
pub struct RequestBody {
    /// Source of the rest.
    source: Source,
    /// Part that was read.
    buffer: BodyBuffer,
    state: BodyState,
}

/// Source of a body. It can be read independently of the request.
#[derive(Default)]
pub enum Source {
    /// No body.
    #[default]
    None,
    /// The client.
    Client(Box<IncomingBody>),
    /// Body that was read before.
    Stored(Box<Reader>),
    /// Taken by a handler and not returned.
    Taken,
}

/// Availability of a body.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum BodyState {
    #[default]
    Wanted,
    /// Too large: the rest is discarded.
    Refused,
    /// Copy of another request's body, which the head announces.
    Copied,
    /// None: the head announces another request's body.
    Absent,
    /// Another request's body; variables show what that request had read when this one began.
    Borrowed,
}

impl Source {
    /// Body of these bytes.
    pub fn of_bytes(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::None } else { Self::Stored(Box::new(Reader::of(bytes))) }
    }

    /// Returns the next piece, at most `want` bytes; `None` at the end. Waits for the client or for the disk.
    ///
    /// Dropping the future loses no byte.
    ///
    /// # Errors
    /// Error of the client or the disk, after which no more pieces follow.
    pub async fn next(&mut self, want: usize, limits: BodyLimits) -> Result<Option<Bytes>, BodyError> {
        match self {
            Self::None | Self::Taken => Ok(None),
            Self::Client(body) => body.next(want, limits).await.map_err(BodyError::Client),
            Self::Stored(reader) => {
                let mut account = Account::new(JobClass::Hit, JobSource::NONE);
                reader.next(want, &mut account).await.map_err(BodyError::Disk)
            }
        }
    }

    /// Returns the next piece like [`next`](Self::next) if that does not wait, else `None`. A caller in a loop has to let other
    /// tasks run ([`CopyBudget`](tw_core::event_loop::CopyBudget)).
    ///
    /// # Errors
    /// Errors of [`next`](Self::next).
    pub fn at_hand(&mut self, want: usize, limits: BodyLimits) -> Option<Result<Option<Bytes>, BodyError>> {
        match self {
            Self::None | Self::Taken => Some(Ok(None)),
            Self::Client(body) => Some(body.at_hand(want, limits)?.map_err(BodyError::Client)),
            Self::Stored(reader) => Some(reader.at_hand(want)?.map_err(BodyError::Disk)),
        }
    }

    /// Returns true if the end of the body is unknown.
    fn is_broken(&self) -> bool {
        matches!(self, Self::Client(body) if body.input().is_broken())
    }

    /// Returns true if the client sends it.
    pub fn is_coming(&self) -> bool {
        matches!(self, Self::Client(_))
    }

    /// Returns true if a part has not been read.
    fn is_pending(&self) -> bool {
        match self {
            Self::None | Self::Stored(_) => false,
            Self::Client(body) => body.input().is_pending(),
            Self::Taken => true,
        }
    }
}

impl RequestBody {
    /// Forgets the body. Most requests have none.
    pub fn clear(&mut self) {
        if matches!(self.source, Source::None) && self.buffer.is_unused() {
            self.state = BodyState::default();
        } else {
            *self = Self::default();
        }
    }

    /// Sets the source.
    pub fn begin(&mut self, source: Source) {
        self.source = source;
    }

    /// Body of a request that the server itself makes, announced by its head.
    pub fn of_bytes(bytes: Bytes) -> Self {
        let mut buffer = BodyBuffer::default();
        buffer.push(bytes);
        Self { source: Source::None, buffer, state: BodyState::Copied }
    }

    /// Returns the source of a body that was read to its end; `None` also if the end is unknown.
    pub fn finished(&mut self) -> Option<&mut Source> {
        (!self.is_pending() && !self.source.is_broken()).then_some(&mut self.source)
    }

    // DIFF(nginx): what a subrequest announces is what it sends: nothing, where nginx announces the client's body and sends
    // it if it was read by then.
    /// No body, although the head, which is that of another request, may announce one.
    pub fn absent() -> Self {
        Self { state: BodyState::Absent, ..Self::default() }
    }

    /// No body, like [`absent`](Self::absent), but variables show the body of `parent` if that was read to its end.
    pub fn borrowed_from(parent: &Self) -> Self {
        let buffer = if parent.is_pending() || !parent.buffer.is_settled() {
            BodyBuffer::default()
        } else {
            parent.buffer.copy()
        };
        Self { state: BodyState::Borrowed, source: Source::None, buffer }
    }

    /// Copy for a background request; bytes in memory are copied. A body that was not read to its end is absent there.
    pub fn copy(&self) -> Self {
        if self.is_pending()
            || matches!(self.state, BodyState::Refused | BodyState::Absent | BodyState::Borrowed)
        {
            return Self::absent();
        }
        Self { source: Source::None, buffer: self.buffer.copy(), state: BodyState::Copied }
    }

    /// Framing towards an upstream server of a body announced with this framing: with the length, if that is known now.
    pub fn framing(&self, announced: Framing) -> Framing {
        match (self.state, announced) {
            (_, Framing::None) | (BodyState::Absent | BodyState::Borrowed, _) => Framing::None,
            // Discarded.
            (BodyState::Refused, _) => Framing::Length(0),
            (BodyState::Copied, _) => Framing::Length(self.buffer.len()),
            // Pieces that were not kept are gone.
            (_, Framing::Chunked | Framing::Length(_)) if !self.is_pending() => {
                Framing::Length(self.buffer.len())
            }
            (_, announced) => announced,
        }
    }

    /// Takes the body to pull it. A body that was read can be taken again; the rest of another belongs to the caller, and until it
    /// is given back the begin of the next request is unknown. A refused body is empty.
    pub fn take(&mut self) -> Source {
        if matches!(self.state, BodyState::Refused | BodyState::Borrowed) {
            return Source::None;
        }
        if self.source.is_pending() {
            return std::mem::replace(&mut self.source, Source::Taken);
        }
        if self.buffer.is_empty() { Source::None } else { Source::Stored(Box::new(self.buffer.reader())) }
    }

    /// Takes back the source that [`take`](Self::take) returned.
    pub fn give_back(&mut self, source: Source) {
        if matches!(self.source, Source::Taken) {
            self.source = source;
        }
    }

    /// Keeps the pieces seen by the handler that took the body, if they are the whole body.
    pub fn keep(&mut self, pieces: Pieces) {
        if self.buffer.is_empty() && !self.is_pending() && self.received() == pieces.len() as u64 {
            self.buffer.append(pieces);
        }
    }

    /// Returns true if the body can be taken from its beginning.
    pub fn is_kept(&self) -> bool {
        match &self.source {
            _ if self.state == BodyState::Refused => true,
            Source::None | Source::Stored(_) => true,
            Source::Client(body) => {
                !body.input().is_pending() && body.input().received() == self.buffer.len()
            }
            Source::Taken => false,
        }
    }

    /// Returns true if a part has not been read.
    pub fn is_pending(&self) -> bool {
        self.source.is_pending()
    }

    /// Returns true if there is a source, even at its end. Without one, [`read::read`] does nothing.
    pub fn has_source(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// Returns true if the client awaits `100 Continue` and may not send the body: the begin of its next request is unknown.
    pub fn may_not_come(&self) -> bool {
        match &self.source {
            Source::Client(body) => body.input().may_not_come(),
            Source::None | Source::Stored(_) | Source::Taken => false,
        }
    }

    /// Bytes received.
    pub fn received(&self) -> u64 {
        match &self.source {
            Source::Client(body) => body.input().received(),
            Source::None | Source::Stored(_) | Source::Taken => 0,
        }
    }

    /// Notes the bytes that are received from now on in `progress`, too, until the end of the body.
    pub fn note_progress(&mut self, progress: BodyProgress) {
        if let Source::Client(body) = &mut self.source {
            body.note_progress(progress);
        }
    }

    /// Notes in `deadline` from now on whether the body waits for the client.
    pub fn note_waits(&mut self, deadline: &Rc<RequestDeadline>) {
        if let Source::Client(body) = &mut self.source {
            body.note_waits(deadline.clone());
        }
    }

    /// Bytes received, with the framing of a chunked body.
    pub fn wire(&self) -> u64 {
        match &self.source {
            Source::Client(body) => body.input().wire(),
            Source::None | Source::Stored(_) | Source::Taken => 0,
        }
    }

    /// The whole body, if it is in memory.
    pub fn memory(&self) -> Option<&[u8]> {
        self.buffer.memory().filter(|memory| !self.is_pending() && !memory.is_empty())
    }

    /// Name of the temporary file.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.named_file().map(|(_, name)| name.to_bytes())
    }

    /// File of a body that was read by [`read::read_to_file`], with its name.
    pub fn named_file(&self) -> Option<(&File, &CStr)> {
        self.buffer.named_file()
    }

    /// Keeps the file of the body at the end of the request: it has another name now, or none.
    pub fn give_file_away(&mut self) {
        self.buffer.keep_file();
    }
}
