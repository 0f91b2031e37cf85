//! Authorities and certificates made for tests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RevokedCertParams,
    SerialNumber, SigningKey, date_time_ymd,
};

use crate::der::{BIT_STRING, SEQUENCE, context};

/// 2026-11-23 00:00:00, within the validity of everything made here.
pub(crate) const NOW: u64 = 1_795_392_000;

/// Authority that signs certificates and revocation lists.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A root.
    pub(crate) fn new(name: &str) -> Self {
        Self::root(name, |_| {})
    }

    /// Makes a root certificate with changed parameters.
    pub(crate) fn root(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = authority_params(name);
        change(&mut params);
        Self(CertifiedIssuer::self_signed(params, ecdsa_key()).unwrap())
    }

    /// Makes an authority under another one, with changed parameters.
    pub(crate) fn under(name: &str, issuer: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = authority_params(name);
        change(&mut params);
        Self(CertifiedIssuer::signed_by(params, ecdsa_key(), &issuer.0).unwrap())
    }

    pub(crate) fn der(&self) -> &[u8] {
        self.0.der()
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn key(&self) -> &KeyPair {
        self.0.key()
    }

    /// Signs a certificate with changed parameters.
    pub(crate) fn sign(&self, name: &str, key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params = leaf_params(name);
        change(&mut params);
        let der = params.signed_by(&key, &self.0).unwrap().der().to_vec();
        Leaf { der, key }
    }

    /// Copy of the certificate without extensions and version number (X.509 version 1), signed again.
    pub(crate) fn version_1(&self, der: &[u8]) -> Vec<u8> {
        let mut parts = crate::der::only(der, SEQUENCE).unwrap();
        let mut tbs = parts.enter(SEQUENCE).unwrap();
        let algorithm = parts.expect(SEQUENCE).unwrap().whole;
        let mut kept = Vec::new();
        while let Ok(element) = tbs.element() {
            if element.tag != context(0) && element.tag != context(3) {
                kept.extend_from_slice(element.whole);
            }
        }
        let tbs = wrap(SEQUENCE, &kept);
        let signature = [&[0], self.0.key().sign(&tbs).unwrap().as_slice()].concat();
        wrap(SEQUENCE, &[tbs.as_slice(), algorithm, &wrap(BIT_STRING, &signature)].concat())
    }

    /// A revocation list, as DER, which is valid in 2026.
    pub(crate) fn revoke(&self, serials: &[u64]) -> Vec<u8> {
        self.revoke_until(serials, 2027)
    }

    pub(crate) fn revoke_until(&self, serials: &[u64], year: i32) -> Vec<u8> {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().der().to_vec()
    }
}

/// An element of DER of less than 64 KB.
pub(crate) fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let size = content.len() as u16;
    let [high, low] = size.to_be_bytes();
    let head: &[u8] = match size {
        0..0x80 => &[tag, low],
        0x80..0x100 => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [head, content].concat()
}

/// A certificate that signs no other, and its key.
pub(crate) struct Leaf {
    der: Vec<u8>,
    key: KeyPair,
}

impl Leaf {
    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }

    pub(crate) fn pem(&self) -> String {
        crate::pem::encode("CERTIFICATE", &self.der)
    }

    pub(crate) fn key(&self) -> &KeyPair {
        &self.key
    }

    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

/// A certificate for a name, from 2020 to 2030, for servers and clients.
pub(crate) fn leaf(name: &str, issuer: &Authority) -> Leaf {
    leaf_with(name, issuer, ecdsa_key())
}

pub(crate) fn leaf_with(name: &str, issuer: &Authority, key: KeyPair) -> Leaf {
    issuer.sign(name, key, |_| {})
}

/// Self-signed certificate.
pub(crate) fn self_signed(name: &str) -> Leaf {
    let key = ecdsa_key();
    let der = leaf_params(name).self_signed(&key).unwrap().der().to_vec();
    Leaf { der, key }
}

pub(crate) fn ecdsa_key() -> KeyPair {
    KeyPair::generate().unwrap()
}

/// The one key of RSA that all tests share: it takes long to make one.
pub(crate) fn rsa_key() -> KeyPair {
    static KEY: OnceLock<String> = OnceLock::new();
    let pem = KEY.get_or_init(|| KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap().serialize_pem());
    KeyPair::from_pem(pem).unwrap()
}

fn leaf_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    named(&mut params, name);
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([]).unwrap();
    named(&mut params, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params
}

fn named(params: &mut CertificateParams, name: &str) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2030, 1, 1);
}

/// Clock that changes only when it is set.
#[derive(Clone)]
pub(crate) struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub(crate) fn at(seconds: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seconds)))
    }

    pub(crate) fn set(&self, seconds: u64) {
        self.0.store(seconds, Relaxed);
    }

    pub(crate) fn clock(&self) -> crate::Clock {
        let seconds = Arc::clone(&self.0);
        Arc::new(move || seconds.load(Relaxed))
    }
}
