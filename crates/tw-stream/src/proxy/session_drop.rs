//! `proxy_session_drop`: the end of sessions whose upstream server was removed from its group, marked as down, or found
//! unhealthy.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tw_connect::UpstreamGroup;
use tw_connect::upstream_block::configured_groups;
use tw_core::session::Session;
use tw_log::Level;
use tw_rt::Deadline;
use tw_upstream::{Group, PeerId, PeerStatus};

use super::settings::ProxySettings;
use crate::protocol::Stream;
use crate::session::StreamSession;
use crate::stream_loop::StreamLoop;

/// Interval in which the group is looked at.
// DIFF(nginx): a session ends within a second, also one on which nothing happens.
const LOOK: Duration = Duration::from_secs(1);

/// Waits until a session has to end because `peer` of `group` gets no sessions any more; for ever unless that is configured.
///
/// Boxed, which takes no memory unless it is configured.
pub(super) fn until_dropped<'a>(
    settings: &ProxySettings,
    event_loop: &'a StreamLoop,
    group: &'a UpstreamGroup<Stream>,
    peer: PeerId,
) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    if settings.session_drop { Box::pin(peer_is_gone(event_loop, group, peer)) } else { Box::pin(pending()) }
}

/// Logs the end of a session that was dropped.
pub(super) fn log_drop(s: &StreamSession) {
    s.log(Level::Info, format_args!("session dropped, its upstream server gets no sessions any more"));
}

/// Waits until `peer` of `group` gets no sessions any more. The group is the one of the newest configuration, so that a reload
/// removes servers, too.
async fn peer_is_gone(event_loop: &StreamLoop, group: &UpstreamGroup<Stream>, peer: PeerId) {
    let mut timer = Deadline::new();
    loop {
        timer.set(LOOK);
        timer.elapsed().await;
        if is_gone(&current(event_loop, group), peer) {
            return;
        }
    }
}

/// The group of this name in the newest configuration.
fn current(event_loop: &StreamLoop, group: &UpstreamGroup<Stream>) -> Arc<Group> {
    let process = event_loop.process();
    let groups = group.is_named.then(|| configured_groups::<Stream>(&process.shared_objects)).flatten();
    let known = groups.and_then(|groups| groups.find(group.peers.name()).cloned());
    known.map_or_else(|| group.peers.clone(), |known| known.peers.clone())
}

fn is_gone(group: &Group, peer: PeerId) -> bool {
    let list = group.list();
    list.peer(peer).is_none_or(|peer| matches!(peer.status(), PeerStatus::Down | PeerStatus::Unhealthy))
}

#[cfg(test)]
mod tests {
    use tw_net::Addr;
    use tw_upstream::{AdminState, BalanceMethod, Server};

    use super::*;

    #[test]
    fn removed_and_down_servers_are_gone() {
        let addr = |text: &str| Addr::Inet(text.parse().unwrap());
        let servers = ["127.0.0.1:1", "127.0.0.1:2"].map(|text| Server::fixed(text, [addr(text)]));
        let group = Group::new("g", BalanceMethod::RoundRobin, servers.to_vec(), None);
        let ids: Vec<_> = group.list().peers().map(|peer| peer.id()).collect();
        assert!(!is_gone(&group, ids[0]) && !is_gone(&group, ids[1]));
        for (admin, expected) in
            [(AdminState::Drain, false), (AdminState::Down, true), (AdminState::Up, false)]
        {
            group.change(ids[0], |params| params.admin = admin).unwrap();
            assert_eq!(is_gone(&group, ids[0]), expected, "{admin:?}");
        }
        group.remove(ids[1]).unwrap();
        assert!(is_gone(&group, ids[1]));
    }
}
