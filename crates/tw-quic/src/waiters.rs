//! Tasks that wait for a connection and its streams.

use std::collections::HashMap;
use std::task::{Context, Waker};

use engine::Dir;
use quinn_proto as engine;

use crate::stream_id::StreamId;

/// Tasks that wait.
#[derive(Default)]
pub(crate) struct Waiters {
    pub(crate) accept_bidi: Option<Waker>,
    pub(crate) accept_uni: Option<Waker>,
    pub(crate) open_uni: Option<Waker>,
    pub(crate) established: Option<Waker>,
    pub(crate) closed: Vec<Waker>,
    pub(crate) close_sent: Option<Waker>,
    pub(crate) streams: HashMap<StreamId, StreamWaiters, foldhash::fast::RandomState>,
    /// Tasks that read streams in one direction, of which there are few. They wait as long as the connection lasts.
    uni_reads: Vec<(StreamId, Waker)>,
}

#[derive(Default)]
pub(crate) struct StreamWaiters {
    pub(crate) read: Option<Waker>,
    /// Waits for a reset without reading.
    pub(crate) reset: Option<Waker>,
    pub(crate) write: Option<Waker>,
    /// Waits for the end of writing.
    pub(crate) end: Option<Waker>,
}

impl Waiters {
    /// Wakes all tasks.
    pub(crate) fn wake_all(self) {
        let Waiters {
            accept_bidi,
            accept_uni,
            open_uni,
            established,
            closed,
            close_sent,
            streams,
            uni_reads,
        } = self;
        let of_streams = streams.into_values().flat_map(|one| [one.read, one.reset, one.write, one.end]);
        let of_connection = [accept_bidi, accept_uni, open_uni, established, close_sent].into_iter();
        let uni_reads = uni_reads.into_iter().map(|(_, waker)| waker);
        of_connection.chain(of_streams).flatten().chain(closed).chain(uni_reads).for_each(Waker::wake);
    }

    /// Place of the task that waits for a stream of the client.
    pub(crate) fn accept(&mut self, dir: Dir) -> &mut Option<Waker> {
        match dir {
            Dir::Bi => &mut self.accept_bidi,
            Dir::Uni => &mut self.accept_uni,
        }
    }

    /// Stores the task that reads a stream.
    pub(crate) fn remember_read(&mut self, stream: StreamId, cx: &Context<'_>) {
        if stream.is_bidi() {
            return remember(&mut self.streams.entry(stream).or_default().read, cx);
        }
        match self.uni_reads.iter_mut().find(|(other, _)| *other == stream) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => self.uni_reads.push((stream, cx.waker().clone())),
        }
    }

    /// Takes the task that reads a stream in one direction.
    pub(crate) fn take_uni_read(&mut self, stream: StreamId) -> Option<Waker> {
        let place = self.uni_reads.iter().position(|(other, _)| *other == stream)?;
        Some(self.uni_reads.swap_remove(place).1)
    }

    /// Forgets the tasks that read a stream or wait for its reset.
    pub(crate) fn forget_reads(&mut self, stream: StreamId) {
        self.take_uni_read(stream);
        self.wake(stream, |waiters| (waiters.read, waiters.reset) = (None, None));
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.streams.shrink_to_fit();
        self.closed.shrink_to_fit();
    }

    /// Wakes waiters of a stream, and forgets those of one that nobody waits for.
    pub(crate) fn wake(&mut self, stream: StreamId, wake: impl FnOnce(&mut StreamWaiters)) {
        if let Some(waiters) = self.streams.get_mut(&stream) {
            wake(waiters);
            let StreamWaiters { read, reset, write, end } = waiters;
            if [read, reset, write, end].into_iter().all(|waker| waker.is_none()) {
                self.streams.remove(&stream);
            }
        }
    }
}

/// Stores the task of `cx`, unless it is the one that is stored.
pub(crate) fn remember(place: &mut Option<Waker>, cx: &Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}
