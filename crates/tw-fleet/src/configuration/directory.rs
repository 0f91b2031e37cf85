//! Directory of a node with the versions that it has taken over.
//!
//! ```text
//! vN/        files of version N
//! current    symbolic link to what is served; the server is started with -c DIRECTORY/current/MAIN
//! state      JSON: the last order, and the versions that were served before
//! ```
//! The link is replaced in one step. A node that is cut off, or is started again, serves where it points to.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ConfigurationError, ConfigurationVersion, ReportState};
use crate::directory::failed;

/// Versions that stay on disk beside the one that is served.
const VERSIONS_KEPT: usize = 10;
/// Versions that a node can go back to, one after the other.
const HISTORY_MAX: usize = 10;

/// Version that was served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    /// Number; 0 for one that was not pushed.
    pub number: u64,
    /// Target of the link.
    pub link: String,
}

/// Memory of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowState {
    /// Number of the last order.
    pub serial: u64,
    /// State after it.
    pub state: ReportState,
    /// Version that is served; 0 for one that was not pushed.
    pub number: u64,
    /// Reason of a refusal.
    pub message: String,
    /// Target of the link that was served last without a fault.
    pub link: String,
    /// Versions that were served before, the latest first. One that was rolled back is not among them.
    pub history: Vec<ServedVersion>,
}

impl FollowState {
    /// Version that a rollback goes back to; 0 for one that was not pushed, or if there is none.
    pub fn previous(&self) -> u64 {
        self.history.first().map_or(0, |previous| previous.number)
    }

    /// State after a version was taken over.
    #[must_use]
    pub fn forward(&self, number: u64, link: &str) -> Self {
        let mut next = self.clone();
        if link != self.link {
            let served_version = ServedVersion { number: self.number, link: self.link.clone() };
            next.history.retain(|known_served_version| {
                known_served_version.link != link && known_served_version.link != served_version.link
            });
            next.history.insert(0, served_version);
            next.history.truncate(HISTORY_MAX);
        }
        (next.number, next.link) = (number, link.to_owned());
        next
    }

    /// State after a rollback, which forgets the version that was rolled back. `None` if nothing was served before.
    #[must_use]
    pub fn back(&self) -> Option<Self> {
        let mut next = self.clone();
        let ServedVersion { number, link } = match self.history.first() {
            Some(_) => next.history.remove(0),
            None => return None,
        };
        (next.number, next.link) = (number, link);
        Some(next)
    }
}

/// The directory.
#[derive(Debug, Clone)]
pub struct ConfigurationDirectory(PathBuf);

type Done<T> = Result<T, ConfigurationError>;

fn error(call: &str, path: &Path, error: &io::Error) -> ConfigurationError {
    ConfigurationError::new(failed(call, path, error))
}

impl ConfigurationDirectory {
    /// A directory that exists, with the link `current`.
    ///
    /// # Errors
    /// There is no such link.
    pub fn open(path: &Path) -> Done<Self> {
        let this = Self(path.to_owned());
        this.link()?;
        Ok(this)
    }

    /// Directory of a version.
    pub fn version(&self, number: u64) -> PathBuf {
        self.0.join(format!("v{number}"))
    }

    /// Target of the link.
    ///
    /// # Errors
    /// There is none.
    pub fn link(&self) -> Done<String> {
        let path = self.0.join("current");
        let target = fs::read_link(&path).map_err(|why| error("readlink()", &path, &why))?;
        target
            .into_os_string()
            .into_string()
            .map_err(|_| ConfigurationError::new("the link \"current\" is no text"))
    }

    /// Replaces the link in one step.
    ///
    /// # Errors
    /// The disk fails; the link is the old one or the new one.
    pub fn set_link(&self, target: &str) -> Done<()> {
        let path = self.0.join("current");
        let new = self.0.join("current.new");
        let _ = fs::remove_file(&new);
        symlink(target, &new).map_err(|why| error("symlink()", &new, &why))?;
        fs::rename(&new, &path).map_err(|why| error("rename()", &path, &why))?;
        self.sync(&self.0)
    }

    fn sync(&self, path: &Path) -> Done<()> {
        File::open(path).and_then(|file| file.sync_all()).map_err(|why| error("fsync()", path, &why))
    }

    /// Writes the files of a version. They are whole or not there.
    ///
    /// # Errors
    /// The disk fails.
    pub fn write_version(&self, version: &ConfigurationVersion) -> Done<PathBuf> {
        version.check()?;
        let path = self.version(version.number);
        let new = self.0.join("new");
        let remove = |path: &Path| match fs::remove_dir_all(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(error("rmdir()", path, &why)),
            _ => Ok(()),
        };
        let link = Path::new(&self.link()?).file_name().map(ToOwned::to_owned);
        if link.as_deref() == path.file_name() {
            // The link points to this version, so it is complete and stays as it is.
            return Ok(path);
        }
        remove(&new)?;
        let make = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.map_err(|why| error("mkdir()", path, &why))
        };
        make(&new)?;
        for (name, text) in &version.files {
            let file = new.join(name);
            if let Some(parent) = file.parent() {
                make(parent)?;
            }
            let opened = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&file);
            let result = opened.and_then(|mut opened| {
                opened.write_all(text)?;
                opened.sync_all()
            });
            result.map_err(|why| error("write()", &file, &why))?;
        }
        remove(&path)?;
        fs::rename(&new, &path).map_err(|why| error("rename()", &path, &why))?;
        self.sync(&self.0)?;
        Ok(path)
    }

    /// State; that of a new node if there is none.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn state(&self) -> Done<FollowState> {
        let path = self.0.join("state");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|_| ConfigurationError::new(format!("the state \"{}\" is damaged", path.display()))),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                Ok(FollowState { link: self.link()?, ..FollowState::default() })
            }
            Err(why) => Err(error("read()", &path, &why)),
        }
    }

    /// Saves the state, and removes versions of long ago.
    ///
    /// # Errors
    /// The disk fails; the state is the old one or the new one.
    pub fn save_state(&self, state: &FollowState) -> Done<()> {
        let path = self.0.join("state");
        let new = self.0.join("state.new");
        let result =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new).and_then(
                |mut file| {
                    file.write_all(&serde_json::to_vec(state).unwrap_or_default())?;
                    file.sync_all()
                },
            );
        result.map_err(|why| error("write()", &new, &why))?;
        fs::rename(&new, &path).map_err(|why| error("rename()", &path, &why))?;
        self.sync(&self.0)?;
        self.remove_old(state);
        Ok(())
    }

    fn remove_old(&self, state: &FollowState) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let number = |name: &std::ffi::OsStr| name.to_str()?.strip_prefix('v')?.parse::<u64>().ok();
        let mut numbers: Vec<_> = entries
            .flatten()
            .filter_map(|entry| number(&entry.file_name()))
            .filter(|number| *number > 0)
            .collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let is_used = |number: &u64| {
            state.number == *number
                || state.history.iter().any(|served_version| served_version.number == *number)
        };
        for old in numbers.into_iter().filter(|number| !is_used(number)).skip(VERSIONS_KEPT) {
            // A directory that cannot be removed costs its space only.
            let _ = fs::remove_dir_all(self.version(old));
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn rolled_back_version_is_never_the_previous_one() {
        let first = FollowState { link: "first".to_owned(), ..FollowState::default() };
        assert_eq!(first.back(), None);
        let bad = first.forward(1, "v1").forward(2, "v2").forward(3, "v3");
        let good = bad.back().unwrap();
        assert_eq!((good.number, &*good.link, good.previous()), (2, "v2", 1));
        assert_eq!(good.back().unwrap().number, 1, "not 3, which was rolled back");
        let again = good.forward(2, "v2");
        assert_eq!(again, good, "the same version again");
        // A version that is rolled out a second time is not kept twice.
        let twice = good.forward(4, "v4").forward(2, "v2").forward(4, "v4");
        assert_eq!(
            twice.history.iter().map(|served_version| served_version.number).collect::<Vec<_>>(),
            [2, 1, 0]
        );
        let start = twice.back().and_then(|state| state.back()).and_then(|state| state.back()).unwrap();
        assert_eq!((start.number, &*start.link, start.back()), (0, "first", None));
        let long = (1..=50).fold(first, |state, number| state.forward(number, &format!("v{number}")));
        assert_eq!((long.history.len(), long.previous()), (HISTORY_MAX, 49));
    }

    #[test]
    fn versions_are_written_and_the_link_is_replaced() {
        let dir = TempDir::new("fleet-configuration").unwrap();
        assert!(ConfigurationDirectory::open(dir.path()).is_err(), "there is no link");
        fs::create_dir(dir.join("first")).unwrap();
        symlink("first", dir.join("current")).unwrap();
        let directory = ConfigurationDirectory::open(dir.path()).unwrap();
        assert_eq!(directory.state().unwrap().link, "first");
        let version = |number, text: &str| ConfigurationVersion {
            fleet: "edge".to_owned(),
            number,
            author: String::new(),
            time_ms: 0,
            main: "a/main".to_owned(),
            files: [("a/main".to_owned(), text.into())].into(),
        };
        // A directory left behind by a crash is overwritten.
        fs::create_dir(dir.join("new")).unwrap();
        fs::write(dir.join("new/half"), "x").unwrap();
        for number in 1..=15 {
            directory.write_version(&version(number, "one")).unwrap();
            directory.set_link(&format!("v{number}")).unwrap();
            let link = format!("v{number}");
            let state = FollowState { number, link, ..FollowState::default() };
            directory.save_state(&state).unwrap();
            assert_eq!(directory.state(), Ok(state));
        }
        assert_eq!(fs::read(dir.join("current/a/main")).unwrap(), b"one");
        assert!(!dir.join("v15/half").exists() && !dir.join("v4").exists() && dir.join("v5").exists());
        // A version that is served is not touched.
        directory.write_version(&version(15, "two")).unwrap();
        assert_eq!(fs::read(dir.join("current/a/main")).unwrap(), b"one");
        fs::write(dir.join("state"), "{").unwrap();
        assert!(directory.state().is_err());
    }
}
