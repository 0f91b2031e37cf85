//! Invariants for any bytes as the record of a session over UDP that goes on in the next process: no panic, a record is read only from all of
//! its bytes, and one that was read is read again from what it writes.

use tw_stream::SessionRecord;

pub(crate) fn check(data: &[u8]) {
    let Some(record) = SessionRecord::read(data) else { return };
    for end in 0..data.len() {
        assert_eq!(SessionRecord::read(data.get(..end).unwrap_or_default()), None, "{end}");
    }
    assert_eq!(SessionRecord::read(&[data, &[0]].concat()), None);
    let bytes = record.write().expect("a record that was read");
    assert_eq!(SessionRecord::read(&bytes), Some(record));
}
