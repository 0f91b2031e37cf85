//! Who denied an operation: the permissions of the file, or the sandbox of the process. Both say `EACCES`, and only one of
//! them is mended with `chmod`.

use crate::op::Op;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// How often a path is looked at that seems not to be in memory.
const LOOKS_MAX: usize = 16;
/// How often the way to a path is walked that still seems not to be in memory.
const WALKS_MAX: usize = 3;
/// Longer than the kernel's clock for times of files stands still.
const TICK: Duration = Duration::from_millis(10);
/// How many places a line of a log names.
const SHOWN_MAX: usize = 6;

/// What the sandbox of the process leaves, for messages: the sandbox itself is elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Where files may be read; `None` if that is not restricted.
    pub reading: Option<Vec<PathBuf>>,
    /// Where files may be created, changed and removed; `None` if that is not restricted.
    pub writing: Option<Vec<PathBuf>>,
}

/// The process that is confined.
#[derive(Debug)]
struct Confined {
    allowed: Allowed,
    user: User,
}

/// Whose permissions count.
#[derive(Debug)]
struct User {
    uid: u32,
    groups: Vec<u32>,
    power: Power,
}

/// Whether permissions count at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    /// As for any user.
    None,
    /// Reading is free (`CAP_DAC_READ_SEARCH`).
    Reads,
    /// Everything is (`CAP_DAC_OVERRIDE`).
    Everything,
}

static CONFINED: OnceLock<Confined> = OnceLock::new();

/// Says what the sandbox allows from now on, once it holds: from then on messages about a denial name it. A process has one
/// sandbox, so the first call counts.
///
/// # Errors
/// What asking for the privileges and groups of the process says.
pub fn confined(allowed: Allowed) -> io::Result<()> {
    let effective = rustix::thread::capabilities(None)?.effective;
    let power = if effective.contains(CapabilitySet::DAC_OVERRIDE) {
        Power::Everything
    } else if effective.contains(CapabilitySet::DAC_READ_SEARCH) {
        Power::Reads
    } else {
        Power::None
    };
    let mut groups: Vec<u32> =
        rustix::process::getgroups()?.into_iter().map(|group| group.as_raw()).collect();
    groups.push(rustix::process::getegid().as_raw());
    let user = User { uid: rustix::process::geteuid().as_raw(), groups, power };
    let _ = CONFINED.set(Confined { allowed, user });
    Ok(())
}

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Change,
    /// It is changed if it is there, and else gets its name in the directory it is in.
    Create,
    /// A name in the directory it is in.
    Name,
}

impl Use {
    fn of(op: Op) -> Option<Self> {
        Some(match op {
            Op::Open | Op::Read | Op::List | Op::Sendfile | Op::Copy => Self::Read,
            Op::Write | Op::Truncate => Self::Change,
            Op::Create => Self::Create,
            Op::Mkdir | Op::Rename | Op::Link | Op::Unlink | Op::Rmdir => Self::Name,
            // Nothing of these is restricted.
            _ => return None,
        })
    }
}

/// The end of a message about a denial by the sandbox.
pub(crate) struct Denial<'a> {
    what: &'static str,
    places: &'a [PathBuf],
}

impl Denial<'static> {
    /// Why `op` on `path` failed with `errno`, if that was the sandbox. Does not wait: it looks at what is in memory,
    /// where the operation has just been.
    pub(crate) fn of(op: Op, errno: Errno, path: &CStr) -> Option<Self> {
        CONFINED.get()?.denial(op, errno, path)
    }
}

impl Confined {
    fn denial(&self, op: Op, errno: Errno, path: &CStr) -> Option<Denial<'_>> {
        if errno != Errno::ACCESS {
            return None;
        }
        let how = Use::of(op)?;
        let (what, places) = match how {
            Use::Read => ("reading", self.allowed.reading.as_deref()?),
            Use::Change | Use::Create | Use::Name => ("writing", self.allowed.writing.as_deref()?),
        };
        // Whoever may not search the way there is not let in by its permissions, and this fails.
        let (how, found) = match how {
            Use::Read | Use::Change => (how, look_at(path)),
            Use::Name => (how, look_at(&parent_of(path))),
            Use::Create => match look_at(path) {
                // A name that is not there may be in memory as such, or not at all.
                Err(Errno::NOENT | Errno::AGAIN) => (Use::Name, look_at(&parent_of(path))),
                found => (Use::Change, found),
            },
        };
        self.user.may(how, &found.ok()?).then_some(Denial { what, places })
    }
}

/// Sees to it that what a path leads to, and the directory it is in, are in memory. May wait, also for the access time of a
/// link on the way, which is due when the link is new: no look without waiting gets past that.
pub(crate) fn bring_in(path: &CStr) {
    if CONFINED.get().is_some() {
        walk(path);
    }
}

fn walk(path: &CStr) {
    for path in [&*parent_of(path), path] {
        for _ in 0..WALKS_MAX {
            // It may not be there at all.
            let _ = openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty());
            if !matches!(look_at(path), Err(Errno::AGAIN)) {
                break;
            }
            // The access time of a link that was made within the same tick of the clock is due once more.
            #[expect(clippy::disallowed_methods, reason = "this is a thread of a pool, which may wait")]
            std::thread::sleep(TICK);
        }
    }
}

/// What a path leads to, as far as that is in memory. A name that somebody changes at this moment is as if it were not; one that
/// is not in memory stays so.
fn look_at(path: &CStr) -> Result<Stat, Errno> {
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::CACHED);
    let look = || openat2(CWD, path, flags, Mode::empty(), resolve).and_then(fstat);
    let mut looks = (1..LOOKS_MAX).map(|_| look());
    looks.find(|found| !matches!(found, Err(Errno::AGAIN))).unwrap_or_else(look)
}

fn parent_of(path: &CStr) -> CString {
    let path = path.to_bytes();
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let parent = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => &path[..=slash],
        None => b".",
    };
    CString::new(parent).unwrap_or_default()
}

impl User {
    /// Whether the permissions of a file let the user do this. Lists of access control are not asked.
    fn may(&self, how: Use, stat: &Stat) -> bool {
        let wanted = match how {
            Use::Read => 0o4,
            Use::Change => 0o2,
            Use::Create | Use::Name => 0o3,
        };
        let mode = stat.st_mode & 0o777;
        let granted = if stat.st_uid == self.uid {
            mode >> 6
        } else if self.groups.contains(&stat.st_gid) {
            mode >> 3
        } else {
            mode
        };
        match self.power {
            Power::Everything => true,
            Power::Reads if how == Use::Read => true,
            Power::Reads | Power::None => granted & wanted == wanted,
        }
    }
}

/// Behind nginx's words: `, denied by "sandbox", which allows reading in "/srv", "/etc/ssl"`.
impl fmt::Display for Denial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", denied by \"sandbox\", which allows {}", self.what)?;
        if self.places.is_empty() {
            return f.write_str(" nowhere");
        }
        for (at, place) in self.places.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{} \"{}\"", if at == 0 { " in" } else { "," }, place.display())?;
        }
        match self.places.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more places"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, Timespec, Timestamps, utimensat};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn confined(reading: Option<Vec<PathBuf>>, power: Power) -> Confined {
        let user = User {
            uid: rustix::process::geteuid().as_raw(),
            groups: vec![rustix::process::getegid().as_raw()],
            power,
        };
        Confined { allowed: Allowed { reading, writing: Some(Vec::new()) }, user }
    }

    #[test]
    fn a_link_whose_access_time_is_due_hides_nothing() {
        let dir = tw_testkit::TempDir::new("denial").unwrap();
        let link = dir.join("link");
        symlink(".", &link).unwrap();
        let at = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let older = Timestamps { last_access: at(1), last_modification: at(2) };
        utimensat(CWD, &link, &older, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let inside = CString::new(link.join("new").as_os_str().as_encoded_bytes()).unwrap();
        walk(&inside);
        assert!(look_at(&parent_of(&inside)).is_ok());
    }

    #[test]
    fn permissions_and_the_sandbox_are_told_apart() {
        let dir = tw_testkit::TempDir::new("denial").unwrap();
        let open = dir.write("open", "x").unwrap();
        let closed = dir.write("closed", "x").unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o200)).unwrap();
        let name = |path: &std::path::Path| CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let read_only = dir.write("read_only", "x").unwrap();
        fs::set_permissions(&read_only, Permissions::from_mode(0o400)).unwrap();
        let [open, closed, read_only, new, none] =
            [open, closed, read_only, dir.join("new"), dir.join("none/file")].map(|path| name(&path));

        let restricted = confined(Some(vec!["/srv".into(), "/b".into()]), Power::None);
        let said = |confined: &Confined, op, errno, path: &CStr| {
            confined.denial(op, errno, path).map(|denial| denial.to_string())
        };
        let reading = ", denied by \"sandbox\", which allows reading in \"/srv\", \"/b\"";
        let writing = ", denied by \"sandbox\", which allows writing nowhere";
        for (op, errno, path, expected) in [
            (Op::Open, Errno::ACCESS, &open, Some(reading)),
            (Op::List, Errno::ACCESS, &open, Some(reading)),
            (Op::Open, Errno::NOENT, &open, None),
            // Its permissions deny it.
            (Op::Open, Errno::ACCESS, &closed, None),
            (Op::Truncate, Errno::ACCESS, &closed, Some(writing)),
            (Op::Create, Errno::ACCESS, &new, Some(writing)),
            (Op::Create, Errno::ACCESS, &none, None),
            (Op::Create, Errno::ACCESS, &open, Some(writing)),
            (Op::Create, Errno::ACCESS, &read_only, None),
            (Op::Stat, Errno::ACCESS, &open, None),
        ] {
            assert_eq!(said(&restricted, op, errno, path).as_deref(), expected, "{op:?} {path:?}");
        }
        let root = confined(Some(vec!["/srv".into(), "/b".into()]), Power::Reads);
        assert_eq!(said(&root, Op::Open, Errno::ACCESS, &closed).as_deref(), Some(reading));
        assert_eq!(said(&confined(None, Power::None), Op::Open, Errno::ACCESS, &open), None);

        let many = confined(Some((0..8).map(|n| format!("/{n}").into()).collect()), Power::None);
        let text = said(&many, Op::Open, Errno::ACCESS, &open).unwrap();
        assert!(text.ends_with("\"/4\", \"/5\" and 2 more places"), "{text}");
    }
}
