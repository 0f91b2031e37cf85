//! The languages that upstream servers speak. A codec turns bytes into events and does no I/O; everything else of an
//! exchange is the same for all.

pub mod http1;

use bytes::Bytes;
use tw_http::Fields;
use tw_http::chunked::{BODY_END, CHUNK_END, ChunkHead};

use super::fault::Fault;

/// Reads the response of an upstream server.
pub trait Codec: 'static {
    /// Takes bytes from the front of `input` and says what they are; a head is written into `answer`. [`Event::NeedMore`]
    /// only when `input` is empty.
    ///
    /// # Errors
    /// What is no response.
    fn read(&mut self, input: &mut Bytes, answer: &mut Answer) -> Result<Event, Fault>;

    /// The server has closed its side: the end of the body, if nothing else tells it.
    ///
    /// # Errors
    /// Something is missing.
    fn closed(&mut self) -> Result<(), Fault>;

    /// Bytes of the body still to come, if known. After [`Event::Head`].
    fn remaining(&self) -> Option<u64>;

    /// Whether another request may be sent on the connection now that the body has ended.
    fn keeps_alive(&self) -> bool;

    /// Whether what follows the head is neither a body nor this language: both sides may say what they want.
    fn is_tunnel(&self) -> bool {
        false
    }
}

/// What a codec has read.
#[derive(Debug)]
pub enum Event {
    /// Everything was taken, and more is to come.
    NeedMore,
    /// A head that is followed by another one (1xx), written into the answer.
    Interim,
    /// The head of the response, written into the answer.
    Head,
    /// Bytes of the body.
    Body(Bytes),
    /// The body is complete. What is left of the input does not belong to it.
    End,
}

/// The response of an upstream server, as far as it was read.
#[derive(Debug, Default)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Code and reason as they were sent, if the reason is not the usual one; else empty.
    pub status_line: Bytes,
    /// Bytes of the body as they were announced, also if there is none (HEAD, 304).
    pub content_length: Option<u64>,
    /// The fields as they were sent.
    pub fields: Fields,
    /// The fields behind the body.
    pub trailers: Fields,
    /// What is odd about the head, for the error log at `warn`.
    pub remarks: Vec<Box<str>>,
}

impl Answer {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.status_line = Bytes::new();
        self.content_length = None;
        self.fields.clear();
        self.trailers.clear();
        self.remarks.clear();
    }
}

/// How the body of a request is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The head told its length.
    Plain,
    /// Chunks.
    Chunked,
}

impl Framing {
    /// What goes before and behind a piece of this size.
    pub(super) fn around(self, size: usize) -> (Bytes, Bytes) {
        match self {
            Self::Plain => (Bytes::new(), Bytes::new()),
            Self::Chunked => {
                let head = Bytes::copy_from_slice(ChunkHead::new(size as u64).as_bytes());
                (head, Bytes::from_static(CHUNK_END))
            }
        }
    }

    /// What ends the body.
    pub(super) fn end(self) -> Bytes {
        match self {
            Self::Plain => Bytes::new(),
            Self::Chunked => Bytes::from_static(BODY_END),
        }
    }
}
