//! How the end of a response is found, and whether its connection can be used again (RFC 9112 sections 6.3 and 9.3).

use super::OriginHead;
use crate::method::{Method, Version};
use crate::status;

/// How the end of a response body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// There is no body, whatever the fields say.
    None,
    /// `Content-Length`, in bytes; may be 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The connection ends with it.
    Close,
    /// No body, and no HTTP from here on: 101, and what answers CONNECT with success. Whoever asked for neither has an
    /// origin that makes no sense.
    Tunnel,
}

/// What the fields say of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    Nothing,
    Length(u64),
    Chunked,
}

pub(super) fn is_interim(status: u16) -> bool {
    matches!(status, 100..=199) && status != SWITCHING_PROTOCOLS
}

const SWITCHING_PROTOCOLS: u16 = 101;

impl OriginHead {
    /// How the body of the response to a request with this method is framed: the method that was sent, which may be another
    /// than the client's.
    pub fn framing(&self, method: Method) -> ResponseFraming {
        let status = self.status();
        if status == SWITCHING_PROTOCOLS || method == Method::Connect && matches!(status, 200..=299) {
            return ResponseFraming::Tunnel;
        }
        if method.is_head() || status::has_no_body(status) {
            return ResponseFraming::None;
        }
        match self.announced {
            Announced::Chunked => ResponseFraming::Chunked,
            Announced::Length(length) => ResponseFraming::Length(length),
            Announced::Nothing => ResponseFraming::Close,
        }
    }

    /// The value of `Content-Length`, also of a response that has no body (HEAD, 304).
    pub fn content_length(&self) -> Option<u64> {
        match self.announced {
            Announced::Length(length) => Some(length),
            Announced::Nothing | Announced::Chunked => None,
        }
    }

    /// Whether the origin keeps the connection of a response to a request with this method. It can be used for another
    /// request then, once the body was read to its end ([`BodyDecoder::is_done`](super::BodyDecoder::is_done)) and nothing
    /// came behind it. HTTP/1.0 never keeps it, as in nginx.
    pub fn keeps_alive(&self, method: Method) -> bool {
        let ends_by_itself =
            !matches!(self.framing(method), ResponseFraming::Close | ResponseFraming::Tunnel);
        ends_by_itself
            && !self.closes
            && self.version() >= Version::HTTP_11
            && !self.may_have_forbidden_body()
    }

    /// Whether the fields announce a body where none can be: an origin that is wrong about that may send one all the same,
    /// and it would be taken for the next response.
    // DIFF(nginx): nginx uses such a connection again.
    fn may_have_forbidden_body(&self) -> bool {
        self.status() == 204 && !matches!(self.announced, Announced::Nothing | Announced::Length(0))
    }
}
