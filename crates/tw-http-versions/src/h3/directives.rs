//! Settings of HTTP/3 and of QUIC under it (nginx: ngx_http_v3_module): who speaks it, and within which limits.

use std::sync::Arc;
use std::time::Duration;

use tw_accept::quic::{AddressSettings, HostKey, QuicLog};
use tw_conf::{Args, ConfError, Contexts, Directive, HTTP, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_quic::{RetryPolicy, TransportConfig, TransportSettings};
use tw_tls_settings::certificate_file;
use tw_tls_settings::fleet_secrets::{clock, fleet_secrets, names_fleet};

use tw_request::config::location::{KeepAlive, Location};
use tw_request::generation::Server;
use tw_request::protocol::{Http, Resolve};

/// Streams in one direction that a client may have open: control, and two of QPACK (RFC 9114, section 6.2), as in nginx.
const UNI_STREAMS: u64 = 3;
/// Windows of streams that fit into the one of the connection.
const WINDOWS_OF_STREAMS: u32 = 16;
/// Least window of a connection.
const WINDOW_MIN: u32 = 1 << 20;
/// Least idle timeout of a transport: a request may wait for its response that long, whatever `keepalive_timeout` is.
const IDLE_MIN: Duration = Duration::from_secs(60);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Requests of one connection of HTTP/3 that run at the same time.
    directive "http3_max_concurrent_streams", "the client has to wait (flow control)";
    /// Bytes of a request body in HTTP/3 that its client may send before they are read; of a connection 16 times as many.
    directive "http3_stream_buffer_size", "the client has to wait (flow control)";
    /// Connection IDs of a QUIC client that are stored, 5 at most.
    directive "quic_active_connection_id_limit", "the connection is closed";
}

/// Settings with nothing left unset.
pub struct Http3 {
    /// `http3`
    pub is_on: bool,
    /// `http3_hq`: HTTP/0.9 over QUIC, for tests of interoperability.
    pub has_hq: bool,
    /// `http3_max_concurrent_streams`
    pub streams_max: u64,
    /// `http3_stream_buffer_size`
    pub stream_buffer_size: u32,
    /// Settings of the address whose default server this is.
    pub address: AddressSettings,
    /// `quic_log`
    pub log: Option<Arc<QuicLog>>,
    gso: bool,
    connection_ids_max: u64,
}

/// HTTP/3 settings as written.
#[derive(Default)]
pub struct Raw {
    http3: Setting<bool>,
    hq: Setting<bool>,
    max_concurrent_streams: Setting<usize>,
    stream_buffer_size: Setting<usize>,
    retry: Setting<bool>,
    gso: Setting<bool>,
    host_key: Setting<Word>,
    active_connection_id_limit: Setting<usize>,
    log: Setting<Word>,
}

const EVERYWHERE: Contexts = HTTP | SERVER;

impl Settings<Http> for Http3 {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("http3", EVERYWHERE)
            .default("on")
            .since("1.25.0")
            .doc("Enables HTTP/3 on addresses with `listen … quic`.")
            .set(|raw, node, _| raw.http3.set_flag(node)),
        record::flag("http3_hq", EVERYWHERE)
            .default("off")
            .since("1.25.0")
            .doc("Enables HTTP/0.9 over QUIC (ALPN `hq-interop`), which tests of interoperability use.")
            .set(|raw, node, _| raw.hq.set_flag(node)),
        record::number("http3_max_concurrent_streams", EVERYWHERE)
            .default("128")
            .since("1.25.0")
            .doc("Maximum number of concurrent requests on one connection.")
            .set(|raw, node, _| raw.max_concurrent_streams.set_number(node)),
        record::size("http3_stream_buffer_size", EVERYWHERE)
            .default("64k")
            .since("1.25.0")
            .doc("Bytes of a stream that a client may send before the server reads them.")
            .set(|raw, node, _| raw.stream_buffer_size.set_size(node)),
        record::flag("quic_retry", EVERYWHERE)
            .default("off")
            .since("1.25.0")
            .doc("Makes clients prove their address (Retry) before a handshake. Without it, they have to while many handshakes are under way.")
            .set(|raw, node, _| raw.retry.set_flag(node)),
        record::flag("quic_gso", EVERYWHERE)
            .default("off")
            .since("1.25.0")
            .doc("Sends several datagrams in one system call (UDP_SEGMENT). The network interface has to support it.")
            .set(|raw, node, _| raw.gso.set_flag(node)),
        record::new("quic_host_key", "file | fleet=name", EVERYWHERE, Args::exact(1))
            .since("1.25.0")
            .doc("File with a secret key for stateless resets, address validation tokens and connection IDs. With fleet=name, all nodes of a fleet share keys of resets and tokens that it generates and rotates. Without this directive, a key is generated, which lives over reloads.")
            .set(|raw, node, _| raw.host_key.set_once(node, node.arg(0)?.clone())),
        record::number("quic_active_connection_id_limit", EVERYWHERE)
            .default("2")
            .since("1.25.0")
            .doc("Maximum number of a client's connection IDs that are stored; at most 5.")
            .set(|raw, node, _| raw.active_connection_id_limit.set_number(node)),
        record::new("quic_log", "directory | off", EVERYWHERE, Args::exact(1))
            .default("off")
            .since("Tailwater 0.2")
            .doc("Directory for records of QUIC connections (qlog), a file for each connection. For debugging: they take much space.")
            .set(|raw, node, _| raw.log.set_once(node, node.arg(0)?.clone())),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let streams_max = raw.max_concurrent_streams.take().map(|max| max as u64);
        let buffer_size = raw.stream_buffer_size.take().map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let ids_max = raw.active_connection_id_limit.take().map(|max| max as u64);
        let retry =
            raw.retry.take().map(|is_on| if is_on { RetryPolicy::Always } else { RetryPolicy::UnderLoad });
        let host_key = match (raw.host_key.take(), outer) {
            // DIFF(nginx): keys that the nodes of a fleet share.
            (Some(word), _) if names_fleet(&word) => {
                HostKey::shared(fleet_secrets(&word, "host keys of QUIC", cx)?, clock())
            }
            (Some(word), _) => HostKey::of(&certificate_file::contents(&word, "QUIC host key", cx)?),
            (None, Some(outer)) => outer.address.host_key.clone(),
            (None, None) => HostKey::random(),
        };
        let log = match (raw.log.take(), outer) {
            (Some(word), _) if word.is("off") => None,
            (Some(word), _) => {
                let directory = cx.full_path(&word.bytes);
                let sink = cx.sink_of(&QuicLog::target(&directory));
                Some(Arc::new(QuicLog::new(directory, sink)))
            }
            (None, outer) => outer.and_then(|o| o.log.clone()),
        };
        let retry = retry.or(outer.map(|o| o.address.retry)).unwrap_or(RetryPolicy::UnderLoad);
        Ok(Self {
            is_on: raw.http3.or(outer.map(|o| o.is_on), true),
            has_hq: raw.hq.or(outer.map(|o| o.has_hq), false),
            streams_max: streams_max.or(outer.map(|o| o.streams_max)).unwrap_or(128),
            stream_buffer_size: buffer_size.or(outer.map(|o| o.stream_buffer_size)).unwrap_or(64 << 10),
            address: AddressSettings { host_key, retry },
            log,
            gso: raw.gso.or(outer.map(|o| o.gso), false),
            connection_ids_max: ids_max.or(outer.map(|o| o.connection_ids_max)).unwrap_or(2),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        if let Some(log) = &self.log {
            reach.appends_in(log.directory());
        }
    }
}

impl Http3 {
    /// Settings of a server; `None` for one that was not loaded from a configuration.
    pub fn of(server: &Server) -> Option<&Self> {
        server.parts.find()
    }

    /// Settings of transports, whose connections may be idle as long as others.
    pub fn transport(&self, keepalive: &KeepAlive) -> TransportConfig {
        TransportConfig::new(&TransportSettings {
            bidi_streams_max: self.streams_max,
            uni_streams_max: UNI_STREAMS,
            stream_receive_window: self.stream_buffer_size,
            receive_window: self.stream_buffer_size.saturating_mul(WINDOWS_OF_STREAMS).max(WINDOW_MIN),
            idle_timeout: keepalive.timeout.max(IDLE_MIN),
            uses_segments: self.gso,
            connection_ids_max: self.connection_ids_max,
        })
    }
}
