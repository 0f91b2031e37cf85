//! Boxes: their headers, and numbers in them. A position outside of a box reads as 0, and is not written.

use std::ops::Range;

use super::fault::Fault;

/// The header of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxHeader {
    /// Name of the box.
    pub(crate) name: [u8; 4],
    /// Bytes of the header.
    pub(crate) header_len: u64,
    /// Bytes of the box, its header included.
    pub(crate) size: u64,
}

/// Result of reading the header of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedHeader {
    /// A box.
    Box(BoxHeader),
    /// A size of 0: nothing follows.
    End,
    /// The bytes end inside a header.
    NeedMore,
}

/// Most bytes a header has.
pub(crate) const HEADER_MAX: usize = 16;

/// Reads the header at the front of `bytes`; `room` is the longest box allowed here.
pub(crate) fn read_header(bytes: &[u8], room: u64) -> Result<ParsedHeader, Fault> {
    let Some(size) = number(bytes, 0) else { return Ok(ParsedHeader::NeedMore) };
    let (size, header_len) = match u64::from(size) {
        0 => return Ok(ParsedHeader::End),
        1 => match long_number(bytes, 8) {
            None => return Ok(ParsedHeader::NeedMore),
            Some(size) if size < HEADER_MAX as u64 => return Err(Fault::BoxTooSmall(size)),
            Some(size) => (size, HEADER_MAX as u64),
        },
        size @ 2..8 => return Err(Fault::BoxTooSmall(size)),
        size => (size, 8),
    };
    let Some(name) = bytes.get(4..8).and_then(|name| name.try_into().ok()) else {
        return Ok(ParsedHeader::NeedMore);
    };
    if size > room {
        return Err(Fault::BoxTooLarge(size));
    }
    Ok(ParsedHeader::Box(BoxHeader { name, header_len, size }))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

fn long_number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_be_bytes(*bytes))
}

/// The name and the content of a box.
pub(super) type NamedBox = ([u8; 4], Range<usize>);

/// Content of `moov`; its tables are changed in place.
pub(super) struct Moov {
    bytes: Vec<u8>,
}

impl Moov {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        number(&self.bytes, at).unwrap_or(0)
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        long_number(&self.bytes, at).unwrap_or(0)
    }

    pub(super) fn put_u32(&mut self, at: usize, value: u32) {
        if let Some(bytes) = self.bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *bytes = value.to_be_bytes();
        }
    }

    pub(super) fn put_u64(&mut self, at: usize, value: u64) {
        if let Some(bytes) = self.bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *bytes = value.to_be_bytes();
        }
    }

    /// The next box of `rest`, which then begins behind it: its name and content.
    pub(super) fn next_box(&self, rest: &mut Range<usize>) -> Result<Option<NamedBox>, Fault> {
        if rest.start >= rest.end {
            return Ok(None);
        }
        match read_header(self.slice(rest.clone()), rest.len() as u64)? {
            ParsedHeader::End => Ok(None),
            ParsedHeader::NeedMore => Err(Fault::Truncated),
            ParsedHeader::Box(header) => {
                // Both sizes are at most the length of `rest`.
                let end = rest.start + header.size as usize;
                let content = rest.start + header.header_len as usize..end;
                rest.start = end;
                Ok(Some((header.name, content)))
            }
        }
    }
}
