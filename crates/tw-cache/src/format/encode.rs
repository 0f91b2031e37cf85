//! Encoding of an entry's header, and of the few bytes that mark its body as complete.

use std::fmt;

use super::layout::*;
use super::{Meta, WrittenBy};
use crate::Key;

/// Why a header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// Longer than the space reserved for it: the entry needs a new file. Files that nginx has written always do.
    NoRoom,
    /// A text or the header is beyond its limit.
    TooLong,
    /// There are more fields than allowed, or one could not be sent.
    Fields,
    /// The status cannot be that of a stored response.
    Status,
}

impl EncodeError {
    /// Word for logs, e.g. `no-room`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            EncodeError::NoRoom => "no-room",
            EncodeError::TooLong => "too-long",
            EncodeError::Fields => "fields",
            EncodeError::Status => "status",
        }
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Size that the header of a new file gets ([`Meta::header_size`]): its length and some room, rounded up.
///
/// # Errors
/// A text is too long for any file.
pub fn place(meta: &Meta) -> Result<u32, EncodeError> {
    let used = used(meta)?;
    let size = u32::try_from(used + ROOM).map_err(|_| EncodeError::TooLong)?.next_multiple_of(HEADER_UNIT);
    if size <= HEADER_MAX { Ok(size) } else { Err(EncodeError::TooLong) }
}

/// Appends the header: [`Meta::header_size`] bytes, padded with zeros.
///
/// # Errors
/// [`EncodeError::NoRoom`] if it does not fit into its place, and the errors of [`place`]. Nothing is appended then.
pub fn encode(meta: &Meta, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let used = used(meta)?;
    let size = usize::try_from(meta.header_size).map_err(|_| EncodeError::NoRoom)?;
    let is_place = meta.header_size.is_multiple_of(HEADER_UNIT) && meta.header_size <= HEADER_MAX;
    if used > size || !is_place || meta.writer == WrittenBy::Nginx {
        return Err(EncodeError::NoRoom);
    }
    let start = out.len();
    out.reserve(size);
    push_fixed(meta, used, out);
    for text in [&meta.key_text, &meta.etag, &meta.status_line, &meta.vary] {
        out.extend_from_slice(text);
    }
    out.extend_from_slice(meta.tags.as_bytes());
    for (name, value) in meta.fields.iter() {
        out.extend_from_slice(&short(name.len()).to_le_bytes());
        out.extend_from_slice(&long(value.len()).to_le_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
    if let Some(header) = out.get_mut(start..) {
        let sum = checksum(header);
        if let Some(place) = header.get_mut(CHECKSUM_AT..CHECKSUM_AT + 4) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
    }
    out.resize(start + size, 0);
    Ok(())
}

/// Bytes that overwrite a part of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset in the file.
    pub at: u64,
    /// The bytes.
    pub bytes: [u8; STATE_END - BODY_LEN_AT],
}

/// Bytes written over the header at the end of a fill, with the final length of the body and its checksum
/// ([`FinishedSums::sum`](super::FinishedSums::sum)). They depend only on the key and the sequence, so no header has to be kept
/// while the body is received.
#[must_use]
pub fn patch(key: Key, sequence: u64, body_len: u64, body_sum: u32) -> Patch {
    state(key, sequence, body_len, Some(body_sum))
}

/// The state of a header, as [`patch`] writes it. Without a checksum it is that of version 1.
fn state(key: Key, sequence: u64, body_len: u64, body_sum: Option<u32>) -> Patch {
    let mut bytes = [0; STATE_END - BODY_LEN_AT];
    let numbers = [
        state_checksum(key, sequence, body_len, body_sum).to_le_bytes(),
        body_sum.unwrap_or(0).to_le_bytes(),
    ];
    let all = body_len.to_le_bytes().into_iter().chain(numbers.into_iter().flatten());
    for (place, byte) in bytes.iter_mut().zip(all) {
        *place = byte;
    }
    Patch { at: BODY_LEN_AT as u64, bytes }
}

/// Of all that is used but the checksum itself and the state.
pub(super) fn checksum(header: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(header.get(..CHECKSUM_AT).unwrap_or(b""));
    sum.update(header.get(STATE_END..).unwrap_or(b""));
    sum.finalize()
}

/// Of the length of the body and its checksum, and of what names the entry: the state of one file is none of another.
pub(super) fn state_checksum(key: Key, sequence: u64, body_len: u64, body_sum: Option<u32>) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&key.0);
    sum.update(&sequence.to_le_bytes());
    sum.update(&body_len.to_le_bytes());
    if let Some(body_sum) = body_sum {
        sum.update(&body_sum.to_le_bytes());
    }
    sum.finalize()
}

/// Bytes that the header takes.
fn used(meta: &Meta) -> Result<usize, EncodeError> {
    let key_text = meta.key_text.len();
    let etag = meta.etag.len();
    let status_line = meta.status_line.len();
    let vary = meta.vary.len();
    let tags = meta.tags.as_bytes().len();
    if !fits(key_text, etag, status_line, vary, tags) || meta.body_len.is_some_and(|len| len > BODY_LEN_MAX) {
        return Err(EncodeError::TooLong);
    }
    if !is_status(meta.status) || !is_line(&meta.status_line) {
        return Err(EncodeError::Status);
    }
    let is_good = meta.fields.iter_known().all(|(name, known_name, value)| {
        // A known name needs no look at its bytes.
        let is_name = known_name.is_some() || is_field_name(name) && name.len() <= usize::from(u16::MAX);
        is_name && is_line(value)
    });
    if meta.fields.len() > FIELDS_MAX || !is_good || !is_line(&meta.etag) || !is_line(&meta.vary) {
        return Err(EncodeError::Fields);
    }
    let fields: usize = meta.fields.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
    let used = FIXED + key_text + etag + status_line + vary + tags + fields;
    if used <= HEADER_MAX as usize { Ok(used) } else { Err(EncodeError::TooLong) }
}

/// The numbers, in the order of the layout.
fn push_fixed(meta: &Meta, used: usize, out: &mut Vec<u8>) {
    let lifetime = &meta.lifetime;
    let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
    let flags = flag(meta.date.is_some(), HAS_DATE)
        | flag(meta.last_modified.is_some(), HAS_LAST_MODIFIED)
        | flag(meta.variant.is_some(), HAS_VARIANT);
    out.extend_from_slice(&MAGIC);
    let version = if meta.body_sum.is_some() { VERSION } else { VERSION_UNSUMMED };
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&[lifetime.duties.bits(), flags]);
    out.extend_from_slice(&meta.header_size.to_le_bytes());
    out.extend_from_slice(&long(used).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let (body_len, body_sum) = match meta.body_len {
        Some(body_len) => (body_len, meta.body_sum),
        None => (UNFINISHED, meta.body_sum.map(|_| 0)),
    };
    out.extend_from_slice(&state(meta.key, meta.sequence, body_len, body_sum).bytes);
    out.extend_from_slice(&meta.key.0);
    out.extend_from_slice(&meta.variant.map_or([0; 16], |variant| variant.0));
    out.extend_from_slice(&meta.sequence.to_le_bytes());
    out.extend_from_slice(&lifetime.responded.to_le_bytes());
    out.extend_from_slice(&lifetime.valid_until.to_le_bytes());
    out.extend_from_slice(&meta.date.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&meta.last_modified.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&lifetime.stale_while_revalidate_s.to_le_bytes());
    out.extend_from_slice(&lifetime.stale_if_error_s.to_le_bytes());
    out.extend_from_slice(&lifetime.initial_age_s.to_le_bytes());
    out.extend_from_slice(&meta.status.to_le_bytes());
    out.extend_from_slice(&short(meta.etag.len()).to_le_bytes());
    out.extend_from_slice(&short(meta.status_line.len()).to_le_bytes());
    out.extend_from_slice(&short(meta.vary.len()).to_le_bytes());
    out.extend_from_slice(&long(meta.key_text.len()).to_le_bytes());
    out.extend_from_slice(&long(meta.tags.as_bytes().len()).to_le_bytes());
    out.extend_from_slice(&short(meta.fields.len()).to_le_bytes());
    out.extend_from_slice(&[0; 2]);
}

/// `used` has looked at the limits.
fn short(len: usize) -> u16 {
    u16::try_from(len).expect("its limit is below 64 Ki")
}

fn long(len: usize) -> u32 {
    u32::try_from(len).expect("a header is at most 1 MiB")
}
