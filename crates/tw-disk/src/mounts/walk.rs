//! Symbolic links that lead from one device to another, found before anything is asked of the other one.
//!
//! A job counts for the device that its path names. If a link leads it to one that hangs, it would hang as a job of the wrong
//! device, and in the end take the share of a healthy one. So a job reads the links on its way before it begins, name by name,
//! and never looks at anything on a device that it does not count for.

use super::{Table, set_elsewhere, with_table};
use crate::device::Device;
use rustix::fs::{CWD, readlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{PoisonError, RwLock};

/// Directories that are remembered to have no link to another device on their way: those of a cache with two levels, and some.
pub(super) const PLAIN_MAX: usize = 16_384;
/// Links that the kernel follows on one way (path_resolution(7)).
const LINKS_MAX: u32 = 40;
/// Devices that links may lead a job to, one after the other, before it begins all the same.
const COUNTED_DEVICES_MAX: usize = 4;

/// Directories that have no link to another device on their way. Only threads that may wait use them.
static PLAIN: RwLock<Option<PlainDirectories>> = RwLock::new(None);

/// Directories that have no link to another device on their way.
struct PlainDirectories {
    /// Version of the table for which that was found.
    version: u64,
    /// The directories, and true for those that have no link at all on their way.
    directories: HashMap<Box<[u8]>, bool>,
}

/// Devices that a job has counted for so far, the last one now.
#[derive(Clone, Copy)]
pub(crate) struct CountedDevices {
    devices: [Option<&'static Device>; COUNTED_DEVICES_MAX],
    len: usize,
}

impl CountedDevices {
    /// The way of a job that begins with the device its path names; without one nothing is looked at.
    pub(crate) fn new(first: Option<&'static Device>) -> Self {
        let mut devices = [None; COUNTED_DEVICES_MAX];
        devices[0] = first;
        Self { devices, len: 1 }
    }

    /// The device that the job counts for.
    pub(crate) fn device(&self) -> Option<&'static Device> {
        self.devices[self.len - 1]
    }

    /// Notes that it counts for another one.
    pub(crate) fn turn(&mut self, device: &'static Device) {
        if self.len < COUNTED_DEVICES_MAX {
            self.devices[self.len] = Some(device);
            self.len += 1;
        }
    }

    fn has(&self, device: &'static Device) -> bool {
        self.devices.iter().flatten().any(|known_device| std::ptr::eq(*known_device, device))
    }

    /// The device that links on the way to `path` lead to, if it is not the one that the job counts for. Whether the last
    /// name is followed is said by `follows`. May wait for devices that the job counts for, or that `path` itself names.
    pub(crate) fn leads_elsewhere(&self, path: &CStr, follows: bool) -> Option<&'static Device> {
        let device = self.device().filter(|_| self.len < COUNTED_DEVICES_MAX)?;
        let bytes = path.to_bytes();
        let name = bytes.iter().rposition(|byte| *byte == b'/').filter(|_| bytes[0] == b'/')?;
        let directory = &bytes[..name];
        let is_plain = is_plain(&bytes[..name]);
        let has_link = || follows && readlinkat(CWD, path, Vec::new()).is_ok();
        if is_plain && !has_link() {
            return None;
        }
        let walk = Walk::along(if follows { bytes } else { directory }, self, device)?;
        let is_literal = walk.last_link.is_none();
        match walk.link_out {
            Some((end, other)) => {
                if end <= name {
                    set_elsewhere(&bytes[..end], other);
                }
                Some(other)
            }
            None => {
                if walk.last_link.is_none_or(|end| end <= name) {
                    remember_plain(directory, is_literal);
                }
                None
            }
        }
    }
}

/// State of a walk along a path.
struct Walk {
    /// Current position, without links.
    place: Vec<u8>,
    /// End, in the path, of the last name that was a link.
    last_link: Option<usize>,
    links: u32,
    /// End, in the path, of the link that leads to another device, and that device.
    link_out: Option<(usize, &'static Device)>,
}

impl Walk {
    /// `None` if it is unknown: too many links, no table, or a name that is not there.
    fn along(path: &[u8], way: &CountedDevices, device: &'static Device) -> Option<Walk> {
        let known_name = literal_part(path);
        let mut walk = Walk { place: known_name.to_vec(), last_link: None, links: 0, link_out: None };
        let mut end = known_name.len();
        for name in path[known_name.len()..].split(|byte| *byte == b'/') {
            end += name.len();
            walk.follow(name, &path[..end], way)?;
            if walk.link_out.is_some() {
                return Some(walk);
            }
            end += 1;
        }
        let (Some(end), Some(other)) = (walk.last_link, device_at(&walk.place)) else { return Some(walk) };
        if !std::ptr::eq(other, device.home()) {
            walk.link_out = Some((end, other));
        }
        Some(walk)
    }

    /// Goes one name of the path further, which ends `path`, through all links.
    fn follow(&mut self, name: &[u8], path: &[u8], way: &CountedDevices) -> Option<()> {
        let mut names = vec![name.to_vec()];
        while let Some(name) = names.pop() {
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    self.leave();
                    continue;
                }
                _ => {}
            }
            if let (Some(end), Some(other)) = (self.last_link, device_at(&self.place))
                && !way.has(other)
                && !is_named(path, other)
            {
                self.link_out = Some((end, other));
                return Some(());
            }
            self.place.push(b'/');
            self.place.extend_from_slice(&name);
            if with_table(|table| table.by_point.contains_key(&self.place))? {
                continue;
            }
            let place = CString::new(&*self.place).ok()?;
            let target = match readlinkat(CWD, &place, Vec::new()) {
                Ok(target) => target.into_bytes(),
                // `EINVAL`: the file is no link.
                Err(Errno::INVAL) => continue,
                Err(_) => return None,
            };
            self.links += 1;
            if self.links > LINKS_MAX {
                return None;
            }
            self.last_link = Some(path.len());
            if target.first() == Some(&b'/') {
                self.place.clear()
            } else {
                self.leave()
            }
            names.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
        }
        Some(())
    }

    /// Goes one directory up.
    fn leave(&mut self) {
        let end = self.place.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.place.truncate(end);
    }
}

/// The device of the mount that a path without links is on.
fn device_at(place: &[u8]) -> Option<&'static Device> {
    with_table(|table| table.mounted_at(place)).flatten().map(Device::of)
}

/// Returns true if a path crosses a mount of this device by its names alone: the kernel goes there whatever links say.
fn is_named(path: &[u8], device: &'static Device) -> bool {
    let is_of = |table: &Table, point: &[u8]| {
        table.by_point.get(point).is_some_and(|at| Some(table.mounts[*at].dev) == device.dev())
    };
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    with_table(|table| is_of(table, b"/") || ends.chain([path.len()]).any(|end| is_of(table, &path[..end])))
        == Some(true)
}

fn version() -> u64 {
    super::VERSION.load(std::sync::atomic::Ordering::Acquire)
}

/// Looks at the directories that are known for this version of the table.
fn with_plain<T>(look: impl FnOnce(&HashMap<Box<[u8]>, bool>) -> T) -> Option<T> {
    let plain = PLAIN.read().unwrap_or_else(PoisonError::into_inner);
    plain.as_ref().filter(|plain| plain.version == version()).map(|plain| look(&plain.directories))
}

fn is_plain(directory: &[u8]) -> bool {
    with_plain(|directories| directories.contains_key(directory)) == Some(true)
}

/// Leading part of a path that is known to have no links: a directory above it, or nothing.
fn literal_part(path: &[u8]) -> &[u8] {
    with_plain(|directories| {
        let is_literal = |end: &usize| directories.get(&path[..*end]) == Some(&true);
        path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end).find(is_literal)
    })
    .flatten()
    .map_or(&[], |end| &path[..end])
}

/// Remembers a directory, and those above one that has no link on its way.
fn remember_plain(directory: &[u8], is_literal: bool) {
    let now = version();
    let mut plain = PLAIN.write().unwrap_or_else(PoisonError::into_inner);
    let plain = match &mut *plain {
        Some(plain) if plain.version == now && plain.directories.len() < PLAIN_MAX => plain,
        other => other.insert(PlainDirectories { version: now, directories: HashMap::new() }),
    };
    let mut directory = directory;
    while plain.directories.insert(directory.into(), is_literal).is_none() && is_literal {
        match directory.iter().rposition(|byte| *byte == b'/') {
            None | Some(0) => return,
            Some(end) => directory = &directory[..end],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use tw_testkit::{Lacks, TempDir, leave_out};

    fn c(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    /// Looks at a path as a job does that counts for the device which the path names.
    fn look(path: &Path, follows: bool) -> (Option<&'static Device>, Option<&'static Device>) {
        let named = mounts::device_of(&c(path));
        (named, CountedDevices::new(named).leads_elsewhere(&c(path), follows))
    }

    #[test]
    fn links_to_another_device_are_found_and_remembered() {
        mounts::refresh();
        let dir = TempDir::new("walk").unwrap();
        let here = mounts::device_of(&c(dir.path()));
        let proc = mounts::device_of(c"/proc/version");
        let (Some(here), Some(proc)) = (here, proc) else {
            return leave_out(Lacks::Machine, "no /proc");
        };
        assert!(!std::ptr::eq(here, proc));
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        for name in ["real/f", "g"] {
            std::fs::write(at(name), "x").unwrap();
        }
        for (target, name) in [
            ("real", "same"),
            ("real/f", "file"),
            ("/proc", "other"),
            ("/proc/version", "version"),
            ("real/../other", "chain"),
            ("loop", "loop"),
        ] {
            symlink(target, at(name)).unwrap();
        }
        let is = |found_device: Option<&'static Device>, device: &'static Device| {
            found_device.is_some_and(|found_device| std::ptr::eq(found_device, device))
        };
        for plain in ["g", "real/f", "same/f", "file", "loop", "nothing", "nothing/f"] {
            // The second lookup uses what the first one remembered.
            for _ in 0..2 {
                assert!(look(&at(plain), true).1.is_none(), "{plain}");
            }
        }
        assert!(is_plain(c(dir.path()).to_bytes()));
        assert_eq!(literal_part(c(&at("new/f")).to_bytes()), c(dir.path()).to_bytes());
        assert!(is_plain(c(&at("same")).to_bytes()));
        assert_eq!(literal_part(c(&at("same/f")).to_bytes()), c(dir.path()).to_bytes(), "it has a link");
        // Operations that remove a link do not follow it.
        assert!(look(&at("version"), false).1.is_none());
        for _ in 0..2 {
            let (named, found_device) = look(&at("version"), true);
            assert!(is(named, here) && is(found_device, proc));
        }
        // Directories are remembered, and named from then on.
        for directory in ["other/version", "chain/version"] {
            let (named, found_device) = look(&at(directory), true);
            assert!(is(named, here) && is(found_device, proc), "{directory}");
            let (named, found_device) = look(&at(directory), true);
            assert!(is(named, proc) && found_device.is_none(), "{directory}");
        }
        let mut way = CountedDevices::new(Some(here));
        (0..COUNTED_DEVICES_MAX).for_each(|_| way.turn(proc));
        assert!(way.leads_elsewhere(&c(&at("g")), true).is_none(), "a way ends");
    }
}
