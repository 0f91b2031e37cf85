//! `limit_conn`

use tw_testkit::{Client, Server, wait};

use crate::support::{get, page, refusal_of, server, start};

/// Requests a large file and reads only the head.
fn hold(server: &Server, target: &str) -> (Client, u16) {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
    let status = client.read_head().unwrap().status;
    (client, status)
}

#[test]
fn connections_over_the_limit_are_refused() {
    let server = start(
        server().file("html/large", vec![b'x'; 32 << 20]).file("html/small", "small"),
        "limit_conn_zone $arg_k zone=one:1m; limit_conn_zone $arg_other zone=other:1m;
         log_format s '$args $limit_conn_status'; access_log logs/access.log s;
         server { listen 127.0.0.1:{port}; root html; location /m { metrics; }
             location / { limit_conn one 2; limit_conn other 1; }
             location /dry/ { alias html/; limit_conn one 1; limit_conn_dry_run on; limit_conn_log_level info; }
             location /off/ { alias html/; limit_conn one 1; limit_conn_retry_after off; }
             location /teapot/ { alias html/; limit_conn one 1; limit_conn_status 418; } }",
    );
    let (first, status) = hold(&server, "/large?k=1&other=x");
    assert_eq!(status, 200);
    let (second, status) = hold(&server, "/large?k=1");
    assert_eq!(status, 200);
    for (target, status) in [
        ("/small?k=1", 503),
        ("/small?k=2", 200),
        ("/small", 200),
        // A connection that another zone refuses is given back in this one.
        ("/small?k=2&other=x", 503),
        ("/small?k=2&other=x", 503),
        ("/small?k=2&other=y", 200),
        ("/dry/small?k=1", 200),
        ("/teapot/small?k=1", 418),
    ] {
        assert_eq!(get(&server, target).status, status, "{target}");
    }
    for (target, expected) in
        [("/small?k=1", Some("1")), ("/off/small?k=1", None), ("/teapot/small?k=1", None)]
    {
        assert_eq!(get(&server, target).field("Retry-After"), expected, "{target}");
    }
    let (_, text) = page(&server, "/m");
    assert!(text.contains("tailwater_limit_conn_entries{zone=\"one\"} 1\n"), "{text}");
    assert!(text.contains("tailwater_limit_conn_rejected_total{zone=\"other\"} 2\n"), "{text}");
    // The connection of a client that goes away is no longer counted.
    drop((first, second));
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/small?k=1&other=x").status == 200));
    server.wait_error_log("[error]").unwrap();
    let log = server.error_log();
    assert!(log.contains("limiting connections by zone \"one\", client: 127.0.0.1"), "{log}");
    let lines = server.access_log(11).unwrap();
    for line in ["k=1 REJECTED", "k=2 PASSED", "- -", "k=1 REJECTED_DRY_RUN"] {
        assert!(lines.iter().any(|l| l == line), "{line}\n{lines:#?}");
    }
}

#[test]
fn idle_keepalive_connection_does_not_count() {
    let server = start(
        server().file("html/small", "small"),
        "limit_conn_zone $binary_remote_addr zone=one:1m;
         server { listen 127.0.0.1:{port}; root html; limit_conn one 1; }",
    );
    let mut idle = server.connect().unwrap();
    idle.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(idle.read_response().unwrap().status, 200);
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/small").status == 200));
    idle.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(idle.read_response().unwrap().status, 200);
}

#[test]
fn keys_of_more_than_255_bytes_are_not_counted() {
    let server = start(
        server().file("html/large", vec![b'x'; 32 << 20]),
        "limit_conn_zone $arg_k zone=one:1m; server { listen 127.0.0.1:{port}; root html; limit_conn one 1; }",
    );
    for (len, expected) in [(255, 503), (256, 200)] {
        let target = format!("/large?k={}", "k".repeat(len));
        let (_held, status) = hold(&server, &target);
        assert_eq!(status, 200, "{len}");
        assert_eq!(hold(&server, &target).1, expected, "{len}");
    }
    server.wait_error_log("the value of the \"$arg_k\" key is more than 255 bytes: \"kkk").unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    let zone = "limit_conn_zone $uri zone=a:1m;";
    for (http, inner, said) in [
        ("limit_conn_zone $uri zone=a:31k;", "", "zone \"zone=a:31k\" is too small"),
        ("limit_conn_zone $uri zone=a;", "", "invalid zone size \"zone=a\""),
        ("limit_conn_zone $uri a:1m;", "", "invalid parameter \"a:1m\""),
        (
            &[zone, "limit_conn_zone $args zone=a:1m;"].concat(),
            "",
            "limit_conn_zone \"a\" is already bound to key \"$uri\"",
        ),
        (zone, "limit_conn b 1;", "zero size shared memory zone \"b\""),
        (zone, "limit_conn a 0;", "invalid number of connections \"0\""),
        (zone, "limit_conn a x;", "invalid number of connections \"x\""),
        (zone, "limit_conn a 65536;", "connection limit must be less 65536"),
        (zone, "limit_conn a 1; limit_conn a 2;", "\"limit_conn\" directive is duplicate"),
        (zone, "limit_conn a;", "invalid number of arguments in \"limit_conn\" directive"),
    ] {
        let text = refusal_of(&format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; {inner} }} }}"));
        assert!(text.contains(said), "{http} {inner}: {text}");
    }
}

#[test]
fn full_zone_is_logged() {
    let server = start(
        server().file("html/large", vec![b'x'; 64 << 10]),
        "limit_conn_zone $arg_k zone=tiny:32k;
         server { listen 127.0.0.1:{port}; root html; limit_conn tiny 1; limit_rate 100; }",
    );
    // An entry with such a key takes 512 bytes.
    let clients: Vec<_> = (0..65).map(|n| hold(&server, &format!("/large?k={n:0240}"))).collect();
    let statuses: Vec<_> = clients.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [[200].repeat(64), vec![503]].concat());
    server.wait_error_log("[crit]").unwrap();
    let log = server.error_log();
    let line = "ngx_slab_alloc() failed: no memory in limit_conn_zone \"tiny\", client: 127.0.0.1";
    assert_eq!(log.matches(line).count(), 1, "{log}");
}
