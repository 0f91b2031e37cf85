//! Real file system on a device that can be stalled: unlike FUSE, it has a journal of the kernel.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tw_testkit::disk::SlowDisk;
use tw_testkit::{Lacks, TempDir, leave_out};

/// An ext4 of 16 MiB whose device is a file on a disk that can be stalled.
pub(crate) struct SlowExt4 {
    pub(crate) disk: SlowDisk,
    pub(crate) mount: TempDir,
}

impl SlowExt4 {
    /// Mounts it, or leaves the test out like [`SlowDisk::mount_or_skip`]; only root mounts an ext4.
    pub(crate) fn mount_or_skip() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            leave_out(Lacks::Run, "only root mounts an ext4 whose disk can stand still");
            return None;
        }
        let disk = SlowDisk::mount_or_skip()?;
        let dir = TempDir::new("image").unwrap();
        let mount = TempDir::new("journal").unwrap();
        let image = dir.join("image");
        let made = run(
            "mkfs.ext4",
            &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            &[&image, Path::new("16M")],
        );
        if made {
            disk.write("image", fs::read(&image).unwrap());
        }
        if !made
            || !run("mount", &["-t", "ext4", "-o", "loop,relatime"], &[&disk.join("image"), mount.path()])
        {
            leave_out(Lacks::Machine, "an ext4 in a file cannot be made and mounted");
            return None;
        }
        Some(Self { disk, mount })
    }
}

impl Drop for SlowExt4 {
    fn drop(&mut self) {
        run("umount", &["-l"], &[self.mount.path()]);
    }
}

fn run(program: &str, words: &[&str], paths: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(words).args(paths).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
