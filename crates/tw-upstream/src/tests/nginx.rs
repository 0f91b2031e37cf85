//! Peers that nginx 1.22.1 chose from the same servers, recorded as `$upstream_addr`.

use super::*;
use crate::AdminState;

/// Client of `ip_hash`; the peer in a group of which one is down; the order in which one of all is tried when all fail.
#[rustfmt::skip]
const IP_HASH: &[(&str, u8, [u8; 4])] = &[
    ("10.0.0.1", 12, [12, 15, 11, 14]),
    ("10.0.0.200", 12, [12, 15, 11, 14]),
    ("10.0.1.1", 12, [14, 12, 11, 15]),
    ("192.168.7.9", 14, [15, 14, 12, 11]),
    ("203.0.113.5", 11, [11, 14, 15, 12]),
    ("198.51.100.77", 14, [14, 15, 11, 12]),
    ("127.0.0.1", 11, [11, 14, 12, 15]),
    ("8.8.8.8", 14, [15, 14, 11, 12]),
    ("1.1.1.1", 14, [15, 11, 14, 12]),
    ("172.16.254.3", 11, [11, 15, 14, 12]),
    ("0.0.0.0", 11, [11, 14, 12, 15]),
    ("2001:db8::1", 12, [12, 11, 15, 14]),
    ("2001:db8::2", 11, [14, 11, 12, 15]),
    ("::1", 11, [11, 14, 12, 15]),
    ("fe80::1234:5678", 14, [15, 14, 11, 12]),
    ("2a00:1450:4001:81b::200e", 14, [15, 11, 14, 12]),
    ("ff02::fb", 11, [14, 11, 15, 12]),
];

/// Choices for the key of `hash`.
#[rustfmt::skip]
const HASH: &[(&str, u8, [u8; 4])] = &[
    ("a", 12, [14, 12, 11, 15]),
    ("b", 14, [14, 11, 15, 12]),
    ("c", 14, [15, 11, 12, 14]),
    ("/index.html", 12, [12, 11, 15, 14]),
    ("user42", 14, [14, 15, 11, 12]),
    ("0", 14, [14, 12, 11, 15]),
    ("1", 11, [11, 14, 12, 15]),
    ("2", 11, [11, 12, 14, 15]),
    ("3", 11, [11, 12, 14, 15]),
    ("4", 14, [14, 11, 15, 12]),
    ("5", 14, [14, 11, 15, 12]),
    ("6", 14, [15, 11, 14, 12]),
    ("7", 14, [15, 11, 14, 12]),
    ("8", 14, [14, 12, 11, 15]),
    ("9", 12, [12, 11, 14, 15]),
    ("%41%42", 12, [12, 15, 11, 14]),
    ("k1", 11, [14, 11, 15, 12]),
    ("k2", 14, [14, 11, 15, 12]),
    ("k3", 11, [14, 11, 15, 12]),
    ("session=abc", 14, [15, 14, 12, 11]),
    ("tailwater", 11, [11, 14, 12, 15]),
];

/// The key of `hash … consistent`, and the order in which it tries all.
#[rustfmt::skip]
const RING: &[(&str, [u8; 4])] = &[
    ("a", [12, 14, 11, 15]),
    ("b", [14, 11, 15, 12]),
    ("c", [14, 11, 12, 15]),
    ("/index.html", [11, 14, 15, 12]),
    ("user42", [11, 15, 12, 14]),
    ("0", [14, 11, 12, 15]),
    ("1", [15, 12, 11, 14]),
    ("2", [14, 15, 11, 12]),
    ("3", [11, 14, 12, 15]),
    ("4", [12, 11, 15, 14]),
    ("5", [11, 14, 15, 12]),
    ("6", [14, 12, 11, 15]),
    ("7", [11, 14, 12, 15]),
    ("8", [15, 12, 11, 14]),
    ("9", [12, 15, 14, 11]),
    ("k1", [12, 11, 14, 15]),
    ("k2", [14, 11, 15, 12]),
    ("k3", [14, 11, 12, 15]),
    ("session=abc", [12, 11, 14, 15]),
    ("tailwater", [14, 12, 11, 15]),
];

/// Choices for one key in a group of every kind of name.
#[rustfmt::skip]
const RING_OF_NAMES: &[(&str, &str)] = &[
    ("a", "127.0.0.11:9"),
    ("b", "127.0.0.11:9"),
    ("c", "unix:/tmp/upvec/none.sock"),
    ("/index.html", "127.0.0.11:9"),
    ("user42", "127.0.0.11:9"),
    ("0", "[::2]:9"),
    ("1", "127.0.0.1:9"),
    ("2", "127.0.0.15:80"),
    ("3", "127.0.0.11:9"),
    ("4", "127.0.0.12:8080"),
    ("5", "[::2]:9"),
    ("6", "127.0.0.11:9"),
    ("7", "127.0.0.11:9"),
    ("8", "127.0.0.15:80"),
    ("9", "[::2]:9"),
    ("%41%42", "127.0.0.12:8080"),
    ("k1", "127.0.0.1:9"),
    ("k2", "[::2]:9"),
    ("k3", "127.0.0.11:9"),
    ("session=abc", "127.0.0.15:80"),
    ("tailwater", "unix:/tmp/upvec/none.sock"),
];

/// Weights 3, 1, 2, and one of them down.
fn one_down(method: BalanceMethod) -> Group {
    let down = with(13, |params| params.admin = AdminState::Down);
    group(method, vec![server(11, 3), server(12, 1), down, server(14, 2)])
}

fn all_up(method: BalanceMethod) -> Group {
    group(method, vec![server(11, 3), server(12, 1), server(14, 2), server(15, 1)])
}

fn first(group: &Group, key: BalanceKey) -> Lease {
    let (mut selection, mut rng) = new_selection(group, key);
    group.select(&mut selection, 0, &mut rng).unwrap()
}

fn text(key: &str) -> BalanceKey {
    BalanceKey::Text(key.as_bytes().to_vec())
}

#[test]
fn round_robin_takes_turns_by_weight() {
    let down = with(14, |params| params.admin = AdminState::Down);
    let group = group(BalanceMethod::RoundRobin, vec![server(11, 5), server(12, 1), server(13, 2), down]);
    let expected = [11, 13, 11, 11, 12, 11, 13, 11, 11, 13, 11, 11, 12, 11, 13, 11];
    assert_eq!(turns(&group, expected.len(), 0), expected);
}

#[test]
fn least_conn_takes_turns_among_equals() {
    let group = group(BalanceMethod::LeastConn, vec![server(11, 3), server(12, 1), server(13, 2)]);
    assert_eq!(turns(&group, 12, 0), [11, 13, 11, 12, 13, 11, 11, 13, 11, 12, 13, 11]);
}

#[test]
fn ip_hash_maps_networks() {
    let one_down = one_down(BalanceMethod::IpHash);
    let all_up = all_up(BalanceMethod::IpHash);
    for (client, down, up) in IP_HASH {
        let key = BalanceKey::Client(client.parse().unwrap());
        assert_eq!(number(&first(&one_down, key.clone())), *down, "{client}");
        assert_eq!(all_fail(&all_up, key, 0), up, "{client}");
    }
    // A client of a Unix socket.
    assert_eq!(all_fail(&all_up, BalanceKey::None, 0), [11, 14, 12, 15]);
}

#[test]
fn hash_maps_texts() {
    let one_down = one_down(BalanceMethod::Hash);
    let all_up = all_up(BalanceMethod::Hash);
    for (key, down, up) in HASH {
        assert_eq!(number(&first(&one_down, text(key))), *down, "{key}");
        assert_eq!(all_fail(&all_up, text(key), 0), up, "{key}");
    }
    let turns: Vec<u8> = (0..8).map(|_| number(&first(&one_down, text("")))).collect();
    assert_eq!(turns, [11, 14, 11, 12, 14, 11, 11, 14]);
}

#[test]
fn consistent_hash_maps_texts() {
    let all_up = all_up(BalanceMethod::HashConsistent);
    for (key, up) in RING {
        assert_eq!(all_fail(&all_up, text(key), 0), up, "{key}");
    }
    let named = |name: &str, addr: &str, weight| {
        let mut server = Server::fixed(name, [addr_of(addr)]);
        (server.params.weight, server.params.max_fails) = (weight, 0);
        server
    };
    let names = group(
        BalanceMethod::HashConsistent,
        vec![
            server(11, 3),
            named("127.0.0.12:8080", "127.0.0.12:8080", 1),
            with(13, |params| params.admin = AdminState::Down),
            named("unix:/tmp/upvec/none.sock", "unix:/tmp/upvec/none.sock", 1),
            named("[::2]:9", "[::2]:9", 2),
            named("127.0.0.15", "127.0.0.15:80", 1),
            named("localhost:9", "127.0.0.1:9", 1),
        ],
    );
    for (key, addr) in RING_OF_NAMES {
        assert_eq!(first(&names, text(key)).peer().text(), *addr, "{key}");
    }
}

/// Peer 11 refuses connections; the others answer.
fn with_refusal(group: &Group, count: usize) -> Vec<Vec<u8>> {
    let one = |_| {
        let (mut selection, mut rng) = new_selection(group, BalanceKey::None);
        let mut tried = Vec::new();
        loop {
            let lease = group.select(&mut selection, 50, &mut rng).unwrap();
            let outcome = if number(&lease) == 11 { PeerOutcome::Failed } else { PeerOutcome::Success };
            tried.push(number(&lease));
            lease.done(outcome, 50);
            if outcome == PeerOutcome::Success {
                return tried;
            }
        }
    };
    (0..count).map(one).collect()
}

#[test]
fn failing_peer_loses_weight_and_is_disabled() {
    let failing = with(11, |params| (params.weight, params.max_fails) = (4, 2));
    let backup = with(14, |params| params.backup = true);
    let group = group(BalanceMethod::RoundRobin, vec![failing, server(12, 2), server(13, 1), backup]);
    let expected: [&[u8]; 12] =
        [&[11, 12], &[12], &[13], &[11, 12], &[12], &[12], &[13], &[12], &[12], &[13], &[12], &[12]];
    assert_eq!(with_refusal(&group, 12), expected);

    let failing = with(11, |params| (params.weight, params.max_fails) = (6, 3));
    let group = super::group(BalanceMethod::RoundRobin, vec![failing, server(12, 3), server(13, 2)]);
    let expected: [&[u8]; 16] = [
        &[11, 12],
        &[13],
        &[12],
        &[11, 12],
        &[13],
        &[11, 12],
        &[12],
        &[13],
        &[12],
        &[12],
        &[13],
        &[12],
        &[13],
        &[12],
        &[12],
        &[13],
    ];
    assert_eq!(with_refusal(&group, 16), expected);
}

#[test]
fn backups_come_after_all_others_have_failed() {
    let refuses = |n| with(n, |_| ());
    let backup = |n, weight| with(n, |params| (params.backup, params.weight) = (true, weight));
    let group =
        group(BalanceMethod::RoundRobin, vec![refuses(11), refuses(12), backup(20, 1), backup(13, 2)]);
    let mut all = Vec::new();
    for _ in 0..6 {
        let (mut selection, mut rng) = new_selection(&group, BalanceKey::None);
        let mut tried = Vec::new();
        loop {
            let lease = group.select(&mut selection, 50, &mut rng).unwrap();
            tried.push(number(&lease));
            if number(&lease) == 20 {
                lease.done(PeerOutcome::Success, 50);
                break;
            }
            lease.done(PeerOutcome::Failed, 50);
        }
        all.push(tried);
    }
    assert_eq!(all, [vec![11, 12, 13, 20], vec![20], vec![20], vec![20], vec![20], vec![20]]);
}
