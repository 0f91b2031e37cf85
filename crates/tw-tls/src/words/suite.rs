//! Cipher suites of OpenSSL: names, code points, and the properties that words select them by.
//!
//! They are in the order of preference of OpenSSL 3.0 (`openssl ciphers -V ALL:COMPLEMENTOFALL`), with those that it
//! no longer has at the end. Suites with PSK and SRP are left out: no browser offers them and no server without
//! passwords has them.

use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

/// Cipher suite with the properties used in selections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suite {
    pub(super) code: u16,
    pub(super) name: &'static str,
    pub(super) version: V,
    pub(super) exchange: K,
    pub(super) authentication: A,
    pub(super) encryption: E,
    pub(super) mac: M,
}

/// The first version that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum V {
    Ssl3,
    Tls10,
    Tls12,
    Tls13,
}

/// The key exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum K {
    Any,
    Rsa,
    Dhe,
    Ecdhe,
}

/// The authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum A {
    Any,
    Rsa,
    Ecdsa,
    Dss,
    Null,
}

/// The encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum E {
    Aes128,
    Aes256,
    Aes128Gcm,
    Aes256Gcm,
    Aes128Ccm,
    Aes256Ccm,
    Aes128Ccm8,
    Aes256Ccm8,
    ChaCha20,
    Camellia128,
    Camellia256,
    Aria128Gcm,
    Aria256Gcm,
    Des3,
    Rc4,
    Null,
}

/// The message authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum M {
    Aead,
    Md5,
    Sha1,
    Sha256,
    Sha384,
}

impl Suite {
    /// Strength in bits, by which `@STRENGTH` sorts.
    pub(super) fn strength(&self) -> u16 {
        match self.encryption {
            E::Aes256 | E::Aes256Gcm | E::Aes256Ccm | E::ChaCha20 | E::Camellia256 | E::Aria256Gcm => 256,
            E::Aes128 | E::Aes128Gcm | E::Aes128Ccm | E::Aes256Ccm8 | E::Camellia128 | E::Aria128Gcm => 128,
            E::Des3 => 112,
            E::Rc4 => 80,
            E::Aes128Ccm8 => 64,
            E::Null => 0,
        }
    }

    /// rustls's own, if it has it.
    pub(super) fn supported(&self) -> Option<SupportedCipherSuite> {
        ALL_CIPHER_SUITES.iter().find(|suite| u16::from(suite.suite()) == self.code).copied()
    }
}

/// The suite of this name.
pub(super) fn named(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

/// OpenSSL's name of a code point, also of the two that are signals and no suites.
pub(crate) fn name(code: u16) -> Option<&'static str> {
    match code {
        0x00ff => Some("TLS_EMPTY_RENEGOTIATION_INFO_SCSV"),
        0x5600 => Some("TLS_FALLBACK_SCSV"),
        _ => SUITES.iter().find(|suite| suite.code == code).map(|suite| suite.name),
    }
}

const fn suite(
    code: u16,
    name: &'static str,
    version: V,
    exchange: K,
    authentication: A,
    encryption: E,
    mac: M,
) -> Suite {
    Suite { code, name, version, exchange, authentication, encryption, mac }
}

/// All suites, in the order described at the head of this file.
#[rustfmt::skip]
pub(super) const SUITES: &[Suite] = &[
    suite(0x1302, "TLS_AES_256_GCM_SHA384", V::Tls13, K::Any, A::Any, E::Aes256Gcm, M::Aead),
    suite(0x1303, "TLS_CHACHA20_POLY1305_SHA256", V::Tls13, K::Any, A::Any, E::ChaCha20, M::Aead),
    suite(0x1301, "TLS_AES_128_GCM_SHA256", V::Tls13, K::Any, A::Any, E::Aes128Gcm, M::Aead),
    suite(0xc02c, "ECDHE-ECDSA-AES256-GCM-SHA384", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes256Gcm, M::Aead),
    suite(0xc030, "ECDHE-RSA-AES256-GCM-SHA384", V::Tls12, K::Ecdhe, A::Rsa, E::Aes256Gcm, M::Aead),
    suite(0x00a3, "DHE-DSS-AES256-GCM-SHA384", V::Tls12, K::Dhe, A::Dss, E::Aes256Gcm, M::Aead),
    suite(0x009f, "DHE-RSA-AES256-GCM-SHA384", V::Tls12, K::Dhe, A::Rsa, E::Aes256Gcm, M::Aead),
    suite(0xcca9, "ECDHE-ECDSA-CHACHA20-POLY1305", V::Tls12, K::Ecdhe, A::Ecdsa, E::ChaCha20, M::Aead),
    suite(0xcca8, "ECDHE-RSA-CHACHA20-POLY1305", V::Tls12, K::Ecdhe, A::Rsa, E::ChaCha20, M::Aead),
    suite(0xccaa, "DHE-RSA-CHACHA20-POLY1305", V::Tls12, K::Dhe, A::Rsa, E::ChaCha20, M::Aead),
    suite(0xc0af, "ECDHE-ECDSA-AES256-CCM8", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes256Ccm8, M::Aead),
    suite(0xc0ad, "ECDHE-ECDSA-AES256-CCM", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes256Ccm, M::Aead),
    suite(0xc0a3, "DHE-RSA-AES256-CCM8", V::Tls12, K::Dhe, A::Rsa, E::Aes256Ccm8, M::Aead),
    suite(0xc09f, "DHE-RSA-AES256-CCM", V::Tls12, K::Dhe, A::Rsa, E::Aes256Ccm, M::Aead),
    suite(0xc05d, "ECDHE-ECDSA-ARIA256-GCM-SHA384", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aria256Gcm, M::Aead),
    suite(0xc061, "ECDHE-ARIA256-GCM-SHA384", V::Tls12, K::Ecdhe, A::Rsa, E::Aria256Gcm, M::Aead),
    suite(0xc057, "DHE-DSS-ARIA256-GCM-SHA384", V::Tls12, K::Dhe, A::Dss, E::Aria256Gcm, M::Aead),
    suite(0xc053, "DHE-RSA-ARIA256-GCM-SHA384", V::Tls12, K::Dhe, A::Rsa, E::Aria256Gcm, M::Aead),
    suite(0x00a7, "ADH-AES256-GCM-SHA384", V::Tls12, K::Dhe, A::Null, E::Aes256Gcm, M::Aead),
    suite(0xc02b, "ECDHE-ECDSA-AES128-GCM-SHA256", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes128Gcm, M::Aead),
    suite(0xc02f, "ECDHE-RSA-AES128-GCM-SHA256", V::Tls12, K::Ecdhe, A::Rsa, E::Aes128Gcm, M::Aead),
    suite(0x00a2, "DHE-DSS-AES128-GCM-SHA256", V::Tls12, K::Dhe, A::Dss, E::Aes128Gcm, M::Aead),
    suite(0x009e, "DHE-RSA-AES128-GCM-SHA256", V::Tls12, K::Dhe, A::Rsa, E::Aes128Gcm, M::Aead),
    suite(0xc0ae, "ECDHE-ECDSA-AES128-CCM8", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes128Ccm8, M::Aead),
    suite(0xc0ac, "ECDHE-ECDSA-AES128-CCM", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes128Ccm, M::Aead),
    suite(0xc0a2, "DHE-RSA-AES128-CCM8", V::Tls12, K::Dhe, A::Rsa, E::Aes128Ccm8, M::Aead),
    suite(0xc09e, "DHE-RSA-AES128-CCM", V::Tls12, K::Dhe, A::Rsa, E::Aes128Ccm, M::Aead),
    suite(0xc05c, "ECDHE-ECDSA-ARIA128-GCM-SHA256", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aria128Gcm, M::Aead),
    suite(0xc060, "ECDHE-ARIA128-GCM-SHA256", V::Tls12, K::Ecdhe, A::Rsa, E::Aria128Gcm, M::Aead),
    suite(0xc056, "DHE-DSS-ARIA128-GCM-SHA256", V::Tls12, K::Dhe, A::Dss, E::Aria128Gcm, M::Aead),
    suite(0xc052, "DHE-RSA-ARIA128-GCM-SHA256", V::Tls12, K::Dhe, A::Rsa, E::Aria128Gcm, M::Aead),
    suite(0x00a6, "ADH-AES128-GCM-SHA256", V::Tls12, K::Dhe, A::Null, E::Aes128Gcm, M::Aead),
    suite(0xc024, "ECDHE-ECDSA-AES256-SHA384", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes256, M::Sha384),
    suite(0xc028, "ECDHE-RSA-AES256-SHA384", V::Tls12, K::Ecdhe, A::Rsa, E::Aes256, M::Sha384),
    suite(0x006b, "DHE-RSA-AES256-SHA256", V::Tls12, K::Dhe, A::Rsa, E::Aes256, M::Sha256),
    suite(0x006a, "DHE-DSS-AES256-SHA256", V::Tls12, K::Dhe, A::Dss, E::Aes256, M::Sha256),
    suite(0xc073, "ECDHE-ECDSA-CAMELLIA256-SHA384", V::Tls12, K::Ecdhe, A::Ecdsa, E::Camellia256, M::Sha384),
    suite(0xc077, "ECDHE-RSA-CAMELLIA256-SHA384", V::Tls12, K::Ecdhe, A::Rsa, E::Camellia256, M::Sha384),
    suite(0x00c4, "DHE-RSA-CAMELLIA256-SHA256", V::Tls12, K::Dhe, A::Rsa, E::Camellia256, M::Sha256),
    suite(0x00c3, "DHE-DSS-CAMELLIA256-SHA256", V::Tls12, K::Dhe, A::Dss, E::Camellia256, M::Sha256),
    suite(0x006d, "ADH-AES256-SHA256", V::Tls12, K::Dhe, A::Null, E::Aes256, M::Sha256),
    suite(0x00c5, "ADH-CAMELLIA256-SHA256", V::Tls12, K::Dhe, A::Null, E::Camellia256, M::Sha256),
    suite(0xc023, "ECDHE-ECDSA-AES128-SHA256", V::Tls12, K::Ecdhe, A::Ecdsa, E::Aes128, M::Sha256),
    suite(0xc027, "ECDHE-RSA-AES128-SHA256", V::Tls12, K::Ecdhe, A::Rsa, E::Aes128, M::Sha256),
    suite(0x0067, "DHE-RSA-AES128-SHA256", V::Tls12, K::Dhe, A::Rsa, E::Aes128, M::Sha256),
    suite(0x0040, "DHE-DSS-AES128-SHA256", V::Tls12, K::Dhe, A::Dss, E::Aes128, M::Sha256),
    suite(0xc072, "ECDHE-ECDSA-CAMELLIA128-SHA256", V::Tls12, K::Ecdhe, A::Ecdsa, E::Camellia128, M::Sha256),
    suite(0xc076, "ECDHE-RSA-CAMELLIA128-SHA256", V::Tls12, K::Ecdhe, A::Rsa, E::Camellia128, M::Sha256),
    suite(0x00be, "DHE-RSA-CAMELLIA128-SHA256", V::Tls12, K::Dhe, A::Rsa, E::Camellia128, M::Sha256),
    suite(0x00bd, "DHE-DSS-CAMELLIA128-SHA256", V::Tls12, K::Dhe, A::Dss, E::Camellia128, M::Sha256),
    suite(0x006c, "ADH-AES128-SHA256", V::Tls12, K::Dhe, A::Null, E::Aes128, M::Sha256),
    suite(0x00bf, "ADH-CAMELLIA128-SHA256", V::Tls12, K::Dhe, A::Null, E::Camellia128, M::Sha256),
    suite(0xc00a, "ECDHE-ECDSA-AES256-SHA", V::Tls10, K::Ecdhe, A::Ecdsa, E::Aes256, M::Sha1),
    suite(0xc014, "ECDHE-RSA-AES256-SHA", V::Tls10, K::Ecdhe, A::Rsa, E::Aes256, M::Sha1),
    suite(0x0039, "DHE-RSA-AES256-SHA", V::Ssl3, K::Dhe, A::Rsa, E::Aes256, M::Sha1),
    suite(0x0038, "DHE-DSS-AES256-SHA", V::Ssl3, K::Dhe, A::Dss, E::Aes256, M::Sha1),
    suite(0x0088, "DHE-RSA-CAMELLIA256-SHA", V::Ssl3, K::Dhe, A::Rsa, E::Camellia256, M::Sha1),
    suite(0x0087, "DHE-DSS-CAMELLIA256-SHA", V::Ssl3, K::Dhe, A::Dss, E::Camellia256, M::Sha1),
    suite(0xc019, "AECDH-AES256-SHA", V::Tls10, K::Ecdhe, A::Null, E::Aes256, M::Sha1),
    suite(0x003a, "ADH-AES256-SHA", V::Ssl3, K::Dhe, A::Null, E::Aes256, M::Sha1),
    suite(0x0089, "ADH-CAMELLIA256-SHA", V::Ssl3, K::Dhe, A::Null, E::Camellia256, M::Sha1),
    suite(0xc009, "ECDHE-ECDSA-AES128-SHA", V::Tls10, K::Ecdhe, A::Ecdsa, E::Aes128, M::Sha1),
    suite(0xc013, "ECDHE-RSA-AES128-SHA", V::Tls10, K::Ecdhe, A::Rsa, E::Aes128, M::Sha1),
    suite(0x0033, "DHE-RSA-AES128-SHA", V::Ssl3, K::Dhe, A::Rsa, E::Aes128, M::Sha1),
    suite(0x0032, "DHE-DSS-AES128-SHA", V::Ssl3, K::Dhe, A::Dss, E::Aes128, M::Sha1),
    suite(0x0045, "DHE-RSA-CAMELLIA128-SHA", V::Ssl3, K::Dhe, A::Rsa, E::Camellia128, M::Sha1),
    suite(0x0044, "DHE-DSS-CAMELLIA128-SHA", V::Ssl3, K::Dhe, A::Dss, E::Camellia128, M::Sha1),
    suite(0xc018, "AECDH-AES128-SHA", V::Tls10, K::Ecdhe, A::Null, E::Aes128, M::Sha1),
    suite(0x0034, "ADH-AES128-SHA", V::Ssl3, K::Dhe, A::Null, E::Aes128, M::Sha1),
    suite(0x0046, "ADH-CAMELLIA128-SHA", V::Ssl3, K::Dhe, A::Null, E::Camellia128, M::Sha1),
    suite(0x009d, "AES256-GCM-SHA384", V::Tls12, K::Rsa, A::Rsa, E::Aes256Gcm, M::Aead),
    suite(0xc0a1, "AES256-CCM8", V::Tls12, K::Rsa, A::Rsa, E::Aes256Ccm8, M::Aead),
    suite(0xc09d, "AES256-CCM", V::Tls12, K::Rsa, A::Rsa, E::Aes256Ccm, M::Aead),
    suite(0xc051, "ARIA256-GCM-SHA384", V::Tls12, K::Rsa, A::Rsa, E::Aria256Gcm, M::Aead),
    suite(0x009c, "AES128-GCM-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Aes128Gcm, M::Aead),
    suite(0xc0a0, "AES128-CCM8", V::Tls12, K::Rsa, A::Rsa, E::Aes128Ccm8, M::Aead),
    suite(0xc09c, "AES128-CCM", V::Tls12, K::Rsa, A::Rsa, E::Aes128Ccm, M::Aead),
    suite(0xc050, "ARIA128-GCM-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Aria128Gcm, M::Aead),
    suite(0x003d, "AES256-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Aes256, M::Sha256),
    suite(0x00c0, "CAMELLIA256-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Camellia256, M::Sha256),
    suite(0x003c, "AES128-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Aes128, M::Sha256),
    suite(0x00ba, "CAMELLIA128-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Camellia128, M::Sha256),
    suite(0x0035, "AES256-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Aes256, M::Sha1),
    suite(0x0084, "CAMELLIA256-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Camellia256, M::Sha1),
    suite(0x002f, "AES128-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Aes128, M::Sha1),
    suite(0x0041, "CAMELLIA128-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Camellia128, M::Sha1),
    suite(0xc006, "ECDHE-ECDSA-NULL-SHA", V::Tls10, K::Ecdhe, A::Ecdsa, E::Null, M::Sha1),
    suite(0xc010, "ECDHE-RSA-NULL-SHA", V::Tls10, K::Ecdhe, A::Rsa, E::Null, M::Sha1),
    suite(0xc015, "AECDH-NULL-SHA", V::Tls10, K::Ecdhe, A::Null, E::Null, M::Sha1),
    suite(0x003b, "NULL-SHA256", V::Tls12, K::Rsa, A::Rsa, E::Null, M::Sha256),
    suite(0x0002, "NULL-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Null, M::Sha1),
    suite(0x0001, "NULL-MD5", V::Ssl3, K::Rsa, A::Rsa, E::Null, M::Md5),
    // Suites that OpenSSL 3.0 has only when it is built with them.
    suite(0x1304, "TLS_AES_128_CCM_SHA256", V::Tls13, K::Any, A::Any, E::Aes128Ccm, M::Aead),
    suite(0x1305, "TLS_AES_128_CCM_8_SHA256", V::Tls13, K::Any, A::Any, E::Aes128Ccm8, M::Aead),
    suite(0xc008, "ECDHE-ECDSA-DES-CBC3-SHA", V::Tls10, K::Ecdhe, A::Ecdsa, E::Des3, M::Sha1),
    suite(0xc012, "ECDHE-RSA-DES-CBC3-SHA", V::Tls10, K::Ecdhe, A::Rsa, E::Des3, M::Sha1),
    suite(0x0016, "DHE-RSA-DES-CBC3-SHA", V::Ssl3, K::Dhe, A::Rsa, E::Des3, M::Sha1),
    suite(0x0013, "DHE-DSS-DES-CBC3-SHA", V::Ssl3, K::Dhe, A::Dss, E::Des3, M::Sha1),
    suite(0x000a, "DES-CBC3-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Des3, M::Sha1),
    suite(0x001b, "ADH-DES-CBC3-SHA", V::Ssl3, K::Dhe, A::Null, E::Des3, M::Sha1),
    suite(0xc017, "AECDH-DES-CBC3-SHA", V::Tls10, K::Ecdhe, A::Null, E::Des3, M::Sha1),
    suite(0xc007, "ECDHE-ECDSA-RC4-SHA", V::Tls10, K::Ecdhe, A::Ecdsa, E::Rc4, M::Sha1),
    suite(0xc011, "ECDHE-RSA-RC4-SHA", V::Tls10, K::Ecdhe, A::Rsa, E::Rc4, M::Sha1),
    suite(0x0005, "RC4-SHA", V::Ssl3, K::Rsa, A::Rsa, E::Rc4, M::Sha1),
    suite(0x0004, "RC4-MD5", V::Ssl3, K::Rsa, A::Rsa, E::Rc4, M::Md5),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustls_has_no_suite_without_a_name() {
        for suite in ALL_CIPHER_SUITES {
            let ours = SUITES.iter().find(|ours| ours.code == u16::from(suite.suite())).unwrap();
            assert_eq!(
                ours.supported().map(|supported_cipher_suite| supported_cipher_suite.suite()),
                Some(suite.suite()),
                "{}",
                ours.name
            );
        }
        assert_eq!(
            SUITES.iter().filter(|suite| suite.supported().is_some()).count(),
            ALL_CIPHER_SUITES.len()
        );
    }

    #[test]
    fn codes_and_names_are_unique() {
        for (at, suite) in SUITES.iter().enumerate() {
            let twin =
                SUITES[at + 1..].iter().find(|other| other.code == suite.code || other.name == suite.name);
            assert!(twin.is_none(), "{suite:?} {twin:?}");
        }
    }
}
