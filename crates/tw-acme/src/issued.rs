//! Issued or stored certificate: validation against the order, and the format of its file.

use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use tw_rt::secret;
use tw_tls::certificate::CertificateFields;
use tw_tls::{Identity, Key, Passwords, chain};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::identifier::Identifier;

/// A certificate with its chain and its key.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) identity: Identity,
    /// The chain, in PEM.
    pub(crate) chain: Arc<str>,
    /// Key and chain, in PEM: what the file has.
    pub(crate) file: Arc<Zeroizing<String>>,
}

impl Issued {
    /// Checks a chain that an authority has issued for `key`, in PEM, for these names at `now` (seconds since 1970).
    pub(crate) fn new(text: &str, key: &str, identifiers: &[Identifier], now: u64) -> Result<Self, Error> {
        let issued = Self::read(text, key)?;
        let leaf = issued.leaf().ok_or_else(|| Error::Unusable("there is no certificate".into()))?;
        check(leaf, identifiers, now)?;
        Ok(issued)
    }

    /// Reads a file that this crate has written. The certificate may have expired.
    pub(crate) fn of_file(text: &str) -> Result<Self, Error> {
        Self::read(text, text)
    }

    fn read(text: &str, key: &str) -> Result<Self, Error> {
        let unusable = |why: String| Error::Unusable(why);
        let certificates = chain(text.as_bytes()).map_err(|error| unusable(error.to_string()))?;
        let read = || Key::read(key.as_bytes(), &Passwords::default()).inspect(Key::make_first_signature);
        let private = secret::within(read).map_err(|error| unusable(error.to_string()))?;
        // Only the parsed certificates are stored and sent.
        let pem: String =
            certificates.iter().filter_map(CertificateFields::of).map(|facts| facts.pem()).collect();
        let identity = Identity::new(certificates, private)
            .map_err(|_| unusable("the certificate is not for our key".into()))?;
        let key_pem = match key.find("-----BEGIN CERTIFICATE-----") {
            Some(end) => key.get(..end).unwrap_or_default(),
            None => key,
        };
        let file = Zeroizing::new(format!("{}\n{pem}", key_pem.trim_end()));
        Ok(Self { identity, chain: pem.into(), file: Arc::new(file) })
    }

    pub(crate) fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.identity.certified.cert.first()
    }

    /// From when until when it is good, in seconds since 1970.
    pub(crate) fn validity(&self) -> (u64, u64) {
        self.leaf()
            .and_then(CertificateFields::of)
            .map_or((0, 0), |facts| (facts.begins_at(), facts.ends_at()))
    }

    /// Returns its identifier in questions for the renewal window (RFC 9773, section 4.1).
    pub(crate) fn renewal_id(&self) -> Option<String> {
        let facts = self.leaf().and_then(CertificateFields::of)?;
        let encoded = tw_http::base64::encode_url;
        Some(format!("{}.{}", encoded(facts.authority_key()?), encoded(facts.serial_bytes())))
    }
}

/// Checks that a certificate is for all of these names and has not expired.
pub(crate) fn check(leaf: &CertificateDer<'_>, identifiers: &[Identifier], now: u64) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(leaf).map_err(|error| Error::Unusable(error.to_string()))?;
    for identifier in identifiers {
        let name = match identifier {
            Identifier::Ip(address) => ServerName::from(*address),
            Identifier::Dns(name) => {
                // For a wildcard, one of the names that it matches is checked.
                let name = name
                    .strip_prefix("*.")
                    .map_or_else(|| name.to_string(), |rest| format!("tailwater.{rest}"));
                ServerName::try_from(name).map_err(|error| Error::Unusable(error.to_string()))?
            }
        };
        if verify_server_name(&parsed, &name).is_err() {
            return Err(Error::Unusable(format!("the certificate is not for \"{identifier}\"")));
        }
    }
    let facts = CertificateFields::of(leaf)
        .ok_or_else(|| Error::Unusable("the certificate cannot be read".into()))?;
    if facts.ends_at() <= now {
        return Err(Error::Unusable(format!("the certificate is over since {}", facts.not_after())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tw_testkit::tls::Authority;

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn names(words: &[&str]) -> Vec<Identifier> {
        let mut all = Vec::new();
        words.iter().for_each(|word| Identifier::add(word, &mut all).unwrap());
        all
    }

    #[test]
    fn only_the_ordered_certificate_is_accepted() {
        let authority = Authority::new();
        let good = authority.certify(&["example.com", "192.0.2.1"]);
        let other = authority.certify(&["other.example"]);
        let old = authority.certify_expired(&["example.com"]);
        let taken = |pem: &str, key: &str, words: &[&str]| {
            Issued::new(pem, key, &names(words), NOW).map(|_| ()).map_err(|error| error.to_string())
        };
        let chain = format!("{}{}", good.pem, authority.pem());
        assert_eq!(taken(&chain, &good.key, &["example.com", "192.0.2.1"]), Ok(()));
        for (pem, key, words, why) in [
            (&*chain, &other.key, &["example.com"][..], "the certificate is not for our key"),
            (
                &chain,
                &good.key,
                &["example.com", "www.example.com"],
                "the certificate is not for \"www.example.com\"",
            ),
            (&chain, &good.key, &["192.0.2.2"], "the certificate is not for \"192.0.2.2\""),
            (&other.pem, &other.key, &["example.com"], "the certificate is not for \"example.com\""),
            (&old.pem, &old.key, &["example.com"], "the certificate is over since"),
            ("<html>", &good.key, &["example.com"], "there is no certificate in it"),
            ("", &good.key, &["example.com"], "there is no certificate in it"),
        ] {
            let said = taken(pem, key, words).unwrap_err();
            let expected = format!("the authority has issued what cannot be used: {why}");
            assert!(said.starts_with(&expected), "{said}");
        }
    }

    #[test]
    fn file_contains_the_issued_certificate() {
        let authority = Authority::new();
        let made = authority.certify(&["*.example.com"]);
        let issued = Issued::new(&made.pem, &made.key, &names(&["*.example.com"]), NOW).unwrap();
        let again = Issued::of_file(&issued.file).unwrap();
        assert_eq!((&again.chain, &**again.file), (&issued.chain, &**issued.file));
        assert!(Issued::of_file(&made.pem).is_err() && Issued::of_file(&made.key).is_err());
    }
}
