//! Priorities of RFC 9218: order of data when several streams of a connection have some.

use crate::support::http3::{Http3Client, Http3Server, start_http3_with};
use crate::support::server;

const SIZE: usize = 8 << 20;

/// A server with two large files, and a connection to it.
fn connect(content: &str) -> (Http3Server, Http3Client) {
    let large = vec![b'x'; SIZE];
    let files = server().file("html/a.txt", "hello").file("html/one", &large).file("html/two", &large);
    let server = start_http3_with(files, "", content);
    let mut client = server.client();
    // The next requests arrive together on a connection that is established.
    assert_eq!(client.get("/a.txt").text(), "hello");
    (server, client)
}

/// Requests both files at once, and returns the bytes received of each when one of them has ended.
fn get_both(client: &mut Http3Client, fields: [&[(&str, &str)]; 2]) -> [usize; 2] {
    let ids = [client.begin("GET", "/one", fields[0], true), client.begin("GET", "/two", fields[1], true)];
    let received = client.received_until_one_ends(ids);
    for id in ids {
        client.finish(id).unwrap();
    }
    received
}

#[test]
fn more_urgent_stream_overtakes() {
    let (_server, mut client) = connect("");
    let received = get_both(&mut client, [&[("priority", "u=6")], &[("priority", "u=1")]]);
    assert_eq!(received[1], SIZE);
    assert!(received[0] < SIZE / 2, "{received:?}");
}

#[test]
fn non_incremental_streams_of_one_urgency_are_sequential() {
    let (_server, mut client) = connect("");
    let received = get_both(&mut client, [&[("priority", "u=3")], &[("priority", "u=3")]]);
    assert_eq!(received[0], SIZE);
    assert!(received[1] < SIZE / 2, "{received:?}");
}

#[test]
fn incremental_streams_share() {
    let (_server, mut client) = connect("");
    let received = get_both(&mut client, [&[("priority", "u=3, i")], &[("priority", "u=3, i")]]);
    assert!(received.iter().all(|received| *received > SIZE / 2), "{received:?}");
}

#[test]
fn streams_without_priority_share() {
    let (_server, mut client) = connect("");
    let received = get_both(&mut client, [&[], &[]]);
    assert!(received.iter().all(|received| *received > SIZE / 2), "{received:?}");
}

#[test]
fn priority_of_the_response_has_precedence() {
    let (_server, mut client) = connect("location /two { add_header Priority u=0; }");
    let received = get_both(&mut client, [&[("priority", "u=3")], &[("priority", "u=3")]]);
    assert_eq!(received[1], SIZE);
    assert!(received[0] < SIZE / 2, "{received:?}");
}
