//! Locations, rewriting, `try_files` and chains of error pages.

use tw_testkit::random::Random;

use super::variables;
use crate::node::{Node, block, line};

pub(super) fn server_settings(random: &mut Random, nodes: &mut Vec<Node>) {
    if random.happens(30) {
        nodes.push(line(rewrite(random)));
    }
    if random.happens(40) {
        nodes.push(line(error_page(random)));
    }
    if random.happens(20) {
        nodes.push(condition(random, 0));
    }
    if random.happens(30) {
        nodes.push(line("location /stop/ { return 200 \"stop $uri $args\"; } error_page 418 /stop/"));
    }
}

/// Contents of a location.
pub(super) fn contents(random: &mut Random, index: usize, nodes: &mut Vec<Node>) {
    for _ in 0..random.below(3) {
        nodes.push(match random.below(4) {
            0 => line(rewrite(random)),
            1 => condition(random, 1),
            2 => line(variables::set(random)),
            _ => line(error_page(random)),
        });
    }
    if random.happens(15) {
        nodes.push(line("internal"));
    }
    if random.happens(20) {
        let words = random.one_of(&["/a.txt", "$uri $uri/", "$uri $uri/index.html", "/missing", "$uri$args"]);
        let last = random.one_of(&["=404", "/dir/c.txt", "@n0", "/l1/x?b=2", "=405", "/index.html?$args"]);
        nodes.push(line(format!("try_files {words} {last}")));
    } else if random.happens(60) {
        nodes.push(line(last_word(random)));
    }
    if random.happens(15) {
        nodes.push(block(format!("location ~ ^/l{index}/(in.*)$"), vec![line(last_word(random))]));
    }
    if random.happens(15) {
        nodes.push(line(random.one_of(&[
            "add_header X-L $uri",
            "add_header X-L $status always",
            "expires 1h",
        ])));
    }
}

fn rewrite(random: &mut Random) -> String {
    let pattern = random.one_of(&[
        "^/l0(.*)$",
        "^/l1/(.*)$",
        "^/old/?(.*)$",
        "^(.*)\\.x0$",
        "^/dir(/?)$",
        "(?i)^/L2",
        "^/l\\d/(?<k>.+)$",
        "a b",
    ]);
    let pattern = if pattern.contains(' ') { format!("\"{pattern}\"") } else { pattern.to_owned() };
    let to = random.one_of(&[
        "/l1$1",
        "/dir/$1",
        "/a.txt",
        "/l2/$1?x=$1",
        "/l2/$1?",
        "http://o.test/$1",
        "https://o.test$uri?",
        "/l3$uri?a=$arg_a",
        "$1",
        "/%41$1",
        "/l1/a%20b?$args",
    ]);
    let flag = random.one_of(&["", " last", " break", " redirect", " permanent"]);
    format!("rewrite {pattern} {to}{flag}")
}

fn error_page(random: &mut Random) -> String {
    let codes =
        random.one_of(&["404", "403 404", "404 405 418", "500 502 503", "400", "401", "418", "301", "413"]);
    let change = random.one_of(&["", "", " =", " =200", " =404", " =301", " =204"]);
    let to = random.one_of(&[
        "/err.html",
        "/l0/e",
        "@n1",
        "/missing",
        "/l1/$status",
        "http://o.test/e?$uri",
        "/err.html?a=1",
        "$uri.x0",
        "@n2",
    ]);
    format!("error_page {codes}{change} {to}")
}

/// Block `if`.
fn condition(random: &mut Random, depth: usize) -> Node {
    let test = random.one_of(&[
        "($arg_a)",
        "($arg_a = 1)",
        "($arg_a != 1)",
        "($request_method = POST)",
        "($uri ~ ^/l(\\d))",
        "($uri ~* X0$)",
        "($http_x_a !~ b)",
        "($http_cookie ~ \"a=([^;]+)\")",
        "(-f $request_filename)",
        "(!-f $request_filename)",
        "(-d $request_filename)",
        "(!-e $request_filename)",
        "($mapped)",
        "($args ~ (b.*))",
        "($host = b.test)",
    ]);
    let mut inner = Vec::new();
    if random.happens(40) {
        inner.push(line(variables::set(random)));
    }
    if random.happens(30) {
        inner.push(line(rewrite(random)));
    }
    if random.happens(60) {
        inner.push(line(returning(random)));
    } else if depth > 0 && random.happens(40) {
        inner.push(line(random.one_of(&["add_header X-If 1", "expires 2h", "default_type text/x", "break"])));
    }
    block(format!("if {test}"), inner)
}

/// Directive that ends a location's processing.
fn last_word(random: &mut Random) -> String {
    if random.happens(80) {
        returning(random)
    } else {
        random.one_of(&["break", "empty_gif", "proxy_pass http://127.0.0.1:@ORIGIN@"]).to_owned()
    }
}

fn returning(random: &mut Random) -> String {
    random
        .one_of(&[
            "return 200 \"$uri|$args|$1|$2|$set_a|$document_root\"",
            "return 204",
            "return 301 /to$uri",
            "return 302 http://o.test$request_uri",
            "return 404",
            "return 418",
            "return 403 no",
            "return 307 /l1",
            "return http://o.test/",
            "return 200",
            "return 405",
            "return 500",
            "return 308 $uri?x",
            "return 303 \"\"",
            "return 444",
            "return 201 made",
            "return 304",
            "return 413",
            "return 503 later",
            "return 400",
            "return 302 b",
            "return 299 \"$request_filename\"",
            "return 600 odd",
        ])
        .to_owned()
}
