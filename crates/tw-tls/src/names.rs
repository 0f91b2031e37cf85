//! OpenSSL's names of negotiated and offered algorithms, for variables and logs; without a name, the number as
//! `0x1234`.

use std::fmt;

use rustls::{CipherSuite, NamedGroup, ProtocolVersion, SignatureScheme};

use crate::words::suite_name;

/// The name of a code point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlgorithmName {
    /// OpenSSL has one.
    Known(&'static str),
    /// Number without a name.
    Code(u16),
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name),
            Self::Code(code) => write!(f, "0x{code:04x}"),
        }
    }
}

/// Of a cipher suite: `TLS_AES_128_GCM_SHA256`, `ECDHE-RSA-AES256-GCM-SHA384`.
pub fn suite(suite: CipherSuite) -> AlgorithmName {
    let code = u16::from(suite);
    suite_name(code).map_or(AlgorithmName::Code(code), AlgorithmName::Known)
}

/// Of a version: `TLSv1.3`.
pub fn protocol(version: ProtocolVersion) -> AlgorithmName {
    match version {
        ProtocolVersion::SSLv2 => AlgorithmName::Known("SSLv2"),
        ProtocolVersion::SSLv3 => AlgorithmName::Known("SSLv3"),
        ProtocolVersion::TLSv1_0 => AlgorithmName::Known("TLSv1"),
        ProtocolVersion::TLSv1_1 => AlgorithmName::Known("TLSv1.1"),
        ProtocolVersion::TLSv1_2 => AlgorithmName::Known("TLSv1.2"),
        ProtocolVersion::TLSv1_3 => AlgorithmName::Known("TLSv1.3"),
        other => AlgorithmName::Code(u16::from(other)),
    }
}

/// Of a group: `X25519`, `prime256v1`.
pub fn group(group: NamedGroup) -> AlgorithmName {
    let code = u16::from(group);
    GROUPS
        .iter()
        .find(|(candidate, _)| *candidate == code)
        .map_or(AlgorithmName::Code(code), |(_, name)| AlgorithmName::Known(name))
}

/// Of a scheme of signatures: `ecdsa_secp256r1_sha256`.
pub fn scheme(scheme: SignatureScheme) -> AlgorithmName {
    let code = u16::from(scheme);
    SCHEMES
        .iter()
        .find(|(candidate, _)| *candidate == code)
        .map_or(AlgorithmName::Code(code), |(_, name)| AlgorithmName::Known(name))
}

/// Appends the signature schemes that a client offered, as `$ssl_sigalgs` has them: names with colons between them.
pub fn schemes(offered: &[SignatureScheme], out: &mut Vec<u8>) {
    list(offered.iter().map(|offered| scheme(*offered)), out);
}

/// Appends the cipher suites that a client offered, as `$ssl_ciphers` has them: names with colons between them.
pub fn suites(offered: &[CipherSuite], out: &mut Vec<u8>) {
    list(offered.iter().map(|offered| suite(*offered)), out);
}

/// Appends the groups that a client offered, as `$ssl_curves` has them: names with colons between them.
pub fn groups(offered: &[NamedGroup], out: &mut Vec<u8>) {
    list(offered.iter().map(|offered| group(*offered)), out);
}

fn list(names: impl Iterator<Item = AlgorithmName>, out: &mut Vec<u8>) {
    for (at, name) in names.enumerate() {
        if at > 0 {
            out.push(b':');
        }
        match name {
            AlgorithmName::Known(name) => out.extend_from_slice(name.as_bytes()),
            AlgorithmName::Code(code) => out.extend_from_slice(format!("0x{code:04x}").as_bytes()),
        }
    }
}

/// The registry of IANA with OpenSSL's names.
const GROUPS: &[(u16, &str)] = &[
    (19, "prime192v1"),
    (21, "secp224r1"),
    (22, "secp256k1"),
    (23, "prime256v1"),
    (24, "secp384r1"),
    (25, "secp521r1"),
    (26, "brainpoolP256r1"),
    (27, "brainpoolP384r1"),
    (28, "brainpoolP512r1"),
    (29, "X25519"),
    (30, "X448"),
    (31, "brainpoolP256r1tls13"),
    (32, "brainpoolP384r1tls13"),
    (33, "brainpoolP512r1tls13"),
    (256, "ffdhe2048"),
    (257, "ffdhe3072"),
    (258, "ffdhe4096"),
    (259, "ffdhe6144"),
    (260, "ffdhe8192"),
    (0x0200, "MLKEM512"),
    (0x0201, "MLKEM768"),
    (0x0202, "MLKEM1024"),
    (0x11eb, "SecP256r1MLKEM768"),
    (0x11ec, "X25519MLKEM768"),
    (0x11ed, "SecP384r1MLKEM1024"),
];

/// The registry of IANA.
const SCHEMES: &[(u16, &str)] = &[
    (0x0201, "rsa_pkcs1_sha1"),
    (0x0203, "ecdsa_sha1"),
    (0x0401, "rsa_pkcs1_sha256"),
    (0x0403, "ecdsa_secp256r1_sha256"),
    (0x0501, "rsa_pkcs1_sha384"),
    (0x0503, "ecdsa_secp384r1_sha384"),
    (0x0601, "rsa_pkcs1_sha512"),
    (0x0603, "ecdsa_secp521r1_sha512"),
    (0x0804, "rsa_pss_rsae_sha256"),
    (0x0805, "rsa_pss_rsae_sha384"),
    (0x0806, "rsa_pss_rsae_sha512"),
    (0x0807, "ed25519"),
    (0x0808, "ed448"),
    (0x0809, "rsa_pss_pss_sha256"),
    (0x080a, "rsa_pss_pss_sha384"),
    (0x080b, "rsa_pss_pss_sha512"),
    (0x0904, "mldsa44"),
    (0x0905, "mldsa65"),
    (0x0906, "mldsa87"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, expected) in [
            (suite(CipherSuite::TLS13_AES_128_GCM_SHA256), "TLS_AES_128_GCM_SHA256"),
            (suite(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384), "ECDHE-RSA-AES256-GCM-SHA384"),
            (
                suite(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
                "ECDHE-ECDSA-CHACHA20-POLY1305",
            ),
            (suite(CipherSuite::Unknown(0x1a1a)), "0x1a1a"),
            (protocol(ProtocolVersion::TLSv1_3), "TLSv1.3"),
            (protocol(ProtocolVersion::TLSv1_2), "TLSv1.2"),
            (protocol(ProtocolVersion::Unknown(0x7f1c)), "0x7f1c"),
            (group(NamedGroup::X25519), "X25519"),
            (group(NamedGroup::secp256r1), "prime256v1"),
            (group(NamedGroup::X25519MLKEM768), "X25519MLKEM768"),
            (group(NamedGroup::Unknown(0x00ff)), "0x00ff"),
            (scheme(SignatureScheme::RSA_PSS_SHA256), "rsa_pss_rsae_sha256"),
            (scheme(SignatureScheme::ECDSA_NISTP256_SHA256), "ecdsa_secp256r1_sha256"),
            (scheme(SignatureScheme::Unknown(0x0a0a)), "0x0a0a"),
        ] {
            assert_eq!(name.to_string(), expected);
        }
    }

    #[test]
    fn names_of_offered_algorithms() {
        let mut out = b"was here: ".to_vec();
        let offered = [0x2a2a, 0x1301, 0xc02f, 0x002f, 0x00ff].map(CipherSuite::from);
        suites(&offered, &mut out);
        let expected = "was here: 0x2a2a:TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA:TLS_EMPTY_RENEGOTIATION_INFO_SCSV";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        groups(&[0xdada, 0x11ec, 29, 23].map(NamedGroup::from), &mut out);
        assert_eq!(out, b"0xdada:X25519MLKEM768:X25519:prime256v1");
        let mut out = Vec::new();
        groups(&[], &mut out);
        assert_eq!(out, b"");
    }
}
