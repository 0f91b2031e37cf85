//! What is made of the settings of a server: its certificates and keys, what it offers, where sessions are kept.

use std::sync::Arc;

use rustls::compress::ZLIB_COMPRESSOR;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, StoresServerSessions};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{DistinguishedName, ServerConfig, SignatureAlgorithm, SignatureScheme};
use tw_acme::CurrentCertificate;
use tw_base::Limit;
use tw_conf::{ConfError, Word};
use tw_tls::words::{Flag, Switch};
use tw_tls::{
    Authorities, Cache, ClientVerifier, Clock, Context, Cost, Demand, Identity, Kind, Purpose, Tickets,
    Trust, TrustError, Within,
};

use super::common::{ConfiguredCertificate, contents, crls, identity, passwords, shown, trusted};
use super::dynamic_certificate::{DynamicCertificate, is_named};
use super::keylog::KeyLogFile;
use super::ocsp::{self, Inquirer};
use super::stapling::{self, Stapling};
use super::watched::{Pair, Watched};
use super::{EarlyData, SessionCache, Written, ticket_keys_handover};
use crate::config::acme;
use crate::load::Resolve;

/// Bytes that a record has beside the content, as rustls counts them.
const RECORD_OVERHEAD: usize = 5;
/// The least that rustls can be told, and more than nothing.
const BUFFER_SIZE_MIN: usize = 512;
/// Bytes of early data of a connection; as OpenSSL.
const EARLY_DATA_MAX: u32 = 16 << 10;
/// Of sessions that are kept for it where no cache is configured: some 4,000.
const EARLY_SESSIONS_SIZE: usize = 1 << 20;
/// What a record can hold.
const BUFFER_SIZE_MAX: usize = 16 << 10;
/// The protocols inside, in the order of preference (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"http/1.0"];
/// The one before them where it is spoken (RFC 9113 section 3.2).
pub(crate) const HTTP_2: &[u8] = b"h2";

pub(crate) const LIMITS: &[Limit] = &[Limit::bytes(
    "EARLY_DATA_MAX",
    EARLY_DATA_MAX as u64,
    "Bytes that a client may send before its handshake is over (ssl_early_data)",
    "the connection is closed",
)];

/// What handshakes with a server are done by.
#[derive(Debug)]
pub struct Tls {
    /// All of it, as rustls wants it.
    config: Arc<ServerConfig>,
    /// The same where HTTP/2 is spoken.
    with_http2: Arc<ServerConfig>,
    identities: Arc<Identities>,
    /// Certificates that variables name, each time anew; with them there are no others.
    pub(crate) named: Vec<DynamicCertificate>,
}

/// What is wanted of the certificates of clients.
#[derive(Debug, Clone)]
pub struct Clients {
    /// Who gets further.
    pub demand: Demand,
    /// Who is trusted.
    pub trust: Arc<Trust>,
    /// Who asks whether they were revoked, if somebody does.
    pub(crate) inquirer: Option<Arc<Inquirer>>,
}

impl Tls {
    /// What rustls wants, for clients that may choose HTTP/2 or may not.
    pub(crate) fn config(&self, speaks_http2: bool) -> &Arc<ServerConfig> {
        if speaks_http2 { &self.with_http2 } else { &self.config }
    }

    /// The signature that a client will get.
    pub(crate) fn signature_for(&self, hello: &ClientHello<'_>) -> Signature {
        self.identities.signature_for(hello)
    }

    /// What is asked about its certificates.
    pub(crate) fn staplings(&self) -> impl Iterator<Item = &Arc<Stapling>> {
        self.identities.candidates.iter().filter_map(|candidate| candidate.stapling.as_ref())
    }

    /// Its certificates whose files are followed.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &Arc<Watched>> {
        self.identities.candidates.iter().filter_map(|candidate| match &candidate.source {
            Source::Watched(watched) => Some(watched),
            Source::Fixed(_) | Source::Coming(_) => None,
        })
    }

    /// The same with these certificates, and the signature that a client will get.
    pub(crate) fn with(
        &self,
        identities: Vec<Identity>,
        hello: &ClientHello<'_>,
        speaks_http2: bool,
    ) -> (Arc<ServerConfig>, Signature) {
        let bare = |identity| Candidate { source: Source::Fixed(identity), stapling: None };
        let candidates = identities.into_iter().map(bare).collect();
        let identities = Identities { candidates, preference: self.identities.preference.clone() };
        let signature = identities.signature_for(hello);
        let mut config = ServerConfig::clone(self.config(speaks_http2));
        config.cert_resolver = Arc::new(identities);
        (Arc::new(config), signature)
    }
}

/// What a server signs a handshake with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signature {
    /// How long it takes.
    pub(crate) cost: Cost,
    /// In which scheme; `None` if the client knows none that fits.
    pub(crate) scheme: Option<SignatureScheme>,
}

/// The certificates of a server, one for each kind of key.
#[derive(Debug)]
struct Identities {
    candidates: Vec<Candidate>,
    preference: Arc<Preference>,
}

/// Schemes that a server signs with, and whose order counts.
#[derive(Debug, Default)]
struct Preference {
    /// `None` for all.
    schemes: Option<Vec<SignatureScheme>>,
    order: Order,
}

/// Side whose order of schemes counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Client,
    /// `ssl_prefer_server_ciphers on`, as in OpenSSL.
    Server,
}

/// OpenSSL's order of schemes.
const SERVER_ORDER: &[SignatureScheme] = &[
    SignatureScheme::ML_DSA_65,
    SignatureScheme::ML_DSA_87,
    SignatureScheme::ML_DSA_44,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

impl Preference {
    /// The schemes that both sides have, the best first.
    fn common(&self, offered: &[SignatureScheme]) -> Vec<SignatureScheme> {
        let has = |of: &[SignatureScheme], scheme: &SignatureScheme| of.contains(scheme);
        let own = self.schemes.as_deref();
        match self.order {
            Order::Client => {
                let is_own = |scheme: &&SignatureScheme| own.is_none_or(|own| has(own, scheme));
                offered.iter().filter(is_own).copied().collect()
            }
            Order::Server => {
                let own = own.unwrap_or(SERVER_ORDER);
                own.iter().filter(|scheme| has(offered, scheme)).copied().collect()
            }
        }
    }
}

/// A key that signs only with some schemes.
#[derive(Debug)]
struct Restricted {
    key: Arc<dyn SigningKey>,
    preference: Arc<Preference>,
}

impl SigningKey for Restricted {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let common = self.preference.common(offered);
        common.into_iter().find_map(|scheme| self.key.choose_scheme(&[scheme]))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key()
    }
}

#[derive(Debug)]
struct Candidate {
    source: Source,
    /// What its authority says of it, if that is shown, too.
    stapling: Option<Arc<Stapling>>,
}

/// Where a certificate is taken from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// It stays the same.
    Fixed(Identity),
    /// It is replaced when its files change.
    Watched(Arc<Watched>),
    /// It comes by itself.
    Coming(Arc<CurrentCertificate>),
}

impl Source {
    /// The certificate of now.
    fn identity(&self) -> Identity {
        match self {
            Self::Fixed(identity) => identity.clone(),
            Self::Watched(watched) => watched.identity(),
            Self::Coming(slot) => slot.identity(),
        }
    }

    /// The same, unless it is a temporary one.
    pub(super) fn issued(&self) -> Option<Identity> {
        match self {
            Self::Coming(slot) => slot.chain().map(|_| slot.identity()),
            Self::Fixed(_) | Self::Watched(_) => Some(self.identity()),
        }
    }
}

impl Identities {
    fn signature_for(&self, hello: &ClientHello<'_>) -> Signature {
        let offered = hello.signature_schemes();
        let Some((identity, _)) = self.choose(offered) else {
            return Signature { cost: Cost::Fast, scheme: None };
        };
        let signer = match self.preference.schemes {
            None => identity.certified.key.choose_scheme(offered),
            Some(_) => self.restricted(&identity.certified.key).choose_scheme(offered),
        };
        Signature { cost: identity.cost, scheme: signer.map(|signer| signer.scheme()) }
    }

    fn restricted(&self, key: &Arc<dyn SigningKey>) -> Restricted {
        Restricted { key: key.clone(), preference: self.preference.clone() }
    }

    /// The one that can sign by the best scheme.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<(Identity, &Candidate)> {
        let all: Vec<_> =
            self.candidates.iter().map(|candidate| (candidate.source.identity(), candidate)).collect();
        let signs = |identity: &Identity, scheme| identity.certified.key.choose_scheme(&[scheme]).is_some();
        let common = self.preference.common(schemes);
        common
            .into_iter()
            .find_map(|scheme| all.iter().find(|(identity, _)| signs(identity, scheme)).cloned())
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (identity, candidate) = self.choose(hello.signature_schemes())?;
        let now = || tw_rt::clock::unix().secs.unsigned_abs();
        let stapled = candidate.stapling.as_ref().and_then(|stapling| stapling.stapled(&identity, now()));
        let certified = stapled.unwrap_or(identity.certified);
        if self.preference.schemes.is_none() {
            return Some(certified);
        }
        let CertifiedKey { cert, key, ocsp } = &*certified;
        let key = Arc::new(self.restricted(key));
        Some(Arc::new(CertifiedKey { cert: cert.clone(), key, ocsp: ocsp.clone() }))
    }
}

/// Draws a random number in vain. The first time in a process the library looks at devices, which a loop may not, and the
/// first time in a thread it gathers noise, which takes longer than a turn may.
pub(crate) fn warm_up() {
    // Whoever needs one will learn that there is none.
    let _ = default_provider().secure_random.fill(&mut [0]);
}

/// Makes it, from the files that the settings name. Clients are asked for a certificate if there are `hints`, the authorities that
/// they are told of.
pub(super) fn tls(
    written: &Written,
    hints: Option<Vec<DistinguishedName>>,
    cx: &mut Resolve<'_>,
) -> Result<Arc<Tls>, ConfError> {
    warm_up();
    let (mut identities, named) = identities(written, cx)?;
    let context = context(written, &identities, hints.as_deref());
    let mut prefers_own = written.prefer_server_ciphers;
    let mut tickets = written.session_tickets;
    let offered = ConfiguredCertificate {
        prefix: "ssl_",
        protocols: &written.protocols,
        ciphers: written.ciphers.as_ref(),
        curve: written.ecdh_curve.as_ref(),
        commands: &written.commands,
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
    let order = if prefers_own { Order::Server } else { Order::Client };
    identities.preference = Arc::new(Preference { schemes: settings.signature_algorithms.clone(), order });
    let identities = Arc::new(identities);
    let builder = ServerConfig::builder_with_provider(settings.provider());
    let builder = builder
        .with_protocol_versions(settings.protocols.versions())
        .map_err(|error| ConfError::new(format!("TLS cannot be configured: {error}")))?;
    // Who is asked for a certificate is answered when he has shown it.
    let hints_are_absent = hints.is_none();
    let builder = match hints {
        Some(hints) => builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(hints))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identities.clone());
    config.ignore_client_order = prefers_own;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    config.max_fragment_size =
        Some(written.buffer_size.clamp(BUFFER_SIZE_MIN, BUFFER_SIZE_MAX) + RECORD_OVERHEAD);
    // DIFF(nginx): also together with `ssl_stapling`.
    config.cert_compressors =
        if written.certificate_compression { vec![ZLIB_COMPRESSOR] } else { Vec::new() };
    config.cert_decompressors = Vec::new();
    if let Some(file) = &written.key_log {
        config.key_log = Arc::new(KeyLogFile::new(file, cx));
    }
    config.session_storage = Arc::new(Within::new(context, sessions(written, cx)));
    // A ticket could be used twice, and with it what was sent early. What is kept here is taken up once.
    let has_early_data = written.early_data != EarlyData::Refused && hints_are_absent;
    if has_early_data {
        config.max_early_data_size = EARLY_DATA_MAX;
        config.send_half_rtt_data = true;
    }
    if tickets && !has_early_data {
        config.ticketer = Arc::new(Within::new(context, self::tickets(written, cx)?));
    }
    // Without tickets that hold a session, there are some that name one which is kept.
    let is_kept = tickets || has_early_data || written.session_cache != SessionCache::None;
    config.send_tls13_tickets = if is_kept { settings.num_tickets.unwrap_or(TICKETS) } else { 0 };
    let mut with_http2 = config.clone();
    with_http2.alpn_protocols.insert(0, HTTP_2.to_vec());
    Ok(Arc::new(Tls { config: Arc::new(config), with_http2: Arc::new(with_http2), identities, named }))
}

/// Whose sessions a server takes up: those of servers with the same certificates, or names of them, and the same authorities.
fn context(written: &Written, identities: &Identities, hints: Option<&[DistinguishedName]>) -> Context {
    // One that comes by itself is another one tomorrow, and the same server.
    let own = identities.candidates.iter().filter(|candidate| !matches!(candidate.source, Source::Coming(_)));
    let own: Vec<_> = own.map(|candidate| candidate.source.identity().certified).collect();
    let leaves = own.iter().filter_map(|certified| certified.cert.first());
    let names = written.certificates.iter().filter(|_| own.is_empty());
    let parts = leaves.map(|leaf| &**leaf).chain(names.map(|name| &*name.bytes));
    Context::of(parts.chain(hints.unwrap_or_default().iter().map(|hint| hint.as_ref())))
}

/// As OpenSSL sends: a browser opens several connections.
const TICKETS: usize = 2;

/// Certificates and keys: all that are read now, or how they are named if variables name one of them.
fn identities(
    written: &Written,
    cx: &mut Resolve<'_>,
) -> Result<(Identities, Vec<DynamicCertificate>), ConfError> {
    let passwords = Arc::new(passwords(written.password_file.as_ref(), cx)?);
    let pairs = || written.certificates.iter().zip(&written.keys);
    let are_named =
        pairs().any(|(certificate, key)| is_named(certificate, key) && !acme::is_coming(certificate, key));
    let response = stapling::of_file(&written.stapling, cx)?;
    let mut candidates: Vec<(Option<Kind>, Candidate)> = Vec::new();
    let mut named = Vec::new();
    for (at, certificate) in written.certificates.iter().enumerate() {
        let fail = |message: String| Err(ConfError::new(message).at(certificate.span));
        let Some(key) = written.keys.get(at) else {
            let name = shown(certificate, cx);
            return fail(format!("no \"ssl_certificate_key\" is defined for certificate \"{name}\""));
        };
        let coming = acme::coming(certificate, key, cx)?;
        if are_named {
            if coming.is_some() {
                return fail(
                    "a certificate that comes by itself stands beside those that variables name".into(),
                );
            }
            let cache = written.certificate_cache.clone();
            named.push(DynamicCertificate::new((certificate, key), passwords.clone(), cache, cx)?);
            continue;
        }
        let (source, kind) = match coming {
            Some(slot) => (Source::Coming(slot), None),
            None => {
                let identity = identity(certificate, key, &passwords, cx)?;
                let kind = identity.kind;
                let source = if written.certificate_watch {
                    let pair = Pair::of((certificate, key), written.password_file.as_ref(), cx);
                    Source::Watched(Arc::new(Watched::new(pair, identity)))
                } else {
                    Source::Fixed(identity.with_staple(response.clone()))
                };
                (source, Some(kind))
            }
        };
        // A response is about one certificate, and not about the next in its place.
        if response.is_some() && !matches!(source, Source::Fixed(_)) {
            let name = shown(certificate, cx);
            return fail(format!(
                "\"ssl_stapling_file\" cannot be used with certificate \"{name}\", which is replaced without a reload"
            ));
        }
        let stapling = match written.stapling.is_on && response.is_none() {
            true => {
                let at = (certificate, written.trusted_certificate.as_ref());
                let stapling = Stapling::new(&written.stapling, source.clone(), at, cx)?;
                Some(Arc::new(stapling)).filter(|stapling| !stapling.is_vain())
            }
            false => None,
        };
        // Of two with the same kind of key the last counts, as in nginx.
        candidates.retain(|(other, _)| other.is_none() || *other != kind);
        candidates.push((kind, Candidate { source, stapling }));
    }
    let candidates = candidates.into_iter().map(|(_, candidate)| candidate).collect();
    Ok((Identities { candidates, preference: Arc::default() }, named))
}

/// What is wanted of clients' certificates, and of which authorities they are told.
pub(super) fn clients(
    written: &Written,
    cx: &mut Resolve<'_>,
) -> Result<Option<(Clients, Vec<DistinguishedName>)>, ConfError> {
    let Some(demand) = written.verify_client else { return Ok(None) };
    if demand == Demand::OptionalNoCa && written.ocsp.about.is_some() {
        let message = "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"";
        return Err(ConfError::new(message));
    }
    let read = |word: &Option<Word>| match word {
        Some(word) => trusted(word, cx),
        None => Ok(Vec::new()),
    };
    let (shown_to_clients, others) =
        (read(&written.client_certificate)?, read(&written.trusted_certificate)?);
    // Without one of its own it trusts nobody, as in nginx.
    let has_own = !written.certificates.is_empty();
    if shown_to_clients.is_empty() && others.is_empty() && demand != Demand::OptionalNoCa && has_own {
        return Err(ConfError::new(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
        ));
    }
    let broken =
        |error: TrustError| ConfError::new(format!("authorities of clients cannot be used: {error}"));
    let hints = Authorities::new(shown_to_clients.clone()).map_err(broken)?.hints();
    let authorities = Arc::new(Authorities::new([shown_to_clients, others].concat()).map_err(broken)?);
    let crls = written.crl.as_ref().map(|word| crls(word, cx)).transpose()?;
    let trust = Trust { authorities, crls, depth: written.verify_depth, purpose: Purpose::Client };
    let inquirer = ocsp::inquirer(&written.ocsp, cx)?;
    Ok(Some((Clients { demand, trust: Arc::new(trust), inquirer }, hints)))
}

fn clock() -> Clock {
    Arc::new(|| tw_rt::clock::unix().secs.unsigned_abs())
}

/// Where sessions are kept: under its name over all reloads, as long as size and time stay.
fn sessions(written: &Written, cx: &mut Resolve<'_>) -> Arc<dyn StoresServerSessions> {
    let lifetime = lifetime(written);
    let (name, size) = match &written.session_cache {
        SessionCache::None if written.early_data != EarlyData::Refused => {
            return Arc::new(Cache::new(EARLY_SESSIONS_SIZE, lifetime, clock()));
        }
        SessionCache::None => return Arc::new(NoServerSessionStorage {}),
        SessionCache::Builtin { size } => return Arc::new(Cache::new(*size, lifetime, clock())),
        SessionCache::Shared { name, size } => (name, size),
    };
    let key = [b"tls sessions ", &name[..], format!(" {size} {lifetime}").as_bytes()].concat();
    cx.keep(&key, |_| true, || Cache::new(*size, lifetime, clock()))
}

/// Seconds in which a session may be taken up again.
fn lifetime(written: &Written) -> u32 {
    u32::try_from(written.session_timeout.as_secs()).unwrap_or(u32::MAX)
}

/// What seals sessions that clients keep: random keys that live over reloads, or those of files.
fn tickets(written: &Written, cx: &mut Resolve<'_>) -> Result<Arc<Tickets>, ConfError> {
    let lifetime = lifetime(written);
    if let [first, ..] = &written.ticket_keys[..] {
        let read = |word| contents(word, "session ticket key", cx);
        let files = written.ticket_keys.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<&[u8]> = files.iter().map(|file| &file[..]).collect();
        let tickets = Tickets::of_files(&files, lifetime, clock());
        return tickets.map(Arc::new).map_err(|error| ConfError::new(error.to_string()).at(first.span));
    }
    // DIFF(nginx): random keys live over reloads, and go to the next process.
    let made = ticket_keys_handover::tickets(lifetime, clock())
        .map_err(|error| ConfError::new(error.to_string()))?;
    let tickets = cx.keep(format!("tls tickets {lifetime}").as_bytes(), |_| true, || made);
    ticket_keys_handover::note(lifetime, &tickets);
    Ok(tickets)
}
