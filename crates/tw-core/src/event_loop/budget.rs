//! Budget of one turn of the loop for copying bodies, so that other connections have their share.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::SCRATCH_SIZE;
use super::bulk_queue::{BulkQueue, RUN_MAX};

/// Approximate time that copying as much takes.
const TURN_COPY_TIME: Duration = Duration::from_millis(1);

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of large bodies that one turn of a loop gives to sockets.
    ///
    /// Bytes of files that one turn gives to sockets before it ends: eight buffers, about a millisecond.
    const TURN_COPY_MAX: usize = 8 * SCRATCH_SIZE, bytes, "the other connections have their turn first";
    /// Bytes of one response that do not wait behind the large bodies of other connections.
    ///
    /// Size from which a response is large: it then waits in the [bulk queue](CopyBudget::poll_bulk) before each piece.
    pub const BULK_MIN: usize = 64 << 10, bytes,
        "the rest is sent piece by piece, in the order of those who wait; what has become ready meanwhile goes before each piece";
    /// Pieces of large bodies that one HTTP/2 connection sends before the large bodies of other connections.
    constant count RUN_MAX, "the other connections have their turn first";
}

/// Bytes that the current turn has copied from files to sockets.
pub struct CopyBudget {
    /// Start of the turn, and the bytes copied in it.
    turn: Cell<(Instant, usize)>,
    /// Tasks that wait to send a piece of a large body.
    pub(super) line: Rc<BulkQueue>,
}

impl CopyBudget {
    pub(super) fn new() -> Self {
        Self { turn: Cell::new((tw_rt::clock::now(), 0)), line: Rc::default() }
    }

    /// Returns true if this turn may still copy from files to sockets, and then counts `bytes` as copied. Other
    /// connections so wait for about a millisecond at most.
    pub fn may_copy(&self, bytes: usize) -> bool {
        self.may_copy_in(tw_rt::clock::now(), bytes)
    }

    /// Counts `bytes` as copied. If this turn has copied enough, waits for the next one; each sender may copy one
    /// piece in each turn, however many there are.
    pub async fn spend(&self, bytes: usize) {
        if !self.may_copy(bytes) {
            tw_rt::yield_now().await;
        }
    }

    /// Counts `bytes` as copied, whatever this turn has copied before.
    pub fn spent(&self, bytes: usize) {
        let turn = tw_rt::clock::now();
        self.turn.set((turn, self.copied(turn).saturating_add(bytes)));
    }

    /// Returns true if this turn may copy another piece for the bulk queue. The loop polls for new events after each
    /// buffer.
    pub(super) fn may_go_on(&self) -> bool {
        self.copied(tw_rt::clock::now()) < SCRATCH_SIZE
    }

    /// Counts time that this turn spent on making bodies like the bytes that would take as long to copy.
    pub fn charge(&self, spent: Duration) {
        self.charge_to(tw_rt::clock::now(), spent);
    }

    fn may_copy_in(&self, turn: Instant, bytes: usize) -> bool {
        let copied = self.copied(turn);
        let is_allowed = copied < TURN_COPY_MAX;
        self.turn.set((turn, if is_allowed { copied + bytes } else { copied }));
        is_allowed
    }

    fn charge_to(&self, turn: Instant, spent: Duration) {
        let bytes = spent.as_nanos() * TURN_COPY_MAX as u128 / TURN_COPY_TIME.as_nanos();
        let copied = self.copied(turn).saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.turn.set((turn, copied));
    }

    fn copied(&self, turn: Instant) -> usize {
        let (last, copied) = self.turn.get();
        if last == turn { copied } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_when_it_has_copied_enough() {
        let budget = CopyBudget::new();
        let first = Instant::now();
        let second = first + Duration::from_nanos(1);
        let copies = |turn| (0..100).take_while(|_| budget.may_copy_in(turn, SCRATCH_SIZE)).count();
        assert_eq!(copies(first), TURN_COPY_MAX / SCRATCH_SIZE);
        assert_eq!(copies(first), 0, "the turn is used up");
        assert_eq!(copies(second), TURN_COPY_MAX / SCRATCH_SIZE, "the next one begins anew");
    }

    #[test]
    fn work_counts_like_copying_that_takes_as_long() {
        let budget = CopyBudget::new();
        let turn = Instant::now();
        budget.charge_to(turn, TURN_COPY_TIME / 2);
        let copies = (0..100).take_while(|_| budget.may_copy_in(turn, SCRATCH_SIZE)).count();
        assert_eq!(copies, TURN_COPY_MAX / SCRATCH_SIZE / 2);
        budget.charge_to(turn, Duration::MAX);
        assert!(!budget.may_copy_in(turn, 1));
        budget.charge_to(turn + TURN_COPY_TIME, TURN_COPY_TIME);
        assert!(!budget.may_copy_in(turn + TURN_COPY_TIME, 1), "what took a whole turn leaves nothing");
    }
}
