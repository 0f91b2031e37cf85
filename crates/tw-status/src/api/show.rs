//! Groups, servers and peers as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use tw_connect::upstream_block::Groups;
use tw_connect::{ConnectingProtocol, UpstreamGroup};
use tw_rt::clock;
use tw_upstream::{
    AdminState, Peer, PeerId, PeerList, PeerParams, PeerSnapshot, PeerStatus, Server, ServerAddress,
};

use super::block::Block;
use super::response::json;

/// Group and statistics of its peers.
#[derive(Serialize)]
struct GroupView {
    peers: Peers,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueView>,
    zone: Box<str>,
}

/// Peers of a list, each read when it is written: there may be thousands.
struct Peers {
    list: Arc<PeerList>,
    now: u64,
    block: Block,
}

/// The servers of a list in the order of the configuration; the addresses of a name behind it. Each likewise.
struct Servers<'a>(&'a PeerList, Block);

#[derive(Serialize)]
struct QueueView {
    size: usize,
    max_size: usize,
}

#[derive(Serialize)]
struct PeerView {
    id: u32,
    server: Box<str>,
    name: Box<str>,
    backup: bool,
    weight: u32,
    state: &'static str,
    active: u32,
    max_conns: u32,
    #[serde(flatten)]
    load: Load,
    sent: u64,
    received: u64,
    fails: u64,
    unavail: u64,
    health_checks: Checks,
    downtime: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    selected: Option<String>,
    connect_time: u64,
    response_time: u64,
}

/// Numbers that only peers of one protocol have.
#[derive(Serialize)]
#[serde(untagged)]
enum Load {
    Http { requests: u64, responses: Responses, header_time: u64 },
    Stream { connections: u64, first_byte_time: u64 },
}

#[derive(Serialize)]
struct Responses {
    #[serde(rename = "1xx")]
    informational: u64,
    #[serde(rename = "2xx")]
    successful: u64,
    #[serde(rename = "3xx")]
    redirection: u64,
    #[serde(rename = "4xx")]
    client_error: u64,
    #[serde(rename = "5xx")]
    server_error: u64,
    total: u64,
}

#[derive(Serialize)]
struct Checks {
    checks: u64,
    fails: u64,
    unhealthy: u64,
}

/// A server with its parameters, or an address that DNS gave for one.
#[derive(Serialize)]
struct ServerView<'a> {
    id: u32,
    server: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    weight: u32,
    max_conns: u32,
    max_fails: u32,
    fail_timeout: String,
    slow_start: String,
    /// Only of servers of `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<Cow<'a, str>>,
    backup: bool,
    down: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    drain: bool,
    /// Number of the server that it is an address of.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u32>,
    /// The name of that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    /// Remark about the change that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

/// All groups by their names.
pub(super) fn upstreams<P: ConnectingProtocol>(all: Option<&Groups<P>>, block: Block) -> Vec<u8> {
    let groups = all.into_iter().flat_map(Groups::iter);
    let views = groups.map(|group| (&**group.peers.name(), GroupView::of(group, block)));
    json(&views.collect::<BTreeMap<_, _>>())
}

/// Description of one group.
pub(super) fn upstream<P: ConnectingProtocol>(name: &str, group: &UpstreamGroup<P>, block: Block) -> Vec<u8> {
    json(&GroupView { zone: name.into(), ..GroupView::of(group, block) })
}

/// The servers of a group.
pub(super) fn servers(list: &PeerList, block: Block) -> Vec<u8> {
    json(&Servers(list, block))
}

/// Description of one server, with a remark about its change; `None` if the group has none of this number.
pub(super) fn server(list: &PeerList, id: u32, block: Block, note: Option<&str>) -> Option<Vec<u8>> {
    let find = |id: u32| list.servers().iter().find(|(server_id, _)| server_id.0 == id);
    if let Some((_, server)) = find(id) {
        return Some(json(&ServerView { note, ..ServerView::of(id, server, block) }));
    }
    let peer = list.peer(PeerId(id))?;
    let (parent, server) = find(peer.server().0)?;
    Some(json(&ServerView { note, ..ServerView::of_address(peer, parent.0, server, block) }))
}

impl Serialize for Servers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(list, block) = *self;
        serializer.collect_seq(list.servers().iter().flat_map(|(id, server)| {
            let addresses = move || list.peers().filter(move |peer| peer.server() == *id);
            let addresses = server.has_host_name().then(addresses).into_iter().flatten();
            let addresses = addresses.map(|peer| ServerView::of_address(peer, id.0, server, block));
            std::iter::once(ServerView::of(id.0, server, block)).chain(addresses)
        }))
    }
}

impl Serialize for Peers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let view = |peer: &Arc<Peer>| PeerView::of(peer.snapshot(self.now), self.now, self.block);
        serializer.collect_seq(self.list.peers().map(view))
    }
}

impl GroupView {
    fn of<P: ConnectingProtocol>(group: &UpstreamGroup<P>, block: Block) -> Self {
        let now = clock::millis();
        let peers = &group.peers;
        let queue = group.queue.map(|queue| QueueView { size: peers.queue_len(), max_size: queue.most });
        let list = peers.list();
        Self { peers: Peers { list, now, block }, queue, zone: (&**peers.name()).into() }
    }
}

impl PeerView {
    fn of(peer: PeerSnapshot, now: u64, block: Block) -> Self {
        Self {
            load: Load::of(&peer, block),
            id: peer.id.0,
            server: peer.addr,
            name: (&*peer.name).into(),
            backup: peer.params.backup,
            weight: peer.params.weight,
            state: word(peer.status),
            active: peer.connections,
            max_conns: peer.params.max_conns,
            sent: peer.sent,
            received: peer.received,
            fails: peer.fails,
            unavail: peer.unavail,
            health_checks: Checks {
                checks: peer.checks.checks,
                fails: peer.checks.fails,
                unhealthy: peer.checks.unhealthy,
            },
            downtime: peer.downtime_ms,
            selected: peer.selected_ms.and_then(|then| moment(now.saturating_sub(then))),
            connect_time: peer.connect_ms,
            response_time: peer.response_ms,
        }
    }
}

impl Load {
    fn of(peer: &PeerSnapshot, block: Block) -> Self {
        match block {
            Block::Http | Block::Mail => Self::Http {
                requests: peer.requests,
                responses: Responses::of(peer.responses),
                header_time: peer.header_ms,
            },
            Block::Stream => Self::Stream { connections: peer.requests, first_byte_time: peer.header_ms },
        }
    }
}

impl Responses {
    fn of(by_class: [u64; 5]) -> Self {
        let [informational, successful, redirection, client_error, server_error] = by_class;
        let total = by_class.iter().sum();
        Self { informational, successful, redirection, client_error, server_error, total }
    }
}

impl<'a> ServerView<'a> {
    fn of(id: u32, server: &'a Server, block: Block) -> Self {
        let (text, service) = match &server.address {
            ServerAddress::Fixed(addrs) => match addrs.first() {
                Some(addr) => (addr.to_string().into(), None),
                None => ((&*server.name).into(), None),
            },
            ServerAddress::Named { service, .. } => ((&*server.name).into(), service.as_deref()),
        };
        Self { service, ..Self::with(id, text, &server.params, block) }
    }

    fn of_address(peer: &'a Peer, parent: u32, server: &'a Server, block: Block) -> Self {
        let view = Self::with(peer.id().0, peer.text().into(), peer.params(), block);
        Self { parent: Some(parent), host: Some(&server.name), ..view }
    }

    fn with(id: u32, server: Cow<'a, str>, params: &'a PeerParams, block: Block) -> Self {
        let route = || String::from_utf8_lossy(params.route.as_deref().unwrap_or_default());
        Self {
            id,
            server,
            service: None,
            weight: params.weight,
            max_conns: params.max_conns,
            max_fails: params.max_fails,
            fail_timeout: seconds(params.fail_timeout_ms),
            slow_start: seconds(params.slow_start_ms),
            route: (block == Block::Http).then(route),
            backup: params.backup,
            down: params.admin == AdminState::Down,
            drain: params.admin == AdminState::Drain,
            parent: None,
            host: None,
            note: None,
        }
    }
}

/// Both are written in whole seconds.
fn seconds(millis: u64) -> String {
    format!("{}s", millis / 1000)
}

/// The wall clock's time so many milliseconds ago.
fn moment(ago_ms: u64) -> Option<String> {
    let now = clock::unix();
    let millis = now.secs * 1000 + i64::from(now.msec) - i64::try_from(ago_ms).ok()?;
    jiff::Timestamp::from_second(millis.div_euclid(1000)).ok().map(|moment| moment.to_string())
}

const fn word(status: PeerStatus) -> &'static str {
    match status {
        PeerStatus::Up => "up",
        PeerStatus::Down => "down",
        PeerStatus::Draining => "draining",
        PeerStatus::Unavailable => "unavail",
        PeerStatus::Unhealthy => "unhealthy",
        PeerStatus::Checking => "checking",
    }
}

#[cfg(test)]
mod tests {
    use tw_upstream::{BalanceMethod, ResolvedAddress, ServerId};

    use super::*;

    #[test]
    fn servers_are_shown_with_the_addresses_of_names_behind_them() {
        let addr = |text: &str| tw_net::Addr::Inet(text.parse().unwrap());
        let place = ServerAddress::Named { host: "app.test".into(), service: None, port: 80, follows: true };
        let mut named = Server { name: "app.test".into(), address: place, params: PeerParams::default() };
        named.params.route = Some(b"r1".as_slice().into());
        let mut fixed = Server::fixed("10.0.0.9", [addr("10.0.0.9:80")]);
        (fixed.params.admin, fixed.params.max_fails) = (AdminState::Drain, 0);
        let group = tw_upstream::Group::new("g", BalanceMethod::RoundRobin, vec![named, fixed], None);
        group.resolved(ServerId(0), &[ResolvedAddress::from(addr("10.0.0.1:80"))]).unwrap();
        let list = group.list();
        assert_eq!(
            String::from_utf8(servers(&list, Block::Http)).unwrap(),
            concat!(
                r#"[{"id":0,"server":"app.test","weight":1,"max_conns":0,"max_fails":1,"fail_timeout":"10s","#,
                r#""slow_start":"0s","route":"r1","backup":false,"down":false},"#,
                r#"{"id":2,"server":"10.0.0.1:80","weight":1,"max_conns":0,"max_fails":1,"fail_timeout":"10s","#,
                r#""slow_start":"0s","route":"r1","backup":false,"down":false,"parent":0,"host":"app.test"},"#,
                r#"{"id":1,"server":"10.0.0.9:80","weight":1,"max_conns":0,"max_fails":0,"fail_timeout":"10s","#,
                r#""slow_start":"0s","route":"","backup":false,"down":false,"drain":true}]"#,
            )
        );
        // A server of `stream` has no route.
        let of_stream = String::from_utf8(servers(&list, Block::Stream)).unwrap();
        assert!(!of_stream.contains("route") && of_stream.contains(r#""drain":true"#), "{of_stream}");
        assert!(
            server(&list, 2, Block::Http, None).is_some() && server(&list, 3, Block::Stream, None).is_none()
        );
    }
}
