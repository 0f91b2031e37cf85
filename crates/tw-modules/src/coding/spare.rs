//! Encoders of a loop that nobody uses at the moment: making one costs more than compressing a small page.

use std::cell::RefCell;
use tw_base::Limit;

use super::codec::{CodecError, Encoder, Spec};

/// Bytes of encoders that a loop keeps for the next use.
const SPARE_SIZE_MAX: usize = 16 << 20;

pub(super) const LIMIT: Limit = Limit::bytes(
    "SPARE_SIZE_MAX",
    SPARE_SIZE_MAX as u64,
    "Bytes of encoders that one loop keeps for the next use",
    "what is more is freed",
);

/// An encoder and what it is for.
struct Spare {
    spec: Spec,
    encoder: Box<dyn Encoder>,
    size: usize,
}

thread_local! {
    static SPARES: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

/// An encoder, or what it takes to get one: that is work, too, and done where the work is done.
pub(super) enum Supply {
    /// One that is in use.
    Begun(Box<dyn Encoder>),
    /// One that was used for another body, for a body of this length.
    Used(Box<dyn Encoder>, Option<u64>),
    /// None, for a body of this length.
    Absent(Spec, Option<u64>),
}

impl Supply {
    /// The encoder.
    pub(super) fn encoder(self) -> Result<Box<dyn Encoder>, CodecError> {
        match self {
            Self::Begun(encoder) => Ok(encoder),
            Self::Used(mut encoder, length) => encoder.reset(length).map(|()| encoder),
            Self::Absent(spec, length) => spec.encoder(length),
        }
    }
}

/// What there is for the beginning of a body of this length, if that is known.
pub(super) fn take(spec: Spec, length: Option<u64>) -> Supply {
    SPARES.with_borrow_mut(|spares| {
        // The last one given back is the one the processor still remembers.
        match spares.iter().rposition(|spare| spare.spec == spec) {
            Some(at) => Supply::Used(spares.remove(at).encoder, length),
            None => Supply::Absent(spec, length),
        }
    })
}

/// Keeps an encoder for the next use, if there is room.
pub(super) fn give_back(spec: Spec, mut encoder: Box<dyn Encoder>) {
    let size = encoder.memory();
    // At the end of a thread there is nobody left to keep it.
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        let kept: usize = spares.iter().map(|spare| spare.size).sum();
        if kept + size <= SPARE_SIZE_MAX {
            spares.push(Spare { spec, encoder, size });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_are_used_again_and_not_hoarded() {
        let spec = Spec::Gzip { level: 6, window_bits: 15, mem_level: 8 };
        let count = || SPARES.with_borrow(Vec::len);
        let many: Vec<_> = (0..100).map(|_| take(spec, None).encoder().unwrap()).collect();
        many.into_iter().for_each(|encoder| give_back(spec, encoder));
        let kept = count();
        assert!((20..60).contains(&kept), "{kept}");
        let _one = take(spec, None).encoder().unwrap();
        assert_eq!(count(), kept - 1);
        let _other = take(Spec::Gzip { level: 1, window_bits: 15, mem_level: 8 }, None).encoder().unwrap();
        assert_eq!(count(), kept - 1);
        // One that was given up in the middle begins anew.
        let brotli = Spec::Brotli { quality: 1, window_bits: 16 };
        let mut encoder = take(brotli, None).encoder().unwrap();
        encoder.feed(b"x", &mut Vec::new()).unwrap();
        give_back(brotli, encoder);
        let mut out = Vec::new();
        take(brotli, None).encoder().unwrap().finish(&mut out).unwrap();
        assert_eq!(out.len(), 1, "an empty stream");
    }
}
