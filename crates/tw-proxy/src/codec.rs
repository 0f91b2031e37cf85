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

pub use framing::BodyFraming;

use tw_connect::failure::UpstreamFailure;
use tw_connect::h2_pool::UpstreamStream;
use tw_request::upstream_response::UpstreamResponse;

/// Reads the response of an upstream server.
pub trait Codec: 'static {
    /// Returns true if requests of this protocol are streams of shared connections (HTTP/2).
    fn is_multiplexed(&self) -> bool {
        false
    }

    /// Reads what comes by this stream from now on: its content, and its news.
    fn attach(&mut self, _stream: &Rc<UpstreamStream>) {}

    /// Parses bytes from the front of `input` into an event; a head is written into `answer`. [`Event::NeedMore`]
    /// only when `input` is empty.
    ///
    /// # Errors
    /// Malformed response.
    fn read(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure>;

    /// The server has closed its side: the end of the body, if nothing else tells it.
    ///
    /// # Errors
    /// Something is missing.
    fn closed(&mut self) -> Result<(), UpstreamFailure>;

    /// Bytes of the body still to come, if known. After [`Event::Head`].
    fn remaining(&self) -> Option<u64>;

    /// Returns true if nothing more belongs to the response, as far as `input` tells; takes an end that is at hand from it.
    /// After [`Event::Head`], and after the last [`Event::Body`].
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

    /// Returns true if another request may be sent on the connection now that the body has ended.
    fn keeps_alive(&self) -> bool;

    /// Returns true for a CONNECT tunnel, which is open as soon as there is a connection: no head is sent, and none is read.
    fn is_connect(&self) -> bool {
        false
    }

    /// Returns true if a tunnel follows the head: after a switch of protocols (101) both sides send what they want.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Returns true if the client gets the trailer fields. After [`Event::Head`].
    fn passes_trailers(&self) -> bool {
        false
    }
}

/// Result of [`Codec::read`].
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
