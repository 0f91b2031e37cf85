//! TLS settings of requests that this program makes by itself, over HTTP/1.1: to authorities that issue certificates, and to a status page.

use std::sync::Arc;

use rustls::ClientConfig;

use crate::chain::authorities;
use crate::settings::Settings;
use crate::upstream::Upstream;
use crate::verify::{Authorities, Purpose, Trust};

/// Files in which systems have the certificates of authorities that all trust.
pub const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Certificates between that of a server and one that is trusted, as OpenSSL has it.
const DEPTH_MAX: u32 = 100;

/// Creates the settings for a server with a certificate of one of these issuers, in PEM; `None` disables verification.
///
/// # Errors
/// The text has no certificates.
pub fn client_config(trusted: Option<&[u8]>) -> Result<Arc<ClientConfig>, String> {
    let verifier = match trusted {
        None => Upstream::unverified(),
        Some(text) => {
            let trusted = authorities(text).map_err(|error| error.to_string())?;
            let authorities = Arc::new(Authorities::new(trusted).map_err(|error| error.to_string())?);
            Upstream::verified(Trust { authorities, crls: None, depth: DEPTH_MAX, purpose: Purpose::Server })
        }
    };
    let settings = Settings::default();
    let builder = ClientConfig::builder_with_provider(settings.provider())
        .with_protocol_versions(settings.protocols.versions())
        .map_err(|error| error.to_string())?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_certificates_are_read_at_start() {
        assert!(client_config(None).is_ok());
        assert!(client_config(Some(b"nothing")).is_err());
        let authority = tw_testkit::tls::Authority::new();
        assert!(client_config(Some(authority.pem().as_bytes())).is_ok());
    }
}
