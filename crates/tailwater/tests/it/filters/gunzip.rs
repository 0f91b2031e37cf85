//! `gunzip`: decompression of responses.

use std::time::Duration;

use tw_testkit::Server;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush};

use crate::support::{get, request, server, start_server};

/// `bytes` packed with gzip.
fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut config = DeflateConfig::new(6);
    config.window_bits = 31;
    let mut out = vec![0; bytes.len() + 1000];
    let mut deflate = Deflate::new_with_config(config);
    deflate.compress(bytes, &mut out, DeflateFlush::Finish).unwrap();
    out.truncate(deflate.total_out() as usize);
    out
}

fn text(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'A' + (state >> 27) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A server with these files as `NAME.gz`, which it unpacks.
fn serving(files: &[(&str, &[u8])]) -> Server {
    let builder = files
        .iter()
        .fold(server(), |builder, (name, content)| builder.file(format!("html/{name}.gz"), content));
    start_server(builder.file("html/plain", "plain"), "gzip_static always; gunzip on; gzip_vary on; etag on;")
}

#[test]
fn gzip_is_unpacked_for_clients_that_do_not_accept_it() {
    let large = text(700_000);
    let two = [packed(b"one, "), packed(b"two")].concat();
    let many = packed(b"x").repeat(3000);
    let nothing = packed(b"").repeat(3000);
    let server = serving(&[
        ("a", &packed(b"hello")),
        ("empty", &packed(b"")),
        ("large", &packed(&large)),
        ("two", &two),
        ("many", &many),
        ("nothing", &nothing),
    ]);
    for (target, expected) in [
        ("/a", &b"hello"[..]),
        ("/empty", b""),
        ("/large", &large),
        ("/two", b"one, two"),
        ("/many", &b"x".repeat(3000)),
        ("/nothing", b""),
        ("/plain", b"plain"),
    ] {
        for _ in 0..2 {
            let response = get(&server, target);
            assert_eq!((response.status, response.field("Content-Encoding")), (200, None), "{target}");
            assert!(response.body == expected, "{target}: {} bytes", response.body.len());
        }
    }
    let response = get(&server, "/a");
    assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
    assert_eq!((response.field("Accept-Ranges"), response.field("Content-Length")), (None, None));
    assert!(response.field("ETag").unwrap().starts_with("W/\""));
    let part = request(&server, "GET /a", &["Range: bytes=1-2"]);
    assert_eq!((part.status, part.text().as_str()), (200, "hello"));
    let head = request(&server, "HEAD /a", &[]);
    assert_eq!((head.field("Content-Encoding"), head.field("Vary")), (None, Some("Accept-Encoding")));

    let response = request(&server, "GET /a", &["Accept-Encoding: gzip"]);
    assert_eq!((response.field("Content-Encoding"), &*response.body), (Some("gzip"), &*packed(b"hello")));
    assert_eq!(get(&server, "/plain").field("Vary"), None);
}

#[test]
fn damaged_gzip_ends_the_response_at_the_damage() {
    let whole = packed(&text(300_000));
    let mut wrong_sum = whole.clone();
    let at = wrong_sum.len() - 8;
    wrong_sum[at] ^= 1;
    let mut wrong_bits = whole.clone();
    let half = wrong_bits.len() / 2;
    wrong_bits[half..half + 100].fill(0xff);
    let garbage = [&packed(b"hello")[..], b"garbage behind the end"].concat();
    let server = serving(&[
        ("none", b""),
        ("text", b"this is not packed at all"),
        ("head", &whole[..5]),
        ("cut", &whole[..whole.len() / 2]),
        ("end", &whole[..whole.len() - 1]),
        ("sum", &wrong_sum),
        ("bits", &wrong_bits),
        ("garbage", &garbage),
    ]);
    for (target, said) in [
        ("/text", "inflate() failed: 4, -3 while sending response to client"),
        ("/head", "inflate() returned -5 on response end while sending response to client"),
        ("/cut", "inflate() returned -5 on response end"),
        ("/end", "inflate() returned -5 on response end"),
        ("/sum", "inflate() failed: 4, -3"),
        ("/bits", "inflate() failed: 4, -3"),
        ("/garbage", "inflate() failed: 4, -3"),
        ("/none", "inflate() returned -5 on response end"),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        let bytes = client.read_until_close().unwrap_or_default();
        assert!(!bytes.ends_with(b"0\r\n\r\n"), "{target} seems whole");
        let log = server.wait_error_log(&format!("request: \"GET {target} HTTP/1.1\"")).unwrap();
        let line = log.lines().find(|line| line.contains(&format!("\"GET {target} "))).unwrap();
        assert!(line.contains("[error]") && line.contains(said), "{line}");
    }
    assert_eq!(get(&server, "/plain").text(), "plain");
}

#[test]
fn decompression_bomb_uses_little_memory() {
    // 200 MB of nothing in 200 KB, and that once more.
    let bomb = packed(&vec![0; 200 << 20]);
    assert!(bomb.len() < 300_000);
    let server = serving(&[("bomb", &bomb)]);
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    get(&server, "/plain");
    let before = memory();
    let mut clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = server.connect().unwrap().timeout(Duration::from_secs(60));
            client.send("GET /bomb HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client.read_head().unwrap();
            client
        })
        .collect();
    // While the clients do not read, nothing more is decompressed, and others are served.
    assert_eq!(get(&server, "/plain").text(), "plain");
    let mut first = clients.remove(0);
    assert_eq!(first.read_bytes(20 << 20).unwrap().len(), 20 << 20);
    let grown = memory() - before;
    assert!(grown < 16 << 10, "grew by {grown} KiB");
}
