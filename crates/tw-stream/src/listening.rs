//! Listening addresses of `stream`, and the servers of each.

use std::collections::HashMap;

use tw_accept::listen::AddressServers;
use tw_core::server_names::{ServerId, ServerNames};
use tw_net::Addr;
use tw_net::listen::SocketKind;

/// The servers of a listening address.
pub(crate) struct AddressGroup {
    /// The part that every protocol has.
    pub(crate) servers: AddressServers<ServerId>,
    /// Servers by name.
    pub(crate) names: ServerNames<ServerId>,
}

/// Servers by listening address: a range of ports may be thousands of them.
pub(crate) struct Listening {
    groups: Vec<AddressGroup>,
    by_address: HashMap<(Addr, SocketKind), usize>,
}

impl Listening {
    pub(crate) fn new(groups: Vec<AddressGroup>) -> Self {
        let key = |servers: &AddressServers<ServerId>| (servers.address.clone(), servers.kind);
        let by_address = groups.iter().enumerate().map(|(at, group)| (key(&group.servers), at)).collect();
        Self { groups, by_address }
    }

    /// All addresses of sockets of this kind, in the order of the configuration.
    pub(crate) fn addresses(&self, kind: SocketKind) -> impl Iterator<Item = &Addr> + Clone {
        let servers = self.groups.iter().map(|group| &group.servers);
        servers.filter(move |servers| servers.kind == kind).map(|servers| &servers.address)
    }

    /// The servers of an address; `None` if `stream` does not listen there.
    pub(crate) fn find(&self, address: &Addr, kind: SocketKind) -> Option<&AddressGroup> {
        self.groups.get(*self.by_address.get(&(address.clone(), kind))?)
    }
}
