//! A mounted disk, from its start to the end of the mount.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::io::Errno;

use crate::fault::{Op, Scope};
use crate::front::{Front, Shared};
use crate::settings::Settings;
use crate::store::Store;

const FUSE: &str = "/dev/fuse";

/// Access of processes to a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody may do everything.
    Free,
    /// The kernel checks owners and permissions of files.
    Checked,
}

/// A mounted disk. Dropping it lifts all faults and unmounts.
#[derive(Debug)]
pub struct Mount<S> {
    shared: Arc<Shared<S>>,
    session: BackgroundSession,
    point: PathBuf,
}

/// Reason for which a disk cannot be mounted.
#[derive(Debug)]
pub struct Unavailable(String);

impl<S: Store + fmt::Debug> Mount<S> {
    /// Mounts content on an existing directory, and serves it with so many threads.
    ///
    /// # Errors
    /// [`Unavailable`] without `/dev/fuse`, for a user who is not root without `fusermount3`, and if the mount point is no directory
    /// that can be used.
    pub fn new(store: S, point: &Path, access: Access, threads: usize) -> Result<Self, Unavailable> {
        check(point)?;
        let shared = Arc::new(Shared::new(store));
        let session = fuser::spawn_mount(Front::new(Arc::clone(&shared)), point, &config(access, threads))
            .map_err(|error| Unavailable::mounting(point, &error))?;
        Ok(Self { shared, session, point: point.to_owned() })
    }

    /// Content of the disk; no fault applies to what is done with it here.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Begins a fault for one kind of operation.
    pub fn on(&self, op: Op) -> Scope {
        self.shared.faults.on(op)
    }

    /// Number of operations of a kind that have reached the disk so far, including those hit by a fault.
    #[must_use]
    pub fn count(&self, op: Op) -> u64 {
        self.shared.faults.count(op)
    }

    /// Settings in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.shared.faults.settings()
    }

    /// Puts settings in force; operations that wait because of those before go on. Counts the bytes of all files if the disk shall be
    /// full at some size.
    pub fn set(&self, settings: Settings) {
        if settings.capacity().is_some() {
            self.shared.store.used();
        }
        self.shared.faults.set(settings);
    }

    /// Lines about the operations so far: kind, number, delayed and failed ones.
    #[must_use]
    pub fn report(&self) -> String {
        let hits = self.shared.faults.hits();
        let lines = hits.iter().filter(|hits| hits.all > 0).map(|hits| {
            let name = hits.op.name();
            format!("{name:8} {} operations, {} delayed, {} failed\n", hits.all, hits.delayed, hits.failed)
        });
        lines.collect()
    }

    /// Sets the time for which the kernel may cache names and attributes that it gets from now on; at first not at
    /// all.
    pub fn remember(&self, span: Duration) {
        self.shared.remember(span);
    }

    /// Returns `true` if somebody else has unmounted the disk.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.session.guard.is_finished()
    }
}

impl<S> Mount<S> {
    /// Lifts all faults and unmounts.
    pub fn unmount(&self) {
        self.shared.faults.lift_all();
        // A process that still has a file open must not keep the mount point: it is detached, and the rest ends with
        // the last user. This is not permitted for a user who mounted through fusermount3; the session then unmounts in
        // the same way.
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

impl<S> Drop for Mount<S> {
    fn drop(&mut self) {
        self.unmount();
    }
}

impl Unavailable {
    /// With this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    fn mounting(point: &Path, error: &io::Error) -> Self {
        let point = point.display();
        // The helper writes lines of its own.
        let said = error.to_string();
        let said = said.trim();
        if error.kind() == io::ErrorKind::NotFound || error.kind() == io::ErrorKind::PermissionDenied {
            return Self(format!("mounting on \"{point}\" needs root or the program fusermount3: {said}"));
        }
        Self(format!("mounting on \"{point}\" failed: {said}"))
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for io::Error {
    fn from(why: Unavailable) -> Self {
        Self::new(io::ErrorKind::Unsupported, why)
    }
}

fn check(point: &Path) -> Result<(), Unavailable> {
    if !Path::new(FUSE).exists() {
        return Err(Unavailable(format!(
            "there is no {FUSE}: load the module fuse, or give the container the device"
        )));
    }
    let shown = point.display();
    match rustix::fs::stat(point) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() => Ok(()),
        Ok(_) => Err(Unavailable(format!("the mount point \"{shown}\" is no directory"))),
        Err(Errno::NOENT) => Err(Unavailable(format!("the mount point \"{shown}\" does not exist"))),
        Err(Errno::NOTCONN) => {
            Err(Unavailable(format!("on \"{shown}\" is a mount whose process was killed: umount -l {shown}")))
        }
        Err(errno) => {
            let errno = tw_base::Errno::from(errno);
            Err(Unavailable(format!("the mount point \"{shown}\" cannot be used ({errno})")))
        }
    }
}

fn config(access: Access, threads: usize) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("tailwater-slowdisk".to_owned()), MountOption::NoDev];
    if access == Access::Checked {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    // A worker that gave up its privileges must reach the files; only root may allow that without asking.
    config.acl = if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads);
    config
}
