//! Groups of servers by the names of their `upstream` blocks.

use std::collections::HashMap;
use std::sync::Arc;

use crate::group::UpstreamGroup;
use crate::protocol::ConnectingProtocol;

/// Groups by name. Case makes no difference, as in names of hosts.
pub struct Groups<P: ConnectingProtocol>(HashMap<Box<str>, Arc<UpstreamGroup<P>>>);

impl<P: ConnectingProtocol> Default for Groups<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P: ConnectingProtocol> Groups<P> {
    /// Adds a group under its name.
    pub fn insert(&mut self, group: Arc<UpstreamGroup<P>>) {
        self.0.insert(group.peers.name().to_ascii_lowercase().into(), group);
    }

    /// The group of this name. Allocates only if there are capital letters in it.
    pub fn find(&self, name: &str) -> Option<&Arc<UpstreamGroup<P>>> {
        match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => self.0.get(&*name.to_ascii_lowercase()),
            false => self.0.get(name),
        }
    }

    /// Name of the group that may be meant by a misspelt one.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let mut names: Vec<&str> = self.0.keys().map(|name| &**name).collect();
        names.sort_unstable();
        let nearest = tw_conf::nearest(&name.to_ascii_lowercase(), names)?;
        self.find(nearest).map(|group| &**group.peers.name())
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<UpstreamGroup<P>>> {
        self.0.values()
    }
}
