//! Memory of encoders.

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Window of an encoder for a body whose length is not known.
    ///
    /// Assumed length of a body of unknown length: it may be one line, and there may be many such bodies. A longer body is
    /// compressed within a window of this size.
    pub(super) const UNKNOWN_LENGTH_MAX: u64 = 256 << 10, bytes, "repetitions farther apart are not found";
}

/// Bytes of memory of one encoder, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Between two pieces of a body.
    pub(crate) kept: u64,
    /// At any time, as while it works.
    pub(crate) peak: u64,
}
