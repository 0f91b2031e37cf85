//! Bytes of responses that a loop makes before their connections have tried to write them: new bytes are still in the caches of the
//! processor then.

use std::cell::Cell;
use std::rc::Rc;

/// Limit for all connections of a loop until each has tried to write its part.
pub(super) const MADE_MAX: usize = 512 << 10;

/// Bytes of responses in HTTP/2 that a loop has made and that their connections have not tried to write. Copies share the number.
#[derive(Default, Clone)]
pub struct UntriedBytes(Rc<Cell<usize>>);

/// Amount of these bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeBytes {
    /// Less than [`MADE_MAX`].
    Little,
    Enough,
}

impl UntriedBytes {
    /// Counts bytes that were made.
    pub(super) fn add(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }

    /// Counts bytes that a connection has tried to write.
    pub(super) fn subtract(&self, bytes: usize) {
        self.0.set(self.0.get() - bytes);
    }

    /// Amount, compared with its limit.
    pub(super) fn amount(&self) -> MadeBytes {
        if self.0.get() < MADE_MAX { MadeBytes::Little } else { MadeBytes::Enough }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_loop_share_the_limit() {
        let bytes = UntriedBytes::default();
        let other = bytes.clone();
        bytes.add(MADE_MAX - 1);
        assert_eq!(other.amount(), MadeBytes::Little);
        other.add(1);
        assert_eq!(bytes.amount(), MadeBytes::Enough);
        bytes.subtract(MADE_MAX);
        assert_eq!(other.amount(), MadeBytes::Little);
    }
}
