//! Files and directories that a start makes: logs, directories of temporary files, the pid file. A start makes the
//! directories of the prefix that they need, and a test checks if it could.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path};

use rustix::fs::{Access, access};
use tw_app::Config;
use tw_log::Level;

use crate::configuration::bytes_path::path;
use crate::output::console::Fault;

/// Something that a start makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreatedFile {
    /// A log.
    Log,
    /// A directory of a cache or of temporary files.
    Directory,
    /// The pid file.
    Pid,
}

impl CreatedFile {
    /// The call that makes it.
    const fn call(self) -> &'static str {
        match self {
            Self::Directory => "mkdir()",
            Self::Log | Self::Pid => "open()",
        }
    }

    /// The fault of one that cannot be made at `path`, with what to do about it.
    pub fn fault(self, path: &Path, error: &io::Error) -> Fault {
        let fault = Fault::call(self.call(), &path.to_string_lossy(), error);
        match self.hint(path, error) {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    }

    /// Returns advice about one that cannot be made.
    pub fn hint(self, path: &Path, error: &io::Error) -> Option<String> {
        let directory = directory_of(path);
        Some(match (error.kind(), self, directory) {
            (io::ErrorKind::NotFound, _, Some(directory)) => {
                format!("\"mkdir -p {}\" makes the directory", directory.display())
            }
            (io::ErrorKind::NotADirectory, _, Some(directory)) => {
                format!("{} must be a directory", directory.display())
            }
            (io::ErrorKind::IsADirectory, Self::Pid, _) => format!("{} must be a file", path.display()),
            (io::ErrorKind::PermissionDenied, Self::Log, _) => {
                "logs are opened by the user who starts the server".to_owned()
            }
            (_, Self::Log, _) => return None,
            (_, Self::Directory, _) => {
                "a directive ending in \"_path\" says where; by default it is below the prefix (-p)"
                    .to_owned()
            }
            (_, Self::Pid, _) => {
                "the \"pid\" directive says where the file is; its directory must be writable".to_owned()
            }
        })
    }
}

fn directory_of(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

/// Everything that a start makes, in its order.
fn all(config: &Config) -> impl Iterator<Item = (CreatedFile, &Path)> {
    let logs = config.logs.paths().map(|path| (CreatedFile::Log, path));
    let directories =
        config.temp_paths().iter().map(|temp| (CreatedFile::Directory, path(temp.path.to_bytes())));
    logs.chain(directories).chain(std::iter::once((CreatedFile::Pid, path(&config.main.pid))))
}

/// Makes the directories of the prefix in which something is to be made (0755).
///
/// # Errors
/// One cannot be made.
// DIFF(nginx): nginx needs a prefix with a directory for logs, and makes none.
pub fn make_directories(config: &Config, prefix: &Path) -> Result<(), Fault> {
    for (_, path) in all(config) {
        let Some(directory) = directory_of(path) else { continue };
        if is_of_prefix(directory, prefix) && fs::metadata(directory).is_err_and(|error| is_missing(&error)) {
            make(directory)?;
        }
    }
    Ok(())
}

fn make(directory: &Path) -> Result<(), Fault> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.map_err(|error| refused(directory, &error))
}

/// The fault of a directory of the prefix that cannot be made.
fn refused(directory: &Path, error: &io::Error) -> Fault {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "only root may make it: start with \"sudo\", or with \"-p DIRECTORY\" in a directory of your own"
        }
        _ => "\"-p DIRECTORY\" names another place",
    };
    Fault::call("mkdir()", &directory.to_string_lossy(), error).hint(hint)
}

/// Returns true if a directory is the prefix, or below it whatever is a link.
fn is_of_prefix(directory: &Path, prefix: &Path) -> bool {
    let below = match prefix.as_os_str().is_empty() {
        true => directory.is_relative().then_some(directory),
        // The root is not a prefix.
        false if prefix.parent().is_none() => None,
        false => directory.strip_prefix(prefix).ok(),
    };
    below.is_some_and(|below| !below.components().any(|part| part == Component::ParentDir))
}

/// Returns true if nothing is there. Whatever else is wrong may be right for another user.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Finds the faults of a start: places that cannot be made; or, as a note, one that the user of this process may not make. Makes nothing.
pub fn check(config: &Config, prefix: &Path) -> Vec<(CreatedFile, Fault)> {
    let (mut faults, mut note): (Vec<(CreatedFile, Fault)>, _) = (Vec::new(), None);
    for (made, path) in all(config) {
        match check_one(made, path, prefix) {
            Some(fault) if fault.level == Level::Notice => note = note.or(Some((made, fault))),
            // A hint helps once.
            Some(fault) if faults.iter().any(|(_, known_fault)| known_fault.hint == fault.hint) => {
                faults.push((made, Fault { hint: None, ..fault }));
            }
            Some(fault) => faults.push((made, fault)),
            None => {}
        }
    }
    if faults.is_empty() { note.into_iter().collect() } else { faults }
}

/// The fault of one place; a note if another user may make it.
fn check_one(made: CreatedFile, path: &Path, prefix: &Path) -> Option<Fault> {
    let noted = |fault: Fault| Fault { level: Level::Notice, ..fault };
    match (existing(path), made) {
        (Some(true), CreatedFile::Log | CreatedFile::Pid) => {
            return Some(made.fault(path, &rustix::io::Errno::ISDIR.into()));
        }
        (Some(false), CreatedFile::Directory) => {
            return Some(made.fault(path, &rustix::io::Errno::EXIST.into()));
        }
        _ => {}
    }
    let directory = directory_of(path)?;
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => {
            let is_there = fs::symlink_metadata(path).is_ok();
            may_make_in(directory).err().filter(|_| !is_there).map(|error| noted(made.fault(path, &error)))
        }
        Ok(_) => Some(made.fault(path, &rustix::io::Errno::NOTDIR.into())),
        Err(error) if is_missing(&error) && is_of_prefix(directory, prefix) => {
            match directory.ancestors().find_map(|above| Some((above, existing(above)?))) {
                Some((_, false)) => Some(refused(directory, &rustix::io::Errno::NOTDIR.into())),
                Some((above, true)) => {
                    may_make_in(above).err().map(|error| noted(refused(directory, &error)))
                }
                None => None,
            }
        }
        Err(error) if is_missing(&error) => Some(made.fault(path, &error)),
        // Other errors may not occur for the user who starts the server.
        Err(_) => None,
    }
}

/// Returns true if something that exists is a directory; `None` if there is nothing.
fn existing(path: &Path) -> Option<bool> {
    // The directory in which this process is.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    fs::metadata(path).ok().map(|metadata| metadata.is_dir())
}

/// Checks that the user of this process may make something in a directory.
fn may_make_in(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_prefix_is_filled() {
        for (directory, prefix, expected) in [
            ("/p", "/p/", true),
            ("/p/logs", "/p/", true),
            ("/p/a/b", "/p", true),
            ("/pp/logs", "/p/", false),
            ("/p/../etc", "/p/", false),
            ("/var/log/x", "/", false),
            ("/var/log/x", "", false),
            ("logs", "", true),
            ("./p/logs", "./p/", true),
            ("logs", "./p/", false),
        ] {
            assert_eq!(
                is_of_prefix(Path::new(directory), Path::new(prefix)),
                expected,
                "{directory} {prefix}"
            );
        }
    }

    #[test]
    fn hints_name_the_command() {
        let error = |errno: rustix::io::Errno| io::Error::from(errno);
        for (made, errno, expected) in [
            (CreatedFile::Log, rustix::io::Errno::NOENT, Some("\"mkdir -p /a/b\" makes the directory")),
            (CreatedFile::Pid, rustix::io::Errno::NOENT, Some("\"mkdir -p /a/b\" makes the directory")),
            (CreatedFile::Directory, rustix::io::Errno::NOTDIR, Some("/a/b must be a directory")),
            (
                CreatedFile::Log,
                rustix::io::Errno::ACCESS,
                Some("logs are opened by the user who starts the server"),
            ),
            (CreatedFile::Log, rustix::io::Errno::ISDIR, None),
        ] {
            let hint = made.hint(Path::new("/a/b/c"), &error(errno));
            assert_eq!(hint.as_deref(), expected, "{made:?} {errno:?}");
        }
    }
}
