//! Encoder stream → dynamic table, and sections of the peer → fields (RFC 9204 sections 4.3 and 4.5).
//!
//! First octet of each instruction, and of each field line behind the prefix of a section:
//!
//! ```text
//! encoder stream                               section
//! 1 T index(6) value     insert, with a name   1 T index(6)              a field of a table
//!                        of a table            0 1 N T index(4) value    a name of a table (T = 1: the static one)
//! 0 1 H len(5) name value       insert         0 0 1 N H len(3) name value
//! 0 0 1 capacity(5)                            0 0 0 1 index(4)          a field behind the base
//! 0 0 0 index(5)                duplicate      0 0 0 0 N index(3) value  a name behind the base
//! ```
//! A section may arrive before the insertions that it needs: then it is blocked, and is decoded later.

use std::ops::ControlFlow;

use tw_fields::{CodingError, DynamicTable, ENTRY_OVERHEAD, Text, integer, text};

use super::{Error, INTEGER_BITS, section_error, statics};
use crate::config::{DECODER_OUT_MAX, INSTRUCTION_MAX};

/// Decoder of one peer's sections, with its dynamic table.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// Largest capacity that the peer may set.
    capacity_max: usize,
    /// Insert count: number of entries ever added.
    inserted: u64,
    /// Insert count that the peer was told.
    announced: u64,
    /// Beginning of an instruction that is not complete.
    cut: Vec<u8>,
    /// Instructions for the peer's encoder.
    out: Vec<u8>,
    /// Size of the longest encoded text of the last section, in bytes.
    longest: usize,
}

/// Outcome of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodedSection {
    /// All fields were passed on, or as many as were wanted.
    Complete,
    /// The section needs so many insertions in all, and they have not all arrived.
    Blocked(u64),
}

/// Prefix of a section (RFC 9204 section 4.5.1).
struct Prefix {
    required: u64,
    base: u64,
}

impl Decoder {
    /// Creates a decoder for a peer that was told this largest capacity (`SETTINGS_QPACK_MAX_TABLE_CAPACITY`). Allocates nothing.
    #[must_use]
    pub const fn new(capacity_max: usize) -> Self {
        Self {
            table: DynamicTable::new(0),
            capacity_max,
            inserted: 0,
            announced: 0,
            cut: Vec::new(),
            out: Vec::new(),
            longest: 0,
        }
    }

    /// Number of entries that the peer has ever inserted.
    pub const fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Size of the longest encoded name or value of the last section, in bytes; entries of a table do not count.
    pub const fn longest(&self) -> usize {
        self.longest
    }

    /// Instructions for the peer's encoder.
    pub fn out(&self) -> &[u8] {
        &self.out
    }

    /// Removes instructions that were sent.
    pub fn consume(&mut self, count: usize) {
        self.out.drain(..count.min(self.out.len()));
        if self.out.is_empty() {
            self.out = Vec::new();
        }
    }

    /// Processes received bytes of the encoder stream, split at any position.
    ///
    /// # Errors
    /// An instruction is invalid or too long.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.receive_one(&mut bytes)?;
        }
        self.announce()
    }

    /// Processes the first instruction of `bytes`, or keeps all of them if it is not complete.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_one(&mut self, bytes: &mut &[u8]) -> Result<(), Error> {
        let mut joined = std::mem::take(&mut self.cut);
        let cut_len = joined.len();
        if cut_len > 0 {
            joined.extend_from_slice(bytes);
        }
        let all: &[u8] = if cut_len > 0 { &joined } else { bytes };
        let mut rest = all;
        match self.instruction(&mut rest) {
            Ok(()) => {
                let taken = (all.len() - rest.len()).saturating_sub(cut_len);
                *bytes = bytes.get(taken..).unwrap_or_default();
                Ok(())
            }
            Err(Some(error)) => Err(error),
            Err(None) if all.len() > INSTRUCTION_MAX => {
                Err(Error::EncoderStream("sent too long instruction on qpack encoder stream"))
            }
            Err(None) => {
                self.cut = if cut_len > 0 { joined } else { bytes.to_vec() };
                *bytes = &[];
                Ok(())
            }
        }
    }

    /// Tells the peer which insertions have arrived.
    ///
    /// # Errors
    /// As [`check_out`](Self::check_out).
    pub fn announce(&mut self) -> Result<(), Error> {
        if self.inserted > self.announced {
            let increment = usize::try_from(self.inserted - self.announced).unwrap_or(usize::MAX);
            integer::encode(&mut self.out, 0, 6, increment);
            self.announced = self.inserted;
        }
        self.check_out()
    }

    /// Processes one instruction. The error is `None` if the instruction is not complete.
    fn instruction(&mut self, rest: &mut &[u8]) -> Result<(), Option<Error>> {
        let cut = |error| match error {
            CodingError::Short => None,
            CodingError::Integer => {
                Some(Error::EncoderStream("sent too long integer on qpack encoder stream"))
            }
            CodingError::Huffman => {
                Some(Error::EncoderStream("sent invalid encoded text on qpack encoder stream"))
            }
        };
        let wrong_index = Some(Error::EncoderStream("sent out of bound index on qpack encoder stream"));
        let first = take_first(rest).map_err(cut)?;
        let mut scratch = Vec::new();
        let mut longest = 0;
        if first & 0xe0 == 0x20 {
            let capacity = integer::decode::<INTEGER_BITS>(first, 5, rest).map_err(cut)?;
            return match usize::try_from(capacity) {
                Ok(capacity) if capacity <= self.capacity_max => {
                    self.table.set_limit(capacity);
                    Ok(())
                }
                _ => Err(Some(Error::EncoderStream("sent invalid qpack table capacity"))),
            };
        }
        if first & 0xe0 == 0 {
            let index = integer::decode::<INTEGER_BITS>(first, 5, rest).map_err(cut)?;
            let (name, value) = newest(&self.table, index).ok_or(wrong_index)?;
            // Copied: adding the field may evict the entry.
            let name_len = name.len();
            scratch.extend_from_slice(name);
            scratch.extend_from_slice(value);
            let (name, value) = scratch.split_at(name_len);
            return self.insert(name, value);
        }
        let name = if first & 0x80 == 0 {
            text::decode(first, 5, rest, &mut scratch, &mut longest).map_err(cut)?
        } else {
            let index = integer::decode::<INTEGER_BITS>(first, 6, rest).map_err(cut)?;
            if first & 0x40 == 0 {
                scratch.extend_from_slice(newest(&self.table, index).ok_or(wrong_index)?.0);
                Text::Scratch(0, scratch.len())
            } else {
                Text::Whole(of_static(index).ok_or(wrong_index)?.0)
            }
        };
        let value_first = take_first(rest).map_err(cut)?;
        let value = text::decode(value_first, 7, rest, &mut scratch, &mut longest).map_err(cut)?;
        self.insert(name.bytes(&scratch), value.bytes(&scratch))
    }

    fn insert(&mut self, name: &[u8], value: &[u8]) -> Result<(), Option<Error>> {
        if name.len() + value.len() + ENTRY_OVERHEAD > self.table.limit() {
            return Err(Some(Error::EncoderStream("sent field that does not fit into the qpack table")));
        }
        self.table.insert(name, value);
        self.inserted += 1;
        Ok(())
    }

    /// Decodes a whole section of a stream: calls `field` with the name and the value of each of its fields, in order, until it
    /// breaks off. An octet may stand for a whole entry of the table: the caller counts the bytes of the fields.
    ///
    /// # Errors
    /// The section is invalid; fields may have been passed on before.
    pub fn decode(
        &mut self,
        stream: u64,
        section: &[u8],
        field: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<DecodedSection, Error> {
        let mut rest = section;
        let required = self.required(&mut rest)?;
        if required > self.inserted {
            return Ok(DecodedSection::Blocked(required));
        }
        self.decode_required(stream, section, required, field)?;
        Ok(DecodedSection::Complete)
    }

    /// Decodes a section that was [blocked](DecodedSection::Blocked) until so many insertions had arrived, which they have now.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_required(
        &mut self,
        stream: u64,
        section: &[u8],
        required: u64,
        field: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut rest = section;
        let prefix = prefix(&mut rest, required)?;
        self.longest = 0;
        let mut scratch = Vec::new();
        while !rest.is_empty() {
            if self.line(&mut rest, &prefix, &mut scratch, field)?.is_break() {
                break;
            }
        }
        if required > 0 {
            integer::encode(&mut self.out, 0x80, 7, usize::try_from(stream).unwrap_or(usize::MAX));
            return self.check_out();
        }
        Ok(())
    }

    /// Decodes a field line.
    fn line(
        &mut self,
        rest: &mut &[u8],
        prefix: &Prefix,
        scratch: &mut Vec<u8>,
        field: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let first = take_first(rest).map_err(section_error)?;
        let index = |bits, rest: &mut &[u8]| {
            integer::decode::<INTEGER_BITS>(first, bits, rest).map_err(section_error)
        };
        let out_of_bound = Error::Section("sent out of bound qpack table index");
        if first & 0x80 != 0 {
            let index = index(6, rest)?;
            let entry = if first & 0x40 != 0 { of_static(index) } else { self.before_base(prefix, index) };
            let (name, value) = entry.ok_or(out_of_bound)?;
            return Ok(field(name, value));
        }
        if first & 0xf0 == 0x10 {
            let (name, value) = self.behind_base(prefix, index(4, rest)?).ok_or(out_of_bound)?;
            return Ok(field(name, value));
        }
        scratch.clear();
        let mut longest = self.longest;
        let name = if first & 0x40 != 0 {
            let index = index(4, rest)?;
            let entry = if first & 0x10 != 0 { of_static(index) } else { self.before_base(prefix, index) };
            Text::Whole(entry.ok_or(out_of_bound)?.0)
        } else if first & 0x20 != 0 {
            text::decode(first, 3, rest, scratch, &mut longest).map_err(section_error)?
        } else {
            Text::Whole(self.behind_base(prefix, index(3, rest)?).ok_or(out_of_bound)?.0)
        };
        let value_first = take_first(rest).map_err(section_error)?;
        let value = text::decode(value_first, 7, rest, scratch, &mut longest).map_err(section_error)?;
        let flow = field(name.bytes(scratch), value.bytes(scratch));
        self.longest = longest;
        Ok(flow)
    }

    /// Reads the required insert count (RFC 9204 section 4.5.1.1).
    fn required(&self, rest: &mut &[u8]) -> Result<u64, Error> {
        let wrong = Err(Error::Section("sent invalid required insert count"));
        let first = take_first(rest).map_err(section_error)?;
        let encoded = integer::decode::<INTEGER_BITS>(first, 8, rest).map_err(section_error)?;
        if encoded == 0 {
            return Ok(0);
        }
        let entries_max = (self.capacity_max / ENTRY_OVERHEAD) as u64;
        let full_range = 2 * entries_max;
        if encoded > full_range {
            return wrong;
        }
        let value_max = self.inserted + entries_max;
        let required = value_max / full_range * full_range + encoded - 1;
        match required {
            _ if required > value_max && required <= full_range => wrong,
            _ if required > value_max => Ok(required - full_range),
            0 => wrong,
            _ => Ok(required),
        }
    }

    /// Entry at a relative index (RFC 9204 section 3.2.5).
    fn before_base(&self, prefix: &Prefix, index: u64) -> Option<(&[u8], &[u8])> {
        self.absolute(prefix, prefix.base.checked_sub(index)?.checked_sub(1)?)
    }

    /// Entry at a post-base index (RFC 9204 section 3.2.6).
    fn behind_base(&self, prefix: &Prefix, index: u64) -> Option<(&[u8], &[u8])> {
        self.absolute(prefix, prefix.base.checked_add(index)?)
    }

    /// Entry at an absolute index, which must be one of those that the section requires.
    fn absolute(&self, prefix: &Prefix, index: u64) -> Option<(&[u8], &[u8])> {
        if index >= prefix.required {
            return None;
        }
        newest(&self.table, self.inserted.checked_sub(index)?.checked_sub(1)?)
    }

    /// Tells the peer that sections of a stream will not be decoded (RFC 9204 section 4.4.2). Insertions to which they refer
    /// may still be on their way.
    pub fn cancel(&mut self, stream: u64) {
        // Without a dynamic table, the encoder need not learn of the cancellation (RFC 9204 section 2.2.2.2).
        if self.capacity_max > 0 {
            integer::encode(&mut self.out, 0x40, 6, usize::try_from(stream).unwrap_or(usize::MAX));
        }
    }

    /// Checks the size of the instructions for the peer's encoder.
    ///
    /// # Errors
    /// The peer takes none of them.
    pub fn check_out(&self) -> Result<(), Error> {
        if self.out.len() > DECODER_OUT_MAX {
            return Err(Error::Excessive("took no instructions of the qpack decoder stream"));
        }
        Ok(())
    }

    /// Size of the entries of the table, as the RFC counts, and bytes that are allocated for it and for a cut instruction.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.table.size(), self.table.allocated() + self.cut.capacity())
    }
}

/// Reads the prefix of a section whose required insert count is known.
fn prefix(rest: &mut &[u8], required: u64) -> Result<Prefix, Error> {
    let first = take_first(rest).map_err(section_error)?;
    integer::decode::<INTEGER_BITS>(first, 8, rest).map_err(section_error)?;
    let first = take_first(rest).map_err(section_error)?;
    let delta = integer::decode::<INTEGER_BITS>(first, 7, rest).map_err(section_error)?;
    let base = match first & 0x80 {
        0 => required.checked_add(delta),
        _ => required.checked_sub(delta).and_then(|base| base.checked_sub(1)),
    };
    Ok(Prefix { required, base: base.ok_or(Error::Section("sent invalid qpack base"))? })
}

fn take_first(rest: &mut &[u8]) -> Result<u8, CodingError> {
    let (&first, after) = rest.split_first().ok_or(CodingError::Short)?;
    *rest = after;
    Ok(first)
}

/// Entry at an index from 0 on, which is the newest.
fn newest(table: &DynamicTable, index: u64) -> Option<(&[u8], &[u8])> {
    table.entry(usize::try_from(index).ok()?)
}

fn of_static(index: u64) -> Option<(&'static [u8], &'static [u8])> {
    statics::entry(usize::try_from(index).ok()?)
}
