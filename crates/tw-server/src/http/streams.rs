//! Parts that HTTP/2 and HTTP/3 have in common: heads as lists of fields, bodies of streams, pieces of responses.

mod body_part;
mod intent;
pub(super) mod pieces;
mod protocol;
pub(super) mod request_head;
pub(super) mod response_head;
mod stream_body;
mod write_buffer;

pub(super) use self::body_part::BodyPart;
pub(super) use self::intent::Intent;
pub(super) use self::protocol::StreamProtocol;
pub(super) use self::stream_body::BodyStream;
pub use self::stream_body::StreamBody;
