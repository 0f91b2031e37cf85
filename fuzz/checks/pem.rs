//! Invariants for any text as certificates, keys, revocation lists and pass phrases: no panic, and equal results
//! every time. Encrypted keys are not opened: their header determines how long that takes.

use tw_tls::{Authorities, Crls, Identity, Key, Passwords, authorities, chain};

pub(crate) fn check(data: &[u8]) {
    let certs = chain(data);
    assert_eq!(certs.is_ok(), chain(data).is_ok());
    if let Ok(trusted) = authorities(data) {
        assert!(!trusted.is_empty());
        let _ = Authorities::new(trusted).map(|all| all.hints());
    }
    let _ = Crls::read(data);
    let _ = Passwords::read(data);
    if let (Ok(certs), Ok(key)) = (certs, Key::read(data, &Passwords::default())) {
        let _ = Identity::new(certs, key);
    }
}
