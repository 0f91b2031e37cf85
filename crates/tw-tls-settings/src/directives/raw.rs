//! Directives as written in a block.

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Setting, Word};
use tw_tls::ClientVerification;

use super::session_cache::SessionCache;
use crate::certificates::dynamic_certificate::CertificateCache;
use crate::ocsp::client_ocsp;

/// Requests that are accepted before the handshake is complete, in data that may be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyData {
    /// None.
    Off,
    /// Safe ones; others are rejected until the handshake is complete (425).
    Safe,
    /// All: the application has to look for replays.
    Any,
}

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    pub(super) ssl_certificate: Setting<Vec<Word>>,
    pub(crate) ssl_certificate_key: Setting<Vec<Word>>,
    pub(crate) ssl_password_file: Setting<Word>,
    pub(super) ssl_certificate_cache: Setting<Option<Arc<CertificateCache>>>,
    pub(super) ssl_certificate_watch: Setting<bool>,
    pub(super) ssl_protocols: Setting<Vec<Word>>,
    pub(super) ssl_ciphers: Setting<Word>,
    pub(super) ssl_prefer_server_ciphers: Setting<bool>,
    pub(super) ssl_ecdh_curve: Setting<Word>,
    pub(super) ssl_buffer_size: Setting<usize>,
    pub(super) ssl_session_cache: Setting<SessionCache>,
    pub(super) ssl_session_timeout: Setting<Duration>,
    pub(super) ssl_session_tickets: Setting<bool>,
    pub(super) ssl_session_ticket_key: Setting<Vec<Word>>,
    pub(super) ssl_conf_command: Setting<Vec<(Word, Word)>>,
    pub(super) ssl_reject_handshake: Setting<bool>,
    pub(super) ssl_sign_pool: Setting<Word>,
    pub(super) ssl_early_data: Setting<EarlyData>,
    pub(super) ssl_handshake_timeout: Setting<Duration>,
    pub(super) ssl_alpn: Setting<Vec<Box<[u8]>>>,
    pub(super) ssl_dhparam: Setting<Word>,
    pub(super) ssl_verify_client: Setting<Option<ClientVerification>>,
    pub(super) ssl_verify_depth: Setting<usize>,
    pub(super) ssl_client_certificate: Setting<Word>,
    pub(super) ssl_trusted_certificate: Setting<Word>,
    pub(super) ssl_crl: Setting<Word>,
    pub(super) ssl_key_log: Setting<Word>,
    pub(super) ssl_certificate_compression: Setting<bool>,
    pub(super) ssl_stapling: Setting<bool>,
    pub(super) ssl_stapling_file: Setting<Word>,
    pub(super) ssl_stapling_responder: Setting<Word>,
    pub(super) ssl_stapling_verify: Setting<bool>,
    pub(super) ssl_ocsp: Setting<Option<client_ocsp::Checked>>,
    pub(super) ssl_ocsp_responder: Setting<Word>,
    pub(super) ssl_ocsp_cache: Setting<Option<client_ocsp::OcspCache>>,
}
