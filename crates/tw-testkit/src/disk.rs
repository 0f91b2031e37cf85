//! Disk that is slow or failing on demand: a FUSE file system in memory, mounted for one test.
//!
//! ```no_run
//! use tw_testkit::disk::{Fault, Op, SlowDisk};
//! use tw_testkit::wait;
//!
//! let Some(disk) = SlowDisk::mount_or_skip() else { return };
//! disk.write("cold.bin", "content");
//! let held = disk.on(Op::Open).name("cold.bin").inject(Fault::Stall);
//! // … a request for the file is sent …
//! assert!(wait::until(wait::TIMEOUT, || held.waiting() == 1), "the request reached the disk");
//! // … other requests are answered meanwhile …
//! held.lift();
//! ```
//!
//! An operation that is held occupies nothing: others go on, in the same directory too as far as Linux itself allows.
//! By default the kernel may remember neither names nor attributes, and forgets data at each open, so every operation
//! reaches the disk; [`SlowDisk::remember`] changes that.
//!
//! A process that is killed while an operation of it is held ends only when the operation does: lift the fault before
//! the server is dropped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tw_slowdisk::{Access, Memory, Mount};

pub use tw_slowdisk::{Fault, Injected, Op, Scope, Unavailable};

use crate::left_out::{Lacks, leave_out};
use crate::temp::TempDir;

/// A mounted file system in memory. Dropping it lifts all faults and unmounts.
pub struct SlowDisk {
    // Unmounted before its directory is removed.
    mount: Mount<Memory>,
    mount_point: TempDir,
}

impl SlowDisk {
    /// Mounts an empty disk on a fresh directory.
    ///
    /// # Errors
    /// [`Unavailable`] without `/dev/fuse`, and for a user who is not root without `fusermount3`.
    pub fn mount() -> Result<Self, Unavailable> {
        let mount_point =
            TempDir::new("disk").map_err(|e| Unavailable::new(format!("no mount point: {e}")))?;
        let mount = Mount::new(Memory::default(), mount_point.path(), Access::Free, 1)?;
        Ok(Self { mount, mount_point })
    }

    /// As [`SlowDisk::mount`]; if it fails, [reports that](leave_out), and the test returns early.
    #[must_use]
    pub fn mount_or_skip() -> Option<Self> {
        Self::mount()
            .inspect_err(|why| leave_out(Lacks::Machine, format_args!("there is no slow disk: {why}")))
            .ok()
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount_point.path()
    }

    /// Path on the disk; does not access it.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file to the disk without the kernel, with its directories; no fault applies.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        self.mount.store().put(name.as_ref(), content.as_ref());
    }

    /// Content of a file as the disk has it, without going through the kernel; `None` if there is none.
    #[must_use]
    pub fn read(&self, name: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.mount.store().content(name.as_ref())
    }

    /// Begins a fault for one kind of operation.
    pub fn on(&self, op: Op) -> Scope {
        self.mount.on(op)
    }

    /// Number of operations of a kind that have reached the disk so far, including those hit by a fault.
    #[must_use]
    pub fn count(&self, op: Op) -> u64 {
        self.mount.count(op)
    }

    /// Sets the time for which the kernel may cache names and attributes that it gets from now on; at first not at
    /// all.
    pub fn remember(&self, span: Duration) {
        self.mount.remember(span);
    }
}

impl fmt::Debug for SlowDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowDisk").field("path", &self.path()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{self, Read};
    use std::thread;

    use rustix::io::Errno;

    use super::*;
    use crate::wait;

    #[test]
    fn operations_behave_like_an_ordinary_file_system() {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        disk.write("a/seen.txt", "from below");
        assert_eq!(fs::read(disk.join("a/seen.txt")).unwrap(), b"from below");

        fs::create_dir_all(disk.join("x/y")).unwrap();
        fs::write(disk.join("x/y/f"), vec![7; 300_000]).unwrap();
        fs::rename(disk.join("x/y/f"), disk.join("g")).unwrap();
        fs::hard_link(disk.join("g"), disk.join("h")).unwrap();
        fs::remove_file(disk.join("g")).unwrap();
        assert_eq!(disk.read("h").unwrap(), vec![7; 300_000]);
        assert_eq!(fs::metadata(disk.join("h")).unwrap().len(), 300_000);

        let mut names: Vec<_> = fs::read_dir(disk.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["a", "h", "x"]);

        fs::remove_dir(disk.join("x/y")).unwrap();
        assert!(fs::remove_dir(disk.join("a")).is_err());
        assert_eq!((disk.count(Op::Open), disk.count(Op::Create)), (1, 1));
    }

    #[test]
    fn stalled_open_does_not_block_other_operations() {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        disk.write("slow", "late");
        disk.write("quick", "soon");
        let injected = disk.on(Op::Open).name("slow").inject(Fault::Stall);

        let path = disk.join("slow");
        let reader = thread::spawn(move || fs::read(path));
        assert!(wait::until(wait::TIMEOUT, || injected.waiting() == 1));
        assert_eq!(fs::read(disk.join("quick")).unwrap(), b"soon");
        assert!(!reader.is_finished());

        injected.lift();
        assert_eq!(reader.join().unwrap().unwrap(), b"late");
    }

    #[test]
    fn stalled_read_blocks_only_the_reader() {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        disk.write("f", "content");
        let injected = disk.on(Op::Read).inject(Fault::Stall);
        let mut file = File::open(disk.join("f")).unwrap();
        let reader = thread::spawn(move || {
            let mut text = String::new();
            file.read_to_string(&mut text).map(|_| text)
        });
        assert!(wait::until(wait::TIMEOUT, || injected.waiting() >= 1));
        assert_eq!(fs::metadata(disk.join("f")).unwrap().len(), 7);
        drop(injected);
        assert_eq!(reader.join().unwrap().unwrap(), "content");
    }

    #[test]
    fn errors_reach_the_caller_and_end_with_the_fault() {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        disk.write("f", "content");
        let code = |error: io::Error| error.raw_os_error();

        let fault = disk.on(Op::Read).inject(Fault::Error(Errno::IO));
        assert_eq!(code(fs::read(disk.join("f")).unwrap_err()), Some(Errno::IO.raw_os_error()));
        assert!(fault.hits() >= 1);
        drop(fault);
        assert_eq!(fs::read(disk.join("f")).unwrap(), b"content");

        let fault = disk.on(Op::Create).name("new").inject(Fault::Error(Errno::NOSPC));
        assert_eq!(code(File::create(disk.join("new")).unwrap_err()), Some(Errno::NOSPC.raw_os_error()));
        assert!(File::create(disk.join("other")).is_ok());
        drop(fault);

        let _fault = disk.on(Op::Rename).inject(Fault::Error(Errno::ROFS));
        let error = fs::rename(disk.join("f"), disk.join("g")).unwrap_err();
        assert_eq!(code(error), Some(Errno::ROFS.raw_os_error()));
    }

    #[test]
    fn dropped_disk_releases_stalled_operations() {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        disk.write("f", "content");
        let mount_point = disk.path().to_owned();
        let injected = disk.on(Op::Open).inject(Fault::Stall);
        let path = disk.join("f");
        let opener = thread::spawn(move || File::open(path).map(drop));
        assert!(wait::until(wait::TIMEOUT, || injected.waiting() == 1));
        drop(disk);
        assert!(wait::until(wait::TIMEOUT, || opener.is_finished()));
        assert!(!mount_point.exists());
    }
}
