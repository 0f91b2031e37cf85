//! Mounts of this process, read from `/proc/self/mountinfo`: which device a path leads to, and which may wait for another
//! process or machine even for a cached name.
//!
//! `openat2(RESOLVE_CACHED)` promises that the *path walk* does not wait. The file system's own `open` still may: FUSE asks
//! its daemon, NFS its server. Paths below such mounts always become jobs.
//!
//! A job has to count for a device before the device is used. The longest mount point above its path tells; where a
//! symbolic link leads to another device, jobs find that out before they go there ([`walk`]).

mod walk;

use crate::device::Device;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock, TryLockError};

pub(crate) use walk::CountedDevices;

/// File systems that answer from this machine's memory once a name is cached; the rest is taken for remote.
const LOCAL: [&str; 45] = [
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "f2fs",
    "bcachefs",
    "zfs",
    "jfs",
    "squashfs",
    "erofs",
    "overlay",
    "tmpfs",
    "ramfs",
    "rootfs",
    "iso9660",
    "udf",
    "vfat",
    "exfat",
    "reiserfs",
    "nilfs2",
    "cramfs",
    "romfs",
    "minix",
    "hfsplus", // and those that are no place for files, but are mounted everywhere:
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "mqueue",
    "hugetlbfs",
    "debugfs",
    "tracefs",
    "securityfs",
    "pstore",
    "bpf",
    "configfs",
    "fusectl",
    "rpc_pipefs",
    "binfmt_misc",
    "nsfs",
    "selinuxfs",
    "efivarfs",
];

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    /// Device number.
    dev: u64,
    point: Vec<u8>,
    /// True if files below the mount may be opened on a loop.
    is_local: bool,
}

/// The mounts of this process at one moment.
#[derive(Debug, Clone, Default)]
struct Table {
    mounts: Vec<Mount>,
    /// Positions in `mounts` by mount point.
    by_point: HashMap<Vec<u8>, usize>,
    /// Positions of those that matter to [`may_wait`]: remote ones, and local ones below those.
    about_remote: Vec<usize>,
    /// Directories whose device is another than their mount's (behind symbolic links), with that device.
    elsewhere: HashMap<Vec<u8>, u64>,
}

/// Paths that are faulty on purpose ([`faults`](crate::faults)).
struct FaultyPaths {
    /// All so far; the position makes the device number.
    paths: Vec<Box<[u8]>>,
    /// Mounts of those that are faulty now, as if something was mounted there.
    mounts: Vec<Mount>,
}

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Directories that lead to another device through symbolic links, and are remembered.
    const ELSEWHERE_MAX: usize = 256, count, "the links to further ones are read by each job";
    /// Directories that are remembered to have no link to another device on their way.
    constant count walk::PLAIN_MAX, "all are forgotten, and the links to them are read again";
}

static TABLE: RwLock<Option<Arc<Table>>> = RwLock::new(None);
/// Paths that are faulty on purpose. Only threads that may wait use them.
static FAULTY: Mutex<FaultyPaths> = Mutex::new(FaultyPaths { paths: Vec::new(), mounts: Vec::new() });
/// Bit of the device numbers of those paths, which no real number has.
const FAULTY_DEV: u64 = 1 << 63;
/// Counts the tables so far.
static VERSION: AtomicU64 = AtomicU64::new(0);
/// True if there is any remote mount: on most servers there is none, and asking costs one load.
static HAS_REMOTE: AtomicBool = AtomicBool::new(false);
/// One thread follows the mounts of the process.
static FOLLOWER: Once = Once::new();

thread_local! {
    /// The table that this thread has seen last, and its version.
    static SEEN: RefCell<(u64, Option<Arc<Table>>)> = const { RefCell::new((0, None)) };
}

/// Reads the newest table that can be had without waiting: who changes it holds the lock for one assignment, and whoever
/// meets that goes on with the table it knows.
fn with_table<T>(look: impl FnOnce(&Table) -> T) -> Option<T> {
    SEEN.with_borrow_mut(|(version, seen_table)| {
        let newest = VERSION.load(Acquire);
        if *version != newest
            && let Some(table) = try_read()
        {
            (*version, *seen_table) = (newest, table);
        }
        seen_table.as_deref().map(look)
    })
}

fn try_read() -> Option<Option<Arc<Table>>> {
    match TABLE.try_read() {
        Ok(table) => Some(table.clone()),
        // The table changes by a single assignment, so a panic leaves it complete.
        Err(TryLockError::Poisoned(table)) => Some(table.into_inner().clone()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn publish(table: Table) {
    HAS_REMOTE.store(!table.about_remote.is_empty(), Relaxed);
    let old = {
        let mut place = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        let old = place.replace(Arc::new(table));
        VERSION.fetch_add(1, Release);
        old
    };
    drop(old);
}

/// Returns true if opening a cached `path` may still wait. Paths are taken as written: the server's are absolute and clean.
pub(crate) fn may_wait(path: &[u8]) -> bool {
    HAS_REMOTE.load(Relaxed) && with_table(|table| table.is_remote(path)).unwrap_or(false)
}

/// The device that `path` leads to as far as its name tells, `None` if nothing is known. Never waits.
pub(crate) fn device_of(path: &CStr) -> Option<&'static Device> {
    with_table(|table| table.dev_of(path.to_bytes())).flatten().map(Device::of)
}

/// Mount point of a device, for messages: the shortest one, or the number of the device.
pub(crate) fn name_of(dev: Option<u64>) -> Arc<str> {
    let Some(dev) = dev else { return "other devices".into() };
    let point = with_table(|table| {
        let points = table.mounts.iter().filter(|mount| mount.dev == dev).map(|mount| &mount.point);
        points.min_by_key(|point| point.len()).map(|point| String::from_utf8_lossy(point).into_owned())
    });
    let number = || format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    point.flatten().unwrap_or_else(number).into()
}

/// The device of a mount, by its number.
pub(crate) fn device_of_mount(id: u64) -> Option<&'static Device> {
    with_table(|table| table.mounts.iter().find(|mount| mount.id == id).map(|mount| mount.dev))
        .flatten()
        .map(Device::of)
}

/// Finds out why `path` led to another device than its name says, and remembers the directory that does. May wait: jobs
/// only.
pub(crate) fn correct(path: &CStr) {
    let path = path.to_bytes();
    // A directory may have been replaced since it was looked at, so each is examined again.
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    for end in ends {
        let Ok(directory) = CString::new(&path[..end]) else { return };
        let (Some(named), Some(real)) = (device_of(&directory), home_of(&directory)) else { return };
        if !std::ptr::eq(named, real) {
            return set_elsewhere(directory.to_bytes(), real);
        }
    }
}

/// The device whose share counts for what is at `path` now.
fn home_of(path: &CStr) -> Option<&'static Device> {
    let meta = rustix::fs::stat(path).ok()?;
    let device = Device::of(meta.st_dev);
    if !knows(meta.st_dev) {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        device.find_home(fd.as_fd());
    }
    Some(device.home())
}

/// Returns true if anything is mounted from this device.
pub(crate) fn knows(dev: u64) -> bool {
    with_table(|table| table.mounts.iter().any(|mount| mount.dev == dev)).unwrap_or(false)
}

fn set_elsewhere(directory: &[u8], device: &'static Device) {
    let Some(dev) = device.dev() else { return };
    let Some(Some(table)) = try_read() else { return };
    let mut table = Table::clone(&table);
    table.elsewhere.remove(directory);
    if table.dev_of(directory) != Some(dev) && table.elsewhere.len() < ELSEWHERE_MAX {
        table.elsewhere.insert(directory.to_vec(), dev);
    }
    publish(table);
}

/// Takes each of these paths for a remote mount of its own from now on, and no others. Reads the mount table: not for a loop.
pub(crate) fn set_faulty<'a>(paths: impl Iterator<Item = &'a [u8]>) {
    {
        let mut faulty = FAULTY.lock().unwrap_or_else(PoisonError::into_inner);
        faulty.mounts.clear();
        for path in paths {
            let at = faulty.paths.iter().position(|candidate| **candidate == *path).unwrap_or_else(|| {
                faulty.paths.push(path.into());
                faulty.paths.len() - 1
            });
            let dev = FAULTY_DEV | at as u64;
            Device::of_faulty(dev, path);
            // The number of a mount, too, is one that the kernel does not use.
            faulty.mounts.push(Mount { id: dev, dev, point: path.to_vec(), is_local: false });
        }
    }
    refresh();
}

/// Reads the mount table again. Cheap (a few hundred microseconds), but not for a loop.
pub(crate) fn refresh() {
    // Without procfs (some chroots) the table stays empty; jobs then find remote devices one by one.
    let Ok(text) = std::fs::read(MOUNTINFO) else { return };
    take_over(&text);
}

fn take_over(text: &[u8]) {
    let mut table = parse(text, &FAULTY.lock().unwrap_or_else(PoisonError::into_inner).mounts);
    let known_table = try_read().flatten();
    if known_table.as_ref().is_some_and(|known_table| known_table.mounts == table.mounts) {
        return;
    }
    if let Some(known_table) = known_table {
        // Directories that links lead to keep their device as long as it is mounted.
        let is_mounted = |dev: u64| table.mounts.iter().any(|mount| mount.dev == dev);
        let kept = known_table.elsewhere.iter().filter(|(_, dev)| is_mounted(**dev));
        table.elsewhere = kept.map(|(directory, dev)| (directory.clone(), *dev)).collect();
    }
    publish(table);
}

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Starts the thread that reads the table again whenever something is mounted or unmounted. Not for a loop.
pub(crate) fn follow() {
    FOLLOWER.call_once(|| {
        // Without the thread, the table is as old as the configuration, or as the first access to a remote device.
        let _ = std::thread::Builder::new().name("mounts".to_owned()).spawn(|| {
            let _ = follow_changes();
        });
    });
}

/// Reads the table whenever the kernel says that it has changed (proc_pid_mounts(5)).
fn follow_changes() -> std::io::Result<()> {
    let mut file = File::open(MOUNTINFO)?;
    loop {
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut text)?;
        take_over(&text);
        let mut changed = [PollFd::new(&file, PollFlags::PRI)];
        retry_on_intr(|| poll(&mut changed, None))?;
    }
}

/// Returns true if `path` is `point` or below it.
pub(crate) fn is_below(path: &[u8], point: &[u8]) -> bool {
    point == b"/"
        || path.strip_prefix(point).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

impl Table {
    fn is_remote(&self, path: &[u8]) -> bool {
        if path.first() != Some(&b'/') {
            return true;
        }
        let mounts = self.about_remote.iter().map(|at| &self.mounts[*at]);
        let longest = mounts.filter(|m| is_below(path, &m.point)).max_by_key(|m| m.point.len());
        longest.is_some_and(|mount| !mount.is_local)
            || !self.elsewhere.is_empty() && self.leads_to_remote(path)
    }

    /// Returns true if a link that is remembered leads to a remote mount.
    fn leads_to_remote(&self, path: &[u8]) -> bool {
        let dev = self.dev_of(path);
        self.mounts.iter().any(|mount| Some(mount.dev) == dev && !mount.is_local)
    }

    /// The device of the longest directory above `path`, or of itself, of which one is known.
    fn dev_of(&self, path: &[u8]) -> Option<u64> {
        if path.first() != Some(&b'/') {
            return None;
        }
        self.nearest(path, |directory| self.elsewhere.get(directory).copied())
    }

    /// The device of the mount that a path without links is on.
    fn mounted_at(&self, path: &[u8]) -> Option<u64> {
        self.nearest(path, |_| None)
    }

    /// Result of `find_known` for the longest directory above `path`, or for itself, unless there is a mount below that.
    fn nearest(&self, path: &[u8], find_known: impl Fn(&[u8]) -> Option<u64>) -> Option<u64> {
        let mut directory = path;
        loop {
            if let Some(dev) = find_known(directory) {
                return Some(dev);
            }
            let value = self.by_point.get(if directory.is_empty() { &b"/"[..] } else { directory });
            if let Some(at) = value {
                return Some(self.mounts[*at].dev);
            }
            let end = directory.iter().rposition(|byte| *byte == b'/')?;
            directory = &directory[..end];
        }
    }
}

/// Reads `mountinfo` (proc_pid_mountinfo(5)): `36 35 98:0 /root /point options… - fstype source options`. Mounts of `more` follow.
fn parse(table: &[u8], more: &[Mount]) -> Table {
    let mut mounts: Vec<Mount> = Vec::new();
    let mut by_point = HashMap::new();
    // A later mount on the same point covers the earlier one.
    for mount in table.split(|&b| b == b'\n').filter_map(parse_line).chain(more.iter().cloned()) {
        match by_point.entry(mount.point.clone()) {
            Entry::Occupied(at) => mounts[*at.get()] = mount,
            Entry::Vacant(place) => {
                place.insert(mounts.len());
                mounts.push(mount);
            }
        }
    }
    let remote: Vec<&Mount> = mounts.iter().filter(|m| !m.is_local).collect();
    let matters = |m: &Mount| remote.iter().any(|remote| is_below(&m.point, &remote.point));
    let about_remote = (0..mounts.len()).filter(|at| matters(&mounts[*at])).collect();
    Table { mounts, by_point, about_remote, elsewhere: HashMap::new() }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = fields.next()?;
    let dev = fields.nth(1)?;
    let point = fields.nth(1)?;
    let id = number(id)?;
    let dev = device_number(dev)?;
    let fs = fields.skip_while(|field| field != b"-").nth(1)?;
    let is_local = LOCAL.iter().any(|name| name.as_bytes() == fs);
    Some(Mount { id, dev, point: unescape(point), is_local })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// `8:1` as `st_dev` has it.
fn device_number(field: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Undoes mountinfo's `\040` for spaces and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = tail;
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 27 0:21 / /proc rw - proc proc rw\n\
        27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw\n\
        40 27 0:40 / /mnt/my\\040disk rw - fuse.slow slow rw\n\
        41 40 8:1 / /mnt/my\\040disk/inner rw - xfs /dev/sdb rw\n\
        42 27 0:41 / /srv rw - nfs4 host:/ rw\n\
        43 27 8:2 / /srv rw - ext4 /dev/sdc rw\n\
        odd line\n";

    #[test]
    fn finds_remote_paths() {
        let table = parse(TABLE, &[]);
        assert_eq!((table.mounts.len(), table.about_remote.len()), (5, 2));
        let cases: [(&str, bool); 8] = [
            ("/", false),
            ("/mnt/my disk", true),
            ("/mnt/my disk/a", true),
            ("/mnt/my disk2/a", false),
            ("/mnt/my disk/inner/a", false),
            ("/srv/a", false),
            ("/mnt", false),
            ("relative", true),
        ];
        for (path, expected) in cases {
            assert_eq!(table.is_remote(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn remote_root_covers_all_but_inner_mounts() {
        let table = parse(b"1 1 0:1 / / rw - 9p root rw\n2 1 8:1 / /data rw - ext4 /dev/sda rw\n", &[]);
        assert!(table.is_remote(b"/etc/x"));
        assert!(!table.is_remote(b"/data/x"));
    }

    #[test]
    fn faulty_paths_cover_mounts_and_files() {
        let faulty = |path: &str| Mount { id: 0, dev: FAULTY_DEV, point: path.into(), is_local: false };
        let table = parse(TABLE, &[faulty("/srv"), faulty("/var/a"), faulty("/mnt")]);
        let cases = [
            ("/srv/f", Some(FAULTY_DEV), true),
            ("/var/a/f", Some(FAULTY_DEV), true),
            ("/var/ab", Some(rustix::fs::makedev(254, 0)), false),
            // A file system mounted below a faulty path is another device.
            ("/mnt/my disk/inner/a", Some(rustix::fs::makedev(8, 1)), false),
        ];
        for (path, dev, is_remote) in cases {
            assert_eq!(
                (table.dev_of(path.as_bytes()), table.is_remote(path.as_bytes())),
                (dev, is_remote),
                "{path}"
            );
        }
    }

    #[test]
    fn longest_mount_point_above_a_path_has_its_device() {
        let mut table = parse(TABLE, &[]);
        let dev = rustix::fs::makedev;
        table.elsewhere.insert(b"/var/link".to_vec(), dev(0, 40));
        let cases = [
            ("/", Some(dev(254, 0))),
            ("/etc/x", Some(dev(254, 0))),
            ("/mnt/my disk/a/b", Some(dev(0, 40))),
            ("/mnt/my disk", Some(dev(0, 40))),
            ("/mnt/my disk2/a", Some(dev(254, 0))),
            ("/mnt/my disk/inner/a", Some(dev(8, 1))),
            // The later mount covers the earlier one.
            ("/srv/a", Some(dev(8, 2))),
            ("/var/link/a", Some(dev(0, 40))),
            ("/var/links", Some(dev(254, 0))),
            ("relative", None),
        ];
        for (path, expected) in cases {
            assert_eq!(table.dev_of(path.as_bytes()), expected, "{path}");
        }
    }
}
