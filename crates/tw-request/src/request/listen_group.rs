//! Servers of the address by which a client came.

use tw_core::regex::Captures;

use crate::client::Client;
use crate::generation::{ListenGroup, LoopGeneration, ServerId};

impl Client {
    /// The listening address in `generation`; `None` if a reload took it away meanwhile.
    pub fn group<'g>(&self, generation: &'g LoopGeneration) -> Option<&'g ListenGroup> {
        let (id, at) = self.group.get();
        if id == generation.id {
            return generation.groups.get(at);
        }
        // A reload seldom moves it.
        let is_ours = |group: &ListenGroup| group.address == *self.listen && group.kind == self.kind;
        let at = match generation.groups.get(at) {
            Some(group) if is_ours(group) => at,
            _ => generation.groups.iter().position(is_ours)?,
        };
        self.group.set((generation.id, at));
        generation.groups.get(at)
    }

    /// Server whose name the client has sent in its handshake, else the default server of its address.
    pub fn named_server(&self, group: &ListenGroup) -> ServerId {
        let name = self.tls.get().and_then(|secured| secured.server_name.as_deref());
        let find = |name: &str| group.names.find(name.as_bytes(), &mut Captures::default()).ok().flatten();
        name.and_then(find).map_or(group.default_server, |(id, _)| id)
    }
}
