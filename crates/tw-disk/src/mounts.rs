//! Which paths lead to file systems that may ask another process or machine even for a cached name.
//!
//! `openat2(RESOLVE_CACHED)` promises that the *path walk* does not wait. The file system's own `open` still may: FUSE asks
//! its daemon, NFS its server. Such mounts are known from `/proc/self/mountinfo`, and paths below them always become jobs.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLockReadGuard};

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

/// One mount point, and whether what is below it may be opened on a loop.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: Vec<u8>,
    is_local: bool,
}

/// Mounts that matter: remote ones, and local ones below those.
static MOUNTS: RwLock<Vec<Mount>> = RwLock::new(Vec::new());
/// Whether there is any remote mount: on most servers there is none, and asking costs one load.
static HAS_REMOTE: AtomicBool = AtomicBool::new(false);

/// Whether opening a cached `path` may still wait. Paths are taken as written: the server's are absolute and clean.
pub(crate) fn may_wait(path: &[u8]) -> bool {
    HAS_REMOTE.load(Relaxed) && is_remote(&read(), path)
}

/// Reads the mount table again. Cheap (a few hundred microseconds), but not for a loop.
pub(crate) fn refresh() {
    // Without procfs (some chroots) nothing is known; jobs then find remote devices out one by one.
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return };
    let mounts = parse(&table);
    HAS_REMOTE.store(!mounts.is_empty(), Relaxed);
    // Each change of it is one assignment, so a panic leaves it whole.
    *MOUNTS.write().unwrap_or_else(PoisonError::into_inner) = mounts;
}

fn read() -> RwLockReadGuard<'static, Vec<Mount>> {
    MOUNTS.read().unwrap_or_else(PoisonError::into_inner)
}

fn is_below(path: &[u8], point: &[u8]) -> bool {
    point == b"/"
        || path.strip_prefix(point).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

fn is_remote(mounts: &[Mount], path: &[u8]) -> bool {
    if path.first() != Some(&b'/') {
        return true;
    }
    let longest = mounts.iter().filter(|m| is_below(path, &m.point)).max_by_key(|m| m.point.len());
    longest.is_some_and(|mount| !mount.is_local)
}

/// Reads `mountinfo` (proc_pid_mountinfo(5)): `36 35 98:0 /root /point options… - fstype source options`.
fn parse(table: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for line in table.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b' ');
        let Some(point) = fields.nth(4) else { continue };
        let Some(fs) = fields.skip_while(|field| field != b"-").nth(1) else { continue };
        let is_local = LOCAL.iter().any(|name| name.as_bytes() == fs);
        let point = unescape(point);
        // A later mount on the same point covers the earlier one.
        mounts.retain(|m| m.point != point);
        mounts.push(Mount { point, is_local });
    }
    let remote: Vec<Vec<u8>> = mounts.iter().filter(|m| !m.is_local).map(|m| m.point.clone()).collect();
    mounts.retain(|m| remote.iter().any(|point| is_below(&m.point, point)));
    mounts
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
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 2);
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
            assert_eq!(is_remote(&mounts, path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn a_remote_root_covers_all_but_what_is_mounted_in_it() {
        let mounts = parse(b"1 1 0:1 / / rw - 9p root rw\n2 1 8:1 / /data rw - ext4 /dev/sda rw\n");
        assert!(is_remote(&mounts, b"/etc/x"));
        assert!(!is_remote(&mounts, b"/data/x"));
    }
}
