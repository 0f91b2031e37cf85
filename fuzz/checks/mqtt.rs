//! Invariants for any first bytes of a client as an MQTT packet: no panic, more bytes never change what was found before, and what is
//! written is read with equal fields.

use tw_stream::mqtt::{FirstPacket, first_packet};

pub(crate) fn check(data: &[u8]) {
    let mut result = FirstPacket::Incomplete;
    for end in 0..=data.len().min(1024) {
        let now = first_packet(data.get(..end).unwrap_or_default());
        assert!(result == FirstPacket::Incomplete || result == now, "{end}");
        result = now;
    }
    if let FirstPacket::Connect(packet, len) = first_packet(data) {
        assert!(len <= data.len());
        let mut bytes = Vec::new();
        packet.write(&mut bytes).expect("fields that were read");
        let FirstPacket::Connect(again, _) = first_packet(&bytes) else {
            panic!("written packet is not valid")
        };
        assert_eq!(again, packet);
    }
}
