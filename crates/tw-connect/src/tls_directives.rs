//! Directives of TLS to upstream servers, for every module that has them: their names differ in a prefix.

use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_tls_settings::{CertificateCache, certificate_file};

pub use tw_tls_settings::read_protocol_versions;

/// Records of the directives with a prefix, of this module, in these contexts; `name` is the default of `ssl_name` in words. The last
/// argument leads from the settings as written to their [`RawUpstreamTls`](crate::upstream_tls::RawUpstreamTls).
#[macro_export]
macro_rules! upstream_tls_directives {
    ($prefix:literal, $module:literal, $name:expr, $contexts:expr, $raw:ident => $tls:expr) => {{
        use tw_conf::{Args, record};
        const ALL: u32 = $contexts;
        &[
            record::new(concat!($prefix, "ssl_name"), "name", ALL, Args::exact(1))
                .default($name)
                .since("1.7.0")
                .doc("The name that an upstream server's certificate must be for, and that it is told; may hold variables.")
                .set(|$raw, node, _| $tls.name.set_once(node, node.arg(0)?.clone())),
            record::flag(concat!($prefix, "ssl_server_name"), ALL)
                .default("off")
                .since("1.7.0")
                .doc("Sends the name to upstream servers (SNI).")
                .set(|$raw, node, _| $tls.server_name.set_flag(node)),
            record::flag(concat!($prefix, "ssl_verify"), ALL)
                .default("off")
                .since("1.7.0")
                .doc("Verifies the certificates of upstream servers.")
                .set(|$raw, node, _| $tls.verify.set_flag(node)),
            record::number(concat!($prefix, "ssl_verify_depth"), ALL)
                .default("1")
                .since("1.7.0")
                .doc("Maximum number of intermediate certificates between an upstream server's and a trusted one.")
                .set(|$raw, node, _| $tls.verify_depth.set_number(node)),
            record::new(concat!($prefix, "ssl_trusted_certificate"), "file", ALL, Args::exact(1))
                .since("1.7.0")
                .doc("Authorities that are trusted with the certificates of upstream servers, in PEM.")
                .set(|$raw, node, _| $tls.trusted_certificate.set_once(node, node.arg(0)?.clone())),
            record::new(concat!($prefix, "ssl_crl"), "file", ALL, Args::exact(1))
                .since("1.7.0")
                .doc("Lists of certificates of upstream servers that were revoked, in PEM: one of each authority on the way.")
                .set(|$raw, node, _| $tls.crl.set_once(node, node.arg(0)?.clone())),
            record::new(concat!($prefix, "ssl_certificate"), "file | data:certificate", ALL, Args::exact(1))
                .since("1.7.8")
                .doc("The certificate that upstream servers are shown, and those between it and an authority, in PEM.")
                .set(|$raw, node, _| {
                    let word = $crate::tls_directives::read_file(node, $module)?;
                    $tls.certificate.set_once(node, word)
                }),
            record::new(concat!($prefix, "ssl_certificate_key"), "file | data:key", ALL, Args::exact(1))
                .since("1.7.8")
                .doc("The private key of the certificate, in PEM (PKCS#8, PKCS#1 or SEC1).")
                .set(|$raw, node, _| {
                    let word = $crate::tls_directives::read_file(node, $module)?;
                    $tls.certificate_key.set_once(node, word)
                }),
            record::new(
                concat!($prefix, "ssl_certificate_cache"),
                "off | max=number [inactive=time] [valid=time]",
                ALL,
                Args::range(1, 3),
            )
                .default("off")
                .since("1.27.4")
                .doc("Cache for certificates whose file names contain variables: number of entries, time without use, and time until a file is read again.")
                .set(|$raw, node, _| {
                    let cache = $crate::tls_directives::read_certificate_cache(node)?;
                    $tls.certificate_cache.set_once(node, cache)
                }),
            record::new(concat!($prefix, "ssl_password_file"), "file", ALL, Args::exact(1))
                .since("1.7.8")
                .doc("Pass phrases of the private key, one a line, tried in turn.")
                .set(|$raw, node, _| $tls.password_file.set_once(node, node.arg(0)?.clone())),
            record::new(
                concat!($prefix, "ssl_protocols"),
                "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]",
                ALL,
                Args::at_least(1),
            )
            .default("TLSv1.2 TLSv1.3")
            .since("1.5.6")
            .doc("Protocol versions. Versions before TLSv1.2 are accepted with a warning and never offered.")
            .set(|$raw, node, _| $tls.protocols.set_with(node, $crate::tls_directives::read_protocol_versions)),
            record::new(concat!($prefix, "ssl_ciphers"), "ciphers", ALL, Args::exact(1))
                .default("DEFAULT")
                .since("1.5.6")
                .doc("Cipher suites for TLSv1.2, by their OpenSSL names; only suites with forward secrecy are offered.")
                .set(|$raw, node, _| $tls.ciphers.set_once(node, node.arg(0)?.clone())),
            record::flag(concat!($prefix, "ssl_session_reuse"), ALL)
                .default("on")
                .doc("Resumes sessions with upstream servers.")
                .set(|$raw, node, _| $tls.session_reuse.set_flag(node)),
            record::new(concat!($prefix, "ssl_key_log"), "path", ALL, Args::exact(1))
                .since("1.27.2")
                .doc("Secrets of connections to upstream servers go to this file, so that somebody can read what was sent: not for production.")
                .set(|$raw, node, _| $tls.key_log.set_once(node, node.arg(0)?.clone())),
            record::new(concat!($prefix, "ssl_conf_command"), "name value", ALL, Args::exact(2))
                .since("1.19.4")
                .doc("OpenSSL configuration command: MinProtocol, MaxProtocol, CipherString, Ciphersuites, Curves, Groups, Options.")
                .set(|$raw, node, _| {
                    let [name, value] = node.words()?;
                    $tls.conf_command.push(node, (name.clone(), value.clone()));
                    Ok(())
                }),
        ]
    }};
}

/// Reads the name of a certificate or a key for a directive of `module`.
///
/// # Errors
/// A kind of name that is not supported.
pub fn read_file(node: &Node, module: &'static str) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    certificate_file::check_name(node, word, module)?;
    Ok(word.clone())
}

/// Reads the size and the times of a cache for certificates.
///
/// # Errors
/// nginx's, for a value that is not valid.
pub fn read_certificate_cache(node: &Node) -> Result<Option<Arc<CertificateCache>>, ConfError> {
    CertificateCache::parse(node)
}
