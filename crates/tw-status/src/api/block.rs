//! Blocks that the API shows.

use super::response::ApiError;

/// Block that upstream groups stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Http,
    Stream,
    Mail,
}

/// Block whose servers have zones of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionBlock {
    Stream,
    Mail,
}

impl Block {
    pub(super) const ALL: [(&'static str, Self); 3] =
        [("http", Self::Http), ("stream", Self::Stream), ("mail", Self::Mail)];

    /// The block of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(candidate, _)| *candidate == name).map(|(_, block)| block)
    }

    /// The block, if its servers have zones of sessions.
    pub(super) fn of_sessions(self) -> Result<SessionBlock, ApiError> {
        match self {
            Self::Http => Err(ApiError::NO_PATH),
            Self::Stream => Ok(SessionBlock::Stream),
            Self::Mail => Ok(SessionBlock::Mail),
        }
    }

    /// Names of the kinds of objects in it.
    pub(super) fn contents(self) -> [&'static str; 3] {
        match self {
            Self::Http => ["caches", "keyvals", "upstreams"],
            Self::Stream | Self::Mail => ["keyvals", "server_zones", "upstreams"],
        }
    }
}
