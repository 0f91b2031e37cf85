//! Settings and limits.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto as engine;

use crate::hello;
use crate::keys::{HostKeys, Origin, TokenKey};
use crate::peer_address::UNVALIDATED_ADDRESSES_MAX;
use crate::qlog::{FRAMES_MAX, RANGES_MAX};
use crate::silence::SILENCE_MAX;

/// Factor by which a client that has used half of its streams may open more. Room for the 128 of the default takes 11 KiB, which a browser
/// with some ten requests at a time does not need.
pub(crate) const STREAMS_GROWTH: u64 = 4;
/// Bytes of sent data of a connection that wait for an acknowledgement, at first: enough for an idle path.
pub(crate) const SEND_WINDOW_MIN: u64 = 128 << 10;
/// Bytes of sent data while little of the memory of the process is left.
pub(crate) const SEND_WINDOW_LOW: u64 = 32 << 10;
/// Largest datagram that is received. Loopback has larger ones, the Internet has not.
pub(crate) const PAYLOAD_SIZE_MAX: u16 = 1472;
/// Time for which a token proves the address of a returning client.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Time for which the token of a Retry packet is valid.
const RETRY_LIFETIME: Duration = Duration::from_secs(15);

tw_base::limits! {
    /// Limits of QUIC.
    pub const LIMITS;

    section "HTTP/3";

    /// QUIC clients on one address of a loop whose client hello is not whole.
    ///
    /// Client hellos of which parts are missing, on one address of a loop. A hello of ML-KEM takes two datagrams, which come
    /// together.
    pub(crate) const HELLOS_MAX: usize = 256, count, "the oldest is forgotten";
    /// Time for a client hello over QUIC.
    pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2), time, "the client is forgotten";
    /// Size of a client hello over QUIC.
    constant bytes hello::HELLO_SIZE_MAX, "the handshake fails";
    /// Parts of a client hello over QUIC that are not joined.
    constant count hello::HELLO_PARTS_MAX, "further ones are dropped until the client sends them again";
    /// QUIC handshakes on one address of a loop with clients that have not proved their address.
    pub(crate) const HANDSHAKES_WITHOUT_RETRY_MAX: usize = 256, count, "further clients get a Retry packet";
    /// QUIC handshakes on one address of a loop.
    ///
    /// Connections whose handshake is not complete, on one address of a loop: some 40 MiB.
    pub(crate) const HANDSHAKES_MAX: usize = 2048, count, "Initial packets of further clients are dropped";
    /// Bytes that a QUIC client has sent before its connection is accepted, beside the first datagram.
    ///
    /// Bytes that the engine keeps for a connection before it is accepted: early data, mostly.
    pub(crate) const INCOMING_SIZE_MAX: u64 = 32 << 10, bytes, "further datagrams are dropped";
    /// Such bytes of all clients of an address on one loop.
    pub(crate) const INCOMING_TOTAL_MAX: u64 = 4 << 20, bytes, "further datagrams are dropped";
    /// Streams that a QUIC client may open before it has used half of them.
    ///
    /// Streams that a client may open at first. The engine makes room for all of them at once, and never gives it up, so more
    /// are allowed only to a client that opens half as many. With the three that HTTP/3 has in one direction, its tables have
    /// 32 places; with more than 25, they would have 64.
    pub(crate) const FIRST_STREAMS_MAX: u64 = 16, count, "it waits for more, up to http3_max_concurrent_streams";
    /// Bytes of a QUIC connection that wait for an acknowledgement; at first 128 KiB, then twice the congestion window; 32 KiB
    /// while less than half of memory_budget is left.
    ///
    /// Bytes of sent data for fast and long paths: twice the congestion window, and at most this.
    pub(crate) const SEND_WINDOW_MAX: u64 = 8 << 20, bytes, "the body of the response is not read on";
    /// Size of a QUIC datagram that is sent to a client on this machine or in a private network with jumbo frames; 1452 bytes to others.
    ///
    /// Datagrams that are sent. One message of the kernel holds four of this size. The gain of larger ones is small, and few of them fit
    /// into the buffer of a client's socket.
    pub(crate) const DATAGRAM_SIZE_MAX: u16 = 16_376, bytes, "larger ones are not tried";
    /// Answers to QUIC clients without a connection that wait for the socket of an address on one loop.
    ///
    /// Answers without a connection that wait until the socket takes them: Retry, version negotiation, resets.
    pub(crate) const RESPONSES_MAX: usize = 1024, count, "further ones are dropped";
    /// Time between two stateless resets of an address on one loop.
    pub(crate) const RESET_INTERVAL: Duration = Duration::from_millis(20), time, "datagrams of unknown connections are dropped";
    /// Time without a packet of a QUIC client while its worker process is about to end, or nine round trips if they are longer.
    constant time SILENCE_MAX, "the connection is closed";
    /// Connection IDs of a client that are stored, or fewer by quic_active_connection_id_limit.
    const CONNECTION_IDS_MAX: u64 = 5, count, "the connection is closed";
    /// Addresses of a QUIC connection that are not validated and whose bytes are counted.
    constant count UNVALIDATED_ADDRESSES_MAX, "the oldest but the current one is forgotten, and gets nothing until it sends again";
    /// Frames of one QUIC packet in the records of quic_log.
    constant count FRAMES_MAX, "further ones are not recorded";
    /// Ranges of one acknowledgement in the records of quic_log.
    constant count RANGES_MAX, "further ones are not recorded";
}

/// Settings of an endpoint: one listening address on one loop.
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// Keys that all loops share.
    pub keys: Arc<HostKeys>,
    /// Origin that connection IDs of this endpoint tell.
    pub origin: Origin,
    /// Demand of a proof of the client's address.
    pub retry: RetryPolicy,
}

/// Demand of a proof of the client's address, before anything else is done (RFC 9000, section 8.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Always.
    Always,
    /// Only while many handshakes are under way.
    UnderLoad,
}

/// Settings of a connection's transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportSettings {
    /// Streams in both directions that the client may have open at the same time.
    pub bidi_streams_max: u64,
    /// Streams in one direction that the client may have open at the same time.
    pub uni_streams_max: u64,
    /// Bytes that the client may send on one stream before they are read.
    pub stream_receive_window: u32,
    /// Bytes for all streams of the connection together.
    pub receive_window: u32,
    /// Time without packets after which the connection is closed silently.
    pub idle_timeout: Duration,
    /// True if several datagrams may leave in one message (GSO).
    pub uses_segments: bool,
    /// Connection IDs of the client that are stored.
    pub connection_ids_max: u64,
}

/// Settings of transports, prepared for use by many connections. Clones share them.
#[derive(Debug, Clone)]
pub struct TransportConfig {
    pub(crate) engine: Arc<engine::TransportConfig>,
    pub(crate) settings: TransportSettings,
}

impl TransportSettings {
    pub(crate) fn bidi_streams(&self) -> u64 {
        self.bidi_streams_max.min(1 << 32)
    }

    /// Streams that a client may open at first.
    pub(crate) fn first_bidi_streams(&self) -> u64 {
        self.bidi_streams().min(FIRST_STREAMS_MAX)
    }

    pub(crate) fn uni_streams(&self) -> u64 {
        self.uni_streams_max.min(1 << 32)
    }

    pub(crate) fn idle_ms(&self) -> u64 {
        u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 40)
    }

    pub(crate) fn connection_ids(&self) -> u64 {
        self.connection_ids_max.clamp(2, CONNECTION_IDS_MAX)
    }
}

impl TransportConfig {
    /// Prepares settings. Values that the protocol cannot express are brought into its range.
    pub fn new(settings: &TransportSettings) -> Self {
        let mut discovery = engine::MtuDiscoveryConfig::default();
        discovery.upper_bound(DATAGRAM_SIZE_MAX);
        let mut engine = engine::TransportConfig::default();
        engine
            .max_concurrent_bidi_streams(varint(settings.first_bidi_streams()))
            .max_concurrent_uni_streams(varint(settings.uni_streams()))
            .stream_receive_window(settings.stream_receive_window.into())
            .receive_window(settings.receive_window.into())
            .send_window(SEND_WINDOW_MIN)
            .max_idle_timeout(Some(varint(settings.idle_ms()).into()))
            .crypto_buffer_size(hello::HELLO_SIZE_MAX)
            // None of the protocols served uses datagrams (RFC 9221).
            .datagram_receive_buffer_size(None)
            .datagram_send_buffer_size(0)
            .mtu_discovery_config(Some(discovery))
            .enable_segmentation_offload(settings.uses_segments);
        Self { engine: Arc::new(engine), settings: settings.clone() }
    }
}

/// A number as it travels; the largest one for those that cannot.
pub(crate) fn varint(value: u64) -> engine::VarInt {
    engine::VarInt::from_u64(value).unwrap_or(engine::VarInt::MAX)
}

/// Configuration of an engine that accepts connections. Only [`EndpointConfig::keys`] and the clock differ.
pub(crate) fn server_config(
    keys: &Arc<HostKeys>,
    clock: Arc<dyn engine::TimeSource>,
    refusal: Arc<dyn engine::crypto::ServerConfig>,
) -> engine::ServerConfig {
    let mut config = engine::ServerConfig::new(refusal, Arc::new(TokenKey(keys.clone())));
    let mut tokens = engine::ValidationTokenConfig::default();
    tokens.sent(1).lifetime(TOKEN_LIFETIME).log(Arc::new(crate::tokens::UsedTokens::default()));
    config
        .validation_token_config(tokens)
        .retry_token_lifetime(RETRY_LIFETIME)
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(INCOMING_SIZE_MAX)
        .incoming_buffer_size_total(INCOMING_TOTAL_MAX)
        .time_source(clock);
    config
}
