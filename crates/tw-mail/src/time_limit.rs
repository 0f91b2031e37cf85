//! Time limit of a future.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use tw_rt::Deadline;

/// Waits for a future at most until `until`; `None` if the time is over.
pub(crate) async fn in_time<T>(until: Instant, future: impl Future<Output = T>) -> Option<T> {
    let deadline = RefCell::new(Deadline::new());
    deadline.borrow_mut().set_at(until);
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => deadline.borrow_mut().poll_elapsed(cx).map(|()| None),
    })
    .await
}
