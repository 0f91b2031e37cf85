//! Invariants for any bytes of a peer as its certificate or OCSP response: no panic, equal fields every time, and no
//! trust.

use tw_tls::certificate::CertificateFields;
use tw_tls::ocsp::{Question, issuer_of, responder};
use tw_tls::rustls::pki_types::CertificateDer;
use tw_tls::{Authorities, Purpose, Trust, verify_chain};

/// Within the validity of what is in the corpus.
const NOW: u64 = 1_795_500_000;

pub(crate) fn check(data: &[u8]) {
    let der = CertificateDer::from(data);
    if let Some(facts) = CertificateFields::of(&der) {
        let texts = [facts.subject(), facts.issuer(), facts.subject_legacy(), facts.issuer_legacy()];
        // They go into logs and fields of heads.
        assert!(texts.iter().all(|text| !text.contains(['\r', '\n', '\0'])), "{texts:?}");
        assert!(facts.serial().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(facts.fingerprint().len(), 40);
        let _ = (facts.not_before(), facts.not_after(), facts.days_left(NOW), facts.ends_at());
        assert!(facts.pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(facts.pem_escaped().bytes().all(|byte| byte.is_ascii_graphic()));
    }
    let authorities = Authorities::new(Vec::new()).expect("nobody can be trusted");
    let trust = Trust { authorities: authorities.into(), crls: None, depth: 5, purpose: Purpose::Client };
    assert!(!verify_chain(&[der.clone(), der.clone()], &trust, NOW).is_good());
    let _ = responder(data);
    // Not even itself is asked about itself.
    assert_eq!(issuer_of(data, [data].into_iter()), None);
    if let Some(question) = Question::new(data, &[data]) {
        assert!(question.read(data, NOW).is_err());
        assert!(question.read(&question.der(), NOW).is_err());
    }
    // A response to a question that somebody has asked.
    let question = Question::new(CERTIFICATE, &[ISSUER]).expect("one issued the other");
    assert_eq!(question.read(data, NOW), question.read(data, NOW));
}

const CERTIFICATE: &[u8] = include_bytes!("../corpus/certificate/v1");
const ISSUER: &[u8] = include_bytes!("../corpus/certificate/ca");
