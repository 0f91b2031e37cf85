//! TLS configuration of a server, as handshakes use it: certificates and keys, handshake parameters, sessions and tickets.

use std::sync::Arc;

use rustls::compress::ZLIB_COMPRESSOR;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{ClientHello, NoServerSessionStorage, StoresServerSessions};
use rustls::{DistinguishedName, ProtocolVersion, ServerConfig, SignatureScheme};
use tw_conf::ConfError;
use tw_core::load::Resolve;
use tw_core::session::Session;
use tw_tls::certificate::CertificateFields;
use tw_tls::words::{Flag, Switch};
use tw_tls::{Cache, ClientVerifier, Identity, Kind, SessionIdContext, SessionsInContext};

use crate::certificates::certificate_file::{FirstSignature, identity, passwords, shown};
use crate::certificates::certificate_resolver::{
    Candidate, CertificateResolver, CertificateSource, PreferredSide, ServerSignature, SignaturePreference,
};
use crate::certificates::dynamic_certificate::{DynamicCertificate, is_dynamic};
use crate::certificates::watched_certificate::{CertificateFiles, WatchedCertificate};
use crate::certificates::{acme_certificate, certificate_metrics};
use crate::directives::inheritance::Directives;
use crate::directives::raw::EarlyData;
use crate::directives::session_cache::SessionCache;
use crate::directives::sign_pool::SignPool;
use crate::directives::tls_parameters::TlsParameters;
use crate::key_log::KeyLogFile;
use crate::ocsp::stapling::{self, Stapling};
use crate::protocol::SecureProtocol;
use crate::tickets::fleet_secrets::clock;
use crate::tickets::ticket_keys;

/// Bytes of a record beside the content, as rustls counts them.
const RECORD_OVERHEAD: usize = 5;
/// Least size of a record that rustls accepts, and more than nothing.
const BUFFER_SIZE_MIN: usize = 512;
/// Bytes of sessions that are kept for early data where no cache is configured: some 4,000 sessions.
const EARLY_SESSIONS_SIZE: usize = 1 << 20;
/// Most bytes that a record can hold.
const BUFFER_SIZE_MAX: usize = 16 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes that a client may send before its handshake is over (ssl_early_data).
    const EARLY_DATA_MAX: u32 = 16 << 10, bytes, "the connection is closed";
}

/// TLS configuration of a server.
pub struct ServerTls<S: Session> {
    /// Configurations of rustls, one for each list of [`SecureProtocol::ALPN`].
    configs: Box<[Arc<ServerConfig>]>,
    /// Configurations for QUIC, one for each list of [`SecureProtocol::QUIC_ALPN`]; none without TLSv1.3.
    quic: Box<[Arc<ServerConfig>]>,
    resolver: Arc<CertificateResolver>,
    /// Certificates that variables name. If there are any, there are no others.
    pub dynamic: Vec<DynamicCertificate<S>>,
}

impl<S: Session> ServerTls<S> {
    /// Configuration of rustls that offers the list number `alpn` of [`SecureProtocol::ALPN`].
    pub fn config(&self, alpn: usize) -> &Arc<ServerConfig> {
        &self.configs[alpn]
    }

    /// Configuration of rustls for QUIC that offers the list number `alpn` of [`SecureProtocol::QUIC_ALPN`]; `None` without TLSv1.3.
    pub fn quic_config(&self, alpn: usize) -> Option<&Arc<ServerConfig>> {
        self.quic.get(alpn)
    }

    /// Returns true if the server can be used over QUIC, which needs TLSv1.3.
    pub fn supports_quic(&self) -> bool {
        !self.quic.is_empty()
    }

    /// Signature that a client will get.
    pub fn signature_for(&self, hello: &ClientHello<'_>) -> ServerSignature {
        self.resolver.signature_for(hello)
    }

    /// Algorithms of the certificate that was shown in a handshake with this signature scheme: its signature and its key. They are
    /// those of the first certificate if a session was resumed, and `None` if variables name the certificate.
    pub fn certificate_algorithms(
        &self,
        scheme: Option<SignatureScheme>,
    ) -> Option<(Option<&'static str>, Option<String>)> {
        let mut identities = self.resolver.candidates.iter().map(|candidate| candidate.source.identity());
        let signs = |identity: &Identity| {
            scheme.is_none_or(|scheme| identity.certified.key.choose_scheme(&[scheme]).is_some())
        };
        let shown = identities.find(signs)?;
        let fields = CertificateFields::of(shown.certified.cert.first()?)?;
        Some((fields.signature_algorithm(), fields.key_algorithm()))
    }

    /// OCSP stapling of its certificates.
    pub fn staplings(&self) -> impl Iterator<Item = &Arc<Stapling>> {
        self.resolver.candidates.iter().filter_map(|candidate| candidate.stapling.as_ref())
    }

    /// Certificates whose files are watched.
    pub fn watched(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        self.resolver.candidates.iter().filter_map(|candidate| match &candidate.source {
            CertificateSource::Watched(watched) => Some(watched),
            CertificateSource::Fixed(_) | CertificateSource::Acme(_) => None,
        })
    }

    /// Configuration like `base` with these certificates instead, and the signature that a client will get.
    pub fn with(
        &self,
        identities: Vec<Identity>,
        hello: &ClientHello<'_>,
        base: &ServerConfig,
    ) -> (Arc<ServerConfig>, ServerSignature) {
        let bare = |identity| Candidate { source: CertificateSource::Fixed(identity), stapling: None };
        let candidates = identities.into_iter().map(bare).collect();
        let resolver = CertificateResolver { candidates, preference: self.resolver.preference.clone() };
        let signature = resolver.signature_for(hello);
        let mut config = base.clone();
        config.cert_resolver = Arc::new(resolver);
        (Arc::new(config), signature)
    }
}

/// Draws a random number in vain. The first time in a process the library looks at devices, which a loop may not, and the
/// first time in a thread it gathers noise, which takes longer than a turn may.
pub fn warm_up() {
    // A failure shows when a number is needed.
    let _ = default_provider().secure_random.fill(&mut [0]);
}

/// Resolves the directives, and reads the files that they name. Clients are asked for a certificate if there are `hints`, names
/// of authorities that they are told.
pub(crate) fn resolve<P: SecureProtocol>(
    directives: &Directives,
    hints: Option<Vec<DistinguishedName>>,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<ServerTls<P::Session>>, ConfError> {
    warm_up();
    let (mut resolver, dynamic) = certificates(directives, cx)?;
    let context = context(directives, &resolver, hints.as_deref());
    let mut prefers_own = directives.prefer_server_ciphers;
    let mut tickets = directives.session_tickets;
    let offered = TlsParameters {
        prefix: "ssl_",
        protocols: &directives.protocols,
        ciphers: directives.ciphers.as_ref(),
        curve: directives.ecdh_curve.as_ref(),
        commands: &directives.commands,
    };
    let settings = offered.settings(cx, |flag, switch| {
        let is_on = switch == Switch::On;
        match flag {
            Flag::ServerPreference => prefers_own = is_on,
            Flag::PrioritizeChaCha if is_on => prefers_own = false,
            Flag::SessionTicket => tickets = is_on,
            Flag::PrioritizeChaCha | Flag::Ktls => {}
        }
    })?;
    let order = if prefers_own { PreferredSide::Server } else { PreferredSide::Client };
    resolver.preference =
        Arc::new(SignaturePreference { schemes: settings.signature_algorithms.clone(), order });
    let resolver = Arc::new(resolver);
    let builder = ServerConfig::builder_with_provider(settings.provider());
    let builder = builder
        .with_protocol_versions(settings.protocols.versions())
        .map_err(|error| ConfError::new(format!("TLS cannot be configured: {error}")))?;
    // A client that is asked for a certificate is not served before it has sent it.
    let hints_are_absent = hints.is_none();
    let builder = match hints {
        Some(hints) => builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(hints))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver.clone());
    config.ignore_client_order = prefers_own;
    config.max_fragment_size =
        Some(directives.buffer_size.clamp(BUFFER_SIZE_MIN, BUFFER_SIZE_MAX) + RECORD_OVERHEAD);
    // DIFF(nginx): also together with `ssl_stapling`.
    config.cert_compressors =
        if directives.certificate_compression { vec![ZLIB_COMPRESSOR] } else { Vec::new() };
    config.cert_decompressors = Vec::new();
    if let Some(file) = &directives.key_log {
        config.key_log = Arc::new(KeyLogFile::new(file, cx));
    }
    config.session_storage = Arc::new(SessionsInContext::new(context, sessions(directives, cx)));
    // A ticket could be used twice, and early data be replayed with it. A session that is kept here is resumed once.
    let has_early_data = directives.early_data != EarlyData::Off && hints_are_absent;
    if has_early_data {
        config.max_early_data_size = EARLY_DATA_MAX;
        config.send_half_rtt_data = true;
    }
    if tickets && !has_early_data {
        config.ticketer = Arc::new(SessionsInContext::new(context, ticket_keys::resolve(directives, cx)?));
    }
    // Without tickets that hold a session there are some that name one which is kept here.
    let is_kept = tickets || has_early_data || directives.session_cache != SessionCache::None;
    config.send_tls13_tickets = if is_kept { settings.num_tickets.unwrap_or(TICKETS) } else { 0 };
    let offering = |config: &ServerConfig, alpn: &[&[u8]]| {
        let mut config = config.clone();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    };
    let configs: Box<[_]> = match &directives.alpn[..] {
        [] => P::ALPN.iter().map(|alpn| offering(&config, alpn)).collect(),
        own => {
            let own: Vec<&[u8]> = own.iter().map(|protocol| &**protocol).collect();
            Box::new([offering(&config, &own)])
        }
    };
    let mut over_quic = config;
    // QUIC limits early data itself, and knows no other number (RFC 9001, section 4.6.1).
    if has_early_data {
        over_quic.max_early_data_size = u32::MAX;
    }
    let has_tls13 =
        settings.protocols.versions().iter().any(|version| version.version == ProtocolVersion::TLSv1_3);
    let quic = match has_tls13 {
        true => P::QUIC_ALPN.iter().map(|alpn| offering(&over_quic, alpn)).collect(),
        false => Box::default(),
    };
    Ok(Arc::new(ServerTls { configs, quic, resolver, dynamic }))
}

/// Context of sessions: a server resumes those of servers with the same certificates, or names of them, and the same authorities.
fn context(
    directives: &Directives,
    resolver: &CertificateResolver,
    hints: Option<&[DistinguishedName]>,
) -> SessionIdContext {
    // An ACME certificate changes with every renewal, and the server stays the same.
    let own = resolver
        .candidates
        .iter()
        .filter(|candidate| !matches!(candidate.source, CertificateSource::Acme(_)));
    let own: Vec<_> = own.map(|candidate| candidate.source.identity().certified).collect();
    let leaves = own.iter().filter_map(|certified| certified.cert.first());
    let names = directives.certificates.iter().filter(|_| own.is_empty());
    let parts = leaves.map(|leaf| &**leaf).chain(names.map(|name| &*name.bytes));
    SessionIdContext::of(parts.chain(hints.unwrap_or_default().iter().map(|hint| hint.as_ref())))
}

/// Tickets that are sent, as by OpenSSL: a browser opens several connections.
const TICKETS: usize = 2;

/// Certificates that are read now, or, if variables name one of them, dynamic ones only.
type Certificates<S> = (CertificateResolver, Vec<DynamicCertificate<S>>);

/// Reads certificates and keys.
fn certificates<P: SecureProtocol>(
    directives: &Directives,
    cx: &mut Resolve<'_, P>,
) -> Result<Certificates<P::Session>, ConfError> {
    let passwords = Arc::new(passwords(directives.password_file.as_ref(), cx)?);
    let pairs = || directives.certificates.iter().zip(&directives.keys);
    let are_dynamic = pairs().any(|(certificate, key)| {
        is_dynamic(certificate, key) && !acme_certificate::is_acme(certificate, key)
    });
    let response = stapling::of_file(&directives.stapling, cx)?;
    let mut candidates: Vec<(Option<Kind>, Candidate)> = Vec::new();
    let mut dynamic = Vec::new();
    for (at, certificate) in directives.certificates.iter().enumerate() {
        let fail = |message: String| Err(ConfError::new(message).at(certificate.span));
        let Some(key) = directives.keys.get(at) else {
            let name = shown(certificate, cx);
            return fail(format!("no \"ssl_certificate_key\" is defined for certificate \"{name}\""));
        };
        let current = acme_certificate::current(certificate, key, cx)?;
        if are_dynamic {
            if current.is_some() {
                return fail(
                    "an automatic certificate cannot be combined with certificates that variables name"
                        .into(),
                );
            }
            let cache = directives.certificate_cache.clone();
            dynamic.push(DynamicCertificate::new(certificate, key, passwords.clone(), cache, cx)?);
            continue;
        }
        let (source, kind) = match current {
            Some(current) => (CertificateSource::Acme(current), None),
            None => {
                let first_signature = match directives.sign_pool {
                    SignPool::Off => FirstSignature::WhenLoaded,
                    SignPool::Default | SignPool::Named(_) => FirstSignature::InHandshake,
                };
                let identity = identity(certificate, key, &passwords, first_signature, cx)?;
                let kind = identity.kind;
                let source = if directives.certificate_watch {
                    let files = CertificateFiles::of(certificate, key, directives.password_file.as_ref(), cx);
                    CertificateSource::Watched(Arc::new(WatchedCertificate::new(files, identity)))
                } else {
                    CertificateSource::Fixed(match &response {
                        Some(_) => identity.with_staple(response.clone()),
                        None => identity,
                    })
                };
                (source, Some(kind))
            }
        };
        // A response is about one certificate, and not about its replacement.
        if response.is_some() && !matches!(source, CertificateSource::Fixed(_)) {
            let name = shown(certificate, cx);
            return fail(format!(
                "\"ssl_stapling_file\" cannot be used with certificate \"{name}\", which is replaced without a reload"
            ));
        }
        let stapling = match directives.stapling.is_on && response.is_none() {
            true => {
                let trusted = directives.trusted_certificate.as_ref();
                let stapling = Stapling::new(&directives.stapling, source.clone(), certificate, trusted, cx)?;
                Some(Arc::new(stapling)).filter(|stapling| !stapling.is_useless())
            }
            false => None,
        };
        certificate_metrics::register(&shown(certificate, cx), &source, cx);
        // Of two with the same kind of key the last counts, as in nginx.
        candidates.retain(|(other, _)| other.is_none() || *other != kind);
        candidates.push((kind, Candidate { source, stapling }));
    }
    let candidates = candidates.into_iter().map(|(_, candidate)| candidate).collect();
    Ok((CertificateResolver { candidates, preference: Arc::default() }, dynamic))
}

/// Session cache. A shared one is kept over reloads under its name, as long as size and timeout stay.
fn sessions<P: SecureProtocol>(
    directives: &Directives,
    cx: &mut Resolve<'_, P>,
) -> Arc<dyn StoresServerSessions> {
    let lifetime = directives.session_lifetime();
    let (name, size) = match &directives.session_cache {
        SessionCache::None if directives.early_data != EarlyData::Off => {
            return Arc::new(Cache::new(EARLY_SESSIONS_SIZE, lifetime, clock()));
        }
        SessionCache::None => return Arc::new(NoServerSessionStorage {}),
        SessionCache::Builtin { size } => return Arc::new(Cache::new(*size, lifetime, clock())),
        SessionCache::Shared { name, size } => (name, size),
    };
    let key = [b"tls sessions ", &name[..], format!(" {size} {lifetime}").as_bytes()].concat();
    cx.keep(&key, |_| true, || Cache::new(*size, lifetime, clock()))
}
