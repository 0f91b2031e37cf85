//! TLS under QUIC (RFC 9001): the engine feeds CRYPTO frames to a session of rustls and gets keys from it. The session has begun by then,
//! perhaps on another thread, with the client hello that was read before ([`crate::hello`]); the engine delivers that once more.

use std::any::Any;
use std::collections::VecDeque;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::BufMut;
use engine::crypto::{self, HeaderKey, KeyPair, Keys, PacketKey};
use engine::transport_parameters::TransportParameters;
use quinn_proto as engine;
use rustls::pki_types::CertificateDer;
use rustls::quic::{KeyChange, ServerConnection, Version};
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ServerConfig, SignatureScheme};
use tw_base::FatalMutex;

use crate::config::{PAYLOAD_SIZE_MAX, TransportSettings};
use crate::next_key::NextSecrets;
use crate::path_mtu;
use crate::path_watch::{PathWatch, WatchedKey};
use crate::qlog::{PacketKind, Recorder, recorded, recorded_keys};
use crate::varint::write_varint;
use crate::version::{VERSION_1, initial_suite};

/// Key and nonce of Retry packets (RFC 9001, section 5.8).
const RETRY_KEY: [u8; 16] =
    [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e];
const RETRY_NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

/// Facts of TLS about a connection.
#[derive(Debug, Clone)]
pub struct TlsFacts {
    /// Server name that the client sent (SNI).
    pub server_name: Option<Box<str>>,
    /// Protocol chosen by ALPN.
    pub protocol: Option<Box<[u8]>>,
    /// Cipher suite.
    pub suite: Option<CipherSuite>,
    /// Group of the key exchange; none where a session was resumed without one.
    pub group: Option<NamedGroup>,
    /// True if a session was resumed.
    pub is_resumed: bool,
    /// Certificate chain of the client, its own first; empty without one. Nobody has verified it but for the signature of the client.
    pub client_chain: Vec<CertificateDer<'static>>,
    /// Scheme in which the client has signed; none without a certificate, and where a session was resumed.
    pub client_scheme: Option<SignatureScheme>,
}

/// Scheme of the signature of a client that this thread has verified last, and not told yet. The session does not expose it.
pub type ClientScheme = fn() -> Option<SignatureScheme>;

/// TLS session of a server that has read the client hello and written its answer. Made by any thread.
pub(crate) struct BegunSession {
    session: ServerConnection,
    scheme_source: ClientScheme,
    client_scheme: Option<SignatureScheme>,
    /// Answers in order, each with the keys that come into use behind it.
    answers: VecDeque<(Vec<u8>, Option<KeyChange>)>,
    /// Length of the hello, which the engine is going to deliver once more.
    hello_len: usize,
    /// Transport parameters that the client gets.
    params: Vec<u8>,
    /// Largest datagram that may be sent.
    datagram_size_max: u16,
    /// Watch over packets of 1-RTT.
    pub(crate) watch: Arc<PathWatch>,
    /// Recorder of packets, if they are recorded.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

impl BegunSession {
    /// Reads the client hello and writes the answer, which contains the signature of the server. The error is an alert with its reason.
    pub(crate) fn begin(
        config: Arc<ServerConfig>,
        scheme_source: ClientScheme,
        params: Vec<u8>,
        datagram_size_max: u16,
        hello: &[u8],
    ) -> Result<Box<Self>, (u8, rustls::Error)> {
        let session = ServerConnection::new(config, Version::V1, params.clone());
        let mut session = session.map_err(|error| (INTERNAL_ERROR, error))?;
        session.read_hs(hello).map_err(|error| (session.alert().map_or(INTERNAL_ERROR, u8::from), error))?;
        let mut answers = VecDeque::new();
        loop {
            let mut answer = Vec::new();
            let change = session.write_hs(&mut answer);
            if answer.is_empty() && change.is_none() {
                break;
            }
            answers.push_back((answer, change));
        }
        Ok(Box::new(Self {
            session,
            scheme_source,
            client_scheme: None,
            answers,
            hello_len: hello.len(),
            params,
            datagram_size_max,
            watch: Arc::default(),
            recorder: None,
        }))
    }
}

/// Start of a session for the engine.
pub(crate) enum SessionStart {
    /// The session of the connection that is accepted next, for all connections with the same settings.
    Begun(FatalMutex<Option<Box<BegunSession>>>),
    /// Alert that ends the handshake.
    Reject(u8),
}

impl SessionStart {
    /// Sets the session of the connection that is accepted next.
    pub(crate) fn set(&self, session: Option<Box<BegunSession>>) {
        if let Self::Begun(begun) = self {
            *begun.lock() = session;
        }
    }
}

/// Alert `internal_error`.
const INTERNAL_ERROR: u8 = 80;

fn failure(alert: u8, reason: &str) -> engine::TransportError {
    engine::TransportError {
        code: engine::TransportErrorCode::crypto(alert),
        frame: None,
        reason: reason.to_owned(),
    }
}

/// Transport parameters of a connection that are not settings.
pub(crate) struct ConnectionParameters<'a> {
    /// Destination of the client's first packet.
    pub(crate) original_destination: &'a [u8],
    /// Source of the Retry packet, if there was one.
    pub(crate) retry_source: Option<&'a [u8]>,
    /// Source of the server's first packet.
    pub(crate) source: &'a [u8],
    /// Token of a stateless reset of that.
    pub(crate) reset_token: &'a [u8],
}

/// Transport parameters as they travel (RFC 9000, section 18), like those that the engine makes when it accepts a connection.
pub(crate) fn encode(settings: &TransportSettings, connection: &ConnectionParameters<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(160);
    let mut put = |id: u64, value: &[u8]| {
        write_varint(&mut out, id);
        write_varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    };
    put(0x00, connection.original_destination);
    put(0x02, connection.reset_token);
    put(0x0f, connection.source);
    if let Some(source) = connection.retry_source {
        put(0x10, source);
    }
    let window = u64::from(settings.stream_receive_window);
    for (id, value) in [
        (0x01, settings.idle_ms()),
        (0x03, u64::from(PAYLOAD_SIZE_MAX)),
        (0x04, u64::from(settings.receive_window)),
        (0x05, window),
        (0x06, window),
        (0x07, window),
        (0x08, settings.first_bidi_streams()),
        (0x09, settings.uni_streams()),
        (0x0e, settings.connection_ids()),
        (MIN_ACK_DELAY, MIN_ACK_DELAY_US),
    ] {
        let mut number = Vec::with_capacity(8);
        write_varint(&mut number, value);
        put(id, &number);
    }
    put(GREASE_QUIC_BIT, &[]);
    out
}

/// Parameters of extensions that the engine has: acknowledgement frequency, and RFC 9287.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;
const MIN_ACK_DELAY_US: u64 = 1000;
const GREASE_QUIC_BIT: u64 = 0x2ab2;

impl crypto::ServerConfig for SessionStart {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &engine::ConnectionId,
    ) -> Result<Keys, crypto::UnsupportedVersion> {
        if version != VERSION_1 {
            return Err(crypto::UnsupportedVersion);
        }
        Ok(keys(initial_suite().keys(dst_cid, rustls::Side::Server, Version::V1)))
    }

    fn retry_tag(&self, _version: u32, orig_dst_cid: &engine::ConnectionId, packet: &[u8]) -> [u8; 16] {
        let mut pseudo_packet = Vec::with_capacity(packet.len() + orig_dst_cid.len() + 1);
        pseudo_packet.put_u8(orig_dst_cid.len() as u8);
        pseudo_packet.extend_from_slice(orig_dst_cid);
        pseudo_packet.extend_from_slice(packet);
        let key = UnboundKey::new(&AES_128_GCM, &RETRY_KEY).map(LessSafeKey::new);
        let nonce = Nonce::assume_unique_for_key(RETRY_NONCE);
        let sealed =
            key.and_then(|key| key.seal_in_place_separate_tag(nonce, Aad::from(pseudo_packet), &mut []));
        let mut tag = [0; 16];
        // Sealing fails independently of the packet, if at all; the client would ignore a tag of zeros.
        if let Ok(sealed) = sealed {
            tag.copy_from_slice(sealed.as_ref());
        }
        tag
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let taken = match &*self {
            Self::Begun(begun) => begun.lock().take().ok_or_else(|| failure(INTERNAL_ERROR, "no session")),
            Self::Reject(alert) => Err(failure(*alert, "handshake rejected")),
        };
        let (state, watch, recorder) = match taken {
            Ok(begun) => {
                let ours = decoded(&begun.params);
                debug_assert_eq!(
                    ours,
                    decoded(&encode_parameters(params)),
                    "the client gets those of the engine"
                );
                let (watch, recorder) = (begun.watch.clone(), begun.recorder.clone());
                (SessionState::Handshake(begun), watch, recorder)
            }
            Err(error) => (SessionState::Failed(error), Arc::default(), None),
        };
        Box::new(Session {
            state,
            watch,
            recorder,
            next_secrets: None,
            has_told: false,
            are_facts_taken: AtomicBool::new(false),
        })
    }
}

/// TLS session of one connection.
struct Session {
    state: SessionState,
    watch: Arc<PathWatch>,
    recorder: Option<Arc<Recorder>>,
    next_secrets: Option<NextSecrets>,
    /// True once the engine knows that there are facts.
    has_told: bool,
    /// True once the facts were taken.
    are_facts_taken: AtomicBool,
}

/// State of a TLS session.
enum SessionState {
    /// Until everything is written.
    Handshake(Box<BegunSession>),
    /// Nothing of rustls is kept: its memory is some kilobytes. Facts are kept until they are taken.
    Complete(FatalMutex<Option<Box<TlsFacts>>>),
    /// Error of the handshake.
    Failed(engine::TransportError),
}

/// Alert `unexpected_message`.
const UNEXPECTED_MESSAGE: u8 = 10;

impl SessionState {
    fn handshake(&self) -> Result<&BegunSession, engine::TransportError> {
        match self {
            Self::Handshake(begun) => Ok(begun),
            // A client sends no TLS messages after the handshake (RFC 9001 section 6).
            Self::Complete(_) => Err(failure(UNEXPECTED_MESSAGE, "message after the handshake")),
            Self::Failed(error) => Err(error.clone()),
        }
    }

    fn handshake_mut(&mut self) -> Result<&mut BegunSession, engine::TransportError> {
        match self {
            Self::Handshake(begun) => Ok(begun),
            Self::Complete(_) => Err(failure(UNEXPECTED_MESSAGE, "message after the handshake")),
            Self::Failed(error) => Err(error.clone()),
        }
    }
}

impl BegunSession {
    fn facts(&self) -> TlsFacts {
        let session = &self.session;
        let chain = session.peer_certificates().unwrap_or_default();
        TlsFacts {
            server_name: session.server_name().map(Into::into),
            protocol: session.alpn_protocol().map(Into::into),
            suite: session.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: session.negotiated_key_exchange_group().map(|group| group.name()),
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            client_chain: chain.iter().map(|der| der.clone().into_owned()).collect(),
            client_scheme: self.client_scheme,
        }
    }
}

/// Parameters as text, without those that differ by intent.
fn decoded(params: &[u8]) -> String {
    let side = engine::Side::Client;
    let params = TransportParameters::read(side, &mut Cursor::new(params));
    let text = format!("{params:?}");
    match text.split_once("active_connection_id_limit") {
        Some((before, behind)) => format!("{before}{}", behind.split_once(',').map_or("", |(_, rest)| rest)),
        None => text,
    }
}

fn encode_parameters(params: &TransportParameters) -> Vec<u8> {
    let mut out = Vec::new();
    params.write(&mut out);
    out
}

impl Session {
    fn watched(
        &self,
        local: Box<dyn rustls::quic::PacketKey>,
        remote: Box<dyn rustls::quic::PacketKey>,
    ) -> KeyPair<Box<dyn PacketKey>> {
        let watched =
            |key| recorded(self.recorder.as_ref(), PacketKind::OneRtt, WatchedKey::boxed(key, &self.watch));
        KeyPair { local: watched(local), remote: watched(remote) }
    }
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &engine::ConnectionId, side: engine::Side) -> Keys {
        let side = if side.is_client() { rustls::Side::Client } else { rustls::Side::Server };
        let keys = keys(initial_suite().keys(dst_cid, side, Version::V1));
        recorded_keys(self.recorder.as_ref(), PacketKind::Initial, keys)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        match &self.state {
            SessionState::Handshake(begun) => {
                self.are_facts_taken.store(true, Relaxed);
                Some(Box::new(begun.facts()))
            }
            SessionState::Complete(facts) => Some(facts.lock().take()?),
            SessionState::Failed(_) => None,
        }
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.state.handshake().ok()?.session.zero_rtt_keys()?;
        let packet = recorded(self.recorder.as_ref(), PacketKind::ZeroRtt, Box::new(keys.packet));
        Some((Box::new(keys.header), packet))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        let going = |begun: &BegunSession| !begun.answers.is_empty() || begun.session.is_handshaking();
        self.state.handshake().is_ok_and(going)
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, engine::TransportError> {
        let BegunSession { session, hello_len, scheme_source, client_scheme, .. } =
            self.state.handshake_mut()?;
        // The session has read the ClientHello already.
        let (name, bytes) = bytes.split_at((*hello_len).min(bytes.len()));
        *hello_len -= name.len();
        if *hello_len > 0 {
            return Ok(false);
        }
        let read = if bytes.is_empty() { Ok(()) } else { session.read_hs(bytes) };
        read.map_err(|error| match session.alert() {
            Some(alert) => failure(alert.into(), &error.to_string()),
            None => failure(INTERNAL_ERROR, &error.to_string()),
        })?;
        *client_scheme = client_scheme.or_else(scheme_source);
        let tells = !self.has_told;
        self.has_told = true;
        Ok(tells)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, engine::TransportError> {
        let begun = self.state.handshake()?;
        let Some(params) = begun.session.quic_transport_parameters() else { return Ok(None) };
        let params = path_mtu::with_size_max(params, begun.datagram_size_max);
        Ok(Some(TransportParameters::read(engine::Side::Server, &mut Cursor::new(params))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let begun = self.state.handshake_mut().ok()?;
        let BegunSession { session, answers, hello_len, .. } = &mut *begun;
        if *hello_len > 0 {
            return None;
        }
        let change = match answers.pop_front() {
            Some((answer, change)) => {
                out.extend_from_slice(&answer);
                change
            }
            None => session.write_hs(out),
        };
        if change.is_none() && out.is_empty() && answers.is_empty() && !session.is_handshaking() {
            let is_wanted = !self.are_facts_taken.load(Relaxed);
            let facts = is_wanted.then(|| Box::new(begun.facts()));
            self.state = SessionState::Complete(FatalMutex::new(facts));
        }
        match change? {
            KeyChange::Handshake { keys } => {
                let keys = self::keys(keys);
                Some(recorded_keys(self.recorder.as_ref(), PacketKind::Handshake, keys))
            }
            KeyChange::OneRtt { keys: rustls::quic::Keys { local, remote }, next } => {
                self.next_secrets = Some(NextSecrets::new(next));
                let header = KeyPair {
                    local: Box::new(local.header) as Box<dyn HeaderKey>,
                    remote: Box::new(remote.header) as Box<dyn HeaderKey>,
                };
                Some(Keys { header, packet: self.watched(local.packet, remote.packet) })
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next_secrets.as_mut()?.next_keys();
        Some(self.watched(keys.local, keys.remote))
    }

    fn is_valid_retry(&self, _: &engine::ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), crypto::ExportKeyingMaterialError> {
        // Keying material is not exported anywhere.
        Err(crypto::ExportKeyingMaterialError)
    }
}

fn keys(keys: rustls::quic::Keys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
    }
}
