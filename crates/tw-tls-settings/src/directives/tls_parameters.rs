//! Parameters of handshakes as directives give them: versions, cipher suites, groups, commands of OpenSSL. Servers and the
//! clients of upstream servers have them in common.

use std::fmt;

use tw_conf::{ConfError, Node, Span, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls::Settings;
use tw_tls::words::{
    self, Command, Flag, Switch, ciphers, conf_command, groups, has_post_quantum, protocols,
};

/// Handshake parameters as written.
pub struct TlsParameters<'a> {
    /// Common beginning of the directives' names: `ssl_`, `proxy_ssl_`.
    pub prefix: &'a str,
    /// `ssl_protocols`
    pub protocols: &'a [Word],
    /// `ssl_ciphers`
    pub ciphers: Option<&'a Word>,
    /// `ssl_ecdh_curve`
    pub curve: Option<&'a Word>,
    /// `ssl_conf_command`: names and values.
    pub commands: &'a [(Word, Word)],
}

impl TlsParameters<'_> {
    /// Turns them into settings. Flags of the command `Options` go to `switch`.
    ///
    /// # Errors
    /// A word is unknown, or nothing that is safe remains.
    pub fn settings<P: Protocol>(
        &self,
        cx: &mut Resolve<'_, P>,
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
        let mut group_list: Option<Span> = None;
        if let Some(word) = self.curve.filter(|word| !word.is("auto")) {
            let selected = groups(&word.lossy()).map_err(failed(word, "SSL_CTX_set1_curves_list"))?;
            note(cx, word, selected.note());
            group_list = Some(word.span);
            settings.groups = selected.chosen;
        }
        let (mut min, mut max): (Option<words::Protocol>, Option<words::Protocol>) = (None, None);
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
                    group_list = Some(value.span);
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
                            "\"KTLS\" has no effect: the server encrypts itself, the kernel does not",
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
        if let Some(span) = group_list.filter(|_| self.prefix == "ssl_") {
            report_missing_post_quantum(&settings, span, cx);
        }
        Ok(settings)
    }
}

/// Reads the arguments of `ssl_protocols`.
///
/// # Errors
/// An unknown name.
pub fn read_protocol_versions(node: &Node) -> Result<Vec<Word>, ConfError> {
    let is_unknown = |word: &&Word| words::Protocol::named(&word.lossy()).is_none();
    match node.args.iter().find(is_unknown) {
        Some(word) => Err(node.invalid_value(word)),
        None => Ok(node.args.clone()),
    }
}

/// Reports a list of groups at `span` that switches off what the default has: protection of recorded traffic against quantum computers.
fn report_missing_post_quantum<P: Protocol>(settings: &Settings, span: Span, cx: &mut Resolve<'_, P>) {
    // Only TLSv1.3 has such groups.
    if settings.protocols != words::Protocols::Only12 && !has_post_quantum(&settings.groups) {
        let message = "the list of groups has no post-quantum key exchange, which the default has";
        let hint = "begin the list with X25519MLKEM768, or leave it out";
        cx.report(ConfError::notice(message).at(span).hint(hint));
    }
}

fn note<P: Protocol>(cx: &mut Resolve<'_, P>, word: &Word, note: Option<String>) {
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
