//! Offer in handshakes: versions, cipher suites and groups, for servers and clients.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{SignatureScheme, SupportedCipherSuite};

use crate::words::{Group, Protocol, Protocols, default_ciphers, default_ciphersuites, default_groups};

/// Offer in handshakes; the default is nginx's.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Versions.
    pub protocols: Protocols,
    /// Suites of TLS 1.2, in order of preference.
    pub ciphers: Vec<SupportedCipherSuite>,
    /// Suites of TLS 1.3, in order of preference.
    pub ciphersuites: Vec<SupportedCipherSuite>,
    /// Groups of the key exchange, in order of preference.
    pub groups: Vec<Group>,
    /// Schemes that a server signs with, in order of preference; `None` for all.
    pub signature_algorithms: Option<Vec<SignatureScheme>>,
    /// Number of tickets for a client of TLS 1.3, if configured.
    pub num_tickets: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            protocols: Protocols::Both,
            ciphers: default_ciphers(),
            ciphersuites: default_ciphersuites(),
            groups: default_groups(),
            signature_algorithms: None,
            num_tickets: None,
        }
    }
}

impl Settings {
    /// The provider for a configuration of rustls, with `self.protocols.versions()`. One is made for each kind of
    /// settings, and shared.
    pub fn provider(&self) -> Arc<CryptoProvider> {
        let mut cipher_suites = Vec::new();
        if self.protocols.has(Protocol::Tls13) {
            cipher_suites.extend_from_slice(&self.ciphersuites);
        }
        if self.protocols.has(Protocol::Tls12) {
            cipher_suites.extend_from_slice(&self.ciphers);
        }
        Arc::new(CryptoProvider { cipher_suites, kx_groups: self.groups.clone(), ..default_provider() })
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, ServerConfig};

    use super::*;
    use crate::words::{ciphers, groups};

    #[test]
    fn rustls_accepts_selected_words() {
        for protocols in [Protocols::Both, Protocols::Only12, Protocols::Only13] {
            let settings = Settings {
                protocols,
                ciphers: ciphers("ECDHE+AESGCM").unwrap().chosen,
                groups: groups("X25519").unwrap().chosen,
                ..Settings::default()
            };
            let provider = settings.provider();
            let suites = provider.cipher_suites.len();
            assert_eq!(
                suites,
                match protocols {
                    Protocols::Both => 7,
                    Protocols::Only12 => 4,
                    Protocols::Only13 => 3,
                }
            );
            assert_eq!(provider.kx_groups.len(), 1);
            ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(protocols.versions())
                .unwrap();
            ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(protocols.versions())
                .unwrap();
        }
    }
}
