//! TLS to upstream servers: directives, settings made of them, and the handshake.
//!
//! ```text
//! RawUpstreamTls ─► UpstreamTlsConfig: one for all locations that inherit the same settings
//!                     └─► UpstreamTls: with the name for one request ─► handshake, with an earlier session if there is one
//! ```
//! Connections and sessions belong to a `UpstreamTlsConfig` and a name: other verification or another client
//! certificate means other connections.

mod handshake;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use foldhash::HashMap;
use rustls::ClientConfig;
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tw_base::FatalMutex;
use tw_conf::{ConfError, Setting, Word};
use tw_core::load::Resolve;
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_net::Addr;
use tw_tls::words::{Flag, Switch};
use tw_tls::{Authorities, Cost, Identity, Purpose, Trust, TrustError, Upstream};
use tw_tls_settings::{
    CertificateCache, CertificateNames, CertificateReader, DynamicCertificate, KeyLogFile, TlsParameters,
    certificate_file, certificate_file::FirstSignature, is_dynamic,
};

pub use self::handshake::{TlsPools, UpstreamTls};
use crate::protocol::ConnectingProtocol;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Upstream servers of which TLS sessions are kept, for locations with the same settings.
    const SESSION_SERVERS_MAX: usize = 256, count, "those of some other server are forgotten";
    /// TLS sessions kept of one upstream server.
    ///
    /// Sessions kept of each of them: eight for each of four names.
    const SESSIONS_MAX: usize = 32, count, "the oldest is forgotten";
}

/// Protocol inside of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsProtocol {
    /// A protocol that needs no agreement.
    Any,
    /// HTTP/2, which both sides agree on by ALPN (RFC 9113 section 3.3).
    Http2,
}

/// Protocol name of HTTP/2.
const ALPN_HTTP2: &[u8] = b"h2";

/// The directives as written.
#[derive(Default)]
pub struct RawUpstreamTls {
    /// `ssl_name`
    pub name: Setting<Word>,
    /// `ssl_alpn`
    pub alpn: Setting<Vec<Word>>,
    /// `ssl_server_name`
    pub server_name: Setting<bool>,
    /// `ssl_verify`
    pub verify: Setting<bool>,
    /// `ssl_verify_depth`
    pub verify_depth: Setting<usize>,
    /// `ssl_trusted_certificate`
    pub trusted_certificate: Setting<Word>,
    /// `ssl_crl`
    pub crl: Setting<Word>,
    /// `ssl_certificate`
    pub certificate: Setting<Word>,
    /// `ssl_certificate_key`
    pub certificate_key: Setting<Word>,
    /// `ssl_certificate_cache`
    pub certificate_cache: Setting<Option<Arc<CertificateCache>>>,
    /// `ssl_password_file`
    pub password_file: Setting<Word>,
    /// `ssl_protocols`
    pub protocols: Setting<Vec<Word>>,
    /// `ssl_ciphers`
    pub ciphers: Setting<Word>,
    /// `ssl_session_reuse`
    pub session_reuse: Setting<bool>,
    /// `ssl_key_log`
    pub key_log: Setting<Word>,
    /// `ssl_conf_command`
    pub conf_command: Setting<Vec<(Word, Word)>>,
}

/// Directives with nothing left unset, shared by all blocks that inherit them.
pub(crate) struct TlsDirectives<S: Session> {
    server_name: bool,
    verify: bool,
    verify_depth: usize,
    trusted_certificate: Option<Word>,
    crl: Option<Word>,
    certificate: Option<Word>,
    certificate_key: Option<Word>,
    certificate_cache: Option<Arc<CertificateCache>>,
    password_file: Option<Word>,
    protocols: Vec<Word>,
    ciphers: Option<Word>,
    session_reuse: bool,
    key_log: Option<Word>,
    conf_command: Vec<(Word, Word)>,
    /// Handshake settings made of them where needed, for each protocol.
    made: [OnceLock<EnabledTls<S>>; 2],
}

/// Handshake settings of one protocol, with the names of a dynamic certificate.
pub(crate) struct EnabledTls<S: Session> {
    pub(crate) config: Arc<UpstreamTlsConfig>,
    /// Certificate that is shown, if variables name it.
    pub(crate) named: Option<Arc<DynamicCertificate<S>>>,
}

impl<S: Session> Clone for EnabledTls<S> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone(), named: self.named.clone() }
    }
}

impl<S: Session> EnabledTls<S> {
    /// Adds to `reach` the directories of files that are read for a handshake.
    pub(crate) fn reach(&self, reach: &mut Reach) {
        self.named.iter().for_each(|named| named.reach(reach));
    }

    /// TLS of the connections for `s` to a server called `name`.
    pub(crate) fn connections(&self, name: &[u8], s: &S) -> UpstreamTls {
        UpstreamTls::new(self.config.clone(), name, self.named.as_ref().map(|named| named.names(s)))
    }

    /// TLS of connections of the server's own to a server called `name`.
    pub(crate) fn connections_without_session(&self, name: &[u8]) -> UpstreamTls {
        UpstreamTls::new(self.config.clone(), name, None)
    }
}

impl<S: Session> TlsDirectives<S> {
    /// Resolves the directives, except `ssl_name`.
    pub(crate) fn resolve(raw: RawUpstreamTls, outer: Option<&Arc<Self>>) -> Arc<Self> {
        if let Some(outer) = outer
            && raw.is_unset()
        {
            return outer.clone();
        }
        let word = |raw: Setting<Word>, outer: Option<&Option<Word>>| {
            raw.take().or_else(|| outer.cloned().flatten()).filter(|word| !word.bytes.is_empty())
        };
        Arc::new(Self {
            server_name: raw.server_name.or(outer.map(|o| o.server_name), false),
            verify: raw.verify.or(outer.map(|o| o.verify), false),
            verify_depth: raw.verify_depth.or(outer.map(|o| o.verify_depth), 1),
            trusted_certificate: word(raw.trusted_certificate, outer.map(|o| &o.trusted_certificate)),
            crl: word(raw.crl, outer.map(|o| &o.crl)),
            certificate: word(raw.certificate, outer.map(|o| &o.certificate)),
            certificate_key: word(raw.certificate_key, outer.map(|o| &o.certificate_key)),
            certificate_cache: raw
                .certificate_cache
                .or_else(|| outer.map(|o| o.certificate_cache.clone()), || None),
            password_file: word(raw.password_file, outer.map(|o| &o.password_file)),
            protocols: raw.protocols.or_else(|| outer.map(|o| o.protocols.clone()), Vec::new),
            ciphers: word(raw.ciphers, outer.map(|o| &o.ciphers)),
            session_reuse: raw.session_reuse.or(outer.map(|o| o.session_reuse), true),
            key_log: word(raw.key_log, outer.map(|o| &o.key_log)),
            conf_command: raw.conf_command.or_else(|| outer.map(|o| o.conf_command.clone()), Vec::new),
            made: Default::default(),
        })
    }

    /// Returns the handshake settings; reads files the first time.
    pub(crate) fn tls<P: ConnectingProtocol<Session = S>>(
        &self,
        prefix: &'static str,
        inside: TlsProtocol,
        cx: &mut Resolve<'_, P>,
    ) -> Result<EnabledTls<S>, ConfError> {
        let [any, http2] = &self.made;
        let place = if inside == TlsProtocol::Http2 { http2 } else { any };
        if let Some(made) = place.get() {
            return Ok(made.clone());
        }
        let made = self.make(prefix, inside, cx)?;
        P::upstream_block_mut(&mut cx.block).uses_tls = true;
        Ok(place.get_or_init(|| made).clone())
    }

    fn make<P: ConnectingProtocol<Session = S>>(
        &self,
        prefix: &'static str,
        inside: TlsProtocol,
        cx: &mut Resolve<'_, P>,
    ) -> Result<EnabledTls<S>, ConfError> {
        tw_tls_settings::warm_up();
        let offered = TlsParameters {
            prefix: &format!("{prefix}ssl_"),
            protocols: &self.protocols,
            ciphers: self.ciphers.as_ref(),
            curve: None,
            commands: &self.conf_command,
        };
        let mut reuse = self.session_reuse;
        let settings = offered.settings(cx, |flag, switch| {
            // Clients have no other choice than this one.
            if flag == Flag::SessionTicket && switch == Switch::Off {
                reuse = false;
            }
        })?;
        let trust = if self.verify { Some(self.trust(prefix, cx)?) } else { None };
        let verifier = trust.map_or_else(Upstream::unverified, Upstream::verified);
        let (identity, named) = match self.identity(prefix, cx)? {
            None => (None, None),
            Some(ClientCertificate::Always(identity)) => (Some(identity), None),
            Some(ClientCertificate::DynamicCertificate(named)) => (None, Some(named)),
        };
        // The cost of a certificate that is chosen by variables is not known before, so it counts as slow.
        let is_slow = self.verify
            || named.is_some()
            || identity.as_ref().is_some_and(|identity| identity.cost == Cost::Slow);
        let builder = ClientConfig::builder_with_provider(settings.provider())
            .with_protocol_versions(settings.protocols.versions())
            .map_err(|error| ConfError::new(format!("TLS cannot be configured: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            Some(identity) => {
                let shown = SingleCertAndKey::from(identity.certified);
                builder.with_client_cert_resolver(Arc::new(shown))
            }
            None => builder.with_no_client_auth(),
        };
        config.enable_sni = self.server_name;
        if inside == TlsProtocol::Http2 {
            config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        }
        (config.cert_compressors, config.cert_decompressors) = (Vec::new(), Vec::new());
        if let Some(file) = &self.key_log {
            config.key_log = Arc::new(KeyLogFile::new(file, cx));
        }
        config.resumption = Resumption::disabled();
        let config = UpstreamTlsConfig {
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            verifies: self.verify,
            inside,
            is_slow,
            config: Arc::new(config),
            reader: named.as_ref().map(|named| named.reader().clone()),
            sessions: reuse.then(FatalMutex::default),
        };
        Ok(EnabledTls { config: Arc::new(config), named: named.map(Arc::new) })
    }

    fn trust<P: ConnectingProtocol<Session = S>>(
        &self,
        prefix: &str,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Trust, ConfError> {
        let Some(word) = &self.trusted_certificate else {
            let message = format!("no {prefix}ssl_trusted_certificate for {prefix}ssl_verify");
            return Err(ConfError::new(message));
        };
        let broken = |error: TrustError| {
            ConfError::new(format!("authorities of upstream servers cannot be used: {error}")).at(word.span)
        };
        Ok(Trust {
            authorities: Arc::new(Authorities::new(certificate_file::trusted(word, cx)?).map_err(broken)?),
            crls: self.crl.as_ref().map(|word| certificate_file::crls(word, cx)).transpose()?,
            depth: u32::try_from(self.verify_depth).unwrap_or(u32::MAX),
            purpose: Purpose::Server,
        })
    }

    fn identity<P: ConnectingProtocol<Session = S>>(
        &self,
        prefix: &str,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Option<ClientCertificate<S>>, ConfError> {
        let Some(certificate) = &self.certificate else { return Ok(None) };
        let Some(key) = &self.certificate_key else {
            let certificate_name = certificate_file::shown(certificate, cx);
            let message = format!(
                "no \"{prefix}ssl_certificate_key\" is defined for certificate \"{certificate_name}\""
            );
            return Err(ConfError::new(message).at(certificate.span));
        };
        let passwords = certificate_file::passwords(self.password_file.as_ref(), cx)?;
        if is_dynamic(certificate, key) {
            let (passwords, cache) = (Arc::new(passwords), self.certificate_cache.clone());
            return Ok(Some(ClientCertificate::DynamicCertificate(DynamicCertificate::new(
                certificate,
                key,
                passwords,
                cache,
                cx,
            )?)));
        }
        // Handshakes with slow signatures are done by a pool.
        let first_signature = FirstSignature::InHandshake;
        let identity = certificate_file::identity(certificate, key, &passwords, first_signature, cx)?;
        Ok(Some(ClientCertificate::Always(identity)))
    }
}

/// The certificate that upstream servers are shown.
enum ClientCertificate<S: Session> {
    Always(Identity),
    DynamicCertificate(DynamicCertificate<S>),
}

impl RawUpstreamTls {
    /// Returns true if no directive is set but `ssl_name`.
    fn is_unset(&self) -> bool {
        let flags = [&self.server_name, &self.verify, &self.session_reuse];
        let words = [
            &self.trusted_certificate,
            &self.crl,
            &self.certificate,
            &self.certificate_key,
            &self.password_file,
            &self.ciphers,
            &self.key_log,
        ];
        !(flags.iter().any(|flag| flag.is_set())
            || words.iter().any(|word| word.is_set())
            || self.verify_depth.is_set()
            || self.protocols.is_set()
            || self.certificate_cache.is_set()
            || self.conf_command.is_set())
    }
}

/// The next number of a [`UpstreamTlsConfig`].
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Settings of handshakes with upstream servers.
pub struct UpstreamTlsConfig {
    /// Tells it from all others of the process, be they gone.
    number: u64,
    verifies: bool,
    inside: TlsProtocol,
    /// Set if a step of a handshake may block a loop for too long: signing with a slow key, or verifying certificates.
    is_slow: bool,
    /// Without sessions.
    config: Arc<ClientConfig>,
    /// Reader of the certificate that is shown, if variables name it.
    reader: Option<Arc<CertificateReader>>,
    /// Settings with sessions, for each server and each certificate that variables name; `None` without session reuse.
    sessions: Option<FatalMutex<SessionConfigs>>,
}

/// By server, and by what variables name that it is shown.
type SessionConfigs = HashMap<(Addr, Option<CertificateNames>), SessionConfig>;

/// Settings of handshakes with one server, if variables name the certificate.
struct SessionConfig {
    config: Arc<ClientConfig>,
    /// Certificate that the variables named, as it was read: another one has sessions of its own.
    shown: Option<Arc<CertifiedKey>>,
}

impl UpstreamTlsConfig {
    /// Settings with the sessions of the server at `to`, and with the certificate for it.
    fn config_for(&self, to: &Addr, shown: Option<(&CertificateNames, Identity)>) -> Arc<ClientConfig> {
        let (names, shown) = match shown {
            Some((names, identity)) => (Some(names.clone()), Some(identity.certified)),
            None => (None, None),
        };
        let with = |resumption: Option<Resumption>| {
            let mut config = ClientConfig::clone(&self.config);
            if let Some(shown) = &shown {
                config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(shown.clone()));
            }
            config.resumption = resumption.unwrap_or_else(Resumption::disabled);
            Arc::new(config)
        };
        let Some(sessions) = &self.sessions else {
            return if shown.is_none() { self.config.clone() } else { with(None) };
        };
        let mut sessions = sessions.lock();
        let key = (to.clone(), names);
        let is_same = |kept: &&SessionConfig| match (&kept.shown, &shown) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        if let Some(kept) = sessions.get(&key).filter(is_same) {
            return kept.config.clone();
        }
        if sessions.len() >= SESSION_SERVERS_MAX
            && let Some(some) = sessions.keys().next().cloned()
        {
            sessions.remove(&some);
        }
        let config = with(Some(Resumption::store(Arc::new(ClientSessionMemoryCache::new(SESSIONS_MAX)))));
        sessions.insert(key, SessionConfig { config: config.clone(), shown });
        config
    }
}
