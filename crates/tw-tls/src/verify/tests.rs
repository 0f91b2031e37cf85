//! Certificates with every fault. The expected paths and depths are those of nginx 1.22 with OpenSSL 3.0 in
//! `$ssl_client_verify`.

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    KeyUsagePurpose, NameConstraints, SerialNumber, date_time_ymd,
};

use super::*;
use crate::pem;
use crate::testing::{Authority, Leaf, NOW, ecdsa_key, leaf, self_signed};

fn trust_in(certs: &[&[u8]]) -> Trust {
    let certs = certs.iter().map(|der| CertificateDer::from(der.to_vec())).collect();
    Trust {
        authorities: Arc::new(Authorities::new(certs).unwrap()),
        crls: None,
        depth: 1,
        purpose: Purpose::Client,
    }
}

fn crls(lists: &[Vec<u8>]) -> Option<Arc<Crls>> {
    let text: String = lists.iter().map(|der| pem::encode("X509 CRL", der)).collect();
    Some(Arc::new(Crls::read(text.as_bytes()).unwrap()))
}

fn judged(chain: &[&[u8]], trust: &Trust) -> Verdict {
    judged_at(chain, trust, NOW)
}

fn judged_at(chain: &[&[u8]], trust: &Trust, now: u64) -> Verdict {
    let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from(*der)).collect();
    verify_chain(&chain, trust, now)
}

/// Verdict about a certificate with changed parameters under a trusted root.
fn verdict_of(change: impl FnOnce(&mut CertificateParams)) -> Verdict {
    let root = Authority::new("root");
    judged(&[root.sign("client", ecdsa_key(), change).der()], &trust_in(&[root.der()]))
}

/// Verdict about a certificate under an intermediate authority with changed parameters.
fn verdict_under(change: impl FnOnce(&mut CertificateParams)) -> Verdict {
    let root = Authority::new("root");
    let between = Authority::under("between", &root, change);
    judged(&[leaf("client", &between).der(), between.der()], &trust_in(&[root.der()]))
}

#[test]
fn paths() {
    let root = Authority::new("root");
    let other = Authority::new("other");
    let between = Authority::under("between", &root, |_| {});
    let direct = leaf("client", &root);
    let below = leaf("client", &between);
    let trust = trust_in(&[other.der(), root.der()]);

    assert_eq!(judged(&[direct.der()], &trust), Verdict::Good);
    assert_eq!(judged(&[direct.der(), root.der()], &trust), Verdict::Good);
    assert_eq!(judged(&[below.der(), between.der()], &trust), Verdict::Good);
    assert_eq!(judged(&[below.der(), root.der(), direct.der(), between.der()], &trust), Verdict::Good);
    assert_eq!(judged(&[below.der()], &trust_in(&[root.der(), between.der()])), Verdict::Good);

    assert_eq!(judged(&[below.der()], &trust), Verdict::UnableToVerifyLeaf);
    assert_eq!(judged(&[below.der()], &trust_in(&[between.der()])), Verdict::UnableToGetIssuer);
    assert_eq!(
        judged(&[below.der(), between.der()], &trust_in(&[other.der()])),
        Verdict::UnableToGetLocalIssuer
    );
    let all = [below.der(), between.der(), root.der()];
    assert_eq!(judged(&all, &trust_in(&[other.der()])), Verdict::SelfSignedInChain);
    assert_eq!(judged(&[], &trust), Verdict::Unspecified);
    assert_eq!(judged(&[b"no certificate"], &trust), Verdict::Unspecified);
    assert_eq!(judged(&[direct.der(), b"no certificate"], &trust), Verdict::Good);
}

#[test]
fn self_issued_certificates() {
    let cert = self_signed("client");
    let root = Authority::new("root");
    assert_eq!(judged(&[cert.der()], &trust_in(&[cert.der()])), Verdict::Good);
    assert_eq!(judged(&[cert.der()], &trust_in(&[root.der()])), Verdict::SelfSigned);
    assert_eq!(judged(&[self_signed("client").der()], &trust_in(&[cert.der()])), Verdict::SelfSigned);
    // An authority is no client: its key is for signing certificates.
    assert_eq!(judged(&[root.der()], &trust_in(&[root.der()])), Verdict::InvalidPurpose);
    // Trust in a certificate that is no authority does not extend to certificates that it signs.
    let root = Authority::root("root", |params| {
        params.is_ca = IsCa::NoCa;
        params.key_usages.clear();
    });
    assert_eq!(judged(&[leaf("client", &root).der()], &trust_in(&[root.der()])), Verdict::InvalidPurpose);
    let root = Authority::root("root", |params| params.is_ca = IsCa::NoCa);
    assert_eq!(judged(&[leaf("client", &root).der()], &trust_in(&[root.der()])), Verdict::Good);
}

#[test]
fn certificates_of_version_1() {
    let root = Authority::new("root");
    let cert = root.version_1(leaf("client", &root).der());
    assert_eq!(Certificate::parse(&cert).unwrap().version, 1);
    assert_eq!(judged(&[&cert], &trust_in(&[root.der()])), Verdict::Good);
    // A root may be of version 1, one in between may not.
    let old_root = root.version_1(root.der());
    assert_eq!(judged(&[&cert], &trust_in(&[&old_root])), Verdict::Good);
    let between = Authority::under("between", &root, |_| {});
    let old_between = root.version_1(between.der());
    let cert = leaf("client", &between);
    assert_eq!(judged(&[cert.der(), &old_between], &trust_in(&[root.der()])), Verdict::InvalidPurpose);
}

#[test]
fn depth() {
    let root = Authority::new("root");
    let first = Authority::under("first", &root, |_| {});
    let second = Authority::under("second", &first, |_| {});
    let zero = leaf("client", &root);
    let one = leaf("client", &first);
    let two = leaf("client", &second);
    let shown = [first.der(), second.der()];
    for (cert, needed) in [(&zero, 0), (&one, 1), (&two, 2)] {
        for depth in 0..4 {
            let trust = Trust { depth, ..trust_in(&[root.der()]) };
            let chain: Vec<_> = std::iter::once(cert.der()).chain(shown).collect();
            let expected = if depth >= needed { Verdict::Good } else { Verdict::UnableToGetLocalIssuer };
            assert_eq!(judged(&chain, &trust), expected, "{depth} of {needed}");
        }
    }
    let trust = Trust { depth: u32::MAX, ..trust_in(&[root.der()]) };
    assert_eq!(judged(&[two.der(), shown[0], shown[1]], &trust), Verdict::Good);
}

#[test]
fn issuer_of_equal_name_with_another_key_is_refused() {
    let real = Authority::new("root");
    let false_one = Authority::new("root");
    let cert = leaf("client", &false_one);
    // The key identifiers differ, so the false authority is not taken for the real one.
    assert_eq!(judged(&[cert.der()], &trust_in(&[real.der()])), Verdict::UnableToVerifyLeaf);
    // Without key identifiers the signature decides.
    let cert =
        false_one.sign("client", ecdsa_key(), |params| params.use_authority_key_identifier_extension = false);
    assert_eq!(judged(&[cert.der()], &trust_in(&[real.der()])), Verdict::SignatureFailure);
    assert_eq!(judged(&[cert.der()], &trust_in(&[real.der(), false_one.der()])), Verdict::Good);
    let chain = [cert.der(), false_one.der()];
    assert_eq!(judged(&chain, &trust_in(&[real.der()])), Verdict::SelfSignedInChain);
}

#[test]
fn modified_signature_is_refused() {
    let root = Authority::new("root");
    let mut der = leaf("client", &root).der().to_vec();
    *der.last_mut().unwrap() ^= 1;
    assert_eq!(judged(&[&der], &trust_in(&[root.der()])), Verdict::SignatureFailure);
    let between = Authority::under("between", &root, |_| {});
    let mut changed = between.der().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let chain = [leaf("client", &between).der().to_vec(), changed];
    assert_eq!(judged(&[&chain[0], &chain[1]], &trust_in(&[root.der()])), Verdict::SignatureFailure);
}

#[test]
fn times() {
    let root = Authority::new("root");
    let trust = trust_in(&[root.der()]);
    let cert = leaf("client", &root);
    // 2020-01-01 and 2030-01-01.
    for (now, expected) in [
        (1_577_836_799, Verdict::NotYetValid),
        (1_577_836_800, Verdict::Good),
        (1_893_456_000, Verdict::Good),
        (1_893_456_001, Verdict::Expired),
        (u64::MAX, Verdict::Expired),
    ] {
        assert_eq!(judged_at(&[cert.der()], &trust, now), expected, "{now}");
    }
    let old = |params: &mut CertificateParams| params.not_after = date_time_ymd(2021, 1, 1);
    assert_eq!(verdict_of(old), Verdict::Expired);
    assert_eq!(verdict_under(old), Verdict::Expired);
}

#[test]
fn issuers_need_ca_permission() {
    assert_eq!(verdict_under(|_| {}), Verdict::Good);
    assert_eq!(verdict_under(|params| params.is_ca = IsCa::ExplicitNoCa), Verdict::InvalidPurpose);
    assert_eq!(verdict_under(|params| params.is_ca = IsCa::NoCa), Verdict::InvalidPurpose);
    let only_crls = |params: &mut CertificateParams| params.key_usages = vec![KeyUsagePurpose::CrlSign];
    assert_eq!(verdict_under(only_crls), Verdict::NoCertSign);
    let none_below =
        |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    assert_eq!(verdict_under(none_below), Verdict::Good);

    let root = Authority::new("root");
    let first = Authority::under("first", &root, none_below);
    let second = Authority::under("second", &first, |_| {});
    let trust = Trust { depth: 5, ..trust_in(&[root.der()]) };
    let chain = [leaf("client", &second).der().to_vec(), second.der().to_vec(), first.der().to_vec()];
    assert_eq!(judged(&[&chain[0], &chain[1], &chain[2]], &trust), Verdict::PathLengthExceeded);
}

#[test]
fn extended_key_usage() {
    let only = |usage: ExtendedKeyUsagePurpose| {
        move |params: &mut CertificateParams| params.extended_key_usages = vec![usage]
    };
    assert_eq!(verdict_of(only(ExtendedKeyUsagePurpose::ClientAuth)), Verdict::Good);
    assert_eq!(verdict_of(only(ExtendedKeyUsagePurpose::Any)), Verdict::Good);
    assert_eq!(verdict_of(only(ExtendedKeyUsagePurpose::ServerAuth)), Verdict::InvalidPurpose);
    assert_eq!(verdict_of(|params| params.extended_key_usages.clear()), Verdict::Good);
    assert_eq!(verdict_under(only(ExtendedKeyUsagePurpose::ServerAuth)), Verdict::InvalidPurpose);
    let bits = |usage: KeyUsagePurpose| move |params: &mut CertificateParams| params.key_usages = vec![usage];
    assert_eq!(verdict_of(bits(KeyUsagePurpose::DigitalSignature)), Verdict::Good);
    assert_eq!(verdict_of(bits(KeyUsagePurpose::KeyEncipherment)), Verdict::InvalidPurpose);

    let root = Authority::new("root");
    let server = root.sign("server", ecdsa_key(), only(ExtendedKeyUsagePurpose::ServerAuth));
    let trust = Trust { purpose: Purpose::Server, ..trust_in(&[root.der()]) };
    assert_eq!(judged(&[server.der()], &trust), Verdict::Good);
}

#[test]
fn unknown_critical_extensions_are_refused() {
    let critical = |id: &'static [u64]| {
        move |params: &mut CertificateParams| {
            let mut extension = CustomExtension::from_oid_content(id, vec![0x30, 0]);
            extension.set_criticality(true);
            params.custom_extensions = vec![extension];
        }
    };
    let unknown = critical(&[1, 2, 3, 4]);
    // policyConstraints is known, and nothing is decided by it.
    assert_eq!(verdict_under(critical(&[2, 5, 29, 36])), Verdict::Good);
    assert_eq!(verdict_of(unknown), Verdict::UnhandledCriticalExtension);
    assert_eq!(verdict_under(unknown), Verdict::UnhandledCriticalExtension);
}

#[test]
fn name_constraints() {
    let only = |name: &str| {
        let permitted_subtrees = vec![GeneralSubtree::DnsName(name.to_owned())];
        let constraints = NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() };
        move |params: &mut CertificateParams| params.name_constraints = Some(constraints)
    };
    assert_eq!(verdict_under(only("client")), Verdict::Good);
    assert_eq!(verdict_under(only("other")), Verdict::PermittedViolation);
}

#[test]
fn revocation() {
    let root = Authority::new("root");
    let other = Authority::new("other");
    let numbered = |serial: u64| {
        root.sign("client", ecdsa_key(), move |params| {
            params.serial_number = Some(SerialNumber::from(serial))
        })
    };
    let with = |lists: &[Vec<u8>]| Trust { crls: crls(lists), ..trust_in(&[root.der()]) };
    let good = with(&[other.revoke(&[7]), root.revoke(&[5, 300])]);
    for (serial, expected) in
        [(7, Verdict::Good), (5, Verdict::Revoked), (300, Verdict::Revoked), (44, Verdict::Good)]
    {
        // The second time, the signer is cached.
        for _ in 0..2 {
            assert_eq!(judged(&[numbered(serial).der()], &good), expected, "{serial}");
        }
    }
    let cert = numbered(5);
    assert_eq!(judged(&[cert.der()], &with(&[other.revoke(&[5])])), Verdict::UnableToGetCrl);
    // The root, which is judged after it, needs the same list.
    assert_eq!(judged(&[cert.der()], &with(&[root.revoke_until(&[5], 2021)])), Verdict::CrlExpired);
    assert_eq!(judged(&[numbered(6).der()], &with(&[root.revoke_until(&[5], 2021)])), Verdict::CrlExpired);
    assert_eq!(judged_at(&[numbered(6).der()], &good, 1_577_000_000), Verdict::NotYetValid);
    // A list by another authority of the same name.
    let false_one = Authority::new("root");
    assert_eq!(judged(&[numbered(6).der()], &with(&[false_one.revoke(&[6])])), Verdict::CrlSignatureFailure);
}

#[test]
fn every_certificate_of_a_path_needs_a_list() {
    let root = Authority::new("root");
    let between =
        Authority::under("between", &root, |params| params.serial_number = Some(SerialNumber::from(9)));
    let cert = leaf("client", &between);
    let verdict = |lists: &[Vec<u8>]| {
        judged(&[cert.der(), between.der()], &Trust { crls: crls(lists), ..trust_in(&[root.der()]) })
    };
    assert_eq!(verdict(&[root.revoke(&[1]), between.revoke(&[2])]), Verdict::Good);
    assert_eq!(verdict(&[root.revoke(&[1])]), Verdict::UnableToGetCrl);
    assert_eq!(verdict(&[between.revoke(&[1])]), Verdict::UnableToGetCrl);
    assert_eq!(verdict(&[root.revoke(&[9]), between.revoke(&[2])]), Verdict::Revoked);
}

#[test]
fn lists_that_are_refused() {
    let root = Authority::new("root");
    let good = pem::encode("X509 CRL", &root.revoke(&[1]));
    let error = |text: &str| Crls::read(text.as_bytes()).unwrap_err();
    assert_eq!(error(""), TrustError::NoCrl);
    assert_eq!(error(&root.pem()), TrustError::NoCrl);
    assert_eq!(error(&format!("{good}{}", pem::encode("X509 CRL", b"no list"))), TrustError::BadCrl(2));
    assert_eq!(error(&good.replace("-----END", "END")), TrustError::BadCrl(1));
}

#[test]
fn many_certificates_of_one_name_cost_a_bounded_number_of_checks() {
    let real = Authority::new("root");
    let cert: Leaf = Authority::new("issuer").sign("client", ecdsa_key(), |params| {
        params.use_authority_key_identifier_extension = false;
    });
    let others: Vec<_> = (0..60).map(|_| Authority::new("issuer")).collect();
    let chain: Vec<_> = std::iter::once(cert.der()).chain(others.iter().map(Authority::der)).collect();
    assert_eq!(judged(&chain, &Trust { depth: 100, ..trust_in(&[real.der()]) }), Verdict::SignatureFailure);
}

/// One that issued itself, with a key of RSA of 1024 bits, good from 2026-11-25 for 19 years.
const SHORT: &str = "\
-----BEGIN CERTIFICATE-----
MIIB/DCCAWWgAwIBAgIUHJYoQ8QD/anRoOx/18w8WCkiqBYwDQYJKoZIhvcNAQEL
BQAwEDEOMAwGA1UEAwwFc2hvcnQwHhcNMjYxMTI1MjM0MTQ1WhcNNDYwMTI0MjM0
MTQ1WjAQMQ4wDAYDVQQDDAVzaG9ydDCBnzANBgkqhkiG9w0BAQEFAAOBjQAwgYkC
gYEAsT6bsJuBF6zGxnA4LABaNaNjvTOTeRcAujGX07cDgGIuxlg3ZoGstNVlpWoi
qJagGyTMhh/nyAK7oNmu2rAzb/xAohwT6MomkjU+Tp3ZnYMqAJgnt/EtthU5zMTs
o/k3hYIfCw3b2XjwWCCpP7jkwk66vFh8RXv/g5CyzDYYu2ECAwEAAaNTMFEwHQYD
VR0OBBYEFE4inABRBeyUMdO2THjGVcFZNYk7MB8GA1UdIwQYMBaAFE4inABRBeyU
MdO2THjGVcFZNYk7MA8GA1UdEwEB/wQFMAMBAf8wDQYJKoZIhvcNAQELBQADgYEA
KNHyaZiM6/cGe5GeKPKcWladwNFWGhtU/xId5YvGsmbB+/3sfEFmxGnOAIcO8yaS
l3GiPrz8kt+fRcbfDMLQVVWeKx8FLMqaIJlFuO5XGslNKjzzJXoOHznGNdM2tzA2
8O8nrR7AgNp37EQtIHHuoDpgMJ/+lZUc8oxEeQgVFLY=
-----END CERTIFICATE-----
";

#[test]
fn a_key_that_is_too_short() {
    let cert = crate::chain(SHORT.as_bytes()).unwrap().remove(0);
    let root = Authority::new("root");
    for trust in [trust_in(&[&cert]), trust_in(&[root.der()])] {
        assert_eq!(judged_at(&[&cert], &trust, NOW + 10 * 86_400), Verdict::KeyTooShort);
    }
}

#[test]
fn client_certificate_requirements() {
    for (demand, verdict, expected) in [
        (ClientVerification::Required, None, false),
        (ClientVerification::Required, Some(Verdict::Good), true),
        (ClientVerification::Required, Some(Verdict::SelfSigned), false),
        (ClientVerification::Optional, None, true),
        (ClientVerification::Optional, Some(Verdict::Expired), false),
        (ClientVerification::OptionalNoCa, None, true),
        (ClientVerification::OptionalNoCa, Some(Verdict::UnableToVerifyLeaf), true),
        (ClientVerification::OptionalNoCa, Some(Verdict::Expired), false),
        (ClientVerification::OptionalNoCa, Some(Verdict::KeyTooShort), false),
    ] {
        assert_eq!(demand.admits(verdict), expected, "{demand:?} {verdict:?}");
    }
}

#[test]
fn hints() {
    let one = Authority::new("one");
    let two = Authority::new("two");
    let trust = trust_in(&[one.der(), two.der(), one.der()]);
    let subjects = [one.der(), two.der()].map(|der| Certificate::parse(der).unwrap().subject.to_vec());
    assert_eq!(
        trust.authorities.hints().iter().map(|hint| hint.as_ref().to_vec()).collect::<Vec<_>>(),
        subjects
    );
}
