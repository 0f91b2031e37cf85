//! The filter that compresses: selects responses, and compresses them piece by piece as the client receives them.
//!
//! A body that is in memory and compressed soon is sent with its length, in one write with the head. Any other one is
//! pulled in pieces; a piece that would take the loop longer than [`INLINE_NS_MAX`] is compressed by a thread of the
//! pool. Nothing is compressed ahead of the client: a slow reader holds one piece and, if that is not all, an encoder,
//! whose memory is counted for the process ([`budget`]).

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tw_conf::Buffers;
use tw_core::session::Session;
use tw_disk::{Account, JobClass, JobSource};
use tw_http::{HeaderName, Method, num};
use tw_log::Level;
use tw_module_support::changed_body::{refuse_ranges, remove_length};
use tw_module_support::types::Types;
use tw_request::body::{Body, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::Request;
use tw_rt::available_memory;

use super::budget::{self, Budget, MemoryPermit};
use super::codec::{self, Spec};
use super::encoder::CodecError;
use super::encoder_memory::{self, Memory};
use super::spare_encoders::{ActiveEncoder, EncoderSource};
use super::{ratio, spare_encoders, turn_budget};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a body that are compressed at a time.
    const PIECE_MAX: usize = 64 << 10, bytes, "the rest waits";
    /// Time that compressing one piece may keep a loop.
    const INLINE_NS_MAX: u64 = 1_000_000, nanos, "larger pieces are compressed by a pool";
    /// Bytes of a body that one job of a pool compresses.
    ///
    /// Most bytes of one job of the pool. Most bodies are shorter: one job makes all of it, and no encoder is held between two.
    const JOB_MAX: usize = 256 << 10, bytes, "the rest waits";
    /// Jobs of a loop that compress at a time.
    ///
    /// Jobs of one loop in the pool at a time. Encoders only compute: more of them than processors would only take time from
    /// the loops. Others wait here, first in, first out, piece by piece.
    const JOBS_MAX: usize = 2, count, "the others wait in order";
    use turn_budget::LIMITS;
    use encoder_memory::LIMITS;
    use budget::LIMITS;
    use spare_encoders::LIMITS;
}
/// Bytes that are compressed at a time at least, however small `gzip_buffers` and its like are.
const PIECE_MIN: usize = 4 << 10;

/// Conditions and parameters of compression.
pub(crate) struct CompressionRules {
    /// Set if any response is compressed.
    pub(crate) on: bool,
    /// `gzip_types`
    pub(crate) types: Types,
    /// `gzip_min_length`
    pub(crate) min_length: u64,
    /// `gzip_buffers`: bytes that are compressed at a time.
    pub(crate) buffers: Buffers,
    /// The encoder.
    pub(crate) spec: Spec,
    /// The slot of `$gzip_ratio`.
    pub(crate) ratio: u16,
    /// Memory of encoders.
    pub(crate) budget: Arc<Budget>,
}

impl CompressionRules {
    /// Filters the response of `r`, if the client allows it.
    pub(crate) fn filter(&self, r: &mut Request, body: Body, is_allowed: fn(&Request) -> bool) -> Body {
        if !self.applies_to(r, &body) {
            return body;
        }
        r.response.varies_by_coding = true;
        if !is_allowed(r) {
            return body;
        }
        let is_head = r.method() == Method::Head;
        let known_bytes = if is_head { None } else { body.in_memory() };
        let memory = self.spec.memory(known_bytes.as_ref().map(|bytes| bytes.len() as u64).or(body.len()));
        // DIFF(nginx): memory for compressing has an end. The filter of the next coding has the response when it is reached.
        let body = match known_bytes.filter(|bytes| self.is_soon_done(bytes.len())) {
            Some(bytes) => {
                let Some(share) = self.admit_piece(r, memory, bytes.len() as u64) else { return body };
                match self.compress_at_once(r, bytes, memory, share) {
                    Ok(compressed) => Body::Bytes(compressed),
                    Err(error) => {
                        r.log(Level::Alert, format_args!("{error} while sending response to client"));
                        return body;
                    }
                }
            }
            None if is_head => self.stream(body, Pieces::One(None)),
            None if self.is_one_piece(&body) => {
                // The body is read into memory before it has an encoder, and waits there for one.
                let bytes = body.len().unwrap_or(0).saturating_mul(2);
                let Some(share) = self.admit_piece(r, memory, bytes) else { return body };
                self.stream(body, Pieces::One(Some(share)))
            }
            None => {
                let Some(share) = self.admit(r, memory) else { return body };
                self.stream(body, Pieces::Many(Some(share)))
            }
        };
        r.response.fields.set(HeaderName::ContentEncoding, self.spec.coding().word());
        remove_length(r);
        refuse_ranges(r);
        r.response.weaken_etag();
        body
    }

    /// Memory for an encoder that is kept until the client has received everything, and for its output.
    fn admit(&self, r: &Request, memory: Memory) -> Option<MemoryPermit> {
        let output = self.output();
        let with_output = Memory { kept: memory.kept + output, peak: memory.peak + output };
        let max = r.generation().memory.compression_memory;
        let share = self.budget.admit(self.spec.coding(), with_output, max, budget::available());
        self.or_log(r, share)
    }

    /// Memory for so many bytes of a body of one piece.
    fn admit_piece(&self, r: &Request, memory: Memory, bytes: u64) -> Option<MemoryPermit> {
        let share = self.budget.admit_piece(self.spec.coding(), memory, bytes, budget::available());
        self.or_log(r, share)
    }

    fn or_log(&self, r: &Request, share: Option<MemoryPermit>) -> Option<MemoryPermit> {
        if share.is_none() {
            r.debug(format_args!("{}: no memory is left for it", self.spec.coding().word()));
        }
        share
    }

    fn applies_to(&self, r: &Request, body: &Body) -> bool {
        let is_encoded = || {
            r.response.fields.get_known(HeaderName::ContentEncoding).is_some_and(|value| !value.is_empty())
        };
        matches!(r.response.status, 200 | 403 | 404)
            && !is_encoded()
            && length(r, body).is_none_or(|length| length >= self.min_length)
            && self.types.contain(&r.response)
    }

    /// Returns `true` if so many bytes can be compressed in this turn.
    fn is_soon_done(&self, bytes: usize) -> bool {
        let cost_ns = self.spec.cost_ns().saturating_mul(bytes as u64);
        cost_ns <= INLINE_NS_MAX && turn_budget::may_spend(cost_ns)
    }

    // DIFF(nginx): what is compressed at once has a Content-Length.
    fn compress_at_once(
        &self,
        r: &mut Request,
        input: Bytes,
        memory: Memory,
        piece: MemoryPermit,
    ) -> Result<Bytes, CodecError> {
        let before = input.len() as u64;
        let work = Work { input, then: Then::Finish };
        let share = self.budget.take(memory.kept);
        let EncoderOutput { active, out } = work.run(spare_encoders::take(self.spec, Some(before), share))?;
        active.into_iter().for_each(|active| spare_encoders::give_back(self.spec, active));
        remember(r, self.ratio, before, out.len() as u64);
        Ok(piece.hold(out))
    }

    /// Bytes that are compressed at a time.
    fn piece(&self) -> usize {
        let total = self.buffers.count.saturating_mul(self.buffers.size).clamp(PIECE_MIN, PIECE_MAX);
        let is_costly = self.spec.cost_ns().saturating_mul(total as u64) > INLINE_NS_MAX;
        if is_costly { JOB_MAX } else { total }
    }

    /// Bytes that come out at a time at most, and wait for the client: as much as went in, if nothing of it compresses.
    fn output(&self) -> u64 {
        let held_len = if self.spec.is_lazy() { codec::HELD_MAX } else { 0 };
        (self.piece() + held_len) as u64
    }

    /// Returns `true` if the whole body can be compressed at once, so that no encoder waits for the client.
    fn is_one_piece(&self, body: &Body) -> bool {
        body.len().is_some_and(|length| length <= self.piece() as u64) && !body.flushes()
    }

    fn stream(&self, body: Body, pieces: Pieces) -> Body {
        Body::Pull(Box::new(Compressed {
            length: body.len(),
            body,
            spec: self.spec,
            piece: self.piece(),
            ratio: self.ratio,
            pieces,
            gathered: Vec::new(),
            stage: Stage::Begin,
            budget: self.budget.clone(),
            before: 0,
            after: 0,
            unflushed_len: None,
        }))
    }
}

/// Length of the response before it is compressed. A response to HEAD may have no body and still have a length.
fn length(r: &Request, body: &Body) -> Option<u64> {
    match r.response.fields.get_known(HeaderName::ContentLength) {
        Some(value) => num::parse(value),
        None => body.len(),
    }
}

fn remember(r: &mut Request, slot: u16, before: u64, after: u64) {
    if let Some(ratio) = ratio::text(before, after) {
        r.set_slot(slot, ratio.into_bytes());
    }
}

/// Work for an encoder.
struct Work {
    input: Bytes,
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Flush,
    Finish,
}

/// Result of the work.
struct EncoderOutput {
    /// The encoder, unless its memory has gone back at once because there is little.
    active: Option<ActiveEncoder>,
    out: Vec<u8>,
}

impl Work {
    fn run(self, supply: EncoderSource) -> Result<EncoderOutput, CodecError> {
        let mut active = supply.encoder()?;
        let mut out = Vec::new();
        active.encoder.feed(&self.input, &mut out)?;
        match self.then {
            Then::Nothing => active.rest(),
            Then::Flush => {
                active.encoder.flush(&mut out)?;
                active.rest();
            }
            Then::Finish => active.encoder.finish(&mut out)?,
        }
        Ok(EncoderOutput { active: Some(active), out })
    }

    /// Works on a thread of a pool. Where memory is short, nothing stays there that is free: each thread would have as much of
    /// it, and other threads could not use it before this one rests.
    fn run_on_pool(self, supply: EncoderSource) -> Result<EncoderOutput, CodecError> {
        if !available_memory::is_short() {
            return self.run(supply);
        }
        let is_last = self.then == Then::Finish;
        let mut worked = self.run(supply)?;
        worked.out.shrink_to_fit();
        if is_last {
            worked.active = None;
        }
        tw_rt::release_unused();
        // Memory is available to other threads only after it went back to the system.
        tw_rt::purge();
        Ok(worked)
    }
}

/// A body that is compressed as it is pulled.
struct Compressed {
    body: Body,
    length: Option<u64>,
    spec: Spec,
    piece: usize,
    ratio: u16,
    pieces: Pieces,
    /// Body gathered so far, for one that is compressed at once.
    gathered: Vec<u8>,
    stage: Stage,
    budget: Arc<Budget>,
    before: u64,
    after: u64,
    /// Bytes fed since the last output; `None` if all of them are written.
    unflushed_len: Option<usize>,
}

/// Division of a body into pieces.
enum Pieces {
    /// All of it at a time. With its memory, until that is the output's.
    One(Option<MemoryPermit>),
    /// As the client takes it. With the memory of its encoder, until that is made.
    Many(Option<MemoryPermit>),
}

/// Location of the encoder.
enum Stage {
    /// Not made yet.
    Begin,
    /// Here.
    Between(ActiveEncoder),
    /// With a job, or lost with it because the future was dropped.
    Away,
    /// The body is finished.
    Finished,
}

impl Pull for Compressed {
    fn next<'a>(&'a mut self, _: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.step(r))
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

impl Drop for Compressed {
    fn drop(&mut self) {
        if let Stage::Between(active) = std::mem::replace(&mut self.stage, Stage::Away) {
            spare_encoders::give_back(self.spec, active);
        }
    }
}

impl Compressed {
    async fn step(&mut self, r: &mut Request) -> io::Result<Option<Bytes>> {
        match self.stage {
            Stage::Begin => {}
            // Other tasks run first, so that a response never keeps the loop for longer than one piece.
            Stage::Between(_) => tw_rt::yield_now().await,
            Stage::Away => return Err(io::Error::other("compression was given up")),
            Stage::Finished => return Ok(None),
        }
        let work = match self.pieces {
            Pieces::One(_) => Work { input: self.whole(r).await?, then: Then::Finish },
            Pieces::Many(_) => self.work(r).await?,
        };
        let then = work.then;
        let EncoderOutput { mut active, out } = self.encode(r, work).await?;
        if then == Then::Finish {
            active.take().into_iter().for_each(|active| spare_encoders::give_back(self.spec, active));
        }
        self.after += out.len() as u64;
        match then {
            Then::Nothing if out.is_empty() => {}
            Then::Nothing => self.unflushed_len = Some(0),
            Then::Flush | Then::Finish => self.unflushed_len = None,
        }
        match active {
            Some(active) => self.stage = Stage::Between(active),
            None => {
                self.stage = Stage::Finished;
                remember(r, self.ratio, self.before, self.after);
            }
        }
        let piece = match &mut self.pieces {
            Pieces::One(share) => share.take(),
            // The share of the encoder counts its output.
            Pieces::Many(_) => None,
        };
        Ok(Some(match piece {
            Some(piece) => piece.hold(out),
            None => out.into(),
        }))
    }

    /// Next piece, and the work that follows.
    async fn work(&mut self, r: &mut Request) -> io::Result<Work> {
        let may_flush = self.unflushed_len.is_some() && self.body.flushes();
        Ok(match pulled(self.body.next(self.piece, r), may_flush).await? {
            Pulled::Piece(input) if self.body.is_empty() => Work { input, then: Then::Finish },
            Pulled::Piece(input) => Work { input, then: Then::Nothing },
            Pulled::End => Work { input: Bytes::new(), then: Then::Finish },
            Pulled::Nothing => Work { input: Bytes::new(), then: Then::Flush },
        })
    }

    /// All of the body, which has at most the length of a piece.
    async fn whole(&mut self, r: &mut Request) -> io::Result<Bytes> {
        loop {
            match self.body.next(self.piece, r).await? {
                Some(piece) if self.gathered.is_empty() && self.body.is_empty() => return Ok(piece),
                Some(piece) => self.gathered.extend_from_slice(&piece),
                None => return Ok(std::mem::take(&mut self.gathered).into()),
            }
        }
    }

    /// Works here or on a thread of the pool, by the estimated cost.
    async fn encode(&mut self, r: &Request, work: Work) -> io::Result<EncoderOutput> {
        let held_len = self.unflushed_len.unwrap_or(0);
        let new = work.input.len();
        let waiting = if self.spec.is_lazy() { held_len } else { 0 };
        self.unflushed_len = Some(held_len + new);
        self.before += new as u64;
        let cost_ns = self.spec.cost_ns().saturating_mul((waiting + new) as u64);
        // Away from here on: should the future be dropped, the piece is lost, and the body must not continue.
        let stage = std::mem::replace(&mut self.stage, Stage::Away);
        let spec = self.spec;
        let length = self.length;
        let budget = self.budget.clone();
        let memory = spec.memory(length);
        let is_counted = matches!(self.pieces, Pieces::Many(_));
        let share = match &mut self.pieces {
            Pieces::Many(share) => share.take(),
            Pieces::One(_) => None,
        };
        // The encoder is taken when the job can run, so that there are no more encoders than necessary.
        let supply = move || {
            if let Stage::Between(active) = stage {
                return EncoderSource::Active(active);
            }
            spare_encoders::take(spec, length, share.unwrap_or_else(|| budget.take(memory.kept)))
        };
        if cost_ns <= INLINE_NS_MAX {
            turn_budget::wait(cost_ns).await;
            return work.run(supply()).map_err(io::Error::other);
        }
        let more = if is_counted { memory.peak - memory.kept } else { memory.peak };
        by_pool(r, work, supply, &self.budget, more).await
    }
}

/// Next piece. If there is none yet and held output should be flushed, returns instead of waiting.
async fn pulled(mut next: LocalFuture<'_, io::Result<Option<Bytes>>>, may_flush: bool) -> io::Result<Pulled> {
    poll_fn(|cx| match next.as_mut().poll(cx) {
        Poll::Ready(Ok(Some(piece))) => Poll::Ready(Ok(Pulled::Piece(piece))),
        Poll::Ready(Ok(None)) => Poll::Ready(Ok(Pulled::End)),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending if may_flush => Poll::Ready(Ok(Pulled::Nothing)),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Result of pulling the body.
#[derive(Debug, PartialEq, Eq)]
enum Pulled {
    Piece(Bytes),
    End,
    /// Nothing yet.
    Nothing,
}

thread_local! {
    static JOBS: Arc<Semaphore> = Arc::new(Semaphore::new(JOBS_MAX));
}

/// Has a job do it, which takes so many bytes only while it works.
async fn by_pool(
    r: &Request,
    work: Work,
    supply: impl FnOnce() -> EncoderSource,
    budget: &Arc<Budget>,
    bytes: u64,
) -> io::Result<EncoderOutput> {
    let Some(disk) = r.disk().cloned() else { return Err(io::ErrorKind::NotFound.into()) };
    let permit = JOBS.with(Arc::clone).acquire_owned().await.map_err(io::Error::other)?;
    let working = budget.begin_work(bytes, budget::available()).await;
    // The job has a lower class than requests that wait for the disk. It has an account of its own, because the
    // request's is for disk jobs.
    let mut account = Account::new(JobClass::Fill, JobSource::of(b"content coding"));
    let supply = supply();
    let job = move || {
        // A job that has begun runs to its end, even if its result is not awaited any more.
        let _held = (permit, working);
        work.run_on_pool(supply)
    };
    disk.pool().run(&mut account, job).await.map_err(io::Error::other)?.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Result that is ready without waiting.
    fn now(next: LocalFuture<'_, io::Result<Option<Bytes>>>, may_flush: bool) -> Option<Pulled> {
        match pin!(pulled(next, may_flush)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(pulled) => Some(pulled.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn held_output_is_flushed_while_the_body_is_pending() {
        let piece = || Box::pin(ready(Ok(Some(Bytes::from_static(b"x")))));
        assert_eq!(now(piece(), true), Some(Pulled::Piece(Bytes::from_static(b"x"))));
        assert_eq!(now(Box::pin(ready(Ok(None))), true), Some(Pulled::End));
        assert_eq!(now(Box::pin(pending()), true), Some(Pulled::Nothing));
        assert_eq!(now(Box::pin(pending()), false), None);
    }

    #[test]
    fn flushed_output_can_be_read_before_the_end() {
        let spec = Spec::Gzip { level: 1, window_bits: 15, mem_level: 8 };
        let work = |input: &'static [u8], then| Work { input: Bytes::from_static(input), then };
        let share = Arc::new(Budget::default()).take(spec.memory(None).kept);
        let worked = work(b"first", Then::Nothing).run(spare_encoders::take(spec, None, share)).unwrap();
        let flushed = work(b"", Then::Flush).run(EncoderSource::Active(worked.active.unwrap())).unwrap();
        let so_far = [worked.out, flushed.out].concat();
        let mut inflate = zlib_rs::Inflate::new(true, 31);
        let mut text = [0; 64];
        inflate.decompress(&so_far, &mut text, zlib_rs::InflateFlush::NoFlush).unwrap();
        assert_eq!(&text[..inflate.total_out() as usize], b"first");
        let rest = work(b" second", Then::Finish).run(EncoderSource::Active(flushed.active.unwrap()));
        let rest = rest.unwrap().out;
        inflate.decompress(&rest, &mut text[5..], zlib_rs::InflateFlush::NoFlush).unwrap();
        assert_eq!(&text[..inflate.total_out() as usize], b"first second");
    }
}
