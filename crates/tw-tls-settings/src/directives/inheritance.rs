//! Directives of a block, with those of the enclosing block for what it leaves out.

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Setting, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls::ClientVerification;

use super::raw::{EarlyData, Raw};
use super::session_cache::SessionCache;
use super::sign_pool::{POOL, SignPool};
use crate::certificates::dynamic_certificate::CertificateCache;
use crate::ocsp::{client_ocsp, stapling};

/// Directives with nothing left unset.
#[derive(Clone)]
pub(crate) struct Directives {
    pub(crate) certificates: Vec<Word>,
    pub(crate) keys: Vec<Word>,
    pub(crate) password_file: Option<Word>,
    pub(crate) certificate_cache: Option<Arc<CertificateCache>>,
    pub(crate) certificate_watch: bool,
    pub(crate) protocols: Vec<Word>,
    pub(crate) ciphers: Option<Word>,
    pub(crate) prefer_server_ciphers: bool,
    pub(crate) ecdh_curve: Option<Word>,
    pub(crate) buffer_size: usize,
    pub(crate) session_cache: SessionCache,
    pub(crate) session_timeout: Duration,
    pub(crate) session_tickets: bool,
    pub(crate) ticket_keys: Vec<Word>,
    pub(crate) commands: Vec<(Word, Word)>,
    pub(crate) reject_handshake: bool,
    pub(crate) sign_pool: SignPool,
    pub(crate) early_data: EarlyData,
    pub(crate) handshake_timeout: Duration,
    /// Protocols instead of those of [`SecureProtocol::ALPN`](crate::SecureProtocol::ALPN).
    pub(crate) alpn: Vec<Box<[u8]>>,
    pub(crate) verify_client: Option<ClientVerification>,
    pub(crate) verify_depth: u32,
    pub(crate) client_certificate: Option<Word>,
    pub(crate) trusted_certificate: Option<Word>,
    pub(crate) crl: Option<Word>,
    pub(crate) stapling: stapling::StaplingDirectives,
    pub(crate) ocsp: client_ocsp::ClientOcspDirectives,
    pub(crate) key_log: Option<Word>,
    pub(crate) certificate_compression: bool,
}

impl Directives {
    /// Directives of a block as written in it or in the enclosing block, or their defaults.
    pub(super) fn merge<P: Protocol>(
        raw: Raw,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        // DIFF(nginx): parameters that are known to be weak are never offered.
        if let Some(file) = raw.ssl_dhparam.take() {
            cx.warn(file.span, "\"ssl_dhparam\" has no effect: there is no key exchange over finite fields");
        }
        let list =
            |raw: Setting<Vec<Word>>, outer: Option<&Vec<Word>>| raw.or_else(|| outer.cloned(), Vec::new);
        let word = |raw: Setting<Word>, outer: Option<&Option<Word>>| {
            raw.take().or_else(|| outer.cloned().flatten())
        };
        Ok(Self {
            certificates: list(raw.ssl_certificate, outer.map(|o| &o.certificates)),
            keys: list(raw.ssl_certificate_key, outer.map(|o| &o.keys)),
            password_file: word(raw.ssl_password_file, outer.map(|o| &o.password_file)),
            certificate_cache: raw
                .ssl_certificate_cache
                .or_else(|| outer.map(|o| o.certificate_cache.clone()), || None),
            certificate_watch: raw.ssl_certificate_watch.or(outer.map(|o| o.certificate_watch), false),
            protocols: list(raw.ssl_protocols, outer.map(|o| &o.protocols)),
            ciphers: word(raw.ssl_ciphers, outer.map(|o| &o.ciphers)),
            prefer_server_ciphers: raw
                .ssl_prefer_server_ciphers
                .or(outer.map(|o| o.prefer_server_ciphers), false),
            ecdh_curve: word(raw.ssl_ecdh_curve, outer.map(|o| &o.ecdh_curve)),
            buffer_size: raw.ssl_buffer_size.or(outer.map(|o| o.buffer_size), 16 << 10),
            session_cache: raw
                .ssl_session_cache
                .or_else(|| outer.map(|o| o.session_cache.clone()), || SessionCache::None),
            session_timeout: raw
                .ssl_session_timeout
                .or(outer.map(|o| o.session_timeout), Duration::from_secs(300)),
            session_tickets: raw.ssl_session_tickets.or(outer.map(|o| o.session_tickets), true),
            ticket_keys: list(raw.ssl_session_ticket_key, outer.map(|o| &o.ticket_keys)),
            commands: raw.ssl_conf_command.or_else(|| outer.map(|o| o.commands.clone()), Vec::new),
            reject_handshake: raw.ssl_reject_handshake.or(outer.map(|o| o.reject_handshake), false),
            sign_pool: match raw.ssl_sign_pool.take() {
                None => outer.map_or(SignPool::Default, |outer| outer.sign_pool),
                Some(word) if word.is("off") => SignPool::Off,
                Some(word) if word.is(POOL) => SignPool::Default,
                Some(word) => SignPool::Named(cx.pool(&word.bytes, word.span)?),
            },
            early_data: raw.ssl_early_data.or(outer.map(|o| o.early_data), EarlyData::Off),
            handshake_timeout: raw
                .ssl_handshake_timeout
                .or(outer.map(|o| o.handshake_timeout), Duration::from_secs(60)),
            alpn: raw.ssl_alpn.or_else(|| outer.map(|o| o.alpn.clone()), Vec::new),
            verify_client: raw.ssl_verify_client.or(outer.map(|o| o.verify_client), None),
            verify_depth: raw
                .ssl_verify_depth
                .take()
                .map(|depth| u32::try_from(depth).unwrap_or(u32::MAX))
                .or(outer.map(|o| o.verify_depth))
                .unwrap_or(1),
            client_certificate: word(raw.ssl_client_certificate, outer.map(|o| &o.client_certificate)),
            trusted_certificate: word(raw.ssl_trusted_certificate, outer.map(|o| &o.trusted_certificate)),
            crl: word(raw.ssl_crl, outer.map(|o| &o.crl)),
            key_log: word(raw.ssl_key_log, outer.map(|o| &o.key_log)),
            certificate_compression: raw
                .ssl_certificate_compression
                .or(outer.map(|o| o.certificate_compression), false),
            stapling: stapling::StaplingDirectives {
                is_on: raw.ssl_stapling.or(outer.map(|o| o.stapling.is_on), false),
                verifies: raw.ssl_stapling_verify.or(outer.map(|o| o.stapling.verifies), false),
                file: word(raw.ssl_stapling_file, outer.map(|o| &o.stapling.file)),
                responder: word(raw.ssl_stapling_responder, outer.map(|o| &o.stapling.responder)),
            },
            ocsp: client_ocsp::ClientOcspDirectives {
                checked: raw.ssl_ocsp.or(outer.map(|o| o.ocsp.checked), None),
                responder: word(raw.ssl_ocsp_responder, outer.map(|o| &o.ocsp.responder)),
                cache: raw.ssl_ocsp_cache.or_else(|| outer.map(|o| o.ocsp.cache.clone()), || None),
            },
        })
    }

    /// Seconds in which a session may be resumed.
    pub(crate) fn session_lifetime(&self) -> u32 {
        u32::try_from(self.session_timeout.as_secs()).unwrap_or(u32::MAX)
    }
}
