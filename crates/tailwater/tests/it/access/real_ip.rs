//! `set_real_ip_from`, `real_ip_header`, `real_ip_recursive`.

use crate::support::{page, refusal, request, server, start, start_server};

const ECHO: &str = "return 200 '$remote_addr|$remote_port|$realip_remote_addr';";

#[test]
fn address_is_taken_from_fields_of_trusted_proxies_only() {
    let server = start(
        server(),
        &format!(
            "set_real_ip_from 127.0.0.1/32; set_real_ip_from 192.0.2.0/24;
             server {{ listen 127.0.0.1:{{port}}; real_ip_header X-Forwarded-For;
                 location / {{ {ECHO} }} }}
             server {{ listen 127.0.0.1:{{port1}}; real_ip_header X-Forwarded-For; real_ip_recursive on;
                 location / {{ {ECHO} }} }}
             server {{ listen 127.0.0.1:{{port2}}; location / {{ {ECHO} }} }}
             server {{ listen 127.0.0.1:{{port3}}; real_ip_header My-Client; location / {{ {ECHO} }} }}
             server {{ listen 127.0.0.1:{{port4}}; set_real_ip_from 10.0.0.1; location / {{ {ECHO} }} }}"
        ),
    );
    let response_to = |index: usize, fields: &[&str]| {
        let mut client = tw_testkit::Client::connect(server.addr_of(index)).unwrap();
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        client.send(format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n")).unwrap();
        let own = format!("127.0.0.1|{}|127.0.0.1", client.local_addr().unwrap().port());
        let text = client.read_response().unwrap().text();
        if text == own { "own".to_owned() } else { text }
    };
    let long = format!("X-Forwarded-For: {}1.1.1.1", "x, ".repeat(1000));
    for (index, fields, expected) in [
        (0, &["X-Forwarded-For: 10.1.1.1, 192.0.2.9"][..], "192.0.2.9||127.0.0.1"),
        (0, &["X-Forwarded-For: 10.1.1.1", "X-Forwarded-For: 10.1.1.2:81"], "10.1.1.2|81|127.0.0.1"),
        (0, &["X-Forwarded-For: [2001:db8::1]:4433"], "2001:db8::1|4433|127.0.0.1"),
        (0, &["X-Forwarded-For: [2001:db8::1]"], "2001:db8::1||127.0.0.1"),
        (0, &["X-Forwarded-For: 2001:db8::1"], "2001:db8::1||127.0.0.1"),
        (0, &["X-Forwarded-For: 10.1.1.1,unknown"], "own"),
        (0, &["X-Forwarded-For:"], "own"),
        (0, &["X-Forwarded-For: , ,"], "own"),
        (0, &["X-Forwarded-For: 1.1.1.1:99999"], "own"),
        (0, &["X-Forwarded-For: [::1"], "own"),
        (0, &[&long], "1.1.1.1||127.0.0.1"),
        (0, &["X-Real-IP: 10.1.1.1"], "own"),
        (1, &["X-Forwarded-For: 10.1.1.1:5, 192.0.2.9"], "10.1.1.1|5|127.0.0.1"),
        (1, &["X-Forwarded-For: 9.9.9.9, 10.1.1.1", "X-Forwarded-For: 192.0.2.9"], "10.1.1.1||127.0.0.1"),
        (1, &["X-Forwarded-For: 192.0.2.8, 192.0.2.9"], "192.0.2.8||127.0.0.1"),
        (1, &["X-Forwarded-For: bad, 192.0.2.9"], "192.0.2.9||127.0.0.1"),
        (1, &[&long], "1.1.1.1||127.0.0.1"),
        (2, &["X-Real-IP: 10.1.1.1", "X-Real-IP: 10.1.1.2"], "10.1.1.1||127.0.0.1"),
        (2, &["X-Forwarded-For: 10.1.1.1"], "own"),
        (3, &["my-client: 10.1.1.1"], "10.1.1.1||127.0.0.1"),
        (4, &["X-Real-IP: 10.1.1.1"], "own"),
        (4, &[], "own"),
    ] {
        assert_eq!(response_to(index, fields), expected, "{index} {fields:?}");
    }
}

#[test]
fn real_address_is_used_in_access_rules_logs_and_internal_redirects() {
    let server = start_server(
        server().file("html/in.html", "in"),
        "set_real_ip_from localhost; allow 10.1.1.1; deny all; error_log logs/error.log info;
         error_page 404 /found; location /found { set_real_ip_from 127.0.0.1; return 200 $remote_addr; }",
    );
    assert_eq!(request(&server, "GET /in.html", &[]).status, 403);
    assert_eq!(request(&server, "GET /in.html", &["X-Real-IP: 10.1.1.1"]).text(), "in");
    assert_eq!(request(&server, "GET /none", &["X-Real-IP: 10.1.1.1"]).text(), "10.1.1.1");
    assert_eq!(request(&server, "GET /in.html", &["X-Real-IP: 10.1.1.2"]).status, 403);
    server.wait_error_log("access forbidden by rule, client: 10.1.1.2, ").unwrap();
    // The next request of a connection has its own client.
    let mut client = server.connect().unwrap();
    client.send("GET /in.html HTTP/1.1\r\nHost: a\r\nX-Real-IP: 10.1.1.1\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 200);
    client.send("GET /in.html HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 403);
}

#[test]
fn location_may_trust_other_proxies() {
    let server = start_server(
        server(),
        "location /trusts { set_real_ip_from 127.0.0.1; try_files /none @said; } location / { try_files /none @said; }
         location @said { return 200 '$remote_addr'; }",
    );
    assert_eq!(request(&server, "GET /trusts", &["X-Real-IP: 10.1.1.1"]).text(), "10.1.1.1");
    assert_eq!(request(&server, "GET /", &["X-Real-IP: 10.1.1.1"]).text(), "127.0.0.1");
}

#[test]
fn address_is_taken_from_the_proxy_protocol() {
    let server = start(
        server(),
        "server { listen 127.0.0.1:{port}; location / { return 200 plain; } }
         server { listen 127.0.0.1:{port1} proxy_protocol; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
             location / { return 200 $remote_addr:$remote_port; } }",
    );
    assert_eq!(page(&server, "/"), (200, "plain".into()));
    for (head, expected) in
        [("TCP4 10.1.1.1 10.1.1.2 123 80", "10.1.1.1:123"), ("TCP6 2001:db8::1 ::1 9 80", "2001:db8::1:9")]
    {
        let mut client = tw_testkit::Client::connect(server.addr_of(1)).unwrap();
        client.send(format!("PROXY {head}\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        assert_eq!(client.read_response().unwrap().text(), expected);
    }
}

#[test]
fn malformed_directives_are_refused() {
    for text in ["127.0.0.1/33", "''", "not-a-host.invalid"] {
        let said = refusal(&format!("set_real_ip_from {text};"));
        let text = text.trim_matches('\'');
        assert!(said.contains(&format!("host not found in set_real_ip_from \"{text}\" in ")), "{said}");
    }
    assert!(
        refusal("real_ip_header a; real_ip_header b;").contains("\"real_ip_header\" directive is duplicate")
    );
    let said = refusal("set_real_ip_from 10.0.0.1/8; set_real_ip_from 1.1.1.1/99;");
    assert!(said.contains("low address bits of 10.0.0.1/8 are meaningless in "), "{said}");
}
