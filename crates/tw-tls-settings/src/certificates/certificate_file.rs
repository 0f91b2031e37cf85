//! Certificates, keys and other files of TLS that a configuration names. Servers and the clients of upstream servers have them
//! in common.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_conf::{ConfError, MissingFeature, Node, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_rt::secret;
use tw_tls::{Crls, Identity, Key, Passwords, Zeroizing, authorities, chain};

pub use super::late_key::FirstSignature;
use super::late_key::LateKey;

/// Beginning of a name in whose place the content of the file stands.
pub(super) const DATA: &[u8] = b"data:";
/// Kind of shared objects of keys.
pub(super) const KEY: &str = "tls key";

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

/// Content of a file in parsed form, which all of a configuration share, and the next one as long as the file stays the same.
pub(super) struct ParsedFile<T> {
    /// Digest of the content.
    pub(super) digest: [u8; 32],
    pub(super) parsed: T,
}

/// A certificate and its key as all servers share them that name the same files.
struct SharedIdentity {
    chain: Arc<ParsedFile<Vec<CertificateDer<'static>>>>,
    key: Arc<ParsedFile<LateKey>>,
    identity: Identity,
}

/// Reads and parses a file, unless that has been done for this configuration, or for the one before with the same content. `name` is
/// that of the shared object, `what` the kind of file in messages.
fn parsed_file<T: Send + Sync + 'static, P: Protocol>(
    name: &[u8],
    word: &Word,
    what: &str,
    loaded: &str,
    cx: &mut Resolve<'_, P>,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<Arc<ParsedFile<T>>, ConfError> {
    if let Some(file) = cx.find(name) {
        return Ok(file);
    }
    let text = contents(word, what, cx)?;
    let shown = shown(word, cx);
    let digest = tw_tls::digest([&text[..]]);
    let parse = || match parse(&text) {
        Ok(parsed) => Ok(ParsedFile { digest, parsed }),
        Err(error) => Err(ConfError::new(format!("cannot load {loaded} \"{shown}\": {error}")).at(word.span)),
    };
    cx.try_keep(name, |known_file: &ParsedFile<T>| known_file.digest == digest, parse)
}

/// Name of the shared object that is made of a file.
pub(super) fn object_name<P: Protocol>(kind: &str, word: &Word, cx: &Resolve<'_, P>) -> Vec<u8> {
    let file = match word.bytes.strip_prefix(DATA) {
        // The content may be a key, which is not kept as a name.
        Some(data) => [DATA, &tw_tls::digest([data])].concat(),
        None => cx.conf_path(&word.bytes),
    };
    [kind.as_bytes(), b" ", &file].concat()
}

/// Reads a certificate with its chain, and its key.
///
/// # Errors
/// A file cannot be read or is broken, or the key is that of another certificate.
pub fn identity<P: Protocol>(
    certificate: &Word,
    key: &Word,
    passwords: &Passwords,
    first_signature: FirstSignature,
    cx: &mut Resolve<'_, P>,
) -> Result<Identity, ConfError> {
    let chain_name = object_name("tls chain", certificate, cx);
    let mut key_name = object_name(KEY, key, cx);
    if passwords.iter().next().is_some() {
        // The secret keeps the digest from telling the pass phrases.
        let secret = tw_tls::process_secret::get();
        let parts = std::iter::once(&secret[..]).chain(passwords.iter());
        key_name.push(b' ');
        key_name.extend(tw_tls::digest(parts));
    }
    let chain = parsed_file(&chain_name, certificate, "certificate", "certificate", cx, |text| {
        chain(text).map_err(|error| error.to_string())
    })?;
    let private = parsed_file(&key_name, key, "certificate key", "certificate key", cx, |text| {
        let key = secret::within(|| Key::read(text, passwords)).map_err(|error| error.to_string())?;
        Ok(LateKey::wrap(key))
    })?;
    if first_signature == FirstSignature::WhenLoaded {
        private.parsed.make_first_signature();
    }
    let name = [&b"tls identity "[..], &chain_name, b" ", &key_name].concat();
    let is_same = |shared_identity: &SharedIdentity| {
        Arc::ptr_eq(&shared_identity.chain, &chain) && Arc::ptr_eq(&shared_identity.key, &private)
    };
    let messages = (shown(certificate, cx), shown(key, cx));
    let shared = cx.try_keep(&name, is_same, || {
        match Identity::new(chain.parsed.clone(), private.parsed.key()) {
            Ok(identity) => Ok(SharedIdentity { chain: chain.clone(), key: private.clone(), identity }),
            Err(error) => {
                let (certificate_name, key_name) = &messages;
                let message = format!(
                    "cannot use certificate key \"{key_name}\" with certificate \"{certificate_name}\": {error}"
                );
                Err(ConfError::new(message).at(key.span))
            }
        }
    })?;
    Ok(shared.identity.clone())
}

/// Parses the texts of a certificate and its key; the error is a line of the log, with the names of the files. Away from loops
/// the caller keeps the key [within](secret::within) the vault.
pub(super) fn paired(
    certificate: &[u8],
    key: &[u8],
    passwords: &Passwords,
    certificate_name: &str,
    key_name: &str,
) -> Result<Identity, String> {
    let chain = chain(certificate)
        .map_err(|error| format!("cannot load certificate \"{certificate_name}\": {error}"))?;
    let key = Key::read(key, passwords)
        .map_err(|error| format!("cannot load certificate key \"{key_name}\": {error}"))?;
    key.make_first_signature();
    Identity::new(chain, key).map_err(|error| {
        format!("cannot use certificate key \"{key_name}\" with certificate \"{certificate_name}\": {error}")
    })
}

/// Reads certificate revocation lists.
///
/// # Errors
/// The file cannot be read or is broken.
pub fn crls<P: Protocol>(word: &Word, cx: &mut Resolve<'_, P>) -> Result<Arc<Crls>, ConfError> {
    let name = object_name("tls crls", word, cx);
    let file = parsed_file(&name, word, "CRL", "CRL", cx, |text| {
        Crls::read(text).map(Arc::new).map_err(|error| error.to_string())
    })?;
    Ok(file.parsed.clone())
}

/// Reads certificates of trusted authorities.
///
/// # Errors
/// The file cannot be read or is broken.
pub fn trusted<P: Protocol>(
    word: &Word,
    cx: &mut Resolve<'_, P>,
) -> Result<Vec<CertificateDer<'static>>, ConfError> {
    let name = object_name("tls authorities", word, cx);
    let file = parsed_file(&name, word, "certificate", "trusted certificates", cx, |text| {
        authorities(text).map_err(|error| error.to_string())
    })?;
    Ok(file.parsed.clone())
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
