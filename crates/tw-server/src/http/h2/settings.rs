//! Settings of an HTTP/2 connection.

use std::time::Duration;

use tw_core::regex::Captures;
use tw_http2::Connection;

use crate::config::location::KeepAlive;
use crate::http::client::Client;
use crate::http::generation::ServerId;

/// Flow-control window of a connection for all request bodies.
pub(super) const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of frames gathered for one write.
pub(super) const OUT_MAX: usize = 256 << 10;
/// Bytes counted for a field of a head beside name and value (RFC 9113 section 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Settings of a connection, by the configuration it began with.
pub(super) struct ConnectionSettings {
    /// Streams that may be open at a time.
    pub(super) streams_max: u32,
    /// Initial flow-control window of a stream.
    window: u32,
    /// Size limit of a head.
    list_max: u32,
    /// Limits of an idle connection.
    pub(super) keepalive: KeepAlive,
    /// Time for the first request.
    pub(super) header_timeout: Duration,
    /// Time without progress of sending.
    pub(super) send_timeout: Duration,
    /// Bytes read in one turn.
    pub(super) recv_buffer_size: usize,
}

impl ConnectionSettings {
    /// Settings of the server whose name the client has sent, else of the default server.
    pub(super) fn of(client: &Client) -> Option<Self> {
        let generation = client.home.generation();
        let group = client.group(&generation)?;
        let name = client.tls.get().and_then(|secured| secured.server_name.as_deref());
        let named = |name: &str| group.names.find(name.as_bytes(), &mut Captures::default()).ok().flatten();
        let id: ServerId = name.and_then(named).map_or(group.default_server, |(id, _)| id);
        let server = generation.server(id);
        let (head, core) = (&server.settings.head, &generation.plan(server.plan).core);
        let list_max = head.large_buffer_size.saturating_mul(head.large_buffers_count);
        let list_max = list_max.saturating_add(head.max_headers.saturating_mul(FIELD_OVERHEAD));
        Some(Self {
            streams_max: server.http2.streams_max,
            window: server.http2.body_preread_size,
            list_max: u32::try_from(list_max).unwrap_or(u32::MAX),
            keepalive: core.keepalive,
            header_timeout: server.settings.client_header_timeout,
            send_timeout: core.send.timeout,
            recv_buffer_size: server.http2.recv_buffer_size,
        })
    }

    // DIFF(nginx): a list of fields that is too large costs its request, and the connection only if it is four times that.
    /// Engine for a new connection.
    pub(super) fn begin(&self) -> Connection {
        Connection::server(tw_http2::Config {
            streams_max: self.streams_max,
            window: self.window,
            connection_window: CONNECTION_WINDOW.max(self.window),
            list_max: self.list_max,
            out_max: OUT_MAX,
        })
    }
}
