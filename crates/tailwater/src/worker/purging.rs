//! Purges that `tailwater purge` orders. Each has a thread of its own, because it waits for the disk: the main thread
//! has to send signs of life, and a loop has clients.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use tailwater_commands::cli::{Purge, PurgeMode, PurgeScope};
use tw_app::Generation;
use tw_app::cache::{self, Cache, PURGES_MAX};
use tw_log::{Level, Text};

/// Result of a purge.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PurgeOutcome {
    /// Set if the entries are not used again, or are stale.
    pub(crate) is_done: bool,
    /// Message to print.
    pub(crate) said: Option<String>,
}

impl PurgeOutcome {
    /// Result of a refused purge.
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self { is_done: false, said: Some(why.into()) }
    }
}

/// Counter of purges in progress: each has one more handle.
#[derive(Default)]
pub(crate) struct PurgesInProgress(Arc<()>);

impl PurgesInProgress {
    /// Begins a purge. `answer` gets what came of it, perhaps at once.
    pub(crate) fn begin(
        &self,
        generation: &Generation,
        order: Purge,
        answer: impl FnOnce(PurgeOutcome) + Send + 'static,
    ) {
        let one_more = self.0.clone();
        let owed = PendingAnswer(Some(Box::new(answer)));
        if Arc::strong_count(&self.0) > PURGES_MAX + 1 {
            return owed.pay(PurgeOutcome::refused("too many purges wait for a disk"));
        }
        let generation = generation.clone();
        // If no thread can be started, dropping `owed` sends the reply.
        let _ = thread::Builder::new().name("purge".to_owned()).spawn(move || {
            let _one_more = one_more;
            owed.pay(block_on(purge(&generation, &order)));
        });
    }
}

/// An answer that is awaited. Dropping it answers that the purge was not done.
struct PendingAnswer(Option<Box<dyn FnOnce(PurgeOutcome) + Send>>);

impl PendingAnswer {
    fn pay(mut self, outcome: PurgeOutcome) {
        if let Some(answer) = self.0.take() {
            answer(outcome);
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(PurgeOutcome::refused("the purge has failed: see the error log"));
        }
    }
}

async fn purge(generation: &Generation, order: &Purge) -> PurgeOutcome {
    let name = Text(&order.cache);
    let Some(cache) = generation.shared_objects.find::<Cache>(&order.cache) else {
        let known_names = generation.shared_objects.of_type::<Cache>();
        let known_names: Vec<_> = known_names.iter().map(|(name, _)| format!("\"{}\"", Text(name))).collect();
        return PurgeOutcome::refused(if known_names.is_empty() {
            format!("no cache \"{name}\": the server has none")
        } else {
            format!("no cache \"{name}\": the server has {}", known_names.join(", "))
        });
    };
    let scope = match &order.named {
        PurgeScope::Key(text) => cache::PurgeScope::of_text(text),
        PurgeScope::Tag(tag) => cache::PurgeScope::Tags(vec![tag.clone()]),
    };
    let mode = match order.mode {
        PurgeMode::Hard => cache::Purge::Hard,
        PurgeMode::Soft => cache::Purge::Soft,
    };
    let log = |level, message: std::fmt::Arguments<'_>| generation.error_log.write(level, None, message);
    match cache.purge(generation.disks.default_disk(), &scope, mode, log).await {
        Ok(cache::PurgeOutcome::Done) => PurgeOutcome { is_done: true, said: None },
        Ok(cache::PurgeOutcome::Nothing) => {
            PurgeOutcome { is_done: true, said: Some(format!("nothing in cache \"{name}\" has this key")) }
        }
        Ok(cache::PurgeOutcome::Queued) => PurgeOutcome {
            is_done: true,
            said: Some(
                "the engine of the fleet is away: other nodes purge when it is there again".to_owned(),
            ),
        },
        Ok(cache::PurgeOutcome::Unpublished) => PurgeOutcome::refused(
            "it is purged on this node only, because other nodes of the fleet could not be notified, the error log has the reason",
        ),
        Err(error) => {
            log(Level::Crit, format_args!("{error} while purging, cache \"{name}\""));
            PurgeOutcome::refused(format!("it is purged, but that may not outlive a restart: {error}"))
        }
    }
}

/// Runs `future` on a thread that may wait.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_answer_that_is_owed_is_given_once() {
        let (sender, receiver) = channel();
        let owed = || {
            let sender = sender.clone();
            PendingAnswer(Some(Box::new(move |outcome: PurgeOutcome| sender.send(outcome.is_done).unwrap())))
        };
        owed().pay(PurgeOutcome { is_done: true, said: None });
        drop(owed());
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn waiting_thread_is_woken() {
        let (sender, receiver) = later_value();
        let waiting = thread::spawn(move || block_on(receiver));
        sender();
        assert_eq!(waiting.join().unwrap(), 7);
    }

    /// A future that is ready when the function was called.
    fn later_value() -> (impl FnOnce(), impl Future<Output = u32> + Send) {
        let state = Arc::new(std::sync::Mutex::new((false, None::<std::task::Waker>)));
        let of_future = state.clone();
        let future = std::future::poll_fn(move |cx| {
            let mut state = of_future.lock().unwrap();
            if state.0 {
                return Poll::Ready(7);
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        });
        let sender = move || {
            let mut state = state.lock().unwrap();
            state.0 = true;
            if let Some(waker) = state.1.take() {
                waker.wake();
            }
        };
        (sender, future)
    }
}
