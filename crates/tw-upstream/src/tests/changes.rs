//! Changes of the list: by an operator, by DNS, by a reload.

use super::*;
use crate::{AdminState, PeerId, ResolvedAddress, ServerAddress, ServerExists, ServerId, UnknownPeer};

fn texts(group: &Group) -> Vec<String> {
    group.list().peers().map(|peer| format!("{} {}", peer.id().0, peer)).collect()
}

fn named(service: Option<&str>, port: u16) -> Server {
    let address = ServerAddress::Named {
        host: "app.test".into(),
        service: service.map(Arc::from),
        port,
        follows: true,
    };
    Server { name: "app.test".into(), address, params: PeerParams::default() }
}

fn addresses(texts: &[&str]) -> Vec<ResolvedAddress> {
    texts.iter().map(|text| ResolvedAddress::from(addr_of(text))).collect()
}

#[test]
fn operator_changes_a_group_in_use() {
    let group = group(BalanceMethod::RoundRobin, vec![server(1, 1), server(2, 1)]);
    let (mut selection, mut rng) = new_selection(&group, BalanceKey::None);
    let first = group.select(&mut selection, 0, &mut rng).unwrap();
    assert_eq!((number(&first), selection.tries_left()), (1, 1));
    let added = group.add(server(3, 1)).unwrap();
    assert_eq!(group.add(server(3, 9)), Err(ServerExists));
    assert_eq!(group.change(PeerId(1), |params| params.admin = AdminState::Drain), Ok(()));
    // The selection has tried the first peer; the second drains; the third is new.
    let second = group.select(&mut selection, 0, &mut rng).unwrap();
    assert_eq!(number(&second), 3);
    assert_eq!(group.change(PeerId(0), |params| params.weight = 5), Ok(()));
    assert_eq!(turns(&group, 6, 0), [1, 1, 3, 1, 1, 1]);
    assert_eq!(group.remove(PeerId(0)), Ok(()));
    assert_eq!(
        (group.remove(PeerId(0)), group.remove_server(ServerId(9))),
        (Err(UnknownPeer), Err(UnknownPeer))
    );
    assert_eq!(first.peer().state().connections(), 1);
    drop(first);
    assert_eq!(group.remove_server(added), Ok(()));
    assert_eq!(texts(&group), ["1 127.0.0.2:9"]);
    assert_eq!(group.list().generation(), 6);
}

#[test]
fn server_changes_with_its_peers_and_shares_their_identifier() {
    let group = group(BalanceMethod::RoundRobin, vec![named(None, 80), server(9, 1)]);
    let ids: Vec<_> = group.list().servers().iter().map(|(id, _)| id.0).collect();
    assert_eq!((&ids[..], group.has_host_names()), (&[0, 1][..], true));
    group.resolved(ServerId(0), &addresses(&["10.0.0.1:80"])).unwrap();
    assert_eq!(texts(&group), ["1 127.0.0.9:9", "2 10.0.0.1:80"]);
    group.change_server(ServerId(0), |params| params.weight = 3).unwrap();
    assert_eq!(
        group.change_server(ServerId(2), |_| ()),
        Err(UnknownPeer),
        "a peer that DNS gave is no server"
    );
    // An address that is added later has the changed settings of its server.
    group.resolved(ServerId(0), &addresses(&["10.0.0.1:80", "10.0.0.2:80"])).unwrap();
    let weights: Vec<_> = group.list().peers().map(|peer| peer.params().weight).collect();
    assert_eq!(weights, [1, 3, 3]);
    // A reload keeps the numbers, and gives them to no other server.
    let new = Group::new(
        "g",
        BalanceMethod::RoundRobin,
        vec![server(8, 1), server(9, 1), named(None, 80)],
        Some(&group),
    );
    let ids: Vec<_> = new.list().servers().iter().map(|(id, _)| id.0).collect();
    assert_eq!(ids, [4, 1, 0]);
    group.remove_server(ServerId(0)).unwrap();
    assert_eq!((texts(&group), group.has_host_names()), (vec!["1 127.0.0.9:9".to_owned()], false));
}

#[test]
fn dns_adds_and_removes_peers() {
    let group = group(BalanceMethod::RoundRobin, vec![named(None, 80), server(9, 1)]);
    let dns = group.list().servers()[0].0;
    assert_eq!(texts(&group), ["1 127.0.0.9:9"]);
    assert_eq!(group.resolved(dns, &addresses(&["10.0.0.1:80", "10.0.0.2:80"])), Ok(true));
    assert_eq!(texts(&group), ["1 127.0.0.9:9", "2 10.0.0.1:80", "3 10.0.0.2:80"]);
    assert_eq!(group.resolved(dns, &addresses(&["10.0.0.2:80", "10.0.0.1:80"])), Ok(false));
    // An operator's setting of a peer lasts as long as the peer keeps its address.
    group.change(PeerId(3), |params| params.admin = AdminState::Down).unwrap();
    assert_eq!(group.resolved(dns, &addresses(&["10.0.0.3:80", "10.0.0.2:80"])), Ok(true));
    assert_eq!(texts(&group), ["1 127.0.0.9:9", "3 10.0.0.2:80", "4 10.0.0.3:80"]);
    assert_eq!(group.list().peer(PeerId(3)).unwrap().params().admin, AdminState::Down);
    assert_eq!(group.resolved(ServerId(7), &[]), Err(UnknownPeer));
}

#[test]
fn srv_records_bring_names_weights_and_backups() {
    let group = group(BalanceMethod::RoundRobin, vec![named(Some("http"), 0)]);
    let dns = group.list().servers()[0].0;
    let record = |addr: &str, name: &str, weight, backup| ResolvedAddress {
        addr: addr_of(addr),
        name: Some(name.into()),
        weight: Some(weight),
        backup,
    };
    let records = [record("10.0.0.1:81", "a.test", 3, true), record("10.0.0.2:82", "b.test", 0, false)];
    assert_eq!(group.resolved(dns, &records), Ok(true));
    let list = group.list();
    let seen_values: Vec<_> =
        list.peers().map(|peer| (&**peer.name(), peer.params().weight, peer.params().backup)).collect();
    assert_eq!(seen_values, [("b.test", 1, false), ("a.test", 3, true)]);
    let records = [record("10.0.0.1:81", "a.test", 4, true), record("10.0.0.2:82", "b.test", 0, false)];
    assert_eq!(group.resolved(dns, &records), Ok(true));
    assert_eq!(group.list().peer(PeerId(1)).unwrap().params().weight, 4);
}

#[test]
fn reload_keeps_the_state_of_peers() {
    let old = group(BalanceMethod::RoundRobin, vec![with(1, |_| ()), with(2, |_| ()), named(None, 80)]);
    old.resolved(old.list().servers()[2].0, &addresses(&["10.0.0.1:80"])).unwrap();
    let (mut selection, mut rng) = new_selection(&old, BalanceKey::None);
    let lease = old.select(&mut selection, 50, &mut rng).unwrap();
    assert_eq!(number(&lease), 1);
    old.select(&mut selection, 50, &mut rng).unwrap().done(PeerOutcome::Failed, 50);

    let servers =
        vec![with(3, |_| ()), with(2, |params| params.weight = 7), named(None, 8080), with(1, |_| ())];
    let new = Group::new("g", BalanceMethod::LeastConn, servers, Some(&old));
    assert_eq!(texts(&new), ["4 127.0.0.3:9", "1 127.0.0.2:9", "5 10.0.0.1:8080", "0 127.0.0.1:9"]);
    assert!(new.list().generation() > old.list().generation());
    let peers = new.snapshot(50).peers;
    assert_eq!(
        (peers[1].params.weight, peers[1].fails, peers[1].status),
        (7, 1, crate::PeerStatus::Unavailable)
    );
    assert_eq!((peers[3].connections, peers[3].requests), (1, 1));
    // A request of the old generation frees a place for one of the new.
    let mut waiting = new.enqueue(1).unwrap();
    assert!(new.enqueue(1).is_none() && old.queue_len() == 1);
    drop(lease);
    assert_eq!(new.snapshot(50).peers[3].connections, 0);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.poll_woken(&mut cx).is_ready());
}
