//! `listen`: an address and the options of its socket, and the servers of each address. The part of it that every protocol
//! has; a protocol reads its own parameters first.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::iter;
use std::time::Duration;

use tw_conf::{ConfError, Cx, MachineSubject, Node, Span, Word, units};
use tw_core::config_thread::yield_if_due;
use tw_core::generation::{ListenAddress, SocketSharing};
use tw_core::load::{ConfigBuilder, Mistakes};
use tw_core::server_names::{ServerId, ServerNames, WrittenNames};
use tw_core::session::Session;
use tw_net::listen::{DatagramUse, SocketKind};
use tw_net::{Addr, Keepalive, ListenOptions, parse_listen};
use tw_tls_settings::Ssl;

tw_base::limits! {
    /// Limits of listening sockets.
    pub(crate) const LIMITS;

    /// Connections of one address that wait to be accepted.
    parameter "listen", "backlog=", "511", "the kernel makes the client try again";
}

/// One `listen` directive.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The addresses it means: several for a range of ports or a host name.
    pub addresses: Vec<Addr>,
    /// Socket options.
    pub options: ListenOptions,
    /// `default_server`
    pub default_server: bool,
    /// `ssl`
    pub ssl: bool,
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// True if socket options are given; they may stand once per address.
    pub sets_options: bool,
    /// Position in the configuration; `None` for an implied `listen`.
    pub span: Option<Span>,
}

impl Listen {
    /// A `listen` that is implied.
    pub fn implied(address: Addr) -> Self {
        Self::at(vec![address])
    }

    /// Reads the address; without `default_port`, it has to have a port.
    ///
    /// # Errors
    /// nginx's, for an address that is none.
    pub fn address(node: &Node, default_port: Option<u16>) -> Result<Self, ConfError> {
        let text = node.arg(0)?.lossy();
        let fail = |error: &str| {
            let hint = "an address or a port is expected, such as \"80\"; the name of the site is for \"server_name\"";
            let hint = text.contains("://").then(|| hint.to_owned());
            node.fail(format!("{error} in \"{text}\" of the \"listen\" directive")).or_hint(hint)
        };
        let addresses =
            parse_listen(&text, default_port.unwrap_or(0)).map_err(|error| fail(&error.to_string()))?;
        if addresses.iter().any(|address| address.inet().is_some_and(|address| address.port() == 0)) {
            return Err(fail("no port"));
        }
        Ok(Self { span: Some(node.span), ..Self::at(addresses) })
    }

    fn at(addresses: Vec<Addr>) -> Self {
        Self {
            addresses,
            options: ListenOptions::default(),
            default_server: false,
            ssl: false,
            proxy_protocol: false,
            sets_options: false,
            span: None,
        }
    }

    /// Reads a parameter.
    ///
    /// # Errors
    /// nginx's, for one that no protocol has, and for a value that is not valid.
    pub fn parameter(&mut self, node: &Node, word: &Word, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        match word.as_str() {
            Some("default_server") => {
                self.default_server = true;
                return Ok(());
            }
            Some("proxy_protocol") => {
                self.proxy_protocol = true;
                return Ok(());
            }
            Some("ssl") => {
                self.ssl = true;
                return Ok(());
            }
            _ => self.sets_options = true,
        }
        let tcp = self.addresses.iter().all(|a| a.inet().is_some());
        let options = &mut self.options;
        match word.as_str() {
            Some("bind") => {}
            Some("deferred") => options.deferred = true,
            Some("reuseport") if tcp => options.reuseport = true,
            Some("reuseport") => return Err(node.fail("reuseport is not supported for unix domain sockets")),
            Some("multipath") => options.multipath = true,
            Some("transparent") if tcp => options.transparent = true,
            Some("transparent") => {
                return Err(node.fail("transparent is not supported for unix domain sockets"));
            }
            _ if word.param("accept_filter").is_some() => {
                let message =
                    format!("accept filters \"{word}\" are not supported on this platform, ignored");
                cx.warn(word.span, message);
            }
            _ => return self.valued_parameter(node, word),
        }
        Ok(())
    }

    fn valued_parameter(&mut self, node: &Node, word: &Word) -> Result<(), ConfError> {
        let options = &mut self.options;
        let invalid = |name: &str| node.fail(format!("invalid {name} \"{word}\""));
        let size = |value| units::size(value).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let count = |value| units::number(value).and_then(|n| u32::try_from(n).ok());
        if let Some(value) = word.param("backlog") {
            options.backlog = count(value).filter(|n| *n > 0).ok_or_else(|| invalid("backlog"))?;
        } else if let Some(value) = word.param("rcvbuf") {
            options.rcvbuf = Some(size(value).ok_or_else(|| invalid("rcvbuf"))?);
        } else if let Some(value) = word.param("sndbuf") {
            options.sndbuf = Some(size(value).ok_or_else(|| invalid("sndbuf"))?);
        } else if let Some(value) = word.param("fastopen") {
            options.fastopen = Some(count(value).ok_or_else(|| invalid("fastopen"))?);
        } else if let Some(value) = word.param("so_keepalive") {
            options.keepalive = keepalive(value).ok_or_else(|| {
                node.fail(format!("invalid so_keepalive value: \"{}\"", String::from_utf8_lossy(value)))
            })?;
        } else if let Some(value) = word.param("ipv6only") {
            let ipv6 = self.addresses.iter().all(|a| a.inet().is_some_and(|a| a.is_ipv6()));
            if !ipv6 {
                return Err(node.fail(format!("ipv6only is not supported on addr \"{}\"", node.arg(0)?)));
            }
            options.ipv6only = match value {
                b"on" => true,
                b"off" => false,
                _ => return Err(node.invalid_parameter(word)),
            };
        } else {
            return Err(node.invalid_parameter(word));
        }
        Ok(())
    }
}

/// `on`, `off` or `[idle]:[interval]:[count]`, of which at least one must be given.
fn keepalive(value: &[u8]) -> Option<Keepalive> {
    match value {
        b"on" => return Some(Keepalive::On { idle: None, interval: None, count: None }),
        b"off" => return Some(Keepalive::Off),
        _ => {}
    }
    let mut parts = value.split(|b| *b == b':');
    let (idle, interval, count) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || value.len() == 2 {
        return None;
    }
    let span = |text: &[u8]| -> Option<Option<Duration>> {
        if text.is_empty() { Some(None) } else { units::sec(text).map(Some) }
    };
    let count = match count {
        b"" => None,
        text => Some(units::number(text).and_then(|n| u32::try_from(n).ok())?),
    };
    Some(Keepalive::On { idle: span(idle)?, interval: span(interval)?, count })
}

/// Servers of one listening address. `I` names a server.
pub struct AddressServers<I> {
    /// The address.
    pub address: Addr,
    /// Kind of its socket.
    pub kind: SocketKind,
    /// `ssl`
    pub ssl: bool,
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// The server for clients that name none, or one that is not known.
    pub default_server: I,
    /// All servers of the address.
    pub members: Vec<I>,
    given: Given,
}

/// Parameters that may stand once for an address, so far.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    options: bool,
    default_server: bool,
}

/// Listening addresses of one protocol, and the servers of each.
struct ListenTable<I> {
    addresses: Vec<ListenAddress>,
    /// The servers of each, in the same order.
    servers: Vec<AddressServers<I>>,
    indexes: HashMap<(Addr, SocketKind), usize>,
}

impl<I> Default for ListenTable<I> {
    fn default() -> Self {
        Self { addresses: Vec::new(), servers: Vec::new(), indexes: HashMap::new() }
    }
}

impl<I: Copy + PartialEq> ListenTable<I> {
    /// Adds server `id` to one of the addresses of `listen`, and returns the place of the address. All those of one server come
    /// one after the other.
    ///
    /// # Errors
    /// nginx's, for what may stand once for an address.
    fn add(&mut self, id: I, listen: &Listen, address: &Addr) -> Result<usize, ConfError> {
        let fail = |message: String| {
            let error = ConfError::new(message);
            Err(match listen.span {
                Some(span) => error.at(span),
                None => error,
            })
        };
        let at = self.place(id, listen, address);
        let group = &mut self.servers[at];
        if group.members.last() == Some(&id) {
            return fail(format!("a duplicate listen {address}"));
        }
        group.members.push(id);
        group.proxy_protocol |= listen.proxy_protocol;
        group.ssl |= listen.ssl;
        if listen.sets_options {
            if group.given.options {
                return fail(format!("duplicate listen options for {address}"));
            }
            group.given.options = true;
            self.addresses[at].options = listen.options.clone();
        }
        if listen.default_server {
            if group.given.default_server {
                return fail(format!("a duplicate default server for {address}"));
            }
            group.given.default_server = true;
            group.default_server = id;
        }
        Ok(at)
    }

    /// Place of an address, which is added if it is new.
    fn place(&mut self, id: I, listen: &Listen, address: &Addr) -> usize {
        let key = (address.clone(), listen.options.kind);
        if let Some(at) = self.indexes.get(&key) {
            return *at;
        }
        self.addresses.push(ListenAddress {
            address: address.clone(),
            options: listen.options.clone(),
            socket: SocketSharing::Own,
            span: listen.span,
        });
        self.servers.push(AddressServers {
            address: address.clone(),
            kind: listen.options.kind,
            ssl: false,
            proxy_protocol: false,
            default_server: id,
            members: Vec::new(),
            given: Given::default(),
        });
        self.indexes.insert(key, self.servers.len() - 1);
        self.servers.len() - 1
    }
}

/// A server of a protocol, with what its listening addresses need.
pub trait VirtualServer {
    /// A client being served.
    type Session: Session;
    /// `listen` with the parameters of the protocol.
    type Listen: Borrow<Listen>;

    /// The `listen` directives of the server.
    fn listens(&self) -> &[Self::Listen];

    /// The names of the server.
    fn names(&self) -> WrittenNames<'_>;

    /// The settings of TLS.
    fn ssl(&self) -> &Ssl<Self::Session>;
}

/// Listening addresses of a protocol, with the servers of each in the same order.
pub struct ServersByAddress {
    /// The addresses with their sockets.
    pub addresses: Vec<ListenAddress>,
    /// The servers of each.
    pub servers: Vec<AddressServers<ServerId>>,
    /// The servers of each by name.
    pub names: Vec<ServerNames<ServerId>>,
}

impl ServersByAddress {
    /// Gathers the servers of every listening address. A server without `listen` has those of `implied`. `added` gets the index of each
    /// address that a `listen` means.
    /// Mistakes, in nginx's words, are two of what may stand once for an address, and a server that lacks a certificate.
    pub fn gather<S: VirtualServer>(
        servers: &[S],
        implied: &[S::Listen],
        mut added: impl FnMut(usize, &S::Listen),
        process: &mut ConfigBuilder<'_>,
        mistakes: &mut Mistakes,
    ) -> Self {
        let sources = process.sources;
        let diagnostics = &mut *process.diagnostics;
        let mut table = ListenTable::default();
        let mut names: Vec<ServerNames<ServerId>> = Vec::new();
        let server = |id: ServerId| &servers[id.0 as usize];
        for (index, own) in servers.iter().enumerate() {
            yield_if_due();
            let id = ServerId(index as u32);
            let listens = if own.listens().is_empty() { implied } else { own.listens() };
            for listen in listens {
                let shared: &Listen = listen.borrow();
                for address in &shared.addresses {
                    let at = match table.add(id, shared, address) {
                        Ok(at) => at,
                        Err(error) => {
                            mistakes.add_later(error);
                            continue;
                        }
                    };
                    if names.len() <= at {
                        names.push(ServerNames::default());
                    }
                    added(at, listen);
                    let members = &table.servers[at].members;
                    let names_of = |id: ServerId| server(id).names();
                    names[at].add_server(id, members, names_of, address, sources, &mut *diagnostics);
                }
            }
        }
        for address in &table.addresses {
            if let (Some(ip), Some(span)) = (address.address.inet().map(|inet| inet.ip()), address.span)
                && !ip.is_unspecified()
                && !address.options.transparent
            {
                diagnostics.expect(MachineSubject::Address(ip), || {
                    ConfError::warn(format!("no interface of this machine has the address {ip}"))
                        .at(span)
                        .hint("without net.ipv4.ip_nonlocal_bind, a start cannot listen there")
                });
            }
        }
        for (group, address) in table.servers.iter().zip(&table.addresses) {
            let is_quic = |listen: &ListenOptions| listen.datagrams == DatagramUse::Quic;
            let over_quic = is_quic(&address.options);
            if !group.ssl && !over_quic {
                continue;
            }
            let asks = |listen: &Listen| if over_quic { is_quic(&listen.options) } else { listen.ssl };
            let asking = |id: ServerId| {
                let mut listens = server(id).listens().iter().map(Borrow::borrow);
                listens
                    .find(|listen: &&Listen| asks(listen) && listen.addresses.contains(&group.address))?
                    .span
            };
            let places = |id| (asking(id), server(id).names().server);
            let parameter = if over_quic { "quic" } else { "ssl" };
            if let Err(error) = require_certificates(group, parameter, |id| server(id).ssl(), places) {
                mistakes.add_later(error);
            }
            let lacks_tls13 =
                |id: &ServerId| server(*id).ssl().tls.as_ref().is_some_and(|tls| !tls.supports_quic());
            if let Some(id) = group.members.iter().copied().find(lacks_tls13).filter(|_| over_quic) {
                let message = "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive";
                let error = ConfError::new(message);
                mistakes.add_later(match asking(id).or(server(id).names().server) {
                    Some(span) => error.at(span),
                    None => error,
                });
            }
        }
        Self { addresses: table.addresses, servers: table.servers, names }
    }
}

/// Checks that handshakes can be done on an address: with the default server at least, unless that refuses all. `places` are those
/// of a server's `listen … ssl` for the address, and of the server.
///
/// # Errors
/// A server that lacks a certificate.
fn require_certificates<'a, I: Copy, S: Session>(
    group: &AddressServers<I>,
    parameter: &str,
    ssl: impl Fn(I) -> &'a Ssl<S>,
    places: impl Fn(I) -> (Option<Span>, Option<Span>),
) -> Result<(), ConfError> {
    let others = if ssl(group.default_server).reject_handshake { &group.members[..] } else { &[] };
    let mut needed = iter::once(group.default_server).chain(others.iter().copied());
    let Some(lacking) = needed.find(|id| ssl(*id).tls.is_none()) else { return Ok(()) };
    let message = format!("no \"ssl_certificate\" is defined for the \"listen ... {parameter}\" directive");
    let error = ConfError::new(message);
    // Where TLS is asked for, by that server or by another one of the address.
    let mut asking = iter::once(lacking).chain(group.members.iter().copied());
    Err(match asking.find_map(|id| places(id).0).or(places(lacking).1) {
        Some(span) => error.at(span),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_keepalive_values() {
        let on = |idle: Option<u64>, interval: Option<u64>, count| {
            Some(Keepalive::On {
                idle: idle.map(Duration::from_secs),
                interval: interval.map(Duration::from_secs),
                count,
            })
        };
        for (text, expected) in [
            ("on", on(None, None, None)),
            ("off", Some(Keepalive::Off)),
            ("30m::10", on(Some(1800), None, Some(10))),
            (":5:", on(None, Some(5), None)),
            ("::", None),
            ("1:2", None),
            ("1:2:3:4", None),
            ("x:2:3", None),
        ] {
            assert_eq!(keepalive(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn options_and_default_server_stand_once_for_an_address() {
        let address = Addr::Inet(([127, 0, 0, 1], 80).into());
        let listen = |sets_options, default_server| Listen {
            sets_options,
            default_server,
            ..Listen::implied(address.clone())
        };
        let mut table = ListenTable::default();
        let mut add = |id, listen: Listen| table.add(id, &listen, &address).map_err(|error| error.message);
        assert_eq!(add(1, listen(true, false)), Ok(0));
        assert_eq!(add(1, listen(false, false)), Err("a duplicate listen 127.0.0.1:80".to_owned()));
        assert_eq!(add(2, listen(false, true)), Ok(0));
        let options = Err("duplicate listen options for 127.0.0.1:80".to_owned());
        assert_eq!(add(3, listen(true, false)), options);
        let default = Err("a duplicate default server for 127.0.0.1:80".to_owned());
        assert_eq!(add(4, listen(false, true)), default);
        assert_eq!((table.servers[0].default_server, table.addresses.len()), (2, 1));
    }
}
