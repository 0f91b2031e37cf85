//! `upstream`: groups of servers that sessions can be passed to (nginx: ngx_http_upstream_module, ngx_stream_upstream_module
//! and the balancers beside them).

mod blocks;
mod groups;
mod metrics;
pub mod server;
mod state_file;
mod undone;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tw_base::{FatalMutex, Limit};
use tw_conf::{
    Args, ConfError, Contexts, Cx, Directive, MAIL_UPSTREAM, MachineSubject, Node, STREAM_UPSTREAM, Setting,
    Span, UPSTREAM, Word, record, units,
};
use tw_core::load::Resolve;
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::shared_objects::SharedObjects;
use tw_upstream::{
    BalanceFactor, BalanceMethod, Group, LeastTime, PeerParams, RandomTwo, Server, ServerAddress, TimeKind,
};

use self::state_file::Servers;
use crate::fleet::share_health;
use crate::group::UpstreamGroup;
use crate::keepalive_pool::KeepaliveSettings;
use crate::protocol::ConnectingProtocol;
use crate::queue::{self, UpstreamQueue};
use crate::resolving::{RawResolving, Resolving};
use crate::upstream_names::UpstreamNames;

pub use blocks::{WrittenUpstream, read_name, resolve_blocks};
pub use groups::Groups;
pub use state_file::{StateFile, read_text as read_state_file};

/// Addresses that variables can name and that are looked at for a warning.
const POSSIBLE_ADDRESSES_MAX: usize = 1024;

/// Contexts of directives that every protocol has.
const ALL: Contexts = UPSTREAM | STREAM_UPSTREAM | MAIL_UPSTREAM;
/// Contexts of directives about connections that are used again.
const KEEPALIVE: Contexts = UPSTREAM | MAIL_UPSTREAM;

/// Part of the position of a block that is being resolved: names of upstream servers and their resolution.
pub struct UpstreamBlock<P: ConnectingProtocol> {
    /// Name of the `upstream` that is being resolved.
    pub name: Option<Arc<str>>,
    /// Groups of the `upstream` blocks, by name.
    pub groups: Arc<Groups<P>>,
    /// Name resolution as set in the block of the protocol.
    pub resolving: Option<Resolving>,
    /// True if a `resolver` holds in the block that is being resolved.
    pub has_resolver: bool,
    /// True once a warning said that there is none where one is needed.
    is_resolver_missed: bool,
    /// The `upstream` blocks, and whether something names them.
    pub(crate) named_groups: Vec<NamedGroup>,
    /// Groups made by addresses.
    implicit: HashMap<Box<str>, Arc<UpstreamGroup<P>>>,
    /// True if connections to upstream servers may use TLS.
    pub uses_tls: bool,
}

impl<P: ConnectingProtocol> Default for UpstreamBlock<P> {
    fn default() -> Self {
        Self {
            name: None,
            groups: Arc::default(),
            resolving: None,
            has_resolver: false,
            is_resolver_missed: false,
            named_groups: Vec::new(),
            implicit: HashMap::new(),
            uses_tls: false,
        }
    }
}

/// An `upstream` block and its use.
pub(crate) struct NamedGroup {
    pub(crate) name: Arc<str>,
    /// Place of the block.
    pub(crate) span: Span,
    pub(crate) usage: GroupUsage,
}

/// Use of an `upstream` block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupUsage {
    /// Nothing names it.
    Unused,
    /// Something names it, or may by a variable.
    Used,
}

impl<P: ConnectingProtocol> UpstreamBlock<P> {
    /// All groups, for something that finds them by a name that has variables.
    pub fn any_group(&mut self) -> Arc<Groups<P>> {
        self.named_groups.iter_mut().for_each(|group| group.usage = GroupUsage::Used);
        self.groups.clone()
    }

    /// Notes about the `upstream` blocks that nothing names, at the end of the block of the protocol.
    pub fn unused(&mut self) -> Vec<ConfError> {
        let groups = std::mem::take(&mut self.named_groups).into_iter();
        let unused = groups.filter(|group| group.usage == GroupUsage::Unused);
        let note = |group: NamedGroup| {
            let message = format!("nothing passes to the upstream \"{}\"", group.name);
            ConfError::notice(message).at(group.span)
        };
        unused.map(note).collect()
    }

    fn use_group(&mut self, name: &str) {
        for group in &mut self.named_groups {
            if group.name.eq_ignore_ascii_case(name) {
                group.usage = GroupUsage::Used;
            }
        }
    }
}

/// The note that a test says if the name of a host has no address now.
fn unresolved(host: &str, word: &Word) -> ConfError {
    let message = format!("the host name \"{host}\" has no address now");
    ConfError::notice(message).at(word.span).hint("requests to it fail until it has one")
}

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
                let server = server::read_of::<P>(node)?;
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
                let (file, servers) = state_file::read(&word, &name, cx)?;
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
        let sticky = raw.sticky.take().map(|written| P::resolve_sticky(written, &name, cx)).transpose()?;
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

/// Name of a group among the shared objects: each protocol has its own groups.
fn shared_name<P: ConnectingProtocol>(name: &str) -> Vec<u8> {
    [P::NAME, "/", name].concat().into_bytes()
}

/// All groups of a protocol that a configuration uses, by name.
pub fn shared_groups<P: ConnectingProtocol>(objects: &SharedObjects) -> impl Iterator<Item = &Group> {
    let prefix = shared_name::<P>("");
    let all = objects.of_type::<Group>().into_iter();
    all.filter(move |(name, _)| name.starts_with(&prefix)).map(|(_, group)| group)
}

/// Keeps the groups of a configuration for modules of other protocols: [`configured_groups`].
fn keep_groups<P: ConnectingProtocol>(groups: Groups<P>, cx: &mut Resolve<'_, P>) -> Arc<Groups<P>> {
    cx.keep(P::NAME.as_bytes(), |_| false, || groups)
}

/// Groups of the `upstream` blocks of a protocol; `None` if the configuration has no block of the protocol.
pub fn configured_groups<P: ConnectingProtocol>(objects: &SharedObjects) -> Option<Arc<Groups<P>>> {
    objects.find::<Groups<P>>(P::NAME.as_bytes())
}

/// A group that goes on from the one of the same name before.
fn group<P: ConnectingProtocol>(
    name: &str,
    method: BalanceMethod,
    servers: Vec<Server>,
    cx: &mut Resolve<'_, P>,
) -> Arc<Group> {
    let key = shared_name::<P>(name);
    let old = cx.previous::<Group>(&key);
    cx.keep(&key, |_| false, || Group::new(name, method, servers, old.as_deref()))
}

/// Group of servers with a `state` file. One that has written it goes on itself, so that a change that comes at the same moment as a
/// reload is not lost; unless the reload gives it another method, which makes a new one of what it has by then.
fn group_of<P: ConnectingProtocol>(
    servers: Servers,
    name: &str,
    method: BalanceMethod,
    cx: &mut Resolve<'_, P>,
) -> Arc<Group> {
    match servers {
        Servers::Read(servers) => group(name, method, servers, cx),
        Servers::OfBefore => {
            let key = shared_name::<P>(name);
            let old = cx.previous::<Group>(&key);
            let fits = |old: &Group| old.method() == method;
            let make = || {
                let list = old.as_ref().map(|old| old.list());
                let servers = list.iter().flat_map(|list| list.servers());
                let servers = servers.map(|(_, server)| (**server).clone()).collect();
                Group::new(name, method, servers, old.as_deref())
            };
            cx.keep(&key, fits, make)
        }
    }
}

/// Describes why the group of an `upstream` block has no server, in nginx's words; `None` if it has one. A `state` file may have no
/// servers yet.
fn lacks_servers<P: ConnectingProtocol>(name: &str, group: Option<&UpstreamGroup<P>>) -> Option<String> {
    let Some(group) = group else { return Some(format!("no servers are inside upstream \"{name}\"")) };
    let has_primary = group.peers.list().servers().iter().any(|(_, server)| !server.params.backup);
    (group.state.is_none() && !has_primary).then(|| format!("no servers in upstream \"{name}\""))
}

/// The group of what stands in a URL: an `upstream`, or a server alone, as `host:port` or `unix:path`. A server without a
/// port listens on `usual`.
///
/// # Errors
/// No such address, in nginx's words.
pub fn named<P: ConnectingProtocol>(
    word: &Word,
    text: &str,
    usual: Option<u16>,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<UpstreamGroup<P>>, ConfError> {
    if let Some(group) = P::upstream_block(&cx.block).groups.find(text).cloned() {
        P::upstream_block_mut(&mut cx.block).use_group(text);
        return Ok(group);
    }
    let block = P::upstream_block(&cx.block);
    let refused = |error: String| ConfError::new(error).at(word.span);
    // Most host names have dots, and a name with a port is no group.
    let is_plain = !text.contains(['.', ':']);
    let meant = is_plain.then(|| block.groups.nearest(text)).flatten();
    let meant = meant.map(|name| format!("did you mean the upstream \"{name}\"?"));
    let place = server::place(text, usual).map_err(|error| {
        let error = refused(format!("{error} in upstream \"{text}\""));
        match &meant {
            Some(hint) => error.hint(hint),
            None => error,
        }
    })?;
    let written = server::host_and_port(text);
    if let Some((host, port)) = written.filter(|(host, _)| block.groups.find(host).is_some()) {
        return Err(refused(format!("upstream \"{host}\" may not have port {port}")));
    }
    // A host is another server with every port that a scheme has.
    let name: Cow<'_, str> = match usual {
        Some(port) if usual != P::SERVER_PORT => server::with_port(text, port).into(),
        _ => text.into(),
    };
    if let Some(group) = block.implicit.get(&*name) {
        return Ok(group.clone());
    }
    if let Some(hint) = meant {
        let message = format!("no upstream has the name \"{text}\", it is resolved as the name of a host");
        cx.report(ConfError::warn(message).at(word.span).hint(hint));
    }
    if let ServerAddress::Named { host, .. } = &place {
        cx.expect(MachineSubject::Host(host.clone()), || unresolved(host, word));
    }
    let server = Server { name: text.into(), address: place, params: PeerParams::default() };
    let peers = group(&name, BalanceMethod::RoundRobin, vec![server], cx);
    let group = Arc::new(UpstreamGroup::plain(peers));
    P::upstream_block_mut(&mut cx.block).implicit.insert((*name).into(), group.clone());
    Ok(group)
}

/// Makes a group of a URL that is known only now. It lives as long as its request. A name is asked of `resolver`: what has a
/// variable in it may be anything. `is_given` says if its first byte is not of the configuration.
///
/// # Errors
/// No address and no name of a host, or the path of a socket that is given.
pub fn alone<P: ConnectingProtocol>(
    text: &str,
    usual: Option<u16>,
    is_given: impl FnOnce() -> bool,
) -> Result<Arc<UpstreamGroup<P>>, String> {
    // DIFF(nginx): who sends a name does not choose a socket of this machine, which has no other protection than its path.
    if server::is_unix(text) && is_given() {
        return Err("Unix socket that the configuration does not name".to_owned());
    }
    let server = server::named(text, None, usual)?;
    let peers = Arc::new(Group::new(text, BalanceMethod::RoundRobin, vec![server], None));
    Ok(Arc::new(UpstreamGroup::plain(peers)))
}

fn method<P: ConnectingProtocol>(raw: &mut Raw<P>, node: &Node, method: BalanceMethod, cx: &mut Cx<'_>) {
    if raw.method.is_set() {
        cx.diagnostics.warn(node.span, "load balancing method redefined");
    }
    raw.method.replace(node, method);
}

// DIFF(nginx): such a name is resolved by the system, and that is said; nginx answers 502.
/// Warns, once, of an address with variables where no `resolver` is. `host` is the part of `word` that names a server.
pub fn warn_without_resolver<P: ConnectingProtocol>(word: &Word, host: &[u8], cx: &mut Resolve<'_, P>) {
    let texts = cx.vars.possible_texts(host, POSSIBLE_ADDRESSES_MAX).unwrap_or_else(|| vec![host.to_vec()]);
    let block = P::upstream_block_mut(&mut cx.block);
    let needs_none = |text: &Vec<u8>| {
        let text = String::from_utf8_lossy(text);
        let address = text.split_once("://").map_or(&*text, |(_, address)| address);
        let is_path = address.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:"));
        let address = if is_path { address } else { address.split('/').next().unwrap_or_default() };
        text.is_empty() || is_address(address) || block.groups.find(address).is_some()
    };
    if block.has_resolver
        || texts.iter().all(needs_none)
        || std::mem::replace(&mut block.is_resolver_missed, true)
    {
        return;
    }
    let message =
        format!("no resolver is defined for the names in \"{word}\", the system's name servers are asked");
    cx.report(ConfError::warn(message).at(word.span).hint("\"resolver\" says which name servers are asked"));
}

/// Returns true if `text` needs no name server, with a port or without.
fn is_address(text: &str) -> bool {
    let is_unix = text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:"));
    let ip = match text.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => text.split(':').next().unwrap_or_default(),
    };
    is_unix || ip.parse::<IpAddr>().is_ok()
}
