//! Directives of an `upstream` block.

use std::sync::Arc;
use std::time::Duration;

use tw_base::{FatalMutex, Limit};
use tw_conf::{
    Args, ConfError, Contexts, Cx, Directive, MAIL_UPSTREAM, MachineSubject, Node, STREAM_UPSTREAM, Setting,
    UPSTREAM, Word, record, units,
};
use tw_core::load::Resolve;
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_upstream::{
    BalanceFactor, BalanceMethod, Group, LeastTime, RandomTwo, Server, ServerAddress, TimeKind,
};

use super::address_group::unresolved;
use super::shared_groups::{group, group_of, shared_name};
use super::{metrics, server, state_file, undone};
use crate::fleet::share_health;
use crate::group::UpstreamGroup;
use crate::keepalive_settings::KeepaliveSettings;
use crate::named_server::UpstreamNames;
use crate::protocol::ConnectingProtocol;
use crate::queue::{self, UpstreamQueue};
use crate::resolving::{RawResolving, Resolving};

/// Contexts of directives that every protocol has.
const ALL: Contexts = UPSTREAM | STREAM_UPSTREAM | MAIL_UPSTREAM;
/// Contexts of directives about connections that are used again.
const KEEPALIVE: Contexts = UPSTREAM | MAIL_UPSTREAM;

/// An `upstream` block; nothing in every other block.
pub struct Upstream<P: ConnectingProtocol> {
    /// The group, in an `upstream` block.
    pub group: Option<Arc<UpstreamGroup<P>>>,
}

impl<P: ConnectingProtocol> Default for Upstream<P> {
    fn default() -> Self {
        Self { group: None }
    }
}

/// Directives of an `upstream` block as written.
pub struct Raw<P: ConnectingProtocol> {
    servers: Vec<Server>,
    method: Setting<BalanceMethod>,
    key: Setting<Word>,
    keepalive: Setting<(usize, bool)>,
    keepalive_requests: Setting<u64>,
    keepalive_time: Setting<Duration>,
    keepalive_timeout: Setting<Duration>,
    /// `fleet=` of `zone`.
    zone: Setting<Option<Word>>,
    resolving: RawResolving,
    state: Setting<Word>,
    sticky: Setting<P::RawSticky>,
    queue: Setting<UpstreamQueue>,
}

impl<P: ConnectingProtocol> Default for Raw<P> {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            method: Setting::default(),
            key: Setting::default(),
            keepalive: Setting::default(),
            keepalive_requests: Setting::default(),
            keepalive_time: Setting::default(),
            keepalive_timeout: Setting::default(),
            zone: Setting::default(),
            resolving: RawResolving::default(),
            state: Setting::default(),
            sticky: Setting::default(),
            queue: Setting::default(),
        }
    }
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Requests that wait for a server of one group.
    directive "queue", "502";
    /// Bytes of a zone of sessions that are learned, 256 for each.
    directive "sticky", "the session goes that was used the longest ago";
}

impl<P: ConnectingProtocol> Settings<P> for Upstream<P> {
    type Raw = Raw<P>;

    const DIRECTIVES: &'static [Directive<Raw<P>>] = &[
        record::new("server", "address [parameters]", ALL, Args::at_least(1))
            .doc("A server of the group: weight, max_conns, max_fails, fail_timeout, backup, down, slow_start, route, drain.")
            .set(|raw, node, cx| {
                let server = read_server::<P>(node)?;
                if let ServerAddress::Named { host, service: None, follows: false, .. } = &server.address {
                    let word = node.arg(0)?;
                    cx.diagnostics.expect(MachineSubject::Host(host.clone()), || unresolved(host, word));
                }
                raw.servers.push(server);
                Ok(())
            }),
        record::new("state", "file", ALL, Args::exact(1))
            .since("1.9.7")
            .doc("A file with the servers of the group, which keeps what an API changes of them; instead of server.")
            .set(|raw, node, _| raw.state.set_once(node, node.arg(0)?.clone())),
        record::new("zone", "name [size] [fleet=name]", ALL, Args::range(1, 3))
            .since("1.9.0")
            .doc(
                "Accepted: all loops share the group in any case. With fleet=, nodes of the fleet tell each other which servers are down; each \
                 node then looks itself.",
            )
            .set(|raw, node, _| raw.zone.set_with(node, read_zone)),
        record::new("least_conn", "", ALL, Args::NONE)
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
        record::new("hash", "key [consistent [balance_factor=percent]]", ALL, Args::range(1, 3))
            .since("1.7.2")
            .doc("A text says which server is next; with consistent, few texts change their server when the group changes. With balance_factor, from 101 to 10000, no server has more of the requests under way than that part of its share: a text whose server has that goes to the next one.")
            .set(|raw, node, cx| {
                let invalid = |word: &Word| node.fail(format!("invalid parameter \"{word}\""));
                let mut balance = BalanceMethod::Hash;
                for word in node.args.iter().skip(1) {
                    balance = match balance {
                        BalanceMethod::Hash if word.is("consistent") => BalanceMethod::HashConsistent,
                        BalanceMethod::HashConsistent => {
                            let factor = word.param("balance_factor").and_then(units::number);
                            let factor = factor.and_then(BalanceFactor::new).ok_or_else(|| invalid(word))?;
                            BalanceMethod::HashBounded(factor)
                        }
                        _ => return Err(invalid(word)),
                    };
                }
                raw.key.replace(node, node.arg(0)?.clone());
                method(raw, node, balance, cx);
                Ok(())
            }),
        record::new("random", "[two [method]]", ALL, Args::range(0, 2))
            .since("1.15.1")
            .doc("A server at random is next, or the better one of two.")
            .set(|raw, node, cx| {
                let two = match node.args.first() {
                    None => None,
                    Some(word) if &*word.bytes == b"two" => Some(match node.args.get(1) {
                        None => RandomTwo::LeastConn,
                        Some(word) if &*word.bytes == b"least_conn" => RandomTwo::LeastConn,
                        Some(word) => match word.param("least_time").and_then(time_kind::<P>) {
                            Some(by) => RandomTwo::LeastTime(LeastTime { by, inflight: false }),
                            None => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                        },
                    }),
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                method(raw, node, BalanceMethod::Random(two), cx);
                Ok(())
            }),
        record::new("least_time", "header | connect | first_byte | last_byte [inflight]", ALL, Args::range(1, 2))
            .since("1.7.10")
            .doc("The server that has answered quickest, for its connections and weight, is next.")
            .set(|raw, node, cx| {
                let word = node.arg(0)?;
                let by = time_kind::<P>(&word.bytes).ok_or_else(|| node.invalid_value(word))?;
                let inflight = match node.args.get(1) {
                    None => false,
                    Some(word) if &*word.bytes == b"inflight" => true,
                    Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
                };
                method(raw, node, BalanceMethod::LeastTime(LeastTime { by, inflight }), cx);
                Ok(())
            }),
        record::new("keepalive", "connections [local]", KEEPALIVE, Args::range(1, 2))
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
        record::number("keepalive_requests", KEEPALIVE)
            .default("1000")
            .since("1.15.3")
            .doc("Requests on one connection.")
            .set(|raw, node, _| raw.keepalive_requests.set_number(node)),
        record::time("keepalive_time", KEEPALIVE)
            .default("1h")
            .since("1.19.10")
            .doc("Age after which an idle connection is no longer used.")
            .set(|raw, node, _| raw.keepalive_time.set_msec(node)),
        record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", ALL, Args::at_least(1))
            .since("1.27.3")
            .doc("Name servers for the servers of the group; those of http if there are none.")
            .set(|raw, node, _| raw.resolving.read(node)),
        record::time("resolver_timeout", ALL)
            .default("30s")
            .since("1.27.3")
            .doc("Time limit for resolving a name.")
            .set(|raw, node, _| raw.resolving.read_timeout(node)),
        record::time("keepalive_timeout", KEEPALIVE)
            .default("60s")
            .since("1.15.3")
            .doc("Time for which an idle connection is kept.")
            .set(|raw, node, _| raw.keepalive_timeout.set_msec(node)),
        record::new(
            "sticky",
            "cookie name [expires=time] [domain=text] [httponly] [samesite=strict | lax | none | $variable] [secure] [path=text] | route $variable ... | learn create=$variable lookup=$variable zone=name:size [timeout=time] [header]",
            UPSTREAM,
            Args::at_least(2),
        )
        .since("1.5.7")
        .doc("Requests of one client go to one server: by a cookie that is set here, by a route in the request, or by a session of the server.")
        .set(|raw, node, _| raw.sticky.set_with(node, P::read_sticky)),
        record::new("queue", "number [timeout=time]", UPSTREAM, Args::range(1, 2))
            .since("1.5.12")
            .doc("So many requests wait when no server can be asked, 60 seconds unless said otherwise; then the client gets 502.")
            .set(|raw, node, _| raw.queue.set_with(node, queue::read)),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    const METRICS: &'static [Metric] = metrics::METRICS;

    fn resolve(raw: Raw<P>, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let Some(name) = P::upstream_block(&cx.block).name.clone() else { return Ok(Self::default()) };
        let state = raw.state.take();
        // The code that builds the block refuses one without servers; an empty block does not get here at all.
        if raw.servers.is_empty() && state.is_none() {
            return Ok(Self::default());
        }
        let usual = KeepaliveSettings::USUAL;
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
        let outer = P::upstream_block(&cx.block).resolving.clone();
        let resolving = Some(Resolving::resolve(raw.resolving, outer.as_ref(), cx));
        let (peers, state, undone) = match state {
            None => {
                let old = cx.previous::<Group>(&shared_name::<P>(&name));
                let undone = old.map(|old| undone::undone_changes(&old, &raw.servers)).unwrap_or_default();
                (group(&name, method, raw.servers, cx), None, undone)
            }
            Some(word) if raw.servers.is_empty() => {
                let (file, servers) = state_file::read(&word, &name, P::SERVER_PORT, cx)?;
                (group_of(servers, &name, method, cx), Some(file), Vec::new())
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
        let sticky =
            raw.sticky.take().map(|raw_sticky| P::resolve_sticky(raw_sticky, &name, cx)).transpose()?;
        let queue = raw.queue.take();
        if let Some(word) = raw.zone.take().flatten() {
            share_health(shared_name::<P>(&name), peers.clone(), &word, cx)?;
        }
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
                undone: FatalMutex::new(undone),
            })),
        })
    }

    fn are_shared(&self) -> bool {
        self.group.is_none()
    }
}

/// Reads `zone`: its parameter `fleet=`.
fn read_zone(node: &Node) -> Result<Option<Word>, ConfError> {
    let mut fleet = None;
    for (nth, word) in node.args.iter().enumerate().skip(1) {
        match word.param("fleet") {
            Some(_) if fleet.is_none() => fleet = Some(word.clone()),
            None if nth == 1 => {}
            _ => return Err(node.invalid_parameter(word)),
        }
    }
    Ok(fleet)
}

/// The time that a word of `least_time` means.
fn time_kind<P: ConnectingProtocol>(word: &[u8]) -> Option<TimeKind> {
    P::LEAST_TIME.iter().find(|(name, _)| name.as_bytes() == word).map(|(_, kind)| *kind)
}

fn method<P: ConnectingProtocol>(raw: &mut Raw<P>, node: &Node, method: BalanceMethod, cx: &mut Cx<'_>) {
    if raw.method.is_set() {
        cx.diagnostics.warn(node.span, "load balancing method redefined");
    }
    raw.method.replace(node, method);
}

/// Reads `server` of a protocol.
///
/// # Errors
/// Error of an argument, in nginx's words.
fn read_server<P: ConnectingProtocol>(node: &Node) -> Result<Server, ConfError> {
    let mut route = node.args.iter().skip(1).filter(|word| word.param("route").is_some());
    match route.next().filter(|_| !P::HAS_ROUTES) {
        Some(word) => Err(node
            .invalid_parameter(word)
            .hint(format!("\"sticky\" finds servers by their route, and \"{}\" does not have it", P::NAME))),
        None => server::read(node, P::SERVER_PORT),
    }
}
