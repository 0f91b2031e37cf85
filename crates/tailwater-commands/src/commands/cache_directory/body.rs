//! Bodies of stored responses, block by block, with their checksums.

use std::io;

use tw_cache::format::{BODY_BLOCK, BlockSums};

use super::pace::Pace;
use super::stored::{StoredHead, StoredResponse, read_up_to};

/// Result of reading a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyRead {
    /// Body as it was stored.
    Whole,
    /// All bytes are there. They have no checksums: an older version or nginx has stored them.
    Unsummed,
    /// A block or the table of checksums is damaged.
    Damaged {
        /// Offset in the file.
        offset: u64,
        /// Word for it.
        why: &'static str,
    },
}

/// Reads a body and passes its blocks on, each after it was compared with its checksum.
pub(super) fn read_body(
    stored: &StoredResponse,
    head: &StoredHead,
    pace: &Pace,
    to: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<BodyRead> {
    let meta = &head.meta;
    let table = match meta.table_at() {
        Some(at) => read_up_to(&stored.file, head.offset + at.start, at.end - at.start)?,
        None => Vec::new(),
    };
    let Ok(sums) = BlockSums::read(meta, &table) else {
        let offset = head.offset + meta.table_at().map_or(0, |at| at.start);
        return Ok(BodyRead::Damaged { offset, why: "table-checksum" });
    };
    let len = meta.body_len.unwrap_or(0);
    let begin = head.offset + u64::from(meta.header_size);
    let mut done = 0;
    while done < len || done == 0 {
        let want = (len - done).min(BODY_BLOCK);
        pace.wait(want);
        let block = read_up_to(&stored.file, begin + done, want)?;
        if block.len() as u64 != want {
            return Ok(BodyRead::Damaged { offset: begin + done, why: "size" });
        }
        if sums.as_ref().is_some_and(|sums| !sums.matches(done / BODY_BLOCK, &block)) {
            return Ok(BodyRead::Damaged { offset: begin + done, why: "body-checksum" });
        }
        to(&block)?;
        done += want;
        if want == 0 {
            break;
        }
    }
    Ok(if sums.is_some() { BodyRead::Whole } else { BodyRead::Unsummed })
}
