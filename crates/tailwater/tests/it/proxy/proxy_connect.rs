//! `proxy_connect`: tunnels for the CONNECT requests of a server, whatever its locations are.

use tw_testkit::Server;
use tw_testkit::origin::origin;

use super::connect_tunnel::{connect, echo_origin, status};
use crate::support::{raw, server, start};

fn get(server: &Server, host: &str) -> String {
    raw(server, format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

#[test]
fn connect_enters_no_location() {
    let addr = echo_origin();
    let server = start(
        server(),
        &format!(
            "log_format t '$connect_host $connect_port $connect_addr $proxy_connect_connect_time $status';
             access_log logs/access.log t;
             server {{ listen 127.0.0.1:{{port}}; server_name {}; proxy_connect; proxy_connect_allow {};
                 location / {{ return 403 locked; }} location = / {{ proxy_pass http://{addr}; }} }}",
            addr.ip(),
            addr.port()
        ),
    );
    let (mut client, head) = connect(&server, &addr.to_string(), "one\n");
    assert_eq!((head.status, head.field("Content-Length")), (200, None));
    assert_eq!(client.read_bytes(5).unwrap(), b"<one>");
    client.send("two\n").unwrap();
    assert_eq!(client.read_bytes(5).unwrap(), b"<two>");
    client.finish_sending().unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"bye");
    let lines = server.access_log(1).unwrap();
    let expected = format!("{} {} {addr} 0.0", addr.ip(), addr.port());
    assert!(lines[0].starts_with(&expected) && lines[0].ends_with(" 200"), "{}", lines[0]);
    let page = raw(&server, format!("GET /x HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", addr.ip()));
    assert!(page.starts_with("HTTP/1.1 403 ") && page.contains("locked"), "{page}");
    assert_eq!(server.access_log(2).unwrap()[1], "- - - - 403");
}

#[test]
fn server_level_rules_hold() {
    let addr = echo_origin();
    let ip = addr.ip();
    let port = addr.port();
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info;
             server {{ listen 127.0.0.1:{{port}}; server_name default.test; proxy_connect; }}
             server {{ listen 127.0.0.1:{{port}}; server_name denied.test; proxy_connect; proxy_connect_allow all;
                 proxy_connect_address {ip}:{port}; deny all; location / {{ allow all; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name returned.test; proxy_connect; proxy_connect_allow 2 3;
                 proxy_connect_address {ip}:{port}; if ($request_port = 3) {{ return 404; }}
                 error_page 403 /missing; location /missing {{ return 410; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name range.test; proxy_connect;
                 proxy_connect_allow 80 1000-2000; proxy_connect_address {ip}:{port}; location / {{ return 204; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name unix closed.test; proxy_connect;
                 proxy_connect_allow all; }}
             server {{ listen 127.0.0.1:{{port}}; server_name checked.test; proxy_connect; proxy_connect_allow all;
                 proxy_connect_address {ip}:{port}; tunnel_allow_upstream 0; }}
             server {{ listen 127.0.0.1:{{port}}; server_name without.test; proxy_connect_allow all; }}"
        ),
    );
    for (to, expected) in [
        ("default.test:22", 403),
        ("denied.test:443", 403),
        ("returned.test:1", 410),
        ("returned.test:2", 200),
        ("returned.test:3", 404),
        ("range.test:80", 200),
        ("range.test:1000", 200),
        ("range.test:2000", 200),
        ("range.test:2001", 403),
        ("range.test:443", 403),
        ("unix:80", 500),
        ("unix:0", 500),
        ("checked.test:443", 403),
        ("without.test:443", 405),
    ] {
        assert_eq!(status(&server, to), expected, "{to}");
    }
    server.wait_error_log("access to port 22 forbidden by \"proxy_connect_allow\"").unwrap();
    assert!(get(&server, "range.test").starts_with("HTTP/1.1 204 "));
}

#[test]
fn address_depends_on_the_request() {
    let addr = echo_origin();
    let ip = addr.ip();
    let port = addr.port();
    let server = start(
        server(),
        &format!(
            "map $connect_host $to {{ a.test {addr}; b.test {ip}; c.test off; d.test unix:x; default '$connect_addr'; }}
             upstream group {{ server 127.0.0.1:1; }}
             server {{ listen 127.0.0.1:{{port}}; proxy_connect; proxy_connect_allow all; proxy_connect_address $to; }}
             server {{ listen 127.0.0.1:{{port}}; server_name fixed.test; proxy_connect; proxy_connect_allow all;
                 proxy_connect_address {ip}; }}
             server {{ listen 127.0.0.1:{{port}}; server_name group; proxy_connect; proxy_connect_allow all;
                 proxy_connect_address {addr}; }}"
        ),
    );
    for (to, expected) in [
        ("a.test:1".to_owned(), 200),
        (format!("b.test:{port}"), 200),
        (format!("fixed.test:{port}"), 200),
        ("group:1".to_owned(), 200),
        (addr.to_string(), 200),
        ("d.test:1".to_owned(), 500),
    ] {
        assert_eq!(status(&server, &to), expected, "{to}");
    }
}

#[test]
fn response_has_reason_and_fields() {
    let addr = echo_origin();
    let server = start(
        server(),
        "server { listen 127.0.0.1:{port}; proxy_connect; proxy_connect_allow all;
                 proxy_connect_response \"HTTP/1.1 200 Connection Established\\r\\nProxy-agent: x\\r\\nX-To: $connect_addr\\r\\nX-No: $arg_a\\r\\n\\r\\n\"; }",
    );
    let (mut client, head) = connect(&server, &addr.to_string(), "one\n");
    let fields = ["Proxy-agent", "X-To", "X-No"].map(|name| head.field(name));
    assert!(head.head.starts_with("HTTP/1.1 200 Connection Established\r\n"), "{}", head.head);
    assert_eq!(fields, [Some("x"), Some(&*addr.to_string()), None]);
    assert_eq!(client.read_bytes(5).unwrap(), b"<one>");
    // A refusal is none.
    assert_eq!(connect(&server, "127.0.0.1:1", "").1.field("Proxy-agent"), None);
}

#[test]
fn data_timeout_ends_an_idle_tunnel() {
    let addr = origin(|mut conn| {
        let _ = std::io::Read::read_to_end(&mut conn.reader, &mut Vec::new());
    });
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info;
             server {{ listen 127.0.0.1:{{port}}; server_name a; proxy_connect; proxy_connect_allow all;
                 proxy_connect_address {addr}; proxy_connect_data_timeout 100ms; }}
             server {{ listen 127.0.0.1:{{port}}; server_name b; proxy_connect; proxy_connect_allow all;
                 proxy_connect_address {addr}; set $proxy_connect_data_timeout 100ms;
                 set $proxy_connect_connect_timeout no; add_header X-Timeout $proxy_connect_read_timeout; }}"
        ),
    );
    for name in ["a", "b"] {
        let (mut client, head) = connect(&server, &format!("{name}:1"), "");
        assert_eq!(head.field("X-Timeout"), (name == "b").then_some("100ms"));
        client.read_until_close().unwrap();
    }
    server.wait_error_log("invalid timeout of a tunnel \"no\"").unwrap();
}

#[test]
fn configuration_errors_and_warnings_name_the_cause() {
    let open = "opens tunnels to whatever this machine can reach";
    for (settings, expected) in [
        ("proxy_connect;", Some(open)),
        ("proxy_connect; proxy_connect_address $host;", Some(open)),
        ("proxy_connect; proxy_connect_address off;", Some(open)),
        ("proxy_connect; tunnel_allow_upstream $arg_a;", None),
        ("proxy_connect; proxy_connect_address 127.0.0.1; proxy_connect_send_timeout 1s;", None),
        ("proxy_connect; proxy_connect;", Some("\"proxy_connect\" directive is duplicate")),
        ("proxy_connect_allow 443 http;", Some("invalid value \"http\"")),
        ("proxy_connect; proxy_connect_address 127.0.0.1:x;", Some("proxy_connect_address")),
        ("proxy_connect_read_timeout 1s; proxy_connect_data_timeout 1s;", Some("is duplicate")),
        ("proxy_connect_response 'HTTP/1.1 403 No\\r\\n\\r\\n';", Some("must begin with \"HTTP/1.1 200\"")),
        ("location / { proxy_connect; }", Some("not allowed here")),
    ] {
        let conf = format!("http {{ server {{ listen 127.0.0.1:{{port}}; {settings} }} }}");
        let output = server().arg("-t").run(&conf).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        match expected {
            Some(part) => assert!(said.contains(part), "{settings}: {said}"),
            None => assert!(!said.contains(open) && output.status.success(), "{settings}: {said}"),
        }
    }
}
