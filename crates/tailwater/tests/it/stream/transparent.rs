//! `proxy_bind … transparent`: upstream servers see an address that need not be one of this machine.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};

use tw_testkit::{Client, Lacks, leave_out, wait};

use super::{start, text, upstream};

/// Address of documents (RFC 5737), which no machine has.
const NOBODY: &str = "192.0.2.7";

fn can_bind_transparently() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        leave_out(Lacks::Run, "only root may use addresses of others");
    }
    is_root
}

/// Upstream server that sends the address of its client.
fn address_teller() -> SocketAddr {
    upstream(|mut stream| {
        let peer = stream.peer_addr().unwrap().ip();
        stream.write_all(peer.to_string().as_bytes()).unwrap();
    })
}

#[test]
fn connection_comes_from_the_address_of_the_client() {
    if !can_bind_transparently() {
        return;
    }
    let addr = address_teller();
    let server = start(&format!(
        "set_real_ip_from 127.0.0.1; proxy_connect_timeout 300ms;
         server {{ listen 127.0.0.1:{{port}} proxy_protocol; proxy_bind $remote_addr transparent; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_bind {NOBODY} transparent; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port2}}; proxy_bind {NOBODY}; proxy_pass {addr}; }}"
    ));
    let mut session = server.connect().unwrap();
    session.send("PROXY TCP4 127.0.0.9 127.0.0.1 5 6\r\n").unwrap();
    assert_eq!(session.read_until_close().unwrap(), b"127.0.0.9");
    // The answer to another machine does not come back here: that the address can be used is all that can be seen.
    assert_eq!(text(server.addr_of(1)), "");
    server
        .wait_error_log("upstream timed out (110: Connection timed out) while connecting to upstream")
        .unwrap();
    assert_eq!(text(server.addr_of(2)), "");
    server.wait_error_log("(99: Cannot assign requested address) while connecting to upstream").unwrap();
}

#[test]
fn datagrams_come_from_the_address_of_the_client() {
    if !can_bind_transparently() {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    let addr = socket.local_addr().unwrap();
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}} udp; proxy_bind $remote_addr transparent; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_bind {NOBODY} transparent; proxy_pass {addr}; proxy_responses 0; }}
         server {{ listen 127.0.0.1:{{port2}} udp; proxy_bind $remote_addr:$remote_port transparent; proxy_pass {addr}; }}"
    ));
    let receive = || {
        let mut buffer = [0; 16];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        (buffer[..len].to_vec(), from)
    };
    let client = UdpSocket::bind("127.0.0.9:0").unwrap();
    client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    client.send_to(b"local", server.addr()).unwrap();
    let (bytes, from) = receive();
    assert_eq!((&*bytes, from.ip().to_string()), (&b"local"[..], "127.0.0.9".to_owned()));
    socket.send_to(b"answer", from).unwrap();
    let mut buffer = [0; 16];
    let (len, from) = client.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&b"answer"[..], server.addr()));
    client.send_to(b"other", server.addr_of(1)).unwrap();
    let (bytes, from) = receive();
    assert_eq!((&*bytes, from.ip().to_string()), (&b"other"[..], NOBODY.to_owned()));
}

#[test]
fn connection_without_transparent_comes_from_the_bound_address() {
    let addr = address_teller();
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}}; proxy_bind 127.0.0.8; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_bind off; proxy_pass {addr}; }}"
    ));
    let addresses = [0, 1].map(|index| {
        let mut client = Client::connect(server.addr_of(index)).unwrap();
        String::from_utf8(client.read_until_close().unwrap()).unwrap()
    });
    assert_eq!(addresses, ["127.0.0.8", "127.0.0.1"]);
}
