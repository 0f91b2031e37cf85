//! What clients can make the process hold, and that it comes back.

use std::collections::BTreeMap;

use tw_testkit::{Client, Server, wait};

use crate::{get, server};

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(next).flat_map(u64::to_le_bytes).take(len).collect()
}

/// A sample of the metrics.
fn metric(server: &Server, name: &str) -> u64 {
    let text = get(server, "/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name}: {text}")).trim().parse().unwrap()
}

/// A client that asks for a file and reads the head of the answer only, and the coding it gets.
fn slow_reader(server: &Server, accept: &str) -> (Client, String) {
    let mut client = server.connect().unwrap();
    client.send(format!("GET /a.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n")).unwrap();
    let head = client.read_head().unwrap();
    (client, head.field("Content-Encoding").unwrap_or("none").to_owned())
}

#[test]
fn slow_readers_get_cheaper_codings_when_memory_is_in_use() {
    const MAX: u64 = 24 << 20;
    let conf = format!(
        "compression_memory {MAX}; http {{ brotli on; zstd on; gzip on;
         server {{ listen 127.0.0.1:{{port}} sndbuf=8k; root html; location /metrics {{ metrics; }} }} }}"
    );
    let server = server().file("html/a.html", noise(1 << 20)).start(&conf).unwrap();
    let used = || metric(&server, "tailwater_encoder_memory_bytes{state=\"used\"}");
    assert_eq!(used(), 0);
    let mut codings = BTreeMap::<_, u64>::new();
    let mut clients = Vec::new();
    for _ in 0..60 {
        let (client, coding) = slow_reader(&server, "gzip, br, zstd");
        clients.push(client);
        *codings.entry(coding).or_default() += 1;
        let used = used();
        assert!(used <= MAX, "{used} with {codings:?}");
    }
    for coding in ["br", "zstd", "gzip", "none"] {
        assert!(codings.contains_key(coding), "{codings:?}");
    }
    let refused = metric(&server, "tailwater_encoder_memory_refusals_total{coding=\"br\"}");
    assert_eq!(refused, 60 - codings["br"]);
    // What is made in one piece needs no memory of those who wait.
    assert_eq!(slow_reader(&server, "br").1, "none");
    std::fs::write(server.prefix().join("html/a.html"), noise(100_000)).unwrap();
    assert_eq!(slow_reader(&server, "br").1, "br");
    drop(clients);
    assert!(wait::until(wait::PATIENCE, || used() == 0), "{}", used());
}
