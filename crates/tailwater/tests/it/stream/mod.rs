//! `stream`: sessions over TCP and UDP, their phases, and the proxy.

mod access;
mod api;
mod bad_datagrams;
mod bad_peers;
mod configuration;
mod explain;
mod groups;
mod health_check;
mod known_configurations;
mod long_sessions;
mod metrics;
mod preread;
mod proxy;
mod real_clients;
mod relay;
mod reload;
mod session_handover;
mod short_sessions;
mod tls;
mod transparent;
mod udp;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use tw_testkit::{Client, Server};

use crate::support::server;

/// Starts the server of a test in a `stream` block with this content.
fn start(stream: &str) -> Server {
    server().start(&format!("stream {{ {stream} }}")).unwrap()
}

/// Upstream server that serves each connection on a thread of its own.
fn upstream(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    addr
}

/// Sends back what comes until the client closes its side, and closes then.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Text that a session gets which sends nothing.
fn text(addr: SocketAddr) -> String {
    let mut client = Client::connect(addr).unwrap();
    String::from_utf8_lossy(&client.read_until_close().unwrap()).into_owned()
}
