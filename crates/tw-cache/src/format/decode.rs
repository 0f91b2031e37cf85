//! Decoding of an entry's file header, and the errors it finds.

use bytes::Bytes;
use tw_http::{Fields, HeaderName, Name};

use super::encode::{checksum, state_checksum};
use super::layout::*;
use super::sums::table_len;
use super::{FormatError, Meta, Tags, WrittenBy};
use crate::Key;
use crate::policy::{Duties, Lifetime};

/// Number of bytes from the start of one of our files that [`decode`] needs; at most [`HEADER_MAX`]. `input` has at
/// least the first 144.
///
/// # Errors
/// The file is not one of ours.
pub fn needed(input: &[u8]) -> Result<usize, FormatError> {
    let numbers = Numbers::of(input)?;
    Ok(numbers.used)
}

/// Reads a header. `input` has at least as many bytes as [`needed`] returned, and may have more; `file_size` is that
/// of the whole file. The texts share the memory of `input`; only the list of fields is allocated.
///
/// # Errors
/// The first fault found.
pub fn decode(input: &Bytes, file_size: u64) -> Result<Meta, FormatError> {
    let numbers = Numbers::of(input)?;
    let header = input.get(..numbers.used).ok_or(FormatError::Short)?;
    if checksum(header) != numbers.u32(CHECKSUM_AT) {
        return Err(FormatError::Checksum);
    }
    let key = numbers.key(KEY_AT);
    let sequence = numbers.u64(SEQUENCE_AT);
    let body_len = numbers.u64(BODY_LEN_AT);
    // Files of version 1 have zeros there.
    let body_sum = numbers.has_sums.then(|| numbers.u32(BODY_SUM_AT));
    if state_checksum(key, sequence, body_len, body_sum) != numbers.u32(STATE_CHECKSUM_AT)
        || body_sum.is_none() && numbers.u32(BODY_SUM_AT) != 0
    {
        return Err(FormatError::StateChecksum);
    }
    if body_len == UNFINISHED {
        return Err(FormatError::Unfinished);
    }
    let table_len = if numbers.has_sums { table_len(body_len) } else { 0 };
    if body_len > BODY_LEN_MAX || u64::from(numbers.header_size) + body_len + table_len != file_size {
        return Err(FormatError::Size);
    }
    let flags = numbers.u8(FLAGS_AT);
    let duties = Duties::from_bits(numbers.u8(DUTIES_AT)).ok_or(FormatError::Reserved)?;
    if flags & !ALL_FLAGS != 0 || numbers.u16(RESERVED_AT) != 0 {
        return Err(FormatError::Reserved);
    }
    // The values of absent fields have to be zero.
    let absent = [(HAS_DATE, numbers.u64(DATE_AT)), (HAS_LAST_MODIFIED, numbers.u64(LAST_MODIFIED_AT))];
    let is_set = |&(flag, number): &(u8, u64)| flags & flag == 0 && number != 0;
    if absent.iter().any(is_set) || flags & HAS_VARIANT == 0 && numbers.key(VARIANT_AT) != Key([0; 16]) {
        return Err(FormatError::Reserved);
    }
    let status = numbers.u16(STATUS_AT);
    if !is_status(status) {
        return Err(FormatError::Status);
    }

    let mut texts = Texts(input.slice(FIXED..numbers.used));
    let key_text = numbers.len(KEY_TEXT_LEN_AT);
    let etag = usize::from(numbers.u16(ETAG_LEN_AT));
    let status_line = usize::from(numbers.u16(STATUS_LINE_LEN_AT));
    let vary = usize::from(numbers.u16(VARY_LEN_AT));
    let tags = numbers.len(TAGS_LEN_AT);
    if !fits(key_text, etag, status_line, vary, tags) {
        return Err(FormatError::Length);
    }
    let key_text = texts.take(key_text)?;
    let etag = texts.line(etag)?;
    let status_line = texts.line(status_line)?;
    let vary = texts.line(vary)?;
    let tags = Tags::from_bytes(texts.take(tags)?).ok_or(FormatError::Length)?;
    let fields = texts.fields(numbers.u16(FIELD_COUNT_AT))?;
    let time = |at, flag| (flags & flag != 0).then(|| numbers.i64(at));
    Ok(Meta {
        key,
        variant: (flags & HAS_VARIANT != 0).then(|| numbers.key(VARIANT_AT)),
        key_text,
        lifetime: Lifetime {
            responded: numbers.i64(RESPONDED_AT),
            valid_until: numbers.i64(VALID_UNTIL_AT),
            stale_while_revalidate_s: numbers.u32(WHILE_REVALIDATE_AT),
            stale_if_error_s: numbers.u32(IF_ERROR_AT),
            initial_age_s: numbers.u32(INITIAL_AGE_AT),
            duties,
        },
        date: time(DATE_AT, HAS_DATE),
        last_modified: time(LAST_MODIFIED_AT, HAS_LAST_MODIFIED),
        etag,
        status,
        status_line,
        fields,
        vary,
        tags,
        sequence,
        header_size: numbers.header_size,
        body_len: Some(body_len),
        body_sum,
        writer: WrittenBy::Tailwater,
    })
}

/// Fixed part of a header, before the texts; its magic, version and lengths are checked.
struct Numbers<'a> {
    bytes: &'a [u8; FIXED],
    used: usize,
    header_size: u32,
    /// `false` in version 1.
    has_sums: bool,
}

impl<'a> Numbers<'a> {
    fn of(input: &'a [u8]) -> Result<Self, FormatError> {
        if !input.starts_with(&MAGIC) {
            return Err(if MAGIC.starts_with(input) { FormatError::Short } else { FormatError::Magic });
        }
        let bytes = input.first_chunk().ok_or(FormatError::Short)?;
        let mut all = Self { bytes, used: 0, header_size: 0, has_sums: true };
        all.has_sums = match all.u16(VERSION_AT) {
            VERSION => true,
            VERSION_UNSUMMED => false,
            _ => return Err(FormatError::Version),
        };
        (all.used, all.header_size) = (all.len(USED_AT), all.u32(HEADER_SIZE_AT));
        let is_place = all.header_size <= HEADER_MAX && all.header_size.is_multiple_of(HEADER_UNIT);
        if !is_place || all.used < FIXED || all.u32(USED_AT) > all.header_size {
            return Err(FormatError::Length);
        }
        Ok(all)
    }

    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.at(at))
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.at(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.at(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.at(at))
    }

    fn i64(&self, at: usize) -> i64 {
        i64::from_le_bytes(self.at(at))
    }

    fn len(&self, at: usize) -> usize {
        usize::try_from(self.u32(at)).unwrap_or(usize::MAX)
    }

    fn key(&self, at: usize) -> Key {
        Key(self.at(at))
    }
}

/// Texts of a header that are not read yet.
struct Texts(Bytes);

impl Texts {
    fn take(&mut self, len: usize) -> Result<Bytes, FormatError> {
        if len > self.0.len() {
            return Err(FormatError::Length);
        }
        Ok(self.0.split_to(len))
    }

    /// A text that goes to clients or origins.
    fn line(&mut self, len: usize) -> Result<Bytes, FormatError> {
        let text = self.take(len)?;
        if is_line(&text) { Ok(text) } else { Err(FormatError::Field) }
    }

    /// All that is left.
    fn fields(&mut self, count: u16) -> Result<Fields, FormatError> {
        let mut fields = Fields::new();
        if usize::from(count) > FIELDS_MAX {
            return Err(FormatError::Length);
        }
        for _ in 0..count {
            let lens = self.take(6)?;
            let (Some((name_len, rest)), true) = (lens.split_first_chunk(), lens.len() == 6) else {
                return Err(FormatError::Length);
            };
            let value_len = rest.first_chunk().copied().map_or(u32::MAX, u32::from_le_bytes);
            let name = self.take(usize::from(u16::from_le_bytes(*name_len)))?;
            let value = self.take(usize::try_from(value_len).unwrap_or(usize::MAX))?;
            if !is_field(&name, &value) {
                return Err(FormatError::Field);
            }
            // A name in its usual case needs no memory.
            match HeaderName::find(&name).filter(|known_name| known_name.as_str().as_bytes() == name) {
                Some(known_name) => fields.append(known_name, value),
                None => fields.append(Name::Shared(name), value),
            }
        }
        if self.0.is_empty() { Ok(fields) } else { Err(FormatError::Length) }
    }
}
