//! `ssl_preread` and `pass`: sessions whose TLS is not terminated, and connections that are handed over inside the process.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ALL_VERSIONS, ClientConfig, ClientConnection};
use tw_testkit::Client;
use tw_testkit::tls::Authority;

use super::{echo, start, text, upstream};
use crate::support::server;

/// The first message of a client for `name`.
fn hello(name: &str, alpn: &[&str]) -> Vec<u8> {
    let mut config = ClientConfig::clone(&Authority::new().client(ALL_VERSIONS));
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut bytes = Vec::new();
    ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes
}

const FACTS: &str = "return '[$ssl_preread_server_name] [$ssl_preread_protocol] [$ssl_preread_alpn_protocols]'; ssl_preread on;";

#[test]
fn variables_are_those_of_the_client_hello() {
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}}; {FACTS} }}"));
    let bytes = hello("one.example", &["h2", "http/1.1"]);
    for size in [1, 100, 10_000] {
        let mut client = server.connect().unwrap();
        client.send_split(bytes.chunks(size)).unwrap();
        assert_eq!(client.read_until_close().unwrap(), b"[one.example] [TLSv1.3] [h2,http/1.1]");
    }
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"[] [] []");
}

#[test]
fn server_name_of_the_hello_selects_the_server() {
    let addr = upstream(echo);
    let server = start(&format!(
        "ssl_preread on;
         server {{ listen 127.0.0.1:{{port}}; return default; }}
         server {{ listen 127.0.0.1:{{port}}; server_name one.example; return one; }}
         server {{ listen 127.0.0.1:{{port}}; server_name *.echo.example; proxy_pass {addr}; }}"
    ));
    let answer = |name: &str| {
        let mut client = server.connect().unwrap();
        client.send(hello(name, &[])).unwrap();
        String::from_utf8(client.read_until_close().unwrap()).unwrap()
    };
    assert_eq!(answer("one.example"), "one");
    assert_eq!(answer("two.example"), "default");
    let bytes = hello("a.echo.example", &[]);
    let mut client = server.connect().unwrap();
    client.send(&bytes).unwrap();
    assert_eq!(client.read_bytes(bytes.len()).unwrap(), bytes);
}

#[test]
fn hello_that_does_not_fit_or_come_ends_the_session() {
    let server = start(&format!(
        "log_format l $status; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}}; {FACTS} preread_buffer_size 100; preread_timeout 300ms; }}"
    ));
    let bytes = hello("one.example", &[]);
    let mut client = server.connect().unwrap();
    client.send(&bytes).unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    let mut client = server.connect().unwrap();
    client.send(&bytes[..50]).unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    assert_eq!(server.access_log(2).unwrap(), ["400", "200"]);
    server.wait_error_log("preread buffer full while prereading client data, client: ").unwrap();
}

#[test]
fn connections_are_passed_to_servers_of_both_protocols() {
    let authority = Authority::new();
    let server = server()
        .certificate("one", &authority.certify(&["one.example", "tls.example"]))
        .start(
            "http {
                 server { listen 127.0.0.1:{port2}; listen 127.0.0.1:{port3} ssl;
                     ssl_certificate one.crt; ssl_certificate_key one.key;
                     return 200 '$scheme $server_port $ssl_server_name'; }
             }
             stream {
                 ssl_preread on;
                 server { listen 127.0.0.1:{port}; pass 127.0.0.1:{port2}; }
                 server { listen 127.0.0.1:{port}; server_name one.example; pass 127.0.0.1:{port3}; }
                 server { listen 127.0.0.1:{port1}; pass 127.0.0.1:{port4}; ssl_preread off; }
                 server { listen 127.0.0.1:{port4}; return '$server_port $remote_addr'; ssl_preread off; }
                 server { listen 127.0.0.1:{port5} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                     pass 127.0.0.1:{port2}; ssl_preread off; }
             }",
        )
        .unwrap();
    let port = |index| server.addr_of(index).port();
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), format!("http {} ", port(2)));
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let secured = |index, name| {
        let config = authority.client(ALL_VERSIONS);
        let mut client = Client::connect_tls(server.addr_of(index), &config, name).unwrap();
        client.send(request).unwrap();
        client.read_response().unwrap().text()
    };
    assert_eq!(secured(0, "one.example"), format!("https {} one.example", port(3)));
    assert_eq!(secured(5, "tls.example"), format!("https {} tls.example", port(2)));
    assert_eq!(text(server.addr_of(1)), format!("{} 127.0.0.1", port(4)));
}

#[test]
fn passes_that_lead_nowhere_end_the_session() {
    let server = start(
        "server { listen 127.0.0.1:{port}; pass 127.0.0.1:9; }
         server { listen 127.0.0.1:{port1}; pass $server_addr:$server_port; }
         server { listen 127.0.0.1:{port2}; pass $server_addr; }",
    );
    (0..3).for_each(|index| assert_eq!(text(server.addr_of(index)), ""));
    server.wait_error_log("port not found for \"127.0.0.1:9\", client: ").unwrap();
    server.wait_error_log("stream pass cycle, client: ").unwrap();
    server.wait_error_log("no port in pass \"127.0.0.1\", client: ").unwrap();
}

#[test]
fn only_trusted_proxies_tell_the_address() {
    let server = start(
        "server { listen 127.0.0.1:{port} proxy_protocol; set_real_ip_from 127.0.0.0/8; deny 192.0.2.9; return '$remote_addr $realip_remote_addr'; }
         server { listen 127.0.0.1:{port1} proxy_protocol; set_real_ip_from 192.0.2.0/24; return '$remote_addr $realip_remote_addr'; }",
    );
    let answer = |index, from: &str| {
        let mut client = Client::connect(server.addr_of(index)).unwrap();
        client.send(format!("PROXY TCP4 {from} 192.0.2.2 1 2\r\n")).unwrap();
        String::from_utf8(client.read_until_close().unwrap_or_default()).unwrap()
    };
    assert_eq!(answer(0, "192.0.2.1"), "192.0.2.1 127.0.0.1");
    assert_eq!(answer(0, "192.0.2.9"), "");
    server.wait_error_log("access forbidden by rule, client: 192.0.2.9, server: ").unwrap();
    assert_eq!(answer(1, "192.0.2.1"), "127.0.0.1 127.0.0.1");
}

/// A CONNECT packet of MQTT 3.1.1 with this client identifier, and a user name if there is one.
fn mqtt_connect(client_id: &str, username: Option<&str>) -> Vec<u8> {
    let string = |text: &str| [&u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat();
    let flags = if username.is_some() { 0x82 } else { 2 };
    let fields = [string(client_id), username.map_or_else(Vec::new, string)].concat();
    let body = [&string("MQTT")[..], &[4, flags, 0, 60], &fields].concat();
    [&[0x10, u8::try_from(body.len()).unwrap()], &*body].concat()
}

#[test]
fn mqtt_packet_has_variables_and_gets_other_fields() {
    let addr = upstream(echo);
    let server = start(&format!(
        "mqtt_preread on;
         server {{ listen 127.0.0.1:{{port}}; return '[$mqtt_preread_clientid] [$mqtt_preread_username]'; }}
         server {{ listen 127.0.0.1:{{port1}}; mqtt on; mqtt_set_connect clientid x-$mqtt_preread_clientid;
                   mqtt_set_connect username user; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port2}}; mqtt on; mqtt_buffers 1 16; return x; }}
         server {{ listen 127.0.0.1:{{port3}}; mqtt_preread off; mqtt on; mqtt_buffers 1 16; return x; }}"
    ));
    let answer = |index, bytes: &[u8]| {
        let mut client = Client::connect(server.addr_of(index)).unwrap();
        // Bytes that are no packet are answered before all have come.
        let _ = client.send_split(bytes.chunks(3));
        String::from_utf8(client.read_until_close().unwrap_or_default()).unwrap()
    };
    assert_eq!(answer(0, &mqtt_connect("id", Some("name"))), "[id] [name]");
    assert_eq!(answer(0, b"GET / HTTP/1.1\r\n\r\n"), "[] []");
    let mut client = Client::connect(server.addr_of(1)).unwrap();
    client.send([mqtt_connect("id", None), b"more".to_vec()].concat()).unwrap();
    let expected = [mqtt_connect("x-id", Some("user")), b"more".to_vec()].concat();
    assert_eq!(client.read_bytes(expected.len()).unwrap(), expected);
    assert_eq!(answer(1, b"GET / HTTP/1.1\r\n\r\n"), "");
    server.wait_error_log("client sent no valid MQTT CONNECT packet, client: ").unwrap();
    assert_eq!(answer(2, &mqtt_connect("id", Some("name"))), "");
    server.wait_error_log("too large MQTT CONNECT packet, client: ").unwrap();
    assert_eq!(answer(3, &mqtt_connect("id", Some("name"))), "");
    server.wait_error_log("preread buffer full while prereading client data, client: ").unwrap();
}

#[test]
fn rewritten_mqtt_packet_has_a_limit() {
    let addr = upstream(echo);
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}}; mqtt on; mqtt_rewrite_buffer_size 64; mqtt_set_connect clientid $server_port-1;
                   mqtt_set_connect password $ssl_preread_server_name; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; mqtt on; mqtt_rewrite_buffer_size 24; mqtt_buffers 100 1k;
                   mqtt_set_connect username a-name-that-is-longer-than-the-buffer; proxy_pass {addr}; }}"
    ));
    let packet = mqtt_connect("id", Some("u"));
    let mut client = server.connect().unwrap();
    // The rest comes while the packet is rewritten.
    client.send([&packet[..], b"rest"].concat()).unwrap();
    let port = server.addr().port();
    let id = format!("{port}-1");
    let answer = client.read_bytes(packet.len() - 2 + id.len() + 2 + 4).unwrap();
    assert!(
        answer.ends_with(b"rest") && answer.windows(id.len()).any(|part| part == id.as_bytes()),
        "{answer:?}"
    );
    let mut client = Client::connect(server.addr_of(1)).unwrap();
    client.send(&packet).unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    server.wait_error_log("too large MQTT CONNECT packet with its new fields, client: ").unwrap();
}

#[test]
fn fingerprint_variables_are_those_of_the_client_hello() {
    let server = start(
        "server { listen 127.0.0.1:{port}; ssl_preread on;
         return '$ssl_preread_ja4 $ssl_preread_ja3 $ssl_preread_ja3_hash'; }",
    );
    // Version, random, session id, two cipher suites of which one is made up, no compression, a server name.
    let extensions = [&[0, 14, 0, 0, 0, 10, 0, 8, 0, 0, 5][..], b"a.b.c"].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 4, 0x1a, 0x1a, 0xc0, 0x2f], &[1, 0], &extensions].concat();
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    let mut client = server.connect().unwrap();
    client.send([&[22, 3, 1, 0, message.len() as u8][..], &message].concat()).unwrap();
    assert_eq!(
        String::from_utf8(client.read_until_close().unwrap()).unwrap(),
        "t12d010100_f06271c2b022_000000000000 771,49199,0,, 61cfdf1a447a978ff66f0880924eded7"
    );
}
