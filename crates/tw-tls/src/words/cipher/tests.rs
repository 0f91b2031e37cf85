//! Common cipher strings, with OpenSSL 3.0's order (`openssl ciphers STRING`) of the suites offered here.

use super::*;

/// `e` is ECDSA and `r` is RSA; then AES-GCM with so many bits, or ChaCha20.
#[rustfmt::skip]
const ORDERS: &[(&str, &str)] = &[
    ("HIGH:!aNULL:!MD5", "e256 r256 eCha rCha e128 r128"),
    ("ALL", "e256 r256 eCha rCha e128 r128"),
    ("DEFAULT", "e256 r256 eCha rCha e128 r128"),
    ("DEFAULT:!CHACHA20", "e256 r256 e128 r128"),
    ("DEFAULT@SECLEVEL=1", "e256 r256 eCha rCha e128 r128"),
    ("DEFAULT:+AES256", "eCha rCha e128 r128 e256 r256"),
    ("ALL:-AES128:AES128", "e256 r256 eCha rCha e128 r128"),
    ("ALL:!AES256", "eCha rCha e128 r128"),
    ("EECDH+AESGCM:EDH+AESGCM", "e256 r256 e128 r128"),
    ("ECDHE+AESGCM:ECDHE+CHACHA20", "e256 r256 e128 r128 eCha rCha"),
    ("EECDH+CHACHA20:EECDH+AES128:RSA+AES128:EECDH+AES256:RSA+AES256:!MD5", "eCha rCha e128 r128 e256 r256"),
    ("ECDHE-RSA-AES128-GCM-SHA256:HIGH:!aNULL", "r128 e256 r256 eCha rCha e128"),
    ("ECDHE-ECDSA-AES128-GCM-SHA256:HIGH:!aNULL:!MD5:ECDHE+AESGCM:@STRENGTH", "e256 r256 eCha rCha e128 r128"),
    ("AES128:AES256:@STRENGTH", "e256 r256 e128 r128"),
    ("AES128+aRSA:CHACHA20", "r128 eCha rCha"),
    ("aECDSA:aRSA", "e256 eCha e128 r256 rCha r128"),
    ("kEECDH:-aRSA:aRSA:+CHACHA20", "e256 e128 r256 r128 eCha rCha"),
    ("HIGH:!aRSA:!CHACHA20:!AES256", "e128"),
    ("AES256 AES128,CHACHA20;!aECDSA", "r256 r128 rCha"),
    ("ECDHE:!COMPLEMENTOFDEFAULT", "e256 r256 eCha rCha e128 r128"),
    ("TLSv1.2:!kRSA", "e256 r256 eCha rCha e128 r128"),
    ("HIGH:SHA256:SHA384", "e256 r256 eCha rCha e128 r128"),
    ("AESGCM:!ECDSA:+AES128", "r256 r128"),
    ("ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:-CHACHA20:AESGCM:CHACHA20", "e256 r256 e128 r128 eCha rCha"),
    ("ALL:!EXPORT:!LOW:!aNULL:!eNULL:!SSLv2", "e256 r256 eCha rCha e128 r128"),
    ("UNKNOWN-WORD:ECDHE-RSA-AES256-GCM-SHA384", "r256"),
];

fn short(suite: &SupportedCipherSuite) -> &'static str {
    match super::super::suite::name(suite.suite().into()) {
        Some("ECDHE-ECDSA-AES256-GCM-SHA384") => "e256",
        Some("ECDHE-RSA-AES256-GCM-SHA384") => "r256",
        Some("ECDHE-ECDSA-CHACHA20-POLY1305") => "eCha",
        Some("ECDHE-RSA-CHACHA20-POLY1305") => "rCha",
        Some("ECDHE-ECDSA-AES128-GCM-SHA256") => "e128",
        Some("ECDHE-RSA-AES128-GCM-SHA256") => "r128",
        Some(other) => other,
        None => "?",
    }
}

fn order(suites: &[SupportedCipherSuite]) -> String {
    suites.iter().map(short).collect::<Vec<_>>().join(" ")
}

#[test]
fn orders_are_those_of_openssl() {
    for (words, expected) in ORDERS {
        assert_eq!(order(&ciphers(words).unwrap().chosen), *expected, "{words}");
    }
    assert_eq!(order(&default_ciphers()), "e256 r256 eCha rCha e128 r128");
    assert_eq!(order(&ciphers("PROFILE=SYSTEM").unwrap().chosen), order(&default_ciphers()));
    assert_eq!(order(&ciphers("HIGH@STRENGTH:!CHACHA20@SECLEVEL=2").unwrap().chosen), "e256 r256 e128 r128");
}

#[test]
fn unsupported_suites_are_noted() {
    for (words, never) in [
        ("HIGH:!aNULL:!MD5", &[][..]),
        (
            "ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA:DHE-RSA-AES256-GCM-SHA384",
            &["AES128-SHA", "DHE-RSA-AES256-GCM-SHA384"],
        ),
        ("HIGH:kEDH:RC4:3DES", &["kEDH", "RC4", "3DES"]),
        // Suites that are killed or removed afterwards are not wanted.
        ("HIGH:kEDH:RC4:!kEDH:-RC4", &[]),
        ("EECDH+AESGCM:EDH+AESGCM:RSA+AES", &["EDH+AESGCM", "RSA+AES"]),
        ("UNKNOWN-WORD:HIGH:!ALSO-UNKNOWN", &["UNKNOWN-WORD"]),
        ("TLS_AES_128_GCM_SHA256:HIGH:PSK:!PSK", &[]),
        ("DEFAULT", &[]),
    ] {
        assert_eq!(ciphers(words).unwrap().never, never, "{words}");
    }
    let note = ciphers("HIGH:RC4:3DES").unwrap().note();
    assert_eq!(note.as_deref(), Some("never offered: RC4, 3DES"));
}

#[test]
fn empty_selections_are_refused() {
    let never =
        |words: &[&str]| WordError::NeverOffered(words.iter().map(|word| (*word).to_owned()).collect());
    for (words, error) in [
        ("", WordError::NoMatch),
        ("NOTHING", WordError::NoMatch),
        ("!ALL", WordError::NoMatch),
        ("ALL:!ALL", WordError::NoMatch),
        ("+ALL", WordError::NoMatch),
        ("AES128-SHA:kEDH", never(&["AES128-SHA", "kEDH"])),
        ("SHA1", never(&["SHA1"])),
        ("@FOO", WordError::Malformed("@FOO".to_owned())),
        ("ALL:@SECLEVEL=6", WordError::Malformed("@SECLEVEL=6".to_owned())),
        ("ALL:!", WordError::Malformed(String::new())),
        ("ALL:A++B", WordError::Malformed("A++B".to_owned())),
        ("ALL:\u{e4}", WordError::Malformed("\u{e4}".to_owned())),
    ] {
        assert_eq!(ciphers(words).unwrap_err(), error, "{words}");
    }
}

#[test]
fn recommendations_of_mozilla() {
    const GCM: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
                       ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
    const DHE: &str = "DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305";
    const OLD: &str = "ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:\
                       DHE-RSA-AES128-SHA256:AES128-GCM-SHA256:AES256-GCM-SHA384:AES128-SHA:AES256-SHA:DES-CBC3-SHA";
    let in_order = "e128 r128 e256 r256 eCha rCha";
    let modern = ciphers(GCM).unwrap();
    assert_eq!((order(&modern.chosen).as_str(), modern.note()), (in_order, None));
    let intermediate = ciphers(&format!("{GCM}:{DHE}")).unwrap();
    assert_eq!((order(&intermediate.chosen).as_str(), intermediate.never.len()), (in_order, 3));
    let old = ciphers(&format!("{GCM}:{DHE}:{OLD}")).unwrap();
    assert_eq!((order(&old.chosen).as_str(), old.never.len()), (in_order, 13));
}

#[test]
fn suites_of_tls_13() {
    let codes = |words: &str| {
        ciphersuites(words)
            .map(|selection| selection.chosen.iter().map(|s| s.suite().into()).collect::<Vec<u16>>())
    };
    assert_eq!(codes("TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"), Ok(vec![0x1303, 0x1301]));
    assert_eq!(codes("TLS_AES_128_CCM_SHA256:TLS_AES_128_GCM_SHA256"), Ok(vec![0x1301]));
    assert_eq!(
        codes("TLS_AES_128_CCM_SHA256"),
        Err(WordError::NeverOffered(vec!["TLS_AES_128_CCM_SHA256".to_owned()]))
    );
    assert_eq!(codes("AES128-SHA"), Err(WordError::Unknown("AES128-SHA".to_owned())));
    assert_eq!(codes(""), Err(WordError::NoMatch));
    let default: Vec<u16> = default_ciphersuites().iter().map(|suite| suite.suite().into()).collect();
    assert_eq!(default, [0x1302, 0x1303, 0x1301]);
}
