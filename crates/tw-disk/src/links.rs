//! `disable_symlinks`: opening without following links, or only links of the same owner.

use crate::open_options::Links;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Flags of a directory that is only a step on the way.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The leading part that may contain links (empty: none), and the rest, relative to it.
fn split(path: &CStr, from: u32) -> (&[u8], &[u8]) {
    let path = path.to_bytes();
    let from = (from as usize).min(path.len());
    // The trusted part ends at a slash, so that no name is cut in two.
    let end = if path[from..].starts_with(b"/") || path[..from].ends_with(b"/") {
        from
    } else {
        path[..from].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1)
    };
    let (trusted, rest) = path.split_at(end);
    match trusted {
        [] if rest.starts_with(b"/") => (b"/", relative(rest)),
        [] => (b".", rest),
        _ => (trusted, relative(rest)),
    }
}

fn relative(rest: &[u8]) -> &[u8] {
    let start = rest.iter().position(|&b| b != b'/').unwrap_or(rest.len());
    if start == rest.len() { b"." } else { &rest[start..] }
}

/// Opens from memory, refusing every link behind `from`; `EAGAIN` where it would have to wait, `ELOOP` at a link.
pub(crate) fn open_now(path: &CStr, from: u32, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_resolving(path, from, flags, ResolveFlags::CACHED)
}

/// Opens, refusing every link behind `from`.
pub(crate) fn open_refusing(path: &CStr, from: u32, flags: OFlags) -> Result<OwnedFd, Errno> {
    match open_resolving(path, from, flags, ResolveFlags::empty()) {
        // Before Linux 5.6 the path is walked name by name, and every link is refused, whoever owns it.
        Err(Errno::NOSYS) => walk(path, from, flags, |_, _| Err(Errno::LOOP)),
        other => other,
    }
}

fn open_resolving(path: &CStr, from: u32, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let (trusted, rest) = split(path, from);
    let strict = resolve | ResolveFlags::NO_SYMLINKS;
    if trusted == b"/" || trusted == b"." {
        return openat2(CWD, path, flags, Mode::empty(), strict);
    }
    let dir = openat2(CWD, trusted, STEP, Mode::empty(), resolve)?;
    openat2(&dir, rest, flags, Mode::empty(), strict)
}

/// Removes a name, refusing every link on the way to it behind `from`.
pub(crate) fn remove_below(path: &CStr, from: u32, flags: AtFlags) -> Result<(), Errno> {
    let bytes = path.to_bytes();
    // The directory keeps its slash, because all of it may be trusted.
    let (dir, name) = match bytes.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => bytes.split_at(slash + 1),
        None => (&b"./"[..], bytes),
    };
    let dir = CString::new(dir).map_err(|_| Errno::INVAL)?;
    let dir = retry_on_intr(|| open_refusing(&dir, from, STEP))?;
    unlinkat(&dir, name, flags)
}

/// Opens a log for appending and creates it (0644), as `disable_symlinks` says. Waits for the disk and answers on the
/// calling thread, which is the writer of that log and never a loop.
pub fn open_log(path: &CStr, links: Links) -> Result<OwnedFd, Errno> {
    // A pipe without a reader is an error; opening it must not wait for one.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    type OpenFn = fn(&CStr, u32, OFlags) -> Result<OwnedFd, Errno>;
    let (open, from): (OpenFn, u32) = match links {
        Links::Follow => return openat(CWD, path, flags | OFlags::CREATE, mode),
        Links::Refuse { from } => (open_refusing, from),
        Links::SameOwner { from } => (open_same_owner, from),
    };
    match open(path, from, flags) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let bytes = path.to_bytes();
    let (dir, name) = match bytes.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => bytes.split_at(slash + 1),
        None => (&b"."[..], bytes),
    };
    let dir = CString::new(dir).map_err(|_| Errno::INVAL)?;
    let dir = open(&dir, from, STEP)?;
    // `NOFOLLOW`: a link that was created under this name meanwhile must not be followed.
    openat(&dir, name, flags | OFlags::CREATE | OFlags::NOFOLLOW, mode)
}

/// Creates the directories that a log of this name needs (0750), if they are missing. Waits for the disk, as [`open_log`] does.
pub fn make_log_directories(path: &CStr) -> Result<(), Errno> {
    let bytes = path.to_bytes();
    let slashes = bytes.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/').map(|(at, _)| at);
    let ends: Vec<usize> = slashes.collect();
    // Most often all but the last ones are there.
    let mut missing = Vec::new();
    for end in ends.into_iter().rev() {
        let directory = &bytes[..end];
        match rustix::fs::mkdir(directory, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => break,
            Err(Errno::NOENT) => missing.push(directory),
            Err(errno) => return Err(errno),
        }
    }
    for directory in missing.into_iter().rev() {
        match rustix::fs::mkdir(directory, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Opens, following only links whose owner also owns what they lead to.
pub(crate) fn open_same_owner(path: &CStr, from: u32, flags: OFlags) -> Result<OwnedFd, Errno> {
    walk(
        path,
        from,
        flags,
        |link_owner, target_owner| {
            if link_owner == target_owner { Ok(()) } else { Err(Errno::LOOP) }
        },
    )
}

/// Opens name by name. At a link, `check_owner` gets its owner and the owner of what it leads to.
fn walk(
    path: &CStr,
    from: u32,
    flags: OFlags,
    check_owner: fn(u32, u32) -> Result<(), Errno>,
) -> Result<OwnedFd, Errno> {
    let (trusted, rest) = split(path, from);
    let mut dir = openat(CWD, trusted, STEP, Mode::empty())?;
    let mut names = rest.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".").peekable();
    while let Some(name) = names.next() {
        let is_last = names.peek().is_none();
        let flags = match (is_last, rest.ends_with(b"/")) {
            (true, false) => flags,
            (true, true) => flags | OFlags::DIRECTORY,
            (false, _) => STEP,
        };
        let next = open_name(dir.as_fd(), name, flags, check_owner)?;
        if is_last {
            return Ok(next);
        }
        dir = next;
    }
    openat(&dir, c".", flags, Mode::empty())
}

fn open_name(
    dir: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    check_owner: fn(u32, u32) -> Result<(), Errno>,
) -> Result<OwnedFd, Errno> {
    // With `O_PATH`, `O_NOFOLLOW` opens the link itself instead of failing; `O_DIRECTORY` then fails with `ENOTDIR`.
    let is_link = |error: Errno| matches!(error, Errno::LOOP | Errno::NOTDIR);
    let plain = openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty());
    let has_link = match &plain {
        Ok(fd) if flags.contains(OFlags::PATH) => is_symlink(fstat(fd)?.st_mode),
        Ok(_) => false,
        Err(errno) if is_link(*errno) => is_symlink(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode),
        Err(_) => false,
    };
    if !has_link {
        return plain;
    }
    // The link is held open while its owner is checked, so that the link that is followed is the one that was checked.
    let link = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let link_stat = fstat(&link)?;
    if !is_symlink(link_stat.st_mode) {
        return Err(Errno::LOOP);
    }
    let target = readlinkat(&link, c"", Vec::new())?;
    let fd = openat(dir, target, flags, Mode::empty())?;
    check_owner(link_stat.st_uid, fstat(&fd)?.st_uid)?;
    Ok(fd)
}

fn is_symlink(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Symlink
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_made_and_links_are_judged() {
        let dir = tw_testkit::TempDir::new("links").unwrap();
        std::fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("linked")).unwrap();
        std::os::unix::fs::symlink("there", dir.join("real/link")).unwrap();
        let open = |name: &str, links| {
            let path = CString::new(dir.join(name).to_str().unwrap()).unwrap();
            open_log(&path, links).map(|_| ())
        };
        let trusted = dir.join("linked/").as_os_str().len() as u32;
        for (name, links, expected) in [
            ("real/a", Links::Refuse { from: 0 }, Ok(())),
            ("real/b", Links::SameOwner { from: 0 }, Ok(())),
            ("real/b", Links::SameOwner { from: 0 }, Ok(())),
            ("linked/c", Links::Refuse { from: 0 }, Err(Errno::LOOP)),
            ("linked/c", Links::Refuse { from: trusted }, Ok(())),
            ("linked/d", Links::SameOwner { from: 0 }, Ok(())),
            ("real/link", Links::Refuse { from: 0 }, Err(Errno::LOOP)),
            ("real/link", Links::SameOwner { from: 0 }, Err(Errno::LOOP)),
            ("real/link", Links::Follow, Ok(())),
            ("real/link", Links::SameOwner { from: 0 }, Ok(())),
            ("none/x", Links::Refuse { from: 0 }, Err(Errno::NOENT)),
            ("real/", Links::Follow, Err(Errno::ISDIR)),
            ("real/", Links::Refuse { from: 0 }, Err(Errno::ISDIR)),
        ] {
            assert_eq!(open(name, links), expected, "{name} {links:?}");
        }
        for name in ["real/a", "real/b", "real/c", "real/d", "real/there"] {
            assert!(dir.join(name).is_file(), "{name}");
        }
    }

    #[test]
    fn splits_at_names() {
        let cases: [(&CStr, u32, &str, &str); 9] = [
            (c"/a/b/c", 0, "/", "a/b/c"),
            (c"/a/b/c", 2, "/a", "b/c"),
            (c"/a/b/c", 3, "/a/", "b/c"),
            (c"/a/bb/c", 4, "/a/", "bb/c"),
            (c"/a/b", 4, "/a/", "b"),
            (c"/a/b/", 5, "/a/b/", "."),
            (c"/a/b", 99, "/a/", "b"),
            (c"a/b", 0, ".", "a/b"),
            (c"//a", 0, "/", "a"),
        ];
        for (path, from, trusted, rest) in cases {
            assert_eq!(split(path, from), (trusted.as_bytes(), rest.as_bytes()), "{path:?} {from}");
        }
    }
}
