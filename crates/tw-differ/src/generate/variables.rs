//! Variables: definitions, maps, and directives that show their values.

use tw_testkit::random::Random;

use crate::node::{Node, block, line};

/// Variables that a response shows.
const SHOWN: &[&str] = &[
    "uri",
    "request_uri",
    "args",
    "is_args",
    "query_string",
    "arg_a",
    "arg_b",
    "arg_A",
    "host",
    "http_host",
    "http_x_a",
    "http_x_b",
    "http_cookie",
    "cookie_a",
    "cookie_b",
    "content_length",
    "content_type",
    "document_uri",
    "document_root",
    "request_filename",
    "request_method",
    "scheme",
    "server_protocol",
    "server_name",
    "status",
    "mapped",
    "by_host",
    "by_addr",
    "split",
    "set_a",
    "remote_user",
    "limit_rate",
    "https",
    "http_user_agent",
    "http_referer",
    "http_via",
    "http_x_forwarded_for",
    "proxy_add_x_forwarded_for",
    "http_transfer_encoding",
    "request",
    "nginx_none",
    "binary_remote_addr",
    "remote_addr",
    "http_authorization",
    "http_accept_encoding",
    "gzip_ratio",
    "invalid_referer",
    "connection_requests",
    "pipe",
    "realpath_root",
    "http_expect",
    "http_range",
    "proxy_host",
    "proxy_port",
    "uid_set",
    "http__",
    "server_addr",
    "server_port",
];

pub(super) fn maps(random: &mut Random, nodes: &mut Vec<Node>) {
    let source = random.one_of(&[
        "$arg_a",
        "$uri",
        "$http_x_a",
        "$host",
        "$arg_a$arg_b",
        "$http_cookie",
        "\"$request_method:$args\"",
    ]);
    let mut entries = vec![line("default none")];
    for (chance, entry) in [
        (50, "1 one"),
        (50, "~^/l(\\d) \"l:$1\""),
        (30, "\"\" empty"),
        (40, "~*B$ ends"),
        (30, "\"~a(?<cap>b?)\" \"cap:$cap\""),
        (20, "*.b.test wild"),
        (30, "\\default d"),
        (30, "GET: get"),
        (20, "2 $arg_b"),
    ] {
        if random.happens(chance) {
            entries.push(line(entry));
        }
    }
    if random.happens(20) {
        entries.push(line(random.one_of(&["hostnames", "volatile"])));
    }
    nodes.push(block(format!("map {source} $mapped"), entries));
    let hosts = vec![
        line("hostnames"),
        line("default -"),
        line(".b.test b"),
        line("a.* a"),
        line("www.a.test w"),
        line("*.c.test c"),
    ];
    nodes.push(block("map $http_host $by_host", hosts));
    let networks =
        vec![line("default far"), line("127.0.0.0/8 near"), line("10.0.0.0/8 ten"), line("1.2.3.4 one")];
    nodes.push(block(
        random.one_of(&["geo $by_addr", "geo $arg_a $by_addr", "geo $http_x_a $by_addr"]),
        networks,
    ));
    let parts = vec![line("33.3% a"), line("20% b"), line("* c")];
    nodes.push(block(
        random.one_of(&["split_clients $arg_a $split", "split_clients \"${uri}x\" $split"]),
        parts,
    ));
}

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    nodes.push(line(set(random)));
    if random.happens(50) {
        nodes.push(line(random.one_of(&[
            "valid_referers none blocked *.a.test",
            "valid_referers server_names ~\\.b\\.",
            "valid_referers a.test/x",
            "underscores_in_headers on",
            "real_ip_header X-A",
            "set_real_ip_from 127.0.0.1",
        ])));
    }
}

/// Directive `set`.
pub(super) fn set(random: &mut Random) -> String {
    let (name, value) = (
        random.one_of(&["set_a", "set_a", "set_b", "args", "limit_rate"]),
        random.one_of(&[
            "x",
            "\"$uri-$args\"",
            "$arg_a",
            "\"${arg_a}b\"",
            "$set_a$set_a",
            "'a b'",
            "\"\"",
            "$mapped",
            "$1",
            "a=1&b=2",
            "$cookie_a",
            "\"$http_x_a;\"",
        ]),
    );
    if name == "limit_rate" { "set $limit_rate 0".to_owned() } else { format!("set ${name} {value}") }
}

pub(super) fn contents(random: &mut Random, nodes: &mut Vec<Node>) {
    for _ in 0..random.below(3) {
        nodes.push(line(set(random)));
    }
    let shown: Vec<String> = (0..6)
        .map(|_| random.one_of(SHOWN))
        .filter(|name| !matches!(*name, "nginx_none" | "proxy_host" | "proxy_port" | "uid_set" | "http__"))
        .map(|name| format!("{name}=[${name}]"))
        .collect();
    if random.happens(80) {
        let status = random.one_of(&["200", "404", "201"]);
        nodes.push(line(format!("return {status} \"{}\\n\"", shown.join(" "))));
    } else {
        nodes.push(line(format!("add_header X-V \"{}\" always", shown.join(" "))));
    }
}
