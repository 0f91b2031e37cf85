//! Unused encoders of a loop: making one costs more than compressing a small page.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::budget::{self, MemoryPermit};
use super::codec::Spec;
use super::encoder::{CodecError, Encoder};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of encoders that one loop keeps for the next use.
    const SPARE_SIZE_MAX: u64 = 16 << 20, bytes,
        "what is more is freed, and what was not used for ten seconds; so is what all keep beyond an eighth of available memory";
}

/// Longest time that an unused encoder is kept.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// Unused encoder and its spec.
struct Spare {
    spec: Spec,
    encoder: Box<dyn Encoder>,
    share: MemoryPermit,
}

/// Spare encoders of a loop, the most recently returned last.
#[derive(Default)]
struct SpareEncoders {
    list: Vec<Spare>,
    /// Lowest number of spares since the last check: so many at the front were not used.
    unused: usize,
    /// Time of the last check; `None` before there was a spare.
    looked: Option<Instant>,
}

thread_local! {
    static SPARES: RefCell<SpareEncoders> = RefCell::default();
}

impl SpareEncoders {
    fn take(&mut self, spec: Spec) -> Option<Spare> {
        // The last one given back is the one the processor still remembers.
        let at = self.list.iter().rposition(|spare| spare.spec == spec)?;
        let spare = self.list.remove(at);
        self.unused = self.unused.min(at);
        Some(spare)
    }

    fn add(&mut self, spare: Spare) {
        let kept: u64 = self.list.iter().map(|spare| spare.share.bytes()).sum();
        if kept + spare.share.bytes() <= SPARE_SIZE_MAX && spare.share.is_affordable(budget::available()) {
            self.list.push(spare);
        }
        if self.looked.is_none() {
            self.looked = Some(tw_rt::clock::now());
            tw_rt::on_memory_release(|| {
                SPARES.with_borrow_mut(|spares| spares.free_unused(tw_rt::clock::now()))
            });
        }
    }

    fn free_unused(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) >= UNUSED_MAX) {
            self.looked = Some(now);
            self.list.drain(..self.unused);
            self.unused = self.list.len();
        }
    }
}

/// An encoder in use, and its memory.
pub(super) struct ActiveEncoder {
    pub(super) encoder: Box<dyn Encoder>,
    share: MemoryPermit,
}

impl ActiveEncoder {
    /// Waits for the next piece with as little memory as it can.
    pub(super) fn rest(&mut self) {
        self.encoder.rest();
        self.share.at_least(self.encoder.size() as u64);
    }
}

/// Encoder, or the means to make one: that is work as well, and done with the rest of the work.
pub(super) enum EncoderSource {
    /// Encoder in use.
    Active(ActiveEncoder),
    /// Encoder that was used for another body, for a body of this length.
    Used(ActiveEncoder, Option<u64>),
    /// None, for a body of this length.
    Absent(Spec, Option<u64>, MemoryPermit),
}

impl EncoderSource {
    /// The encoder.
    pub(super) fn encoder(self) -> Result<ActiveEncoder, CodecError> {
        match self {
            Self::Active(active) => Ok(active),
            Self::Used(mut used, length) => used.encoder.reset(length).map(|()| used),
            Self::Absent(spec, length, share) => {
                spec.encoder(length).map(|encoder| ActiveEncoder { encoder, share })
            }
        }
    }
}

/// Encoder for a body of this length, if that is known, on this share of the memory.
pub(super) fn take(spec: Spec, length: Option<u64>, share: MemoryPermit) -> EncoderSource {
    match SPARES.with_borrow_mut(|spares| spares.take(spec)) {
        Some(Spare { encoder, .. }) => EncoderSource::Used(ActiveEncoder { encoder, share }, length),
        None => EncoderSource::Absent(spec, length, share),
    }
}

/// Keeps an encoder for the next use, if there is room.
pub(super) fn give_back(spec: Spec, active: ActiveEncoder) {
    let ActiveEncoder { mut encoder, share } = active;
    encoder.end();
    let size = encoder.size() as u64;
    // When a thread ends, its spare encoders may be gone already.
    let _ = SPARES.try_with(|spares| {
        spares.borrow_mut().add(Spare { spec, encoder, share: share.into_spare(size) });
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::shared::coding::budget::Budget;

    #[test]
    fn encoders_are_reused_within_a_limit() {
        let budget = Arc::new(Budget::default());
        let spec = Spec::Gzip { level: 6, window_bits: 15, mem_level: 8 };
        let count = || SPARES.with_borrow(|spares| spares.list.len());
        let new = |spec: Spec| take(spec, None, budget.take(spec.memory(None).kept)).encoder().unwrap();
        let many: Vec<_> = (0..100).map(|_| new(spec)).collect();
        assert_eq!(budget.levels(), (100 * spec.memory(None).kept, 0));
        many.into_iter().for_each(|encoder| give_back(spec, encoder));
        let kept = count();
        assert!((20..60).contains(&kept), "{kept}");
        assert!((1..=SPARE_SIZE_MAX).contains(&budget.levels().1) && budget.levels().0 == 0);
        let _one = new(spec);
        assert_eq!(count(), kept - 1);
        let _other = new(Spec::Gzip { level: 1, window_bits: 15, mem_level: 8 });
        assert_eq!(count(), kept - 1);
        // An encoder that was given back in the middle of a stream begins a new stream.
        let brotli = Spec::Brotli { quality: 1, window_bits: 16 };
        let mut active = new(brotli);
        active.encoder.feed(b"x", &mut Vec::new()).unwrap();
        give_back(brotli, active);
        let mut out = Vec::new();
        new(brotli).encoder.finish(&mut out).unwrap();
        assert_eq!(out.len(), 1, "an empty stream");
    }

    #[test]
    fn unused_encoders_are_freed() {
        let budget = Arc::new(Budget::default());
        let spec = Spec::Zstd { level: 1 };
        let new = || take(spec, Some(1), budget.take(0)).encoder().unwrap();
        let many: Vec<_> = (0..3).map(|_| new()).collect();
        many.into_iter().for_each(|active| give_back(spec, active));
        // The test sets the time from the first spare encoder on.
        let mut now = tw_rt::clock::now();
        let mut after_a_while = || {
            now += 2 * UNUSED_MAX;
            SPARES.with_borrow_mut(|spares| {
                spares.free_unused(now);
                spares.list.len()
            })
        };
        assert_eq!(after_a_while(), 3, "they were in use lately");
        give_back(spec, new());
        assert_eq!(after_a_while(), 1, "one at a time is enough");
        assert!(budget.levels().1 > 0);
        assert_eq!((after_a_while(), budget.levels()), (0, (0, 0)));
    }
}
