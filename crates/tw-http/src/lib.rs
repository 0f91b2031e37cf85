//! HTTP without I/O or a clock: heads, targets, framing, conditions, ranges, dates, error pages; for the server side,
//! and for the client side towards origins.
//!
//! Everything here takes bytes and time as arguments and returns bytes. Input from a peer can be malformed in any way
//! and never panics: `indexing_slicing` is denied and each parser has a fuzz target. nginx 1.31 is the reference for
//! the response to a malformed request and for the text of the log line.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod base64;
pub mod chunked;
pub mod condition;
pub mod date;
pub mod escape;
pub mod fields;
pub mod head;
pub mod header_name;
pub mod hop;
pub mod host;
mod limits;
pub mod method;
pub mod origin;
pub mod priority;
pub mod range;
pub mod response;
mod scan;
pub mod status;
pub mod status_page;
pub mod target;

pub use chunked::{Chunk, ChunkError, ChunkHead, ChunkedDecoder, Trailers};
pub use condition::{ConditionOutcome, Conditions, Etag, IfModifiedSince, Precedence, Validators};
pub use escape::{Escape, Unescape};
pub use fields::{Fields, Name, Value};
pub use head::{Content, Framing, HeadError, HeadLimits, ListSize, Progress, PseudoFields, RequestHead};
pub use header_name::HeaderName;
pub use limits::LIMITS;
pub use method::{Method, Version};
pub use origin::{
    BodyDecoder, BodyError, OriginError, OriginHead, OriginLimits, Piece, RequestWriter, ResponseFraming,
    WriteError,
};
pub use priority::Priority;
pub use range::{ByteRange, MaxRanges, Multipart, RangeOutcome};
pub use response::{ConnectionField, EncodeContext, HeadMemo, LocationBase, ResponseHead};
pub use tw_base::num;
