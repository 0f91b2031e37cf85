//! Certificates whose files are watched (`ssl_certificate_watch`): the master, which may read them, looks for changes, and
//! handshakes use the new certificate. Nothing else of the configuration is loaded again.
//!
//! ```text
//! master: looks at CertificateFiles ─► reads them ─► texts go to the worker process ─► WatchedCertificate ─► handshakes
//! ```

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_base::{Errno, FatalMutex};
use tw_conf::{ConfFiles, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_rt::secret;
use tw_tls::{Identity, Passwords, Zeroizing};

use super::certificate_file::{DATA, paired};

/// Names of the files of a certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    certificate: Content,
    key: Content,
    /// `ssl_password_file`
    passwords: Option<Box<[u8]>>,
}

#[derive(Clone, PartialEq, Eq)]
enum Content {
    /// Full name of a file.
    File(Box<[u8]>),
    /// Content that stands in the configuration.
    Data(Arc<Zeroizing<Vec<u8>>>),
}

/// Leaves out contents, which may be a key.
impl fmt::Debug for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate \"{}\"", self.name())
    }
}

impl Content {
    fn of<P: Protocol>(word: &Word, cx: &Resolve<'_, P>) -> Self {
        match word.bytes.strip_prefix(DATA) {
            Some(data) => Self::Data(Arc::new(Zeroizing::new(data.to_vec()))),
            None => Self::File(cx.conf_path(&word.bytes).into()),
        }
    }

    fn file(&self) -> Option<&[u8]> {
        match self {
            Self::File(name) => Some(name),
            Self::Data(_) => None,
        }
    }

    fn name(&self) -> String {
        self.file().map_or_else(|| "data:...".to_owned(), |name| String::from_utf8_lossy(name).into_owned())
    }

    fn read(&self, what: &str, files: &dyn ConfFiles) -> Result<Zeroizing<Vec<u8>>, String> {
        match self {
            Self::File(name) => read(name, what, files),
            Self::Data(data) => Ok(Zeroizing::clone(data)),
        }
    }
}

fn read(name: &[u8], what: &str, files: &dyn ConfFiles) -> Result<Zeroizing<Vec<u8>>, String> {
    files.read(name).map(Zeroizing::new).map_err(|error| {
        let (name, errno) = (String::from_utf8_lossy(name), Errno::from(&error));
        format!("cannot load {what} \"{name}\": open() failed ({errno})")
    })
}

impl CertificateFiles {
    pub(crate) fn of<P: Protocol>(
        certificate: &Word,
        key: &Word,
        passwords: Option<&Word>,
        cx: &Resolve<'_, P>,
    ) -> Self {
        let passwords = passwords.map(|word| cx.conf_path(&word.bytes).into());
        Self { certificate: Content::of(certificate, cx), key: Content::of(key, cx), passwords }
    }

    /// Two files, without pass phrases.
    #[cfg(test)]
    pub(crate) fn named(certificate: &str, key: &str) -> Self {
        let file = |name: &str| Content::File(name.as_bytes().into());
        Self { certificate: file(certificate), key: file(key), passwords: None }
    }

    /// Name of the certificate in logs.
    pub fn name(&self) -> String {
        self.certificate.name()
    }

    /// Files that are watched: the certificate and the key, unless they stand in the configuration.
    pub fn watched(&self) -> impl Iterator<Item = &[u8]> {
        [&self.certificate, &self.key].into_iter().filter_map(Content::file)
    }

    /// All files that are read: pass phrases, too.
    pub fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.watched().chain(self.passwords.as_deref())
    }

    /// Reads the certificate and its key from `files`. An encrypted key takes long to open.
    ///
    /// # Errors
    /// Line of the log: a file cannot be read or is broken, or the key is that of another certificate.
    pub fn version(&self, files: &dyn ConfFiles) -> Result<CertificateVersion, String> {
        self.read(files).map(CertificateVersion::of)
    }

    fn read(&self, files: &dyn ConfFiles) -> Result<Identity, String> {
        let certificate = self.certificate.read("certificate", files)?;
        let key = self.key.read("certificate key", files)?;
        let passwords = match &self.passwords {
            None => Passwords::default(),
            Some(name) => Passwords::read(&read(name, "password file", files)?)
                .map_err(|error| format!("{error} in \"{}\"", String::from_utf8_lossy(name)))?,
        };
        let certificate_name = self.certificate.name();
        let key_name = self.key.name();
        secret::within(|| paired(&certificate, &key, &passwords, &certificate_name, &key_name))
    }
}

/// Certificate at some time, to be compared with another version. The key is not in it: it fits the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateVersion(Vec<CertificateDer<'static>>);

impl CertificateVersion {
    fn of(identity: Identity) -> Self {
        Self(identity.certified.cert.clone())
    }
}

/// Certificate whose files are watched, as handshakes use it now.
#[derive(Debug)]
pub struct WatchedCertificate {
    /// Files of the certificate.
    pub files: CertificateFiles,
    identity: FatalMutex<Identity>,
}

impl WatchedCertificate {
    pub(crate) fn new(files: CertificateFiles, identity: Identity) -> Self {
        Self { files, identity: FatalMutex::new(identity) }
    }

    /// Current certificate and key.
    pub(super) fn identity(&self) -> Identity {
        self.identity.lock().clone()
    }

    /// Version of the current certificate.
    pub fn version(&self) -> CertificateVersion {
        CertificateVersion::of(self.identity())
    }

    /// Replaces the certificate for all handshakes that begin from now on.
    pub(crate) fn replace(&self, identity: Identity) {
        *self.identity.lock() = identity;
    }
}

/// Replaces those of `certificates` of which `files` has all files.
///
/// # Errors
/// Errors of [`CertificateFiles::version`]; the certificate in question stays as it was.
pub fn renew<'a>(
    certificates: impl Iterator<Item = &'a Arc<WatchedCertificate>>,
    files: &dyn ConfFiles,
) -> Result<(), String> {
    let mut row: Option<(&CertificateFiles, Identity)> = None;
    let has_all = |pair: &CertificateFiles| pair.files().all(|name| files.exists(name));
    for watched in certificates.filter(|watched| has_all(&watched.files)) {
        let identity = match &row {
            // Several servers with the same certificate read it once.
            Some((pair, identity)) if **pair == watched.files => identity.clone(),
            _ => watched.files.read(files)?,
        };
        watched.replace(identity.clone());
        row = Some((&watched.files, identity));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_conf::MemoryFiles;
    use tw_testkit::tls::Authority;

    #[test]
    fn certificate_is_read_from_its_files() {
        let authority = Authority::new();
        let (one, two) = (authority.certify(&["localhost"]), authority.certify(&["localhost"]));
        let pair = CertificateFiles {
            passwords: Some((*b"/words").into()),
            ..CertificateFiles::named("/crt", "/key")
        };
        let mut files = MemoryFiles::default();
        let why = |files: &MemoryFiles| pair.read(files).unwrap_err();
        assert!(why(&files).ends_with("open() failed (2: No such file or directory)"));
        files.insert("/crt", &*one.pem);
        files.insert("/key", &*two.key);
        assert!(why(&files).starts_with("cannot load password file \"/words\""));
        files.insert("/words", "secret\n");
        assert_eq!(
            why(&files),
            "cannot use certificate key \"/key\" with certificate \"/crt\": it does not belong to the certificate"
        );
        files.insert("/key", one.key.get(..100).unwrap());
        assert!(why(&files).starts_with("cannot load certificate key \"/key\": "));
        files.insert("/key", &*one.key);
        let leaf = pair.read(&files).unwrap().certified.cert[0].clone();
        files.insert("/crt", &*two.pem);
        files.insert("/key", &*two.key);
        assert_ne!(pair.read(&files).unwrap().certified.cert[0], leaf);
        assert_eq!(pair.watched().count(), 2);
        assert_eq!(pair.files().last(), Some(&b"/words"[..]));
        let data = Content::Data(Arc::new(Zeroizing::new(one.key.into_bytes())));
        let pair = CertificateFiles { key: data, ..CertificateFiles::named("/crt", "") };
        assert_eq!(pair.watched().collect::<Vec<_>>(), [b"/crt"]);
        assert_eq!(format!("{pair:?}"), "certificate \"/crt\"", "and not the key");
    }
}
