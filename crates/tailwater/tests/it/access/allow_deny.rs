//! `allow`, `deny`, and `satisfy` with them

use crate::support::{get, refusal, request, server, start, start_server};

#[test]
fn allow_and_deny_match_addresses_and_networks() {
    let server = start_server(
        server().file("html/index.html", "in"),
        "location /all/ { deny all; } location /none/ { allow 127.0.0.1; deny all; }
         location /net/ { allow 10.0.0.0/8; deny 127.0.0.0/8; allow all; } location /v6/ { deny ::/0; }
         location /unix/ { deny unix:; } location /low/ { deny 127.0.0.1/8; }
         location /outer/ { deny all; location /outer/own/ { allow 127.0.0.1; } location /outer/same/ { } }
         location /any/ { satisfy any; deny all; error_page 403 =201 /said; } location = /said { internal; return 201 no; }
         location /methods/ { limit_except GET { deny all; } return 200 in; }",
    );
    for (target, status) in [
        ("/all/", 403),
        ("/none/", 404),
        ("/net/", 403),
        ("/v6/", 404),
        ("/unix/", 404),
        ("/low/", 403),
        ("/outer/", 403),
        ("/outer/own/", 404),
        ("/outer/same/", 403),
        ("/any/", 201),
        ("/", 200),
    ] {
        assert_eq!(get(&server, target).status, status, "{target}");
    }
    assert_eq!(request(&server, "GET /methods/", &[]).status, 200);
    assert_eq!(request(&server, "DELETE /methods/", &[]).status, 403);
    server.wait_error_log("DELETE /methods/").unwrap();
    let log = server.error_log();
    let said = log.lines().filter(|line| line.contains("access forbidden by rule, client: 127.0.0.1"));
    assert_eq!(said.count(), 7, "{log}");
    let said = server.stderr();
    assert!(said.contains("low address bits of 127.0.0.1/8 are meaningless in "), "{said}");
}

#[test]
fn many_rules_are_checked() {
    let rules: String = (0..20_000).map(|n| format!("deny 10.{}.{}.0/24;", n >> 8 & 255, n & 255)).collect();
    let server = start(
        server().file("html/index.html", "in"),
        &format!("{rules} allow 127.0.0.1; deny all; server {{ listen 127.0.0.1:{{port}}; root html; }}"),
    );
    assert_eq!(get(&server, "/").status, 200);
}

#[test]
fn malformed_rules_are_refused() {
    for text in ["127.0.0.1/33", "::/129", "1.2.3", "localhost", "unix:/path", "1.2.3.4/-1", "ALL", "''"] {
        let said = refusal(&format!("deny {text};"));
        let text = text.trim_matches('\'');
        assert!(said.contains(&format!("invalid parameter \"{text}\" in ")), "{said}");
    }
    assert!(refusal("allow;").contains("invalid number of arguments in \"allow\" directive"));
    assert!(refusal("satisfy some;").contains("invalid value \"some\""));
}
