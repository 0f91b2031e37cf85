//! Configurations as well-known programs write them: panels with a file for each forwarded port, and caches that pass TLS on by name.

use std::net::{SocketAddr, UdpSocket};

use rustls::ALL_VERSIONS;
use tw_testkit::dns::DnsServer;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, wait};

use super::{echo, upstream};
use crate::support::server;

/// Upstream server that sends each datagram back.
fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    addr
}

/// Nginx Proxy Manager: `stream` consists of files, some of which may be missing, and one forwarded port is a server of TCP, with or
/// without TLS, and one of UDP.
#[test]
fn forwarded_ports_of_a_panel() {
    let authority = Authority::new();
    let tcp = upstream(echo);
    let udp = udp_echo();
    let server = server()
        .certificate("npm-1", &authority.certify(&["localhost"]))
        .file("conf/modules/none.txt", "")
        .file("conf/ssl-cache-stream.inc", "ssl_session_cache shared:of_stream:1m; ssl_session_timeout 10m;")
        .file(
            "conf/ssl-ciphers.inc",
            "ssl_protocols TLSv1.2 TLSv1.3; ssl_prefer_server_ciphers off;
             ssl_ciphers 'ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305';",
        )
        .file("conf/streams/9.disabled", "this is not read")
        .start(&format!(
            "worker_processes auto; pcre_jit on; include modules/*.conf;
             http {{ include custom/http[.]conf; server {{ listen 127.0.0.1:{{port}}; return 200 page; }} }}
             stream {{
                 include passthrough/hosts[.]conf;
                 include streams/*.conf;
                 # One file for each port.
                 server {{
                     listen 0.0.0.0:{{port1}} ssl;
                     listen [::]:{{port1}} ssl;
                     include ssl-ciphers.inc;
                     include ssl-cache-stream.inc;
                     ssl_certificate npm-1.crt;
                     ssl_certificate_key npm-1.key;
                     proxy_pass {tcp};
                     include custom/server_stream[.]conf;
                     include custom/server_stream_tcp[.]conf;
                 }}
                 server {{
                     listen 0.0.0.0:{{port1}} udp reuseport;
                     listen [::]:{{port1}} udp reuseport;
                     proxy_pass {udp};
                     include custom/server_stream[.]conf;
                     include custom/server_stream_udp[.]conf;
                 }}
                 server {{
                     listen {{port2}};
                     listen [::]:{{port2}};
                     proxy_pass localhost:{};
                 }}
                 include custom/stream[.]conf;
             }}
             include custom/root[.]conf;",
            tcp.port()
        ))
        .unwrap();
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "page");
    let mut client =
        Client::connect_tls(server.addr_of(1), &authority.client(ALL_VERSIONS), "localhost").unwrap();
    client.send("secured").unwrap();
    assert_eq!(client.read_bytes(7).unwrap(), b"secured");
    for host in ["127.0.0.1", "[::1]"] {
        let at =
            |index| -> SocketAddr { format!("{host}:{}", server.addr_of(index).port()).parse().unwrap() };
        let socket = UdpSocket::bind(format!("{host}:0")).unwrap();
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        socket.send_to(b"datagram", at(1)).unwrap();
        let mut buffer = [0; 100];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (&b"datagram"[..], at(1)));
        let mut client = Client::connect(at(2)).unwrap();
        client.send("plain").unwrap();
        assert_eq!(client.read_bytes(5).unwrap(), b"plain");
    }
}

/// LanCache: TLS goes to wherever its server name resolves to, with a format, a log and a resolver of its own.
#[test]
fn tls_of_a_cache_is_passed_on_by_name() {
    let authority = Authority::new();
    let resolver = DnsServer::start(|query, out| out.send(query.address(60, [127, 0, 0, 1])));
    let server = server()
        .certificate("one", &authority.certify(&["cdn.example"]))
        .file(
            "conf/stream.d/format.conf",
            "log_format short '$remote_addr [$time_local] $protocol $status $ssl_preread_server_name $bytes_sent $session_time';",
        )
        .start(&format!(
            "events {{ worker_connections 4096; multi_accept on; use epoll; }}
             stream {{
                 include stream.d/*.conf;
                 server {{
                     listen {{port}} reuseport;
                     listen [::]:{{port}} reuseport;
                     resolver {} ipv6=off;
                     proxy_pass $ssl_preread_server_name:{{port1}};
                     ssl_preread on;
                     access_log logs/names.log short;
                     error_log logs/stream-error.log;
                 }}
                 server {{ listen 127.0.0.1:{{port1}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                           return 'content of $ssl_server_name'; }}
             }}",
            resolver.addr()
        ))
        .unwrap();
    let config = authority.client(ALL_VERSIONS);
    for host in ["127.0.0.1", "[::1]"] {
        let addr = format!("{host}:{}", server.addr().port()).parse().unwrap();
        let mut client = Client::connect_tls(addr, &config, "cdn.example").unwrap();
        assert_eq!(client.read_until_close().unwrap(), b"content of cdn.example");
    }
    let lines = server.log("logs/names.log", 2).unwrap();
    assert!(lines.iter().all(|line| line.contains(" TCP 200 cdn.example ")), "{lines:?}");
    // Bytes without a name lead nowhere.
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    let lines = server.log("logs/names.log", 3).unwrap();
    assert!(lines[2].contains(" TCP 500 "), "{lines:?}");
}
