//! Framing of a response, and reuse of its connection (RFC 9112 sections 6.3 and 9.3).

use super::OriginHead;
use crate::method::{Method, Version};
use crate::status;

/// Framing of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body, whatever the fields announce.
    None,
    /// `Content-Length`, in bytes; may be 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The connection ends with it.
    Close,
    /// No body, and no HTTP from here on: 101, or a successful response to CONNECT. Without such a request it is an
    /// error of the origin.
    Tunnel,
}

/// Framing announced by the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnouncedFraming {
    Nothing,
    Length(u64),
    Chunked,
}

pub(super) fn is_interim(status: u16) -> bool {
    matches!(status, 100..=199) && status != SWITCHING_PROTOCOLS
}

const SWITCHING_PROTOCOLS: u16 = 101;

impl OriginHead {
    /// Framing of the response to a request with this method: the method that was sent, which may differ from the
    /// client's.
    pub fn framing(&self, method: Method) -> ResponseFraming {
        let status = self.status();
        if status == SWITCHING_PROTOCOLS || method == Method::Connect && matches!(status, 200..=299) {
            return ResponseFraming::Tunnel;
        }
        if method.is_head() || status::has_no_body(status) {
            return ResponseFraming::None;
        }
        match self.announced {
            AnnouncedFraming::Chunked => ResponseFraming::Chunked,
            AnnouncedFraming::Length(length) => ResponseFraming::Length(length),
            AnnouncedFraming::Nothing => ResponseFraming::Close,
        }
    }

    /// The value of `Content-Length`, also of a response that has no body (HEAD, 304).
    pub fn content_length(&self) -> Option<u64> {
        match self.announced {
            AnnouncedFraming::Length(length) => Some(length),
            AnnouncedFraming::Nothing | AnnouncedFraming::Chunked => None,
        }
    }

    /// Returns `true` if the origin keeps the connection after a response to a request with this method. It can then
    /// be reused once the body was read to its end ([`BodyDecoder::is_done`](super::BodyDecoder::is_done)) and no
    /// bytes followed. HTTP/1.0 never keeps it, as in nginx.
    pub fn keeps_alive(&self, method: Method) -> bool {
        let ends_by_itself =
            !matches!(self.framing(method), ResponseFraming::Close | ResponseFraming::Tunnel);
        ends_by_itself
            && !self.closes
            && self.version() >= Version::HTTP_11
            && !self.may_have_forbidden_body()
    }

    /// Returns `true` if the fields announce a body where none is allowed: a faulty origin may send one nevertheless,
    /// and it would be taken for the next response.
    // DIFF(nginx): nginx uses such a connection again.
    fn may_have_forbidden_body(&self) -> bool {
        self.status() == 204
            && !matches!(self.announced, AnnouncedFraming::Nothing | AnnouncedFraming::Length(0))
    }
}
