//! Appending of records: a queue, from which one task at a time writes.
//!
//! ```text
//! tasks ─► queue ─► batch of at most 1 MiB ─► one write ─► entries in the index ─► write-back in windows
//! ```
//! Whoever finds no writer becomes it, so a record that is alone is written at once, and while one write goes on, the next
//! batch collects. An entry is made after its record is written. The permits to store are in the queue, with the records: if
//! the task that writes is dropped, the next one writes the same batch to the same place, and if none comes, the manager does.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tw_base::FatalMutex;
use tw_cache::segment::{
    self, BLOCK_SIZE, PREFIX_SIZE, RecordPrefix, SegmentHeader, SegmentRow, TablePlace, encode_row,
    table_size,
};
use tw_cache::{Commit, Key, Move, RemovedEntry, SegmentAddress};
use tw_disk::{Account, DiskError, JobClass, JobSource, WriteBack};

use super::lease::LeasedBytes;
use super::open_segment::OpenSegment;
use super::{SegmentStore, no_room};
use crate::store::context::AppendTarget;
use crate::time::seconds;

/// Rows of a table that are encoded in one turn of an event loop.
const ROWS_PER_TURN: usize = 1024;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of responses that are written into a segment by one job, or one response if it is larger.
    const BATCH_SIZE: u64 = 1 << 20, bytes, "the others wait for the next one";
    /// Bytes of responses that wait until they are written into a segment.
    const QUEUE_SIZE: u64 = 16 << 20, bytes, "a further response is not stored";
}

/// Response to be appended.
pub(crate) struct Record {
    pub(super) permit: RecordPermit,
    pub(super) prefix: RecordPrefix,
    /// Head and body.
    pub(super) entry: Vec<Bytes>,
}

/// Permit for what happens when a record is written.
pub(super) enum RecordPermit {
    /// The response becomes an entry.
    Store(Commit),
    /// The record takes the place of another one of the same response.
    Move(Move),
}

/// Result of appending a record.
#[derive(Debug, Default)]
pub(crate) struct Appended {
    /// True if the response is an entry now; false if it was purged meanwhile.
    pub(crate) is_stored: bool,
    /// Entries that have left the index for it; the caller removes what they had on the disk.
    pub(crate) removed_entries: Vec<RemovedEntry>,
}

/// Result that a task waits for.
pub(super) struct Ticket {
    result: FatalMutex<Option<Result<Appended, DiskError>>>,
    is_over: Notify,
    leftover_entries: Arc<FatalMutex<Vec<RemovedEntry>>>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nobody took it.
        if let Some(Ok(appended)) = self.result.lock().take() {
            self.leftover_entries.lock().extend(appended.removed_entries);
        }
    }
}

struct QueuedRecord {
    record: Record,
    ticket: Arc<Ticket>,
}

impl QueuedRecord {
    fn size(&self) -> u64 {
        u64::from(self.record.prefix.blocks()) * BLOCK_SIZE
    }

    fn end(self, result: Result<Appended, DiskError>) {
        *self.ticket.result.lock() = Some(result);
        self.ticket.is_over.notify_one();
    }
}

/// Queue of records, and the state of the task that writes them.
#[derive(Default)]
pub(crate) struct AppendQueue {
    waiting: FatalMutex<WaitingRecords>,
    writer: Mutex<Writer>,
    leftover_entries: Arc<FatalMutex<Vec<RemovedEntry>>>,
}

#[derive(Default)]
struct WaitingRecords {
    records: VecDeque<QueuedRecord>,
    size: u64,
}

#[derive(Default)]
struct Writer {
    active: Option<ActiveSegment>,
    batch: Option<Batch>,
    /// Records that were written and have no entry, whose permits are held until they are marked.
    refused: Vec<(RecordPermit, Key, SegmentAddress)>,
}

/// Segment to which records are appended.
struct ActiveSegment {
    open: Arc<OpenSegment>,
    /// Size at which it is complete, with its table.
    size: u64,
    /// Block of the next record.
    next: u32,
    rows: Vec<SegmentRow>,
    /// Bytes that are being written back, and that are.
    begun: u64,
    settled: u64,
}

struct Batch {
    records: Vec<QueuedRecord>,
    /// The bytes, padded to whole blocks.
    parts: Vec<Bytes>,
}

impl AppendQueue {
    pub(super) fn take_left(&self) -> Vec<RemovedEntry> {
        std::mem::take(&mut *self.leftover_entries.lock())
    }

    fn push(&self, record: Record) -> Result<Arc<Ticket>, DiskError> {
        let (result, is_over) = (FatalMutex::default(), Notify::new());
        let ticket = Arc::new(Ticket { result, is_over, leftover_entries: self.leftover_entries.clone() });
        let queued = QueuedRecord { record, ticket: ticket.clone() };
        let mut waiting = self.waiting.lock();
        if waiting.size + queued.size() > QUEUE_SIZE {
            return Err(no_room());
        }
        waiting.size += queued.size();
        waiting.records.push_back(queued);
        Ok(ticket)
    }

    /// Takes the next records, as many as one job writes and `room` bytes have room for with their rows.
    fn pop(&self, room: u64, rows: u64) -> Vec<QueuedRecord> {
        let (mut taken, mut size) = (Vec::new(), 0);
        let mut waiting = self.waiting.lock();
        while let Some(next) = waiting.records.front() {
            let with_next = size + next.size();
            let with_table = with_next + table_size(rows + taken.len() as u64 + 1);
            if with_table > room || !taken.is_empty() && with_next > BATCH_SIZE {
                break;
            }
            size = with_next;
            taken.extend(waiting.records.pop_front());
        }
        waiting.size -= size;
        taken
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().records.is_empty()
    }
}

impl AppendTarget<'_> {
    /// Counts entries no more that have left the index.
    pub(super) async fn forget_in_quotas(&self, removed_entries: &[RemovedEntry]) {
        for some in removed_entries.chunks(ROWS_PER_TURN).take_while(|_| self.quotas.is_on()) {
            some.iter().for_each(|removed_entry| self.quotas.forget(self.index, removed_entry.key));
            tw_rt::yield_now().await;
        }
    }
}

impl SegmentStore {
    /// Appends a response with its permit, and adds its entry to the index. Waits for the disk.
    ///
    /// # Errors
    /// The response is not stored: the disk has failed, or too many others wait.
    pub(crate) async fn store(
        &self,
        target: AppendTarget<'_>,
        commit: Commit,
        prefix: RecordPrefix,
        entry: Vec<Bytes>,
    ) -> Result<Appended, DiskError> {
        self.append(target, Record { permit: RecordPermit::Store(commit), prefix, entry }).await
    }

    async fn append(&self, target: AppendTarget<'_>, record: Record) -> Result<Appended, DiskError> {
        let ticket = self.queue.push(record)?;
        self.wait(target, &ticket).await
    }

    /// Puts a record into the queue.
    pub(super) fn enqueue(&self, record: Record) -> Result<Arc<Ticket>, DiskError> {
        self.queue.push(record)
    }

    /// Waits until a record is written; writes if nobody else does.
    pub(super) async fn wait(
        &self,
        target: AppendTarget<'_>,
        ticket: &Ticket,
    ) -> Result<Appended, DiskError> {
        loop {
            let mut over = pin!(ticket.is_over.notified());
            let mut turn = pin!(self.queue.writer.lock());
            let turn = poll_fn(|cx| {
                if over.as_mut().poll(cx).is_ready() || ticket.result.lock().is_some() {
                    return Poll::Ready(None);
                }
                turn.as_mut().poll(cx).map(Some)
            })
            .await;
            match turn {
                Some(mut writer) => self.write_next(target, &mut writer).await,
                None => {
                    if let Some(result) = ticket.result.lock().take() {
                        return result;
                    }
                }
            }
        }
    }

    /// Writes what a task has left in the queue that was dropped.
    pub(crate) async fn flush(&self, target: AppendTarget<'_>) {
        let Ok(mut writer) = self.queue.writer.try_lock() else { return };
        while writer.batch.is_some() || !writer.refused.is_empty() || !self.queue.is_empty() {
            self.write_next(target, &mut writer).await;
        }
    }

    /// Makes the active segment a complete one, to which nothing is appended.
    pub(super) async fn close_active(&self, target: AppendTarget<'_>) {
        let mut writer = self.queue.writer.lock().await;
        if writer.batch.is_none() {
            self.seal(target, &mut writer).await;
        }
    }

    /// Writes the next batch. What fails ends the records of the batch.
    async fn write_next(&self, target: AppendTarget<'_>, writer: &mut MutexGuard<'_, Writer>) {
        let mut account = Account::new(JobClass::Fill, JobSource::of(self.dir.to_bytes()));
        self.mark_refused(target, writer).await;
        if writer.batch.is_none() {
            match self.next_batch(target, &mut account, writer).await {
                Ok(()) => {}
                Err(error) => {
                    let failed = self.queue.pop(u64::MAX, 0);
                    failed.into_iter().for_each(|queued| queued.end(Err(error.clone())));
                }
            }
        }
        let Writer { active: Some(active), batch: Some(batch), .. } = &mut **writer else { return };
        let (open, at) = (active.open.clone(), u64::from(active.next) * BLOCK_SIZE);
        let mut parts = batch.parts.clone();
        // The slot is not used again before a write has ended that nobody waits for.
        parts.push(Bytes::from_owner(LeasedBytes::new([0; 0], &open.lease)));
        let result = target.disk.write_parts(&mut account, &open.file, open.base + at, parts).await;
        let Some(batch) = writer.batch.take() else { return };
        if let Err(error) = result {
            batch.records.into_iter().for_each(|queued| queued.end(Err(error.clone())));
            self.abandon(target, &mut account, writer, at).await;
            return;
        }
        self.enter(writer, batch);
        self.mark_refused(target, writer).await;
        self.write_back(target, &mut account, writer).await;
    }

    /// Takes the next batch from the queue, for a new segment if the active one has no room for it.
    async fn next_batch(
        &self,
        target: AppendTarget<'_>,
        account: &mut Account,
        writer: &mut MutexGuard<'_, Writer>,
    ) -> Result<(), DiskError> {
        let mut is_new = false;
        loop {
            if self.queue.is_empty() {
                return Ok(());
            }
            if let Some(active) = &writer.active {
                let at = u64::from(active.next) * BLOCK_SIZE;
                // A new segment has room for any record.
                let room = if is_new { u64::MAX } else { active.size.saturating_sub(at) };
                let records = self.queue.pop(room, active.rows.len() as u64);
                if !records.is_empty() {
                    let parts = encode(&records, &active.open.header, active.next);
                    writer.batch = Some(Batch { records, parts });
                    return Ok(());
                }
                self.seal(target, writer).await;
            }
            let open = self.create(target.disk, account, target.created).await?;
            let size = self.size.load(std::sync::atomic::Ordering::Relaxed);
            let (begun, settled) = (BLOCK_SIZE, BLOCK_SIZE);
            writer.active = Some(ActiveSegment { open, size, next: 1, rows: Vec::new(), begun, settled });
            is_new = true;
        }
    }

    /// Adds the entries of the records that were written.
    fn enter(&self, writer: &mut Writer, batch: Batch) {
        let Some(active) = &mut writer.active else { return };
        let segment = active.open.header.number;
        let now = seconds(tw_rt::clock::unix().secs);
        // Before the entries: a reader finds the segment by then, and so does a look at its size.
        let blocks: u32 = batch.records.iter().map(|queued| queued.record.prefix.blocks()).sum();
        self.set_bytes(segment, u64::from(active.next + blocks) * BLOCK_SIZE);
        for queued in batch.records {
            let QueuedRecord { record: Record { permit, prefix, .. }, ticket } = queued;
            let RecordPrefix { key, sequence, valid_until, .. } = prefix;
            let row = SegmentRow { key, block: active.next, blocks: prefix.blocks(), sequence, valid_until };
            active.next += row.blocks;
            let address = row.address(segment);
            let entered = match permit {
                RecordPermit::Store(commit) => commit
                    .store_at(address.into(), valid_until, now)
                    .map(|stored| stored.pushed_out.into_iter().chain(stored.replaced).collect())
                    .map_err(RecordPermit::Store),
                RecordPermit::Move(moving) => moving
                    .finish(address, sequence)
                    .map(|removed_entry| vec![removed_entry])
                    .map_err(RecordPermit::Move),
            };
            let appended = match entered {
                Ok(removed_entries) => {
                    active.rows.push(row);
                    Appended { is_stored: true, removed_entries }
                }
                Err(permit) => {
                    writer.refused.push((permit, key, address));
                    Appended::default()
                }
            };
            *ticket.result.lock() = Some(Ok(appended));
            ticket.is_over.notify_one();
        }
    }

    /// Marks records that have no entry, so that no start finds them, and gives up their permits.
    async fn mark_refused(&self, target: AppendTarget<'_>, writer: &mut MutexGuard<'_, Writer>) {
        while let Some((_, key, address)) = writer.refused.last() {
            let (key, address) = (*key, *address);
            if self.mark_removed(target.disk, Some(target.index), key, address).await.is_err() {
                // A start may find the record: purges are not forgotten until then.
                drop(target.index.remove_unknown(key, 0));
            }
            writer.refused.pop();
            self.waiters.notify();
        }
    }

    /// Writes back what was written; waits for the window before when the next is begun.
    async fn write_back(
        &self,
        target: AppendTarget<'_>,
        account: &mut Account,
        writer: &mut MutexGuard<'_, Writer>,
    ) {
        let Some(active) = &mut writer.active else { return };
        let written_len = u64::from(active.next) * BLOCK_SIZE;
        if written_len - active.begun < target.window {
            return;
        }
        let (begun, open) = (active.begun, active.open.clone());
        let place = |range: std::ops::Range<u64>| open.base + range.start..open.base + range.end;
        let (begin, finish) = (place(begun..written_len), place(active.settled..begun));
        let write_back = WriteBack { begin, finish, needless_to: 0 };
        match target.disk.write_back(account, &open.file, write_back).await {
            Ok(()) => (active.settled, active.begun) = (begun, written_len),
            Err(_) => {
                // What is not settled may be something else now.
                let settled = active.settled;
                self.abandon(target, account, writer, settled).await;
            }
        }
    }

    /// Stops using the active segment, of which the disk has not taken what is behind `from`. Entries with records there are
    /// removed.
    async fn abandon(
        &self,
        target: AppendTarget<'_>,
        account: &mut Account,
        writer: &mut MutexGuard<'_, Writer>,
        from: u64,
    ) {
        let Some(mut active) = writer.active.take() else { return };
        let segment = active.open.header.number;
        let is_lost = |row: &SegmentRow| row.address(segment).offset() + row.address(segment).size() > from;
        let mut removed_entries = Vec::new();
        for row in active.rows.extract_if(.., |row| is_lost(row)) {
            removed_entries.extend(target.index.remove_if_address(row.key, row.address(segment)));
        }
        target.forget_in_quotas(&removed_entries).await;
        active.next = u32::try_from(from / BLOCK_SIZE).unwrap_or(active.next);
        if self.cut(target.disk, account, &active.open, from).await.is_ok() {
            removed_entries.into_iter().for_each(RemovedEntry::deleted);
            self.set_bytes(segment, from);
        } else {
            // A start may find records without entries: purges are not forgotten until then.
            drop(target.index.remove_unknown(Key([0; 16]), 0));
        }
        writer.active = Some(active);
        self.seal(target, writer).await;
    }

    /// Writes the table of the active segment. If that fails, the next start scans the segment.
    async fn seal(&self, target: AppendTarget<'_>, writer: &mut MutexGuard<'_, Writer>) {
        let Some(active) = writer.active.take() else { return };
        let (segment, at) = (active.open.header.number, u64::from(active.next) * BLOCK_SIZE);
        self.set_inactive(segment);
        let (mut bytes, mut rows) = (Vec::new(), 0);
        for some in active.rows.chunks(ROWS_PER_TURN) {
            for row in some {
                let address = target.index.peek(row.key).and_then(|entry| entry.address);
                if address == Some(row.address(segment)) {
                    encode_row(row, &mut bytes);
                    rows += 1;
                }
            }
            tw_rt::yield_now().await;
        }
        let table = TablePlace::of(active.next, rows, &bytes);
        let size = at + segment::blocks(bytes.len() as u64) * BLOCK_SIZE;
        let mut account = Account::new(JobClass::Fill, JobSource::of(self.dir.to_bytes()));
        let header = SegmentHeader { table: Some(table), ..active.open.header };
        let open = &active.open;
        if open.write(target.disk, &mut account, at, bytes).await.is_ok() {
            self.set_bytes(segment, size);
            if open.write(target.disk, &mut account, 0, header.encode()).await.is_ok() {
                self.keep_open(segment, &Arc::new(open.with_header(header)));
            }
        }
    }
}

/// Encodes records that begin at `block`.
fn encode(records: &[QueuedRecord], header: &SegmentHeader, mut block: u32) -> Vec<Bytes> {
    const PADDING: [u8; BLOCK_SIZE as usize] = [0; BLOCK_SIZE as usize];
    let mut parts = Vec::with_capacity(records.len() * 4);
    for QueuedRecord { record, .. } in records {
        parts.push(Bytes::copy_from_slice(&record.prefix.encode(header, block)));
        parts.extend(record.entry.iter().cloned());
        block += record.prefix.blocks();
        let len = PREFIX_SIZE + record.prefix.len;
        let padding = len.next_multiple_of(BLOCK_SIZE) - len;
        parts.push(Bytes::from_static(&PADDING).slice(..padding as usize));
    }
    parts
}
