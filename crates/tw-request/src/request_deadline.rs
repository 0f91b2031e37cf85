//! Deadline of a whole request (`request_timeout`).
//!
//! The location that a request enters sets it, always from the begin of the request. Its body notes when it waits for the client, so
//! that the status can tell who was too slow.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Deadline of one request, shared by its routing, its body and the task that serves it.
#[derive(Debug)]
pub struct RequestDeadline {
    /// Begin of the request.
    started: Instant,
    at: Cell<Option<Instant>>,
    awaits_body: Cell<bool>,
}

impl RequestDeadline {
    /// No deadline yet for a request that began at `started`.
    pub fn new(started: Instant) -> Self {
        Self { started, at: Cell::new(None), awaits_body: Cell::new(false) }
    }

    /// Ends the request `timeout` after its begin; `None` means no limit.
    pub fn set(&self, timeout: Option<Duration>) {
        self.at.set(timeout.and_then(|timeout| self.started.checked_add(timeout)));
    }

    /// Ends the request at `at`, whatever its location says.
    pub fn set_at(&self, at: Instant) {
        self.at.set(Some(at));
    }

    /// The time, if there is a limit.
    pub fn at(&self) -> Option<Instant> {
        self.at.get()
    }

    /// Notes that the body waits for the client, or no longer does.
    pub fn set_awaits_body(&self, awaits: bool) {
        self.awaits_body.set(awaits);
    }

    /// Returns true if the request waits for its body.
    pub fn awaits_body(&self) -> bool {
        self.awaits_body.get()
    }
}
