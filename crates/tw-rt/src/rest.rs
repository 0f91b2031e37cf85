//! What a loop does now and then, lest it hold memory that it does not need.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::clock;

/// How often it does.
const EVERY: Duration = Duration::from_secs(2);

thread_local! {
    static FREE: RefCell<Vec<fn()>> = const { RefCell::new(Vec::new()) };
}

/// Has `free` called on this thread whenever its loop [rests](Rest): for what is kept here for the next use. Each call adds
/// one, for good.
pub fn before_rest(free: fn()) {
    // At the end of a thread everything is freed anyway.
    let _ = FREE.try_with(|all| all.borrow_mut().push(free));
}

/// When a loop rested.
#[derive(Debug, Clone, Copy)]
pub struct Rest(Instant);

impl Default for Rest {
    fn default() -> Self {
        Self(clock::now())
    }
}

impl Rest {
    /// Frees what is kept here for nobody, and lets go of the memory of this thread, if that was not done lately.
    pub fn if_due(&mut self) {
        let now = clock::now();
        if now.saturating_duration_since(self.0) < EVERY {
            return;
        }
        self.0 = now;
        let all = FREE.with_borrow(Vec::clone);
        all.iter().for_each(|free| free());
        tw_sys::heap::let_go();
    }
}
