//! Rights to files by place: those that modules declare (`reach`), and those of the process itself.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{AccessFs, BitFlags, make_bitflags};
use tailwater_commands::configuration::bytes_path::path;
use tailwater_commands::configuration::member_directories;
use tw_app::Config;
use tw_core::process::Sandbox;
use tw_core::reach::Access;
use tw_log::{SyslogServer, Target};
use tw_net::Addr;

use super::{ProcessRole, READ};

/// Rights that a log needs to its directory.
const APPEND: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | MakeReg});
/// Rights that WebDAV and temporary files need. A file may not gain rights by being moved, so both have the same.
const CHANGE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir | Refer
});
/// Rights that the pid file needs.
const PID_FILE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | RemoveFile});
/// Rights that a listening Unix socket needs: it checks if another server's is alive.
const LISTEN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeSock | RemoveFile | ResolveUnix});
/// Rights that a syslog server needs.
const CONNECT: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ResolveUnix});
/// Rights that a core file needs, which the kernel writes with the rights of the process.
const CORE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg});

/// Files that the C library and the server itself read while they run: names of hosts, times, `/proc` about the process
/// and the memory of the machine, and the processors and memory of its group.
const SYSTEM: [&str; 13] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/proc/meminfo",
    "/proc/self",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/usr/share/zoneinfo",
];

/// A file or directory, and what may be done with it and below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathRule {
    /// Without symbolic links.
    pub(super) path: PathBuf,
    /// Device and number: rights hold for what was there, whatever gets its name later.
    id: (u64, u64),
    pub(super) rights: BitFlags<AccessFs>,
    pub(super) origin: Origin,
}

/// Source of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Configuration,
    /// The C library and the server itself, whatever the configuration.
    System,
}

impl PathRule {
    /// Purpose, for messages.
    pub(super) fn purpose(&self) -> &'static str {
        purpose(self.rights)
    }

    /// Returns `true` if files are read in it.
    pub(super) fn is_read(&self) -> bool {
        self.rights.intersects(READ)
    }

    /// Returns `true` if files are written in it.
    pub(super) fn is_written(&self) -> bool {
        self.rights.intersects(!READ & !CONNECT)
    }
}

fn purpose(rights: BitFlags<AccessFs>) -> &'static str {
    if rights.intersects(!READ & !CONNECT) {
        "writing in"
    } else if rights.intersects(READ) {
        "reading"
    } else {
        "connections to"
    }
}

/// All places, by path; those that are not there cannot be allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PathRules {
    there: BTreeMap<PathBuf, PathRule>,
    missing: BTreeMap<PathBuf, BitFlags<AccessFs>>,
}

impl PathRules {
    // DIFF(nginx): nothing is written where a link leads out of what is named here.
    /// Places that serving `config` needs if `restricted` is restricted.
    pub(super) fn of(config: &Config, role: ProcessRole, restricted: BitFlags<AccessFs>) -> Self {
        let mut places = Self::default();
        if config.main.sandbox == Sandbox::Off {
            return places;
        }
        for place in config.reach.places() {
            let rights = match place.access {
                Access::Read => READ,
                Access::Append => APPEND,
                Access::Change => CHANGE,
            };
            let place = path(&place.path);
            match member_directories::answers(config, place) {
                true => places.add(place, rights & restricted),
                // A reload allows it when its disk answers again.
                false => _ = places.missing.insert(place.to_owned(), rights & restricted),
            }
        }
        places.add_process(config, restricted);
        if role == ProcessRole::Alone {
            places.add_single(config, restricted);
        }
        places
    }

    /// Adds the places that every process needs.
    fn add_process(&mut self, config: &Config, restricted: BitFlags<AccessFs>) {
        if restricted.intersects(READ) {
            let rights = READ & restricted;
            // Each file is added on its own, because the directories of these files hold other things.
            SYSTEM.iter().for_each(|name| self.add_as(Origin::System, Path::new(name), rights));
        }
        for target in config.logs.targets() {
            if let Target::Syslog(SyslogServer::Unix(socket)) = target {
                self.add_parent(socket, CONNECT & restricted);
            }
        }
        let main = &config.main;
        if main.rlimit_core.is_some_and(|size| size > 0) {
            let directory = main.working_directory.as_deref().map_or(Path::new("."), path);
            self.add(directory, CORE & restricted);
        }
    }

    /// Adds the places of a process without a master: it opens files now, when logs are reopened, and at a reload.
    fn add_single(&mut self, config: &Config, restricted: BitFlags<AccessFs>) {
        config.logs.paths().for_each(|log| self.add_log(log, APPEND & restricted));
        self.add_parent(path(&config.main.pid), PID_FILE & restricted);
        for group in &config.listens {
            if let Addr::Unix(Some(socket)) = &group.address {
                self.add_parent(socket, LISTEN & restricted);
            }
        }
        // A reload would make it.
        for temp in config.temp_paths() {
            let temp = path(temp.path.to_bytes());
            if self.missing.remove(temp).is_some() {
                self.add_parent(temp, CHANGE & restricted);
            }
        }
    }

    /// A log. A file may be replaced by another one; a terminal or a pipe is what it is.
    fn add_log(&mut self, log: &Path, rights: BitFlags<AccessFs>) {
        match fs::metadata(log) {
            Ok(metadata) if !metadata.is_file() => self.add_exactly(log, rights & AccessFs::WriteFile),
            Ok(_) => {
                self.add_parent(log, rights);
                // A link to a file elsewhere.
                self.add(log, rights);
            }
            Err(_) => self.add_parent(log, rights),
        }
    }

    fn add_parent(&mut self, file: &Path, rights: BitFlags<AccessFs>) {
        match file.parent() {
            Some(directory) if directory != Path::new("") => self.add(directory, rights),
            _ => self.add(Path::new("."), rights),
        }
    }

    /// A directory and what is below it. A file is replaced by another one sooner or later, so its directory counts.
    fn add(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        if rights.is_empty() {
            return;
        }
        match fs::metadata(path) {
            Ok(metadata) if !metadata.is_dir() => {
                let real = fs::canonicalize(path);
                match real.as_deref().ok().and_then(Path::parent) {
                    Some(directory) => self.add_exactly(directory, rights),
                    None => self.add_exactly(path, rights),
                }
            }
            _ => self.add_exactly(path, rights),
        }
    }

    fn add_exactly(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        self.add_as(Origin::Configuration, path, rights);
    }

    fn add_as(&mut self, origin: Origin, path: &Path, rights: BitFlags<AccessFs>) {
        if rights.is_empty() {
            return;
        }
        let Ok(metadata) = fs::metadata(path) else {
            *self.missing.entry(path.to_owned()).or_default() |= rights;
            return;
        };
        // An object without a path of its own, such as a pipe behind /dev/stdout, keeps this one.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let id = (metadata.dev(), metadata.ino());
        let place = self.there.entry(path.clone()).or_insert(PathRule { path, id, rights, origin });
        place.rights |= rights;
        if origin == Origin::Configuration {
            place.origin = origin;
        }
    }

    /// All existing places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PathRule> {
        self.there.values()
    }

    /// Missing places and their purposes. Of those that are only read, only the configuration's own are interesting.
    pub(super) fn missing(&self) -> impl Iterator<Item = (&Path, &'static str)> {
        let ours =
            self.missing.iter().filter(|(path, _)| !SYSTEM.iter().any(|name| Path::new(name) == *path));
        ours.map(|(path, rights)| (path.as_path(), purpose(*rights)))
    }

    /// A place of `other` with which not all may be done that it wants.
    pub(super) fn lacks<'a>(&self, other: &'a Self) -> Option<&'a PathRule> {
        other.iter().find(|path_rule| !self.allows(path_rule))
    }

    fn allows(&self, path_rule: &PathRule) -> bool {
        let allowed = path_rule.path.ancestors().filter_map(|path| self.there.get(path));
        let allowed = allowed.filter(|place| place.path != path_rule.path || place.id == path_rule.id);
        allowed.fold(BitFlags::EMPTY, |rights, place| rights | place.rights).contains(path_rule.rights)
    }
}

/// For the log: how many there are of each kind.
impl fmt::Display for PathRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |what: &str| self.iter().filter(|place| place.purpose() == what).count();
        let written_len = count("writing in");
        let read = count("reading");
        let plural = if written_len == 1 { "" } else { "s" };
        write!(f, "files may be written in {written_len} place{plural}")?;
        if read > 0 {
            write!(f, " and read in {read} more")
        } else {
            f.write_str(", reading is not restricted")
        }
    }
}
