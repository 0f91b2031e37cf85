//! Invariants for any bytes in the directory of a cache: no panic, and a file that is read is written again as the
//! same bytes, even with forged checksums.

use bytes::Bytes;
use tw_cache::Meta;
use tw_cache::format::{WrittenBy, decode, encode, needed, nginx, place};

/// Bytes in front of the texts.
const FIXED: usize = 144;

pub(crate) fn check(data: &[u8]) {
    for sealed in [data.to_vec(), sealed(data)] {
        let size = |at: usize| sealed.get(at..at + 8).and_then(|rest| rest.first_chunk().copied());
        let header_size =
            sealed.get(12..16).and_then(|rest| rest.first_chunk().copied()).map_or(0, u32::from_le_bytes);
        let body_len = size(24).map_or(0, u64::from_le_bytes);
        let file_size = u64::from(header_size).saturating_add(body_len);
        for file_size in [sealed.len() as u64, file_size, u64::MAX] {
            if let Ok(meta) = decode(&Bytes::copy_from_slice(&sealed), file_size) {
                assert_eq!(u64::from(meta.header_size) + meta.body_len.unwrap_or(0), file_size);
                let used = needed(&sealed).expect("it was read");
                let mut again = Vec::new();
                assert_eq!(encode(&meta, &mut again), Ok(()));
                assert_eq!(again.get(..used), sealed.get(..used));
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
        let file_size = u64::from(header_size) + ours.body_len.unwrap_or(0);
        let again = decode(&bytes.into(), file_size).expect("it was written");
        assert!(again.fields.iter().eq(ours.fields.iter()) && again.lifetime == ours.lifetime);
        assert_eq!((again.key, again.variant, again.etag), (ours.key, ours.variant, ours.etag));
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
    let state = u64::from(state.finalize());
    bytes[32..40].copy_from_slice(&state.to_le_bytes());
    let Ok(used) = needed(&bytes) else { return bytes };
    let mut header = crc32fast::Hasher::new();
    header.update(&bytes[..20]);
    header.update(bytes.get(40..used).unwrap_or_default());
    let header = header.finalize();
    bytes[20..24].copy_from_slice(&header.to_le_bytes());
    bytes
}
