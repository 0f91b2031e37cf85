//! ACME certificates in `ssl_certificate` and `ssl_certificate_key`.

use std::sync::Arc;

use tw_acme::CurrentCertificate;
use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;

use crate::protocol::SecureProtocol;

/// In `ssl_certificate`: the ACME certificate of the server.
const CERTIFICATE: &str = "$acme_certificate";
/// In `ssl_certificate_key`: its key.
const KEY: &str = "$acme_certificate_key";

/// True if either word names the ACME certificate or its key.
pub(crate) fn is_acme(certificate: &Word, key: &Word) -> bool {
    certificate.is(CERTIFICATE) || key.is(KEY)
}

// DIFF(nginx): these words are known when the configuration is loaded: there is no handshake that fails for want of them.
/// Current ACME certificate, if `ssl_certificate` and its key name that.
pub(crate) fn current<P: SecureProtocol>(
    certificate: &Word,
    key: &Word,
    cx: &Resolve<'_, P>,
) -> Result<Option<Arc<CurrentCertificate>>, ConfError> {
    let fail = |word: &Word, what: String| Err(ConfError::new(what).at(word.span));
    match (certificate.is(CERTIFICATE), key.is(KEY)) {
        (false, false) => Ok(None),
        (true, true) => match P::acme_certificate(&cx.block) {
            Some(certificate) => Ok(Some(certificate.clone())),
            None => fail(certificate, format!("no \"acme_certificate\" is defined for \"{CERTIFICATE}\"")),
        },
        (true, false) => fail(key, format!("\"{CERTIFICATE}\" takes the key \"{KEY}\"")),
        (false, true) => fail(certificate, format!("\"{KEY}\" takes the certificate \"{CERTIFICATE}\"")),
    }
}
