//! Directives of TLS for servers (nginx: ngx_http_ssl_module, ngx_stream_ssl_module).
//!
//! rustls defines what a server can accept and offer; the words of OpenSSL select among it.

pub(crate) mod inheritance;
pub(crate) mod raw;
pub(crate) mod session_cache;
pub(crate) mod sign_pool;
pub(crate) mod tls_parameters;

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{
    Args, ConfError, Directive, HTTP, MAIL, MAIL_SERVER, Node, SERVER, STREAM, STREAM_SERVER, Setting, Word,
    record,
};
use tw_core::load::Resolve;
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_tls::ClientVerification;

use self::inheritance::Directives;
use self::raw::{EarlyData, Raw};
use self::session_cache::SessionCache;
use self::sign_pool::{POOL, SignPool};
use self::tls_parameters::read_protocol_versions;
use crate::certificates::dynamic_certificate::CertificateCache;
use crate::certificates::{certificate_file, certificate_metrics};
use crate::ocsp::client_ocsp;
use crate::protocol::SecureProtocol;
use crate::server::client_authentication::{self, ClientAuthentication};
use crate::server::server_tls::{self, ServerTls};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time of a TLS handshake in `stream`; in `http`, client_header_timeout includes it.
    directive "ssl_handshake_timeout", "the session ends with status 500";
}

/// TLS settings of one server.
pub struct Ssl<S: Session> {
    directives: Directives,
    level: Level,
    /// Configuration of handshakes; `None` without `ssl_certificate`.
    pub tls: Option<Arc<ServerTls<S>>>,
    /// Authentication of clients by certificates; `None` if it is off. A server without a certificate of its own has it, too: its
    /// handshakes use the certificate of the default server.
    pub clients: Option<ClientAuthentication>,
    /// `ssl_reject_handshake`
    pub reject_handshake: bool,
    /// `ssl_sign_pool`
    pub sign_pool: SignPool,
    /// `ssl_early_data`
    pub early_data: EarlyData,
    /// `ssl_handshake_timeout`
    pub handshake_timeout: Duration,
}

const EARLY_DATA: &[(&str, EarlyData)] =
    &[("off", EarlyData::Off), ("on", EarlyData::Safe), ("any", EarlyData::Any)];

/// Block of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Block of the protocol, such as `http`.
    Protocol,
    /// `server`
    Server,
}

const VERIFY_CLIENT: &[(&str, Option<ClientVerification>)] = &[
    ("off", None),
    ("on", Some(ClientVerification::Required)),
    ("optional", Some(ClientVerification::Optional)),
    ("optional_no_ca", Some(ClientVerification::OptionalNoCa)),
];

const EVERYWHERE: u32 = HTTP | SERVER | STREAM | STREAM_SERVER;
const WITH_MAIL: u32 = EVERYWHERE | MAIL | MAIL_SERVER;
const IN_HTTP: u32 = HTTP | SERVER;
const IN_STREAM: u32 = STREAM | STREAM_SERVER;
const ONE: Args = Args::exact(1);

impl<P: SecureProtocol> Settings<P> for Ssl<P::Session> {
    type Raw = Raw;

    const METRICS: &'static [Metric] = certificate_metrics::METRICS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("ssl_certificate", "file | data:certificate", WITH_MAIL, ONE)
            .doc("The certificate of the server, followed by intermediate certificates, in PEM; once for each type of key. A file name with \
                variables is read in each handshake, with the rights of the worker process.")
            .set(|raw, node, _| push_word(&mut raw.ssl_certificate, node)),
        record::new("ssl_certificate_key", "file | data:key", WITH_MAIL, ONE)
            .doc("The private key of the certificate, in PEM (PKCS#8, PKCS#1 or SEC1).")
            .set(|raw, node, _| push_word(&mut raw.ssl_certificate_key, node)),
        record::new("ssl_password_file", "file", WITH_MAIL, ONE)
            .since("1.7.3")
            .doc("File with pass phrases of private keys, one on each line, tried in order.")
            .set(|raw, node, _| raw.ssl_password_file.set_once(node, node.arg(0)?.clone())),
        record::new(
            "ssl_certificate_cache",
            "off | max=number [inactive=time] [valid=time]",
            WITH_MAIL,
            Args::range(1, 3),
        )
            .default("off")
            .since("1.27.4")
            .doc("Cache for certificates whose file names contain variables: number of entries, time without use, and time until a file is read again.")
            .set(|raw, node, _| {
                let cache = CertificateCache::parse(node)?;
                raw.ssl_certificate_cache.set_once(node, cache)
            }),
        record::flag("ssl_certificate_watch", WITH_MAIL)
            .default("off")
            .since("Tailwater 0.2")
            .doc("Reloads certificates and keys when their files change. If the new pair is invalid or does not match, the old one stays in \
                use.")
            .set(|raw, node, _| raw.ssl_certificate_watch.set_flag(node)),
        record::new("ssl_protocols", "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]", WITH_MAIL, Args::at_least(1))
            .default("TLSv1.2 TLSv1.3")
            .doc("Protocol versions. Versions before TLSv1.2 are accepted with a warning and never offered.")
            .set(|raw, node, _| raw.ssl_protocols.set_with(node, read_protocol_versions)),
        record::new("ssl_ciphers", "ciphers", WITH_MAIL, ONE)
            .default("HIGH:!aNULL:!MD5")
            .doc("Cipher suites for TLSv1.2, by their OpenSSL names; only suites with forward secrecy are offered.")
            .set(|raw, node, _| raw.ssl_ciphers.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_prefer_server_ciphers", WITH_MAIL)
            .default("off")
            .doc("Prefers the cipher order of the server over that of the client.")
            .set(|raw, node, _| raw.ssl_prefer_server_ciphers.set_flag(node)),
        record::new("ssl_ecdh_curve", "curve", WITH_MAIL, ONE)
            .default("auto")
            .since("1.1.0")
            .doc("Groups for the key exchange, in order of preference, separated by colons.")
            .set(|raw, node, _| raw.ssl_ecdh_curve.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_dhparam", "file", WITH_MAIL, ONE)
            .since("0.7.2")
            .doc("Accepted with a warning and without effect: DHE key exchange is not offered.")
            .set(|raw, node, _| raw.ssl_dhparam.set_once(node, node.arg(0)?.clone())),
        record::size("ssl_buffer_size", IN_HTTP)
            .default("16k")
            .since("1.5.9")
            .doc("Maximum size of a TLS record. A client can decrypt a record only after it has received all of it.")
            .set(|raw, node, _| raw.ssl_buffer_size.set_size(node)),
        record::new("ssl_session_cache", "off | none | [builtin[:size]] [shared:name:size]", WITH_MAIL, Args::range(1, 2))
            .default("none")
            .doc("Server-side session cache, shared by all loops; a shared cache survives reloads.")
            .set(|raw, node, _| {
                let cache = SessionCache::read(node)?;
                raw.ssl_session_cache.set_once(node, cache)
            }),
        record::time("ssl_session_timeout", WITH_MAIL)
            .default("5m")
            .doc("Time in which a client may resume a session.")
            .set(|raw, node, _| raw.ssl_session_timeout.set_sec(node)),
        record::flag("ssl_session_tickets", WITH_MAIL)
            .default("on")
            .since("1.5.9")
            .doc("Enables session resumption with tickets.")
            .set(|raw, node, _| raw.ssl_session_tickets.set_flag(node)),
        record::new("ssl_session_ticket_key", "file | fleet=name", WITH_MAIL, ONE)
            .since("1.5.7")
            .doc("File with a ticket key of 48 or 80 random bytes. The first key encrypts tickets, all keys decrypt them. With fleet=name, all nodes of a fleet share keys that it generates and rotates. Without this directive, keys are generated and rotated on each server.")
            .set(|raw, node, _| push_word(&mut raw.ssl_session_ticket_key, node)),
        record::new("ssl_conf_command", "name value", WITH_MAIL, Args::exact(2))
            .since("1.19.4")
            .doc("OpenSSL configuration command: MinProtocol, MaxProtocol, CipherString, Ciphersuites, Curves, Groups, Options.")
            .set(|raw, node, _| {
                raw.ssl_conf_command.push(node, (node.arg(0)?.clone(), node.arg(1)?.clone()));
                Ok(())
            }),
        record::flag("ssl_reject_handshake", EVERYWHERE)
            .default("off")
            .since("1.19.4")
            .doc("Rejects TLS handshakes for the names of this server.")
            .set(|raw, node, _| raw.ssl_reject_handshake.set_flag(node)),
        record::new("ssl_sign_pool", "pool | off", WITH_MAIL, ONE)
            .default(POOL)
            .since("Tailwater 0.2")
            .doc("Thread pool for RSA signatures, which would block an event loop; `off` makes them on the loop. ECDSA signatures are always \
                made on the loop.")
            .set(|raw, node, _| raw.ssl_sign_pool.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_early_data", "on | off | any", IN_HTTP, ONE)
            .default("off")
            .since("1.15.3")
            .doc("Allows returning TLSv1.3 clients to send requests as early data (0-RTT). Requests with unsafe methods get 425, except with `any`.")
            // DIFF(nginx): unsafe requests are rejected until the handshake is complete.
            .set(|raw, node, _| raw.ssl_early_data.set_one_of(node, EARLY_DATA)),
        record::time("ssl_handshake_timeout", IN_STREAM)
            .default("60s")
            .doc("Time in which a TLS handshake must be complete.")
            .set(|raw, node, _| raw.ssl_handshake_timeout.set_msec(node)),
        record::new("ssl_alpn", "protocol …", IN_STREAM, Args::at_least(1))
            .since("1.21.4")
            .doc("Protocols of which a client that offers some (ALPN) has to offer one, in the order of preference.")
            .set(|raw, node, _| {
                let alpn = read_protocols(node)?;
                raw.ssl_alpn.set_once(node, alpn)
            }),
        record::new("ssl_verify_client", "on | off | optional | optional_no_ca", WITH_MAIL, ONE)
            .default("off")
            .doc("Requests client certificates, and decides about clients without one, or with one that is not trusted.")
            .set(|raw, node, _| raw.ssl_verify_client.set_one_of(node, VERIFY_CLIENT)),
        record::number("ssl_verify_depth", WITH_MAIL)
            .default("1")
            .doc("Maximum number of intermediate certificates between a client certificate and a trusted one.")
            .set(|raw, node, _| raw.ssl_verify_depth.set_number(node)),
        record::new("ssl_client_certificate", "file", WITH_MAIL, ONE)
            .doc("Trusted CA certificates for client certificates, in PEM. Their names are sent to clients.")
            .set(|raw, node, _| raw.ssl_client_certificate.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_trusted_certificate", "file", WITH_MAIL, ONE)
            .since("1.3.7")
            .doc("Additional trusted CA certificates, in PEM, whose names are not sent to clients.")
            .set(|raw, node, _| raw.ssl_trusted_certificate.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_crl", "file", WITH_MAIL, ONE)
            .since("0.8.7")
            .doc("Revocation lists for client certificates, in PEM: one for each authority of the chain.")
            .set(|raw, node, _| raw.ssl_crl.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_key_log", "path", WITH_MAIL, ONE)
            .since("1.27.2")
            .doc("Writes the secrets of connections to this file, for decryption with tools like Wireshark. Not for production.")
            .set(|raw, node, _| raw.ssl_key_log.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_certificate_compression", WITH_MAIL)
            .default("off")
            .since("1.29.1")
            .doc("Compresses certificates for TLSv1.3 clients that support it.")
            .set(|raw, node, _| raw.ssl_certificate_compression.set_flag(node)),
        record::flag("ssl_stapling", EVERYWHERE)
            .default("off")
            .since("1.3.7")
            .doc("Enables OCSP stapling: sends the current OCSP response about the certificate to clients.")
            .set(|raw, node, _| raw.ssl_stapling.set_flag(node)),
        record::new("ssl_stapling_file", "file", EVERYWHERE, ONE)
            .since("1.3.7")
            .doc("Staples the OCSP response in this file (DER) instead of querying the responder.")
            .set(|raw, node, _| raw.ssl_stapling_file.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_stapling_responder", "url", EVERYWHERE, ONE)
            .since("1.3.7")
            .doc("OCSP responder to use instead of the one in the certificate: `http://…`.")
            .set(|raw, node, _| raw.ssl_stapling_responder.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_stapling_verify", EVERYWHERE)
            .default("off")
            .since("1.3.7")
            .doc("Staples only responses that are signed by the issuer of the certificate or its delegate; without it, also those signed by an authority above the issuer.")
            .set(|raw, node, _| raw.ssl_stapling_verify.set_flag(node)),
        record::new("ssl_ocsp", "on | off | leaf", EVERYWHERE, ONE)
            .default("off")
            .since("1.19.0")
            .doc("Checks the revocation of client certificates with OCSP: for the whole chain, or only for the first certificate (leaf).")
            .set(|raw, node, _| raw.ssl_ocsp.set_one_of(node, client_ocsp::CHECKED)),
        record::new("ssl_ocsp_responder", "url", EVERYWHERE, ONE)
            .since("1.19.0")
            .doc("OCSP responder to use instead of the one in the client certificate: `http://…`.")
            .set(|raw, node, _| raw.ssl_ocsp_responder.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_ocsp_cache", "off | shared:name:size", EVERYWHERE, ONE)
            .default("off")
            .since("1.19.0")
            .doc("Cache for OCSP responses about client certificates, shared by all loops.")
            .set(|raw, node, _| {
                let cache = client_ocsp::parse_cache(node)?;
                raw.ssl_ocsp_cache.set_once(node, cache)
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let directives = Directives::merge(raw, outer.map(|outer| &outer.directives), cx)?;
        let mut clients = None;
        let mut tls = None;
        if outer.is_some() {
            let (client_authentication, hints) = client_authentication::resolve(&directives, cx)?.unzip();
            clients = client_authentication;
            if !directives.certificates.is_empty() || directives.reject_handshake {
                tls = Some(server_tls::resolve(&directives, hints, cx)?);
            }
        }
        let Directives { reject_handshake, sign_pool, early_data, handshake_timeout, .. } = directives;
        let level = if outer.is_some() { Level::Server } else { Level::Protocol };
        Ok(Self {
            directives,
            level,
            tls,
            clients,
            reject_handshake,
            sign_pool,
            early_data,
            handshake_timeout,
        })
    }

    fn reach(&self, _core: &P::Core, reach: &mut Reach) {
        self.tls.iter().flat_map(|tls| &tls.dynamic).for_each(|dynamic| dynamic.reach(reach));
        let checks_clients = self.clients.as_ref().is_some_and(|clients| clients.ocsp.is_some());
        if checks_clients || self.tls.as_ref().is_some_and(|tls| tls.staplings().next().is_some()) {
            reach.connects();
        }
    }

    fn are_shared(&self) -> bool {
        // Locations have no settings of their own; each server resolves those of the protocol's block.
        let Directives { certificates, verify_client, .. } = &self.directives;
        let is_nothing = certificates.is_empty() && !self.reject_handshake && verify_client.is_none();
        self.level == Level::Server || is_nothing
    }
}

/// Reads names of protocols; ALPN has one byte for the length of each (RFC 7301).
fn read_protocols(node: &Node) -> Result<Vec<Box<[u8]>>, ConfError> {
    let read = |word: &Word| match word.bytes.len() {
        0..=255 => Ok(word.bytes.clone()),
        _ => Err(node.error("protocol too long")),
    };
    node.args.iter().map(read).collect()
}

fn push_word(setting: &mut Setting<Vec<Word>>, node: &Node) -> Result<(), ConfError> {
    let word = node.arg(0)?;
    certificate_file::check_name(node, word, "ngx_http_ssl_module")?;
    setting.push(node, word.clone());
    Ok(())
}
