//! Invariants for any text as OpenSSL's configuration strings: no panic, nothing selected twice, and an error for an
//! empty selection.

use tw_tls::words::{ciphers, ciphersuites, conf_command, groups, protocols};

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for selected in [ciphers(&text), ciphersuites(&text)].into_iter().flatten() {
        let mut suites: Vec<u16> = selected.chosen.iter().map(|suite| suite.suite().into()).collect();
        let count = suites.len();
        suites.sort_unstable();
        suites.dedup();
        assert!(count > 0 && suites.len() == count, "{text}");
    }
    if let Ok(selected) = groups(&text) {
        assert!(!selected.chosen.is_empty(), "{text}");
    }
    let _ = protocols(text.split(' '));
    for name in ["MinProtocol", "MaxProtocol", "Ciphersuites", "CipherString", "Groups", "Options", &text] {
        let _ = conf_command(name, &text);
    }
}
