//! Cgroup of version 1 or 2 with a memory limit and a slow disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use tw_testkit::wait;

use super::Outcome;
use super::options::Options;
use super::report::Report;
use super::run_name::run_name;

const MOUNT: &str = "/sys/fs/cgroup";
/// Directories in which groups are made: of version 1 for each controller, and of version 2.
pub(super) const PARENTS: [&str; 3] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/blkio", MOUNT];

/// Memory for which the cold set is sized where nothing can be limited.
const UNLIMITED_MEMORY: u64 = 100 << 20;

/// Limits of the processes in the group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// False where groups cannot be made: processes run without limits then.
    is_enforced: bool,
    /// Memory, page cache included, in bytes.
    pub(super) memory: u64,
    /// Reads per second from the device.
    pub(super) iops: u64,
    /// Bytes per second read from the device.
    pub(super) bandwidth: u64,
}

impl Limits {
    /// Reads the options; `memory` is the default of theirs.
    pub(super) fn parse(options: &Options, memory: u64) -> Outcome<Self> {
        Ok(Self {
            is_enforced: true,
            memory: options.size("memory", memory)?,
            iops: options.number("iops", 400)?,
            bandwidth: options.size("bandwidth", 120 << 20)?,
        })
    }

    /// These limits, if a group can have them; otherwise a smaller run without limits, which the report says. Creates
    /// the directory of the data.
    pub(super) fn checked(self, data: &Path, report: &mut Report) -> Outcome<Self> {
        fs::create_dir_all(data)?;
        let Err(why) = Cgroup::new(self, data) else {
            report.note(&format!(
                "Limits: {} MiB of memory, {} reads and {} MiB per second from the disk.",
                self.memory >> 20,
                self.iops,
                self.bandwidth >> 20
            ));
            return Ok(self);
        };
        report.note(&format!(
            "Memory and disk are not limited ({why}): the cold set has {} MiB only, is put out of memory before each run, \
            and is read as fast as this disk can. Compare nothing with limited runs.",
            (UNLIMITED_MEMORY * 10) >> 20
        ));
        Ok(Self { is_enforced: false, memory: self.memory.min(UNLIMITED_MEMORY), ..self })
    }
}

/// A group that exists. Dropping it removes it, once its processes have ended.
#[derive(Debug)]
pub(super) struct Cgroup {
    dirs: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a group whose reads from the disk under `data` are limited.
    ///
    /// The group is made at the top of the hierarchy: in version 2 a group with processes of its own cannot have
    /// limited groups below it.
    pub(super) fn new(limits: Limits, data: &Path) -> Outcome<Self> {
        if !limits.is_enforced {
            return Ok(Self { dirs: Vec::new() });
        }
        if !rustix::process::geteuid().is_root() {
            return Err("limiting memory and disk needs root".into());
        }
        let device = disk_under(data)?;
        let name = run_name();
        let version_1 = has_version_1();
        let group = if version_1 { version_1_dirs(&name)? } else { version_2_dir(&name)? };
        for (file, value) in
            if version_1 { version_1_limits(limits, &device) } else { version_2_limits(limits, &device) }
        {
            group.set(file, &value)?;
        }
        Ok(group)
    }

    /// The directories a process has to enter.
    pub(super) fn dirs(&self) -> Vec<String> {
        self.dirs.iter().map(|dir| dir.display().to_string()).collect()
    }

    /// Writes a limit to whichever of the directories has the file.
    fn set(&self, file: &str, value: &str) -> Outcome {
        let path = self.dirs.iter().map(|dir| dir.join(file)).find(|path| path.exists());
        let path = path.ok_or_else(|| format!("this kernel has no {file} in its cgroups"))?;
        Ok(fs::write(&path, value).map_err(|e| format!("{}: {e}", path.display()))?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for dir in &self.dirs {
            remove_dir(dir);
        }
    }
}

/// Bytes that the disk under this directory has written since the start of the machine, whoever wrote them.
pub(super) fn written_bytes(dir: &Path) -> Outcome<u64> {
    let stat = fs::read_to_string(format!("/sys/dev/block/{}/stat", disk_under(dir)?))?;
    parse_written(&stat).ok_or_else(|| "unknown format of the disk's statistics".into())
}

/// The seventh number of the statistics of a disk, in sectors of 512 bytes.
fn parse_written(stat: &str) -> Option<u64> {
    Some(stat.split_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

/// Removes the groups of this name, if there are any.
pub(super) fn remove(name: &str) {
    for parent in PARENTS {
        remove_dir(&Path::new(parent).join(name));
    }
}

fn remove_dir(dir: &Path) {
    // Busy until the kernel has seen the last process out. A group that stays is empty and limits nobody.
    let _ = wait::until(wait::TIMEOUT, || match fs::remove_dir(dir) {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    });
}

fn has_version_1() -> bool {
    Path::new(MOUNT).join("memory/memory.limit_in_bytes").exists()
}

/// Version of the cgroups of this machine.
pub(super) fn version() -> &'static str {
    match (has_version_1(), Path::new(MOUNT).join("cgroup.controllers").exists()) {
        (true, _) => "cgroup v1",
        (false, true) => "cgroup v2",
        (false, false) => "no cgroups",
    }
}

fn version_1_dirs(name: &str) -> Outcome<Cgroup> {
    let mut group = Cgroup { dirs: Vec::new() };
    for controller in ["memory", "blkio"] {
        group.dirs.push(create(&Path::new(MOUNT).join(controller), name)?);
    }
    Ok(group)
}

fn version_2_dir(name: &str) -> Outcome<Cgroup> {
    let control = Path::new(MOUNT).join("cgroup.subtree_control");
    fs::write(&control, "+memory +io")
        .map_err(|e| format!("no memory and io controllers: {}: {e}", control.display()))?;
    Ok(Cgroup { dirs: vec![create(Path::new(MOUNT), name)?] })
}

fn create(parent: &Path, name: &str) -> Outcome<PathBuf> {
    let dir = parent.join(name);
    match fs::create_dir(&dir) {
        Ok(()) => Ok(dir),
        // Left behind by an earlier measurement of this process that could not remove it.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(dir),
        Err(e) => Err(format!("cannot make a cgroup: {}: {e}", dir.display()).into()),
    }
}

fn version_1_limits(limits: Limits, device: &str) -> Vec<(&'static str, String)> {
    let Limits { memory, iops, bandwidth, .. } = limits;
    vec![
        ("memory.limit_in_bytes", memory.to_string()),
        ("blkio.throttle.read_iops_device", format!("{device} {iops}")),
        ("blkio.throttle.read_bps_device", format!("{device} {bandwidth}")),
    ]
}

fn version_2_limits(limits: Limits, device: &str) -> Vec<(&'static str, String)> {
    let Limits { memory, iops, bandwidth, .. } = limits;
    vec![("memory.max", memory.to_string()), ("io.max", format!("{device} rbps={bandwidth} riops={iops}"))]
}

/// `MAJOR:MINOR` of the whole disk that a directory is on: a partition cannot be limited by itself.
fn disk_under(dir: &Path) -> Outcome<String> {
    let device = fs::metadata(dir)?.dev();
    let number = format!("{}:{}", major(device), minor(device));
    let Ok(entry) = fs::canonicalize(Path::new("/sys/dev/block").join(&number)) else {
        let dir = dir.display();
        return Err(format!("{dir} is not on a block device of its own ({number}): give --data").into());
    };
    match entry.parent() {
        Some(disk) if entry.join("partition").exists() => {
            Ok(fs::read_to_string(disk.join("dev"))?.trim().to_owned())
        }
        _ => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_get_the_same_limits() {
        let limits = Limits { is_enforced: true, memory: 1024, iops: 400, bandwidth: 2048 };
        assert_eq!(
            version_1_limits(limits, "8:0"),
            [
                ("memory.limit_in_bytes", "1024".to_owned()),
                ("blkio.throttle.read_iops_device", "8:0 400".to_owned()),
                ("blkio.throttle.read_bps_device", "8:0 2048".to_owned()),
            ]
        );
        assert_eq!(
            version_2_limits(limits, "8:0"),
            [("memory.max", "1024".to_owned()), ("io.max", "8:0 rbps=2048 riops=400".to_owned())]
        );
    }

    #[test]
    fn written_sectors_are_the_seventh_number() {
        let stat = "    1302      125    41312      566     1180      633    15400     1027        0      752     1594";
        assert_eq!(parse_written(stat), Some(15400 * 512));
        assert_eq!(parse_written("1 2 3"), None);
    }
}
