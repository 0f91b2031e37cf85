//! Memory of an idle connection. A program of its own, which counts every block.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tw_sys::heap::CountingHeap;
use tw_testkit::quic_raw::{RawClient, parameters};

#[path = "../../../fuzz/checks/quic.rs"]
#[allow(dead_code, reason = "the check itself is another test")]
mod quic;

use quic::{SOURCE, Server, configs};

#[global_allocator]
static ALLOCATOR: CountingHeap = CountingHeap;

/// Connections that are open at the same time.
const CONNECTIONS: usize = 64;
/// Most bytes of one, with the state of TLS and without that of HTTP/3. What the cryptography allocates in C is not counted: 592 bytes for each
/// of three keys of packets.
const BYTES_MAX: usize = 15_600;

#[test]
fn idle_connection_fits_in_its_memory() {
    let (config, mut server) = (configs().1.clone(), Server::new());
    let mut kept = 0;
    for at in 0..CONNECTIONS {
        let destination = (at as u64 + 1).to_be_bytes();
        let mut client =
            RawClient::to(&destination, config.clone(), "localhost", &parameters(SOURCE), SOURCE);
        for _ in 0..10 {
            for datagram in client.datagrams() {
                let (answers, measured) = CountingHeap::measure(|| server.exchange(&datagram));
                let lent: usize = answers.iter().map(Vec::capacity).sum::<usize>()
                    + answers.capacity() * size_of::<Vec<u8>>();
                kept += measured.kept - lent.cast_signed();
                answers.iter().for_each(|answer| client.receive(answer));
            }
        }
        assert!(client.is_connected());
        // Acknowledges everything, so that nothing waits to be sent again.
        let ack = client.acknowledgement(tw_testkit::quic_raw::Level::Application);
        let datagram = client.datagram(tw_testkit::quic_raw::Level::Application, &ack).unwrap();
        kept += CountingHeap::measure(|| drop(server.exchange(&datagram))).1.kept;
    }
    kept += CountingHeap::measure(|| server.pass(Duration::from_secs(5))).1.kept;
    assert_eq!(server.endpoint.connections(), CONNECTIONS);
    let each = usize::try_from(kept).unwrap() / CONNECTIONS;
    assert!(each <= BYTES_MAX, "{each} bytes for each connection");
}
