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
pub struct AllowedPaths {
    /// Paths below which files may be read; `None` if that is not restricted.
    pub reading: Option<Vec<PathBuf>>,
    /// Paths below which files may be created, changed and removed; `None` if that is not restricted.
    pub writing: Option<Vec<PathBuf>>,
}

/// The process that is confined.
#[derive(Debug)]
struct Confined {
    allowed: AllowedPaths,
    user: User,
}

/// User of the process, with its groups and capabilities.
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

/// Sets the paths that the sandbox allows, once it is in force. Messages about a denial name it from then on. A process
/// has one sandbox, so the first call counts.
///
/// # Errors
/// Failure to read the privileges and groups of the process.
pub fn set_allowed_paths(allowed: AllowedPaths) -> io::Result<()> {
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
            // The sandbox restricts no other operation.
            _ => return None,
        })
    }
}

/// Source of an `EACCES`, as far as it was determined when the error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialSource {
    /// Not determined yet, or no denial.
    Unknown,
    /// The permissions of the file, or of a directory on the way to it.
    Permissions,
    /// The sandbox, which does not let this process read there.
    Reading,
    /// The sandbox, which does not let this process write there.
    Writing,
}

impl DenialSource {
    /// Finds the source of the denial of `op` on `path`. Waits for the metadata that it looks at.
    pub(crate) fn find(op: Op, errno: Errno, path: &CStr) -> Self {
        Self::with(op, errno, path, look_at)
    }

    /// Finds the source of a denial without waiting, for a denial that is remembered: metadata that is not in memory, or
    /// seems not to be because of a mount at this moment, remains unknown.
    pub(crate) fn find_now(op: Op, errno: Errno, path: &CStr) -> Self {
        Self::with(op, errno, path, look_at_now)
    }

    fn with(op: Op, errno: Errno, path: &CStr, look: StatFn) -> Self {
        match CONFINED.get() {
            Some(confined) if errno == Errno::ACCESS => confined.source(op, path, look),
            _ => Self::Unknown,
        }
    }

    /// Text appended to a message about the denial: nothing, unless it was the sandbox.
    pub(crate) fn addition(self) -> Addition {
        Addition { source: self, allowed: CONFINED.get().map(|confined| &confined.allowed) }
    }
}

/// Addition to a log line about a failed `op` on `path`: `, denied by "sandbox", which allows writing in "/srv/dav"`. Empty
/// for any other failure. Waits for the metadata that it reads.
pub fn sandbox_denial(op: Op, errno: Errno, path: &CStr) -> String {
    DenialSource::find(op, errno, path).addition().to_string()
}

/// Function that reads the metadata of the target of a path.
type StatFn = fn(&CStr) -> Result<Stat, Errno>;

impl Confined {
    fn source(&self, op: Op, path: &CStr, look: StatFn) -> DenialSource {
        let Some(options) = Use::of(op) else { return DenialSource::Unknown };
        let (source, places) = match options {
            Use::Read => (DenialSource::Reading, &self.allowed.reading),
            Use::Change | Use::Create | Use::Name => (DenialSource::Writing, &self.allowed.writing),
        };
        if places.is_none() {
            return DenialSource::Permissions;
        }
        // `look` fails if the process may not search a directory on the way: then permissions, not the sandbox, denied
        // the operation.
        let (options, result) = match options {
            Use::Read | Use::Change => (options, look(path)),
            Use::Name => (options, look(&parent_of(path))),
            Use::Create => match look(path) {
                // A name that is not there may be in memory as such, or not at all.
                Err(Errno::NOENT | Errno::AGAIN) => (Use::Name, look(&parent_of(path))),
                result => (Use::Change, result),
            },
        };
        match result {
            Ok(stat) if self.user.may(options, &stat) => source,
            Err(Errno::AGAIN) => DenialSource::Unknown,
            _ => DenialSource::Permissions,
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
    fn may(&self, options: Use, stat: &Stat) -> bool {
        let wanted_number = match options {
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
            Power::Reads if options == Use::Read => true,
            Power::Reads | Power::None => granted & wanted_number == wanted_number,
        }
    }
}

/// Behind nginx's words: `, denied by "sandbox", which allows reading in "/srv", "/etc/ssl"`.
pub(crate) struct Addition {
    source: DenialSource,
    allowed: Option<&'static AllowedPaths>,
}

impl fmt::Display for Addition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.allowed {
            Some(allowed) => self.source.write(allowed, f),
            None => Ok(()),
        }
    }
}

impl DenialSource {
    fn write(self, allowed: &AllowedPaths, f: &mut impl fmt::Write) -> fmt::Result {
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

    fn set_allowed_paths(reading: Option<Vec<PathBuf>>, power: Power) -> Confined {
        let user = User {
            uid: rustix::process::geteuid().as_raw(),
            groups: vec![rustix::process::getegid().as_raw()],
            power,
        };
        Confined { allowed: AllowedPaths { reading, writing: Some(Vec::new()) }, user }
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
        let confined = set_allowed_paths(None, Power::None);
        assert_eq!(confined.source(Op::Create, &inside, look_at), DenialSource::Writing);
    }

    #[test]
    fn denials_without_cached_metadata_remain_unknown() {
        let confined = set_allowed_paths(Some(Vec::new()), Power::None);
        assert_eq!(confined.source(Op::Open, c"/a", |_| Err(Errno::AGAIN)), DenialSource::Unknown);
        assert_eq!(confined.source(Op::Open, c"/a", |_| Err(Errno::ACCESS)), DenialSource::Permissions);
    }

    #[test]
    fn permission_errors_differ_from_sandbox_denials() {
        let dir = tw_testkit::TempDir::new("denial").unwrap();
        let open = dir.write("open", "x").unwrap();
        let closed = dir.write("closed", "x").unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o200)).unwrap();
        let name = |path: &std::path::Path| CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let read_only = dir.write("read_only", "x").unwrap();
        fs::set_permissions(&read_only, Permissions::from_mode(0o400)).unwrap();
        let [open, closed, read_only, new, none] =
            [open, closed, read_only, dir.join("new"), dir.join("none/file")].map(|path| name(&path));

        let restricted = set_allowed_paths(Some(vec!["/srv".into(), "/b".into()]), Power::None);
        let said = |confined: &Confined, op, path: &CStr| {
            let mut text = String::new();
            confined.source(op, path, look_at).write(&confined.allowed, &mut text).unwrap();
            text
        };
        let reading = ", denied by \"sandbox\", which allows reading in \"/srv\", \"/b\"";
        let writing = ", denied by \"sandbox\", which allows writing nowhere";
        for (op, path, expected) in [
            (Op::Open, &open, reading),
            (Op::List, &open, reading),
            // The permissions of the file deny the operation.
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
        let root = set_allowed_paths(Some(vec!["/srv".into(), "/b".into()]), Power::Reads);
        assert_eq!(said(&root, Op::Open, &closed), reading);
        assert_eq!(said(&set_allowed_paths(None, Power::None), Op::Open, &open), "");

        let many = set_allowed_paths(Some((0..8).map(|n| format!("/{n}").into()).collect()), Power::None);
        let text = said(&many, Op::Open, &open);
        assert!(text.ends_with("\"/4\", \"/5\" and 2 more places"), "{text}");
    }
}
