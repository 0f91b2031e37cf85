//! Settings of a connection, which hold until it is closed.

use std::time::Duration;

use tw_request::client::Client;
use tw_request::config::location::KeepAlive;
use tw_request::generation::Server;

/// Bytes that a field counts in addition to its name and value (RFC 9113 section 6.5.2, RFC 9114 section 4.2.2).
const FIELD_OVERHEAD: usize = 32;

/// Settings by the configuration with which the connection began.
pub(crate) struct ConnectionSettings {
    /// Size limit of a field section.
    pub(crate) list_max: u32,
    /// Limits of idle time and of the number of requests.
    pub(crate) keepalive: KeepAlive,
    /// Longest time for the head of a request, and for the first request.
    pub(crate) header_timeout: Duration,
    /// Time without progress of sending, and for the end of a response over HTTP/3 to arrive.
    pub(crate) send_timeout: Duration,
}

impl ConnectionSettings {
    /// Settings of the server whose name the client has sent, else of the default server; `make` adds those of the protocol.
    pub(crate) fn of<T>(client: &Client, make: impl FnOnce(Self, &Server) -> Option<T>) -> Option<T> {
        let generation = client.event_loop.generation();
        let group = client.group(&generation)?;
        let server = generation.server(client.named_server(group));
        let head = &server.settings.head;
        let core = &generation.plan(server.plan).core;
        let list_max = head.large_buffer_size.saturating_mul(head.large_buffers_count);
        let list_max = list_max.saturating_add(head.max_headers.saturating_mul(FIELD_OVERHEAD));
        let shared = Self {
            list_max: u32::try_from(list_max).unwrap_or(u32::MAX),
            keepalive: core.keepalive,
            header_timeout: server.settings.client_header_timeout,
            send_timeout: core.send.timeout,
        };
        make(shared, server)
    }
}
