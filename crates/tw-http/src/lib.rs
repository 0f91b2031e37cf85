//! HTTP without I/O and without a clock: heads, targets, framing, conditions, ranges, dates, error pages; as a server, and
//! towards origins.
//!
//! Everything here takes bytes and time as arguments and gives bytes back. What a peer sends can be wrong in
//! any way and never panics: `indexing_slicing` is denied and each parser has a fuzz target. nginx 1.31 is the
//! reference for how a malformed request is answered and for the words of the log line.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod base64;
pub mod chunked;
pub mod condition;
pub mod date;
pub mod escape;
pub mod fields;
pub mod head;
pub mod hop;
pub mod host;
pub mod known;
pub mod method;
pub mod num;
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
pub use head::{Content, Framing, HeadError, HeadLimits, ListSize, Progress, Pseudo, RequestHead};
pub use known::Known;
pub use method::{Method, Version};
pub use origin::{
    BodyDecoder, BodyError, OriginError, OriginHead, OriginLimits, Piece, RequestWriter, ResponseFraming,
    WriteError,
};
pub use priority::Priority;
pub use range::{ByteRange, MaxRanges, Multipart, RangeOutcome};
pub use response::{ConnectionField, EncodeContext, LocationBase, Memo, ResponseHead};
