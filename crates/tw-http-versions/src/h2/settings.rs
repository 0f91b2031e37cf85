//! Settings of an HTTP/2 connection.

use tw_http2::Connection;

use super::directives::Http2;
use crate::streams::ConnectionSettings;
use tw_request::client::Client;

/// Flow-control window of a connection for all request bodies.
pub(super) const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of frames gathered for one write.
pub(super) const OUT_MAX: usize = 256 << 10;

/// Settings of a connection, by the configuration it began with.
pub(super) struct Http2Settings {
    /// Settings that HTTP/3 has as well.
    pub(super) shared: ConnectionSettings,
    /// Streams that may be open at a time.
    pub(super) streams_max: u32,
    /// Initial flow-control window of a stream.
    window: u32,
    /// Bytes read in one turn.
    pub(super) recv_buffer_size: usize,
}

impl Http2Settings {
    /// Settings of the server whose name the client has sent, else of the default server.
    pub(super) fn of(client: &Client) -> Option<Self> {
        ConnectionSettings::of(client, |shared, server| {
            let http2 = Http2::of(server)?;
            Some(Self {
                shared,
                streams_max: http2.streams_max,
                window: http2.body_preread_size,
                recv_buffer_size: http2.recv_buffer_size,
            })
        })
    }

    // DIFF(nginx): a list of fields that is too large costs its request, and the connection only if it is four times that.
    /// Engine for a new connection.
    pub(super) fn begin(&self) -> Connection {
        Connection::server(tw_http2::Config {
            streams_max: self.streams_max,
            window: self.window,
            connection_window: CONNECTION_WINDOW.max(self.window),
            list_max: self.shared.list_max,
            out_max: OUT_MAX,
        })
    }
}
