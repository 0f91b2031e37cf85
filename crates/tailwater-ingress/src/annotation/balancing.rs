//! Balancing methods of ingress-nginx, which the configuration map and annotations name.

/// Line of a group for a method of balancing; empty for round robin.
pub(crate) fn balancing(text: &str) -> Option<String> {
    let line = match text.trim() {
        "round_robin" => "",
        "ewma" => "least_time header;",
        "least_conn" => "least_conn;",
        "ip_hash" => "ip_hash;",
        "random" => "random two;",
        _ => return None,
    };
    Some(line.to_owned())
}
