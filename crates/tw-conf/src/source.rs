//! Sources of configuration texts: the file system, or memory.
//!
//! The only file of this crate that touches files. Configuration is read by the master and before the loops start,
//! so these calls may wait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tw_base::Errno;
use zeroize::Zeroizing;

/// File system as the reader uses it. Names are bytes, as in the configuration.
pub trait ConfFiles {
    /// All bytes of a file.
    ///
    /// # Errors
    /// Errors of the file system; the message shows the system's error number.
    fn read(&self, name: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens a file of data, which is too large for a copy of the configuration: a process that gets the copy gets the
    /// descriptor. It is read with offsets (`pread`), because processes share its position.
    ///
    /// # Errors
    /// Errors of the file system.
    fn open(&self, name: &[u8]) -> io::Result<OwnedFd>;

    /// Opens a file or a block device for reading and writing, or for reading if it is read-only, as [`open`](Self::open) opens
    /// files of data.
    ///
    /// # Errors
    /// Errors of the file system; `ETIMEDOUT` if it does not answer for two seconds.
    fn open_device(&self, name: &[u8]) -> io::Result<OwnedFd> {
        self.open(&device_file(name))
    }

    /// The names in a directory, in any order, without `.` and `..`.
    ///
    /// # Errors
    /// Errors of the file system.
    fn list(&self, directory: &[u8]) -> io::Result<Vec<Vec<u8>>>;

    /// Returns `true` if a file or directory of this name exists.
    fn exists(&self, name: &[u8]) -> bool;

    /// Value of a variable of the environment.
    fn environment(&self, name: &str) -> Option<Vec<u8>>;
}

/// Time for which a device is waited for.
const DEVICE_WAIT: Duration = Duration::from_secs(2);

/// The file system of the machine. Every call may wait for the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl ConfFiles for SystemFiles {
    fn read(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        std::fs::read(OsStr::from_bytes(name))
    }

    fn open(&self, name: &[u8]) -> io::Result<OwnedFd> {
        Ok(File::open(OsStr::from_bytes(name))?.into())
    }

    fn open_device(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let path = OsStr::from_bytes(name).to_owned();
        let (sender, receiver) = mpsc::channel();
        let open = move || {
            let opened = match File::options().read(true).write(true).open(&path) {
                // EACCES, EPERM, EROFS: a disk that protects itself.
                Err(error) if matches!(error.raw_os_error(), Some(13 | 1 | 30)) => {
                    File::open(&path).map_err(|_| error)
                }
                opened => opened,
            };
            // The receiver may have given up waiting.
            let _ = sender.send(opened);
        };
        // A thread of its own opens the device, because a disk that hangs would keep the server from starting.
        let opening = std::thread::Builder::new().name("open device".to_owned()).spawn(open)?;
        match receiver.recv_timeout(DEVICE_WAIT) {
            Ok(opened) => {
                let _ = opening.join();
                Ok(opened?.into())
            }
            // ETIMEDOUT.
            Err(_) => Err(io::Error::from_raw_os_error(110)),
        }
    }

    fn list(&self, directory: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        std::fs::read_dir(OsStr::from_bytes(directory))?
            .map(|entry| Ok(entry?.file_name().into_vec()))
            .collect()
    }

    fn exists(&self, name: &[u8]) -> bool {
        Path::new(OsStr::from_bytes(name)).symlink_metadata().is_ok()
    }

    fn environment(&self, name: &str) -> Option<Vec<u8>> {
        std::env::var_os(name).map(OsString::into_vec)
    }
}

/// The file system of the machine, and a copy of all that was read: a reader that gets the copy reads the same.
#[derive(Debug, Default)]
pub struct RecordedFiles(RefCell<MemoryFiles>);

impl RecordedFiles {
    /// Files that were read so far, as files in memory.
    pub fn into_files(self) -> MemoryFiles {
        self.0.into_inner()
    }
}

impl ConfFiles for RecordedFiles {
    fn read(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        // A file that is read twice has to have the same content both times.
        if let Ok(text) = self.0.borrow().read(name) {
            return Ok(text);
        }
        let text = SystemFiles.read(name)?;
        self.0.borrow_mut().insert(name, text.clone());
        Ok(text)
    }

    fn open(&self, name: &[u8]) -> io::Result<OwnedFd> {
        if let Ok(file) = self.0.borrow().open(name) {
            return Ok(file);
        }
        let file = SystemFiles.open(name)?;
        self.0.borrow_mut().insert_open(name, file.try_clone()?);
        Ok(file)
    }

    fn open_device(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let known_name = device_file(name);
        if let Ok(file) = self.0.borrow().open(&known_name) {
            return Ok(file);
        }
        let file = SystemFiles.open_device(name)?;
        self.0.borrow_mut().insert_open(known_name, file.try_clone()?);
        Ok(file)
    }

    fn list(&self, directory: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        SystemFiles.list(directory)
    }

    fn exists(&self, name: &[u8]) -> bool {
        SystemFiles.exists(name)
    }

    fn environment(&self, name: &str) -> Option<Vec<u8>> {
        let value = SystemFiles.environment(name)?;
        self.0.borrow_mut().insert_environment(name, value.clone());
        Some(value)
    }
}

/// Files in memory: those that the master has read, and files of tests. Names are compared byte by byte; those that
/// do not begin with `/` are in the directory `.`. Wiped on drop: some are private keys. Files of data are open instead.
#[derive(Clone, Default)]
pub struct MemoryFiles {
    files: BTreeMap<Vec<u8>, Zeroizing<Vec<u8>>>,
    data: BTreeMap<Vec<u8>, Arc<OwnedFd>>,
}

/// Shows only the names: the contents may be secret.
impl fmt::Debug for MemoryFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys().map(|name| String::from_utf8_lossy(name))).finish()
    }
}

impl MemoryFiles {
    /// Adds or replaces a file.
    pub fn insert(&mut self, name: impl Into<Vec<u8>>, text: impl Into<Vec<u8>>) {
        self.files.insert(name.into(), Zeroizing::new(text.into()));
    }

    /// Adds or replaces a variable of the environment. It is kept, and passed on, as a file whose name no file can have.
    pub fn insert_environment(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.insert(environment_file(name), value);
    }

    /// Adds or replaces a file of data, which is open.
    pub fn insert_open(&mut self, name: impl Into<Vec<u8>>, file: OwnedFd) {
        self.data.insert(name.into(), Arc::new(file));
    }

    /// All open files of data with their names.
    pub fn iter_open(&self) -> impl Iterator<Item = (&[u8], &OwnedFd)> {
        self.data.iter().map(|(name, file)| (&name[..], &**file))
    }

    /// All files with their names, without those of data.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.files.iter().map(|(name, text)| (&name[..], &text[..]))
    }

    /// Names below a directory, without the directory and the `/`.
    fn below(&self, directory: &[u8]) -> impl Iterator<Item = &[u8]> {
        let is_current = directory == b".";
        let end = directory.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let directory = &directory[..end];
        self.files.keys().filter_map(move |name| {
            if is_current {
                Some(&name[..]).filter(|name| !name.starts_with(b"/") && !name.starts_with(b"\0"))
            } else {
                name.strip_prefix(directory)?.strip_prefix(b"/")
            }
        })
    }
}

impl ConfFiles for MemoryFiles {
    fn read(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        // Error number 2 is ENOENT everywhere nginx runs.
        self.files.get(name).map(|text| text.to_vec()).ok_or_else(|| io::Error::from_raw_os_error(2))
    }

    fn open(&self, name: &[u8]) -> io::Result<OwnedFd> {
        self.data.get(name).ok_or_else(|| io::Error::from_raw_os_error(2))?.try_clone()
    }

    fn list(&self, directory: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let first = |name: &[u8]| name.split(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
        let mut names: Vec<Vec<u8>> = self.below(directory).map(first).collect();
        names.dedup();
        Ok(names)
    }

    fn exists(&self, name: &[u8]) -> bool {
        self.files.contains_key(name) || self.below(name).next().is_some()
    }

    fn environment(&self, name: &str) -> Option<Vec<u8>> {
        self.files.get(&environment_file(name)).map(|value| value.to_vec())
    }
}

/// Name of the file in memory that has the value of a variable of the environment.
fn environment_file(name: &str) -> Vec<u8> {
    [b"\0", name.as_bytes()].concat()
}

/// Name in memory of a file that is open for writing, too.
fn device_file(name: &[u8]) -> Vec<u8> {
    [b"\0device ", name].concat()
}

/// An error of the system as the error log shows it: `2: No such file or directory`.
pub(crate) fn errno_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno(number).to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory() {
        let mut files = MemoryFiles::default();
        for name in ["/etc/a", "/etc/d/b", "/etc/d/c", "e", "f/g"] {
            files.insert(name, name);
        }
        let table: [(&str, &[&str]); 6] = [
            ("/etc", &["a", "d"]),
            ("/etc/", &["a", "d"]),
            ("/etc/d", &["b", "c"]),
            ("/", &["etc"]),
            (".", &["e", "f"]),
            ("/none", &[]),
        ];
        for (directory, expected) in table {
            let names = files.list(directory.as_bytes()).unwrap();
            let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
            assert_eq!(names, expected, "{directory}");
        }
        assert!(files.exists(b"/etc/d") && files.exists(b"e") && !files.exists(b"/e"));
        assert_eq!(files.read(b"f/g").unwrap(), b"f/g");
        files.insert_environment("E", "value");
        assert_eq!(files.environment("E").as_deref(), Some(&b"value"[..]));
        assert_eq!((files.environment("F"), files.list(b".").unwrap().len()), (None, 2));
        files.insert_open("/data", SystemFiles.open(b"/proc/self/stat").unwrap());
        assert!(files.open(b"/data").is_ok() && files.read(b"/data").is_err());
        assert_eq!(files.open(b"f/g").unwrap_err().raw_os_error(), Some(2));
        assert_eq!(errno_text(&files.read(b"g").unwrap_err()), "2: No such file or directory");
        assert_eq!(errno_text(&io::Error::other("odd")), "odd");
    }
}
