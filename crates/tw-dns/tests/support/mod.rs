//! Event loop for the tests of this crate.

use std::sync::mpsc;

use tw_rt::{LoopGuard, LoopOptions, LoopThread};

/// Runs `main` on a loop that may not touch a file, and returns its output.
pub(crate) fn on_loop<T, Fut>(main: impl FnOnce() -> Fut + Send + 'static) -> T
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let options = LoopOptions { guard: LoopGuard::Enforce, ..LoopOptions::new(0) };
    let thread = LoopThread::<()>::start(options, |_| async move {
        let _ = sender.send(main().await);
    })
    .unwrap();
    thread.join().unwrap();
    receiver.recv().unwrap()
}
