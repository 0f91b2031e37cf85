//! `sticky`: session affinity.

use std::net::SocketAddr;

use tw_testkit::{Server, wait};

use crate::support::reload::reload;
use crate::support::{refusal_of, request, server, start};
use tw_testkit::origin::origin;

/// An origin that answers with its name, and with `more` in the head.
fn origin_named(name: &'static str, more: &'static str) -> SocketAddr {
    origin(move |mut conn| {
        while let Some(head) = conn.head() {
            let status = if head.starts_with("GET /fail") { "500 No" } else { "200 OK" };
            conn.send(format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\n{more}\r\n{name}"));
        }
    })
}

/// Names of the servers that answer `count` requests.
fn answering_servers(server: &Server, line: &str, fields: &[&str], count: usize) -> String {
    (0..count).map(|_| request(server, line, fields).text()).collect()
}

#[test]
fn sticky_cookie_selects_the_server() {
    let a = origin_named("a", "");
    let b = origin_named("b", "Set-Cookie: own=1\r\n");
    let server = start(
        server(),
        &format!(
            "upstream u {{ server {a}; server {b}; sticky cookie srv; }}
             upstream all {{ server {a} route=r1; server {b} down; sticky cookie srv expires=1h domain=$arg_d httponly
                 secure samesite=$arg_s path=/p; }}
             upstream max {{ server {b} route=r2; sticky cookie srv expires=max; }}
             upstream nobody {{ server {a} down; sticky cookie srv; }}
             server {{ listen 127.0.0.1:{{port}}; proxy_next_upstream http_500;
                 location / {{ proxy_pass http://u; }} location /all {{ proxy_pass http://all; }}
                 location /max {{ proxy_pass http://max; }} location /nobody {{ proxy_pass http://nobody; }} }}"
        ),
    );
    let mut cookies = Vec::new();
    for name in ["a", "b"] {
        let response = request(&server, "GET /", &[]);
        assert_eq!(response.text(), name);
        let cookie = response.field("Set-Cookie").unwrap().to_owned();
        let digits = cookie.strip_prefix("srv=").unwrap();
        assert!(digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{cookie}");
        // A cookie that the server sets itself stays.
        assert_eq!(response.values("Set-Cookie").count(), if name == "b" { 2 } else { 1 });
        cookies.push(cookie);
    }
    assert_ne!(cookies[0], cookies[1]);
    for (cookie, expected) in cookies.iter().zip(["aaaa", "bbbb"]) {
        assert_eq!(answering_servers(&server, "GET /", &[&format!("Cookie: x=1; {cookie}")], 4), expected);
    }
    assert_eq!(answering_servers(&server, "GET /", &["Cookie: srv=nobody"], 2).len(), 2);
    // The cookie names the server that answered in the end, not the one that failed.
    let response = request(&server, "GET /fail", &[&format!("Cookie: {}", cookies[0])]);
    assert_eq!((response.status, response.text().as_str()), (500, "b"));
    assert_eq!(response.values("Set-Cookie").next(), Some(&*cookies[1]));
    // A cookie with all attributes.
    let response = request(&server, "GET /all?d=x.org&s=odd", &[]);
    let cookie = response.field("Set-Cookie").unwrap();
    let (start, rest) = cookie.split_once("; expires=").unwrap();
    let (date, rest) = rest.split_once("; max-age=").unwrap();
    assert_eq!(start, "srv=r1");
    assert!(date.ends_with(" GMT") && date.matches('-').count() == 2, "{cookie}");
    assert_eq!(rest, "3600; domain=x.org; httponly; secure; samesite=strict; path=/p");
    let response = request(&server, "GET /all?s=Lax", &[]);
    assert!(
        response
            .field("Set-Cookie")
            .unwrap()
            .ends_with("; max-age=3600; httponly; secure; samesite=Lax; path=/p")
    );
    let response = request(&server, "GET /max", &[]);
    let expected = "srv=r2; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000";
    assert_eq!(response.field("Set-Cookie"), Some(expected));
    let response = request(&server, "GET /nobody", &[]);
    assert_eq!((response.status, response.field("Set-Cookie")), (502, None));
}

#[test]
fn sticky_route_selects_the_server_and_drain_keeps_its_clients() {
    let a = origin_named("a", "");
    let b = origin_named("b", "");
    let server = start(
        server(),
        &format!(
            "upstream u {{ server {a} route=one; server {b} route=two; sticky route $cookie_r $arg_r; }}
             upstream drains {{ server {a} route=one; server {b} route=two drain; sticky route $arg_r; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://u; }} location /drains {{ proxy_pass http://drains; }} }}"
        ),
    );
    assert_eq!(answering_servers(&server, "GET /", &[], 4), "abab");
    assert_eq!(answering_servers(&server, "GET /?r=two", &[], 3), "bbb");
    assert_eq!(answering_servers(&server, "GET /?r=two", &["Cookie: r=one"], 3), "aaa");
    // No server has this route, so all take turns.
    let all = answering_servers(&server, "GET /?r=none", &["Cookie: r="], 4);
    assert!(all == "abab" || all == "baba", "{all}");
    assert_eq!(answering_servers(&server, "GET /drains", &[], 3), "aaa");
    assert_eq!(answering_servers(&server, "GET /drains?r=two", &[], 3), "bbb");
}

#[test]
fn learned_sessions_survive_reload() {
    let a = origin_named("a", "Set-Cookie: sid=at-a\r\n");
    let b = origin_named("b", "Set-Cookie: sid=at-b\r\n");
    let mut server = server().start(&sessions(a, b, "old")).unwrap();
    // A session that is not known selects no server.
    assert_eq!(answering_servers(&server, "GET /", &["Cookie: sid=other"], 4), "abab");
    assert_eq!(answering_servers(&server, "GET /", &["Cookie: sid=at-b"], 3), "bbb");
    assert_eq!(answering_servers(&server, "GET /", &["Cookie: sid=at-a"], 3), "aaa");
    // The client chooses the session identifier, which is learned from the response head.
    let first = request(&server, "GET /client?s=mine", &[]).text();
    assert_eq!(answering_servers(&server, "GET /client?s=mine", &[], 3), first.repeat(3));
    reload(&mut server, &sessions(a, b, "new"));
    assert!(wait::until(wait::TIMEOUT, || request(&server, "GET /which", &[]).text() == "new"));
    assert_eq!(answering_servers(&server, "GET /", &["Cookie: sid=at-b"], 3), "bbb");
    assert_eq!(answering_servers(&server, "GET /client?s=mine", &[], 3), first.repeat(3));
}

fn sessions(a: SocketAddr, b: SocketAddr, which: &str) -> String {
    format!(
        "http {{
             upstream u {{ server {a}; server {b};
                 sticky learn create=$upstream_cookie_sid lookup=$cookie_sid zone=u:64k timeout=1h; }}
             upstream client {{ server {a}; server {b}; sticky learn create=$arg_s lookup=$arg_s zone=client:64k header; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; }}
                 location /client {{ proxy_pass http://client; }} location /which {{ return 200 {which}; }} }} }}"
    )
}

#[test]
fn malformed_directives_are_refused() {
    for (directive, message) in [
        ("sticky cookie ''", "empty cookie name"),
        ("sticky cookie a path=", "no value for \"path\""),
        ("sticky cookie a httponly httponly", "parameter \"httponly\" is duplicate"),
        ("sticky cookie a samesite=odd", "invalid \"samesite\" parameter value"),
        ("sticky cookie a expires=x", "invalid \"expires\" parameter value"),
        ("sticky route a", "invalid variable name \"a\""),
        ("sticky other a", "unknown parameter \"other\""),
        ("sticky learn create=$arg_a lookup=$arg_a", "\"zone\" parameter is not specified"),
        ("sticky learn create=a zone=z:1m", "missing variable in the \"create\" parameter"),
        ("sticky learn lookup=$arg_a zone=z:1k", "zone is too small"),
        (
            "sticky learn create=$arg_a lookup=$arg_a zone=taken:1m",
            "sticky zone \"taken\" is already used in upstream \"v\"",
        ),
        ("sticky route $arg_a; sticky route $arg_b", "\"sticky\" directive is duplicate"),
        ("queue 0", "invalid value \"0\""),
        ("queue 1 often", "invalid parameter \"often\""),
    ] {
        let said = refusal_of(&format!(
            "http {{ upstream v {{ server 127.0.0.1; sticky learn create=$arg_a lookup=$arg_a zone=taken:1m; }}
                 upstream u {{ server 127.0.0.1; {directive}; }} server {{ listen 127.0.0.1:{{port}}; }} }}"
        ));
        assert!(said.contains(message), "{directive}: {said}");
    }
}
