//! Memory of encoders, for the whole process (`compression_memory`).
//!
//! A body that takes more than one piece needs its encoder for as long as its client takes, which may be for ever: it asks
//! for the memory first, and is not compressed this way if there is none ([`Budget::admit`]). A body that is made in one
//! piece has an encoder only while that is worked on; of those there are not more than loops and jobs, and they just
//! count ([`Budget::take`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_base::{Counter, Limit};
use tw_core::metrics::{Kind, Metric};
use tw_server::load::Resolve;

use super::codec::Coding;

pub(super) const LIMIT: Limit = Limit::directive(
    "compression_memory",
    "Bytes of encoders whose clients have not taken all of their response, in the whole process",
    "the response gets the next coding that is configured and takes less, or none",
);

pub(crate) const METRICS: &[Metric] = &[
    Metric {
        name: "encoder_memory_bytes",
        kind: Kind::Gauge,
        labels: &["state"],
        doc: "Memory of the encoders of gzip, brotli and zstd: in use, and spare for the next response.",
        read: |scrape, out| {
            for budget in scrape.kept::<Budget>() {
                out.value(&["used"], budget.level(State::Used).load(Relaxed));
                out.value(&["spare"], budget.level(State::Spare).load(Relaxed));
            }
        },
    },
    Metric {
        name: "encoder_memory_refusals_total",
        kind: Kind::Counter,
        labels: &["coding"],
        doc: "Responses that got a cheaper coding than this one, or none, because compression_memory was in use.",
        read: |scrape, out| {
            for budget in scrape.kept::<Budget>() {
                for coding in Coding::ALL {
                    out.value(&[coding.word()], budget.refusals[coding as usize].value());
                }
            }
        },
    },
];

/// What encoders take of the memory of the process.
#[derive(Default)]
pub(crate) struct Budget {
    /// Bytes, by [`State`].
    levels: [AtomicU64; 2],
    /// By [`Coding`].
    refusals: [Counter; Coding::ALL.len()],
}

/// What an encoder is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A body.
    Used,
    /// The next body, whichever that is.
    Spare,
}

/// The memory of one encoder; dropping it gives it back.
pub(super) struct Share {
    budget: Arc<Budget>,
    state: State,
    bytes: u64,
}

impl Budget {
    /// The one of the process.
    pub(crate) fn keep(cx: &mut Resolve<'_>) -> Arc<Self> {
        cx.keep(b"encoders", |_| true, Self::default)
    }

    /// Memory for an encoder that is kept from piece to piece, if with it all take no more than `max` bytes.
    pub(super) fn admit(self: &Arc<Self>, coding: Coding, bytes: u64, max: u64) -> Option<Share> {
        let with = |used: u64| used.checked_add(bytes).filter(|all| *all <= max);
        match self.level(State::Used).fetch_update(Relaxed, Relaxed, with) {
            Ok(_) => Some(Share { budget: self.clone(), state: State::Used, bytes }),
            Err(_) => {
                self.refusals[coding as usize].add(1);
                None
            }
        }
    }

    /// Memory for an encoder that is done with its body before anybody waits for a client.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Share {
        self.level(State::Used).fetch_add(bytes, Relaxed);
        Share { budget: self.clone(), state: State::Used, bytes }
    }

    fn level(&self, state: State) -> &AtomicU64 {
        &self.levels[state as usize]
    }
}

impl Share {
    /// The share of the same encoder when it waits for its next body, with so many bytes.
    pub(super) fn into_spare(self, bytes: u64) -> Self {
        self.budget.level(State::Spare).fetch_add(bytes, Relaxed);
        Self { budget: self.budget.clone(), state: State::Spare, bytes }
    }

    /// Not less than `bytes`: an encoder that was used before may have more than its next body needs.
    pub(super) fn at_least(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(self.bytes);
        self.budget.level(self.state).fetch_add(more, Relaxed);
        self.bytes += more;
    }

    /// Bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.level(self.state).fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
impl Budget {
    /// Bytes in use and spare.
    pub(super) fn levels(&self) -> (u64, u64) {
        (self.level(State::Used).load(Relaxed), self.level(State::Spare).load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_within_the_budget_and_come_back() {
        let budget = Arc::new(Budget::default());
        let admit = |bytes, max| budget.admit(Coding::Brotli, bytes, max);
        let first = admit(60, 100).unwrap();
        assert!(admit(41, 100).is_none() && admit(u64::MAX, u64::MAX).is_none());
        let mut second = admit(40, 100).unwrap();
        let forced = budget.take(7);
        assert_eq!(budget.levels(), (107, 0));
        // A smaller budget than what is in use refuses, and nothing else.
        assert!(admit(0, 50).is_none());
        drop(first);
        let spare = forced.into_spare(5);
        assert_eq!((budget.levels(), spare.bytes()), ((40, 5), 5));
        for bytes in [45, 3, 45] {
            second.at_least(bytes);
            assert_eq!(budget.levels(), (45, 5));
        }
        drop((second, spare));
        assert_eq!(budget.levels(), (0, 0));
        assert_eq!(budget.refusals.each_ref().map(Counter::value), [0, 3, 0]);
    }
}
