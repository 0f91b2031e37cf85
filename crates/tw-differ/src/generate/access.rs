//! Access control: addresses, passwords, subrequests, methods.

use tw_testkit::random::Random;

use crate::node::{Node, line};

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    if random.happens(40) {
        nodes.push(rule(random));
    }
    nodes.push(line("location = /auth { internal; return 204; } location = /auth401 { return 401; } location = /auth403 { return 403; } error_page 401 /err.html"));
}

fn rule(random: &mut Random) -> Node {
    line(random.one_of(&[
        "allow 127.0.0.1",
        "deny all",
        "deny 127.0.0.1",
        "allow all",
        "allow 10.0.0.0/8",
        "deny 127.0.0.0/8",
        "satisfy any",
        "satisfy all",
        "auth_basic realm; auth_basic_user_file @ROOT@/users",
        "auth_basic \"r $arg_a\"; auth_basic_user_file @ROOT@/users",
        "auth_basic off",
        "auth_basic_user_file @ROOT@/missing",
        "auth_request /auth",
        "auth_request /auth401",
        "auth_request /auth403",
        "auth_request /missing",
        "auth_request off",
        "auth_request_set $x $status",
        "auth_delay 0",
        "limit_except GET { deny all; }",
        "limit_except POST PUT { allow 127.0.0.1; deny all; }",
        "limit_except GET { auth_basic m; auth_basic_user_file @ROOT@/users; }",
        "error_page 403 /err.html",
        "error_page 401 = /a.txt",
        "error_page 401 403 @n1",
        "error_page 403 =404 /missing",
        "set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For",
        "secure_link $arg_a; secure_link_md5 \"$uri x\"",
        "valid_referers none *.a.test",
        "internal",
    ]))
}

pub(super) fn contents(random: &mut Random, nodes: &mut Vec<Node>) {
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..1 + random.below(4) {
        let rule = rule(random);
        let new = crate::node::names(std::slice::from_ref(&rule));
        if new.iter().any(|name| name == "allow" || name == "deny" || name == "error_page")
            || names.is_disjoint(&new)
        {
            names.extend(new);
            nodes.push(rule);
        }
    }
    match random.below(4) {
        0 => nodes.push(line("proxy_pass http://127.0.0.1:@ORIGIN@")),
        1 => nodes.push(line("try_files /a.txt =404")),
        2 => nodes.push(line("return 200 \"r:$remote_user a:$remote_addr\"")),
        _ => {}
    }
}
