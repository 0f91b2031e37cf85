//! Certificates and keys whose files are named by variables: looked for in each handshake, read through the door to the disk,
//! and kept for a while if that is wanted (`ssl_certificate_cache`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_base::{FatalMutex, Limit};
use tw_conf::{ConfError, Node, Word, units};
use tw_core::reach::Reach;
use tw_disk::{Account, Disk, Pool};
use tw_rt::secret;
use tw_tls::{Identity, Passwords, Zeroizing};

use super::common::{DATA, paired};
use crate::http::request::Request;
use crate::load::Resolve;
use crate::vars::Template;

/// What the text of a sealed key has somewhere, in either form.
const SEALED: &[u8] = b"ENCRYPTED";

/// A chain of ten certificates has some 20 KB.
const NAMED_FILE_MAX: usize = 1 << 20;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::bytes(
        "NAMED_FILE_MAX",
        NAMED_FILE_MAX as u64,
        "Bytes of a file with a certificate or a key that variables name",
        "the handshake fails",
    ),
    Limit::parameter(
        "ssl_certificate_cache",
        "max=",
        "off",
        "Certificates named by variables, and their keys, that are kept in memory",
        "the one used longest ago is forgotten",
    ),
];

/// A certificate and its key, whose files are named by variables.
pub(crate) struct DynamicCertificate {
    certificate: Template,
    key: Template,
    /// The directory of the configuration.
    directory: Box<[u8]>,
    passwords: Arc<Passwords>,
    cache: Option<Arc<Cache>>,
}

/// What the variables have named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Names {
    certificate: Arc<[u8]>,
    key: Arc<[u8]>,
}

impl Names {
    /// Whether no certificate is named.
    pub(crate) fn is_nothing(&self) -> bool {
        self.certificate.is_empty()
    }
}

impl fmt::Debug for DynamicCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a certificate that variables name")
    }
}

impl DynamicCertificate {
    /// From what is written.
    pub(crate) fn new(
        (certificate, key): (&Word, &Word),
        passwords: Arc<Passwords>,
        cache: Option<Arc<Cache>>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        Ok(Self {
            certificate: cx.template(certificate)?,
            key: cx.template(key)?,
            directory: cx.conf_path(b"").into(),
            passwords,
            cache,
        })
    }

    /// What the variables name for `r`.
    pub(crate) fn names(&self, r: &Request) -> Names {
        let value = |template: &Template| Arc::from(&*template.value(r));
        Names { certificate: value(&self.certificate), key: value(&self.key) }
    }

    /// Reads what was named, unless it is kept; keys are parsed by `pool`, if there is one. The error is the line of the log.
    pub(crate) async fn load(
        &self,
        names: &Names,
        by: &mut Account,
        disk: &Disk,
        pool: Option<&Pool>,
    ) -> Result<Identity, String> {
        let now = tw_rt::clock::now();
        if let Some(known) = self.cache.as_ref().and_then(|cache| cache.find(names, now)) {
            return Ok(known);
        }
        let certificate = self.contents(&names.certificate, "certificate", by, disk).await?;
        let key = self.contents(&names.key, "certificate key", by, disk).await?;
        let is_sealed = key.windows(SEALED.len()).any(|window| window == SEALED);
        let (passwords, shown) = (self.passwords.clone(), names.clone());
        let parse = move || parse(&certificate, &key, &passwords, &shown);
        let identity = match pool {
            Some(pool) => {
                pool.run(by, move || secret::within(parse)).await.map_err(|error| error.to_string())?
            }
            None => parse(),
        }?;
        // Whoever has not the pass phrase must not find it here.
        if let Some(cache) = self.cache.as_ref().filter(|_| !is_sealed) {
            cache.put(names.clone(), identity.clone(), now);
        }
        Ok(identity)
    }

    async fn contents(
        &self,
        name: &[u8],
        what: &str,
        by: &mut Account,
        disk: &Disk,
    ) -> Result<Zeroizing<Vec<u8>>, String> {
        if let Some(data) = name.strip_prefix(DATA) {
            return Ok(Zeroizing::new(data.to_vec()));
        }
        let cannot = |why: &dyn fmt::Display| format!("cannot load {what} \"{}\": {why}", shown(name));
        let path = CString::new(tw_conf::full_name(&self.directory, name))
            .map_err(|_| cannot(&"no name of a file"))?;
        match disk.read_whole(by, &path, NAMED_FILE_MAX).await {
            Ok(bytes) => Ok(Zeroizing::new(bytes)),
            Err(error) => Err(cannot(&error.on(&path))),
        }
    }
}

fn parse(certificate: &[u8], key: &[u8], passwords: &Passwords, names: &Names) -> Result<Identity, String> {
    paired(certificate, key, passwords, (&shown(&names.certificate), &shown(&names.key)))
}

fn shown(name: &[u8]) -> Cow<'_, str> {
    match name.starts_with(DATA) {
        true => "data:...".into(),
        false => String::from_utf8_lossy(name),
    }
}

/// Whether variables name either of two files, be it that they are the content.
pub(crate) fn is_named(certificate: &Word, key: &Word) -> bool {
    [certificate, key].iter().any(|word| word.bytes.contains(&b'$'))
}

/// Certificates and keys that were read, for all loops (`ssl_certificate_cache`).
#[derive(Debug)]
pub struct Cache {
    max: usize,
    /// One that nobody has wanted for so long is forgotten.
    inactive: Duration,
    /// One is read again after so long.
    valid: Duration,
    entries: FatalMutex<HashMap<Names, Entry>>,
}

#[derive(Debug)]
struct Entry {
    identity: Identity,
    read: Instant,
    used: Instant,
}

impl Cache {
    /// Reads `off` or `max=N [inactive=time] [valid=time]`.
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

    // DIFF(nginx): what is not valid any more is read again, also where the file has not changed.
    fn find(&self, names: &Names, now: Instant) -> Option<Identity> {
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

    /// Looks at all of them: seldom, since a file was read before.
    fn put(&self, names: Names, identity: Identity, now: Instant) {
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

impl DynamicCertificate {
    /// Where its files may be, for the sandbox.
    pub(crate) fn reach(&self, reach: &mut Reach) {
        for template in [&self.certificate, &self.key] {
            match template.prefix() {
                prefix if prefix.starts_with(DATA) => {}
                [] | [b'/', ..] => reach.reads_file(template, None),
                prefix => reach.reads_file(&Template::text(&[&self.directory, prefix].concat()), None),
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

    fn names(name: &str) -> Names {
        Names { certificate: name.as_bytes().into(), key: name.as_bytes().into() }
    }

    #[test]
    fn what_is_kept_has_an_end() {
        let cache = Cache {
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
        assert!(cache.find(&names("b"), at(4)).is_none(), "it was used longest ago");
        assert!(cache.find(&names("c"), at(4)).is_some() && cache.find(&names("a"), at(11)).is_some());
        assert!(cache.find(&names("c"), at(14)).is_none(), "nobody wanted it");
        assert!(cache.find(&names("a"), at(15)).is_none(), "it is read again");
        assert!(cache.entries.lock().is_empty());
    }
}
