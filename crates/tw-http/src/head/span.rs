//! Part of the buffer of a head.

/// A piece of the buffer, counted from the first byte of the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    pub(crate) const NOTHING: Span = Span { start: 0, end: 0 };

    /// Offsets beyond 4 GiB cannot be: the limits of a head are far below.
    #[inline]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Span { start: start as u32, end: end as u32 }
    }

    #[inline]
    pub(crate) const fn start(self) -> usize {
        self.start as usize
    }

    #[inline]
    pub(crate) const fn end(self) -> usize {
        self.end as usize
    }

    #[inline]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or(b"")
    }
}
