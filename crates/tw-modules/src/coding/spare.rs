//! Encoders of a loop that nobody uses at the moment: making one costs more than compressing a small page.

use std::cell::RefCell;
use tw_base::Limit;

use super::budget::Share;
use super::codec::{CodecError, Encoder, Spec};

/// Bytes of encoders that a loop keeps for the next use.
const SPARE_SIZE_MAX: u64 = 16 << 20;

pub(super) const LIMIT: Limit = Limit::bytes(
    "SPARE_SIZE_MAX",
    SPARE_SIZE_MAX,
    "Bytes of encoders that one loop keeps for the next use",
    "what is more is freed",
);

/// An encoder and what it is for.
struct Spare {
    spec: Spec,
    encoder: Box<dyn Encoder>,
    share: Share,
}

thread_local! {
    static SPARES: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

/// An encoder in use, and its memory.
pub(super) struct Begun {
    pub(super) encoder: Box<dyn Encoder>,
    share: Share,
}

impl Begun {
    /// Waits for the next piece with as little memory as it can.
    pub(super) fn rest(&mut self) {
        self.encoder.rest();
        self.share.at_least(self.encoder.size() as u64);
    }
}

/// An encoder, or what it takes to get one: that is work, too, and done where the work is done.
pub(super) enum Supply {
    /// One that is in use.
    Begun(Begun),
    /// One that was used for another body, for a body of this length.
    Used(Begun, Option<u64>),
    /// None, for a body of this length.
    Absent(Spec, Option<u64>, Share),
}

impl Supply {
    /// The encoder.
    pub(super) fn encoder(self) -> Result<Begun, CodecError> {
        match self {
            Self::Begun(begun) => Ok(begun),
            Self::Used(mut used, length) => used.encoder.reset(length).map(|()| used),
            Self::Absent(spec, length, share) => spec.encoder(length).map(|encoder| Begun { encoder, share }),
        }
    }
}

/// What there is for the beginning of a body of this length, if that is known, on this share of the memory.
pub(super) fn take(spec: Spec, length: Option<u64>, share: Share) -> Supply {
    SPARES.with_borrow_mut(|spares| {
        // The last one given back is the one the processor still remembers.
        match spares.iter().rposition(|spare| spare.spec == spec) {
            Some(at) => {
                let Spare { encoder, .. } = spares.remove(at);
                Supply::Used(Begun { encoder, share }, length)
            }
            None => Supply::Absent(spec, length, share),
        }
    })
}

/// Keeps an encoder for the next use, if there is room.
pub(super) fn give_back(spec: Spec, begun: Begun) {
    let Begun { mut encoder, share } = begun;
    encoder.end();
    let size = encoder.size() as u64;
    // At the end of a thread there is nobody left to keep it.
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        let kept: u64 = spares.iter().map(|spare| spare.share.bytes()).sum();
        if kept + size <= SPARE_SIZE_MAX {
            spares.push(Spare { spec, encoder, share: share.into_spare(size) });
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::coding::budget::Budget;

    #[test]
    fn encoders_are_used_again_and_not_hoarded() {
        let budget = Arc::new(Budget::default());
        let spec = Spec::Gzip { level: 6, window_bits: 15, mem_level: 8 };
        let count = || SPARES.with_borrow(Vec::len);
        let new = |spec: Spec| take(spec, None, budget.take(spec.memory(None))).encoder().unwrap();
        let many: Vec<_> = (0..100).map(|_| new(spec)).collect();
        assert_eq!(budget.levels(), (100 * spec.memory(None), 0));
        many.into_iter().for_each(|encoder| give_back(spec, encoder));
        let kept = count();
        assert!((20..60).contains(&kept), "{kept}");
        assert!((1..=SPARE_SIZE_MAX).contains(&budget.levels().1) && budget.levels().0 == 0);
        let _one = new(spec);
        assert_eq!(count(), kept - 1);
        let _other = new(Spec::Gzip { level: 1, window_bits: 15, mem_level: 8 });
        assert_eq!(count(), kept - 1);
        // One that was given up in the middle begins anew.
        let brotli = Spec::Brotli { quality: 1, window_bits: 16 };
        let mut begun = new(brotli);
        begun.encoder.feed(b"x", &mut Vec::new()).unwrap();
        give_back(brotli, begun);
        let mut out = Vec::new();
        new(brotli).encoder.finish(&mut out).unwrap();
        assert_eq!(out.len(), 1, "an empty stream");
    }
}
