//! Local authority: issues certificates for this machine and private networks, which no public authority can.
//!
//! Its certificate is limited to such names and addresses (name constraints, RFC 5280, section 4.2.1.10): a thief of
//! its key cannot pretend to be a site of the internet, not even to systems that trust it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use tw_tls::certificate::CertificateFields;
use tw_tls::{Identity, Key, chain};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::generate::{made, params, read};
use crate::identifier::Identifier;
use crate::key_type::KeyType;

const DAY: Duration = Duration::from_secs(86_400);
/// Time for which the authority is valid: a developer trusts it once for each machine.
const AUTHORITY_TIME: Duration = Duration::from_secs(3650 * 86_400);
/// Time for which what it issues is valid; some browsers take no more than 398 days.
const CERTIFICATE_TIME: Duration = Duration::from_secs(397 * 86_400);

/// Domains that the public DNS does not have: RFC 6761, RFC 6762 with its appendix G, RFC 8375, and `internal`, which ICANN
/// has set aside.
const DOMAINS: [&str; 6] = ["localhost", "test", "local", "internal", "home.arpa", "lan"];

/// Addresses that the internet does not route: RFC 1122, RFC 1918, RFC 3927, RFC 4193, RFC 4291.
const NETWORKS: [(IpAddr, u8); 8] = [
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// An authority with its key.
pub struct LocalAuthority {
    key: KeyPair,
    certificate: CertificateDer<'static>,
}

/// A certificate with its key, both in PEM.
pub struct IssuedLocally {
    /// The certificate.
    pub certificate: String,
    /// Private key.
    pub key: Zeroizing<String>,
}

impl LocalAuthority {
    /// Makes one that is valid from `now` on, in seconds since 1970. Under a millisecond.
    ///
    /// # Errors
    /// The library refuses, which it has no reason to.
    pub fn new(now: u64) -> Result<Self, Error> {
        let key = KeyType::default().generate()?;
        let mut params = authority(&key);
        set_time(&mut params, now, AUTHORITY_TIME);
        let certificate = params.self_signed(&key).map_err(made("a local authority"))?;
        Ok(Self { certificate: certificate.der().clone(), key })
    }

    /// Reads what [`certificate`](Self::certificate) and [`key`](Self::key) have written.
    ///
    /// # Errors
    /// One of them is something else, or they do not belong together.
    pub fn read(certificate: &[u8], key: &str) -> Result<Self, Error> {
        let unusable = |what: &str, why: &dyn std::fmt::Display| Error::Crypto(format!("{what}: {why}"));
        let mut certificates =
            chain(certificate).map_err(|error| unusable("the certificate of the local authority", &error))?;
        let certificate = certificates.swap_remove(0);
        let key = Key::read_der(key.as_bytes())
            .map_err(|error| unusable("the key of the local authority", &error))?;
        let key =
            KeyPair::try_from(&*key).map_err(|error| unusable("the key of the local authority", &error))?;
        Identity::new(vec![certificate.clone()], read(&key)?)
            .map_err(|error| unusable("the local authority", &error))?;
        Ok(Self { key, certificate })
    }

    /// The certificate, in PEM.
    pub fn certificate(&self) -> String {
        CertificateFields::of(&self.certificate).map(|facts| facts.pem()).unwrap_or_default()
    }

    /// The key, in PEM.
    pub fn key(&self) -> Zeroizing<String> {
        Zeroizing::new(self.key.serialize_pem())
    }

    /// The end of its name: authorities of several users and machines differ in it.
    pub fn id(&self) -> String {
        id(&self.key)
    }

    /// Returns true if it can issue nothing any more at `now`, in seconds since 1970.
    pub fn is_over(&self, now: u64) -> bool {
        CertificateFields::of(&self.certificate).is_none_or(|facts| facts.ends_at() <= now)
    }

    /// Issues a certificate for these names, which all have to be [local](is_local). Under a millisecond.
    ///
    /// # Errors
    /// The library refuses.
    pub fn issue(&self, names: &[Identifier], now: u64) -> Result<IssuedLocally, Error> {
        let failed = || made("a local certificate");
        let key = KeyType::default().generate()?;
        let mut params = params(names).map_err(failed())?;
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, first.to_string());
        }
        set_time(&mut params, now, CERTIFICATE_TIME);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let issuing = authority(&self.key);
        let certificate =
            params.signed_by(&key, &Issuer::from_params(&issuing, &self.key)).map_err(failed())?;
        Ok(IssuedLocally { certificate: certificate.pem(), key: Zeroizing::new(key.serialize_pem()) })
    }
}

/// Returns whether a name or an address is of this machine or a private network.
pub fn is_local(identifier: &Identifier) -> bool {
    match identifier {
        Identifier::Dns(name) => DOMAINS.iter().any(|domain| {
            let rest = name.strip_suffix(domain);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }),
        Identifier::Ip(address) => NETWORKS.iter().any(|(network, bits)| match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differ = network.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= u32::from(*bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = network.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= u32::from(*bits)
            }
            _ => false,
        }),
    }
}

/// Lists the ends of local names, for messages.
pub fn local_domains() -> String {
    DOMAINS
        .map(|domain| if domain == "localhost" { domain.to_owned() } else { format!(".{domain}") })
        .join(", ")
}

/// The authority of a key, without its time: whatever it signs names it and its key only.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Tailwater local authority {}", id(key)));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let domains = DOMAINS.iter().map(|domain| GeneralSubtree::DnsName((*domain).into()));
    let networks = NETWORKS
        .iter()
        .map(|(network, bits)| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*network, *bits)));
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: domains.chain(networks).collect(),
        excluded_subtrees: Vec::new(),
    });
    params
}

/// From a day before `now` on, because clocks differ.
fn set_time(params: &mut CertificateParams, now: u64, span: Duration) {
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(now);
    (params.not_before, params.not_after) = (now - DAY, now + span);
}

/// Eight digits of a key.
fn id(key: &KeyPair) -> String {
    digest(&SHA256, key.der_bytes()).as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn names(words: &[&str]) -> Vec<Identifier> {
        let mut all = Vec::new();
        words.iter().for_each(|word| Identifier::add(word, &mut all).unwrap());
        all
    }

    #[test]
    fn local_names_differ_from_public_names() {
        for (word, expected) in [
            ("localhost", true),
            ("app.localhost", true),
            ("*.app.test", true),
            ("printer.local", true),
            ("a.home.arpa", true),
            ("127.0.0.1", true),
            ("172.31.255.255", true),
            ("172.32.0.0", false),
            ("192.168.1.1", true),
            ("::1", true),
            ("::2", false),
            ("fd00::1", true),
            ("8.8.8.8", false),
            ("example.com", false),
            ("notlocalhost", false),
            ("localhost.example.com", false),
            ("arpa", false),
            ("mybox", false),
        ] {
            assert_eq!(is_local(&names(&[word])[0]), expected, "{word}");
        }
    }

    #[test]
    fn authority_survives_being_written_and_read() {
        let made = LocalAuthority::new(NOW).unwrap();
        let certificate = made.certificate();
        let key = made.key();
        let read = LocalAuthority::read(certificate.as_bytes(), &key).unwrap();
        assert_eq!((read.id(), read.certificate()), (made.id(), certificate.clone()));
        assert!(!read.is_over(NOW) && read.is_over(NOW + 3651 * 86_400));
        let other = LocalAuthority::new(NOW).unwrap();
        assert_ne!(other.id(), made.id());
        assert!(LocalAuthority::read(certificate.as_bytes(), &other.key()).is_err(), "another one's key");
        assert!(
            LocalAuthority::read(b"", &key).is_err()
                && LocalAuthority::read(certificate.as_bytes(), "").is_err()
        );
    }

    #[test]
    fn local_certificate_is_for_its_names_and_of_its_authority() {
        let made = LocalAuthority::new(NOW).unwrap();
        let all = names(&["localhost", "*.app.test", "192.168.1.2", "::1"]);
        let issued = made.issue(&all, NOW).unwrap();
        let leaf = chain(issued.certificate.as_bytes()).unwrap().swap_remove(0);
        crate::issued::check(&leaf, &all, NOW).unwrap();
        assert!(crate::issued::check(&leaf, &names(&["other.test"]), NOW).is_err());
        let facts = CertificateFields::of(&leaf).unwrap();
        assert_eq!(facts.issuer(), format!("CN=Tailwater local authority {}", made.id()));
        assert_eq!(facts.ends_at() - NOW, 397 * 86_400);
    }
}
