//! Invariants for any bytes of a NATS server: no panic, and neither a record nor a summary that a limit does not bound.

pub(crate) fn check(data: &[u8]) {
    tw_fleet::fuzz_nats(data);
    if let Ok(record) = tw_fleet::FleetRecord::decode(data) {
        let again = tw_fleet::FleetRecord::decode(&record.encode());
        assert_eq!(again, Ok(record));
    }
}
