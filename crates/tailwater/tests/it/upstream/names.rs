//! Names of `upstream` blocks, and invalid addresses.

use tw_testkit::dns::DnsServer;

use crate::support::{get, refusal, server, start};

#[test]
fn upstream_names_are_case_insensitive() {
    // The name server never answers, so a name that is looked up is a failure.
    let dns = DnsServer::start(|_, _| {});
    let server = start(
        server(),
        &format!(
            "resolver {}; resolver_timeout 1s;
             upstream Mixed {{ server 127.0.0.1:{{port}}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location = /origin {{ return 200 me; }}
                 location = /lower {{ proxy_pass http://mixed/origin; }}
                 location = /upper {{ proxy_pass http://MIXED/origin; }}
                 location = /written {{ proxy_pass http://Mixed/origin; }}
                 location = /variable {{ proxy_pass http://$arg_to/origin; }}
                 location = /fastcgi {{ fastcgi_pass mIXED; }}
                 location = /fastcgi_variable {{ fastcgi_pass $arg_to; }}
                 location = /grpc {{ grpc_pass grpc://mixed; }}
                 location /api {{ api; }} }}",
            dns.addr()
        ),
    );
    for target in
        ["/lower", "/upper", "/written", "/variable?to=mixed", "/variable?to=Mixed", "/variable?to=MIXED"]
    {
        assert_eq!(get(&server, target).text(), "me", "{target}");
    }
    // The server speaks neither protocol, but it is asked.
    for target in ["/fastcgi", "/fastcgi_variable?to=mixed", "/grpc"] {
        assert_eq!(get(&server, target).status, 502, "{target}");
    }
    server.wait_error_log("upstream: \"fastcgi://127.0.0.1:").unwrap();
    assert!(dns.queries().is_empty());
    assert!(get(&server, "/api/http/upstreams").text().starts_with("{\"Mixed\":"));
    assert_eq!(get(&server, "/api/http/upstreams/mixed").status, 200);
    let said = refusal("} upstream a { server 127.0.0.1:1; } upstream A { server 127.0.0.1:1; } server {");
    assert!(said.contains("duplicate upstream \"A\""), "{said}");
}

/// One location for each gateway, all with the upstream `to`.
fn gateways(to: &str) -> Vec<String> {
    let mut all: Vec<String> = ["proxy_pass http://", "proxy_pass https://", "fastcgi_pass ", "uwsgi_pass "]
        .iter()
        .chain(&["uwsgi_pass suwsgi://", "scgi_pass ", "grpc_pass ", "grpc_pass grpcs://"])
        .map(|pass| format!("location / {{ {pass}{to}; }}"))
        .collect();
    all.push(format!("location / {{ set $memcached_key k; memcached_pass {to}; }}"));
    all.push(format!("tunnel_pass {to};"));
    all
}

#[test]
fn port_after_an_upstream_name_is_refused_by_every_gateway() {
    for (name, port) in [("u", 8080), ("U", 80)] {
        let expected = format!("upstream \"{name}\" may not have port {port}");
        for location in gateways(&format!("{name}:{port}")) {
            // The group stands behind the location that names it.
            let said = refusal(&format!("{location} }} upstream u {{ server 127.0.0.1:1;"));
            assert!(said.contains(&expected), "{location}: {said}");
        }
    }
    let said = refusal("location / { proxy_pass http://u:x; } } upstream u { server 127.0.0.1:1;");
    assert!(said.contains("invalid port in upstream \"u:x\""), "{said}");
}

#[test]
fn invalid_addresses_are_refused_by_every_gateway() {
    for (address, expected) in [
        ("::1:80", "invalid port in upstream \"::1:80\""),
        ("::1", "invalid port in upstream \"::1\""),
        ("127.0.0.1:0", "invalid port in upstream \"127.0.0.1:0\""),
        ("127.0.0.1:", "invalid port in upstream \"127.0.0.1:\""),
        ("[::1", "invalid host in upstream \"[::1\""),
        (":80", "no host in upstream \":80\""),
    ] {
        for location in gateways(address) {
            let said = refusal(&location);
            assert!(said.contains(expected), "{location}: {said}");
        }
        let said = refusal(&format!("}} upstream x {{ server {address};"));
        assert!(said.contains(expected), "server {address}: {said}");
    }
    let said = refusal("location / { proxy_pass http://::1:80/; }");
    assert!(said.contains("invalid port in upstream \"::1:80\" in "), "{said}");
}

#[test]
fn upstream_without_servers_is_refused() {
    for (block, expected) in [
        ("upstream e {", "no servers are inside upstream \"e\" in "),
        ("upstream e { keepalive 3;", "no servers are inside upstream \"e\" in "),
        ("upstream e { server 127.0.0.1:1 backup;", "no servers in upstream \"e\" in "),
    ] {
        let said = refusal(&format!("location / {{ proxy_pass http://e; }} }} {block}"));
        assert!(said.contains(expected), "{block}: {said}");
    }
}

#[test]
fn http_and_https_of_one_host_are_separate_groups() {
    let server = start(
        server(),
        "log_format up '$upstream_addr'; access_log logs/access.log up; proxy_read_timeout 1s;
         server { listen 127.0.0.1:{port};
             location = /http { proxy_pass http://127.0.0.9; }
             location = /https { proxy_pass https://127.0.0.9; } }",
    );
    for (nth, (target, expected)) in
        [("/http", "127.0.0.9:80"), ("/https", "127.0.0.9:443")].into_iter().enumerate()
    {
        get(&server, target);
        assert_eq!(server.access_log(nth + 1).unwrap()[nth], expected, "{target}");
    }
}
