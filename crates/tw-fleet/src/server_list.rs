//! Servers of an engine, as a configuration lists them.

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Servers of the engine of a fleet.
    const SERVERS_MAX: usize = 16, count, "the configuration is refused";
}

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
        let row = SCHEMES.into_iter().find_map(of_scheme).ok_or(ServerListError::Scheme)?;
        let (list, scheme, kind, default_port): (&str, &str, EngineKind, u16) = row;
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
