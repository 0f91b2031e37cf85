//! What servers and the clients of upstream servers have in common: words, and files that a configuration names.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_conf::{ConfError, MissingFeature, Node, Word};
use tw_rt::secret;
use tw_tls::words::{Command, Flag, Protocol, Switch, ciphers, conf_command, groups, protocols};
use tw_tls::{Crls, Identity, Key, Passwords, Settings, Zeroizing, authorities, chain};

use crate::load::Resolve;

/// What a name in place of a file begins with if it is the content.
pub(super) const DATA: &[u8] = b"data:";

/// What is to be offered in handshakes, as written.
pub(crate) struct ConfiguredCertificate<'a> {
    /// What the directives begin with.
    pub(crate) prefix: &'a str,
    pub(crate) protocols: &'a [Word],
    pub(crate) ciphers: Option<&'a Word>,
    pub(crate) curve: Option<&'a Word>,
    pub(crate) commands: &'a [(Word, Word)],
}

impl ConfiguredCertificate<'_> {
    /// What it comes to. `switch` is told of the command Options.
    pub(crate) fn settings(
        &self,
        cx: &mut Resolve<'_>,
        mut switch: impl FnMut(Flag, Switch),
    ) -> Result<Settings, ConfError> {
        let mut settings = Settings::default();
        if let [first, ..] = self.protocols {
            let words: Vec<_> = self.protocols.iter().map(|word| word.lossy()).collect();
            let (offered, selected) = protocols(words.iter().map(|word| &**word)).map_err(|error| {
                ConfError::new(format!("invalid value in \"{}protocols\": {error}", self.prefix))
                    .at(first.span)
            })?;
            note(cx, first, selected.note());
            settings.protocols = offered;
        }
        if let Some(word) = self.ciphers {
            let selected = ciphers(&word.lossy()).map_err(failed(word, "SSL_CTX_set_cipher_list"))?;
            note(cx, word, selected.note());
            settings.ciphers = selected.chosen;
        }
        if let Some(word) = self.curve.filter(|word| !word.is("auto")) {
            let selected = groups(&word.lossy()).map_err(failed(word, "SSL_CTX_set1_curves_list"))?;
            note(cx, word, selected.note());
            settings.groups = selected.chosen;
        }
        let (mut min, mut max): (Option<Protocol>, Option<Protocol>) = (None, None);
        for (name, value) in self.commands {
            let command = conf_command(&name.lossy(), &value.lossy()).map_err(failed_command(name, value))?;
            match command {
                Command::MinProtocol(protocol) => min = protocol,
                Command::MaxProtocol(protocol) => max = protocol,
                Command::Ciphersuites(selected) => {
                    note(cx, value, selected.note());
                    settings.ciphersuites = selected.chosen;
                }
                Command::CipherString(selected) => {
                    note(cx, value, selected.note());
                    settings.ciphers = selected.chosen;
                }
                Command::Groups(selected) => {
                    note(cx, value, selected.note());
                    settings.groups = selected.chosen;
                }
                // DIFF(nginx): schemes bound what a server signs with, not what it or a client accepts of others.
                Command::SignatureAlgorithms(_) | Command::NumTickets(_) if self.prefix != "ssl_" => {
                    cx.warn(name.span, format!("\"{name}\" has no effect on connections to other servers"));
                }
                Command::SignatureAlgorithms(selected) => {
                    note(cx, value, selected.note());
                    settings.signature_algorithms = Some(selected.chosen);
                }
                Command::NumTickets(count) => settings.num_tickets = Some(count),
                Command::Options(selected) => {
                    note(cx, value, selected.note());
                    // DIFF(nginx): what is sent with `sendfile` over TLS is copied.
                    if selected.chosen.contains(&(Flag::Ktls, Switch::On)) {
                        cx.warn(
                            value.span,
                            "\"KTLS\" has no effect: what is sent is encrypted here, not by the kernel",
                        );
                    }
                    selected.chosen.into_iter().for_each(|(flag, to)| switch(flag, to));
                }
            }
        }
        if let Some((name, value)) = self.commands.last() {
            settings.protocols = settings
                .protocols
                .within(min, max)
                .ok_or_else(|| failed_command(name, value)("no version of the protocol remains"))?;
        }
        Ok(settings)
    }
}

/// Refuses names of certificates and keys that mean something which is not there.
pub(crate) fn check_name(node: &Node, word: &Word, module: &'static str) -> Result<(), ConfError> {
    let missing = match &*word.bytes {
        value if value.starts_with(b"engine:") || value.starts_with(b"store:") => {
            "keys of OpenSSL's engines and stores"
        }
        _ => return Ok(()),
    };
    let message = format!("{missing} are not supported by this version of Tailwater: \"{word}\"");
    Err(node.fail(message).at(word.span).missing(MissingFeature::new(missing, module)))
}

fn note(cx: &mut Resolve<'_>, word: &Word, note: Option<String>) {
    if let Some(note) = note {
        cx.warn(word.span, note);
    }
}

fn failed<E: fmt::Display>(word: &Word, call: &'static str) -> impl FnOnce(E) -> ConfError {
    move |error| ConfError::new(format!("{call}(\"{word}\") failed (SSL: {error})")).at(word.span)
}

fn failed_command<E: fmt::Display>(name: &Word, value: &Word) -> impl FnOnce(E) -> ConfError {
    move |error| {
        ConfError::new(format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: {error})")).at(name.span)
    }
}

/// The pass phrases of a file; none without one.
pub(crate) fn passwords(file: Option<&Word>, cx: &Resolve<'_>) -> Result<Passwords, ConfError> {
    let Some(file) = file else { return Ok(Passwords::default()) };
    let text = contents(file, "password file", cx)?;
    Passwords::read(&text)
        .map_err(|error| ConfError::new(format!("{error} in \"{}\"", shown(file, cx))).at(file.span))
}

/// A certificate with its chain, and its key.
pub(crate) fn identity(
    certificate: &Word,
    key: &Word,
    passwords: &Passwords,
    cx: &Resolve<'_>,
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

/// The same of texts, whose names are said where something is wrong: a line of the log. Who does it on no loop has the key
/// [within](secret::within) the vault.
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

/// Lists of what was revoked.
pub(crate) fn crls(word: &Word, cx: &Resolve<'_>) -> Result<Arc<Crls>, ConfError> {
    let crls = Crls::read(&contents(word, "CRL", cx)?).map_err(|error| {
        ConfError::new(format!("cannot load CRL \"{}\": {error}", shown(word, cx))).at(word.span)
    })?;
    Ok(Arc::new(crls))
}

/// Authorities that are trusted.
pub(crate) fn trusted(word: &Word, cx: &Resolve<'_>) -> Result<Vec<CertificateDer<'static>>, ConfError> {
    authorities(&contents(word, "certificate", cx)?).map_err(|error| {
        let message = format!("cannot load trusted certificates \"{}\": {error}", shown(word, cx));
        ConfError::new(message).at(word.span)
    })
}

/// How a file is called in messages.
pub(crate) fn shown(word: &Word, cx: &Resolve<'_>) -> String {
    match word.bytes.starts_with(DATA) {
        true => "data:...".to_owned(),
        false => String::from_utf8_lossy(&cx.conf_path(&word.bytes)).into_owned(),
    }
}

/// The bytes of a file, or those that stand in place of one.
/// To be wiped, because it may be a key.
pub(crate) fn contents(word: &Word, what: &str, cx: &Resolve<'_>) -> Result<Zeroizing<Vec<u8>>, ConfError> {
    match word.bytes.strip_prefix(DATA) {
        Some(data) => Ok(Zeroizing::new(data.to_vec())),
        None => cx.read_file(&word.bytes).map(Zeroizing::new).map_err(|error| {
            let errno = tw_base::Errno::from(&error);
            let message = format!("cannot load {what} \"{}\": open() failed ({errno})", shown(word, cx));
            ConfError::new(message).at(word.span)
        }),
    }
}
