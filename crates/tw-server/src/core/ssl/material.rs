//! What is made of the settings of a server: its certificates and keys, what it offers, where sessions are kept.

use std::sync::Arc;

use rustls::compress::ZLIB_COMPRESSOR;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, StoresServerSessions};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, ServerConfig, SignatureScheme};
use tw_acme::Slot;
use tw_base::Limit;
use tw_conf::{ConfError, Word};
use tw_tls::words::{Flag, Switch};
use tw_tls::{
    Authorities, Cache, ClientVerifier, Clock, Context, Cost, Demand, Identity, Purpose, Tickets, Trust,
    TrustError, Within,
};

use super::common::{Offered, contents, crls, identity, passwords, shown, trusted};
use super::keylog::KeyLogFile;
use super::named::{Named, is_named};
use super::ocsp::{self, Inquirer};
use super::stapling::{self, Staple};
use super::{EarlyData, SessionCache, Written, heirs};
use crate::core::acme;
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
    pub(crate) named: Vec<Named>,
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
    pub(crate) fn staples(&self) -> impl Iterator<Item = &Arc<Staple>> {
        self.identities.candidates.iter().filter_map(|candidate| candidate.staple.as_ref())
    }

    /// The same with these certificates, and the signature that a client will get.
    pub(crate) fn with(
        &self,
        identities: Vec<Identity>,
        hello: &ClientHello<'_>,
        speaks_http2: bool,
    ) -> (Arc<ServerConfig>, Signature) {
        let bare = |identity| Candidate { identity, staple: None };
        let identities = Identities { candidates: identities.into_iter().map(bare).collect(), coming: None };
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

/// The certificates of a server, one for each kind of key, and one that comes by itself.
#[derive(Debug)]
struct Identities {
    candidates: Vec<Candidate>,
    coming: Option<Arc<Slot>>,
}

#[derive(Debug, Clone)]
struct Candidate {
    identity: Identity,
    /// What its authority says of it, if that is shown, too.
    staple: Option<Arc<Staple>>,
}

impl Identities {
    fn signature_for(&self, hello: &ClientHello<'_>) -> Signature {
        let offered = hello.signature_schemes();
        let Some(Candidate { identity, .. }) = self.choose(offered) else {
            return Signature { cost: Cost::Fast, scheme: None };
        };
        let scheme = identity.certified.key.choose_scheme(offered).map(|signer| signer.scheme());
        Signature { cost: identity.cost, scheme }
    }

    /// The one that can sign as the client likes best.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<Candidate> {
        let coming = self.coming.as_ref().map(|slot| Candidate { identity: slot.identity(), staple: None });
        let signs = |candidate: &&Candidate, scheme| {
            candidate.identity.certified.key.choose_scheme(&[scheme]).is_some()
        };
        let all = || self.candidates.iter().chain(&coming);
        schemes.iter().find_map(|scheme| all().find(|candidate| signs(candidate, *scheme)).cloned())
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Candidate { identity, staple } = self.choose(hello.signature_schemes())?;
        let now = || tw_rt::clock::unix().secs.unsigned_abs();
        let stapled = staple.as_ref().and_then(|staple| staple.current(now()));
        Some(stapled.unwrap_or_else(|| identity.certified.clone()))
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
    let (identities, named) = identities(written, cx)?;
    let identities = Arc::new(identities);
    let context = context(written, &identities, hints.as_deref());
    let mut prefers_own = written.prefer_server_ciphers;
    let mut tickets = written.session_tickets;
    let offered = Offered {
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
    config.send_tls13_tickets = if is_kept { TICKETS } else { 0 };
    let mut with_http2 = config.clone();
    with_http2.alpn_protocols.insert(0, HTTP_2.to_vec());
    Ok(Arc::new(Tls { config: Arc::new(config), with_http2: Arc::new(with_http2), identities, named }))
}

/// Whose sessions a server takes up: those of servers with the same certificates, or names of them, and the same authorities.
fn context(written: &Written, identities: &Identities, hints: Option<&[DistinguishedName]>) -> Context {
    let leaves =
        identities.candidates.iter().filter_map(|candidate| candidate.identity.certified.cert.first());
    let names = written.certificates.iter().filter(|_| identities.candidates.is_empty());
    let parts = leaves.map(|leaf| &**leaf).chain(names.map(|name| &*name.bytes));
    Context::of(parts.chain(hints.unwrap_or_default().iter().map(|hint| hint.as_ref())))
}

/// As OpenSSL sends: a browser opens several connections.
const TICKETS: usize = 2;

/// Certificates and keys: all that are read now, or how they are named if variables name one of them.
fn identities(written: &Written, cx: &mut Resolve<'_>) -> Result<(Identities, Vec<Named>), ConfError> {
    let passwords = Arc::new(passwords(written.password_file.as_ref(), cx)?);
    let pairs = || written.certificates.iter().zip(&written.keys);
    let are_named =
        pairs().any(|(certificate, key)| is_named(certificate, key) && !acme::is_coming(certificate, key));
    let mut coming = None;
    let response = stapling::of_file(&written.stapling, cx)?;
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut named = Vec::new();
    for (at, certificate) in written.certificates.iter().enumerate() {
        let Some(key) = written.keys.get(at) else {
            let message = format!(
                "no \"ssl_certificate_key\" is defined for certificate \"{}\"",
                shown(certificate, cx)
            );
            return Err(ConfError::new(message).at(certificate.span));
        };
        if let Some(slot) = acme::coming(certificate, key, cx)? {
            if are_named {
                let message = "a certificate that comes by itself stands beside those that variables name";
                return Err(ConfError::new(message).at(certificate.span));
            }
            coming = Some(slot);
            continue;
        }
        if are_named {
            let cache = written.certificate_cache.clone();
            named.push(Named::new((certificate, key), passwords.clone(), cache, cx)?);
            continue;
        }
        let identity = identity(certificate, key, &passwords, cx)?;
        let (identity, staple) = match &response {
            Some(response) => (identity.with_staple(Some(response.clone())), None),
            None if written.stapling.is_on => {
                let at = (certificate, written.trusted_certificate.as_ref());
                let staple = stapling::staple(&written.stapling, &identity, at, cx)?;
                (identity, staple)
            }
            None => (identity, None),
        };
        // Of two with the same kind of key the last counts, as in nginx.
        candidates.retain(|other| other.identity.kind != identity.kind);
        candidates.push(Candidate { identity, staple });
    }
    Ok((Identities { candidates, coming }, named))
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
    let made = heirs::tickets(lifetime, clock()).map_err(|error| ConfError::new(error.to_string()))?;
    let tickets = cx.keep(format!("tls tickets {lifetime}").as_bytes(), |_| true, || made);
    heirs::note(lifetime, &tickets);
    Ok(tickets)
}
