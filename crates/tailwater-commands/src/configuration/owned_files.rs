//! Files and directories that the server makes or gives away while it starts.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use tw_app::TempPath;
use tw_base::Errno;
use tw_core::process::MainSettings;
use tw_log::{Level, Target, open_log};

use crate::configuration::bytes_path::path;
use crate::configuration::created_files::CreatedFile;
use crate::configuration::user::Identity;
use crate::output::console::{Console, Fault};

/// Makes the directories of temporary files (0700), for `owner` if we can give files away.
pub fn make_temp_paths(paths: &[Arc<TempPath>], owner: Option<&Identity>) -> Result<OwnerChanges, Fault> {
    let mut given = OwnerChanges::default();
    for temp in paths {
        make_directory(path(temp.path.to_bytes()), owner, &mut given)?;
    }
    Ok(given)
}

/// Directories that were given to another user. They are given back unless [`keep`](Self::keep) is called.
#[derive(Debug, Default)]
#[must_use]
pub struct OwnerChanges(Vec<(PathBuf, u32)>);

impl OwnerChanges {
    /// The user has come to stay.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for OwnerChanges {
    fn drop(&mut self) {
        for (path, uid) in &self.0 {
            // Changing the owner was possible a moment ago. If it fails now, the next start reports it.
            let _ = chown(path, Some(*uid), None);
        }
    }
}

/// Makes the directory of a member of a cache, and gives it away for good.
pub fn make_member(path: &Path, owner: Option<&Identity>) -> Result<(), Fault> {
    let mut given = OwnerChanges::default();
    make_directory(path, owner, &mut given)?;
    given.keep();
    Ok(())
}

fn make_directory(path: &Path, owner: Option<&Identity>, given: &mut OwnerChanges) -> Result<(), Fault> {
    let name = path.to_string_lossy();
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(CreatedFile::Directory.fault(path, &error)),
    }
    let Some(owner) = owner else { return Ok(()) };
    let metadata = fs::metadata(path).map_err(|error| Fault::call("stat()", &name, &error))?;
    if metadata.uid() == owner.uid {
        return Ok(());
    }
    chown(path, Some(owner.uid), None).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => ", giving it to the user takes the capability CHOWN",
            _ => "",
        };
        let fault = Fault::call("chown()", &name, &error);
        Fault { message: fault.message + why, ..fault }
    })?;
    given.0.push((path.to_owned(), metadata.uid()));
    Ok(())
}

/// Gives log files to `owner`, who will have to open them again after they were rotated.
pub fn give_logs<'a>(logs: impl Iterator<Item = &'a Path>, owner: &Identity, console: &Console) {
    for log in logs {
        if let Err(error) = give(log, owner) {
            let name = log.display();
            let errno = Errno::from(&error);
            console.report(Level::Alert, format_args!("chown() \"{name}\" failed ({errno})"));
        }
    }
}

/// Never through a link: a user that may write into the directory of a log could otherwise get any file.
fn give(log: &Path, owner: &Identity) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::from_ne_bytes(flags.bits().to_ne_bytes());
    let file = match OpenOptions::new().append(true).custom_flags(flags).open(log) {
        Ok(file) => file,
        // A link, a socket, a pipe without a reader: not ours to give.
        Err(error) if matches!(error.raw_os_error(), Some(libc) if NOT_A_FILE.contains(&libc)) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() == owner.uid || metadata.nlink() != 1 {
        return Ok(());
    }
    fchown(&file, Some(owner.uid), None)
}

const NOT_A_FILE: [i32; 2] = [rustix::io::Errno::LOOP.raw_os_error(), rustix::io::Errno::NXIO.raw_os_error()];

/// Lets standard error end where the main error log does, for what cannot be logged: a panic, the loop guard.
/// A server in the background has no other place for it; without an error log in a file it keeps what it has.
pub fn redirect_stderr(main: &MainSettings) {
    if main.error_log.iter().any(|target| target.target == Target::Stderr) {
        return;
    }
    let log = main.error_log.iter().find_map(|target| target.target.path());
    // The log is open for messages already, so a failure here only loses other output to standard error.
    if let Some(Ok(log)) = log.map(open_log) {
        let _ = rustix::stdio::dup2_stderr(&log);
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::{Lacks, TempDir, leave_out};

    use super::*;

    #[test]
    fn directories_are_made_once() {
        let dir = TempDir::new("temp-paths").unwrap();
        let path = dir.join("client_body_temp");
        make_directory(&path, None, &mut OwnerChanges::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        make_directory(&path, None, &mut OwnerChanges::default()).unwrap();

        let fault = make_directory(&dir.join("no/such"), None, &mut OwnerChanges::default()).unwrap_err();
        let expected =
            format!("mkdir() \"{}\" failed (2: No such file or directory)", dir.join("no/such").display());
        assert_eq!(fault.message, expected);
    }

    #[test]
    fn a_directory_is_given_back_if_its_new_user_does_not_stay() {
        if !rustix::process::geteuid().is_root() {
            return leave_out(Lacks::Run, "only root can give directories away");
        }
        let dir = TempDir::new("given").unwrap();
        let path = dir.join("client_body_temp");
        make_directory(&path, None, &mut OwnerChanges::default()).unwrap();
        let owner = || fs::metadata(&path).unwrap().uid();
        let before = owner();
        let other = Identity { uid: owner() + 1, gid: 0, groups: Vec::new() };
        for keep in [false, true] {
            let mut given = OwnerChanges::default();
            make_directory(&path, Some(&other), &mut given).unwrap();
            assert_eq!(owner(), other.uid);
            if keep {
                given.keep()
            } else {
                drop(given)
            }
            assert_eq!(owner(), if keep { other.uid } else { before });
        }
    }

    #[test]
    fn only_plain_files_are_given_away() {
        let dir = TempDir::new("logs").unwrap();
        let log = dir.write("access.log", "").unwrap();
        let owner = fs::metadata(&log).unwrap().uid();
        std::os::unix::fs::symlink(&log, dir.join("link")).unwrap();
        // Only root could give files to this other user, but links are skipped before that matters.
        let other = Identity { uid: owner + 1, gid: 0, groups: Vec::new() };
        give(&dir.join("link"), &other).unwrap();
        assert_eq!(fs::metadata(&log).unwrap().uid(), owner);
        assert!(give(&dir.join("none"), &other).is_err());
    }
}
