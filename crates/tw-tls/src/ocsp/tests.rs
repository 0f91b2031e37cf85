use rcgen::{CustomExtension, ExtendedKeyUsagePurpose, KeyPair, SigningKey};

use super::*;
use crate::testing::{Authority, Leaf, NOW, ecdsa_key, leaf, wrap};

const GENERALIZED: u8 = GENERALIZED_TIME;
/// ecdsa-with-SHA256.
const ECDSA: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

/// A reply about the one certificate of a question.
struct Vouched<'a> {
    question: &'a Question,
    status: &'a [u8],
    this_update: &'a str,
    next_update: Option<&'a str>,
    certs: Vec<&'a [u8]>,
}

impl<'a> Vouched<'a> {
    fn good(question: &'a Question) -> Self {
        Self {
            question,
            status: &[GOOD, 0],
            this_update: "20261122000000Z",
            next_update: Some("20261124000000Z"),
            certs: Vec::new(),
        }
    }

    fn signed_by(&self, key: &KeyPair) -> Vec<u8> {
        let time = |text: &str| wrap(GENERALIZED, text.as_bytes());
        let der = self.question.der();
        // Four sequences around the CertID.
        let id = (0..4).fold(der.as_slice(), |der, _| Reader::new(der).expect(SEQUENCE).unwrap().content);
        let next = self.next_update.map(|next| wrap(context(0), &time(next))).unwrap_or_default();
        let single = wrap(SEQUENCE, &[id, self.status, &time(self.this_update), &next].concat());
        let by_key = wrap(BY_KEY, &wrap(OCTET_STRING, &[7; 20]));
        let tbs = wrap(SEQUENCE, &[by_key, time("20261122000000Z"), wrap(SEQUENCE, &single)].concat());
        let signature = [&[0], key.sign(&tbs).unwrap().as_slice()].concat();
        let certs = match self.certs.concat() {
            none if none.is_empty() => none,
            certs => wrap(context(0), &wrap(SEQUENCE, &certs)),
        };
        let basic = wrap(SEQUENCE, &[&tbs, ECDSA, &wrap(BIT_STRING, &signature), &certs].concat());
        let bytes = wrap(SEQUENCE, &[wrap(OID, BASIC), wrap(OCTET_STRING, &basic)].concat());
        wrap(SEQUENCE, &[&[0x0a, 1, 0], wrap(context(0), &bytes).as_slice()].concat())
    }
}

fn delegate(issuer: &Authority, usage: ExtendedKeyUsagePurpose) -> Leaf {
    issuer.sign("responder", ecdsa_key(), |params| params.extended_key_usages = vec![usage])
}

#[test]
fn replies() {
    let (root, other) = (Authority::new("root"), Authority::new("root"));
    let cert = leaf("example.com", &root);
    let question = Question::new(cert.der(), &[root.der()]).unwrap();
    let read = |vouched: &Vouched<'_>, key: &KeyPair| question.read(&vouched.signed_by(key), NOW);

    let good = Vouched::good(&question);
    let reply = read(&good, root.key()).unwrap();
    assert_eq!((reply.status, reply.until), (Status::Good, Some(NOW + 86_400)));
    let unsaid = Vouched { next_update: None, ..Vouched::good(&question) };
    assert_eq!(read(&unsaid, root.key()).unwrap().until, None);
    let revoked = wrap(REVOKED, &wrap(GENERALIZED, b"20261101000000Z"));
    for (status, expected) in [(&revoked[..], Status::Revoked), (&[UNKNOWN, 0], Status::Unknown)] {
        let vouched = Vouched { status, ..Vouched::good(&question) };
        assert_eq!(read(&vouched, root.key()).unwrap().status, expected);
    }

    assert_eq!(read(&good, other.key()), Err(OcspError::NotSigned));
    for (this_update, next_update) in [
        ("20261122000000Z", Some("20261122120000Z")),
        ("20261124000000Z", Some("20261125000000Z")),
        ("20261124000000Z", None),
    ] {
        let vouched = Vouched { this_update, next_update, ..Vouched::good(&question) };
        assert_eq!(read(&vouched, root.key()), Err(OcspError::NotNow));
    }
    let sibling = leaf("example.com", &root);
    let about_sibling = Question::new(sibling.der(), &[root.der()]).unwrap();
    assert_eq!(read(&Vouched::good(&about_sibling), root.key()), Err(OcspError::NotFound));
    assert_eq!(question.read(&wrap(SEQUENCE, &[0x0a, 1, 6]), NOW), Err(OcspError::NotSuccessful(6)));
    assert_eq!(OcspError::NotSuccessful(6).to_string(), "OCSP response not successful (6: unauthorized)");
}

#[test]
fn delegated_responder_certificates_are_accepted() {
    let root = Authority::new("root");
    let other = Authority::new("other");
    let cert = leaf("example.com", &root);
    let question = Question::new(cert.der(), &[root.der()]).unwrap();
    for (issuer, usage, expected) in [
        (&root, ExtendedKeyUsagePurpose::OcspSigning, true),
        (&root, ExtendedKeyUsagePurpose::ServerAuth, false),
        (&root, ExtendedKeyUsagePurpose::Any, false),
        (&other, ExtendedKeyUsagePurpose::OcspSigning, false),
    ] {
        let responder = delegate(issuer, usage);
        let vouched = Vouched { certs: vec![responder.der()], ..Vouched::good(&question) };
        let read = question.read(&vouched.signed_by(responder.key()), NOW);
        assert_eq!(read.is_ok(), expected, "{read:?}");
    }
    // The certificate of the responder is missing in the response.
    let responder = delegate(&root, ExtendedKeyUsagePurpose::OcspSigning);
    assert!(question.read(&Vouched::good(&question).signed_by(responder.key()), NOW).is_err());
}

#[test]
fn authorities_above_the_issuer() {
    let root = Authority::new("root");
    let between = Authority::under("between", &root, |_| {});
    let cert = leaf("example.com", &between);
    let others = [root.der(), cert.der(), between.der()];
    let issuers = issuers_of(cert.der(), &others);
    assert_eq!(issuers, [between.der(), root.der()]);
    for (issuers, expected) in [(&issuers[..], true), (&issuers[..1], false)] {
        let question = Question::new(cert.der(), issuers).unwrap();
        let response = Vouched::good(&question).signed_by(root.key());
        assert_eq!(question.read(&response, NOW).is_ok(), expected);
    }
}

#[test]
fn truncated_or_modified_responses_are_refused() {
    let root = Authority::new("root");
    let cert = leaf("example.com", &root);
    let question = Question::new(cert.der(), &[root.der()]).unwrap();
    let response = Vouched::good(&question).signed_by(root.key());
    for end in 0..response.len() {
        assert!(question.read(&response[..end], NOW).is_err(), "{end}");
    }
    for at in 0..response.len() {
        let mut changed = response.clone();
        changed[at] ^= 0x55;
        // Bytes in front of the signed part may have other valid values.
        if let Ok(reply) = question.read(&changed, NOW) {
            assert_eq!(reply.status, Status::Good, "{at}");
        }
    }
    assert_eq!(question.read(&vec![0x30; REPLY_SIZE_MAX + 1], NOW), Err(OcspError::Malformed));
}

#[test]
fn responder_url() {
    let root = Authority::new("root");
    let url = b"http://ocsp.example/a";
    let access = wrap(SEQUENCE, &wrap(SEQUENCE, &[wrap(OID, ACCESS_BY_OCSP), wrap(URI, url)].concat()));
    let cert = root.sign("example.com", ecdsa_key(), |params| {
        let id = [1, 3, 6, 1, 5, 5, 7, 1, 1];
        params.custom_extensions.push(CustomExtension::from_oid_content(&id, access.clone()));
    });
    assert_eq!(responder(cert.der()).as_deref(), Some("http://ocsp.example/a"));
    assert_eq!(responder(leaf("example.com", &root).der()), None);

    let other = Authority::new("root");
    let value = issuer_of(cert.der(), [cert.der(), other.der(), root.der()].into_iter());
    assert_eq!(value, Some(root.der()));
    assert_eq!(issuer_of(cert.der(), [other.der()].into_iter()), None);
    assert!(Question::new(cert.der(), &[leaf("x", &root).der()]).is_none());
}
