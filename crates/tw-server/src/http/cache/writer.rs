//! The task that brings a response into a cache: it takes what the upstream server sends, writes it, and gives the file its place
//! when all of it is there.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_cache::Claim;
use tw_cache::format::{self, Meta, Unfit, Writer as MadeBy};
use tw_disk::{Account, Class, Disk, DiskError, Open, Source, TempFile};
use tw_log::Level;
use tw_rt::watch::Subject;

use super::fill::{Ended, Fill, Report};
use super::hot::Entry;
use super::zone::{Cache, Lead};
use crate::event_loop::Loop;
use crate::http::generation::{LoopGeneration, PlanId};
use crate::http::plan::LocalFuture;
use crate::http::request::Request;

/// Bytes that are written at once.
const WRITE_SIZE: u64 = 256 << 10;

/// Files take whole blocks of their disk.
const BLOCK: u64 = 4096;

pub(crate) const LIMITS: &[Limit] = &[Limit::bytes(
    "WRITE_SIZE",
    WRITE_SIZE,
    "Bytes of a response on its way into a cache that are written by one job",
    "the rest waits for the next one",
)];

/// Where the body of a response comes from.
pub(crate) trait Origin {
    /// The next piece; `None` when there is nothing more, however that came.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;

    /// How it has ended. After `None`.
    fn end(&mut self) -> Arrival;
}

/// How a body that came has ended.
pub(crate) struct Arrival {
    /// The error is for the log.
    pub(crate) how: Result<(), String>,
    /// Bytes that were sent to the upstream server.
    pub(crate) sent: u64,
    /// Bytes that came.
    pub(crate) received: u64,
    /// How long it took.
    pub(crate) took: Option<Duration>,
}

/// What is to be written, and where.
pub(super) struct Writer {
    pub(super) cache: Arc<Cache>,
    pub(super) meta: Meta,
    /// Where others look for what comes.
    pub(super) lead: Lead,
    /// The right to store.
    pub(super) claim: Claim,
    pub(super) disk: Disk,
    pub(super) home: Rc<Loop>,
    pub(super) generation: Rc<LoopGeneration>,
    pub(super) plan: PlanId,
}

/// A write under way: the file comes back with how many more bytes of the body it has.
type Writing = LocalFuture<'static, Result<(TempFile, u64), DiskError>>;

/// What the writer waits for.
enum Step {
    Came(Option<Bytes>),
    Wrote(Result<(TempFile, u64), DiskError>),
    /// Nobody wants the rest.
    Unwanted,
}

impl Writer {
    /// Begins: what comes from `origin` behind what the fill has already.
    pub(super) fn start(self, origin: Option<Box<dyn Origin>>) {
        let home = self.home.clone();
        let subject = Subject { kind: "cache fill", id: home.index as u64 };
        home.connections.run_beside(subject, self.run(origin));
    }

    async fn run(self, origin: Option<Box<dyn Origin>>) {
        let fill = self.lead.fill.clone();
        let written = match origin {
            // All of it is there.
            None => Ok(None),
            Some(origin) => self.take(&fill, origin).await,
        };
        let (cache, telling) = (self.cache.clone(), Telling(self.generation.clone(), self.plan));
        let stored = match written {
            Ok(temp) if fill.is_complete() => self.store(&fill, temp).await,
            // It was told why.
            Ok(_) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            cache.disk_failed(&error, "storing a response", |level, message| telling.log(level, message));
        }
    }

    /// Takes what comes and writes it, until the origin has ended.
    async fn take(
        &self,
        fill: &Arc<Fill>,
        mut origin: Box<dyn Origin>,
    ) -> Result<Option<TempFile>, DiskError> {
        let mut temp = None;
        let mut writing: Option<Writing> = None;
        let mut failed = None;
        let mut has_ended = false;
        loop {
            if writing.is_none() && failed.is_none() {
                let pending = fill.pending();
                if pending >= WRITE_SIZE && !has_ended {
                    writing = Some(self.write(fill, temp.take()));
                } else if has_ended {
                    return Ok(temp);
                }
            } else if has_ended && failed.is_some() {
                return failed.map_or(Ok(None), Err);
            }
            let step = poll_fn(|cx| {
                if let Some(writing) = &mut writing
                    && let Poll::Ready(wrote) = writing.as_mut().poll(cx)
                {
                    return Poll::Ready(Step::Wrote(wrote));
                }
                if has_ended {
                    return Poll::Pending;
                }
                match fill.poll_room(cx) {
                    Poll::Ready(true) => origin.poll_piece(cx).map(Step::Came),
                    Poll::Ready(false) => Poll::Ready(Step::Unwanted),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await;
            match step {
                Step::Came(Some(piece)) => {
                    let may_go_on = self.home.budget.may_copy(piece.len());
                    fill.push(piece);
                    if !may_go_on {
                        tw_rt::yield_now().await;
                    }
                }
                Step::Came(None) => {
                    has_ended = true;
                    let Arrival { how, sent, received, took } = origin.end();
                    let report = Some(Report { sent, received, took, length: fill.received() });
                    match how {
                        Ok(()) => fill.end(Ended::Whole, report),
                        Err(why) => {
                            let telling = Telling(self.generation.clone(), self.plan);
                            telling.log(Level::Error, format_args!("{why}"));
                            fill.end(Ended::Broken, report);
                        }
                    }
                }
                Step::Wrote(Ok((file, len))) => {
                    writing = None;
                    fill.wrote(file.file(), u64::from(self.meta.header_size), len);
                    temp = Some(file);
                }
                Step::Wrote(Err(error)) => {
                    // Clients get the rest from memory.
                    writing = None;
                    failed = Some(error);
                    fill.give_file_up();
                }
                Step::Unwanted => {
                    fill.end(Ended::Broken, None);
                    return failed.map_or(Ok(None), Err);
                }
            }
        }
    }

    /// Writes what the file has not got yet; makes it if there is none.
    fn write(&self, fill: &Fill, temp: Option<TempFile>) -> Writing {
        let (at, pieces) = fill.unwritten();
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        let path = self.cache.place.path(self.claim.key());
        let below = self.cache.place.dir_len();
        let head_len = u64::from(self.meta.header_size);
        let head = temp.is_none().then(|| encode(&self.meta));
        let disk = self.disk.clone();
        Box::pin(async move {
            let mut by = Account::new(Class::Fill, Source::of(path.to_bytes()));
            let temp = match temp {
                Some(temp) => temp,
                None => disk.create_beside(&mut by, &path, below).await?,
            };
            if let Some(head) = head {
                disk.write(&mut by, temp.file(), 0, head).await?;
            }
            disk.write_parts(&mut by, temp.file(), head_len + at, pieces).await?;
            Ok((temp, len))
        })
    }

    /// Gives a response that is complete its place.
    async fn store(self, fill: &Arc<Fill>, temp: Option<TempFile>) -> Result<(), DiskError> {
        let Self { cache, mut meta, lead, claim, disk, home, .. } = self;
        let (key, sequence) = (claim.key(), claim.sequence());
        let path = cache.place.path(key);
        let mut by = Account::new(Class::Fill, Source::of(path.to_bytes()));
        let (len, head_len) = (fill.received(), u64::from(meta.header_size));
        meta.body_len = Some(len);
        let (at, mut pieces) = fill.unwritten();
        if let Some(temp) = &temp {
            disk.write_parts(&mut by, temp.file(), head_len + at, std::mem::take(&mut pieces)).await?;
            // Now it is known how long it is.
            let patch = format::patch(meta.key, sequence, len);
            disk.write(&mut by, temp.file(), patch.at, patch.bytes).await?;
        }
        // It was purged, or a younger one is there.
        let Ok(commit) = claim.commit() else { return Ok(()) };
        match temp {
            Some(temp) => {
                disk.name(&mut by, temp, &path).await?;
            }
            None => {
                pieces.insert(0, encode(&meta));
                disk.put(&mut by, &path, cache.place.dir_len(), pieces).await?;
            }
        }
        let now = super::seconds(tw_rt::clock::unix().secs);
        match commit.store(on_disk(head_len + len), valid_until(&meta), now) {
            Ok(stored) => {
                cache.zone.counts.stored.add(1);
                cache.delete(&home, &disk, stored.pushed_out);
            }
            Err(_purged) => disk.unlink(&mut by, &path).await?,
        }
        // Until here others find it on its way.
        drop(lead);
        Ok(())
    }
}

/// Who is told what goes wrong when the request is gone.
struct Telling(Rc<LoopGeneration>, PlanId);

impl Telling {
    fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.0.plan(self.1).core.error_log.write(level, None, message);
    }
}

/// A head that is written anew: the upstream server has said that the response is still valid.
pub(super) struct Refresh {
    pub(super) cache: Arc<Cache>,
    /// The head as it is to be.
    pub(super) meta: Meta,
    /// The entry as it was.
    pub(super) was: Rc<Entry>,
    /// Where others look meanwhile.
    pub(super) lead: Lead,
    pub(super) claim: Claim,
    pub(super) disk: Disk,
}

impl Refresh {
    /// Begins, beside the request.
    pub(super) fn start(self, r: &Request) {
        let home = r.client().home.clone();
        let subject = Subject { kind: "cache update", id: home.index as u64 };
        let telling = Telling(r.generation().clone(), r.route.plan);
        home.connections.run_beside(subject, async move {
            let cache = self.cache.clone();
            if let Err(error) = self.run().await {
                cache
                    .disk_failed(&error, "updating a response", |level, message| telling.log(level, message));
            }
        });
    }

    async fn run(mut self) -> Result<(), DiskError> {
        let path = self.cache.place.path(self.claim.key());
        let mut by = Account::new(Class::Fill, Source::of(path.to_bytes()));
        self.meta.sequence = self.claim.sequence();
        let mut head = Vec::new();
        match format::encode(&self.meta, &mut head) {
            Ok(()) => {}
            Err(Unfit::NoRoom) => return self.copy(by).await,
            // No file has room for it: the next request asks once more.
            Err(_) => return Ok(()),
        }
        let Ok(commit) = self.claim.commit() else { return Ok(()) };
        let file = self.disk.open(&mut by, &path, &Open::READ_WRITE).await?;
        self.disk.write(&mut by, &file, 0, head).await?;
        let now = super::seconds(tw_rt::clock::unix().secs);
        let size = on_disk(u64::from(self.meta.header_size) + self.was.len);
        // One that was purged meanwhile is found purged by its number.
        let _ = commit.store(size, valid_until(&self.meta), now);
        // Until here others find it on its way.
        drop(self.lead);
        Ok(())
    }
}

impl Refresh {
    /// Gives the entry a new file: the head has no room in the one it has, or nginx has written that.
    async fn copy(self, mut by: Account) -> Result<(), DiskError> {
        let Self { cache, mut meta, was, lead, claim, disk } = self;
        let Ok(header_size) = format::place(&meta) else { return Ok(()) };
        let before = u64::from(meta.header_size);
        (meta.header_size, meta.body_len, meta.writer) = (header_size, Some(was.len), MadeBy::Tailwater);
        let path = cache.place.path(claim.key());
        let temp = disk.create_beside(&mut by, &path, cache.place.dir_len()).await?;
        disk.write(&mut by, temp.file(), 0, encode(&meta)).await?;
        let mut at = 0;
        while at < was.len {
            // At most WRITE_SIZE.
            let room = vec![0; (was.len - at).min(WRITE_SIZE) as usize];
            let piece = disk.read(&mut by, was.file.file(), before + at, room).await?;
            if piece.is_empty() {
                // Somebody has cut it off.
                return Ok(());
            }
            let len = piece.len() as u64;
            disk.write(&mut by, temp.file(), u64::from(header_size) + at, piece).await?;
            at += len;
        }
        let Ok(commit) = claim.commit() else { return Ok(()) };
        disk.name(&mut by, temp, &path).await?;
        let now = super::seconds(tw_rt::clock::unix().secs);
        let _ = commit.store(on_disk(u64::from(header_size) + was.len), valid_until(&meta), now);
        drop(lead);
        Ok(())
    }
}

/// The head as it is written. That it fits was seen when its size was fixed.
fn encode(meta: &Meta) -> Bytes {
    let mut head = Vec::with_capacity(meta.header_size as usize);
    let encoded = format::encode(meta, &mut head);
    debug_assert!(encoded.is_ok(), "{encoded:?}");
    head.into()
}

/// Bytes that a file takes of its disk.
pub(super) fn on_disk(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}

/// Until when a response is valid, as the index has it.
pub(super) fn valid_until(meta: &Meta) -> u32 {
    super::seconds(meta.lifetime.valid_until)
}
