//! Sizes of the datagrams of a response, over a path with large ones.

use tw_testkit::quic::ClientSettings;

use crate::support::content::noise;
use crate::support::http3::{Http3Client, start_http3_with};
use crate::support::server;

/// Size of the file.
const BIG: usize = 8 << 20;

#[test]
fn datagrams_over_loopback_are_as_large_as_the_client_takes() {
    for segments in ["on", "off"] {
        let body = noise(BIG);
        let files = server().file("html/big", body.clone());
        let http3 = start_http3_with(files, "", &format!("quic_gso {segments};"));
        // A probe that does not fit into the buffer of the client's socket ends the search early.
        for (datagram_size_max, sizes) in
            [(65_527, 4000..=16_376), (3000, 2000..=3000), (1472, 1300..=1472), (1250, 1200..=1250)]
        {
            let settings = ClientSettings { datagram_size_max, ..http3.settings() };
            let mut client = Http3Client::connect(&settings, http3.server.addr()).unwrap();
            assert!(client.get("/big").body == body, "{datagram_size_max}: the file differs");
            let largest = client.udp.client.largest_datagram;
            assert!(sizes.contains(&largest), "{largest} with {datagram_size_max}, quic_gso {segments}");
        }
    }
}
