//! One thread for all pools, which finds out that nothing comes back from a device.
//!
//! The thread counts ticks while any pool is at work on a device, and sleeps otherwise. It waits for no disk, so that it can
//! always tell those who wait that their device hangs, and start a thread in the place of one that does.

use crate::device::{self, Device};
use crate::mounts;
use crate::notice::Notice;
use crate::queue::{PROBE_TICKS, PROBES_MAX, Queue};
use crate::stats::HungDevice;
use crate::task::Task;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Interval at which pools at work are looked at.
const TICK: Duration = Duration::from_millis(250);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Operations begun on a device beyond its share of a pool while others hang there.
    constant count PROBES_MAX, "503 with Retry-After, or the origin server, until one of them ends";
    /// Wait for a device that hangs, behind the operation that tries whether it answers again.
    const PROBE_WAIT: Duration = TICK.saturating_mul(PROBE_TICKS as u32), time, "503 with Retry-After, or the origin server";
}

/// A queue that is looked at.
pub(crate) trait Watched: Send + Sync {
    /// Lets one tick pass; says whether there is anything to look at in the next one.
    fn tick(self: Arc<Self>) -> bool;
}

struct Watch {
    /// True if the watcher counts ticks: whoever begins something need not wake it.
    is_awake: AtomicBool,
    state: Mutex<WatchState>,
    wake: Condvar,
}

struct WatchState {
    queues: Vec<Weak<dyn Watched>>,
    is_wanted: bool,
    has_thread: bool,
}

static WATCH: Watch = Watch {
    is_awake: AtomicBool::new(false),
    state: Mutex::new(WatchState { queues: Vec::new(), is_wanted: false, has_thread: false }),
    wake: Condvar::new(),
};

fn lock() -> MutexGuard<'static, WatchState> {
    // Each change of the state is complete, so a poisoned lock is harmless.
    WATCH.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread on first use.
pub(crate) fn start() -> Result<(), Errno> {
    let mut state = lock();
    if !state.has_thread {
        let started = std::thread::Builder::new().name("disk-watch".to_owned()).spawn(watch);
        started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        state.has_thread = true;
    }
    Ok(())
}

/// Has a queue looked at as long as it exists.
pub(crate) fn over<W: Watched + 'static>(queue: &Arc<W>) {
    let queue: Weak<W> = Arc::downgrade(queue);
    lock().queues.push(queue);
}

/// Notes that a job was queued, on a device or on none. One load, unless nothing was at work.
pub(crate) fn wake(device: Option<&'static Device>) {
    if device.is_none() || WATCH.is_awake.load(SeqCst) {
        return;
    }
    lock().is_wanted = true;
    WATCH.wake.notify_one();
}

/// Ticks of a span, rounded up.
pub(crate) fn ticks(span: Duration) -> u64 {
    u64::try_from(span.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u64::MAX).max(1)
}

fn span(ticks: u64) -> Duration {
    TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
}

#[expect(clippy::disallowed_methods, reason = "no loop: this thread is the clock of the pools")]
fn watch() {
    loop {
        let mut state = lock();
        while !state.is_wanted {
            state = WATCH.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_wanted = false;
        drop(state);
        WATCH.is_awake.store(true, SeqCst);
        loop {
            std::thread::sleep(TICK);
            if tick_all() {
                continue;
            }
            WATCH.is_awake.store(false, SeqCst);
            // Work begun before `is_awake` was cleared is seen by this tick; work begun later wakes this thread.
            if !tick_all() {
                break;
            }
            WATCH.is_awake.store(true, SeqCst);
        }
    }
}

/// One tick for every queue. A queue may tick twice in a row when work begins just as this thread would rest, which makes a
/// timeout one tick shorter at most.
fn tick_all() -> bool {
    let queues = {
        let mut state = lock();
        state.queues.retain(|queue| queue.strong_count() > 0);
        state.queues.clone()
    };
    // Every queue ticks, whatever the first one returns.
    queues.iter().filter_map(Weak::upgrade).filter(|queue| queue.clone().tick()).count() > 0
}

/// Job that can be told that its device hangs.
pub(crate) trait Refuse {
    /// Fails the waiting tasks, because `mount` hangs.
    fn refuse(&self, mount: &Arc<str>);
}

impl Refuse for Arc<dyn crate::task::Run> {
    fn refuse(&self, mount: &Arc<str>) {
        (**self).refuse(mount);
    }
}

impl<W, T> Refuse for Arc<Task<W, T>> {
    fn refuse(&self, mount: &Arc<str>) {
        Task::refuse(self, mount);
    }
}

/// Jobs to refuse and notices to give, as soon as no lock is held.
pub(crate) struct RefusedJobs<J> {
    pub(crate) jobs: Vec<(J, Arc<str>)>,
    notices: Vec<Notice>,
}

impl<J> Default for RefusedJobs<J> {
    fn default() -> Self {
        Self { jobs: Vec::new(), notices: Vec::new() }
    }
}

impl<J: Refuse> RefusedJobs<J> {
    pub(crate) fn report(self, notify: impl Fn(Notice)) {
        for notice in self.notices {
            notify(notice);
        }
        for (job, mount) in self.jobs {
            job.refuse(&mount);
        }
    }
}

/// Devices on which jobs of one queue hang.
#[derive(Default)]
pub(crate) struct HungDevices(Vec<HungRecord>);

struct HungRecord {
    device: u32,
    mount: Arc<str>,
    since: SystemTime,
    /// An operator was told.
    is_told: bool,
}

impl HungDevices {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Mount point of a device that hangs.
    pub(crate) fn mount(&self, device: u32) -> Arc<str> {
        let hung_record = self.0.iter().find(|record| record.device == device);
        hung_record.map_or_else(|| "a device".into(), |record| record.mount.clone())
    }

    /// Notes that a job hangs on a device, and has for so many ticks.
    pub(crate) fn begin(&mut self, device: u32, ticks: u64) -> Arc<str> {
        if let Some(record) = self.0.iter().find(|record| record.device == device) {
            return record.mount.clone();
        }
        let mount = mounts::name_of(device::numbered(device).and_then(Device::dev));
        let since = SystemTime::now().checked_sub(span(ticks)).unwrap_or(UNIX_EPOCH);
        self.0.push(HungRecord { device, mount: mount.clone(), since, is_told: false });
        mount
    }

    /// Refuses what waits in vain, and says what has begun or ended to hang.
    pub(crate) fn check<J>(&mut self, queue: &mut Queue<J>, pool: &str, refused: &mut RefusedJobs<J>) {
        self.0.retain_mut(|record| {
            let operations = queue.hung_on(record.device);
            let after = record.since.elapsed().unwrap_or_default();
            let mount = record.mount.clone();
            if operations == 0 {
                if record.is_told {
                    refused.notices.push(Notice::Answers { pool: pool.into(), mount, after });
                }
                return false;
            }
            let waiting = queue.refuse_waiting(record.device);
            refused.jobs.extend(waiting.into_iter().map(|job| (job, mount.clone())));
            if queue.is_hung(record.device) && !std::mem::replace(&mut record.is_told, true) {
                refused.notices.push(Notice::Hangs { pool: pool.into(), mount, operations, after });
            }
            true
        });
    }

    /// Adds them to a list for an operator; `count` tells how many jobs hang on a device.
    pub(crate) fn add_to(&self, hung: &mut Vec<HungDevice>, count: impl Fn(u32) -> u32) {
        for record in &self.0 {
            let since_s = record.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let operations = count(record.device);
            match hung.iter_mut().find(|hung_device| hung_device.mount == record.mount) {
                Some(hung_device) => {
                    hung_device.since_s = hung_device.since_s.min(since_s);
                    hung_device.operations += operations;
                }
                None => hung.push(HungDevice { mount: record.mount.clone(), since_s, operations }),
            }
        }
    }
}
