//! Requests wait until a server of the group is free (`queue`).

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use tw_rt::Deadline;
use tw_upstream::{Attempt as Looking, Lease, Waiting};

use super::exchange::{Group, now_ms};
use super::fault::Fault;
use crate::event_loop::Loop;

/// `queue`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How many requests wait.
    pub most: usize,
    /// How long one waits.
    pub timeout: Duration,
}

/// A server for a request, for which it waits if the group has a queue; and how long it did.
pub(super) async fn select(
    group: &Group,
    looking: &mut Looking,
    home: &Loop,
) -> (Result<Lease, Fault>, Option<Duration>) {
    let select = |looking: &mut Looking| {
        group.peers.select(looking, now_ms(), &mut home.app.random.borrow_mut()).map_err(|_| Fault::NoPeer)
    };
    let found = select(looking);
    let (Err(_), Some(queue)) = (&found, group.queue) else { return (found, None) };
    let Some(place) = group.peers.wait(queue.most) else { return (Err(Fault::QueueFull), None) };
    let began = tw_rt::clock::now();
    let found = Box::pin(wait(group, queue, place, || select(looking))).await;
    (found, Some(tw_rt::clock::now().saturating_duration_since(began)))
}

/// Waits at a place of the line until `select` finds somebody.
async fn wait(
    group: &Group,
    queue: Queue,
    mut place: Waiting,
    mut select: impl FnMut() -> Result<Lease, Fault>,
) -> Result<Lease, Fault> {
    let until = tw_rt::clock::now().checked_add(queue.timeout);
    let mut timer = Deadline::new();
    loop {
        if let Ok(lease) = select() {
            return Ok(lease);
        }
        if until.is_some_and(|until| until <= tw_rt::clock::now()) {
            return Err(Fault::QueueTimeout);
        }
        // Time calls nobody: a server that has failed is looked at again when it may be tried.
        let next = [until, retry(group)].into_iter().flatten().min();
        timer.clear();
        if let Some(next) = next {
            timer.set_at(next);
        }
        poll_fn(|cx| match place.poll_called(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => timer.poll_elapsed(cx),
        })
        .await;
    }
}

/// When the next server may be tried that has failed.
fn retry(group: &Group) -> Option<Instant> {
    let at = group.peers.retry_ms()?;
    // One that may be tried and was not chosen is busy: somebody calls.
    let after = at.checked_sub(now_ms()).filter(|after| *after > 0)?;
    tw_rt::clock::now().checked_add(Duration::from_millis(after))
}
