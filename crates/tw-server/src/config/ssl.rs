//! TLS of a server (nginx: ngx_http_ssl_module): what is written, and, in `material`, what is made of it.
//!
//! Certificates and keys are files of the configuration: the master reads them, with rights that the worker has not, and the
//! worker gets them with the rest. What a server may take and what it offers is rustls's; the words of OpenSSL select among it.

pub(crate) mod common;
pub(crate) mod dynamic_certificate;
pub(crate) mod keylog;
mod material;
pub(crate) mod ocsp;
pub(crate) mod stapling;
mod ticket_keys_handover;
pub mod watched;

use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, Node, SERVER, Setting, Word, record, units};
use tw_core::module::Settings;
use tw_core::pools::{DiskMode, PoolSettings};
use tw_core::reach::Reach;
use tw_disk::{Pool, PoolSize};

use tw_tls::ClientVerification;

use crate::config::location::Location;
use crate::http::Http;
use crate::http::generation::Generation;
use crate::load::Resolve;

pub use dynamic_certificate::Cache as CertificateCache;
pub use material::{Clients, Tls};
pub(crate) use material::{HTTP_2, warm_up};
pub use ticket_keys_handover::{export_keys, inherit_keys};

pub(crate) const LIMITS: &[&[Limit]] =
    &[material::LIMITS, ticket_keys_handover::LIMITS, dynamic_certificate::LIMITS, ocsp::LIMITS];

/// TLS of one server.
pub struct Ssl {
    written: Written,
    place: Place,
    /// What a handshake with it is done by; `None` without `ssl_certificate`.
    pub tls: Option<Arc<Tls>>,
    /// What is wanted of clients' certificates; `None` if they are not asked for. Also of a server without a certificate of its
    /// own, whose handshakes are done with that of the default server.
    pub clients: Option<Clients>,
    /// `ssl_reject_handshake`
    pub reject_handshake: bool,
    /// `ssl_sign_pool`
    pub(crate) sign_pool: SignPool,
    /// `ssl_early_data`
    pub(crate) early_data: EarlyData,
}

/// What may be asked before a handshake is over, in data that somebody may have copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyData {
    /// Nothing.
    Refused,
    /// What changes nothing: other requests are told to wait (425).
    Safe,
    /// Anything: whoever answers has to care.
    Any,
}

const EARLY_DATA: &[(&str, EarlyData)] =
    &[("off", EarlyData::Refused), ("on", EarlyData::Safe), ("any", EarlyData::Any)];

/// Who makes signatures that take longer than a turn of a loop may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignPool {
    /// The pool [`POOL`].
    Usual,
    /// The pool of this index.
    Named(usize),
    /// The loop.
    Nobody,
}

impl SignPool {
    /// The pool, if it is not the loop.
    pub(crate) fn of(self, generation: &Generation) -> Option<Pool> {
        match self {
            Self::Usual => Some(pool_of(generation)),
            Self::Named(pool) => {
                let disks = &generation.disks;
                Some(disks.get(pool, DiskMode::Threads).unwrap_or(disks.default_disk()).pool().clone())
            }
            Self::Nobody => None,
        }
    }
}

/// Where settings stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Http,
    Server,
}

/// `ssl_session_cache`
#[derive(Debug, Clone, PartialEq, Eq)]
enum SessionCache {
    /// No session is kept, and clients are not told that none is, or are.
    None,
    /// Kept by all loops for this server, in so many bytes.
    Builtin { size: usize },
    /// Kept by all loops, under a name, in so many bytes.
    Shared { name: Box<[u8]>, size: usize },
}

/// Settings with nothing left unset.
#[derive(Clone)]
struct Written {
    certificates: Vec<Word>,
    keys: Vec<Word>,
    password_file: Option<Word>,
    certificate_cache: Option<Arc<dynamic_certificate::Cache>>,
    certificate_watch: bool,
    protocols: Vec<Word>,
    ciphers: Option<Word>,
    prefer_server_ciphers: bool,
    ecdh_curve: Option<Word>,
    buffer_size: usize,
    session_cache: SessionCache,
    session_timeout: Duration,
    session_tickets: bool,
    ticket_keys: Vec<Word>,
    commands: Vec<(Word, Word)>,
    reject_handshake: bool,
    sign_pool: SignPool,
    early_data: EarlyData,
    verify_client: Option<ClientVerification>,
    verify_depth: u32,
    client_certificate: Option<Word>,
    trusted_certificate: Option<Word>,
    crl: Option<Word>,
    stapling: stapling::Written,
    ocsp: ocsp::Written,
    key_log: Option<Word>,
    certificate_compression: bool,
}

/// The same as written.
#[derive(Default)]
pub struct Raw {
    ssl_certificate: Setting<Vec<Word>>,
    ssl_certificate_key: Setting<Vec<Word>>,
    ssl_password_file: Setting<Word>,
    ssl_certificate_cache: Setting<Option<Arc<dynamic_certificate::Cache>>>,
    ssl_certificate_watch: Setting<bool>,
    ssl_protocols: Setting<Vec<Word>>,
    ssl_ciphers: Setting<Word>,
    ssl_prefer_server_ciphers: Setting<bool>,
    ssl_ecdh_curve: Setting<Word>,
    ssl_buffer_size: Setting<usize>,
    ssl_session_cache: Setting<SessionCache>,
    ssl_session_timeout: Setting<Duration>,
    ssl_session_tickets: Setting<bool>,
    ssl_session_ticket_key: Setting<Vec<Word>>,
    ssl_conf_command: Setting<Vec<(Word, Word)>>,
    ssl_reject_handshake: Setting<bool>,
    ssl_sign_pool: Setting<Word>,
    ssl_early_data: Setting<EarlyData>,
    ssl_dhparam: Setting<Word>,
    ssl_verify_client: Setting<Option<ClientVerification>>,
    ssl_verify_depth: Setting<usize>,
    ssl_client_certificate: Setting<Word>,
    ssl_trusted_certificate: Setting<Word>,
    ssl_crl: Setting<Word>,
    ssl_key_log: Setting<Word>,
    ssl_certificate_compression: Setting<bool>,
    ssl_stapling: Setting<bool>,
    ssl_stapling_file: Setting<Word>,
    ssl_stapling_responder: Setting<Word>,
    ssl_stapling_verify: Setting<bool>,
    ssl_ocsp: Setting<Option<ocsp::About>>,
    ssl_ocsp_responder: Setting<Word>,
    ssl_ocsp_cache: Setting<Option<ocsp::CacheNamed>>,
}

const VERIFY_CLIENT: &[(&str, Option<ClientVerification>)] = &[
    ("off", None),
    ("on", Some(ClientVerification::Required)),
    ("optional", Some(ClientVerification::Optional)),
    ("optional_no_ca", Some(ClientVerification::OptionalNoCa)),
];

const EVERYWHERE: u32 = HTTP | SERVER;
const ONE: Args = Args::exact(1);

impl Settings<Http> for Ssl {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("ssl_certificate", "file | data:certificate", EVERYWHERE, ONE)
            .doc("The server's certificate and those between it and an authority, in PEM; once for each kind of key. With variables \
                in its name it is read for each handshake, with the rights of the worker process.")
            .set(|raw, node, _| push_word(&mut raw.ssl_certificate, node)),
        record::new("ssl_certificate_key", "file | data:key", EVERYWHERE, ONE)
            .doc("The private key of the certificate, in PEM: PKCS#8, PKCS#1 or SEC1.")
            .set(|raw, node, _| push_word(&mut raw.ssl_certificate_key, node)),
        record::new("ssl_password_file", "file", EVERYWHERE, ONE)
            .since("1.7.3")
            .doc("Pass phrases of private keys, one a line, tried in turn.")
            .set(|raw, node, _| raw.ssl_password_file.set_once(node, node.arg(0)?.clone())),
        record::new(
            "ssl_certificate_cache",
            "off | max=number [inactive=time] [valid=time]",
            EVERYWHERE,
            Args::range(1, 3),
        )
            .default("off")
            .since("1.27.4")
            .doc("How many certificates that variables name are kept in memory, how long unused, and for how long at most.")
            .set(|raw, node, _| {
                let cache = dynamic_certificate::Cache::parse(node)?;
                raw.ssl_certificate_cache.set_once(node, cache)
            }),
        record::flag("ssl_certificate_watch", EVERYWHERE)
            .default("off")
            .since("Tailwater 0.2")
            .doc("Certificates and keys are followed: whenever their files change, handshakes have what they are then. A pair that \
                is broken or does not fit changes nothing.")
            .set(|raw, node, _| raw.ssl_certificate_watch.set_flag(node)),
        record::new("ssl_protocols", "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]", EVERYWHERE, Args::at_least(1))
            .default("TLSv1.2 TLSv1.3")
            .doc("Versions of the protocol. Those before TLSv1.2 are accepted with a warning and never offered.")
            .set(|raw, node, _| raw.ssl_protocols.set_once(node, node.args.clone())),
        record::new("ssl_ciphers", "ciphers", EVERYWHERE, ONE)
            .default("HIGH:!aNULL:!MD5")
            .doc("Cipher suites of TLSv1.2 in OpenSSL's words, which select among those that keep what was sent secret for good.")
            .set(|raw, node, _| raw.ssl_ciphers.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_prefer_server_ciphers", EVERYWHERE)
            .default("off")
            .doc("The order of ciphers is the server's, not the client's.")
            .set(|raw, node, _| raw.ssl_prefer_server_ciphers.set_flag(node)),
        record::new("ssl_ecdh_curve", "curve", EVERYWHERE, ONE)
            .default("auto")
            .since("1.1.0")
            .doc("Groups for the exchange of keys, in order, with colons between them.")
            .set(|raw, node, _| raw.ssl_ecdh_curve.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_dhparam", "file", EVERYWHERE, ONE)
            .since("0.7.2")
            .doc("Accepted with a warning: there is no key exchange over finite fields.")
            .set(|raw, node, _| raw.ssl_dhparam.set_once(node, node.arg(0)?.clone())),
        record::size("ssl_buffer_size", EVERYWHERE)
            .default("16k")
            .since("1.5.9")
            .doc("Most bytes of a response in one record, which a client can read only when all of it has arrived.")
            .set(|raw, node, _| raw.ssl_buffer_size.set_size(node)),
        record::new("ssl_session_cache", "off | none | [builtin[:size]] [shared:name:size]", EVERYWHERE, Args::range(1, 2))
            .default("none")
            .doc("Where sessions are kept so that clients can take them up again: by all loops, and if shared, over reloads.")
            .set(|raw, node, _| {
                let cache = session_cache(node)?;
                raw.ssl_session_cache.set_once(node, cache)
            }),
        record::time("ssl_session_timeout", EVERYWHERE)
            .default("5m")
            .doc("How long a client may take up a session again.")
            .set(|raw, node, _| raw.ssl_session_timeout.set_sec(node)),
        record::flag("ssl_session_tickets", EVERYWHERE)
            .default("on")
            .since("1.5.9")
            .doc("Sessions are kept by clients, sealed.")
            .set(|raw, node, _| raw.ssl_session_tickets.set_flag(node)),
        record::new("ssl_session_ticket_key", "file", EVERYWHERE, ONE)
            .since("1.5.7")
            .doc("A key of 48 or 80 random bytes for tickets; the first seals them, all open them. Without, keys are made and changed.")
            .set(|raw, node, _| push_word(&mut raw.ssl_session_ticket_key, node)),
        record::new("ssl_conf_command", "name value", EVERYWHERE, Args::exact(2))
            .since("1.19.4")
            .doc("A command of OpenSSL: MinProtocol, MaxProtocol, CipherString, Ciphersuites, Curves, Groups, Options.")
            .set(|raw, node, _| {
                raw.ssl_conf_command.push(node, (node.arg(0)?.clone(), node.arg(1)?.clone()));
                Ok(())
            }),
        record::flag("ssl_reject_handshake", EVERYWHERE)
            .default("off")
            .since("1.19.4")
            .doc("Handshakes with names of this server are refused.")
            .set(|raw, node, _| raw.ssl_reject_handshake.set_flag(node)),
        record::new("ssl_sign_pool", "pool | off", EVERYWHERE, ONE)
            .default(POOL)
            .since("Tailwater 0.2")
            .doc("Pool of threads for signatures of RSA, which take longer than a turn of a loop may; with `off` loops make them. \
                Keys of ECDSA always sign on the loop.")
            .set(|raw, node, _| raw.ssl_sign_pool.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_early_data", "on | off | any", EVERYWHERE, ONE)
            .default("off")
            .since("1.15.3")
            .doc("Clients of TLSv1.3 that come again may ask before the handshake is over; what is not safe then gets 425, but with `any`.")
            // DIFF(nginx): requests that are not safe have to wait.
            .set(|raw, node, _| raw.ssl_early_data.set_one_of(node, EARLY_DATA)),
        record::new("ssl_verify_client", "on | off | optional | optional_no_ca", EVERYWHERE, ONE)
            .default("off")
            .doc("Clients are asked for a certificate, and what becomes of those that have none, or one that is not trusted.")
            .set(|raw, node, _| raw.ssl_verify_client.set_one_of(node, VERIFY_CLIENT)),
        record::number("ssl_verify_depth", EVERYWHERE)
            .default("1")
            .doc("How many certificates may stand between a client's and one that is trusted.")
            .set(|raw, node, _| raw.ssl_verify_depth.set_number(node)),
        record::new("ssl_client_certificate", "file", EVERYWHERE, ONE)
            .doc("Authorities that are trusted with the certificates of clients, which are told their names, in PEM.")
            .set(|raw, node, _| raw.ssl_client_certificate.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_trusted_certificate", "file", EVERYWHERE, ONE)
            .since("1.3.7")
            .doc("Authorities that are trusted too, and of which clients are not told.")
            .set(|raw, node, _| raw.ssl_trusted_certificate.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_crl", "file", EVERYWHERE, ONE)
            .since("0.8.7")
            .doc("Lists of certificates of clients that were revoked, in PEM: one of each authority on the way.")
            .set(|raw, node, _| raw.ssl_crl.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_key_log", "path", EVERYWHERE, ONE)
            .since("1.27.2")
            .doc("Secrets of connections go to this file, so that somebody can read what was sent: not for production.")
            .set(|raw, node, _| raw.ssl_key_log.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_certificate_compression", EVERYWHERE)
            .default("off")
            .since("1.29.1")
            .doc("Certificates are compressed for clients of TLSv1.3 that can read it.")
            .set(|raw, node, _| raw.ssl_certificate_compression.set_flag(node)),
        record::flag("ssl_stapling", EVERYWHERE)
            .default("off")
            .since("1.3.7")
            .doc("Clients are shown what the authority says of the certificate now (OCSP): it is asked beside the loops.")
            .set(|raw, node, _| raw.ssl_stapling.set_flag(node)),
        record::new("ssl_stapling_file", "file", EVERYWHERE, ONE)
            .since("1.3.7")
            .doc("Clients are shown this response of the authority, as DER; nobody is asked.")
            .set(|raw, node, _| raw.ssl_stapling_file.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_stapling_responder", "url", EVERYWHERE, ONE)
            .since("1.3.7")
            .doc("Who is asked instead of the responder that the certificate names: `http://…`.")
            .set(|raw, node, _| raw.ssl_stapling_responder.set_once(node, node.arg(0)?.clone())),
        record::flag("ssl_stapling_verify", EVERYWHERE)
            .default("off")
            .since("1.3.7")
            .doc("Responses that are shown are signed by the issuer of the certificate, or by whom that has appointed; without, also by an authority above the issuer.")
            .set(|raw, node, _| raw.ssl_stapling_verify.set_flag(node)),
        record::new("ssl_ocsp", "on | off | leaf", EVERYWHERE, ONE)
            .default("off")
            .since("1.19.0")
            .doc("Authorities are asked whether certificates of clients were revoked: those of the whole chain, or the first one.")
            .set(|raw, node, _| raw.ssl_ocsp.set_one_of(node, ocsp::ABOUT)),
        record::new("ssl_ocsp_responder", "url", EVERYWHERE, ONE)
            .since("1.19.0")
            .doc("Who is asked instead of the responder that a certificate of a client names: `http://…`.")
            .set(|raw, node, _| raw.ssl_ocsp_responder.set_once(node, node.arg(0)?.clone())),
        record::new("ssl_ocsp_cache", "off | shared:name:size", EVERYWHERE, ONE)
            .default("off")
            .since("1.19.0")
            .doc("Where answers about certificates of clients are kept until they end, for all loops.")
            .set(|raw, node, _| {
                let cache = ocsp::cache(node)?;
                raw.ssl_ocsp_cache.set_once(node, cache)
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        // DIFF(nginx): what is known to be weak is never offered.
        if let Some(file) = raw.ssl_dhparam.take() {
            cx.warn(file.span, "\"ssl_dhparam\" has no effect: there is no key exchange over finite fields");
        }
        let outer_written = outer.map(|outer| &outer.written);
        let list =
            |raw: Setting<Vec<Word>>, outer: Option<&Vec<Word>>| raw.or_else(|| outer.cloned(), Vec::new);
        let word = |raw: Setting<Word>, outer: Option<&Option<Word>>| {
            raw.take().or_else(|| outer.cloned().flatten())
        };
        let written = Written {
            certificates: list(raw.ssl_certificate, outer_written.map(|o| &o.certificates)),
            keys: list(raw.ssl_certificate_key, outer_written.map(|o| &o.keys)),
            password_file: word(raw.ssl_password_file, outer_written.map(|o| &o.password_file)),
            certificate_cache: raw
                .ssl_certificate_cache
                .or_else(|| outer_written.map(|o| o.certificate_cache.clone()), || None),
            certificate_watch: raw
                .ssl_certificate_watch
                .or(outer_written.map(|o| o.certificate_watch), false),
            protocols: list(raw.ssl_protocols, outer_written.map(|o| &o.protocols)),
            ciphers: word(raw.ssl_ciphers, outer_written.map(|o| &o.ciphers)),
            prefer_server_ciphers: raw
                .ssl_prefer_server_ciphers
                .or(outer_written.map(|o| o.prefer_server_ciphers), false),
            ecdh_curve: word(raw.ssl_ecdh_curve, outer_written.map(|o| &o.ecdh_curve)),
            buffer_size: raw.ssl_buffer_size.or(outer_written.map(|o| o.buffer_size), 16 << 10),
            session_cache: raw
                .ssl_session_cache
                .or_else(|| outer_written.map(|o| o.session_cache.clone()), || SessionCache::None),
            session_timeout: raw
                .ssl_session_timeout
                .or(outer_written.map(|o| o.session_timeout), Duration::from_secs(300)),
            session_tickets: raw.ssl_session_tickets.or(outer_written.map(|o| o.session_tickets), true),
            ticket_keys: list(raw.ssl_session_ticket_key, outer_written.map(|o| &o.ticket_keys)),
            commands: raw.ssl_conf_command.or_else(|| outer_written.map(|o| o.commands.clone()), Vec::new),
            reject_handshake: raw.ssl_reject_handshake.or(outer_written.map(|o| o.reject_handshake), false),
            sign_pool: match raw.ssl_sign_pool.take() {
                None => outer_written.map_or(SignPool::Usual, |outer| outer.sign_pool),
                Some(word) if word.is("off") => SignPool::Nobody,
                Some(word) if word.is(POOL) => SignPool::Usual,
                Some(word) => SignPool::Named(cx.pool(&word.bytes, word.span)?),
            },
            early_data: raw.ssl_early_data.or(outer_written.map(|o| o.early_data), EarlyData::Refused),
            verify_client: raw.ssl_verify_client.or(outer_written.map(|o| o.verify_client), None),
            verify_depth: raw
                .ssl_verify_depth
                .take()
                .map(|depth| u32::try_from(depth).unwrap_or(u32::MAX))
                .or(outer_written.map(|o| o.verify_depth))
                .unwrap_or(1),
            client_certificate: word(
                raw.ssl_client_certificate,
                outer_written.map(|o| &o.client_certificate),
            ),
            trusted_certificate: word(
                raw.ssl_trusted_certificate,
                outer_written.map(|o| &o.trusted_certificate),
            ),
            crl: word(raw.ssl_crl, outer_written.map(|o| &o.crl)),
            key_log: word(raw.ssl_key_log, outer_written.map(|o| &o.key_log)),
            certificate_compression: raw
                .ssl_certificate_compression
                .or(outer_written.map(|o| o.certificate_compression), false),
            stapling: stapling::Written {
                is_on: raw.ssl_stapling.or(outer_written.map(|o| o.stapling.is_on), false),
                verifies: raw.ssl_stapling_verify.or(outer_written.map(|o| o.stapling.verifies), false),
                file: word(raw.ssl_stapling_file, outer_written.map(|o| &o.stapling.file)),
                responder: word(raw.ssl_stapling_responder, outer_written.map(|o| &o.stapling.responder)),
            },
            ocsp: ocsp::Written {
                about: raw.ssl_ocsp.or(outer_written.map(|o| o.ocsp.about), None),
                responder: word(raw.ssl_ocsp_responder, outer_written.map(|o| &o.ocsp.responder)),
                cache: raw.ssl_ocsp_cache.or_else(|| outer_written.map(|o| o.ocsp.cache.clone()), || None),
            },
        };
        let mut clients = None;
        let mut tls = None;
        if outer.is_some() {
            let (wanted, hints) = material::clients(&written, cx)?.unzip();
            clients = wanted;
            if !written.certificates.is_empty() || written.reject_handshake {
                tls = Some(material::tls(&written, hints, cx)?);
            }
        }
        let Written { reject_handshake, sign_pool, early_data, .. } = written;
        let place = if outer.is_some() { Place::Server } else { Place::Http };
        Ok(Self { written, place, tls, clients, reject_handshake, sign_pool, early_data })
    }

    fn reach(&self, _core: &Location, reach: &mut Reach) {
        self.tls.iter().flat_map(|tls| &tls.named).for_each(|named| named.reach(reach));
        let asks_clients = self.clients.as_ref().is_some_and(|clients| clients.inquirer.is_some());
        if asks_clients || self.tls.as_ref().is_some_and(|tls| tls.staplings().next().is_some()) {
            reach.connects();
        }
    }

    fn are_shared(&self) -> bool {
        // Locations have nothing of it; what stands in `http` is made something of in each server.
        let Written { certificates, verify_client, .. } = &self.written;
        let is_nothing = certificates.is_empty() && !self.reject_handshake && verify_client.is_none();
        self.place == Place::Server || is_nothing
    }
}

fn push_word(setting: &mut Setting<Vec<Word>>, node: &Node) -> Result<(), ConfError> {
    let word = node.arg(0)?;
    common::check_name(node, word, "ngx_http_ssl_module")?;
    setting.push(node, word.clone());
    Ok(())
}

fn session_cache(node: &Node) -> Result<SessionCache, ConfError> {
    let mut cache = SessionCache::None;
    for word in &node.args {
        let invalid = || node.fail(format!("invalid session cache \"{word}\""));
        match &*word.bytes {
            b"off" | b"none" => {}
            bytes if bytes.starts_with(b"builtin") => {
                let count = match &bytes[b"builtin".len()..] {
                    b"" => BUILTIN_SESSIONS,
                    count => count.strip_prefix(b":").and_then(units::number).ok_or_else(invalid)?,
                };
                let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(invalid)?;
                // Of both, the one that is shared keeps what the other one does, too.
                if cache == SessionCache::None {
                    cache = SessionCache::Builtin { size: count.saturating_mul(SESSION_SIZE) };
                }
            }
            bytes => {
                let rest = bytes.strip_prefix(b"shared:").ok_or_else(invalid)?;
                let colon = rest.iter().position(|byte| *byte == b':').ok_or_else(invalid)?;
                let (name, size) = (&rest[..colon], &rest[colon + 1..]);
                let size = units::size(size).and_then(|size| usize::try_from(size).ok());
                let size = size.filter(|_| !name.is_empty()).ok_or_else(invalid)?;
                if size < SESSION_CACHE_MIN {
                    return Err(node.fail(format!("session cache \"{word}\" is too small")));
                }
                cache = SessionCache::Shared { name: name.into(), size };
            }
        }
    }
    Ok(cache)
}

/// The pool that signs, unless one of this name is configured otherwise.
pub(crate) const POOL: &str = "tls";

/// That pool.
pub(crate) fn pool_of(generation: &Generation) -> Pool {
    let disks = &generation.disks;
    let named = disks.pool_index(POOL.as_bytes()).and_then(|pool| disks.get(pool, DiskMode::Threads));
    named.unwrap_or(disks.default_disk()).pool().clone()
}

/// Its settings where every loop of `loops` may want a signature: as many threads, which take turns with them.
pub(crate) fn pool(loops: usize) -> PoolSettings {
    let threads = u32::try_from(loops).unwrap_or(u32::MAX).clamp(1, POOL_THREADS_MAX);
    PoolSettings { name: POOL.into(), size: PoolSize::new(threads, POOL_QUEUE_MAX), span: None }
}

/// More would not sign faster.
const POOL_THREADS_MAX: u32 = 64;
/// At 0.3 ms each, clients give up before it is their turn.
const POOL_QUEUE_MAX: usize = 4096;

/// As in nginx.
const BUILTIN_SESSIONS: u64 = 20_480;
/// nginx: "one megabyte can store about 4000 sessions".
const SESSION_SIZE: usize = (1 << 20) / 4000;

/// As in nginx: eight pages.
const SESSION_CACHE_MIN: usize = 8 * 4096;
