//! Files whose contents modules keep in memory: read while a configuration is loaded, and again when they have changed.
//!
//! ```text
//! load ─► content, version of the file ─► look-ups of modules
//!               ▲
//! every interval: another version? ─ no ─► nothing
//!               └──────────────────── yes ─► read ─► parse ─► replace; if that fails, the content stays
//! ```
//! The first loop runs the checks of its configuration; a pool looks at the file, reads it and parses it.

use std::ffi::{CStr, CString};
use std::fmt;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::io::Errno;
use tw_base::FatalMutex;
use tw_disk::{Account, Disk, DiskError, FileMeta, JobClass, JobSource};
use tw_log::Level;
use tw_rt::watch::Subject;
use tw_rt::{TaskSet, clock};

use crate::config_thread::yield_if_due;
use crate::event_loop::LoopCore;
use crate::generation::{LoopGeneration, ProcessConfig};
use crate::load::Resolve;
use crate::metrics::{Metric, MetricKind};
use crate::module::Protocol;

/// Bytes that are read at once while a configuration is loaded: a few milliseconds of a slow disk.
const PIECE: usize = 1 << 20;

/// Kind of files, and the parser of their contents.
pub struct FileFormat<T> {
    /// Name in messages: `GeoIP2 database`.
    pub name: &'static str,
    /// Largest size in bytes.
    pub size_max: usize,
    /// Makes the content of all bytes of the file, or says why it cannot. May take long, so it runs on no loop.
    pub parse: fn(Vec<u8>) -> Result<T, String>,
}

/// File whose content is in memory. It outlives a configuration as long as the file does not change.
pub struct ReloadedFile<T: 'static> {
    path: CString,
    format: &'static FileFormat<T>,
    /// Locked for writing only to exchange one content for another.
    content: RwLock<T>,
    version: FatalMutex<FileMeta>,
    checked: AtomicI64,
    changed: AtomicI64,
    reloads: Arc<FileReloads>,
}

/// Counts of the reloads of one file. They outlive its contents.
#[derive(Default)]
pub struct FileReloads {
    succeeded: AtomicU64,
    failed: AtomicU64,
}

pub(crate) const METRICS: &[Metric] = &[Metric {
    name: "file_reloads_total",
    kind: MetricKind::Counter,
    labels: &["file", "result"],
    doc: "Files in memory that were read again because they had changed (auto_reload): success, or failed, after which the old content stays in use.",
    read: |scrape, out| {
        for (file, reloads) in scrape.config().shared_objects.of_type::<FileReloads>() {
            let file = String::from_utf8_lossy(file);
            out.value(&[&file, "success"], reloads.succeeded.load(Relaxed));
            out.value(&[&file, "failed"], reloads.failed.load(Relaxed));
        }
    },
}];

impl<T: Send + Sync + 'static> ReloadedFile<T> {
    /// Reads the file with the full name `path`, unless another block or the configuration before has this version of it.
    /// Waits for the disk: at configuration time only.
    ///
    /// # Errors
    /// Line of the log: the file cannot be read, is too large, or has no such content.
    pub fn load<P: Protocol>(
        path: &[u8],
        format: &'static FileFormat<T>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Arc<Self>, String> {
        let failed = |why: &dyn fmt::Display| failure(format.name, path, why);
        let called = |call: &str, errno: Errno| failed(&call_failure(call, errno));
        let file = cx
            .open_file(path)
            .map_err(|error| failed(&format_args!("open() failed ({})", tw_base::Errno::from(&error))))?;
        let version = rustix::fs::fstat(&file).map_err(|errno| called("fstat()", errno))?;
        let version = FileMeta::from(&version);
        let reloads = cx.keep(path, |_| true, FileReloads::default);
        let fits = |reloaded_file: &Self| reloaded_file.is_current(&version);
        cx.try_keep(path, fits, || {
            check_size(&version, format.size_max).map_err(|why| failed(&why))?;
            let content = read(&file, version.size).map_err(|errno| called("read()", errno))?;
            let now = clock::unix().secs;
            Ok(Self {
                path: CString::new(path).map_err(|error| failed(&error))?,
                format,
                content: RwLock::new((format.parse)(content).map_err(|why| failed(&why))?),
                version: FatalMutex::new(version),
                checked: AtomicI64::new(now),
                changed: AtomicI64::new(now),
                reloads,
            })
        })
    }

    /// Has the file checked every `interval` as long as requests are served by this configuration. Of several intervals the
    /// shortest holds.
    pub fn check_every<P: Protocol>(self: &Arc<Self>, interval: Duration, cx: &mut Resolve<'_, P>) {
        let name = [self.format.name.as_bytes(), b" ", self.path.to_bytes()].concat();
        let new = || ReloadCheck { file: self.clone(), interval: AtomicU64::new(u64::MAX) };
        let check = cx.keep(&name, |_| false, new);
        let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        check.interval.fetch_min(interval, Relaxed);
    }

    /// Uses the current content. `with` must be short: a new content waits for its end.
    pub fn read<R>(&self, with: impl FnOnce(&T) -> R) -> R {
        with(&self.content.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Full name of the file.
    pub fn path(&self) -> &[u8] {
        self.path.to_bytes()
    }

    /// Time of the last check, or of loading: seconds since 1970.
    pub fn last_check(&self) -> i64 {
        self.checked.load(Relaxed)
    }

    /// Modification time of the file when it was last read again, or the time of loading: seconds since 1970.
    pub fn last_change(&self) -> i64 {
        self.changed.load(Relaxed)
    }
}

/// File that is checked, whatever its content.
trait CheckedFile: Send + Sync {
    /// Full name of the file.
    fn path(&self) -> &CStr;

    /// Largest size in bytes.
    fn size_max(&self) -> usize;

    /// Returns true if the content is that of this version of the file.
    fn is_current(&self, version: &FileMeta) -> bool;

    /// Notes the time of a check.
    fn set_checked(&self, secs: i64);

    /// Parses a new content and replaces the old one, or says why it cannot. May take long.
    fn replace(&self, content: Vec<u8>, version: FileMeta) -> Result<(), String>;

    /// Counts of its reloads.
    fn reloads(&self) -> &FileReloads;

    /// Kind of the file, for messages.
    fn kind(&self) -> &'static str;
}

impl<T: Send + Sync + 'static> CheckedFile for ReloadedFile<T> {
    fn path(&self) -> &CStr {
        &self.path
    }

    fn size_max(&self) -> usize {
        self.format.size_max
    }

    fn is_current(&self, version: &FileMeta) -> bool {
        self.version.lock().is_same_version(version)
    }

    fn set_checked(&self, secs: i64) {
        self.checked.store(secs, Relaxed);
    }

    fn replace(&self, content: Vec<u8>, version: FileMeta) -> Result<(), String> {
        let new = (self.format.parse)(content)?;
        // Freed without the lock: a large content takes milliseconds.
        let old = std::mem::replace(&mut *self.content.write().unwrap_or_else(PoisonError::into_inner), new);
        *self.version.lock() = version;
        self.changed.store(version.mtime_sec, Relaxed);
        drop(old);
        Ok(())
    }

    fn reloads(&self) -> &FileReloads {
        &self.reloads
    }

    fn kind(&self) -> &'static str {
        self.format.name
    }
}

/// Checks of one file: shared object of the configuration that asks for them.
struct ReloadCheck {
    file: Arc<dyn CheckedFile>,
    /// Milliseconds.
    interval: AtomicU64,
}

/// Reason why a file was not read again.
#[derive(PartialEq, Eq)]
struct CheckFailure {
    why: String,
    /// Version of the file that has no usable content; `None` if the file could not be read, which is tried again.
    broken: Option<FileMeta>,
}

/// Result of a check without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checked {
    Unchanged,
    Replaced,
}

/// Checks the files of the current configuration, on the first loop. Never completes.
pub async fn run_checks(core: Rc<LoopCore>) {
    let mut checks = TaskSet::default();
    let process = core.process();
    for (name, _) in process.shared_objects.of_type::<ReloadCheck>() {
        if core.index == 0
            && let Some(check) = process.shared_objects.find::<ReloadCheck>(name)
        {
            checks.spawn((), Subject { kind: "file check", id: 0 }, check.run(process.clone()));
        }
    }
    while let ((), Ok(())) = poll_fn(|cx| checks.poll_ended(cx)).await {}
}

impl ReloadCheck {
    async fn run(self: Arc<Self>, process: Rc<LoopGeneration<ProcessConfig>>) {
        let interval = Duration::from_millis(self.interval.load(Relaxed));
        let disk = process.disks.default_disk();
        let log = &process.error_log;
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let mut last_failure = None;
        loop {
            tw_rt::time::sleep(interval).await;
            let broken = last_failure.as_ref().and_then(|failure: &CheckFailure| failure.broken);
            let outcome = self.check(broken, disk, &mut account).await;
            self.file.set_checked(clock::unix().secs);
            let kind = self.file.kind();
            let path = self.file.path().to_bytes();
            match outcome {
                Ok(Checked::Unchanged) if broken.is_some() => {}
                Ok(Checked::Unchanged) => last_failure = None,
                Ok(Checked::Replaced) => {
                    self.file.reloads().succeeded.fetch_add(1, Relaxed);
                    last_failure = None;
                    let path = String::from_utf8_lossy(path);
                    log.write(Level::Notice, None, format_args!("{kind} \"{path}\" was reloaded"));
                }
                Err(failed) => {
                    self.file.reloads().failed.fetch_add(1, Relaxed);
                    // A failure is logged once, until its reason changes.
                    if last_failure.as_ref() != Some(&failed) {
                        let text = failure(kind, path, &failed.why);
                        log.write(Level::Error, None, format_args!("{text}, the old one stays in use"));
                    }
                    last_failure = Some(failed);
                }
            }
        }
    }

    /// Reads the file if it is another one than in memory, unless it is the `broken` one.
    async fn check(
        &self,
        broken: Option<FileMeta>,
        disk: &Disk,
        account: &mut Account,
    ) -> Result<Checked, CheckFailure> {
        let passing = |error: DiskError| CheckFailure { why: error.to_string(), broken: None };
        let version = disk.stat(account, self.file.path()).await.map_err(passing)?;
        let is_broken = broken.is_some_and(|broken| broken.is_same_version(&version));
        if is_broken || self.file.is_current(&version) {
            return Ok(Checked::Unchanged);
        }
        let unusable = |why| CheckFailure { why, broken: Some(version) };
        check_size(&version, self.file.size_max()).map_err(unusable)?;
        let content =
            disk.read_whole(account, self.file.path(), self.file.size_max()).await.map_err(passing)?;
        let file = self.file.clone();
        let replaced =
            disk.pool().run(account, move || file.replace(content, version)).await.map_err(passing)?;
        replaced.map_err(unusable).map(|()| Checked::Replaced)
    }
}

/// Line of the log.
fn failure(kind: &str, path: &[u8], why: &dyn fmt::Display) -> String {
    format!("cannot load {kind} \"{}\": {why}", String::from_utf8_lossy(path))
}

fn call_failure(call: &str, errno: Errno) -> String {
    format!("{call} failed ({})", tw_base::Errno::from(errno))
}

fn check_size(version: &FileMeta, max: usize) -> Result<(), String> {
    if version.size > max as u64 {
        Err(format!("the file has {} bytes, more than {max}", version.size))
    } else {
        Ok(())
    }
}

/// Reads `size` bytes, or as many as there are.
fn read(file: &OwnedFd, size: u64) -> Result<Vec<u8>, Errno> {
    let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
    let mut content = vec![0; size];
    let mut filled = 0;
    while filled < size {
        let end = size.min(filled + PIECE);
        match rustix::io::pread(file, &mut content[filled..end], filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        yield_if_due();
    }
    content.truncate(filled);
    Ok(content)
}
