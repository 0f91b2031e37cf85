//! `ssl_certificate_watch`: a thread that checks files of certificates for changes, and reads them then.
//!
//! ```text
//! every LOOK: are the files as they were? ─ no ─► as at the last look? ─ yes ─► read ─► does the key fit? ─► Found
//! ```
//! It has the rights of the master, and may wait for a disk, which the main thread should not do again and again: it
//! handles signals. It polls, because notifications do not cover all cases: a name may lead through links that are
//! replaced (certbot, Kubernetes), and files may lie on other machines. A certificate and its key are two files that
//! change one after the other, so they are read when both have come to rest; if they do not match even then, the old
//! ones stay in use until one of them changes again.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tw_base::Errno;
use tw_conf::{MemoryFiles, RecordedFiles};
use tw_log::Level;
use tw_tls_settings::{CertificateFiles, CertificateVersion};

use crate::output::console::Console;

/// Interval of checks. Checking a thousand files that are in memory takes a millisecond.
const LOOK: Duration = Duration::from_secs(2);

/// Certificates to be followed, each as it is used.
pub type WatchedCertificates = Vec<(CertificateFiles, CertificateVersion)>;

/// A certificate whose files have changed.
pub struct CertificateChange {
    /// Name in logs.
    pub name: String,
    /// Matching files; or the reason why they cannot be used, for the log.
    pub outcome: Result<MemoryFiles, String>,
    round: u64,
}

/// Follows certificates for the main thread. Without any there is no thread.
#[derive(Default)]
pub struct CertificateWatch {
    thread: Option<WatchThread>,
    /// Number of the configuration that is watched. Results of an earlier one are dropped.
    round: u64,
}

/// The thread, which ends with this.
struct WatchThread {
    commands: Sender<(u64, WatchedCertificates)>,
    changes: Receiver<CertificateChange>,
    wake: Arc<OwnedFd>,
}

impl CertificateWatch {
    /// Follows these from now on, and no others.
    pub fn follow(&mut self, used: WatchedCertificates, console: &Console) {
        self.round += 1;
        if used.is_empty() {
            self.thread = None;
            return;
        }
        if self.thread.is_none() {
            match WatchThread::start() {
                Ok(handle) => self.thread = Some(handle),
                Err(error) => {
                    let errno = Errno::from(&error);
                    let text =
                        format_args!("starting a thread failed ({errno}), certificates are not followed");
                    return console.report(Level::Alert, text);
                }
            }
        }
        // Sending cannot fail: the thread ends with its handle only.
        let _ = self.thread.as_ref().map(|handle| handle.commands.send((self.round, used)));
    }

    /// Next change, if there is one.
    pub fn next(&self) -> Option<CertificateChange> {
        let WatchThread { changes: found, wake, .. } = self.thread.as_ref()?;
        // The read only resets the counter, which may be zero already.
        let _ = rustix::io::read(wake, &mut [0; 8]);
        found.try_iter().find(|certificate_change| certificate_change.round == self.round)
    }

    /// Readable when something has changed.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.thread.as_ref().map(|handle| handle.wake.as_fd())
    }
}

impl WatchThread {
    fn start() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, received) = mpsc::channel();
        let (send_change, found) = mpsc::channel();
        let bell = wake.clone();
        thread::Builder::new().name("certificates".to_owned()).spawn(move || {
            serve(&received, |certificate_change| {
                // If the receiver is gone, the next wait ends; a full counter wakes it as well.
                let _ = send_change.send(certificate_change);
                let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
            });
        })?;
        Ok(Self { commands, changes: found, wake })
    }
}

fn serve(commands: &Receiver<(u64, WatchedCertificates)>, mut send_change: impl FnMut(CertificateChange)) {
    let mut round = 0;
    let mut all = Vec::new();
    loop {
        match commands.recv_timeout(LOOK) {
            Ok((next, used)) => {
                round = next;
                all = distinct(used);
            }
            Err(RecvTimeoutError::Timeout) => {
                for followed in &mut all {
                    if let Some(outcome) = followed.check() {
                        send_change(CertificateChange { name: followed.pair.name(), outcome, round });
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Servers may have one in common.
fn distinct(used: WatchedCertificates) -> Vec<WatchedCertificate> {
    let mut all: Vec<WatchedCertificate> = Vec::new();
    for (pair, used) in used {
        if !all.iter().any(|watched_certificate| watched_certificate.pair == pair) {
            all.push(WatchedCertificate { pair, used, stamps: Vec::new(), read: Vec::new() });
        }
    }
    all
}

/// A certificate that is followed.
struct WatchedCertificate {
    pair: CertificateFiles,
    used: CertificateVersion,
    /// Files at the last check.
    stamps: Vec<Option<Stamp>>,
    /// Files when they were read; empty if they were not read here.
    read: Vec<Option<Stamp>>,
}

/// Properties that change with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl WatchedCertificate {
    /// Files, if they differ from those in use, or the reason why they cannot be used.
    fn check(&mut self) -> Option<Result<MemoryFiles, String>> {
        let now: Vec<_> = self.pair.watched().map(stamp).collect();
        let is_at_rest = std::mem::replace(&mut self.stamps, now.clone()) == now;
        // A change while they are read is seen at the next look.
        if !is_at_rest || std::mem::replace(&mut self.read, now) == self.stamps {
            return None;
        }
        let files = RecordedFiles::default();
        match self.pair.version(&files) {
            Ok(version) if version == self.used => None,
            Ok(version) => {
                self.used = version;
                Some(Ok(files.into_files()))
            }
            Err(why) => Some(Err(why)),
        }
    }
}

/// Stamp of a file; `None` if there is no such file.
fn stamp(name: &[u8]) -> Option<Stamp> {
    let file_stat = rustix::fs::stat(CString::new(name).ok()?.as_c_str()).ok()?;
    Some(Stamp {
        file: (file_stat.st_dev, file_stat.st_ino),
        size: file_stat.st_size,
        modified: (file_stat.st_mtime, file_stat.st_mtime_nsec),
        changed: (file_stat.st_ctime, file_stat.st_ctime_nsec),
    })
}
