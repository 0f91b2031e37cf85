//! Bytes in both directions: what arrives, and what ends a session.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::wait;

use super::{echo, start, upstream};

#[test]
fn bytes_are_relayed_in_both_directions() {
    let addr = upstream(echo);
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}"));
    let mut client = server.connect().unwrap();
    for text in ["one", "two", "three"] {
        client.send(text).unwrap();
        assert_eq!(client.read_bytes(text.len()).unwrap(), text.as_bytes());
    }
}

#[test]
fn large_transfer_arrives_unchanged() {
    const SIZE: usize = 32 << 20;
    let addr = upstream(echo);
    let server =
        start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; proxy_half_close on; }}"));
    let stream = TcpStream::connect(server.addr()).unwrap();
    let byte = |at: usize| (at % 251) as u8;
    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        let bytes: Vec<u8> = (0..SIZE).map(byte).collect();
        sender.write_all(&bytes).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::with_capacity(SIZE);
    (&stream).read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert_eq!(received.len(), SIZE);
    assert!(received.iter().enumerate().all(|(at, got)| *got == byte(at)));
}

#[test]
fn session_ends_when_the_server_closes() {
    let addr = upstream(|mut stream| stream.write_all(b"hello").unwrap());
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}"));
    assert_eq!(server.connect().unwrap().read_until_close().unwrap(), b"hello");
    server
        .wait_error_log("upstream disconnected, bytes from/to client:0/5, bytes from/to upstream:5/0")
        .unwrap();
}

/// Upstream that reports what came before the end of the client's side, and answers with a word then.
fn answering_at_the_end() -> (std::net::SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let (sender, receiver) = mpsc::channel();
    let addr = upstream(move |mut stream| {
        let mut came = Vec::new();
        let _ = stream.read_to_end(&mut came);
        sender.send(came).unwrap();
        let _ = stream.write_all(b"answer");
    });
    (addr, receiver)
}

#[test]
fn half_close_of_the_client_lets_the_server_answer() {
    let (addr, came) = answering_at_the_end();
    let server =
        start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; proxy_half_close on; }}"));
    let mut client = server.connect().unwrap();
    client.send("question").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"answer");
    assert_eq!(came.recv_timeout(wait::TIMEOUT).unwrap(), b"question");
}

#[test]
fn half_close_of_the_server_lets_the_client_go_on() {
    let (sender, came) = mpsc::channel();
    let addr = upstream(move |mut stream| {
        stream.write_all(b"greeting").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        sender.send(rest).unwrap();
    });
    let server =
        start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; proxy_half_close on; }}"));
    let mut client = server.connect().unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"greeting");
    client.send("farewell").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(came.recv_timeout(wait::TIMEOUT).unwrap(), b"farewell");
}

#[test]
fn without_half_close_the_end_of_the_client_ends_the_session() {
    let (addr, came) = answering_at_the_end();
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}"));
    let mut client = server.connect().unwrap();
    client.send("question").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    assert_eq!(came.recv_timeout(wait::TIMEOUT).unwrap(), b"question");
    server.wait_error_log("client disconnected, bytes from/to client:8/0").unwrap();
}

#[test]
fn idle_session_ends_after_proxy_timeout() {
    let addr = upstream(echo);
    let server =
        start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; proxy_timeout 300ms; }}"));
    let mut client = server.connect().unwrap();
    client.send("x").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"x");
    server
        .wait_error_log(
            "connection timed out (110: Connection timed out) while proxying connection, client: ",
        )
        .unwrap();
}

#[test]
fn download_rate_holds_the_server_back() {
    let addr = upstream(|mut stream| {
        let _ = stream.write_all(&[b'x'; 3000]);
    });
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; proxy_download_rate 1k; proxy_timeout 500ms; }}"
    ));
    let began = Instant::now();
    assert_eq!(server.connect().unwrap().read_until_close().unwrap().len(), 3000);
    // The first second's share is sent at once. The time that the rate limit delays does not count as idle.
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
}
