//! Account of the operations of one request: their class, their source, and their cost.

use std::time::{Duration, Instant};

use crate::op::Op;

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
        // FNV-1a and a final mix: keys only have to differ, and are never stored.
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
    /// Single waits; `None` if they are not recorded.
    waits: Option<Box<WaitRecord>>,
}

/// Wait for one job.
#[derive(Clone, Copy, Debug)]
pub struct DiskWait {
    /// Operation of the job.
    pub op: Op,
    /// Time at which the job was queued.
    pub queued: Instant,
    /// Time until a thread took the job.
    pub queue: Duration,
    /// Time of the work.
    pub service: Duration,
}

/// Waits of an account, in the order in which the jobs ended.
#[derive(Clone, Debug, Default)]
struct WaitRecord {
    waits: Vec<DiskWait>,
    max: usize,
}

impl WaitRecord {
    fn push(&mut self, wait: DiskWait) {
        if self.waits.len() < self.max {
            self.waits.push(wait);
        }
    }
}

impl Account {
    /// An account without costs.
    pub const fn new(class: JobClass, source: JobSource) -> Self {
        Self { class, source, jobs: 0, queue_ns: 0, wait_ns: 0, waits: None }
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

    /// Records single waits from now on, the first `max` of them.
    pub fn record_waits(&mut self, max: usize) {
        self.waits = Some(Box::new(WaitRecord { waits: Vec::new(), max }));
    }

    /// Recorded waits, in the order in which the jobs ended.
    pub fn waits(&self) -> &[DiskWait] {
        self.waits.as_ref().map_or(&[], |record| &record.waits)
    }

    /// An empty account for a part of the same work, which records waits if this one does. It is added by
    /// [`add_part`](Self::add_part).
    #[must_use]
    pub fn part(&self, class: JobClass, source: JobSource) -> Self {
        let mut part = Self::new(class, source);
        if let Some(record) = &self.waits {
            part.record_waits(record.max);
        }
        part
    }

    /// Adds a [part](Self::part) with its waits.
    pub fn add_part(&mut self, part: &Self) {
        if let Some(record) = &mut self.waits {
            part.waits().iter().for_each(|wait| record.push(*wait));
        }
        self.add(part);
    }

    /// Adds what another account cost; its waits remain its own.
    pub fn add(&mut self, other: &Self) {
        self.jobs = self.jobs.saturating_add(other.jobs);
        self.queue_ns = self.queue_ns.saturating_add(other.queue_ns);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
    }

    /// Adds the cost of a job that was queued at `queued`.
    pub(crate) fn charge(&mut self, op: Op, queued: Instant, queue_ns: u64, service_ns: u64) {
        self.jobs = self.jobs.saturating_add(1);
        self.queue_ns = self.queue_ns.saturating_add(queue_ns);
        self.wait_ns = self.wait_ns.saturating_add(queue_ns).saturating_add(service_ns);
        if let Some(record) = &mut self.waits {
            let queue = Duration::from_nanos(queue_ns);
            let service = Duration::from_nanos(service_ns);
            record.push(DiskWait { op, queued, queue, service });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_costs() {
        let mut account = Account::hit(JobSource::of(b"/a"));
        assert!(account.is_inline());
        let now = Instant::now();
        account.charge(Op::Open, now, 3, 4);
        account.charge(Op::Read, now, 10, 20);
        assert!(!account.is_inline());
        assert_eq!((account.jobs(), account.queue().as_nanos(), account.wait().as_nanos()), (2, 13, 37));
    }

    #[test]
    fn waits_are_recorded_on_request_up_to_a_limit() {
        let now = Instant::now();
        let mut silent = Account::hit(JobSource::NONE);
        silent.charge(Op::Open, now, 1, 2);
        assert!(silent.waits().is_empty() && silent.part(JobClass::Hit, JobSource::NONE).waits.is_none());
        let mut account = Account::hit(JobSource::NONE);
        account.record_waits(2);
        account.charge(Op::Open, now, 1, 2);
        let mut part = account.part(JobClass::Fill, JobSource::NONE);
        part.charge(Op::Read, now, 3, 4);
        part.charge(Op::Stat, now, 5, 6);
        account.add_part(&part);
        let ops: Vec<_> = account.waits().iter().map(|wait| (wait.op, wait.service.as_nanos())).collect();
        assert_eq!(ops, [(Op::Open, 2), (Op::Read, 4)]);
        assert_eq!((account.jobs(), account.wait().as_nanos()), (3, 21));
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
