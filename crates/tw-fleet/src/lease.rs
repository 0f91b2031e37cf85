//! Lease: the right of one node to do something, in an entry of a store, until it is not renewed any more.
//!
//! No clock is compared with another. The holder changes its entry again and again by compare-and-set. Whoever has seen the entry unchanged
//! for the whole term, by its own clock, replaces it. The holder counts its term from before it sent the change, so its term is over
//! first. An engine that goes back or loses the entry can give the lease to two nodes: whoever does something under a lease also
//! writes the result by compare-and-set.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::engine::EngineError;
use crate::host::random_word;
use crate::name::is_name;
use crate::store::Store;

/// Longest term of another node that is waited for. A longer one in the store is not ours.
const TERM_MAX: Duration = Duration::from_secs(3600);

/// Content of the entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenLease {
    /// Name of the node, for people.
    node: String,
    /// Number of the holder: of this object, not of the node.
    holder: String,
    /// Term in milliseconds.
    term: u64,
    /// Number of renewals.
    renewed: u64,
}

/// Node that holds a lease, from its entry in the store.
pub fn lease_holder(value: &[u8]) -> Option<String> {
    let lease = serde_json::from_slice::<WrittenLease>(value).ok()?;
    is_name(&lease.node).then_some(lease.node)
}

/// A lease of one holder.
pub struct Lease<S> {
    store: S,
    key: Box<str>,
    node: Box<str>,
    holder: String,
    term: Duration,
    renewed: u64,
    /// Version of the own entry, and the end of the term.
    own_entry: Option<(u64, Instant)>,
    /// Version of another's entry, and when it is over if it does not change.
    observed: Option<(u64, Instant)>,
    other: Option<String>,
    /// Clock of this node.
    now: Box<dyn Fn() -> Instant + Send>,
}

impl<S: Store> Lease<S> {
    /// A lease under `key` that nobody has yet. Renew it, by [`attempt`](Self::attempt), several times in a term.
    ///
    /// # Errors
    /// Fails without random numbers.
    pub fn new(store: S, key: &str, node: &str, term: Duration) -> std::io::Result<Self> {
        Ok(Self {
            store,
            key: key.into(),
            node: node.into(),
            holder: random_word()?,
            term: term.min(TERM_MAX),
            renewed: 0,
            own_entry: None,
            observed: None,
            other: None,
            now: Box::new(Instant::now),
        })
    }

    /// Time for which the lease is still held.
    pub fn remaining(&self) -> Duration {
        self.own_entry.map_or(Duration::ZERO, |(_, until)| until.saturating_duration_since((self.now)()))
    }

    /// Returns true while the lease is held.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Node that holds it, as far as the last attempt has seen.
    pub fn other(&self) -> Option<&str> {
        self.other.as_deref()
    }

    /// Takes the lease or renews it. Returns true if it is held.
    ///
    /// # Errors
    /// Fails as the engine does. A lease that was held is still held until its term is over.
    pub async fn attempt(&mut self) -> Result<bool, EngineError> {
        if let Some((version, _)) = self.own_entry {
            match self.write(Some(version)).await {
                Err(EngineError::Conflict) => self.own_entry = None,
                done => return done.map(|()| true),
            }
        }
        let entry = self.store.get(&self.key).await?;
        let version = entry.as_ref().map_or(0, |entry| entry.version);
        let value = entry.and_then(|entry| entry.value);
        let lease = value.as_deref().and_then(|value| serde_json::from_slice::<WrittenLease>(value).ok());
        let is_free = match lease {
            // A value that cannot be read as a lease is replaced like a missing one.
            None => true,
            // This holder wrote the value, but did not get the confirmation.
            Some(lease) if lease.holder == self.holder => true,
            Some(lease) => {
                let now = (self.now)();
                let term = Duration::from_millis(lease.term).clamp(self.term, TERM_MAX.max(self.term));
                self.other = Some(lease.node).filter(|node| is_name(node));
                match self.observed {
                    Some((known_value, over)) if known_value == version => now >= over,
                    _ => {
                        self.observed = Some((version, now + term));
                        false
                    }
                }
            }
        };
        if !is_free {
            return Ok(false);
        }
        match self.write(Some(version)).await {
            Ok(()) => Ok(true),
            Err(EngineError::Conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, expected: Option<u64>) -> Result<(), EngineError> {
        // An eighth for clocks that do not go equally fast.
        let until = (self.now)() + self.term.mul_f64(0.875);
        self.renewed += 1;
        let lease = WrittenLease {
            node: self.node.to_string(),
            holder: self.holder.clone(),
            term: u64::try_from(self.term.as_millis()).unwrap_or(u64::MAX),
            renewed: self.renewed,
        };
        let text = serde_json::to_vec(&lease).unwrap_or_default();
        let version = self.store.set(&self.key, &text, expected).await?;
        (self.own_entry, self.observed, self.other) = (Some((version, until)), None, None);
        Ok(())
    }

    /// Gives it back, so that another node need not wait.
    ///
    /// # Errors
    /// Fails as the engine does; the lease then ends with its term.
    pub async fn release(&mut self) -> Result<(), EngineError> {
        match self.own_entry.take() {
            Some((version, _)) => self.store.remove(&self.key, Some(version)).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::sync::{Arc, Mutex};

    use tw_testkit::Random;

    use super::*;
    use crate::store::{Entry, StoreChanges, StoreWatch};

    /// Versions and values by key.
    type Entries = BTreeMap<String, (u64, Vec<u8>)>;

    /// Store in memory, which can be away or lose replies.
    #[derive(Clone, Default)]
    struct MemoryStore {
        entries: Rc<RefCell<Entries>>,
        next: Rc<Cell<u64>>,
        is_away: Rc<Cell<bool>>,
        loses_replies: Rc<Cell<bool>>,
    }

    struct NoWatch;

    impl StoreWatch for NoWatch {
        async fn next(&mut self) -> Result<StoreChanges, EngineError> {
            Ok(StoreChanges::default())
        }
    }

    impl MemoryStore {
        fn check(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
            if self.is_away.get() {
                return Err(EngineError::Lost("away".to_owned()));
            }
            let version = self.entries.borrow().get(key).map_or(0, |(version, _)| *version);
            if expected.is_some_and(|expected| expected != version) {
                Err(EngineError::Conflict)
            } else {
                Ok(())
            }
        }

        fn outcome<T>(&self, value: T) -> Result<T, EngineError> {
            if self.loses_replies.get() { Err(EngineError::Lost("lost".to_owned())) } else { Ok(value) }
        }
    }

    impl Store for MemoryStore {
        type Watch = NoWatch;

        async fn get(&self, key: &str) -> Result<Option<Entry>, EngineError> {
            self.check(key, None)?;
            let entry = self.entries.borrow().get(key).cloned();
            Ok(entry.map(|(version, value)| Entry { key: key.to_owned(), value: Some(value), version }))
        }

        async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
            self.check(key, expected)?;
            self.next.set(self.next.get() + 1);
            self.entries.borrow_mut().insert(key.to_owned(), (self.next.get(), value.to_vec()));
            self.outcome(self.next.get())
        }

        async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
            self.check(key, expected)?;
            self.entries.borrow_mut().remove(key);
            self.outcome(())
        }

        async fn watch(&self) -> Result<NoWatch, EngineError> {
            Ok(NoWatch)
        }
    }

    const TERM: Duration = Duration::from_secs(30);

    /// Clock that stands still.
    #[derive(Clone)]
    struct Clock(Arc<Mutex<Instant>>);

    impl Clock {
        fn new() -> Self {
            Self(Arc::new(Mutex::new(Instant::now())))
        }

        fn pass(&self, milliseconds: u64) {
            *self.0.lock().unwrap() += Duration::from_millis(milliseconds);
        }

        fn lease(&self, store: &MemoryStore, node: &str) -> Lease<MemoryStore> {
            let mut lease = Lease::new(store.clone(), "lease", node, TERM).unwrap();
            let clock = self.0.clone();
            lease.now = Box::new(move || *clock.lock().unwrap());
            lease
        }
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn one_holder_until_it_is_silent_for_a_term() {
        run(async {
            let store = MemoryStore::default();
            let clock = Clock::new();
            let [mut one, mut two] = ["one", "two"].map(|node| clock.lease(&store, node));
            assert_eq!(one.attempt().await, Ok(true));
            for _ in 0..10 {
                assert_eq!(two.attempt().await, Ok(false));
                assert_eq!(two.other(), Some("one"));
                clock.pass(20_000);
                assert_eq!(one.attempt().await, Ok(true));
            }
            assert_eq!(two.attempt().await, Ok(false));
            clock.pass(29_000);
            assert!(!one.is_held(), "its own term is over first");
            assert_eq!(two.attempt().await, Ok(false));
            clock.pass(2_000);
            assert_eq!(two.attempt().await, Ok(true));
            assert_eq!(one.attempt().await, Ok(false));
            two.release().await.unwrap();
            assert_eq!(one.attempt().await, Ok(true), "nobody waits for one that was given back");
        });
    }

    #[test]
    fn engine_that_is_away_ends_a_lease_with_its_term() {
        run(async {
            let store = MemoryStore::default();
            let clock = Clock::new();
            let mut one = clock.lease(&store, "one");
            assert_eq!(one.attempt().await, Ok(true));
            store.is_away.set(true);
            clock.pass(10_000);
            assert!(one.attempt().await.is_err() && one.is_held());
            clock.pass(20_000);
            assert!(one.attempt().await.is_err() && !one.is_held());
            store.is_away.set(false);
            assert_eq!(one.attempt().await, Ok(true), "nobody else has taken it");
        });
    }

    #[test]
    fn holder_that_did_not_hear_of_its_own_change_goes_on() {
        run(async {
            let store = MemoryStore::default();
            let clock = Clock::new();
            let mut one = clock.lease(&store, "one");
            store.loses_replies.set(true);
            assert!(one.attempt().await.is_err() && !one.is_held());
            store.loses_replies.set(false);
            assert_eq!(one.attempt().await, Ok(true));
            store.loses_replies.set(true);
            assert!(one.attempt().await.is_err());
            store.loses_replies.set(false);
            assert_eq!(one.attempt().await, Ok(true));
        });
    }

    #[test]
    fn nonsense_in_the_store_is_replaced() {
        run(async {
            for value in [&b""[..], b"[]", b"{\"node\":1}", b"\xff"] {
                let store = MemoryStore::default();
                store.set("lease", value, None).await.unwrap();
                assert_eq!(Clock::new().lease(&store, "one").attempt().await, Ok(true));
            }
            // A term that would never end.
            let store = MemoryStore::default();
            let clock = Clock::new();
            let endless = br#"{"node":"x","holder":"x","term":18446744073709551615,"renewed":1}"#;
            store.set("lease", endless, None).await.unwrap();
            let mut one = clock.lease(&store, "one");
            assert_eq!(one.attempt().await, Ok(false));
            clock.pass(3_601_000);
            assert_eq!(one.attempt().await, Ok(true));
        });
    }

    #[test]
    fn never_two_holders_at_once() {
        let all = Rc::new(Cell::new(0));
        for seed in 0..200 {
            let all = all.clone();
            run(async move {
                let mut random = Random::new(seed);
                let clock = Clock::new();
                let stores: Vec<_> = {
                    let first = MemoryStore::default();
                    (0..3)
                        .map(|_| MemoryStore {
                            entries: first.entries.clone(),
                            next: first.next.clone(),
                            ..MemoryStore::default()
                        })
                        .collect()
                };
                let mut leases: Vec<_> = stores.iter().map(|store| clock.lease(store, "node")).collect();
                let mut taken = 0;
                for _ in 0..200 {
                    let at = random.below(3);
                    match random.below(8) {
                        0 => stores[at].is_away.set(random.below(2) == 0),
                        1 => stores[at].loses_replies.set(random.below(2) == 0),
                        _ => taken += u32::from(leases[at].attempt().await == Ok(true)),
                    }
                    let holders = leases.iter().filter(|lease| lease.is_held()).count();
                    assert!(holders <= 1, "seed {seed}");
                    clock.pass(random.below(12_000) as u64);
                }
                all.set(all.get() + taken);
            });
        }
        assert!(all.get() > 5000, "{}", all.get());
    }
}
