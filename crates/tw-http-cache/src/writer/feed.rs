//! Reading the body of an exchange into a fill: the first one, beside its writer, and those that continue it, by themselves.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_rt::time::Sleep;
use tw_rt::watch::Subject;

use super::{BodyOrigin, BodyReport, FillLog, room};
use crate::fill::{BodyEnd, Delivery, DeliveryEnd, ExchangeReport, Fill};
use crate::zone::Cache;
use tw_request::event_loop::Loop;

/// One exchange whose body goes into a fill.
pub(crate) struct Feed {
    fill: Arc<Fill>,
    delivery: Delivery,
    origin: Box<dyn BodyOrigin>,
    stall: Option<StallTimer>,
}

/// Time at which a fill counts as stalled (`cache_lock_age`).
struct StallTimer {
    age: Duration,
    look: Sleep,
}

/// Progress of a feed.
pub(crate) enum FeedEvent {
    /// Number of bytes that were received.
    Piece(usize),
    /// The exchange has ended.
    Ended,
    /// Another exchange delivers the body now.
    Superseded,
    /// No client is left, and the file takes no more.
    Unwanted,
}

impl Feed {
    pub(crate) fn new(
        fill: Arc<Fill>,
        delivery: Delivery,
        origin: Box<dyn BodyOrigin>,
        stall_age: Option<Duration>,
    ) -> Self {
        let stall = stall_age.map(|age| StallTimer { age, look: tw_rt::time::sleep(age) });
        Self { fill, delivery, origin, stall }
    }

    /// Adds the next piece to the fill, if `room` bytes in memory leave room for it.
    pub(crate) fn poll(&mut self, room: u64, cx: &mut Context<'_>) -> Poll<FeedEvent> {
        if self.delivery.is_superseded(cx) {
            return Poll::Ready(FeedEvent::Superseded);
        }
        match self.fill.poll_room(room, cx) {
            Poll::Ready(true) => {}
            Poll::Ready(false) => return Poll::Ready(FeedEvent::Unwanted),
            Poll::Pending => return Poll::Pending,
        }
        match self.origin.poll_piece(cx) {
            Poll::Ready(Some(piece)) => {
                let len = piece.len();
                self.delivery.push(piece);
                Poll::Ready(FeedEvent::Piece(len))
            }
            Poll::Ready(None) => Poll::Ready(FeedEvent::Ended),
            Poll::Pending => self.poll_stall(cx),
        }
    }

    /// Checks the progress of the fill when that is due.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<FeedEvent> {
        let Some(StallTimer { age, look }) = &mut self.stall else { return Poll::Pending };
        while Pin::new(&mut *look).poll(cx).is_ready() {
            let now = tw_rt::clock::now();
            let next = match self.fill.stalls_at(*age).filter(|at| *at > now) {
                Some(at) => at,
                None => {
                    if self.fill.is_stalled(now, *age) {
                        self.fill.stalled();
                        if self.delivery.is_superseded(cx) {
                            return Poll::Ready(FeedEvent::Superseded);
                        }
                    }
                    now + *age
                }
            };
            look.reset(next);
        }
        Poll::Pending
    }

    /// Ends the feed after [`FeedEvent::Ended`] and logs its errors.
    pub(crate) fn end(self, fill_log: &FillLog) -> DeliveryEnd {
        let Self { delivery, mut origin, fill, .. } = self;
        let BodyReport { result, warnings, sent, received, took } = origin.end();
        for (level, text) in warnings {
            fill_log.log(level, format_args!("{text}"));
        }
        let report = Some(ExchangeReport { sent, received, took, length: fill.received() });
        match result {
            Ok(()) => delivery.end(BodyEnd::Whole, report),
            Err((level, why)) => {
                fill_log.log(level, format_args!("{why}"));
                delivery.end(BodyEnd::Broken, report)
            }
        }
    }
}

/// Delivers the rest of a fill from `feed`, as a task of its own.
pub(crate) fn deliver(cache: Arc<Cache>, mut feed: Feed, event_loop: &Rc<Loop>, fill_log: FillLog) {
    let subject = Subject { kind: "cache continuation", id: event_loop.index as u64 };
    let (tasks, event_loop) = (event_loop.clone(), event_loop.clone());
    tasks.connections.spawn_counted(subject, async move {
        loop {
            let writers = &cache.zone.writers;
            let room = room(writers.load(std::sync::atomic::Ordering::Relaxed));
            match poll_fn(|cx| feed.poll(room, cx)).await {
                FeedEvent::Piece(len) => {
                    if !event_loop.budget.may_copy(len) {
                        tw_rt::yield_now().await;
                    }
                }
                FeedEvent::Ended => {
                    feed.end(&fill_log);
                    return;
                }
                FeedEvent::Unwanted | FeedEvent::Superseded => return,
            }
        }
    });
}
