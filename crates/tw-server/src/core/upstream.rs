//! `upstream`: groups of servers that requests can be passed to (nginx: ngx_http_upstream_module and the balancers beside it).

mod metrics;
mod sticky;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Cx, Directive, Node, Setting, UPSTREAM, Word, record, units};
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_net::Addr;
use tw_upstream::{Admin, LeastTime, Method, Params, Place, Server, Time, Two};

use crate::core::location::{Resolving, resolver};
use crate::http::Http;
use crate::http::gateway::Group;
use crate::http::gateway::idle::KeepAlive;
use crate::http::gateway::resolve;
use crate::http::gateway::waiting::Queue;
use crate::load::Resolve;

pub(crate) use sticky::is_same_site;

/// The port of a server that names none.
const PORT: u16 = 80;

/// An `upstream` block; nothing in every other block.
#[derive(Default)]
pub struct Upstream {
    /// The group, in an `upstream` block.
    pub(crate) group: Option<Arc<Group>>,
}

/// The same as written.
#[derive(Default)]
pub struct Raw {
    servers: Vec<Server>,
    method: Setting<Method>,
    key: Setting<Word>,
    keepalive: Setting<(usize, bool)>,
    keepalive_requests: Setting<u64>,
    keepalive_time: Setting<Duration>,
    keepalive_timeout: Setting<Duration>,
    zone: Setting<()>,
    resolving: resolver::Raw,
    /// Servers with `resolve`.
    following: Vec<Box<str>>,
    sticky: Setting<sticky::Written>,
    queue: Setting<Queue>,
}

impl Settings<Http> for Upstream {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("server", "address [parameters]", UPSTREAM, Args::at_least(1))
            .doc("A server of the group: weight, max_conns, max_fails, fail_timeout, backup, down, slow_start, route, drain.")
            .set(|raw, node, _| {
                let server = server(node, &mut raw.following)?;
                raw.servers.push(server);
                Ok(())
            }),
        record::new("zone", "name [size]", UPSTREAM, Args::range(1, 2))
            .since("1.9.0")
            .doc("Accepted: all loops share the group in any case.")
            .set(|raw, node, _| raw.zone.set_once(node, ())),
        record::new("least_conn", "", UPSTREAM, Args::NONE)
            .since("1.3.1")
            .doc("The server with the fewest connections for its weight is next.")
            .set(|raw, node, cx| {
                method(raw, node, Method::LeastConn, cx);
                Ok(())
            }),
        record::new("ip_hash", "", UPSTREAM, Args::NONE)
            .doc("The address of the client says which server is next.")
            .set(|raw, node, cx| {
                method(raw, node, Method::IpHash, cx);
                Ok(())
            }),
        record::new("hash", "key [consistent]", UPSTREAM, Args::range(1, 2))
            .since("1.7.2")
            .doc("A text says which server is next; with consistent, few texts change their server when the group changes.")
            .set(|raw, node, cx| {
                let how = match node.args.get(1) {
                    None => Method::Hash,
                    Some(word) if &*word.bytes == b"consistent" => Method::HashConsistent,
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
                        None => Two::LeastConn,
                        Some(word) if &*word.bytes == b"least_conn" => Two::LeastConn,
                        Some(word) if &*word.bytes == b"least_time=header" => {
                            Two::LeastTime(LeastTime { by: Time::Header, inflight: false })
                        }
                        Some(word) if &*word.bytes == b"least_time=last_byte" => {
                            Two::LeastTime(LeastTime { by: Time::LastByte, inflight: false })
                        }
                        Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                    }),
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                method(raw, node, Method::Random(two), cx);
                Ok(())
            }),
        record::new("least_time", "header | last_byte [inflight]", UPSTREAM, Args::range(1, 2))
            .since("1.7.10")
            .doc("The server that has answered quickest, for its connections and weight, is next.")
            .set(|raw, node, cx| {
                let by = match &*node.arg(0)?.bytes {
                    b"header" => Time::Header,
                    b"last_byte" => Time::LastByte,
                    _ => return Err(node.invalid_value(node.arg(0)?)),
                };
                let inflight = match node.args.get(1) {
                    None => false,
                    Some(word) if &*word.bytes == b"inflight" => true,
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                method(raw, node, Method::LeastTime(LeastTime { by, inflight }), cx);
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
        if raw.servers.is_empty() {
            return Err(ConfError::new(format!("no servers are inside upstream \"{name}\"")));
        }
        let usual = KeepAlive::default();
        let (connections, is_local) = raw.keepalive.or(None, (usual.connections, usual.is_local));
        let keepalive = KeepAlive {
            connections,
            is_local,
            requests: raw.keepalive_requests.or(None, usual.requests),
            time: raw.keepalive_time.or(None, usual.time),
            timeout: raw.keepalive_timeout.or(None, usual.timeout),
        };
        let key = raw.key.take().map(|word| cx.template(&word)).transpose()?;
        let method = raw.method.or(None, Method::RoundRobin);
        let resolving = raw.resolving.is_set().then(|| Resolving::resolve(raw.resolving, None, cx));
        let peers = group(&name, method, raw.servers, cx);
        let names =
            resolve::named(&peers, |server| raw.following.iter().any(|name| **name == *server)).into();
        let sticky = raw.sticky.take().map(|written| sticky::resolve(written, &name, cx)).transpose()?;
        let queue = raw.queue.take();
        Ok(Self { group: Some(Arc::new(Group { peers, keepalive, key, names, resolving, sticky, queue })) })
    }

    fn are_shared(&self) -> bool {
        self.group.is_none()
    }
}

/// A group that goes on from the one of the same name before.
fn group(name: &str, method: Method, servers: Vec<Server>, cx: &mut Resolve<'_>) -> Arc<tw_upstream::Group> {
    let old = cx.previous::<tw_upstream::Group>(name.as_bytes());
    cx.keep(name.as_bytes(), |_| false, || tw_upstream::Group::new(name, method, servers, old.as_deref()))
}

/// The group of what stands in a URL: an `upstream`, or a server alone, as `host:port` or `unix:path`.
///
/// # Errors
/// No such address.
pub fn named(text: &str, port: u16, cx: &mut Resolve<'_>) -> Result<Arc<Group>, String> {
    let block = &cx.block;
    if let Some(group) = block.upstreams.get(text).or_else(|| block.implicit.get(text)) {
        return Ok(group.clone());
    }
    let server = Server { name: text.into(), place: place(text, port)?, params: Params::default() };
    let peers = group(text, Method::RoundRobin, vec![server], cx);
    let group = Arc::new(Group::plain(peers));
    cx.block.implicit.insert(text.into(), group.clone());
    Ok(group)
}

/// The same for a URL that is known only now. It lives as long as its request.
///
/// # Errors
/// No address and no name.
pub fn alone(text: &str, port: u16) -> Result<Arc<Group>, String> {
    let server = Server { name: text.into(), place: place(text, port)?, params: Params::default() };
    let peers = Arc::new(tw_upstream::Group::new(text, Method::RoundRobin, vec![server], None));
    Ok(Arc::new(Group::plain(peers)))
}

fn method(raw: &mut Raw, node: &Node, method: Method, cx: &mut Cx<'_>) {
    if raw.method.is_set() {
        cx.diagnostics.warn(node.span, "load balancing method redefined");
    }
    raw.method.replace(node, method);
}

/// Where a server is. A name that is no address is asked for later.
fn place(text: &str, port: u16) -> Result<Place, String> {
    if text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:")) {
        let addr = tw_net::parse_server(text, port).map_err(|error| error.to_string())?;
        return Ok(Place::Fixed(vec![addr]));
    }
    if let Ok(addr) = text.parse() {
        return Ok(Place::Fixed(vec![Addr::Inet(addr)]));
    }
    let host = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = host.parse() {
        return Ok(Place::Fixed(vec![Addr::Inet(SocketAddr::new(ip, port))]));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, digits)) => {
            let port = digits.parse().ok().filter(|port| *port != 0).ok_or("invalid port")?;
            (host, port)
        }
        None => (text, port),
    };
    if host.is_empty() {
        return Err("no host".to_owned());
    }
    if tw_dns::Name::parse(host.as_bytes()).is_none() {
        return Err("invalid host".to_owned());
    }
    Ok(Place::Named { host: host.into(), service: None, port })
}

/// Reads `server`.
fn server(node: &Node, following: &mut Vec<Box<str>>) -> Result<Server, ConfError> {
    let address = node.arg(0)?;
    let text = address.lossy();
    let mut place =
        place(&text, PORT).map_err(|error| node.fail(format!("{error} in upstream \"{address}\"")))?;
    let mut params = Params::default();
    for word in node.args.iter().skip(1) {
        let invalid = || node.fail(format!("invalid parameter \"{word}\""));
        let number =
            |value: &[u8]| units::number(value).and_then(|n| u32::try_from(n).ok()).ok_or_else(invalid);
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        if let Some(value) = word.param("weight") {
            params.weight = number(value).ok().filter(|weight| *weight > 0).ok_or_else(invalid)?;
        } else if let Some(value) = word.param("max_conns") {
            params.max_conns = number(value)?;
        } else if let Some(value) = word.param("max_fails") {
            params.max_fails = number(value)?;
        } else if let Some(value) = word.param("fail_timeout") {
            params.fail_timeout_ms = millis(units::sec(value).ok_or_else(invalid)?);
        } else if let Some(value) = word.param("slow_start") {
            params.slow_start_ms = millis(units::sec(value).ok_or_else(invalid)?);
        } else if let Some(value) = word.param("route") {
            params.route = Some(value.into());
        } else if let Some(value) = word.param("service") {
            match &mut place {
                Place::Named { service, .. } if !value.is_empty() && !text.contains(':') => {
                    *service = Some(String::from_utf8_lossy(value).into());
                }
                _ => return Err(node.fail(format!("service upstream \"{text}\" may not have port"))),
            }
        } else {
            match &*word.bytes {
                b"resolve" => following.push((&*text).into()),
                b"backup" => params.backup = true,
                b"down" => params.admin = Admin::Down,
                b"drain" => params.admin = Admin::Drain,
                _ => return Err(invalid()),
            }
        }
    }
    Ok(Server { name: text.into(), place, params })
}
