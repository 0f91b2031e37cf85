//! Task that stores a response: it reads the body from the upstream server, writes it, and puts the complete file at its path.

pub(crate) mod feed;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tw_cache::format::Meta;
use tw_cache::{Claim, Key};
use tw_disk::{Disk, DiskError, Op};
use tw_log::Level;
use tw_rt::watch::Subject;

use super::entry::open_entries::OpenEntry;
use super::fill::{BodyEnd, Delivery, Fill};
use super::guard::quota::QuotaClaim;
use super::store::files::temp_file::WRITE_SIZE;
use super::store::place::ValidatedFile;
use super::store::{BodyPieces, CommitOutcome, EntryWriter, NewEntry, Store, StoreWriter, WrittenBody};
use super::zone::{Cache, FillLead};
use feed::{Feed, FeedEvent};
use tw_request::event_loop::Loop;
use tw_request::generation::{LoopGeneration, PlanId};
use tw_request::local_future::boxed;
use tw_request::plan::LocalFuture;
use tw_request::request::Request;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a response on its way into a cache that are written by one job.
    constant bytes WRITE_SIZE, "the rest waits for the next one";
    /// Bytes of such a response that its file has not taken.
    ///
    /// Maximum number of body bytes in memory that are not in the file yet: then reading from the upstream server pauses.
    const UNWRITTEN_MAX: u64 = 4 << 20, bytes, "the upstream server waits";
    /// Such bytes of all responses on their way into one cache, each of which may have `UNWRITTEN_MIN`.
    const UNWRITTEN_TOTAL: u64 = 16 << 20, bytes, "their upstream servers wait";
    /// Such bytes that each of them may have, however many they are.
    ///
    /// Minimum that each body may have: more can be received while one part is written.
    const UNWRITTEN_MIN: u64 = 2 * WRITE_SIZE, bytes, "its upstream server waits";
}

/// Maximum number of unwritten bytes for each of `writers` bodies.
pub(crate) fn room(writers: usize) -> u64 {
    (UNWRITTEN_TOTAL / (writers as u64).max(1)).clamp(UNWRITTEN_MIN, UNWRITTEN_MAX)
}

/// Counts a body that is being stored, until it is dropped.
struct WriterCount<'a>(&'a AtomicUsize);

impl<'a> WriterCount<'a> {
    fn new(writers: &'a AtomicUsize) -> Self {
        writers.fetch_add(1, Relaxed);
        Self(writers)
    }
}

impl Drop for WriterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Source of the body of a response.
pub trait BodyOrigin {
    /// Polls the next piece; `None` at the end, complete or not.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;

    /// Reports the end of the body. After `None`.
    fn end(&mut self) -> BodyReport;
}

/// End of a received body.
pub struct BodyReport {
    /// Result; the error is for the log.
    pub result: Result<(), (Level, String)>,
    /// Other lines for the log.
    pub warnings: Vec<(Level, String)>,
    /// Bytes sent to the upstream server.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Duration of the exchange.
    pub took: Option<Duration>,
}

/// Response that is stored by a task of its own.
pub(crate) struct FillWriter {
    /// Response to be stored, with the permit for that.
    pub(crate) entry: NewEntry,
    pub(crate) task: FillTask,
}

/// Task that stores a response.
pub(crate) struct FillTask {
    pub(crate) cache: Arc<Cache>,
    /// Length of the body, if known.
    pub(crate) len: Option<u64>,
    /// Fill that other requests can join.
    pub(crate) lead: FillLead,
    pub(crate) disk: Disk,
    /// Owner of the response, if it has a quota.
    pub(crate) quota: Option<QuotaClaim>,
    pub(crate) event_loop: Rc<Loop>,
    pub(crate) generation: Rc<LoopGeneration>,
    pub(crate) plan: PlanId,
    /// Time without progress after which the rest is requested anew (`cache_lock_age`).
    pub(crate) stall_age: Option<Duration>,
}

/// Write in progress. It returns the writer.
type PendingWrite<'a> = LocalFuture<'a, FinishedWrite<'a>>;

/// Writer of an entry, and the number of body bytes that were written.
struct FinishedWrite<'a> {
    writer: Box<StoreWriter<'a>>,
    result: Result<u64, DiskError>,
}

/// Event that the writer waits for.
enum WriterEvent<'a> {
    Fed(FeedEvent),
    /// Another exchange has delivered enough for a write, or the fill has ended.
    Pending,
    Wrote(FinishedWrite<'a>),
}

impl FillWriter {
    /// Starts the task; `origin` delivers the body behind the bytes that the fill has.
    pub(crate) fn start(self, origin: Option<Box<dyn BodyOrigin>>) {
        let event_loop = self.task.event_loop.clone();
        let subject = Subject { kind: "cache fill", id: event_loop.index as u64 };
        // The layers of a task move what it runs.
        event_loop.connections.spawn_counted(subject, boxed(|| self.task.run(self.entry, origin)));
    }
}

impl FillTask {
    async fn run(self, entry: NewEntry, origin: Option<Box<dyn BodyOrigin>>) {
        let fill = self.lead.fill.clone();
        let key = entry.claim.key();
        let writer = self.cache.zone.store.begin(self.cache.context(&self.disk), entry);
        let store_writer = match origin {
            // The body is complete.
            None => Ok(Some(writer)),
            Some(origin) => {
                let received = self.receive(&fill, Box::new(writer), origin).await;
                received.map(|writer| writer.map(|writer| *writer))
            }
        };
        let stored = match store_writer {
            Ok(Some(writer)) if fill.is_complete() => self.store(&fill, key, writer).await,
            // The reason was logged.
            Ok(_) => return,
            Err(error) => {
                self.cache.note_stored(Some(&error), &|level, message| self.log().log(level, message));
                Err(error)
            }
        };
        if let Err(error) = stored {
            let log = self.log();
            self.cache.report_disk_failure(&error, "storing a response", |level, message| {
                log.log(level, message);
            });
        }
    }

    fn log(&self) -> FillLog {
        FillLog(self.generation.clone(), self.plan)
    }

    /// Reads the body and writes it, until the fill has ended.
    async fn receive<'a>(
        &'a self,
        fill: &Arc<Fill>,
        writer: Box<StoreWriter<'a>>,
        origin: Box<dyn BodyOrigin>,
    ) -> Result<Option<Box<StoreWriter<'a>>>, DiskError> {
        let mut idle = Some(writer);
        let mut writing: Option<PendingWrite<'a>> = None;
        let mut failed = None;
        let mut feed = Some(Feed::new(fill.clone(), Delivery::first(fill), origin, self.stall_age));
        let fill_log = self.log();
        let writers = WriterCount::new(&self.cache.zone.writers);
        loop {
            let has_ended = fill.has_ended();
            if writing.is_none() && failed.is_none() {
                let least = idle.as_ref().map_or(u64::MAX, |writer| self.write_from(writer, feed.is_some()));
                if has_ended {
                    return Ok(idle);
                }
                if fill.pending() >= least {
                    writing = idle.take().map(|writer| write(fill, writer));
                }
            } else if has_ended && failed.is_some() {
                return failed.map_or(Ok(None), Err);
            }
            let step = poll_fn(|cx| {
                if let Some(writing) = &mut writing
                    && let Poll::Ready(wrote) = writing.as_mut().poll(cx)
                {
                    return Poll::Ready(WriterEvent::Wrote(wrote));
                }
                if has_ended {
                    return Poll::Pending;
                }
                // At each turn: it depends on the number of bodies that are being stored.
                let least = match &idle {
                    Some(writer) if failed.is_none() => self.write_from(writer, feed.is_some()),
                    _ => u64::MAX,
                };
                if fill.pending() >= least {
                    return Poll::Ready(WriterEvent::Pending);
                }
                match &mut feed {
                    Some(feed) => feed.poll(room(writers.0.load(Relaxed)), cx).map(WriterEvent::Fed),
                    None => fill.poll_pending(least, cx).map(|()| WriterEvent::Pending),
                }
            })
            .await;
            match step {
                WriterEvent::Fed(FeedEvent::Piece(len)) => {
                    if !self.event_loop.budget.may_copy(len) {
                        tw_rt::yield_now().await;
                    }
                }
                WriterEvent::Fed(FeedEvent::Ended) => {
                    if let Some(feed) = feed.take() {
                        feed.end(&fill_log);
                    }
                }
                WriterEvent::Fed(FeedEvent::Superseded) => feed = None,
                WriterEvent::Pending => {}
                WriterEvent::Wrote(FinishedWrite { writer, result: Ok(len) }) => {
                    writing = None;
                    if let Some(WrittenBody { file, head, settled }) = writer.written_body() {
                        fill.note_written(file, head, len, settled);
                    }
                    idle = Some(writer);
                }
                WriterEvent::Wrote(FinishedWrite { writer, result: Err(error) }) => {
                    // Clients get the rest from memory. The permit to store is held until then.
                    writing = None;
                    idle = Some(writer);
                    fill.stop_file(error.op() == Some(Op::WriteBack));
                    failed = Some(error);
                }
                WriterEvent::Fed(FeedEvent::Unwanted) => {
                    fill.end(BodyEnd::Broken, None);
                    return failed.map_or(Ok(None), Err);
                }
            }
        }
    }

    /// Number of received bytes from which on the body is written. What may be small enough to be stored at once is not written
    /// before. A feed that is not of this task reads no more than `UNWRITTEN_MIN` for certain.
    fn write_from(&self, writer: &StoreWriter<'_>, has_feed: bool) -> u64 {
        let Some(body_max) = writer.whole_max() else { return WRITE_SIZE };
        let is_known_larger = self.len.is_some_and(|len| len > body_max);
        match (is_known_larger, has_feed) {
            (true, _) => WRITE_SIZE,
            (false, true) => (body_max + 1).min(room(self.cache.zone.writers.load(Relaxed))),
            (false, false) => (body_max + 1).min(UNWRITTEN_MIN),
        }
    }

    /// Stores a complete response.
    async fn store(&self, fill: &Arc<Fill>, key: Key, writer: StoreWriter<'_>) -> Result<(), DiskError> {
        let Self { cache, disk, quota, event_loop, generation, .. } = self;
        let (_, pieces) = fill.unwritten();
        let committed = writer.commit(BodyPieces { pieces, needless: fill.needless() }).await;
        let log = self.log();
        cache.note_stored(committed.as_ref().err(), &|level, message| log.log(level, message));
        let mut removed_entries = match committed? {
            CommitOutcome::Stored(removed_entries) => removed_entries,
            CommitOutcome::Refused | CommitOutcome::Damaged => Vec::new(),
        };
        removed_entries.extend(quota.as_ref().and_then(|quota| cache.count_in_quota(key, quota)));
        cache.remove_elsewhere(event_loop, disk, key);
        for removed_entry in removed_entries {
            cache.delete(event_loop, cache.own_disk(&generation.disks).unwrap_or(disk), Some(removed_entry));
        }
        // Until here other requests can join the fill.
        Ok(())
    }
}

/// Writes the bytes that the entry does not have yet.
fn write<'a>(fill: &Fill, mut writer: Box<StoreWriter<'a>>) -> PendingWrite<'a> {
    let (_, pieces) = fill.unwritten();
    let part = BodyPieces { pieces, needless: fill.needless() };
    Box::pin(async move {
        let len = part.len();
        let result = writer.write(part).await.map(|()| len);
        FinishedWrite { writer, result }
    })
}

/// Error log of a fill, whose request may be gone.
pub(crate) struct FillLog(pub(crate) Rc<LoopGeneration>, pub(crate) PlanId);

impl FillLog {
    pub(crate) fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.0.plan(self.1).core.error_log.write(level, None, message);
    }
}

/// Update of an entry's head after the upstream server has validated it.
pub(crate) struct HeadRefresh {
    pub(crate) cache: Arc<Cache>,
    /// New head.
    pub(crate) meta: Box<Meta>,
    /// Old entry.
    pub(crate) was: Rc<OpenEntry>,
    /// Fill that other requests can join meanwhile.
    pub(crate) lead: FillLead,
    pub(crate) claim: Claim,
    pub(crate) disk: Disk,
}

impl HeadRefresh {
    /// Starts in the background of the request.
    pub(crate) fn start(self, r: &Request) {
        let event_loop = r.client().event_loop.clone();
        let subject = Subject { kind: "cache update", id: event_loop.index as u64 };
        let fill_log = FillLog(r.generation().clone(), r.route.plan);
        let generation = r.generation().clone();
        event_loop.clone().connections.spawn_counted(subject, async move {
            let cache = self.cache.clone();
            let log = |level, message: std::fmt::Arguments<'_>| fill_log.log(level, message);
            if let Err(error) = self.run(&event_loop, &generation, &log).await {
                cache.report_disk_failure(&error, "updating a response", log);
            }
        });
    }

    async fn run(
        self,
        event_loop: &Rc<Loop>,
        generation: &LoopGeneration,
        log: &dyn Fn(Level, std::fmt::Arguments<'_>),
    ) -> Result<(), DiskError> {
        let Self { cache, meta, was, lead, claim, disk } = self;
        let file = ValidatedFile::of(&was);
        for removed_entry in cache.zone.store.refresh(cache.context(&disk), meta, file, claim, log).await? {
            cache.delete(event_loop, cache.own_disk(&generation.disks).unwrap_or(&disk), Some(removed_entry));
        }
        // Until here other requests can join the fill.
        drop(lead);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_share_the_write_budget() {
        for (writers, expected) in
            [(0, 4 << 20), (1, 4 << 20), (4, 4 << 20), (5, (16 << 20) / 5), (1000, 512 << 10)]
        {
            assert_eq!(room(writers), expected, "{writers}");
        }
        let writers = AtomicUsize::new(0);
        let (first, second) = (WriterCount::new(&writers), WriterCount::new(&writers));
        drop(first);
        assert_eq!(second.0.load(Relaxed), 1);
    }
}
