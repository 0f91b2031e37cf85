//! File format in which purges survive a restart.
//!
//! ```text
//! "tw purge" · version · last number · [dropped] · prefixes · tags · keys · CRC-32 of all before
//! dropped: only in version 2, of a cache with several directories: up to which number purges were forgotten
//! prefixes: count, then for each: length (u16), text, hard, soft
//! tags, keys: hard, soft of all, count, then for each: mark, hard, soft
//! ```
//! Counts and the version are `u32`, numbers and marks `u64`, all little-endian.

use std::fmt;

use super::Lists;
use super::cut::PurgeEffect;
use super::marks::{MARKS_MAX, Marks};
use super::prefixes::{PREFIX_SIZE_MAX, PREFIXES_MAX, Prefixes};

const MAGIC: &[u8; 8] = b"tw purge";
const VERSION: u32 = 1;
const VERSION_SHARED: u32 = 2;
const CHECKSUM_SIZE: usize = 4;

/// Bytes of the largest file that is written, and that is read.
pub const PURGES_SIZE_MAX: usize = (8 + 4 + 8 + 8)
    + (4 + PREFIXES_MAX * (2 + PREFIX_SIZE_MAX + 16))
    + 2 * (16 + 4 + MARKS_MAX * 24)
    + CHECKSUM_SIZE;

/// Numbers of a purge file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeFileFacts {
    /// Last number that was taken when it was written: purges up to it are in the file, or were forgotten.
    pub last: u64,
    /// Number up to which purges may have been forgotten. A file of a cache with one directory does not tell it: that is its
    /// `last`.
    pub dropped: u64,
}

/// Why a file of purges cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeFileError {
    /// The first bytes are not those of a purge file.
    NotOne,
    /// A version of this number wrote it.
    Version(u32),
    /// The checksum does not match.
    Checksum,
    /// The file is longer than any that is written.
    TooLarge,
    /// The contents are invalid although the checksum matches.
    Malformed,
}

impl fmt::Display for PurgeFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOne => f.write_str("no file of purges"),
            Self::Version(version) => write!(f, "written by version {version}"),
            Self::Checksum => f.write_str("wrong checksum"),
            Self::TooLarge => f.write_str("too large"),
            Self::Malformed => f.write_str("contradictory content"),
        }
    }
}

impl std::error::Error for PurgeFileError {}

pub(super) fn encode(lists: &Lists, last: u64) -> Vec<u8> {
    encode_version(VERSION, lists, last)
}

pub(super) fn encode_shared(lists: &Lists, last: u64) -> Vec<u8> {
    encode_version(VERSION_SHARED, lists, last)
}

fn encode_version(version: u32, lists: &Lists, last: u64) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&version.to_le_bytes());
    put(&mut file, last);
    if version == VERSION_SHARED {
        put(&mut file, lists.dropped);
    }
    put_count(&mut file, lists.prefixes.len());
    for (text, cut) in lists.prefixes.iter() {
        // A prefix has at most PREFIX_SIZE_MAX bytes, so the cast is exact.
        file.extend_from_slice(&(text.len() as u16).to_le_bytes());
        file.extend_from_slice(text);
        put_cut(&mut file, cut);
    }
    for marks in [&lists.tags, &lists.keys] {
        put_cut(&mut file, marks.floor());
        put_count(&mut file, marks.len());
        for (mark, cut) in marks.iter() {
            put(&mut file, mark);
            put_cut(&mut file, cut);
        }
    }
    let checksum = crc32fast::hash(&file);
    file.extend_from_slice(&checksum.to_le_bytes());
    file
}

/// The lists, and the numbers of the file.
pub(super) fn decode(file: &[u8]) -> Result<(Lists, PurgeFileFacts), PurgeFileError> {
    if file.len() > PURGES_SIZE_MAX {
        return Err(PurgeFileError::TooLarge);
    }
    let Some(versioned) = file.strip_prefix(MAGIC) else { return Err(PurgeFileError::NotOne) };
    let (content, checksum) = file.split_last_chunk::<CHECKSUM_SIZE>().ok_or(PurgeFileError::NotOne)?;
    // The version is checked before the checksum, which a newer version may compute differently.
    let version = Rest(versioned).number32().ok_or(PurgeFileError::NotOne)?;
    if version != VERSION && version != VERSION_SHARED {
        return Err(PurgeFileError::Version(version));
    }
    if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
        return Err(PurgeFileError::Checksum);
    }
    let mut rest = Rest(content);
    match rest.content(version) {
        Some((lists, facts))
            if rest.0.is_empty() && lists.newest() <= facts.last && facts.dropped <= facts.last =>
        {
            Ok((lists, facts))
        }
        _ => Err(PurgeFileError::Malformed),
    }
}

fn put(file: &mut Vec<u8>, number: u64) {
    file.extend_from_slice(&number.to_le_bytes());
}

fn put_cut(file: &mut Vec<u8>, cut: PurgeEffect) {
    put(file, cut.hard);
    put(file, cut.soft);
}

/// Counts are below the limits of the lists.
fn put_count(file: &mut Vec<u8>, count: usize) {
    file.extend_from_slice(&(count as u32).to_le_bytes());
}

/// Unread rest of the file. Counts in it are not trusted: every item that is read consumes bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn content(&mut self, version: u32) -> Option<(Lists, PurgeFileFacts)> {
        self.bytes(MAGIC.len() + 4)?;
        let last = self.number()?;
        let dropped = if version == VERSION_SHARED { self.number()? } else { last };
        let prefixes = self.prefixes()?;
        let tags = self.marks()?;
        let keys = self.marks()?;
        let lists = Lists { prefixes, tags, keys, forgotten: 0, dropped };
        Some((lists, PurgeFileFacts { last, dropped }))
    }

    fn prefixes(&mut self) -> Option<Prefixes> {
        let rows = (0..self.number32()?).map(|_| {
            let len = u16::from_le_bytes(*self.array()?);
            Some((self.bytes(usize::from(len))?, self.cut()?))
        });
        Prefixes::of_rows(rows)
    }

    fn marks(&mut self) -> Option<Marks> {
        let mut marks = Marks::default();
        marks.add_floor(self.cut()?);
        for _ in 0..self.number32()? {
            let mark = self.number()?;
            marks.add(mark, self.cut()?);
        }
        Some(marks)
    }

    fn cut(&mut self) -> Option<PurgeEffect> {
        Some(PurgeEffect { hard: self.number()?, soft: self.number()? })
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn number32(&mut self) -> Option<u32> {
        self.array().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(array)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}
