//! Directives of TLS to upstream servers, for every module that has them: their names differ in a prefix.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Contexts, Directive, Node, Word, record};
use tw_tls_settings::{CertificateCache, certificate_file};

use crate::upstream_tls::RawUpstreamTls;

pub use tw_tls_settings::read_protocol_versions;

/// Directives of TLS of a module, whose settings as written are `Self`.
pub trait UpstreamTlsDirectives: Sized + 'static {
    /// nginx's name of the module, for messages.
    const MODULE: &'static str;
    /// Default of `ssl_name`, in words.
    const TLS_NAME: &'static str;
    /// Contexts in which the directives may stand.
    const TLS_CONTEXTS: Contexts;

    /// Settings of TLS as written.
    fn upstream_tls(&mut self) -> &mut RawUpstreamTls;

    /// Records of the directives, named without the prefix of the module.
    const TLS: &'static [Directive<Self>] = &[
        record::new("ssl_name", "name", Self::TLS_CONTEXTS, Args::exact(1))
            .default(Self::TLS_NAME)
            .since("1.7.0")
            .doc("The name that an upstream server's certificate must be for, and that it is told; may hold variables.")
            .set(|raw, node, _| raw.upstream_tls().name.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_server_name", Self::TLS_CONTEXTS)
            .default("off")
            .since("1.7.0")
            .doc("Sends the name to upstream servers (SNI).")
            .set(|raw, node, _| raw.upstream_tls().server_name.set_flag(node)),
        record::flag("ssl_verify", Self::TLS_CONTEXTS)
            .default("off")
            .since("1.7.0")
            .doc("Verifies the certificates of upstream servers.")
            .set(|raw, node, _| raw.upstream_tls().verify.set_flag(node)),
        record::number("ssl_verify_depth", Self::TLS_CONTEXTS)
            .default("1")
            .since("1.7.0")
            .doc("Maximum number of intermediate certificates between an upstream server's and a trusted one.")
            .set(|raw, node, _| raw.upstream_tls().verify_depth.set_number(node)),
        record::new("ssl_trusted_certificate", "file", Self::TLS_CONTEXTS, Args::exact(1))
            .since("1.7.0")
            .doc("Authorities that are trusted with the certificates of upstream servers, in PEM.")
            .set(|raw, node, _| raw.upstream_tls().trusted_certificate.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_crl", "file", Self::TLS_CONTEXTS, Args::exact(1))
            .since("1.7.0")
            .doc("Lists of certificates of upstream servers that were revoked, in PEM: one of each authority on the way.")
            .set(|raw, node, _| raw.upstream_tls().crl.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_certificate", "file | data:certificate", Self::TLS_CONTEXTS, Args::exact(1))
            .since("1.7.8")
            .doc("The certificate that upstream servers are shown, and those between it and an authority, in PEM.")
            .set(|raw, node, _| {
                let word = read_file(node, Self::MODULE)?;
                raw.upstream_tls().certificate.set_once(node, word)
            }),
        record::new("ssl_certificate_key", "file | data:key", Self::TLS_CONTEXTS, Args::exact(1))
            .since("1.7.8")
            .doc("The private key of the certificate, in PEM (PKCS#8, PKCS#1 or SEC1).")
            .set(|raw, node, _| {
                let word = read_file(node, Self::MODULE)?;
                raw.upstream_tls().certificate_key.set_once(node, word)
            }),
        record::new(
            "ssl_certificate_cache",
            "off | max=number [inactive=time] [valid=time]",
            Self::TLS_CONTEXTS,
            Args::range(1, 3),
        )
            .default("off")
            .since("1.27.4")
            .doc("Cache for certificates whose file names contain variables: number of entries, time without use, and time until a file is read again.")
            .set(|raw, node, _| {
                let cache = read_certificate_cache(node)?;
                raw.upstream_tls().certificate_cache.set_once(node, cache)
            }),
        record::new("ssl_password_file", "file", Self::TLS_CONTEXTS, Args::exact(1))
            .since("1.7.8")
            .doc("Pass phrases of the private key, one a line, tried in turn.")
            .set(|raw, node, _| raw.upstream_tls().password_file.set_once(node, node.arg(0)?.clone())),
        record::new(
            "ssl_protocols",
            "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]",
            Self::TLS_CONTEXTS,
            Args::at_least(1),
        )
        .default("TLSv1.2 TLSv1.3")
        .since("1.5.6")
        .doc("Protocol versions. Versions before TLSv1.2 are accepted with a warning and never offered.")
        .set(|raw, node, _| raw.upstream_tls().protocols.set_with(node, read_protocol_versions)),
        record::new("ssl_ciphers", "ciphers", Self::TLS_CONTEXTS, Args::exact(1))
            .default("DEFAULT")
            .since("1.5.6")
            .doc("Cipher suites for TLSv1.2, by their OpenSSL names; only suites with forward secrecy are offered.")
            .set(|raw, node, _| raw.upstream_tls().ciphers.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_session_reuse", Self::TLS_CONTEXTS)
            .default("on")
            .doc("Resumes sessions with upstream servers.")
            .set(|raw, node, _| raw.upstream_tls().session_reuse.set_flag(node)),
        record::new("ssl_key_log", "path", Self::TLS_CONTEXTS, Args::exact(1))
            .since("1.27.2")
            .doc("Secrets of connections to upstream servers go to this file, so that somebody can read what was sent: not for production.")
            .set(|raw, node, _| raw.upstream_tls().key_log.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_conf_command", "name value", Self::TLS_CONTEXTS, Args::exact(2))
            .since("1.19.4")
            .doc("OpenSSL configuration command: MinProtocol, MaxProtocol, CipherString, Ciphersuites, Curves, Groups, Options.")
            .set(|raw, node, _| {
                let [name, value] = node.words()?;
                raw.upstream_tls().conf_command.push(node, (name.clone(), value.clone()));
                Ok(())
            }),
    ];
}

/// Reads the name of a certificate or a key for a directive of `module`.
///
/// # Errors
/// A kind of name that is not supported.
fn read_file(node: &Node, module: &'static str) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    certificate_file::check_name(node, word, module)?;
    Ok(word.clone())
}

/// Reads the size and the times of a cache for certificates.
///
/// # Errors
/// nginx's, for a value that is not valid.
fn read_certificate_cache(node: &Node) -> Result<Option<Arc<CertificateCache>>, ConfError> {
    CertificateCache::parse(node)
}
