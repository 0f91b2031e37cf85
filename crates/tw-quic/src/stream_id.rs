//! Stream IDs (RFC 9000, section 2.1).

use std::fmt;

use quinn_proto as engine;

/// ID of a stream: the two low bits tell its initiator and its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// Stream number `index` that the client has opened in both directions.
    pub const fn client_bidi(index: u64) -> Self {
        Self(index << 2)
    }

    /// ID from the number that travels.
    pub const fn from_value(value: u64) -> Self {
        Self(value)
    }

    /// The ID as it travels.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// Number of the stream among those of its kind.
    pub const fn index(self) -> u64 {
        self.0 >> 2
    }

    /// True if the client has opened it.
    pub const fn is_client_initiated(self) -> bool {
        self.0 & 1 == 0
    }

    /// True if both sides send.
    pub const fn is_bidi(self) -> bool {
        self.0 & 2 == 0
    }

    /// True if the server can read from it.
    pub(crate) const fn can_be_read(self) -> bool {
        self.is_bidi() || self.is_client_initiated()
    }

    /// True if the server can write to it.
    pub(crate) const fn can_be_written(self) -> bool {
        self.is_bidi() || !self.is_client_initiated()
    }

    pub(crate) fn engine(self) -> engine::StreamId {
        let initiator = match self.is_client_initiated() {
            true => engine::Side::Client,
            false => engine::Side::Server,
        };
        let dir = if self.is_bidi() { engine::Dir::Bi } else { engine::Dir::Uni };
        engine::StreamId::new(initiator, dir, self.index())
    }
}

impl From<engine::StreamId> for StreamId {
    fn from(id: engine::StreamId) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
