//! The state directory of an issuer: the key of the account, and each certificate with its key.
//!
//! ```text
//! account.key            PEM
//! example.com-0123….pem  the key, then the certificate and its chain, in PEM: one file, so that both are of one kind
//! lock                   held by the process that orders
//! ```
//! Every file has the mode 0600, gets a temporary name, reaches the disk and is then renamed: a crash leaves the old or the
//! new one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::error::Error;

/// More is no file of ours.
const FILE_SIZE_MAX: u64 = 4 << 20;

const ACCOUNT: &str = "account.key";
const LOCK: &str = "lock";

/// A state directory.
#[derive(Debug, Clone)]
pub(crate) struct State(PathBuf);

/// The right to order for what is kept here, until it is dropped.
#[derive(Debug)]
pub(crate) struct Locked(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] File);

impl State {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Takes the lock; `None` if another process has it.
    pub(crate) fn lock(&self) -> Result<Option<Locked>, Error> {
        // After a start with privileges the directory exists already, and belongs to the user of this process.
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::State("mkdir()", self.0.clone(), error));
            }
            _ => {}
        }
        let path = self.0.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| Error::State("open()", path.clone(), error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Locked(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::State("flock()", path, error)),
        }
    }

    /// The account's key; `None` if there is none.
    pub(crate) fn account(&self) -> Result<Option<Zeroizing<String>>, Error> {
        self.read(ACCOUNT)
    }

    pub(crate) fn keep_account(&self, text: &str) -> Result<(), Error> {
        self.write(ACCOUNT, text)
    }

    /// The certificate of this name with its key.
    pub(crate) fn certificate(&self, id: &str) -> Result<Option<Zeroizing<String>>, Error> {
        self.read(&format!("{id}.pem"))
    }

    pub(crate) fn keep_certificate(&self, id: &str, text: &str) -> Result<(), Error> {
        self.write(&format!("{id}.pem"), text)
    }

    fn read(&self, name: &str) -> Result<Option<Zeroizing<String>>, Error> {
        let path = self.0.join(name);
        let mut text = Zeroizing::new(String::new());
        let read = File::open(&path).and_then(|file| {
            // The buffer has its final size, so that it is not moved and no copy of the key stays behind.
            let len = file.metadata()?.len().min(FILE_SIZE_MAX);
            text.reserve_exact(usize::try_from(len).unwrap_or_default() + 1);
            file.take(FILE_SIZE_MAX).read_to_string(&mut text)
        });
        match read {
            Ok(_) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::State("read()", path, error)),
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.0.join(name);
        let temporary = self.0.join(format!(".{name}.new"));
        let failed = |call: &'static str, path: &Path| {
            let path = path.to_owned();
            move |error| Error::State(call, path, error)
        };
        // The file was left behind by a crash: no other process writes here while this one has the lock.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("unlink()", &temporary)(error));
            }
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let mut file = file.map_err(failed("open()", &temporary))?;
        let result = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let renamed = result
            .map_err(failed("write()", &temporary))
            .and_then(|()| fs::rename(&temporary, &path).map_err(failed("rename()", &path)));
        if renamed.is_err() {
            // A temporary file that stays is removed before the next write.
            let _ = fs::remove_file(&temporary);
        }
        renamed?;
        // Syncing the directory makes the new name durable. A failure is ignored, because the file is complete either
        // way.
        let _ = File::open(&self.0).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tw_testkit::disk::{Fault, Op, SlowDisk};
    use tw_testkit::{Errno, TempDir};

    use super::*;

    #[test]
    fn stored_certificate_is_found_again_and_no_other() {
        let dir = TempDir::new("acme-state").unwrap();
        let state = State::new(&dir.join("issuer"));
        assert_eq!(state.account().unwrap(), None);
        let lock = state.lock().unwrap().unwrap();
        assert!(state.lock().unwrap().is_none(), "another process orders");
        drop(lock);
        let _lock = state.lock().unwrap().unwrap();
        state.keep_account("one").unwrap();
        // A temporary file left behind by a crash is no obstacle.
        fs::write(dir.join("issuer/.account.key.new"), "half").unwrap();
        state.keep_account("two").unwrap();
        assert_eq!(state.account().unwrap().unwrap().as_str(), "two");
        state.keep_certificate("a", "pem").unwrap();
        assert_eq!(state.certificate("a").unwrap().unwrap().as_str(), "pem");
        assert_eq!(state.certificate("b").unwrap(), None);
        let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            [mode("issuer"), mode("issuer/account.key"), mode("issuer/a.pem"), mode("issuer/lock")],
            [0o700, 0o600, 0o600, 0o600]
        );
        let names: Vec<_> =
            fs::read_dir(dir.join("issuer")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn full_disk_keeps_stored_files() {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        let state = State::new(&disk.join("issuer"));
        let _lock = state.lock().unwrap().unwrap();
        state.keep_certificate("a", "old").unwrap();
        for op in [Op::Create, Op::Write, Op::Fsync, Op::Rename] {
            let full = disk.on(op).inject(Fault::Error(Errno::NOSPC));
            let said = state.keep_certificate("a", "new").unwrap_err().to_string();
            assert!(said.ends_with("failed (28: No space left on device)"), "{op:?}: {said}");
            assert_eq!(state.certificate("a").unwrap().unwrap().as_str(), "old", "{op:?}");
            assert!(full.hits() > 0);
            full.lift();
        }
        state.keep_certificate("a", "new").unwrap();
        assert_eq!(state.certificate("a").unwrap().unwrap().as_str(), "new");
    }

    #[test]
    fn failed_write_is_reported_and_keeps_the_old_file() {
        let dir = TempDir::new("acme-state").unwrap();
        let state = State::new(&dir.join("no/such"));
        let said = state.lock().unwrap_err().to_string();
        assert!(
            said.starts_with("mkdir() \"") && said.ends_with("failed (2: No such file or directory)"),
            "{said}"
        );
        let state = State::new(&dir.join("issuer"));
        let _lock = state.lock().unwrap().unwrap();
        state.keep_account("one").unwrap();
        // A file cannot be renamed over a directory, so the write fails.
        fs::create_dir(dir.join("issuer/a.pem")).unwrap();
        assert!(state.keep_certificate("a", "pem").unwrap_err().to_string().starts_with("rename() \""));
        assert!(!dir.join("issuer/.a.pem.new").exists());
        assert_eq!(state.account().unwrap().unwrap().as_str(), "one");
    }
}
