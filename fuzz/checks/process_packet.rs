//! Invariants for any bytes as a packet of another worker process: no panic, a packet is read only with all of its head, one that was read
//! is written as it was, and a process takes it whatever loops it has.

use tw_core::event_loop::{Counts, PACKET_SIZE_MAX, PacketHead, read_packet};

pub(crate) fn check(data: &[u8]) {
    Counts::default().take_from_process(data);
    let Some((number, datagram)) = read_packet(data) else { return };
    assert!(data.len() <= PACKET_SIZE_MAX);
    let head = PacketHead::of(number, &datagram).expect("a packet that was read");
    assert_eq!([head.bytes(), &datagram.bytes].concat(), data);
    for end in 0..head.bytes().len() {
        assert!(read_packet(data.get(..end).unwrap_or_default()).is_none(), "{end}");
    }
    let longest = [head.bytes(), &[0; PACKET_SIZE_MAX]].concat();
    assert!(read_packet(&longest).is_none());
}
