//! Connections to servers of engines: name, TCP, TLS, and bytes.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tw_dns::NameService;
use tw_net::tls::{self, HandshakeError};
use tw_net::{Addr, ConnectOptions, Transport};
use tw_rt::Socket;
use tw_rt::time::timeout;
use tw_tls::UpstreamError;

use crate::engine::EngineError;

/// Time for the resolution of a name.
const NAME_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for one of several addresses to take a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(4);
/// Bytes that are read at once.
const READ_SIZE: usize = 32 << 10;

/// Connects to one of the addresses of a host.
pub(crate) async fn connect(names: &NameService, host: &str, port: u16) -> Result<Socket, EngineError> {
    if let Some(system) = names.system() {
        // This thread may wait.
        system.refresh();
    }
    let addresses = names.addresses(host.as_bytes(), NAME_TIME_MAX).await;
    let addresses = addresses
        .map_err(|error| EngineError::Lost(format!("\"{host}\" could not be resolved ({error})")))?;
    let mut last = EngineError::Lost(format!("\"{host}\" has no address"));
    for address in addresses.iter() {
        match timeout(CONNECT_TIME_MAX, open(SocketAddr::new(address, port))).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => last = EngineError::io("connect()", &error),
            Err(_) => {
                last =
                    EngineError::Lost(format!("connect() takes longer than {} s", CONNECT_TIME_MAX.as_secs()))
            }
        }
    }
    Err(last)
}

async fn open(to: SocketAddr) -> io::Result<Socket> {
    let socket = tw_net::connect(&Addr::Inet(to), &ConnectOptions::default())?;
    socket.writable().await?;
    socket.take_error()?;
    // Purges are small and should not wait for more of them.
    socket.set_nodelay();
    Ok(socket)
}

/// Encrypts a connection, and verifies that the other end is `host`.
pub(crate) async fn secure(
    socket: Socket,
    config: Arc<ClientConfig>,
    host: &str,
) -> Result<Transport, EngineError> {
    let failed = |failure: HandshakeError| match failure {
        HandshakeError::Closed => {
            EngineError::Lost("it has closed the connection in the handshake".to_owned())
        }
        HandshakeError::Io(error) => EngineError::io("SSL_do_handshake()", &error),
        HandshakeError::Tls(error) => EngineError::Lost(match UpstreamError::of(&error) {
            Some(why) => format!("its {why}"),
            None => format!("SSL_do_handshake() failed (SSL: {error})"),
        }),
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| EngineError::Lost("its name is none of a host".to_owned()))?;
    let stream = tls::connect_here(socket, config, name).await.map_err(failed)?;
    Ok(Transport::Tls(stream.into()))
}

/// Reads some bytes.
pub(crate) async fn receive(transport: &Transport, into: &mut Vec<u8>) -> Result<(), EngineError> {
    loop {
        into.reserve(READ_SIZE);
        match transport.try_read(into) {
            Ok(0) => return Err(EngineError::Lost("it has closed the connection".to_owned())),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let readable = poll_fn(|cx| transport.poll_readable(cx)).await;
                readable.map_err(|error| EngineError::io("recv()", &error))?;
            }
            Err(error) => return Err(EngineError::io("recv()", &error)),
        }
    }
}

/// Writes all of it.
pub(crate) async fn transmit(transport: &Transport, mut rest: &[u8]) -> Result<(), EngineError> {
    while !rest.is_empty() {
        match transport.try_write(rest) {
            Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let writable = poll_fn(|cx| transport.poll_writable(cx)).await;
                writable.map_err(|error| EngineError::io("send()", &error))?;
            }
            Err(error) => return Err(EngineError::io("send()", &error)),
        }
    }
    Ok(())
}
