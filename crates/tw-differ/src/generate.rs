//! Cases from seeds: a grammar of sensible configurations, responses of origin servers and requests.

mod access;
mod cache;
mod files;
mod filters;
mod gateways;
mod proxy;
mod requests;
mod routing;
mod variables;

use tw_testkit::random::Random;

use crate::case::Case;
use crate::node::{Node, block, line};
use crate::request::Wire;

/// Part of the configuration language that a case is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    /// Locations, `if`, `rewrite`, `try_files`, `error_page`.
    Routing,
    /// `set`, `map`, `geo` and what variables contain.
    Variables,
    /// `proxy_pass` to the scripted origin server.
    Proxy,
    /// Compression, substitutions, SSI, fields of responses.
    Filters,
    /// Files, ranges, conditions, indexes.
    Files,
    /// `allow`, `auth_basic`, `satisfy`, `limit_except`.
    Access,
    /// Configurations that may be wrong.
    Messages,
    /// Another area, whose requests come over HTTP/2.
    Http2,
    /// `proxy_cache` with all that decides what is stored, and how long.
    Cache,
    /// `fastcgi_pass`, `uwsgi_pass` and `scgi_pass` to the scripted applications.
    Gateways,
}

/// Areas by their names on the command line.
pub(crate) const AREAS: &[(&str, Area)] = &[
    ("routing", Area::Routing),
    ("variables", Area::Variables),
    ("proxy", Area::Proxy),
    ("filters", Area::Filters),
    ("files", Area::Files),
    ("access", Area::Access),
    ("messages", Area::Messages),
    ("http2", Area::Http2),
    ("cache", Area::Cache),
    ("gateways", Area::Gateways),
];

/// Areas whose requests may come over HTTP/2.
const OVER_HTTP2: &[Area] =
    &[Area::Routing, Area::Variables, Area::Proxy, Area::Filters, Area::Files, Area::Access, Area::Gateways];

/// Files that both servers deliver: name and content.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("index.html", "<html><head></head><body>index one two</body></html>\n"),
    ("a.txt", "abcdefghijklmnopqrstuvwxyz\n"),
    ("a.html", "<p>one two one</p>\n"),
    ("empty.txt", ""),
    ("noext", "no extension\n"),
    ("sp ace.txt", "space\n"),
    ("dir/index.html", "dir index\n"),
    ("dir/c.txt", "ccc\n"),
    ("dir/sub/d.txt", "ddd\n"),
    ("bare/e.txt", "eee\n"),
    ("err.html", "error page\n"),
    (
        "p.shtml",
        "<!--#set var=\"v\" value=\"x\" -->[<!--#echo var=\"v\" -->][<!--#echo var=\"none\" default=\"d\" -->]<!--#if expr=\"$arg_a\" -->yes<!--#else -->no<!--#endif --><!--#include virtual=\"/a.txt\" -->\n",
    ),
    (
        "q.shtml",
        "<!--#echo var=\"QUERY_STRING\" encoding=\"none\" --><!--#if expr=\"$uri = /q.shtml\" -->q<!--#endif --><!--#include virtual=\"/missing\" -->\n",
    ),
    ("users", "u:{PLAIN}p\nv:{PLAIN}\n"),
];

/// Requests of a case.
const EXCHANGES: usize = 40;

/// The case of a seed. The same seed always gives the same case.
pub(crate) fn case(seed: u64, area: Area) -> Case {
    let mut random = Random::new(seed ^ (area as u64) << 56);
    let random = &mut random;
    let wire = if area == Area::Http2 { Wire::Http2 } else { Wire::Http1 };
    let area = if area == Area::Http2 { random.one_of(OVER_HTTP2) } else { area };
    let mut http = Vec::new();
    if wire == Wire::Http2 {
        http.push(line("http2 on"));
    }
    http_settings(random, area, &mut http);
    let mut first = vec![line("listen 127.0.0.1:@PORT@"), line("server_name a.test"), line("root @ROOT@")];
    server_settings(random, area, &mut first);
    let count = 3 + random.below(5);
    for index in 0..count {
        locations(random, area, index, &mut first);
    }
    http.push(block("server", first));
    if random.happens(40) {
        let names = random.one_of(&[
            "b.test",
            "*.b.test b.test",
            "~^(?<sub>\\w+)\\.re\\.test$",
            ".c.test \"\"",
            "b.*",
        ]);
        let mut second =
            vec![line("listen 127.0.0.1:@PORT@"), line(format!("server_name {names}")), line("root @ROOT@")];
        locations(random, area, 0, &mut second);
        http.push(block("server", second));
    }
    if area == Area::Messages {
        spoil(random, &mut http);
    }
    let response = if area == Area::Cache { cache::response } else { proxy::response };
    let script = (0..8).map(|_| response(random)).collect();
    let paths = requests::paths(&http);
    let exchanges = if area == Area::Cache {
        cache::exchanges(random, &paths)
    } else {
        (0..EXCHANGES).map(|_| requests::exchange(random, area, wire, &paths)).collect()
    };
    Case { nodes: http, script, exchanges }
}

fn http_settings(random: &mut Random, area: Area, nodes: &mut Vec<Node>) {
    variables::maps(random, nodes);
    let types = "text/html html shtml; text/plain txt";
    nodes.push(block("types", types.split("; ").map(line).collect()));
    if random.happens(30) {
        nodes.push(line(random.one_of(&[
            "default_type application/json",
            "default_type ''",
            "default_type text/html",
        ])));
    }
    if area == Area::Filters {
        filters::settings(random, nodes);
    }
    if area == Area::Cache {
        nodes.push(line("proxy_cache_path @PREFIX@/cache keys_zone=c:1m inactive=1h"));
        // Tailwater has ranges of every cached response, nginx only with this.
        nodes.push(line("proxy_force_ranges on"));
    }
}

fn server_settings(random: &mut Random, area: Area, nodes: &mut Vec<Node>) {
    if random.happens(25) {
        nodes.push(line(random.one_of(&[
            "merge_slashes off",
            "absolute_redirect off",
            "port_in_redirect off",
            "server_name_in_redirect on",
            "etag off",
            "if_modified_since before",
            "if_modified_since off",
            "max_ranges 1",
            "underscores_in_headers on",
            "ignore_invalid_headers off",
            "recursive_error_pages on",
            "chunked_transfer_encoding off",
            "keepalive_timeout 0",
            "keepalive_timeout 10s 20s",
            "client_max_body_size 10",
            "keepalive_requests 2",
            "msie_padding on",
            "log_subrequest on",
        ])));
    }
    match area {
        Area::Routing | Area::Messages => routing::server_settings(random, nodes),
        Area::Variables => variables::settings(random, nodes),
        Area::Files => files::settings(random, nodes),
        Area::Access => access::settings(random, nodes),
        Area::Filters => filters::settings(random, nodes),
        Area::Proxy | Area::Http2 => proxy::settings(random, nodes),
        Area::Cache => cache::settings(random, nodes),
        Area::Gateways => gateways::settings(random, nodes),
    }
}

fn locations(random: &mut Random, area: Area, index: usize, nodes: &mut Vec<Node>) {
    let path = location_path(random, index);
    let mut inner = Vec::new();
    match area {
        Area::Routing | Area::Messages => routing::contents(random, index, &mut inner),
        Area::Variables => variables::contents(random, &mut inner),
        Area::Proxy | Area::Http2 => proxy::contents(random, &path, &mut inner),
        Area::Cache => cache::contents(random, &mut inner),
        Area::Gateways => gateways::contents(random, &mut inner),
        Area::Filters => filters::contents(random, &mut inner),
        Area::Files => files::contents(random, &path, &mut inner),
        Area::Access => access::contents(random, &mut inner),
    }
    nodes.push(block(format!("location {path}"), inner));
}

/// Pattern of a location: mostly one that some request finds. Equal ones are an error, so that the index is part of them.
fn location_path(random: &mut Random, index: usize) -> String {
    let shapes: &[&str] = &[
        "/l#",
        "/l#/",
        "= /l#",
        "= /l#/",
        "^~ /l#/",
        "~ ^/l#(/.*)?$",
        "~* \\.x#$",
        "~ ^/(?<n>l#)/(.+)$",
        "/dir/l#",
        "@n#",
    ];
    let whole: &[&str] =
        &["/", "= /", "/dir", "/dir/", "~ \\.txt$", "~* \\.(html|shtml)$", "= /a.txt", "^~ /dir/sub"];
    // Each index has a shape of its own among the whole paths.
    if random.happens(45) {
        let at = (index + 8 * random.below(1)) % whole.len();
        return whole.get(at).copied().unwrap_or("/").to_owned();
    }
    random.one_of(shapes).replace('#', &index.to_string())
}

/// Adds a directive that is wrong in its place or in its arguments.
fn spoil(random: &mut Random, nodes: &mut Vec<Node>) {
    let wrong = random.one_of(&[
        "proxy_pass http://",
        "return",
        "return 99",
        "return 1000 x",
        "rewrite ^/a",
        "rewrite ( /b",
        "rewrite ^/a /b lost",
        "set a b",
        "set $ b",
        "set $a",
        "expires never",
        "expires modified",
        "expires @25h",
        "add_header A",
        "add_header A b often",
        "error_page 404",
        "error_page 200 /x",
        "error_page 404 =99999 /x",
        "error_page abc /x",
        "try_files /a",
        "try_files",
        "gzip maybe",
        "gzip_comp_level 10",
        "gzip_types",
        "client_max_body_size x",
        "client_max_body_size 1z",
        "keepalive_timeout x",
        "listen 127.0.0.1:0",
        "listen a:b:c",
        "listen 127.0.0.1:@PORT@ bogus",
        "listen 127.0.0.1:@PORT@ backlog=x",
        "server_name ~(",
        "root",
        "root a b",
        "alias /x",
        "internal on",
        "allow x",
        "allow 1.2.3.4/33",
        "deny",
        "satisfy some",
        "auth_basic",
        "limit_rate x",
        "limit_req zone=none",
        "limit_conn none 1",
        "sub_filter a",
        "bogus 1",
        "index",
        "index /",
        "etag maybe",
        "proxy_set_header A",
        "proxy_http_version 3",
        "proxy_cache none",
        "proxy_method",
        "log_not_found x",
        "open_file_cache max=x",
        "access_log /x nonesuch",
        "types_hash_max_size 0",
        "resolver",
        "return 301 $nonesuch",
        "set $a $nonesuch",
        "set $args",
        "proxy_pass ftp://x",
        "proxy_pass http://127.0.0.1:99999",
        "proxy_pass http://$nonesuch",
        "charset",
        "ssi maybe",
        "rewrite a b c d",
        "valid_referers",
        "slice x",
        "max_ranges x",
        "send_timeout -1",
        "merge_slashes",
        "return 200 a b",
        "default_type",
        "secure_link",
    ]);
    let server = wrong.replace("@@", "");
    let place = random.below(3);
    let last = nodes.pop();
    match (place, last) {
        (0, Some(last)) => nodes.extend([line(server), last]),
        (1, Some(last)) => {
            let wrapped = block("server", vec![line("listen 127.0.0.1:@PORT@"), line(server)]);
            nodes.extend([last, wrapped]);
        }
        (_, Some(last)) => {
            let location = block("location /wrong", vec![line(server)]);
            nodes.extend([last, block("server", vec![line("listen 127.0.0.1:@PORT@"), location])]);
        }
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node;

    #[test]
    fn equal_seeds_give_equal_cases() {
        for (name, area) in AREAS {
            assert_eq!(case(7, *area), case(7, *area), "{name}");
            assert_ne!(case(7, *area), case(8, *area), "{name}");
        }
    }

    #[test]
    fn cases_have_balanced_blocks_and_requests() {
        for seed in 0..50 {
            for (name, area) in AREAS {
                let case = case(seed, *area);
                let text = node::render(&case.nodes);
                assert_eq!(text.matches('{').count(), text.matches('}').count(), "{name} {seed}: {text}");
                assert!(text.contains("listen 127.0.0.1:@PORT@;"), "{name} {seed}");
                assert_eq!(case.exchanges.len(), EXCHANGES);
            }
        }
    }
}
