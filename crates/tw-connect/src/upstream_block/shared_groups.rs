//! Groups among the shared objects of the process: they live over reloads, and modules of other protocols find them.

use std::sync::Arc;

use tw_core::load::Resolve;
use tw_core::shared_objects::SharedObjects;
use tw_upstream::{BalanceMethod, Group, Server};

use super::groups::Groups;
use super::state_file::Servers;
use crate::group::UpstreamGroup;
use crate::protocol::ConnectingProtocol;

/// Name of a group among the shared objects: each protocol has its own groups.
pub(super) fn shared_name<P: ConnectingProtocol>(name: &str) -> Vec<u8> {
    [P::NAME, "/", name].concat().into_bytes()
}

/// All groups of a protocol that a configuration uses, by name.
pub fn shared_groups<P: ConnectingProtocol>(objects: &SharedObjects) -> impl Iterator<Item = &Group> {
    let prefix = shared_name::<P>("");
    let all = objects.of_type::<Group>().into_iter();
    all.filter(move |(name, _)| name.starts_with(&prefix)).map(|(_, group)| group)
}

/// Keeps the groups of a configuration for modules of other protocols: [`configured_groups`].
pub(super) fn keep_groups<P: ConnectingProtocol>(
    groups: Groups<P>,
    cx: &mut Resolve<'_, P>,
) -> Arc<Groups<P>> {
    cx.keep(P::NAME.as_bytes(), |_| false, || groups)
}

/// Groups of the `upstream` blocks of a protocol; `None` if the configuration has no block of the protocol.
pub fn configured_groups<P: ConnectingProtocol>(objects: &SharedObjects) -> Option<Arc<Groups<P>>> {
    objects.find::<Groups<P>>(P::NAME.as_bytes())
}

/// A group that goes on from the one of the same name before.
pub(super) fn group<P: ConnectingProtocol>(
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
pub(super) fn group_of<P: ConnectingProtocol>(
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
pub(super) fn lacks_servers<P: ConnectingProtocol>(
    name: &str,
    group: Option<&UpstreamGroup<P>>,
) -> Option<String> {
    let Some(group) = group else { return Some(format!("no servers are inside upstream \"{name}\"")) };
    let has_primary = group.peers.list().servers().iter().any(|(_, server)| !server.params.backup);
    (group.state.is_none() && !has_primary).then(|| format!("no servers in upstream \"{name}\""))
}
