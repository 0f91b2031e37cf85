//! Reading of a snapshot: a merge of its runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::vec::IntoIter;

use super::block::{Header, STARTS_PER_BLOCK, decode_header, decode_rows, decode_table};
use super::{BLOCK_SIZE, READ_AHEAD_SIZE, READ_BLOCKS_MAX, SnapshotEntry, SnapshotError};

/// A snapshot being read.
#[derive(Debug)]
pub struct SnapshotReader {
    header: Header,
    /// First block of each run, as far as the table is read.
    starts: Vec<u32>,
    runs: Vec<Run>,
    /// Runs of which blocks have to be read before the next entry is known.
    waiting: Vec<usize>,
    /// The next entry of each run, by the time since its last use.
    next: BinaryHeap<Reverse<(u32, usize)>>,
    /// Blocks of one run that are read at once.
    blocks_per_read: u32,
    /// Blocks that the last step asked for.
    asked: Option<Asked>,
    is_table_read: bool,
    damaged_blocks: u64,
}

#[derive(Debug)]
struct Run {
    entries: IntoIter<SnapshotEntry>,
    /// The next block to be read, and the one behind the last.
    next: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The run; `None` for the table.
    run: Option<usize>,
    block: u32,
    count: u32,
}

/// Next step of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// The caller reads these bytes of the file, and passes what it got to [`SnapshotReader::supply`].
    Read {
        /// Offset in the file.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// The entry that was used most recently of those that are left.
    Entry(SnapshotEntry),
    /// There are no more entries.
    Done,
}

impl SnapshotReader {
    /// Starts with the first [`BLOCK_SIZE`] bytes of the file.
    ///
    /// # Errors
    /// The block is damaged, or was written by a newer version.
    pub fn open(first: &[u8]) -> Result<Self, SnapshotError> {
        let header = decode_header(first)?;
        Ok(Self {
            header,
            starts: Vec::new(),
            runs: Vec::new(),
            waiting: Vec::new(),
            next: BinaryHeap::new(),
            blocks_per_read: 1,
            asked: None,
            is_table_read: false,
            damaged_blocks: 0,
        })
    }

    /// Number of entries in the file.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.header.entries
    }

    /// Number of damaged blocks so far. Their entries are missing.
    #[must_use]
    pub fn damaged_blocks(&self) -> u64 {
        self.damaged_blocks
    }

    /// Returns the next entry, or the bytes that are needed for it.
    pub fn step(&mut self) -> SnapshotStep {
        if !self.is_table_read {
            return self.read_table();
        }
        while let Some(&at) = self.waiting.last() {
            match self.runs.get(at).filter(|run| run.next < run.end) {
                Some(run) => {
                    let count = self.blocks_per_read.min(run.end - run.next);
                    return self.ask(Asked { run: Some(at), block: run.next, count });
                }
                None => _ = self.waiting.pop(),
            }
        }
        let Some(Reverse((_, at))) = self.next.pop() else { return SnapshotStep::Done };
        let Some(entry) = self.runs.get_mut(at).and_then(|run| run.entries.next()) else {
            return SnapshotStep::Done;
        };
        self.look_ahead(at);
        SnapshotStep::Entry(entry)
    }

    /// Takes the bytes that the last step asked for; fewer if the file is shorter.
    pub fn supply(&mut self, bytes: &[u8]) {
        let Some(asked) = self.asked.take() else { return };
        let Some(at) = asked.run else {
            self.take_table(asked.block, bytes);
            return;
        };
        let mut blocks = bytes.chunks(BLOCK_SIZE);
        let mut entries = Vec::new();
        for number in asked.block..asked.block + asked.count {
            match blocks.next().and_then(|block| decode_rows(block, number, &self.header)) {
                Some(rows) => entries.extend(rows),
                None => self.damaged_blocks += 1,
            }
        }
        if let Some(run) = self.runs.get_mut(at) {
            run.next = asked.block + asked.count;
            run.entries = entries.into_iter();
        }
        if self.waiting.last() == Some(&at) {
            self.waiting.pop();
        }
        self.look_ahead(at);
    }

    fn ask(&mut self, asked: Asked) -> SnapshotStep {
        self.asked = Some(asked);
        let offset = u64::from(asked.block);
        let len = asked.count as usize;
        SnapshotStep::Read { offset: offset * BLOCK_SIZE as u64, len: len * BLOCK_SIZE }
    }

    /// Puts the next entry of a run in order, or has its next blocks read.
    fn look_ahead(&mut self, at: usize) {
        let Some(run) = self.runs.get(at) else { return };
        match run.entries.as_slice().first() {
            Some(entry) => self.next.push(Reverse((entry.idle_s, at))),
            None if run.next < run.end => self.waiting.push(at),
            None => {}
        }
    }

    fn read_table(&mut self) -> SnapshotStep {
        // A block of the table has a known number of items, so this is exact.
        let done = (self.starts.len() / STARTS_PER_BLOCK) as u32;
        if self.starts.len() < self.header.runs as usize {
            let block = self.header.table.saturating_add(done);
            return self.ask(Asked { run: None, block, count: 1 });
        }
        self.is_table_read = true;
        let ends = self.starts.iter().skip(1).copied().chain([self.header.table]);
        self.runs = self
            .starts
            .iter()
            .zip(ends)
            .map(|(&next, end)| Run { entries: Vec::new().into_iter(), next, end })
            .collect();
        self.waiting = (0..self.runs.len()).rev().collect();
        let blocks = READ_AHEAD_SIZE / BLOCK_SIZE / self.runs.len().max(1);
        self.blocks_per_read = (blocks as u32).clamp(1, READ_BLOCKS_MAX);
        self.step()
    }

    /// Takes a block of the table. Without it no run is found, so that the rest is not read.
    fn take_table(&mut self, number: u32, block: &[u8]) {
        let remaining = self.header.runs as usize - self.starts.len();
        let expected = remaining.min(STARTS_PER_BLOCK);
        let starts = decode_table(block, number, &self.header).filter(|starts| starts.len() == expected);
        let is_in_order = |starts: &Vec<u32>| {
            let mut all = self.starts.last().into_iter().chain(starts);
            let mut last = all.next().copied().unwrap_or(0);
            last > 0
                && last < self.header.table
                && all.all(|&start| start > std::mem::replace(&mut last, start) && start < self.header.table)
        };
        match starts.filter(is_in_order) {
            Some(starts) => self.starts.extend(starts),
            None => {
                self.damaged_blocks += 1;
                self.header.runs = 0;
                self.starts.clear();
            }
        }
    }
}
