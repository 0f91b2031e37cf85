//! Bytes of an entry: head, body and checksums.

use bytes::Bytes;
use tw_cache::format::{self, BodySums, FinishedSums, Meta};
use tw_cache::segment::RecordPrefix;
use tw_cache::{Key, Location};

use super::place::on_disk;
use crate::time::seconds;

/// Facts about a stored file for the index.
pub(super) struct StoredFile {
    /// Length of the whole file.
    pub(super) len: u64,
    pub(super) valid_until: u32,
}

impl StoredFile {
    /// Facts about the file of a complete response.
    pub(super) fn of(meta: &Meta) -> Self {
        Self { len: meta.stored_len().unwrap_or(0), valid_until: valid_until(meta) }
    }

    /// Place in the index of the file.
    pub(super) fn location(&self) -> Location {
        on_disk(self.len).into()
    }
}

/// End of a response's validity, as the index has it.
pub(crate) fn valid_until(meta: &Meta) -> u32 {
    seconds(meta.lifetime.valid_until)
}

/// Prefix of a record with this head.
pub(super) fn prefix(key: Key, meta: &Meta) -> RecordPrefix {
    let StoredFile { len, valid_until } = StoredFile::of(meta);
    RecordPrefix { key, len, sequence: meta.sequence, valid_until }
}

/// Encodes the head. Its size was determined before, so it fits.
pub(super) fn encode_head(meta: &Meta) -> Bytes {
    let mut head = Vec::with_capacity(meta.header_size as usize);
    let encoded = format::encode(meta, &mut head);
    debug_assert!(encoded.is_ok(), "{encoded:?}");
    head.into()
}

/// Adds pieces to the checksums of a body, and returns both. For a job: it reads all bytes.
pub(super) fn add_sums(mut sums: BodySums, pieces: Vec<Bytes>) -> (Vec<Bytes>, BodySums) {
    pieces.iter().for_each(|piece| sums.push(piece));
    (pieces, sums)
}

/// Parts of the file of a complete response, with its checksums. For a job: it reads all bytes.
pub(super) fn whole_file(mut meta: Box<Meta>, body: Vec<Bytes>) -> Vec<Bytes> {
    let (mut parts, sums) = add_sums(BodySums::default(), body);
    let FinishedSums { sum, table } = sums.finish();
    meta.body_sum = Some(sum);
    parts.insert(0, encode_head(&meta));
    parts.push(table.into());
    parts
}
