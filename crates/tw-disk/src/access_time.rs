//! Access times: which reads would write one.
//!
//! A read of a file whose access time is due makes its file system begin a transaction, also with `RWF_NOWAIT`, and that
//! waits while the journal is being written: up to 49.5 ms on a slow disk, and never with `O_NOATIME`. So what is ours is
//! read with that, and of everything else a loop reads only what is not due. What is due is read by a job, which makes it
//! not due for a while.
//!
//! The kernel decides in `atime_needs_update` (fs/inode.c), from the flags of the mount and the times of the file. Both can
//! be asked for beforehand: the flags by a job, which leaves them to the loops by the number of the mount, the times by
//! `fstat`.

use rustix::fs::{AtFlags, OFlags, Stat, StatVfsMountFlags, StatxFlags, fcntl_setfl, fstat, fstatvfs, statx};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Age, in seconds, from which `relatime` updates an access time.
const DAY_S: i64 = 24 * 60 * 60;
/// The kernel's clock may be this much ahead of ours when the read comes.
const AHEAD_S: i64 = 1;
/// An access time that is so old would have moved, if this file's ever did: no second read can have been of the same tick.
const SETTLED_S: i64 = 2;

/// Effect of a read on the access time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Updates {
    /// Unknown yet: read by a job.
    Unknown = 0,
    /// Nothing: the file is open with `O_NOATIME`, or its mount has `noatime` or is read-only.
    Never = 1,
    /// `relatime`: moves it when it is older than a change of the file, or than a day.
    Relative = 2,
    /// `strictatime`: moves it.
    Always = 3,
}

impl Updates {
    fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            1 => Self::Never,
            2 => Self::Relative,
            3 => Self::Always,
            _ => Self::Unknown,
        }
    }

    fn of_mount(flags: StatVfsMountFlags) -> Self {
        if flags.intersects(StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOATIME) {
            Self::Never
        } else if flags.contains(StatVfsMountFlags::RELATIME) {
            Self::Relative
        } else {
            Self::Always
        }
    }

    /// Returns true if a read at `now`, in seconds since 1970, updates the access time of a file with these times.
    fn is_due(self, times: &Times, now: i64) -> bool {
        match self {
            Self::Never => false,
            Self::Relative => {
                times.modified >= times.accessed
                    || times.changed >= times.accessed
                    || now.saturating_sub(times.accessed.0) >= DAY_S
            }
            Self::Unknown | Self::Always => true,
        }
    }
}

/// The times of a file that decide, in seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    accessed: (i64, u32),
    modified: (i64, u32),
    changed: (i64, u32),
}

impl From<&Stat> for Times {
    #[allow(clippy::unnecessary_cast, reason = "nanoseconds are as wide as the architecture likes")]
    fn from(st: &Stat) -> Self {
        Self {
            accessed: (st.st_atime, st.st_atime_nsec as u32),
            modified: (st.st_mtime, st.st_mtime_nsec as u32),
            changed: (st.st_ctime, st.st_ctime_nsec as u32),
        }
    }
}

/// Cached knowledge about the access time of an open file.
pub(crate) struct AccessTime(AtomicU8);

impl AccessTime {
    /// Of what is not read, or has none.
    pub(crate) fn never() -> Self {
        Self::new(Updates::Never)
    }

    fn new(updates: Updates) -> Self {
        Self(AtomicU8::new(updates as u8))
    }

    /// Of a file of the user `uid` that was opened for reading. If that is us, it is read without from here on. Never waits.
    // DIFF(nginx): files of the user who serves keep their access times.
    pub(crate) fn of_opened(fd: &OwnedFd, uid: u32) -> Self {
        if is_ours(uid) && fcntl_setfl(fd, OFlags::NONBLOCK | OFlags::NOATIME).is_ok() {
            Self::never()
        } else {
            Self::of_mount(fd)
        }
    }

    fn of_mount(fd: &OwnedFd) -> Self {
        Self::new(mount_of(fd).map_or(Updates::Unknown, known_updates))
    }

    fn updates(&self) -> Updates {
        Updates::from_bits(self.0.load(Relaxed).into())
    }

    fn set(&self, updates: Updates) {
        self.0.store(updates as u8, Relaxed);
    }

    /// Returns true if a read may write the access time, so that it must be done by a job. Never waits, but asks for the
    /// times of the file (0.2 µs) if they decide; for file systems that answer that from memory.
    pub(crate) fn may_be_due(&self, fd: &OwnedFd) -> bool {
        match self.updates() {
            Updates::Never => false,
            Updates::Relative => fstat(fd).is_ok_and(|st| self.may_be_due_for(&st)),
            Updates::Unknown | Updates::Always => true,
        }
    }

    /// Returns true if a read may write the access time, for a caller that has just asked for the times.
    pub(crate) fn may_be_due_for(&self, st: &Stat) -> bool {
        self.updates().is_due(&Times::from(st), now_s().saturating_add(AHEAD_S))
    }

    /// Asks the mount of a file that is not ours, also for files that are opened there later. May wait: jobs only.
    pub(crate) fn read_mount_flags(&self, fd: &OwnedFd) {
        if self.updates() == Updates::Never {
            return;
        }
        let Ok(fs) = fstatvfs(fd) else { return };
        let updates = Updates::of_mount(fs.f_flag);
        self.set(updates);
        if let Some(mount) = mount_of(fd) {
            remember(mount, updates);
        }
    }

    /// Has a job read, and learns what came of it.
    pub(crate) fn read_by_job<T>(&self, fd: &OwnedFd, read: impl FnOnce() -> T) -> T {
        if self.updates() == Updates::Unknown {
            self.read_mount_flags(fd);
        }
        if self.updates() == Updates::Never {
            return read();
        }
        let before = fstat(fd).map(|st| Times::from(&st));
        let now = now_s();
        let value = read();
        if let (Ok(before), Ok(after)) = (before, fstat(fd))
            && now.saturating_sub(before.accessed.0) >= SETTLED_S
            && self.updates().is_due(&before, now)
            && Times::from(&after).accessed == before.accessed
        {
            // The access time never changes (chattr +A, or a file system that keeps none), so no read has to be left to
            // jobs because of it.
            self.set(Updates::Never);
        }
        value
    }
}

/// User whose files may be opened with `O_NOATIME`.
static USER: AtomicU32 = AtomicU32::new(u32::MAX);

/// Records the user of this process, and forgets mount options: an operator may have changed either.
pub(crate) fn settle() {
    USER.store(rustix::process::geteuid().as_raw(), Relaxed);
    MOUNTS.iter().for_each(|mount| mount.store(0, Relaxed));
}

/// Returns true if setting `O_NOATIME` on an open file is worth trying: root may do it with files of others, unless it gave up that
/// capability.
fn is_ours(uid: u32) -> bool {
    let user = USER.load(Relaxed);
    user == uid || user == 0
}

/// Results of recent mount lookups: mount number and [`Updates`], in the slot that the number maps to. Another mount that
/// maps to the same slot is looked up again.
static MOUNTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn place_of(mount: u64) -> &'static AtomicU64 {
    &MOUNTS[mount as usize % MOUNTS.len()]
}

fn remember(mount: u64, updates: Updates) {
    place_of(mount).store(mount << 2 | updates as u64, Relaxed);
}

fn known_updates(mount: u64) -> Updates {
    let word = place_of(mount).load(Relaxed);
    if word >> 2 == mount { Updates::from_bits(word) } else { Updates::Unknown }
}

/// The number of the mount that a file was opened by; `None` before Linux 5.8.
fn mount_of(fd: &OwnedFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let file_stat = statx(fd, c"", flags, StatxFlags::MNT_ID).ok()?;
    (file_stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(file_stat.stx_mnt_id)
}

/// Seconds since 1970, at most a tick old.
pub(crate) fn now_s() -> i64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Timespec, Timestamps, futimens};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use tw_testkit::{Lacks, TempDir, leave_out, wait};

    #[test]
    fn due_access_times_match_the_kernel() {
        use Updates::{Always, Never, Relative, Unknown};
        let now = 10 * DAY_S;
        let times = |accessed, modified, changed| Times { accessed, modified, changed };
        let day_ago = now - DAY_S;
        let cases = [
            // Older than a change of the content, or of anything else; as old counts.
            (Relative, times((now, 5), (now, 4), (now, 4)), false),
            (Relative, times((now, 5), (now, 5), (now, 4)), true),
            (Relative, times((now, 5), (now, 4), (now, 5)), true),
            (Relative, times((now - 1, 9), (now, 0), (now - 2, 0)), true),
            // A file from the future is due until then.
            (Relative, times((now, 0), (now + DAY_S, 0), (1, 0)), true),
            // A day old.
            (Relative, times((day_ago + 1, 0), (1, 0), (1, 0)), false),
            (Relative, times((day_ago, 999), (1, 0), (1, 0)), true),
            (Relative, times((0, 0), (-1, 0), (-1, 0)), true),
            (Always, times((now, 5), (1, 0), (1, 0)), true),
            (Never, times((0, 0), (now, 0), (now, 0)), false),
            (Unknown, times((now, 5), (1, 0), (1, 0)), true),
        ];
        for (updates, times, expected) in cases {
            assert_eq!(updates.is_due(&times, now), expected, "{updates:?} {times:?}");
        }
    }

    #[test]
    fn mount_flags_decide_access_time_updates() {
        use StatVfsMountFlags as Flags;
        for (flags, expected) in [
            (Flags::empty(), Updates::Always),
            (Flags::NODIRATIME | Flags::NOSUID, Updates::Always),
            (Flags::RELATIME, Updates::Relative),
            (Flags::RELATIME | Flags::RDONLY, Updates::Never),
            (Flags::NOATIME, Updates::Never),
        ] {
            assert_eq!(Updates::of_mount(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn mounts_are_remembered_one_in_each_place() {
        let one = 1 << 40;
        let other = (1 << 40) + MOUNTS.len() as u64;
        assert_eq!(known_updates(one), Updates::Unknown);
        // Tests beside this one settle, which forgets all of them.
        assert!(wait::until(wait::TIMEOUT, || {
            remember(one, Updates::Always);
            (known_updates(one), known_updates(other)) == (Updates::Always, Updates::Unknown)
        }));
        assert!(wait::until(wait::TIMEOUT, || {
            remember(one, Updates::Always);
            remember(other, Updates::Never);
            (known_updates(one), known_updates(other)) == (Updates::Unknown, Updates::Never)
        }));
    }

    fn set_times(fd: &OwnedFd, accessed: i64, modified: i64) {
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
        futimens(fd, &times).unwrap();
    }

    fn accessed(fd: &OwnedFd) -> i64 {
        Times::from(&fstat(fd).unwrap()).accessed.0
    }

    #[test]
    fn the_first_read_is_for_a_job_and_the_next_is_not() {
        let dir = TempDir::new("atime").unwrap();
        let fd: OwnedFd = File::open(dir.write("a", "content").unwrap()).unwrap().into();
        if Updates::of_mount(fstatvfs(&fd).unwrap().f_flag) != Updates::Relative {
            leave_out(Lacks::Machine, format_args!("{} is not mounted with relatime", dir.path().display()));
            return;
        }
        let file = File::from(fd.try_clone().unwrap());
        let read = || file.read_at(&mut [0; 8], 0).unwrap();
        // The file is treated as one of another user.
        let access = AccessTime::of_mount(&fd);
        set_times(&fd, 1, 2);
        assert!(access.may_be_due(&fd), "whatever is known of the mount");
        assert_eq!(access.read_by_job(&fd, read), 7);
        assert!(accessed(&fd) > 2 && access.updates() == Updates::Relative);
        // The job has moved it, but the change of the times was of the same tick.
        let moves = wait::until(wait::TIMEOUT, || {
            access.read_by_job(&fd, read);
            !access.may_be_due(&fd)
        });
        assert!(moves && access.updates() == Updates::Relative);
        // Other files of the mount are known from here on, until `settle` runs, as in concurrent tests.
        let is_known = || {
            access.read_mount_flags(&fd);
            AccessTime::of_mount(&fd).updates() == Updates::Relative
        };
        assert!(wait::until(wait::TIMEOUT, is_known));
        set_times(&fd, 1, 2);
        assert!(access.may_be_due(&fd));

        // A job sees that nothing moves, here because another open file is read.
        access.read_by_job(&fd, || 0);
        assert!(access.updates() == Updates::Never && !access.may_be_due(&fd));
    }

    #[test]
    fn a_file_of_ours_is_read_without() {
        let dir = TempDir::new("atime").unwrap();
        let fd: OwnedFd = File::open(dir.write("a", "content").unwrap()).unwrap().into();
        set_times(&fd, 1, 2);
        settle();
        let access = AccessTime::of_opened(&fd, fstat(&fd).unwrap().st_uid);
        assert!(access.updates() == Updates::Never && !access.may_be_due(&fd));
        let file = File::from(fd.try_clone().unwrap());
        assert_eq!(access.read_by_job(&fd, || file.read_at(&mut [0; 8], 0).unwrap()), 7);
        assert_eq!(accessed(&fd), 1);
    }
}
