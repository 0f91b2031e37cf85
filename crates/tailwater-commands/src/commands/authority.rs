//! Local authority of a user, in the user's data directory, and the store of authorities that the system trusts.
//!
//! ```text
//! $XDG_DATA_HOME/tailwater/authority   0700; made as a whole, by a rename
//!     ca.crt                           for the stores of systems and browsers
//!     ca.key                           0600
//! ```

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use tw_acme::{BUNDLES, Error, Identifier, IssuedLocally, LocalAuthority};
use zeroize::Zeroizing;

use crate::cli::TrustChange;
use crate::output::console::Fault;

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";

/// The authority of the user.
pub(crate) struct Authority {
    directory: PathBuf,
    authority: LocalAuthority,
}

impl Authority {
    /// Reads the authority of the user, and makes one if there is none or it is over.
    pub(crate) fn open() -> Result<Self, Fault> {
        Self::open_at(directory()?)
    }

    /// The authority of the user if there is one.
    pub(crate) fn existing() -> Result<Option<Self>, Fault> {
        let directory = directory()?;
        let authority = read(&directory)?;
        Ok(authority.map(|authority| Self { directory, authority }))
    }

    fn open_at(directory: PathBuf) -> Result<Self, Fault> {
        let authority = match read(&directory)? {
            Some(authority) if !authority.is_over(now()) => authority,
            local_authority => {
                if local_authority.is_some() {
                    // The certificates of an expired authority are invalid, too.
                    let removed = fs::remove_dir_all(&directory);
                    removed.map_err(|error| Fault::call("rmdir()", &shown(&directory), &error))?;
                }
                make(&directory)?
            }
        };
        Ok(Self { directory, authority })
    }

    /// The file of its certificate.
    pub(crate) fn certificate_file(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    /// Certificate of the authority, in PEM.
    pub(crate) fn certificate(&self) -> String {
        self.authority.certificate()
    }

    /// Issues a certificate for local names.
    pub(crate) fn issue(&self, names: &[Identifier]) -> Result<IssuedLocally, Fault> {
        self.authority.issue(names, now()).map_err(|error| Fault::emerg(error.to_string()))
    }

    /// The name of its certificate in a store: users of one machine each have theirs.
    pub(crate) fn name(&self) -> String {
        format!("tailwater-{}.crt", self.authority.id())
    }

    /// Returns true if programs that use the system's store trust it.
    pub(crate) fn is_trusted(&self) -> bool {
        let body = |text: &str| -> String {
            text.lines().map(str::trim).filter(|line| !line.starts_with("-----")).collect()
        };
        let own = body(&self.certificate());
        BUNDLES
            .iter()
            .filter_map(|bundle| fs::read_to_string(bundle).ok())
            .any(|text| body(&text).contains(&own))
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn directory() -> Result<PathBuf, Fault> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    let base = base.ok_or_else(|| {
        Fault::emerg("there is no directory to keep the local authority in").hint("set HOME or XDG_DATA_HOME")
    })?;
    Ok(base.join("tailwater/authority"))
}

/// Reads the authority in the directory; `None` if there is none.
fn read(directory: &Path) -> Result<Option<LocalAuthority>, Fault> {
    let certificate = directory.join(CERTIFICATE);
    let key = directory.join(KEY);
    let failed = |path: &Path, error: io::Error| Fault::call("open()", &shown(path), &error);
    let text = match fs::read(&certificate) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.exists() => return Ok(None),
        read => read.map_err(|error| failed(&certificate, error))?,
    };
    let key_text = fs::read_to_string(&key).map(Zeroizing::new).map_err(|error| failed(&key, error))?;
    let authority = LocalAuthority::read(&text, &key_text).map_err(|error| {
        let hint = format!("remove {} to get a new one, which has to be trusted again", shown(directory));
        Fault::emerg(error.to_string()).hint(hint)
    })?;
    Ok(Some(authority))
}

/// Makes the directory with a new authority in it. Another process may do the same: one of the two is used by both.
fn make(directory: &Path) -> Result<LocalAuthority, Fault> {
    let made = |error: Error| Fault::emerg(error.to_string());
    let authority = LocalAuthority::new(now()).map_err(made)?;
    let mut temp_path = directory.to_owned().into_os_string();
    temp_path.push(format!(".{}", std::process::id()));
    let temp_path = PathBuf::from(temp_path);
    let write = |name: &str, mode: u32, text: &str| -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(temp_path.join(name))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    let result = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&temp_path)
        .and_then(|()| write(KEY, 0o600, &authority.key()))
        .and_then(|()| write(CERTIFICATE, 0o644, &authority.certificate()))
        .and_then(|()| fs::rename(&temp_path, directory));
    match result {
        Ok(()) => Ok(authority),
        Err(error) => {
            // The rest is not needed.
            let _ = fs::remove_dir_all(&temp_path);
            match read(directory)? {
                Some(other) => Ok(other),
                None => Err(Fault::call("mkdir()", &shown(directory), &error)
                    .hint("the local authority is kept there; XDG_DATA_HOME names another place")),
            }
        }
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A store of authorities that a system trusts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// The directory for authorities that an administrator adds.
    pub(crate) directory: PathBuf,
    /// The commands after something was added, and after something was removed; none for a directory that was named.
    commands: Option<[&'static [&'static str]; 2]>,
}

/// The stores of systems: Debian and Alpine, Fedora, SUSE, Arch.
const STORES: [(&str, [&[&str]; 2]); 4] = [
    (
        "/usr/local/share/ca-certificates",
        [&["update-ca-certificates"], &["update-ca-certificates", "--fresh"]],
    ),
    ("/etc/pki/ca-trust/source/anchors", [&["update-ca-trust"], &["update-ca-trust"]]),
    ("/etc/pki/trust/anchors", [&["update-ca-certificates"], &["update-ca-certificates", "--fresh"]]),
    ("/etc/ca-certificates/trust-source/anchors", [&["update-ca-trust"], &["update-ca-trust"]]),
];

impl Store {
    /// The store of this system.
    pub(crate) fn of_system() -> Result<Self, Fault> {
        let entry = STORES.iter().find(|(directory, _)| Path::new(directory).is_dir());
        let (directory, commands) = entry.ok_or_else(|| {
            let all = STORES.map(|(directory, _)| directory).join(", ");
            Fault::emerg(format!("no store of authorities is found ({all})"))
                .hint("install ca-certificates, or name a directory by --store")
        })?;
        Ok(Self { directory: PathBuf::from(directory), commands: Some(*commands) })
    }

    /// A directory, and nothing to be done after a change.
    pub(crate) fn directory(directory: PathBuf) -> Self {
        Self { directory, commands: None }
    }

    /// Returns true if this user may change it.
    pub(crate) fn is_writable(&self) -> bool {
        accessat(CWD, &self.directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    }

    /// The command after a change, as it is typed.
    pub(crate) fn command(&self, change: TrustChange) -> Option<String> {
        self.words(change).map(|words| words.join(" "))
    }

    fn words(&self, change: TrustChange) -> Option<&'static [&'static str]> {
        self.commands.map(|[added, removed]| match change {
            TrustChange::Added => added,
            TrustChange::Removed => removed,
        })
    }

    /// Puts a certificate into it.
    pub(crate) fn add(&self, name: &str, certificate: &str) -> Result<PathBuf, Fault> {
        let path = self.directory.join(name);
        // A new file: a link in its place is replaced, not followed.
        let write = || -> io::Result<()> {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o644).open(&path)?.write_all(certificate.as_bytes())
        };
        write().map_err(|error| Fault::call("open()", &shown(&path), &error))?;
        self.update(TrustChange::Added)?;
        Ok(path)
    }

    /// Takes a certificate out of it; whether it was there.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, Fault> {
        let path = self.directory.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            removed => removed.map_err(|error| Fault::call("unlink()", &shown(&path), &error))?,
        }
        self.update(TrustChange::Removed)?;
        Ok(true)
    }

    fn update(&self, change: TrustChange) -> Result<(), Fault> {
        let Some([program, words @ ..]) = self.words(change) else { return Ok(()) };
        let output = Command::new(program).args(words).output();
        let output = output.map_err(|error| Fault::call("execve()", program, &error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        Err(Fault::emerg(format!("{program} has failed ({}): {last}", output.status)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn authority_is_made_once_and_only_its_owner_can_read_the_key() {
        let dir = TempDir::new("authority").unwrap();
        let place = dir.join("share/tailwater/authority");
        let first = Authority::open_at(place.clone()).unwrap();
        let again = Authority::open_at(place.clone()).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        assert_eq!(fs::read_to_string(first.certificate_file()).unwrap(), first.certificate());
        for (path, mode) in [(place.clone(), 0o700), (place.join(KEY), 0o600)] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
        assert_eq!(
            fs::read_dir(dir.join("share/tailwater")).unwrap().count(),
            1,
            "nothing is left beside it"
        );

        fs::write(place.join(KEY), "").unwrap();
        let refused = Authority::open_at(place.clone()).err().unwrap();
        assert!(refused.message.starts_with("the key of the local authority: "), "{refused}");
        assert!(refused.hint.unwrap().starts_with(&format!("remove {} to get", place.display())));
        fs::remove_file(place.join(KEY)).unwrap();
        let refused = Authority::open_at(place).err().unwrap();
        assert!(refused.message.contains("ca.key\" failed (2: No such file"), "{refused}");
    }

    #[test]
    fn store_replaces_links_and_lists_its_certificates() {
        let dir = TempDir::new("store").unwrap();
        let target = dir.write("target", "precious").unwrap();
        fs::create_dir(dir.join("anchors")).unwrap();
        std::os::unix::fs::symlink(&target, dir.join("anchors/a.crt")).unwrap();
        let store = Store::directory(dir.join("anchors"));
        assert!(store.is_writable() && store.command(TrustChange::Added).is_none());
        let path = store.add("a.crt", "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert!(store.remove("a.crt").unwrap() && !store.remove("a.crt").unwrap());
        let none = Store::directory(dir.join("none"));
        assert!(!none.is_writable() && none.add("a.crt", "").is_err());
    }
}
