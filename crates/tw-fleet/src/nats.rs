//! NATS JetStream as the engine of a fleet: a stream is the log, a key-value bucket each store. A small client of our own, over one
//! connection at a time.

mod announcements;
mod bucket;
mod connection;
mod credentials;
mod jetstream;
mod parser;

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tw_dns::{NameService, SystemFiles, SystemResolver};

use crate::engine::{Engine, EngineError};

pub use credentials::{Authentication, CredentialsError, read as read_credentials};

use connection::Connection;
use jetstream::JetStream;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Servers of the engine of a fleet.
    const SERVERS_MAX: usize = 16, count, "the configuration is refused";
}
pub(crate) use announcements::LIMITS as ANNOUNCEMENT_LIMITS;
pub(crate) use connection::LIMITS as CONNECTION_LIMITS;
pub(crate) use parser::LIMITS as PARSER_LIMITS;
pub(crate) use parser::shown;

/// Port of NATS.
const PORT: u16 = 4222;
/// Port of etcd.
const ETCD_PORT: u16 = 2379;

/// Kinds of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// NATS with JetStream.
    Nats,
    /// etcd.
    Etcd,
}

/// Schemes of engines, and their ports.
const SCHEMES: [(&str, EngineKind, u16); 2] =
    [("nats://", EngineKind::Nats, PORT), ("etcd://", EngineKind::Etcd, ETCD_PORT)];

/// Servers of an engine, as `nats://host:port,host:port` or `etcd://host:port,host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerList {
    kind: EngineKind,
    servers: Vec<(String, u16)>,
}

/// Reason why a text is no list of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerListError {
    /// Another engine than NATS and etcd.
    Scheme,
    /// A host that is none, or a user before it.
    Host,
    /// A port that is none.
    Port,
    /// Too many servers.
    TooMany,
}

impl std::fmt::Display for ServerListError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scheme => f.write_str("it has to begin with \"nats://\" or \"etcd://\""),
            Self::Host => f.write_str("a host is missing or invalid"),
            Self::Port => f.write_str("a port is invalid"),
            Self::TooMany => write!(f, "it has more than {SERVERS_MAX} servers"),
        }
    }
}

impl std::error::Error for ServerListError {}

impl ServerList {
    /// Reads the servers of an engine.
    ///
    /// # Errors
    /// See [`ServerListError`].
    pub fn parse(text: &str) -> Result<Self, ServerListError> {
        let of_scheme = |(scheme, kind, port)| Some((text.strip_prefix(scheme)?, scheme, kind, port));
        let known = SCHEMES.into_iter().find_map(of_scheme).ok_or(ServerListError::Scheme)?;
        let (list, scheme, kind, default_port): (&str, &str, EngineKind, u16) = known;
        let mut servers = Vec::new();
        for server in list.split(',') {
            let server = server.strip_prefix(scheme).unwrap_or(server).trim_end_matches('/');
            let (host, port) = match server.rsplit_once(':').filter(|_| !server.ends_with(']')) {
                Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0)),
                None => (server, Some(default_port)),
            };
            let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = bracketed.unwrap_or(host);
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            let is_valid = match bracketed {
                Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
                None => !host.is_empty() && host.bytes().all(is_host),
            };
            if !is_valid || server.contains('@') {
                return Err(ServerListError::Host);
            }
            servers.push((host.to_owned(), port.ok_or(ServerListError::Port)?));
        }
        if servers.len() > SERVERS_MAX { Err(ServerListError::TooMany) } else { Ok(Self { kind, servers }) }
    }

    /// Kind of the engine.
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Hosts and ports.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u16)> {
        self.servers.iter().map(|(host, port)| (&**host, *port))
    }
}

/// Returns true for a name of a fleet or a node: it is a part of subjects and files.
pub fn is_name(text: &str) -> bool {
    const SIZE_MAX: usize = 64;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.len() <= SIZE_MAX && text.bytes().all(is_part)
}

/// Settings of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    /// Servers, of which one is used.
    pub servers: ServerList,
    /// Proof of who we are.
    pub authentication: Authentication,
    /// True if the connection is encrypted.
    pub tls: bool,
    /// Certificates of the authorities that the server may have one of, in PEM.
    pub trusted: Option<Vec<u8>>,
    /// Copies of the log and the store on servers of the engine, when they are made.
    pub replicas: u8,
    /// Age at which the engine drops records of the log, when that is made.
    pub max_age: Duration,
    /// Number of records that the engine keeps, when the log is made.
    pub max_messages: u64,
}

/// NATS as an engine.
pub(crate) struct Nats {
    pub(crate) settings: EngineSettings,
    pub(crate) fleet: Box<str>,
    pub(crate) node: Box<str>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) names: NameService,
    /// Number of connections made: each begins with the next server.
    pub(crate) tries: std::cell::Cell<usize>,
}

impl Nats {
    /// The engine of these settings. Reads the files of the system's resolver.
    pub(crate) fn new(settings: &EngineSettings, fleet: &str, node: &str) -> Result<Self, String> {
        let tls = settings.tls.then(|| tw_tls::client_config(settings.trusted.as_deref())).transpose()?;
        Ok(Self {
            settings: settings.clone(),
            fleet: fleet.into(),
            node: node.into(),
            tls,
            names: NameService::System(SystemResolver::new(SystemFiles::default())),
            tries: std::cell::Cell::new(0),
        })
    }
}

impl Engine for Nats {
    type Session = JetStream;

    async fn connect(&self) -> Result<JetStream, EngineError> {
        let servers: Vec<_> = self.settings.servers.iter().collect();
        let first = self.tries.get();
        let mut last = EngineError::Lost("it has no server".to_owned());
        for nth in 0..servers.len() {
            self.tries.set((first + nth) % servers.len());
            let Some((host, port)) = servers.get(self.tries.get()) else { continue };
            match Connection::open(self, host, *port).await {
                Ok(connection) => {
                    return JetStream::new(connection, &self.fleet, &self.settings).await;
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn server(&self, session: &JetStream) -> String {
        session.server().to_owned()
    }
}

/// Reads `input` as what a server sends, for the fuzzer: nothing may come of it but an error.
pub fn fuzz(input: &[u8]) {
    let mut parser = parser::Parser::default();
    for piece in input.chunks(7) {
        parser.push(piece);
        loop {
            match parser.next() {
                Ok(Some(parser::ServerOperation::Message(message))) => {
                    let _ = (message.status(), message.status_text(), message.header("Nats-Sequence"));
                    let _ = jetstream::record(&message);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_lists() {
        let list = |text: &str| {
            ServerList::parse(text)
                .map(|list| list.iter().map(|(host, port)| format!("{host} {port}")).collect::<Vec<_>>())
        };
        assert_eq!(list("nats://a"), Ok(vec!["a 4222".to_owned()]));
        assert_eq!(list("etcd://a,b:1"), Ok(vec!["a 2379".to_owned(), "b 1".to_owned()]));
        assert_eq!(
            list("nats://a.example:1,b:2,[::1]:3,[fd00::1]"),
            Ok(vec![
                "a.example 1".to_owned(),
                "b 2".to_owned(),
                "::1 3".to_owned(),
                "fd00::1 4222".to_owned()
            ])
        );
        for (text, error) in [
            ("redis://a", ServerListError::Scheme),
            ("nats://", ServerListError::Host),
            ("nats://user:secret@a", ServerListError::Host),
            ("nats://a,", ServerListError::Host),
            ("nats://::1", ServerListError::Host),
            ("nats://a:0", ServerListError::Port),
            ("nats://a:99999", ServerListError::Port),
        ] {
            assert_eq!(list(text), Err(error), "{text}");
        }
        assert_eq!(list(&format!("nats://{}", ["a"; 17].join(","))), Err(ServerListError::TooMany));
    }
}
