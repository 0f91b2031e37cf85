//! A group of upstream servers: an `upstream` block, or the addresses of one name.

use std::sync::Arc;

use tw_base::FatalMutex;
use tw_core::vars::Template;

use crate::keepalive_settings::KeepaliveSettings;
use crate::named_server::UpstreamNames;
use crate::protocol::ConnectingProtocol;
use crate::queue::UpstreamQueue;
use crate::resolving::Resolving;
use crate::upstream_block::StateFile;

pub use crate::group_clock::now_ms;

/// Servers that a request may be sent to, and the settings they share.
pub struct UpstreamGroup<P: ConnectingProtocol> {
    /// Peers and the balancing method.
    pub peers: Arc<tw_upstream::Group>,
    /// `keepalive` and the directives beside it.
    pub keepalive: KeepaliveSettings,
    /// Key of `hash`.
    pub key: Option<Template<P::Session>>,
    /// Servers given by name, whose addresses are resolved at run time.
    pub names: UpstreamNames,
    /// `resolver` of the group; `None` means the one of the location.
    pub resolving: Option<Resolving>,
    /// `sticky`
    pub sticky: Option<P::Sticky>,
    /// `queue`
    pub queue: Option<UpstreamQueue>,
    /// `state`
    pub state: Option<Arc<StateFile>>,
    /// Set for a group of an `upstream` block.
    pub is_named: bool,
    /// Changes of the group before at run time that this one has undone, until they are logged.
    pub undone: FatalMutex<Vec<String>>,
}

impl<P: ConnectingProtocol> UpstreamGroup<P> {
    /// Returns true if servers have names, or may get some from a `state` file.
    pub fn may_have_names(&self) -> bool {
        self.peers.has_host_names() || self.state.is_some()
    }

    /// Creates a group of the servers of an address in a directive, which has no `upstream` block. As in nginx, its connections are not
    /// used again: there is nowhere to configure that, and a server that serves one connection at a time would wait for the next request
    /// on one of them.
    pub fn plain(peers: Arc<tw_upstream::Group>) -> Self {
        let (keepalive, names) = (KeepaliveSettings::NONE, UpstreamNames::default());
        Self {
            peers,
            keepalive,
            key: None,
            names,
            resolving: None,
            sticky: None,
            queue: None,
            state: None,
            is_named: false,
            undone: FatalMutex::default(),
        }
    }
}
