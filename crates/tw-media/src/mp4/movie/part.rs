//! Requested part of a movie.

/// Requested part of a movie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Beginning, in milliseconds.
    pub(crate) start_ms: u64,
    /// Length, in milliseconds; 0 is up to the end.
    pub(crate) length_ms: u64,
    /// Choice of the first picture.
    pub(crate) begin: PartStart,
}

/// Choice of the beginning of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartStart {
    /// At the sample of that time, whether it can be shown without others or not.
    Exactly,
    /// At the key frame before it; an edit list hides what is in front of the time (`mp4_start_key_frame`).
    AtKeyFrame,
}

impl Part {
    /// The whole movie.
    pub(super) const WHOLE: Self = Self { start_ms: 0, length_ms: 0, begin: PartStart::Exactly };

    /// Returns `true` if it ends before the movie does.
    pub(super) fn has_end(&self) -> bool {
        self.length_ms > 0
    }

    /// Beginning in units of a time scale.
    pub(super) fn start(&self, timescale: u32) -> u64 {
        scaled(self.start_ms, timescale)
    }

    /// Rest of a duration.
    pub(super) fn rest(&self, duration: u64, timescale: u32) -> u64 {
        let rest = duration.saturating_sub(self.start(timescale));
        if self.has_end() { rest.min(scaled(self.length_ms, timescale)) } else { rest }
    }
}

/// Milliseconds in units of a time scale.
pub(super) fn scaled(ms: u64, timescale: u32) -> u64 {
    u64::try_from(u128::from(ms) * u128::from(timescale) / 1000).unwrap_or(u64::MAX)
}
