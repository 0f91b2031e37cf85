//! Account of the operations of one request: their class, their source, and their cost.

use std::time::Duration;

/// Purpose of a job; a pool takes classes in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum JobClass {
    /// A client waits for bytes that are on this disk.
    Hit,
    /// Storing what came from elsewhere: cache fills, request bodies, logs.
    Fill,
    /// Making room.
    Evict,
    /// Walking directories: the cache loader, checks.
    Scan,
}

impl JobClass {
    /// Every class, first served first.
    pub const ALL: [JobClass; 4] = [JobClass::Hit, JobClass::Fill, JobClass::Evict, JobClass::Scan];

    /// Position in [`JobClass::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Cause of a job: a file, a client, a location. Jobs of one source share what a pool gives to one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobSource(u64);

impl JobSource {
    /// No source. Jobs without a source take turns as one source, but may fill an otherwise idle pool.
    pub const NONE: JobSource = JobSource(0);

    /// The source with this number; 0 is [`JobSource::NONE`].
    pub const fn new(key: u64) -> Self {
        Self(key)
    }

    /// The source named by these bytes (a path, an address). Equal bytes give equal sources within one build.
    pub fn of(bytes: &[u8]) -> Self {
        // FNV-1a, then a final mix: keys only have to differ, nobody stores them.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash ^= hash >> 32;
        Self(hash.max(1))
    }

    /// The number.
    pub const fn key(self) -> u64 {
        self.0
    }
}

/// The account of one request (or one background task): says how its operations are scheduled, and sums what they cost.
///
/// An operation that ends inline costs nothing here: no clock is read for it.
#[derive(Clone, Debug)]
pub struct Account {
    /// Class of the jobs to come.
    pub class: JobClass,
    /// Source of the jobs to come.
    pub source: JobSource,
    jobs: u32,
    queue_ns: u64,
    wait_ns: u64,
}

impl Account {
    /// An account without costs.
    pub const fn new(class: JobClass, source: JobSource) -> Self {
        Self { class, source, jobs: 0, queue_ns: 0, wait_ns: 0 }
    }

    /// An account of class [`JobClass::Hit`].
    pub const fn hit(source: JobSource) -> Self {
        Self::new(JobClass::Hit, source)
    }

    /// Time spent in jobs, from being queued to being done (`$disk_wait_time`).
    pub const fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait_ns)
    }

    /// The part of [`Account::wait`] before a thread took the job (`$disk_queue_time`).
    pub const fn queue(&self) -> Duration {
        Duration::from_nanos(self.queue_ns)
    }

    /// Number of operations that became jobs.
    pub const fn jobs(&self) -> u32 {
        self.jobs
    }

    /// Returns true if every operation so far ended without waiting (`$disk_inline`).
    pub const fn is_inline(&self) -> bool {
        self.jobs == 0
    }

    /// Adds what another account cost.
    pub fn add(&mut self, other: &Self) {
        self.jobs = self.jobs.saturating_add(other.jobs);
        self.queue_ns = self.queue_ns.saturating_add(other.queue_ns);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
    }

    pub(crate) fn charge(&mut self, queue_ns: u64, service_ns: u64) {
        self.jobs = self.jobs.saturating_add(1);
        self.queue_ns = self.queue_ns.saturating_add(queue_ns);
        self.wait_ns = self.wait_ns.saturating_add(queue_ns).saturating_add(service_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_costs() {
        let mut by = Account::hit(JobSource::of(b"/a"));
        assert!(by.is_inline());
        by.charge(3, 4);
        by.charge(10, 20);
        assert!(!by.is_inline());
        assert_eq!((by.jobs(), by.queue().as_nanos(), by.wait().as_nanos()), (2, 13, 37));
    }

    #[test]
    fn sources_differ_and_are_never_none() {
        let keys: Vec<_> = [&b""[..], b"a", b"b", b"ab", b"ba", b"/x/1", b"/x/2"].map(JobSource::of).to_vec();
        for (i, a) in keys.iter().enumerate() {
            assert_ne!(*a, JobSource::NONE);
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
    }
}
