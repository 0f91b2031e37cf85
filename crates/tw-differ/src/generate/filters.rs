//! Filters of responses: compression, substitutions, SSI, added fields, charsets.

use tw_testkit::random::Random;

use super::routing;
use crate::node::{Node, block, line};

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    let setting = line(random.one_of(&[
        "gzip on",
        "gzip_min_length 1",
        "gzip_types text/plain",
        "gzip_types *",
        "gzip_proxied any",
        "gzip_proxied expired no-cache auth",
        "gzip_vary on",
        "gzip_http_version 1.0",
        "gzip_disable \"x\"",
        "sub_filter_once off",
        "sub_filter_types *",
        "charset utf-8",
        "charset_types *",
        "ssi on",
        "ssi_silent_errors on",
        "ssi_last_modified on",
        "expires 1h",
        "expires -1",
        "expires epoch",
        "expires max",
        "expires off",
        "add_header X-H 1",
        "add_header Cache-Control no-store",
        "override_charset on",
    ]));
    if !nodes.contains(&setting) {
        nodes.push(setting);
    }
}

pub(super) fn contents(random: &mut Random, nodes: &mut Vec<Node>) {
    for _ in 0..1 + random.below(4) {
        let setting = line(random.one_of(&[
            "gzip on",
            "gzip off",
            "gzip_min_length 30",
            "gzip_types text/plain application/json",
            "gzip_vary on",
            "sub_filter one 1",
            "sub_filter 'TWO' \"$uri\"",
            "sub_filter </head> '<x></head>'",
            "sub_filter_once off",
            "sub_filter_last_modified on",
            "sub_filter_types text/plain",
            "charset koi8-r",
            "charset off",
            "charset $arg_a",
            "ssi on",
            "ssi_types *",
            "expires 1h",
            "expires -1",
            "expires $arg_a",
            "expires modified +1d",
            "expires @15h30m",
            "expires max",
            "add_header X-A $arg_a",
            "add_header X-A ''",
            "add_header X-B b always",
            "add_header ETag x",
            "add_header Last-Modified ''",
            "add_header Cache-Control \"a, b\"",
            "add_header Vary X",
            "add_header Link a",
            "add_trailer X t",
            "add_before_body /a.txt",
            "add_after_body /dir/c.txt",
            "addition_types *",
            "max_ranges 0",
            "etag off",
            "default_type text/html",
            "gunzip on",
            "gzip_static on",
            "slice 4",
            "if_modified_since before",
            "add_header Content-Type text/x",
            "add_header Server x",
            "add_header Date x",
            "add_header Location /x",
            "add_header Content-Encoding x",
        ]));
        // A filter of substitutions may occur several times, a setting only once.
        let name = crate::node::names(std::slice::from_ref(&setting));
        let repeats = name.contains("sub_filter") || name.contains("add_header");
        if repeats || !crate::node::names(nodes).is_superset(&name) {
            nodes.push(setting);
        }
    }
    match random.below(6) {
        0 => nodes.push(line("proxy_pass http://127.0.0.1:@ORIGIN@")),
        1 => routing::contents(random, 9, nodes),
        2 => nodes.push(line("return 200 'one two one <head></head>'")),
        3 => nodes.push(block("if ($arg_b)", vec![line("add_header X-I i"), line("expires 3h")])),
        4 => nodes.push(line("try_files $uri /p.shtml")),
        _ => {}
    }
}
