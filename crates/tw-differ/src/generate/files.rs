//! Files: roots, indexes, lists, ranges and conditions.

use tw_testkit::random::Random;

use crate::node::{Node, line};

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    nodes.push(line(random.one_of(&[
        "index index.html",
        "index none.html /a.txt",
        "index $arg_a index.html",
        "max_ranges 2",
        "etag off",
        "autoindex on",
        "sendfile on",
        "log_not_found off",
    ])));
}

pub(super) fn contents(random: &mut Random, path: &str, nodes: &mut Vec<Node>) {
    if random.happens(30) {
        // An alias in a pattern needs a capture.
        let pattern = path.starts_with('~');
        let alias = random.one_of(&["@ROOT@/dir/", "@ROOT@/", "@ROOT@/a.txt", "@ROOT@"]);
        if !path.starts_with('@') {
            nodes.push(line(if pattern {
                "alias @ROOT@/dir$1".to_owned()
            } else {
                format!("alias {alias}")
            }));
        }
    } else if random.happens(30) {
        nodes.push(line(random.one_of(&[
            "root @ROOT@/dir",
            "root @ROOT@/",
            "root @ROOT@/$arg_a",
            "root @ROOT@/missing",
        ])));
    }
    for _ in 0..random.below(3) {
        let setting = line(random.one_of(&[
            "autoindex on",
            "autoindex_format json",
            "index c.txt",
            "try_files $uri $uri/ =404",
            "try_files $uri /dir/c.txt",
            "max_ranges 1",
            "etag off",
            "if_modified_since off",
            "if_modified_since before",
            "expires 1h",
            "add_header X-A 1",
            "random_index on",
            "error_page 404 /err.html",
            "error_page 416 = /err.html",
            "error_page 412 @n1",
            "sendfile on",
            "directio 1",
            "output_buffers 1 16",
            "slice 5",
            "gzip_static always",
            "default_type text/x",
            "disable_symlinks on",
            "open_file_cache max=10",
            "limit_except GET { deny all; }",
            "types { }",
            "absolute_redirect off",
            "read_ahead 1k",
            "charset utf-8",
            "error_page 403 =200 /a.txt",
            "dav_methods PUT DELETE",
        ]));
        // Writing changes files that both servers have.
        if !nodes.contains(&setting)
            && !crate::node::names(nodes).is_superset(&crate::node::names(std::slice::from_ref(&setting)))
            && setting != line("dav_methods PUT DELETE")
        {
            nodes.push(setting);
        }
    }
}
