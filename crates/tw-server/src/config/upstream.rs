//! `upstream`: groups of servers that requests can be passed to (nginx: ngx_http_upstream_module and the balancers beside it).

mod groups;
mod metrics;
mod server;
mod state;
mod sticky;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Cx, Directive, Node, Setting, UPSTREAM, Word, record};
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_upstream::{BalanceMethod, LeastTime, PeerParams, RandomTwo, Server, ServerAddress, TimeKind};

use crate::config::location::{Resolving, resolver};
use crate::http::Http;
use crate::http::proxy::UpstreamGroup;
use crate::http::proxy::keepalive_pool::KeepaliveSettings;
use crate::http::proxy::queue::UpstreamQueue;
use crate::http::proxy::resolve::UpstreamNames;
use crate::load::Resolve;

use state::Servers;

pub use groups::Groups;
pub use server::{named as server_named, route};
pub use state::StateFile;
pub(crate) use sticky::is_same_site;

/// Port of a URL whose groups have the name of their host.
const HTTP_PORT: u16 = 80;

/// An `upstream` block; nothing in every other block.
#[derive(Default)]
pub struct Upstream {
    /// The group, in an `upstream` block.
    pub(crate) group: Option<Arc<UpstreamGroup>>,
}

/// An `upstream` block as written.
#[derive(Default)]
pub struct Raw {
    servers: Vec<Server>,
    method: Setting<BalanceMethod>,
    key: Setting<Word>,
    keepalive: Setting<(usize, bool)>,
    keepalive_requests: Setting<u64>,
    keepalive_time: Setting<Duration>,
    keepalive_timeout: Setting<Duration>,
    zone: Setting<()>,
    resolving: resolver::Raw,
    state: Setting<Word>,
    sticky: Setting<sticky::WrittenSticky>,
    queue: Setting<UpstreamQueue>,
}

impl Settings<Http> for Upstream {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("server", "address [parameters]", UPSTREAM, Args::at_least(1))
            .doc("A server of the group: weight, max_conns, max_fails, fail_timeout, backup, down, slow_start, route, drain.")
            .set(|raw, node, _| {
                raw.servers.push(server::read(node)?);
                Ok(())
            }),
        record::new("state", "file", UPSTREAM, Args::exact(1))
            .since("1.9.7")
            .doc("A file with the servers of the group, which keeps what an API changes of them; instead of server.")
            .set(|raw, node, _| raw.state.set_once(node, node.arg(0)?.clone())),
        record::new("zone", "name [size]", UPSTREAM, Args::range(1, 2))
            .since("1.9.0")
            .doc("Accepted: all loops share the group in any case.")
            .set(|raw, node, _| raw.zone.set_once(node, ())),
        record::new("least_conn", "", UPSTREAM, Args::NONE)
            .since("1.3.1")
            .doc("The server with the fewest connections for its weight is next.")
            .set(|raw, node, cx| {
                method(raw, node, BalanceMethod::LeastConn, cx);
                Ok(())
            }),
        record::new("ip_hash", "", UPSTREAM, Args::NONE)
            .doc("The address of the client says which server is next.")
            .set(|raw, node, cx| {
                method(raw, node, BalanceMethod::IpHash, cx);
                Ok(())
            }),
        record::new("hash", "key [consistent]", UPSTREAM, Args::range(1, 2))
            .since("1.7.2")
            .doc("A text says which server is next; with consistent, few texts change their server when the group changes.")
            .set(|raw, node, cx| {
                let how = match node.args.get(1) {
                    None => BalanceMethod::Hash,
                    Some(word) if &*word.bytes == b"consistent" => BalanceMethod::HashConsistent,
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                raw.key.replace(node, node.arg(0)?.clone());
                method(raw, node, how, cx);
                Ok(())
            }),
        record::new("random", "[two [method]]", UPSTREAM, Args::range(0, 2))
            .since("1.15.1")
            .doc("A server at random is next, or the better one of two.")
            .set(|raw, node, cx| {
                let two = match node.args.first() {
                    None => None,
                    Some(word) if &*word.bytes == b"two" => Some(match node.args.get(1) {
                        None => RandomTwo::LeastConn,
                        Some(word) if &*word.bytes == b"least_conn" => RandomTwo::LeastConn,
                        Some(word) if &*word.bytes == b"least_time=header" => {
                            RandomTwo::LeastTime(LeastTime { by: TimeKind::Header, inflight: false })
                        }
                        Some(word) if &*word.bytes == b"least_time=last_byte" => {
                            RandomTwo::LeastTime(LeastTime { by: TimeKind::LastByte, inflight: false })
                        }
                        Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                    }),
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                method(raw, node, BalanceMethod::Random(two), cx);
                Ok(())
            }),
        record::new("least_time", "header | last_byte [inflight]", UPSTREAM, Args::range(1, 2))
            .since("1.7.10")
            .doc("The server that has answered quickest, for its connections and weight, is next.")
            .set(|raw, node, cx| {
                let by = match &*node.arg(0)?.bytes {
                    b"header" => TimeKind::Header,
                    b"last_byte" => TimeKind::LastByte,
                    _ => return Err(node.invalid_value(node.arg(0)?)),
                };
                let inflight = match node.args.get(1) {
                    None => false,
                    Some(word) if &*word.bytes == b"inflight" => true,
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                method(raw, node, BalanceMethod::LeastTime(LeastTime { by, inflight }), cx);
                Ok(())
            }),
        record::new("keepalive", "connections [local]", UPSTREAM, Args::range(1, 2))
            .default("32 local")
            .since("1.1.4")
            .doc("Connections that each loop keeps open for the next request; 0 means none.")
            .set(|raw, node, _| {
                let word = node.arg(0)?;
                let count = word.number().and_then(|count| usize::try_from(count).ok());
                let count = count.ok_or_else(|| node.fail(format!("invalid value \"{word}\"")))?;
                let is_local = match node.args.get(1) {
                    None => false,
                    Some(word) if &*word.bytes == b"local" => true,
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                raw.keepalive.set_once(node, (count, is_local))
            }),
        record::number("keepalive_requests", UPSTREAM)
            .default("1000")
            .since("1.15.3")
            .doc("Requests on one connection.")
            .set(|raw, node, _| raw.keepalive_requests.set_number(node)),
        record::time("keepalive_time", UPSTREAM)
            .default("1h")
            .since("1.19.10")
            .doc("How long a connection is used.")
            .set(|raw, node, _| raw.keepalive_time.set_msec(node)),
        record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", UPSTREAM, Args::at_least(1))
            .since("1.27.3")
            .doc("Name servers for the servers of the group; those of http if there are none.")
            .set(|raw, node, _| raw.resolving.read(node)),
        record::time("resolver_timeout", UPSTREAM)
            .default("30s")
            .since("1.27.3")
            .doc("How long a name may take to be found.")
            .set(|raw, node, _| raw.resolving.read_timeout(node)),
        record::time("keepalive_timeout", UPSTREAM)
            .default("60s")
            .since("1.15.3")
            .doc("How long a connection waits for the next request.")
            .set(|raw, node, _| raw.keepalive_timeout.set_msec(node)),
        record::new(
            "sticky",
            "cookie name [expires=time] [domain=text] [httponly] [samesite=strict | lax | none | $variable] [secure] [path=text] | route $variable ... | learn create=$variable lookup=$variable zone=name:size [timeout=time] [header]",
            UPSTREAM,
            Args::at_least(2),
        )
        .since("1.5.7")
        .doc("Requests of one client go to one server: by a cookie that is set here, by a route in the request, or by a session of the server.")
        .set(|raw, node, _| raw.sticky.set_with(node, sticky::read)),
        record::new("queue", "number [timeout=time]", UPSTREAM, Args::range(1, 2))
            .since("1.5.12")
            .doc("So many requests wait when no server can be asked, 60 seconds unless said otherwise; then the client gets 502.")
            .set(|raw, node, _| raw.queue.set_with(node, sticky::queue)),
    ];

    const LIMITS: &'static [Limit] = &[
        Limit::directive("queue", "Requests that wait for a server of one group", "502"),
        Limit::directive(
            "sticky",
            "Bytes of a zone of sessions that are learned, 256 for each",
            "the session goes that was used the longest ago",
        ),
    ];

    const METRICS: &'static [Metric] = metrics::METRICS;

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let Some(name) = cx.block.upstream.clone() else { return Ok(Self::default()) };
        let state = raw.state.take();
        // Whoever builds the block refuses it: one in which nothing is written does not come here.
        if raw.servers.is_empty() && state.is_none() {
            return Ok(Self::default());
        }
        let usual = KeepaliveSettings::default();
        let (connections, is_local) = raw.keepalive.or(None, (usual.connections, usual.is_local));
        let keepalive = KeepaliveSettings {
            connections,
            is_local,
            requests: raw.keepalive_requests.or(None, usual.requests),
            time: raw.keepalive_time.or(None, usual.time),
            timeout: raw.keepalive_timeout.or(None, usual.timeout),
        };
        let key = raw.key.take().map(|word| cx.template(&word)).transpose()?;
        let method = raw.method.or(None, BalanceMethod::RoundRobin);
        let outer = cx.block.resolving.clone();
        let resolving = Some(Resolving::resolve(raw.resolving, outer.as_ref(), cx));
        let (peers, state) = match state {
            None => (group(&name, method, raw.servers, cx), None),
            Some(word) if raw.servers.is_empty() => {
                let (file, servers) = state::read(&word, &name, cx)?;
                (group_of(servers, &name, method, cx), Some(file))
            }
            Some(word) => {
                let message = format!(
                    "the servers of upstream \"{name}\" stand both in its block and in the state file \"{word}\""
                );
                let hint =
                    "an API keeps them in the file: leave them out of the block, or leave out \"state\"";
                return Err(ConfError::new(message).hint(hint).at(word.span));
            }
        };
        let names = UpstreamNames::default();
        let sticky = raw.sticky.take().map(|written| sticky::resolve(written, &name, cx)).transpose()?;
        let queue = raw.queue.take();
        Ok(Self {
            group: Some(Arc::new(UpstreamGroup {
                peers,
                keepalive,
                key,
                names,
                resolving,
                sticky,
                queue,
                state,
                is_named: true,
            })),
        })
    }

    fn are_shared(&self) -> bool {
        self.group.is_none()
    }
}

/// A group that goes on from the one of the same name before.
fn group(
    name: &str,
    method: BalanceMethod,
    servers: Vec<Server>,
    cx: &mut Resolve<'_>,
) -> Arc<tw_upstream::Group> {
    let old = cx.previous::<tw_upstream::Group>(name.as_bytes());
    cx.keep(name.as_bytes(), |_| false, || tw_upstream::Group::new(name, method, servers, old.as_deref()))
}

/// Returns the group of an upstream with a `state` file. A group that has written the file is kept, so a change at
/// the moment of a reload is not lost. If the reload changes its balancing method, a new group gets the current
/// servers of the old one.
fn group_of(
    servers: Servers,
    name: &str,
    method: BalanceMethod,
    cx: &mut Resolve<'_>,
) -> Arc<tw_upstream::Group> {
    match servers {
        Servers::Read(servers) => group(name, method, servers, cx),
        Servers::OfBefore => {
            let old = cx.previous::<tw_upstream::Group>(name.as_bytes());
            let fits = |old: &tw_upstream::Group| old.method() == method;
            let make = || {
                let list = old.as_ref().map(|old| old.list());
                let servers = list.iter().flat_map(|list| list.servers());
                let servers = servers.map(|(_, server)| (**server).clone()).collect();
                tw_upstream::Group::new(name, method, servers, old.as_deref())
            };
            cx.keep(name.as_bytes(), fits, make)
        }
    }
}

/// Explains in nginx's words why no server of an `upstream` block can be used; `None` if one can. The group of a
/// `state` file may be empty at first.
pub(crate) fn lacks_servers(name: &str, group: Option<&UpstreamGroup>) -> Option<String> {
    let Some(group) = group else { return Some(format!("no servers are inside upstream \"{name}\"")) };
    let has_primary = group.peers.list().servers().iter().any(|(_, server)| !server.params.backup);
    (group.state.is_none() && !has_primary).then(|| format!("no servers in upstream \"{name}\""))
}

/// The group of what stands in a URL: an `upstream`, or a server alone, as `host:port` or `unix:path`. A server without a
/// port listens on `usual`.
///
/// # Errors
/// No such address, in nginx's words.
pub fn named(
    word: &Word,
    text: &str,
    usual: Option<u16>,
    cx: &mut Resolve<'_>,
) -> Result<Arc<UpstreamGroup>, ConfError> {
    let block = &cx.block;
    if let Some(group) = block.upstreams.find(text) {
        return Ok(group.clone());
    }
    let refused = |error: String| ConfError::new(error).at(word.span);
    // Many names of hosts have dots, and those with a port are no names of groups.
    let is_plain = !text.contains(['.', ':']);
    let meant = is_plain.then(|| block.upstreams.nearest(text)).flatten();
    let meant = meant.map(|name| format!("did you mean the upstream \"{name}\"?"));
    let place = server::place(text, usual).map_err(|error| {
        let error = refused(format!("{error} in upstream \"{text}\""));
        match &meant {
            Some(hint) => error.hint(hint),
            None => error,
        }
    })?;
    let written = server::host_and_port(text);
    if let Some((host, port)) = written.filter(|(host, _)| block.upstreams.find(host).is_some()) {
        return Err(refused(format!("upstream \"{host}\" may not have port {port}")));
    }
    // A host is another server with every port that a scheme has.
    let name: Cow<'_, str> = match usual {
        None | Some(HTTP_PORT) => text.into(),
        Some(usual) => server::with_port(text, usual).into(),
    };
    if let Some(group) = block.implicit.get(&*name) {
        return Ok(group.clone());
    }
    if let Some(hint) = meant {
        let message = format!("no upstream has the name \"{text}\", it is resolved as the name of a host");
        cx.report(ConfError::warn(message).at(word.span).hint(hint));
    }
    let server = Server { name: text.into(), address: place, params: PeerParams::default() };
    let peers = group(&name, BalanceMethod::RoundRobin, vec![server], cx);
    let group = Arc::new(UpstreamGroup::plain(peers));
    cx.block.implicit.insert((*name).into(), group.clone());
    Ok(group)
}

/// Makes a group of a URL that is known only at run time. The group lives as long as its request, and `resolver`
/// looks up a name.
///
/// # Errors
/// No address and no name.
pub fn alone(text: &str, usual: Option<u16>) -> Result<Arc<UpstreamGroup>, String> {
    let mut place = server::place(text, usual)?;
    if let ServerAddress::Named { follows, .. } = &mut place {
        *follows = true;
    }
    let server = Server { name: text.into(), address: place, params: PeerParams::default() };
    let peers = Arc::new(tw_upstream::Group::new(text, BalanceMethod::RoundRobin, vec![server], None));
    Ok(Arc::new(UpstreamGroup::plain(peers)))
}

fn method(raw: &mut Raw, node: &Node, method: BalanceMethod, cx: &mut Cx<'_>) {
    if raw.method.is_set() {
        cx.diagnostics.warn(node.span, "load balancing method redefined");
    }
    raw.method.replace(node, method);
}
