//! Requests wait until a server of the group is free (`queue`).

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use tw_conf::{ConfError, Node, units};
use tw_rt::Deadline;
use tw_upstream::{Group, Lease, PeerSelection, QueuedRequest, Rng};

use crate::failure::UpstreamFailure;
use crate::group_clock::now_ms;

/// Longest wait in the queue if the directive has no timeout.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);
/// `queue`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamQueue {
    /// Most requests that may wait.
    pub most: usize,
    /// Longest wait of a request.
    pub timeout: Duration,
}

/// Reads `queue`.
///
/// # Errors
/// Error of an argument.
pub fn read(node: &Node) -> Result<UpstreamQueue, ConfError> {
    let word = node.arg(0)?;
    let most = word.number().and_then(|most| usize::try_from(most).ok()).filter(|most| *most > 0);
    let most = most.ok_or_else(|| node.fail(format!("invalid value \"{word}\"")).at(word.span))?;
    let timeout = match node.args.get(1) {
        None => Some(QUEUE_TIMEOUT),
        Some(word) => word.param("timeout").and_then(units::msec),
    };
    let invalid = || node.fail(format!("invalid parameter \"{}\"", node.args[1]));
    Ok(UpstreamQueue { most, timeout: timeout.ok_or_else(invalid)? })
}

/// A server for a request, for which it waits if the group has a queue; and how long it did.
pub async fn select(
    group: &Group,
    queue: Option<UpstreamQueue>,
    selection: &mut PeerSelection,
    random: &RefCell<Rng>,
) -> (Result<Lease, UpstreamFailure>, Option<Duration>) {
    let lease = select_now(group, selection, random);
    let (Err(_), Some(queue)) = (&lease, queue) else { return (lease, None) };
    let Some(place) = group.enqueue(queue.most) else { return (Err(UpstreamFailure::QueueFull), None) };
    let began = tw_rt::clock::now();
    let lease = Box::pin(wait(group, queue, place, selection, random)).await;
    (lease, Some(tw_rt::clock::now().saturating_duration_since(began)))
}

/// A server for a request, if one is free.
///
/// # Errors
/// None is free.
pub fn select_now(
    group: &Group,
    selection: &mut PeerSelection,
    random: &RefCell<Rng>,
) -> Result<Lease, UpstreamFailure> {
    group.select(selection, now_ms(), &mut random.borrow_mut()).map_err(|_| UpstreamFailure::NoPeer)
}

/// Reason why a waiting request looks for a server again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    /// Called because a server is free.
    Called,
    /// Time has passed.
    ByTime,
}

/// Waits at a place of the line until there is somebody.
async fn wait(
    group: &Group,
    queue: UpstreamQueue,
    mut place: QueuedRequest,
    selection: &mut PeerSelection,
    random: &RefCell<Rng>,
) -> Result<Lease, UpstreamFailure> {
    let until = tw_rt::clock::now().checked_add(queue.timeout);
    let (mut timer, mut woken) = (Deadline::new(), WakeReason::ByTime);
    loop {
        if let Ok(lease) = select_now(group, selection, random) {
            return Ok(lease);
        }
        if woken == WakeReason::Called && selection.has_tried() {
            // The free peer may be one where this request has failed, but the next one has not.
            place.wake_next();
        }
        if until.is_some_and(|until| until <= tw_rt::clock::now()) {
            return Err(UpstreamFailure::QueueTimeout);
        }
        // No event wakes the queue when a failed server may be tried again, so a timer does.
        let next = [until, next_retry(group)].into_iter().flatten().min();
        timer.clear();
        if let Some(next) = next {
            timer.set_at(next);
        }
        woken = poll_fn(|cx| match place.poll_woken(cx) {
            Poll::Ready(()) => Poll::Ready(WakeReason::Called),
            Poll::Pending => timer.poll_elapsed(cx).map(|()| WakeReason::ByTime),
        })
        .await;
    }
}

/// Time at which the next failed server may be tried again.
fn next_retry(group: &Group) -> Option<Instant> {
    let at = group.retry_ms()?;
    // A failed peer that may be tried already but was not chosen is busy with its trial request, whose end wakes the
    // queue.
    let after = at.checked_sub(now_ms()).filter(|after| *after > 0)?;
    tw_rt::clock::now().checked_add(Duration::from_millis(after))
}
