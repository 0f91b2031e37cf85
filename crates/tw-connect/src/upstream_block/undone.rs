//! Changes of a group at run time that a reload undoes, because no `state` file keeps them.

use tw_upstream::{Group, PeerParams, Server, ServerAddress};

use super::server;

/// Changes of `old` since it was made that a group of `servers` does not have: a text for each.
pub(super) fn undone_changes(old: &Group, servers: &[Server]) -> Vec<String> {
    let list = old.list();
    let (current, configured) = (list.servers(), old.configured());
    let named = |name: &str| servers.iter().find(|server| *server.name == *name);
    let mut undone = Vec::new();
    for (id, now) in current {
        let before = configured.iter().find(|(server_id, _)| server_id == id);
        match (before, named(&now.name)) {
            (None, None) => undone.push(format!("added \"{}\"", server::text(now))),
            (Some((_, before)), Some(new)) if before.params != now.params && new.params != now.params => {
                undone.push(format!("changed \"{}\" to \"{}\"", server::text(before), server::text(now)));
            }
            _ => {}
        }
        let has_service = matches!(now.address, ServerAddress::Named { service: Some(_), .. });
        // An address of a name can be changed alone.
        let peers = list.peers().filter(|peer| now.has_host_name() && peer.server() == *id);
        let changed = peers.filter(|peer| differs(peer.params(), &now.params, has_service));
        undone.extend(changed.map(|peer| format!("changed {} of \"{}\"", peer.text(), now.name)));
    }
    for (id, before) in configured {
        if !current.iter().any(|(server_id, _)| server_id == id) && named(&before.name).is_some() {
            undone.push(format!("removed \"{}\"", server::text(before)));
        }
    }
    undone
}

/// Returns true if an address was changed alone. DNS gives a service its weights and backup servers.
fn differs(address: &PeerParams, name: &PeerParams, has_service: bool) -> bool {
    let (weight, backup) =
        if has_service { (address.weight, address.backup) } else { (name.weight.max(1), name.backup) };
    *address != PeerParams { weight, backup, ..name.clone() }
}

#[cfg(test)]
mod tests {
    use tw_upstream::{AdminState, BalanceMethod};

    use super::*;

    fn parsed_server(name: &str, weight: u32) -> Server {
        let params = PeerParams { weight, ..PeerParams::default() };
        Server { name: name.into(), address: server::place(name, None).unwrap(), params }
    }

    #[test]
    fn changes_that_the_configuration_does_not_have_are_undone() {
        let configured = || {
            vec![
                parsed_server("10.0.0.1:80", 1),
                parsed_server("10.0.0.2:80", 1),
                parsed_server("10.0.0.3:80", 1),
            ]
        };
        let group = Group::new("app", BalanceMethod::RoundRobin, configured(), None);
        assert!(undone_changes(&group, &configured()).is_empty());
        let [first, second, third] = [0, 1, 2].map(|at| group.configured()[at].0);
        group.change_server(first, |params| params.admin = AdminState::Drain).unwrap();
        group.change_server(second, |params| params.weight = 5).unwrap();
        group.remove_server(third).unwrap();
        group.add(parsed_server("10.0.0.4:80", 1)).unwrap();
        let changes = [
            "changed \"10.0.0.1:80\" to \"10.0.0.1:80 drain\"",
            "changed \"10.0.0.2:80\" to \"10.0.0.2:80 weight=5\"",
            "added \"10.0.0.4:80\"",
            "removed \"10.0.0.3:80\"",
        ];
        assert_eq!(undone_changes(&group, &configured()), changes);
        // A configuration that has some of them undoes the others.
        let mut new = configured();
        new[1].params.weight = 5;
        new[2] = parsed_server("10.0.0.4:80", 1);
        assert_eq!(undone_changes(&group, &new), changes[..1]);
    }
}
