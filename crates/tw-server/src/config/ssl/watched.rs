//! Certificates whose files are followed (`ssl_certificate_watch`): who may read them looks whether they have changed, and puts
//! what they are then in the place of what they were. Nothing else of the configuration is loaded.
//!
//! ```text
//! master: looks at the files of each Pair ─► reads them ─► the texts go to the worker process ─► Watched ─► handshakes
//! ```

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_base::{Errno, FatalMutex};
use tw_conf::{ConfFiles, Word};
use tw_rt::secret;
use tw_tls::{Identity, Passwords, Zeroizing};

use super::common::{DATA, paired};
use crate::http::generation::Config;
use crate::load::Resolve;

/// A certificate and its key, by the names of their files.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    certificate: Part,
    key: Part,
    /// `ssl_password_file`
    passwords: Option<Box<[u8]>>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    /// Its full name.
    File(Box<[u8]>),
    /// The content, which stands in the configuration.
    Data(Arc<Zeroizing<Vec<u8>>>),
}

/// What is written may be a key.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate \"{}\"", self.name())
    }
}

impl Part {
    fn of(word: &Word, cx: &Resolve<'_>) -> Self {
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

impl Pair {
    pub(super) fn of((certificate, key): (&Word, &Word), passwords: Option<&Word>, cx: &Resolve<'_>) -> Self {
        let passwords = passwords.map(|word| cx.conf_path(&word.bytes).into());
        Self { certificate: Part::of(certificate, cx), key: Part::of(key, cx), passwords }
    }

    /// One of files.
    #[cfg(test)]
    pub(super) fn named(certificate: &str, key: &str) -> Self {
        let file = |name: &str| Part::File(name.as_bytes().into());
        Self { certificate: file(certificate), key: file(key), passwords: None }
    }

    /// How the certificate is called in logs.
    pub fn name(&self) -> String {
        self.certificate.name()
    }

    /// Whose change is followed: the certificate and the key, as far as they are files.
    pub fn followed(&self) -> impl Iterator<Item = &[u8]> {
        [&self.certificate, &self.key].into_iter().filter_map(Part::file)
    }

    /// All that are read for it: pass phrases, too.
    pub fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.followed().chain(self.passwords.as_deref())
    }

    /// What `files` have of it now. A key that is sealed takes long to open. The error is in words of the log.
    ///
    /// # Errors
    /// A file cannot be read or is broken, or the key is that of another certificate.
    pub fn version(&self, files: &dyn ConfFiles) -> Result<Version, String> {
        self.read(files).map(Version::of)
    }

    fn read(&self, files: &dyn ConfFiles) -> Result<Identity, String> {
        let certificate = self.certificate.read("certificate", files)?;
        let key = self.key.read("certificate key", files)?;
        let passwords = match &self.passwords {
            None => Passwords::default(),
            Some(name) => Passwords::read(&read(name, "password file", files)?)
                .map_err(|error| format!("{error} in \"{}\"", String::from_utf8_lossy(name)))?,
        };
        let names = (&*self.certificate.name(), &*self.key.name());
        secret::within(|| paired(&certificate, &key, &passwords, names))
    }
}

/// What a pair is at some time, to be told from what it is at another. There is no key in it: it fits the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(Vec<CertificateDer<'static>>);

impl Version {
    fn of(identity: Identity) -> Self {
        Self(identity.certified.cert.clone())
    }
}

/// The place of a certificate that is followed: handshakes take it from here.
#[derive(Debug)]
pub struct Watched {
    /// Where it comes from.
    pub pair: Pair,
    identity: FatalMutex<Identity>,
}

impl Watched {
    pub(super) fn new(pair: Pair, identity: Identity) -> Self {
        Self { pair, identity: FatalMutex::new(identity) }
    }

    /// The certificate of now.
    pub(super) fn identity(&self) -> Identity {
        self.identity.lock().clone()
    }

    /// What its pair was when it was read last.
    pub fn version(&self) -> Version {
        Version::of(self.identity())
    }

    /// Handshakes have another one from now on.
    pub(super) fn replace(&self, identity: Identity) {
        *self.identity.lock() = identity;
    }
}

/// Puts what `files` have into the place of every certificate of a configuration of which they have all files.
///
/// # Errors
/// Those of [`Pair::version`]; the places of this pair stay as they were.
pub fn renew(config: &Config, files: &dyn ConfFiles) -> Result<(), String> {
    let mut known: Option<(&Pair, Identity)> = None;
    let has_all = |pair: &Pair| pair.files().all(|name| files.exists(name));
    for watched in config.watched().filter(|watched| has_all(&watched.pair)) {
        let identity = match &known {
            // Servers that have it in common read it once.
            Some((pair, identity)) if **pair == watched.pair => identity.clone(),
            _ => watched.pair.read(files)?,
        };
        watched.replace(identity.clone());
        known = Some((&watched.pair, identity));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_conf::MemoryFiles;
    use tw_testkit::tls::Authority;

    #[test]
    fn a_pair_is_what_its_files_are() {
        let authority = Authority::new();
        let (one, two) = (authority.certify(&["localhost"]), authority.certify(&["localhost"]));
        let pair = Pair { passwords: Some((*b"/words").into()), ..Pair::named("/crt", "/key") };
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
        assert_eq!(pair.followed().count(), 2);
        assert_eq!(pair.files().last(), Some(&b"/words"[..]));
        let data = Part::Data(Arc::new(Zeroizing::new(one.key.into_bytes())));
        let pair = Pair { key: data, ..Pair::named("/crt", "") };
        assert_eq!(pair.followed().collect::<Vec<_>>(), [b"/crt"]);
        assert_eq!(format!("{pair:?}"), "certificate \"/crt\"", "and not the key");
    }
}
