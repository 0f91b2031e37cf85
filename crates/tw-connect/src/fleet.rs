//! Groups whose health the nodes of a fleet share: `zone name … fleet=name` in `upstream`. What another node has found is a hint: this
//! node looks itself, and goes by what it sees.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_fleet::{EngineKind, Fleet, PeerFinding, SharedGroup, SharedPeers, find_fleet};
use tw_upstream::{Group, PeerStatus};

use crate::group_clock::now_ms;

/// Time for which the others are told that a peer is back, in milliseconds.
const RECOVERED_MS: u64 = 30_000;

/// Group with its name in announcements.
struct GroupHealth {
    name: String,
    group: Arc<Group>,
}

impl SharedPeers for GroupHealth {
    fn name(&self) -> &str {
        &self.name
    }

    fn findings(&self) -> Vec<PeerFinding> {
        let now = now_ms();
        let list = self.group.list();
        let results = list.peers().filter_map(|peer| {
            let is_up = match peer.status() {
                PeerStatus::Unavailable | PeerStatus::Unhealthy => false,
                PeerStatus::Up if peer.state().has_come_back(now, RECOVERED_MS) => true,
                _ => return None,
            };
            Some(PeerFinding { address: peer.text().to_owned(), is_up })
        });
        results.collect()
    }

    fn hint(&self, address: &str, is_up: bool) -> bool {
        let now = now_ms();
        let list = self.group.list();
        let hinted = list.peers().filter(|peer| peer.text() == address);
        // Several peers may have the same address.
        hinted.filter(|peer| peer.hint(is_up, now)).count() > 0
    }
}

/// The fleet that a parameter `fleet=name` names, for something that its nodes announce.
///
/// # Errors
/// There is no such fleet, or its engine has no announcements.
pub fn announcing_fleet<P: Protocol>(
    word: &Word,
    what: &str,
    cx: &Resolve<'_, P>,
) -> Result<Arc<Fleet>, ConfError> {
    let name = word.param("fleet").unwrap_or_default();
    let fleet = find_fleet(name, word.span, |name| cx.find(name))?;
    if fleet.settings().engine.servers.kind() == EngineKind::Etcd {
        let name = tw_log::Text(name);
        let message = format!("fleet \"{name}\" has etcd as its engine, which cannot share {what}");
        return Err(ConfError::new(message).at(word.span).hint("NATS can"));
    }
    Ok(fleet)
}

/// Shares the health of a group, under a name that has the protocol before it.
///
/// # Errors
/// See [`announcing_fleet`].
pub(crate) fn share_health<P: Protocol>(
    name: Vec<u8>,
    group: Arc<Group>,
    word: &Word,
    cx: &mut Resolve<'_, P>,
) -> Result<(), ConfError> {
    let fleet = announcing_fleet(word, "the health of upstream servers", cx)?;
    let shared = || {
        let name = String::from_utf8_lossy(&name).into_owned();
        SharedGroup { fleet, peers: Arc::new(GroupHealth { name, group }) }
    };
    cx.keep(&name, |_| false, shared);
    Ok(())
}
