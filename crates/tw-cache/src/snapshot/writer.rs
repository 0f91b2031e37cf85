//! Making of a snapshot.

use super::block::{Header, STARTS_PER_BLOCK, encode_header, encode_rows, encode_table};
use super::{BLOCK_SIZE, ROWS_PER_BLOCK, RUN_ENTRIES, SnapshotEntry};
use crate::index::{Index, Progress, ScanCursor};

/// A snapshot in the making.
#[derive(Debug)]
pub struct SnapshotWriter {
    header: Header,
    cursor: ScanCursor,
    stage: Stage,
    run: Vec<SnapshotEntry>,
    /// First block of each run.
    starts: Vec<u32>,
    /// Number of blocks so far.
    blocks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Rows,
    /// From this run on the table is still to be written.
    Table(usize),
    Header,
    Done,
}

/// Result of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum SnapshotPart {
    /// Nothing is to be written yet.
    More,
    /// These bytes belong at this offset of the file. The first bytes of the file come last.
    Write {
        /// Offset in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The file is complete.
    Done,
}

impl SnapshotWriter {
    /// Starts a snapshot at `now`, in seconds of the wall clock. `stamp` differs from that of the snapshot before.
    #[must_use]
    pub fn new(now: u32, stamp: u32) -> Self {
        Self {
            header: Header { stamp, taken: now, entries: 0, table: 0, runs: 0 },
            cursor: ScanCursor::default(),
            stage: Stage::Rows,
            run: Vec::new(),
            starts: Vec::new(),
            blocks: 1,
        }
    }

    /// Number of entries so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.header.entries
    }

    /// Takes some more entries of `index`, at most 32 (`STEP_ENTRIES`) under a lock, or makes the next part of the
    /// file: at most a third of a millisecond of work.
    pub fn step(&mut self, index: &Index) -> SnapshotPart {
        match self.stage {
            Stage::Rows => {
                let progress = index.copy(&mut self.cursor, self.header.taken, &mut self.run);
                if progress == Progress::Done {
                    self.stage = Stage::Table(0);
                }
                let is_over = progress == Progress::Done && !self.run.is_empty();
                if is_over || self.run.len() >= RUN_ENTRIES { self.end_run() } else { SnapshotPart::More }
            }
            Stage::Table(from) => self.table(from),
            Stage::Header => {
                self.stage = Stage::Done;
                SnapshotPart::Write { offset: 0, bytes: encode_header(&self.header) }
            }
            Stage::Done => SnapshotPart::Done,
        }
    }

    fn end_run(&mut self) -> SnapshotPart {
        let mut run = std::mem::take(&mut self.run);
        run.sort_unstable_by_key(|entry| entry.idle_s);
        self.starts.push(self.blocks);
        self.header.entries += run.len() as u64;
        let offset = offset(self.blocks);
        let mut bytes = Vec::with_capacity(run.len().div_ceil(ROWS_PER_BLOCK) * BLOCK_SIZE);
        for entries in run.chunks(ROWS_PER_BLOCK) {
            bytes.extend(encode_rows(self.blocks, &self.header, entries));
            self.blocks += 1;
        }
        run.clear();
        self.run = run;
        SnapshotPart::Write { offset, bytes }
    }

    fn table(&mut self, from: usize) -> SnapshotPart {
        if from == 0 {
            // A run has more than one entry: there are fewer than blocks.
            (self.header.table, self.header.runs) = (self.blocks, self.starts.len() as u32);
        }
        let starts = self.starts.get(from..).unwrap_or_default();
        if starts.is_empty() {
            self.stage = Stage::Header;
            return SnapshotPart::More;
        }
        let part = SnapshotPart::Write {
            offset: offset(self.blocks),
            bytes: encode_table(self.blocks, &self.header, starts),
        };
        self.blocks += 1;
        self.stage = Stage::Table(from + STARTS_PER_BLOCK);
        part
    }
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_SIZE as u64
}
