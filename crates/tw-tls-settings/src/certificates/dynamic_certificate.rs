//! Certificates and keys whose files are named by variables: their names are evaluated for each handshake, the files are read
//! through `tw_disk` and kept for a while if so configured (`ssl_certificate_cache`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_conf::{ConfError, Node, Word, units};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_disk::{Account, Disk, Pool};
use tw_rt::secret;
use tw_tls::{Identity, Passwords, Zeroizing};

use super::certificate_file::{DATA, paired};

/// Word that the text of every encrypted key contains, in PKCS#8 and in the traditional form.
const SEALED: &[u8] = b"ENCRYPTED";

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a file with a certificate or a key that variables name.
    const NAMED_FILE_MAX: usize = 1 << 20, bytes, "the handshake fails";
    /// Certificates named by variables, and their keys, in memory.
    parameter "ssl_certificate_cache", "max=", "off", "the least recently used one is dropped";
}

/// Certificate and key whose files are named by variables.
pub struct DynamicCertificate<S: Session> {
    certificate: Template<S>,
    key: Template<S>,
    reader: Arc<CertificateReader>,
}

/// Reader of certificates and keys whose names have been evaluated.
pub struct CertificateReader {
    /// Directory of the configuration.
    directory: Box<[u8]>,
    passwords: Arc<Passwords>,
    cache: Option<Arc<CertificateCache>>,
}

/// Names of both files, as evaluated for one handshake.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateNames {
    certificate: Arc<[u8]>,
    key: Arc<[u8]>,
}

impl CertificateNames {
    /// True if no certificate is named.
    pub fn is_empty(&self) -> bool {
        self.certificate.is_empty()
    }
}

impl<S: Session> fmt::Debug for DynamicCertificate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DynamicCertificate")
    }
}

impl<S: Session> DynamicCertificate<S> {
    /// Compiles the names.
    ///
    /// # Errors
    /// A variable is unknown.
    pub fn new<P: Protocol<Session = S>>(
        certificate: &Word,
        key: &Word,
        passwords: Arc<Passwords>,
        cache: Option<Arc<CertificateCache>>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        let reader = CertificateReader { directory: cx.conf_path(b"").into(), passwords, cache };
        Ok(Self { certificate: cx.template(certificate)?, key: cx.template(key)?, reader: Arc::new(reader) })
    }

    /// Evaluates the names for a session.
    pub fn names(&self, session: &S) -> CertificateNames {
        let value = |template: &Template<S>| Arc::from(&*template.value(session));
        CertificateNames { certificate: value(&self.certificate), key: value(&self.key) }
    }

    /// Reader of the files.
    pub fn reader(&self) -> &Arc<CertificateReader> {
        &self.reader
    }
}

impl CertificateReader {
    /// Reads the files, unless the cache has them; keys are parsed by `pool`, if there is one.
    ///
    /// # Errors
    /// Line of the log: a file cannot be read or is broken, or the key is that of another certificate.
    pub async fn load(
        &self,
        names: &CertificateNames,
        account: &mut Account,
        disk: &Disk,
        pool: Option<&Pool>,
    ) -> Result<Identity, String> {
        let now = tw_rt::clock::now();
        if let Some(known_identity) = self.cache.as_ref().and_then(|cache| cache.find(names, now)) {
            return Ok(known_identity);
        }
        let certificate = self.contents(&names.certificate, "certificate", account, disk).await?;
        let key = self.contents(&names.key, "certificate key", account, disk).await?;
        let is_sealed = key.windows(SEALED.len()).any(|window| window == SEALED);
        let (passwords, shown) = (self.passwords.clone(), names.clone());
        let parse = move || parse(&certificate, &key, &passwords, &shown);
        let identity = match pool {
            Some(pool) => {
                pool.run(account, move || secret::within(parse)).await.map_err(|error| error.to_string())?
            }
            None => parse(),
        }?;
        // A server without the pass phrase must not find the key here.
        if let Some(cache) = self.cache.as_ref().filter(|_| !is_sealed) {
            cache.put(names.clone(), identity.clone(), now);
        }
        Ok(identity)
    }

    async fn contents(
        &self,
        name: &[u8],
        what: &str,
        account: &mut Account,
        disk: &Disk,
    ) -> Result<Zeroizing<Vec<u8>>, String> {
        if let Some(data) = name.strip_prefix(DATA) {
            return Ok(Zeroizing::new(data.to_vec()));
        }
        let cannot = |why: &dyn fmt::Display| format!("cannot load {what} \"{}\": {why}", shown(name));
        let path = CString::new(tw_conf::full_name(&self.directory, name))
            .map_err(|_| cannot(&"no name of a file"))?;
        match disk.read_whole(account, &path, NAMED_FILE_MAX).await {
            Ok(bytes) => Ok(Zeroizing::new(bytes)),
            Err(error) => Err(cannot(&error.on(&path))),
        }
    }
}

fn parse(
    certificate: &[u8],
    key: &[u8],
    passwords: &Passwords,
    names: &CertificateNames,
) -> Result<Identity, String> {
    paired(certificate, key, passwords, &shown(&names.certificate), &shown(&names.key))
}

fn shown(name: &[u8]) -> Cow<'_, str> {
    match name.starts_with(DATA) {
        true => "data:...".into(),
        false => String::from_utf8_lossy(name),
    }
}

/// True if the name or the content of either file has variables.
pub fn is_dynamic(certificate: &Word, key: &Word) -> bool {
    [certificate, key].iter().any(|word| word.bytes.contains(&b'$'))
}

/// Certificates and keys that were read, for all loops (`ssl_certificate_cache`).
#[derive(Debug)]
pub struct CertificateCache {
    max: usize,
    /// Time without use after which an entry is dropped.
    inactive: Duration,
    /// Age from which an entry is read again.
    valid: Duration,
    entries: FatalMutex<HashMap<CertificateNames, Entry>>,
}

#[derive(Debug)]
struct Entry {
    identity: Identity,
    read: Instant,
    used: Instant,
}

impl CertificateCache {
    /// Parses `off` or `max=N [inactive=time] [valid=time]`.
    ///
    /// # Errors
    /// A parameter is unknown or invalid, or `max` is missing.
    pub fn parse(node: &Node) -> Result<Option<Arc<Self>>, ConfError> {
        let (mut max, mut inactive, mut valid) = (None, Duration::from_secs(10), Duration::from_secs(60));
        for word in &node.args {
            let invalid = || node.invalid_parameter(word);
            if let Some(value) = word.param("max") {
                let count = units::number(value).and_then(|count| usize::try_from(count).ok());
                max = Some(count.filter(|count| *count > 0).ok_or_else(invalid)?);
            } else if let Some(value) = word.param("inactive") {
                inactive = units::sec(value).ok_or_else(invalid)?;
            } else if let Some(value) = word.param("valid") {
                valid = units::sec(value).ok_or_else(invalid)?;
            } else if word.is("off") && node.args.len() == 1 {
                return Ok(None);
            } else {
                return Err(invalid());
            }
        }
        let name = String::from_utf8_lossy(&node.name.bytes);
        // nginx counts a certificate and its key as two.
        let max = max
            .map(|max| usize::div_ceil(max, 2))
            .ok_or_else(|| node.fail(format!("\"{name}\" must have the \"max\" parameter")))?;
        Ok(Some(Arc::new(Self { max, inactive, valid, entries: FatalMutex::default() })))
    }

    // DIFF(nginx): an entry that is not valid any more is read again, also where the file has not changed.
    fn find(&self, names: &CertificateNames, now: Instant) -> Option<Identity> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(names)?;
        if now.saturating_duration_since(entry.read) >= self.valid
            || now.saturating_duration_since(entry.used) >= self.inactive
        {
            entries.remove(names);
            return None;
        }
        entry.used = now;
        Some(entry.identity.clone())
    }

    /// Adds an entry. Visits all others: seldom, since a file was read before.
    fn put(&self, names: CertificateNames, identity: Identity, now: Instant) {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| now.saturating_duration_since(entry.used) < self.inactive);
        if entries.len() >= self.max && !entries.contains_key(&names) {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used).map(|(names, _)| names.clone());
            if let Some(oldest) = oldest {
                entries.remove(&oldest);
            }
        }
        entries.insert(names, Entry { identity, read: now, used: now });
    }
}

impl<S: Session> DynamicCertificate<S> {
    /// Declares the files for the sandbox.
    pub fn reach(&self, reach: &mut Reach) {
        for template in [&self.certificate, &self.key] {
            match template.prefix() {
                prefix if prefix.starts_with(DATA) => {}
                [] | [b'/', ..] => reach.reads_file(template, None),
                prefix => {
                    reach.reads_file(&Template::<S>::text(&[&self.reader.directory, prefix].concat()), None)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::tls::Authority;

    fn identity() -> Identity {
        let made = Authority::new().certify(&["localhost"]);
        let names = names("a");
        parse(made.pem.as_bytes(), made.key.as_bytes(), &Passwords::default(), &names).unwrap()
    }

    fn names(name: &str) -> CertificateNames {
        CertificateNames { certificate: name.as_bytes().into(), key: name.as_bytes().into() }
    }

    #[test]
    fn cached_certificates_expire_and_are_evicted() {
        let cache = CertificateCache {
            max: 2,
            inactive: Duration::from_secs(10),
            valid: Duration::from_secs(15),
            entries: FatalMutex::default(),
        };
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let made = identity();
        cache.put(names("a"), made.clone(), at(0));
        cache.put(names("b"), made.clone(), at(1));
        assert!(cache.find(&names("a"), at(2)).is_some());
        cache.put(names("c"), made.clone(), at(3));
        assert!(cache.find(&names("b"), at(4)).is_none(), "the least recently used one is evicted");
        assert!(cache.find(&names("c"), at(4)).is_some() && cache.find(&names("a"), at(11)).is_some());
        assert!(cache.find(&names("c"), at(14)).is_none(), "it was inactive");
        assert!(cache.find(&names("a"), at(15)).is_none(), "it is read again");
        assert!(cache.entries.lock().is_empty());
    }
}
