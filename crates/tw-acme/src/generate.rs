//! Generated certificates and requests: temporary certificates, certificates for challenges, and signing requests.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tw_tls::{Identity, Key, Passwords};
use zeroize::Zeroizing;

use crate::challenge_responses::ALPN;
use crate::error::Error;
use crate::identifier::Identifier;
use crate::key_type::KeyType;

/// Common name of a temporary certificate.
const TEMPORARY: &str = "temporary certificate of tailwater";

pub(crate) fn made(what: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |error| Error::Crypto(format!("{what} cannot be made: {error}"))
}

pub(crate) fn params(identifiers: &[Identifier]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(identifiers.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

pub(crate) fn read(key: &KeyPair) -> Result<Key, Error> {
    let text = Zeroizing::new(key.serialize_pem());
    Key::read(text.as_bytes(), &Passwords::default()).map_err(|error| Error::Crypto(error.to_string()))
}

/// Creates a self-signed certificate for these names. Takes a tenth of a millisecond.
pub(crate) fn temporary(identifiers: &[Identifier]) -> Result<Identity, Error> {
    let key = KeyType::default().generate()?;
    let failed = made("a temporary certificate");
    let mut params = params(identifiers).map_err(made("a temporary certificate"))?;
    params.distinguished_name.push(DnType::CommonName, TEMPORARY);
    // No client trusts a temporary certificate, so it need not expire soon.
    (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2100, 1, 1));
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = read(&key)?;
    Identity::new(vec![certificate.der().clone()], key).map_err(|error| Error::Crypto(error.to_string()))
}

/// A request for a certificate (RFC 2986), as DER.
pub(crate) fn request(
    identifiers: &[Identifier],
    common_name: bool,
    key: &KeyPair,
) -> Result<Vec<u8>, Error> {
    let mut params = params(identifiers).map_err(made("a request for a certificate"))?;
    // As in nginx, the first DNS name is preferred.
    let first = identifiers.iter().find(|id| matches!(id, Identifier::Dns(_))).or(identifiers.first());
    if let Some(first) = first.filter(|_| common_name) {
        params.distinguished_name.push(DnType::CommonName, first.to_string());
    }
    let request = params.serialize_request(key).map_err(made("a request for a certificate"))?;
    Ok(request.der().to_vec())
}

/// Digest of the answer to a challenge of tls-alpn-01 or dns-01.
pub(crate) fn challenge_digest(answer: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, answer.as_bytes()).as_ref());
    hash
}

/// The settings of a handshake that answers a challenge (RFC 8737, section 3): a certificate for this one name, with the digest
/// of the answer in an extension.
pub(crate) fn for_challenge(identifier: &Identifier, digest: &[u8; 32]) -> Result<Arc<ServerConfig>, Error> {
    let failed = || made("a certificate for a challenge");
    let key = KeyType::default().generate()?;
    let mut params = params(std::slice::from_ref(identifier)).map_err(failed())?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(failed())?;
    // Without an `Identity`, because the verifier does not know the extension, which is critical.
    let signing = read(&key)?.signing;
    let certified = CertifiedKey::new(vec![certificate.der().clone()], signing);
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Crypto(error.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use tw_tls::certificate::CertificateFields;

    use super::*;

    #[test]
    fn generated_certificate_is_for_its_names() {
        let mut all = Vec::new();
        for word in ["example.com", "*.example.com", "192.0.2.1", "2001:db8::1"] {
            Identifier::add(word, &mut all).unwrap();
        }
        let identity = temporary(&all).unwrap();
        let leaf = &identity.certified.cert[0];
        assert_eq!(CertificateFields::of(leaf).unwrap().subject(), format!("CN={TEMPORARY}"));
        crate::issued::check(leaf, &all, 1_000_000_000).unwrap();
        assert!(for_challenge(&all[0], &[7; 32]).is_ok());
        let key = KeyType::EcdsaP384.generate().unwrap();
        assert!(request(&all, true, &key).unwrap().len() > request(&all, false, &key).unwrap().len());
    }
}
