//! Source of a denied operation: the permissions of the file, or the sandbox of the process. Both say `EACCES`, and only
//! one of them is mended with `chmod`.

use crate::op::Op;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Maximum number of paths that a line of a log names.
const SHOWN_MAX: usize = 6;

/// Paths that the sandbox of the process allows, for messages: the sandbox itself is elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Paths below which files may be read; `None` if that is not restricted.
    pub reading: Option<Vec<PathBuf>>,
    /// Paths below which files may be created, changed and removed; `None` if that is not restricted.
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

/// Capability of the process to bypass file permissions.
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

/// Returns true if the sandbox excludes places where files could be read otherwise.
pub(crate) fn reading_is_restricted() -> bool {
    CONFINED.get().is_some_and(|confined| confined.allowed.reading.is_some())
}

/// Use that an operation makes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Change,
    /// Change if the file exists, otherwise creation of its name in the directory it is in.
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

/// Source of an `EACCES`, as far as it was found out when the error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denier {
    /// Nobody asked yet, or nobody denied anything.
    Unknown,
    /// The permissions of the file, or of a directory on the way to it.
    Permissions,
    /// The sandbox, which does not let this process read there.
    Reading,
    /// The sandbox, which does not let this process write there.
    Writing,
}

impl Denier {
    /// Finds the source of the denial of `op` on `path`. Waits for the metadata that it looks at.
    pub(crate) fn find(op: Op, errno: Errno, path: &CStr) -> Self {
        Self::with(op, errno, path, look_at)
    }

    /// Finds the source of a denial without waiting, for a denial that is remembered: metadata that is not in memory, or
    /// seems not to be because somebody mounts something at this moment, remains unknown.
    pub(crate) fn find_now(op: Op, errno: Errno, path: &CStr) -> Self {
        Self::with(op, errno, path, look_at_now)
    }

    fn with(op: Op, errno: Errno, path: &CStr, look: Look) -> Self {
        match CONFINED.get() {
            Some(confined) if errno == Errno::ACCESS => confined.denier(op, path, look),
            _ => Self::Unknown,
        }
    }

    /// Text appended to a message about the denial: nothing, unless it was the sandbox.
    pub(crate) fn addition(self) -> Addition {
        Addition { denier: self, allowed: CONFINED.get().map(|confined| &confined.allowed) }
    }
}

/// The addition of a line in the log about `op` on `path` that failed: `, denied by "sandbox", which allows writing in
/// "/srv/dav"`. Empty for any other failure. Waits for what it looks at.
pub fn denial(op: Op, errno: Errno, path: &CStr) -> String {
    Denier::find(op, errno, path).addition().to_string()
}

/// Function that reads the metadata of the target of a path.
type Look = fn(&CStr) -> Result<Stat, Errno>;

impl Confined {
    fn denier(&self, op: Op, path: &CStr, look: Look) -> Denier {
        let Some(how) = Use::of(op) else { return Denier::Unknown };
        let (denier, places) = match how {
            Use::Read => (Denier::Reading, &self.allowed.reading),
            Use::Change | Use::Create | Use::Name => (Denier::Writing, &self.allowed.writing),
        };
        if places.is_none() {
            return Denier::Permissions;
        }
        // Whoever may not search the way there is not let in by its permissions, and this fails.
        let (how, found) = match how {
            Use::Read | Use::Change => (how, look(path)),
            Use::Name => (how, look(&parent_of(path))),
            Use::Create => match look(path) {
                // A name that is not there may be in memory as such, or not at all.
                Err(Errno::NOENT | Errno::AGAIN) => (Use::Name, look(&parent_of(path))),
                found => (Use::Change, found),
            },
        };
        match found {
            Ok(stat) if self.user.may(how, &stat) => denier,
            Err(Errno::AGAIN) => Denier::Unknown,
            _ => Denier::Permissions,
        }
    }
}

/// Reads the metadata of the target of a path.
fn look_at(path: &CStr) -> Result<Stat, Errno> {
    look_within(path, ResolveFlags::empty())
}

/// Reads the metadata of the target of a path, as far as it is in memory.
fn look_at_now(path: &CStr) -> Result<Stat, Errno> {
    look_within(path, ResolveFlags::CACHED)
}

fn look_within(path: &CStr, resolve: ResolveFlags) -> Result<Stat, Errno> {
    openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).and_then(fstat)
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
    /// Returns true if the permissions of a file let the user do this. Access control lists are not considered.
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
pub(crate) struct Addition {
    denier: Denier,
    allowed: Option<&'static Allowed>,
}

impl fmt::Display for Addition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.allowed {
            Some(allowed) => self.denier.write(allowed, f),
            None => Ok(()),
        }
    }
}

impl Denier {
    fn write(self, allowed: &Allowed, f: &mut impl fmt::Write) -> fmt::Result {
        let (what, places) = match self {
            Self::Unknown | Self::Permissions => return Ok(()),
            Self::Reading => ("reading", &allowed.reading),
            Self::Writing => ("writing", &allowed.writing),
        };
        write!(f, ", denied by \"sandbox\", which allows {what}")?;
        let places = places.as_deref().unwrap_or_default();
        if places.is_empty() {
            return f.write_str(" nowhere");
        }
        for (at, place) in places.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{} \"{}\"", if at == 0 { " in" } else { "," }, place.display())?;
        }
        match places.len().saturating_sub(SHOWN_MAX) {
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
        let confined = confined(None, Power::None);
        assert_eq!(confined.denier(Op::Create, &inside, look_at), Denier::Writing);
    }

    #[test]
    fn what_is_not_in_memory_remains_unknown() {
        let confined = confined(Some(Vec::new()), Power::None);
        assert_eq!(confined.denier(Op::Open, c"/a", |_| Err(Errno::AGAIN)), Denier::Unknown);
        assert_eq!(confined.denier(Op::Open, c"/a", |_| Err(Errno::ACCESS)), Denier::Permissions);
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
        let said = |confined: &Confined, op, path: &CStr| {
            let mut text = String::new();
            confined.denier(op, path, look_at).write(&confined.allowed, &mut text).unwrap();
            text
        };
        let reading = ", denied by \"sandbox\", which allows reading in \"/srv\", \"/b\"";
        let writing = ", denied by \"sandbox\", which allows writing nowhere";
        for (op, path, expected) in [
            (Op::Open, &open, reading),
            (Op::List, &open, reading),
            // Its permissions deny it.
            (Op::Open, &closed, ""),
            (Op::Truncate, &closed, writing),
            (Op::Create, &new, writing),
            (Op::Create, &none, ""),
            (Op::Create, &open, writing),
            (Op::Create, &read_only, ""),
            (Op::Stat, &open, ""),
        ] {
            assert_eq!(said(&restricted, op, path), expected, "{op:?} {path:?}");
        }
        let root = confined(Some(vec!["/srv".into(), "/b".into()]), Power::Reads);
        assert_eq!(said(&root, Op::Open, &closed), reading);
        assert_eq!(said(&confined(None, Power::None), Op::Open, &open), "");

        let many = confined(Some((0..8).map(|n| format!("/{n}").into()).collect()), Power::None);
        let text = said(&many, Op::Open, &open);
        assert!(text.ends_with("\"/4\", \"/5\" and 2 more places"), "{text}");
    }
}
