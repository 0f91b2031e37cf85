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

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use tw_conf::{MemoryFiles, Reader, Tree};
    use tw_upstream::{BalanceKey, PeerParams};

    use super::*;
    use crate::test_session::group;

    #[test]
    fn parameters_of_queue() {
        for (words, expected) in [
            ("10", Ok((10, 60_000))),
            ("1 timeout=5s", Ok((1, 5000))),
            ("0", Err("invalid value \"0\"")),
            ("-1", Err("invalid value \"-1\"")),
            ("x", Err("invalid value \"x\"")),
            ("1 timeout=x", Err("invalid parameter \"timeout=x\"")),
            ("1 5s", Err("invalid parameter \"5s\"")),
        ] {
            let mut tree = Tree::default();
            let text = format!("queue {words};");
            Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
            let queue = read(&tree.nodes[0]).map(|queue| (queue.most, queue.timeout.as_millis()));
            match (queue, expected) {
                (Err(error), Err(message)) => assert!(error.message.contains(message), "{}", error.message),
                (queue, expected) => assert_eq!(queue.ok(), expected.ok(), "{words}"),
            }
        }
    }

    #[test]
    fn request_waits_for_a_lease_of_a_full_queue() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let group = group(PeerParams { max_conns: 1, ..PeerParams::default() });
            let random = RefCell::new(Rng::seeded(1));
            let begin = || group.start_selection(BalanceKey::None, None, 0);
            let mut selections = [begin(), begin(), begin(), begin()];
            let [first, second, third, fourth] = &mut selections;
            let queue = |timeout| Some(UpstreamQueue { most: 1, timeout });
            let long = Duration::from_secs(60);

            let (lease, queued) = select(&group, queue(long), first, &random).await;
            assert_eq!(queued, None);
            let mut cx = Context::from_waker(Waker::noop());
            let mut waiting = Box::pin(select(&group, queue(long), second, &random));
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            let (refused, queued) = select(&group, queue(long), third, &random).await;
            assert!(matches!(refused, Err(UpstreamFailure::QueueFull)) && queued.is_none());
            let (refused, queued) = select(&group, None, third, &random).await;
            assert!(matches!(refused, Err(UpstreamFailure::NoPeer)) && queued.is_none());

            drop(lease);
            let (second_lease, queued) = waiting.await;
            assert!(second_lease.is_ok() && queued.is_some());
            let (refused, queued) = select(&group, queue(Duration::ZERO), fourth, &random).await;
            assert!(matches!(refused, Err(UpstreamFailure::QueueTimeout)) && queued.is_some());
        });
    }
}
