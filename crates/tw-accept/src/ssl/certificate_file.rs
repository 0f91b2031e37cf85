//! Certificates, keys and other files of TLS that a configuration names. Servers and the clients of upstream servers have them
//! in common.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_conf::{ConfError, MissingFeature, Node, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_rt::secret;
use tw_tls::{Crls, Identity, Key, Passwords, Zeroizing, authorities, chain};

/// Beginning of a name in whose place the content of the file stands.
pub(super) const DATA: &[u8] = b"data:";

/// Refuses names of keys in engines and stores of OpenSSL, which do not exist here.
///
/// # Errors
/// The name is such a one.
pub fn check_name(node: &Node, word: &Word, module: &'static str) -> Result<(), ConfError> {
    let missing = match &*word.bytes {
        value if value.starts_with(b"engine:") || value.starts_with(b"store:") => {
            "keys of OpenSSL's engines and stores"
        }
        _ => return Ok(()),
    };
    let message = format!("{missing} are not supported by this version of Tailwater: \"{word}\"");
    Err(node.fail(message).at(word.span).missing(MissingFeature::new(missing, module)))
}

/// Reads pass phrases of keys from a file, if one is given.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn passwords<P: Protocol>(file: Option<&Word>, cx: &Resolve<'_, P>) -> Result<Passwords, ConfError> {
    let Some(file) = file else { return Ok(Passwords::default()) };
    let text = contents(file, "password file", cx)?;
    Passwords::read(&text)
        .map_err(|error| ConfError::new(format!("{error} in \"{}\"", shown(file, cx))).at(file.span))
}

/// Reads a certificate with its chain, and its key.
///
/// # Errors
/// A file cannot be read or is broken, or the key is that of another certificate.
pub fn identity<P: Protocol>(
    certificate: &Word,
    key: &Word,
    passwords: &Passwords,
    cx: &Resolve<'_, P>,
) -> Result<Identity, ConfError> {
    let cannot = |what: &str, word: &Word, error: &dyn fmt::Display| {
        ConfError::new(format!("cannot load {what} \"{}\": {error}", shown(word, cx))).at(word.span)
    };
    let chain = chain(&contents(certificate, "certificate", cx)?)
        .map_err(|error| cannot("certificate", certificate, &error))?;
    let text = contents(key, "certificate key", cx)?;
    let private = secret::within(|| Key::read(&text, passwords))
        .map_err(|error| cannot("certificate key", key, &error))?;
    Identity::new(chain, private).map_err(|error| {
        let message = format!(
            "cannot use certificate key \"{}\" with certificate \"{}\": {error}",
            shown(key, cx),
            shown(certificate, cx)
        );
        ConfError::new(message).at(key.span)
    })
}

/// Parses the texts of a certificate and its key; the error is a line of the log, with the names of the files. Away from loops
/// the caller keeps the key [within](secret::within) the vault.
pub(super) fn paired(
    certificate: &[u8],
    key: &[u8],
    passwords: &Passwords,
    (certificate_name, key_name): (&str, &str),
) -> Result<Identity, String> {
    let chain = chain(certificate)
        .map_err(|error| format!("cannot load certificate \"{certificate_name}\": {error}"))?;
    let key = Key::read(key, passwords)
        .map_err(|error| format!("cannot load certificate key \"{key_name}\": {error}"))?;
    Identity::new(chain, key).map_err(|error| {
        format!("cannot use certificate key \"{key_name}\" with certificate \"{certificate_name}\": {error}")
    })
}

/// Reads certificate revocation lists.
///
/// # Errors
/// The file cannot be read or is broken.
pub fn crls<P: Protocol>(word: &Word, cx: &Resolve<'_, P>) -> Result<Arc<Crls>, ConfError> {
    let crls = Crls::read(&contents(word, "CRL", cx)?).map_err(|error| {
        ConfError::new(format!("cannot load CRL \"{}\": {error}", shown(word, cx))).at(word.span)
    })?;
    Ok(Arc::new(crls))
}

/// Reads certificates of trusted authorities.
///
/// # Errors
/// The file cannot be read or is broken.
pub fn trusted<P: Protocol>(
    word: &Word,
    cx: &Resolve<'_, P>,
) -> Result<Vec<CertificateDer<'static>>, ConfError> {
    authorities(&contents(word, "certificate", cx)?).map_err(|error| {
        let message = format!("cannot load trusted certificates \"{}\": {error}", shown(word, cx));
        ConfError::new(message).at(word.span)
    })
}

/// Name of a file in messages.
pub fn shown<P: Protocol>(word: &Word, cx: &Resolve<'_, P>) -> String {
    match word.bytes.starts_with(DATA) {
        true => "data:...".to_owned(),
        false => String::from_utf8_lossy(&cx.conf_path(&word.bytes)).into_owned(),
    }
}

/// Returns the bytes of a file, or those that stand in its place. They are wiped when dropped, because they may be a key.
///
/// # Errors
/// The file cannot be read.
pub fn contents<P: Protocol>(
    word: &Word,
    what: &str,
    cx: &Resolve<'_, P>,
) -> Result<Zeroizing<Vec<u8>>, ConfError> {
    match word.bytes.strip_prefix(DATA) {
        Some(data) => Ok(Zeroizing::new(data.to_vec())),
        None => cx.read_file(&word.bytes).map(Zeroizing::new).map_err(|error| {
            let errno = tw_base::Errno::from(&error);
            let message = format!("cannot load {what} \"{}\": open() failed ({errno})", shown(word, cx));
            ConfError::new(message).at(word.span)
        }),
    }
}
