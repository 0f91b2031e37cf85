//! The languages that upstream servers speak. A codec turns bytes into events and does no I/O; everything else of an
//! exchange is the same for all.

pub mod connect_tunnel;
pub mod fastcgi;
pub mod framing;
pub mod http1;
pub mod http2;
pub mod memcached;

use std::rc::Rc;

use bytes::Bytes;

pub use framing::Framing;

use super::failure::UpstreamFailure;
use super::h2_pool::Stream;
use crate::http::upstream_response::UpstreamResponse;

/// Reads the response of an upstream server.
pub trait Codec: 'static {
    /// Whether requests in this language are carried by trunks, each as a stream.
    fn is_carried(&self) -> bool {
        false
    }

    /// Reads what comes by this stream from now on: its content, and its news.
    fn follow(&mut self, _stream: &Rc<Stream>) {}

    /// Takes bytes from the front of `input` and says what they are; a head is written into `answer`. [`Event::NeedMore`]
    /// only when `input` is empty.
    ///
    /// # Errors
    /// What is no response.
    fn read(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure>;

    /// The server has closed its side: the end of the body, if nothing else tells it.
    ///
    /// # Errors
    /// Something is missing.
    fn closed(&mut self) -> Result<(), UpstreamFailure>;

    /// Bytes of the body still to come, if known. After [`Event::Head`].
    fn remaining(&self) -> Option<u64>;

    /// Whether nothing more belongs to the response, as far as `input` tells, from which an end that is at hand is taken. After
    /// [`Event::Head`], and after the last [`Event::Body`].
    fn ends(&mut self, _input: &mut Bytes, _answer: &mut UpstreamResponse) -> bool {
        self.remaining() == Some(0)
    }

    /// All of the body with its end, if `input` has it. After [`Event::Head`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn whole(
        &mut self,
        input: &mut Bytes,
        answer: &mut UpstreamResponse,
    ) -> Result<Option<Bytes>, UpstreamFailure> {
        match self.remaining() {
            Some(0) => Ok(Some(Bytes::new())),
            Some(len) if len <= input.len() as u64 => match self.read(input, answer)? {
                Event::Body(piece) => Ok(Some(piece)),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Whether another request may be sent on the connection now that the body has ended.
    fn keeps_alive(&self) -> bool;

    /// Whether there is a tunnel as soon as there is a connection: the server is sent no head, and none is read of it.
    fn opens_at_once(&self) -> bool {
        false
    }

    /// Whether what follows the head is neither a body nor this language: both sides may say what they want.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Whether the client gets what fields may follow the body. After [`Event::Head`].
    fn passes_trailers(&self) -> bool {
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
