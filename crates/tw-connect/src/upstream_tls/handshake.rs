//! TLS of the connections to upstream servers for one request, and its handshake.

use std::fmt;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tw_core::pools::Disks;
use tw_disk::{Account, Disk, JobClass, JobSource, Pool};
use tw_net::Addr;
use tw_net::tls::{self, Handshake, HandshakeError, Step, TlsStream};
use tw_rt::{Deadline, Socket, watch};
use tw_tls::{Identity, UpstreamError};
use tw_tls_settings::CertificateNames;

use super::{ALPN_HTTP2, TlsProtocol, UpstreamTlsConfig};
use crate::failure::UpstreamFailure;

/// TLS of the connections for one request. Two are equal if they may use the same connections. As large as a pointer: requests
/// without TLS have the place for it, too.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UpstreamTls(Arc<ConnectionTls>);

#[derive(Clone)]
struct ConnectionTls {
    tls: Arc<UpstreamTlsConfig>,
    /// The name of the server: for the certificate, and to be sent.
    name: Arc<str>,
    /// Names of the certificate files, if they contain variables.
    shown: Option<CertificateNames>,
    /// Protocols to offer (ALPN), if some are configured.
    alpn: Arc<[Vec<u8>]>,
}

impl PartialEq for ConnectionTls {
    fn eq(&self, other: &Self) -> bool {
        self.tls.number == other.tls.number
            && self.name == other.name
            && self.shown == other.shown
            && self.alpn == other.alpn
    }
}

impl Eq for ConnectionTls {}

impl Hash for ConnectionTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tls.number.hash(state);
        self.name.hash(state);
        self.shown.hash(state);
        self.alpn.hash(state);
    }
}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS {} to {}", self.0.tls.number, self.0.name)
    }
}

impl UpstreamTls {
    /// For a server called `name`, perhaps with a port behind it, which does not count; `shown` names the certificate.
    pub(super) fn new(tls: Arc<UpstreamTlsConfig>, name: &[u8], shown: Option<CertificateNames>) -> Self {
        let shown = shown.filter(|names| !names.is_empty());
        let name = strip_port(&String::from_utf8_lossy(name)).into();
        Self(Arc::new(ConnectionTls { tls, name, shown, alpn: Arc::new([]) }))
    }

    /// Offers these protocols (ALPN).
    pub(crate) fn offering(mut self, protocols: Vec<Vec<u8>>) -> Self {
        Arc::make_mut(&mut self.0).alpn = protocols.into();
        self
    }

    /// Settings of a session with the server at `to`.
    fn config_for(&self, to: &Addr, shown: Option<(&CertificateNames, Identity)>) -> Arc<ClientConfig> {
        let config = self.0.tls.config_for(to, shown);
        if self.0.alpn.is_empty() {
            return config;
        }
        let mut config = ClientConfig::clone(&config);
        config.alpn_protocols = self.0.alpn.to_vec();
        Arc::new(config)
    }

    /// The certificate that variables name, read before `deadline`.
    async fn identity(
        &self,
        deadline: &mut Deadline,
        pools: &TlsPools,
    ) -> Result<Option<Identity>, UpstreamFailure> {
        let (Some(reader), Some(names)) = (&self.0.tls.reader, &self.0.shown) else { return Ok(None) };
        let mut account = Account::new(JobClass::Hit, JobSource::NONE);
        let mut load = pin!(reader.load(names, &mut account, &pools.disk, Some(&pools.pool)));
        let mut loaded = None;
        wait_ready(deadline, |cx| {
            load.as_mut().poll(cx).map(|it| {
                loaded = Some(it);
                Ok(())
            })
        })
        .await?;
        match loaded {
            Some(Err(error)) => Err(UpstreamFailure::Identity(error.into())),
            Some(Ok(identity)) => Ok(Some(identity)),
            None => Ok(None),
        }
    }

    /// Begins a session with the server at `to`.
    fn begin_session(
        &self,
        to: &Addr,
        shown: Option<Identity>,
    ) -> Result<Box<ClientConnection>, rustls::Error> {
        let shown = self.0.shown.as_ref().zip(shown);
        if let Ok(name) = ServerName::try_from(self.0.name.to_string()) {
            return tls::connect(self.config_for(to, shown), name);
        }
        // The name is not one that a certificate could be for.
        if self.0.tls.verifies {
            return Err(UpstreamError::Name(self.0.name.to_string()).into());
        }
        // DIFF(nginx): what is no name of a host is not sent.
        let mut config = ClientConfig::clone(&self.config_for(to, shown));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        tls::connect(Arc::new(config), ServerName::from(IpAddr::from([0, 0, 0, 0])))
    }

    /// Shakes hands over `socket`, which leads to `to`, before `deadline`. What takes long, others do.
    pub(crate) async fn handshake(
        &self,
        socket: Socket,
        to: &Addr,
        deadline: &mut Deadline,
        pools: &TlsPools,
    ) -> Result<TlsStream, UpstreamFailure> {
        let shown = self.identity(deadline, pools).await?;
        let session = watch::operation("shaking hands", || self.begin_session(to, shown));
        let mut handshake =
            Handshake::new(socket, session.map_err(|error| failed(HandshakeError::Tls(error)))?);
        loop {
            match handshake.step().map_err(failed)? {
                Step::Done => {
                    let stream = handshake.into_stream();
                    let is_agreed =
                        || stream.with_session(|session| session.alpn_protocol() == Some(ALPN_HTTP2));
                    // DIFF(nginx): a server that does not say that it speaks HTTP/2 is not spoken to.
                    return if self.0.tls.inside == TlsProtocol::Any || is_agreed() {
                        Ok(stream)
                    } else {
                        Err(UpstreamFailure::Alpn)
                    };
                }
                Step::Readable => wait_ready(deadline, |cx| handshake.socket().poll_readable(cx)).await?,
                Step::Writable => wait_ready(deadline, |cx| handshake.socket().poll_writable(cx)).await?,
                Step::Process => handshake = self.process(handshake, &pools.pool).await?,
            }
        }
    }

    /// Processes what a handshake has read.
    async fn process(
        &self,
        handshake: Handshake<ClientConnection>,
        pool: &Pool,
    ) -> Result<Handshake<ClientConnection>, UpstreamFailure> {
        let (socket, session, sent) = handshake.into_parts();
        let process = move || tls::process(session);
        let (session, processed) = if self.0.tls.is_slow {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let done = pool.run(&mut account, process).await;
            done.map_err(|error| failed(HandshakeError::Io(io::Error::other(error.to_string()))))?
        } else {
            watch::operation("shaking hands", process)
        };
        let handshake = Handshake::from_parts(socket, session, sent);
        match processed {
            Ok(()) => Ok(handshake),
            Err(error) => {
                handshake.refuse();
                Err(failed(HandshakeError::Tls(error)))
            }
        }
    }
}

/// Threads that do the slow steps of a handshake.
pub struct TlsPools {
    pool: Pool,
    disk: Disk,
}

impl TlsPools {
    /// Returns those of a configuration.
    pub fn of(disks: &Disks) -> Self {
        Self { pool: tw_tls_settings::default_pool(disks), disk: disks.default_disk().clone() }
    }
}

fn failed(failure: HandshakeError) -> UpstreamFailure {
    UpstreamFailure::Handshake(Box::new(failure))
}

/// Waits for `ready` until the time is over.
async fn wait_ready(
    deadline: &mut Deadline,
    mut ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Result<(), UpstreamFailure> {
    poll_fn(|cx| match ready(cx) {
        Poll::Ready(ready) => Poll::Ready(ready.map_err(|error| failed(HandshakeError::Io(error)))),
        Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err(UpstreamFailure::ConnectTimeout)),
    })
    .await
}

/// A name or an address without the port behind it.
fn strip_port(name: &str) -> &str {
    if let Some((address, _)) = name.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match name.split_once(':') {
        Some((host, _)) if name.parse::<IpAddr>().is_err() => host,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_stripped_from_names() {
        for (name, expected) in [
            ("example.com", "example.com"),
            ("example.com:8443", "example.com"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("localhost", "localhost"),
            (":1", ""),
            ("", ""),
        ] {
            assert_eq!(strip_port(name), expected, "{name}");
        }
    }
}
