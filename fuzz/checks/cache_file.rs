//! Invariants for any bytes in the directory of a cache: no panic, and a file that is read is written again as the
//! same bytes, even with forged checksums.

use bytes::Bytes;
use tw_cache::Meta;
use tw_cache::format::{BlockSums, WrittenBy, decode, encode, needed, nginx, place, table_len};

/// Bytes in front of the texts.
const FIXED: usize = 144;

pub(crate) fn check(data: &[u8]) {
    for sealed in [data.to_vec(), sealed(data)] {
        let size = |at: usize| sealed.get(at..at + 8).and_then(|rest| rest.first_chunk().copied());
        let header_size =
            sealed.get(12..16).and_then(|rest| rest.first_chunk().copied()).map_or(0, u32::from_le_bytes);
        let body_len = size(24).map_or(0, u64::from_le_bytes);
        let file_size = u64::from(header_size).saturating_add(body_len);
        let with_table = file_size.saturating_add(table_len(body_len));
        for file_size in [sealed.len() as u64, file_size, with_table, u64::MAX] {
            if let Ok(meta) = decode(&Bytes::copy_from_slice(&sealed), file_size) {
                assert_eq!(meta.stored_len(), Some(file_size));
                let used = needed(&sealed).expect("it was read");
                let mut again = Vec::new();
                assert_eq!(encode(&meta, &mut again), Ok(()));
                assert_eq!(again.get(..used), sealed.get(..used));
                tables(&meta, data);
                lines(&meta);
            }
        }
    }
    if let Ok(meta) = nginx::decode(data, data.len() as u64) {
        lines(&meta);
        let mut ours = Meta { writer: WrittenBy::Tailwater, ..meta };
        let Ok(header_size) = place(&ours) else { return };
        ours.header_size = header_size;
        let mut bytes = Vec::new();
        assert_eq!(encode(&ours, &mut bytes), Ok(()));
        let file_size = ours.stored_len().expect("its length is known");
        let again = decode(&bytes.into(), file_size).expect("it was written");
        assert!(again.fields.iter().eq(ours.fields.iter()) && again.lifetime == ours.lifetime);
        assert_eq!((again.key, again.variant, again.etag), (ours.key, ours.variant, ours.etag));
    }
}

/// Any bytes can be where the table is.
fn tables(meta: &Meta, data: &[u8]) {
    let len = meta.table_at().map_or(0, |at| at.end - at.start);
    let sums = BlockSums::read(meta, data.get(..usize::try_from(len).unwrap_or(0)).unwrap_or(data));
    if let Ok(Some(sums)) = sums {
        assert_eq!(sums.len() as u64, (len / 4).max(1));
    }
}

/// Nothing in a head can end its line.
fn lines(meta: &Meta) {
    let is_line = |text: &[u8]| !text.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    assert!(meta.fields.iter().all(|(name, value)| !name.is_empty() && is_line(name) && is_line(value)));
    assert!(is_line(&meta.status_line) && is_line(&meta.etag) && is_line(&meta.vary));
    assert!((200..=999).contains(&meta.status) && meta.status != 304);
    assert!(meta.tags.iter().all(|tag| !tag.is_empty()));
}

/// Bytes with corrected checksums.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if bytes.len() < FIXED {
        return bytes;
    }
    let mut state = crc32fast::Hasher::new();
    for range in [40..56, 72..80, 24..32] {
        state.update(&bytes[range]);
    }
    if bytes[8..10] == [1, 0] {
        bytes[36..40].fill(0);
    } else {
        state.update(&bytes[36..40]);
    }
    let state = state.finalize();
    bytes[32..36].copy_from_slice(&state.to_le_bytes());
    let Ok(used) = needed(&bytes) else { return bytes };
    let mut header = crc32fast::Hasher::new();
    header.update(&bytes[..20]);
    header.update(bytes.get(40..used).unwrap_or_default());
    let header = header.finalize();
    bytes[20..24].copy_from_slice(&header.to_le_bytes());
    bytes
}
