//! What is made of the settings of a server: its certificates and keys, what it offers, where sessions are kept.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, StoresServerSessions};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, ServerConfig, SignatureScheme};
use tw_conf::{ConfError, Word};
use tw_tls::words::{Flag, Switch};
use tw_tls::{
    Authorities, Cache, ClientVerifier, Clock, Cost, Demand, Identity, Purpose, Tickets, Trust, TrustError,
};

use super::common::{Offered, contents, crls, identity, passwords, shown, trusted};
use super::{SessionCache, Written};
use crate::load::Resolve;

/// Bytes that a record has beside the content, as rustls counts them.
const RECORD_OVERHEAD: usize = 5;
/// The least that rustls can be told, and more than nothing.
const BUFFER_SIZE_MIN: usize = 512;
/// What a record can hold.
const BUFFER_SIZE_MAX: usize = 16 << 10;
/// The protocols inside, in the order of preference (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"http/1.0"];

/// What handshakes with a server are done by.
#[derive(Debug)]
pub struct Tls {
    /// All of it, as rustls wants it.
    pub config: Arc<ServerConfig>,
    identities: Arc<Identities>,
}

/// What is wanted of the certificates of clients.
#[derive(Debug, Clone)]
pub struct Clients {
    /// Who gets further.
    pub demand: Demand,
    /// Who is trusted.
    pub trust: Arc<Trust>,
}

impl Tls {
    /// How long the signature takes that a client will get.
    pub fn cost_of(&self, hello: &ClientHello<'_>) -> Cost {
        self.identities.choose(hello.signature_schemes()).map_or(Cost::Fast, |identity| identity.cost)
    }
}

/// The certificates of a server, one for each kind of key.
#[derive(Debug)]
struct Identities(Vec<Identity>);

impl Identities {
    /// The one that can sign as the client likes best.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<&Identity> {
        let signs = |identity: &&Identity, scheme| identity.certified.key.choose_scheme(&[scheme]).is_some();
        schemes.iter().find_map(|scheme| self.0.iter().find(|identity| signs(identity, *scheme)))
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.signature_schemes()).map(|identity| identity.certified.clone())
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
    let identities = Arc::new(Identities(identities(written, cx)?));
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
    let builder = match hints {
        Some(hints) => builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(hints))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identities.clone());
    config.ignore_client_order = prefers_own;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    config.max_fragment_size =
        Some(written.buffer_size.clamp(BUFFER_SIZE_MIN, BUFFER_SIZE_MAX) + RECORD_OVERHEAD);
    config.session_storage = sessions(written, cx);
    if tickets {
        config.ticketer = self::tickets(written, cx)?;
    }
    // Without tickets that hold a session, there are some that name one which is kept.
    let is_kept = tickets || written.session_cache != SessionCache::None;
    config.send_tls13_tickets = if is_kept { TICKETS } else { 0 };
    Ok(Arc::new(Tls { config: Arc::new(config), identities }))
}

/// As OpenSSL sends: a browser opens several connections.
const TICKETS: usize = 2;

fn identities(written: &Written, cx: &Resolve<'_>) -> Result<Vec<Identity>, ConfError> {
    let passwords = passwords(written.password_file.as_ref(), cx)?;
    let mut identities: Vec<Identity> = Vec::new();
    for (at, certificate) in written.certificates.iter().enumerate() {
        let Some(key) = written.keys.get(at) else {
            let message = format!(
                "no \"ssl_certificate_key\" is defined for certificate \"{}\"",
                shown(certificate, cx)
            );
            return Err(ConfError::new(message).at(certificate.span));
        };
        let identity = identity(certificate, key, &passwords, cx)?;
        // Of two with the same kind of key the last counts, as in nginx.
        identities.retain(|other| other.kind != identity.kind);
        identities.push(identity);
    }
    Ok(identities)
}

/// What is wanted of clients' certificates, and of which authorities they are told.
pub(super) fn clients(
    written: &Written,
    cx: &Resolve<'_>,
) -> Result<Option<(Clients, Vec<DistinguishedName>)>, ConfError> {
    let Some(demand) = written.verify_client else { return Ok(None) };
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
    Ok(Some((Clients { demand, trust: Arc::new(trust) }, hints)))
}

fn clock() -> Clock {
    Arc::new(|| tw_rt::clock::unix().secs.unsigned_abs())
}

/// Where sessions are kept: under its name over all reloads, as long as size and time stay.
fn sessions(written: &Written, cx: &mut Resolve<'_>) -> Arc<dyn StoresServerSessions> {
    let lifetime = lifetime(written);
    let (name, size) = match &written.session_cache {
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
    // DIFF(nginx): random keys live over reloads.
    let made = Tickets::random(lifetime, clock()).map_err(|error| ConfError::new(error.to_string()))?;
    Ok(cx.keep(format!("tls tickets {lifetime}").as_bytes(), |_| true, || made))
}
