//! Requests over TLS.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use tw_testkit::{Client, Response, Server};

/// Response to `GET /` on a connection of its own to the host `name`, and the connection.
pub(crate) fn try_get_tls(
    server: &Server,
    config: &Arc<ClientConfig>,
    name: &str,
) -> io::Result<(Client, Response)> {
    let mut client = Client::connect_tls(server.addr(), config, name)?;
    client.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n"))?;
    let response = client.read_response()?;
    Ok((client, response))
}
