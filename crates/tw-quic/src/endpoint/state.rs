//! State of an endpoint: its connections, those with something to do, counters, and the end of connections in which the engine has panicked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::task::Waker;

use engine::ConnectionHandle;
use quinn_proto as engine;

use super::driver::Driver;
use crate::error::ConnectionError;
use crate::shared::{EngineConnection, Shared};
use crate::transmit::TransmitBatch;

/// State of an endpoint, which its handles and its connections share.
pub(crate) struct EndpointState {
    pub(crate) driver: RefCell<Driver>,
    /// Connections by their numbers in the engine.
    pub(super) table: RefCell<Vec<Option<Rc<Shared>>>>,
    /// Connections that may have something to send, or whose timers have changed.
    pub(super) queue: RefCell<VecDeque<Rc<Shared>>>,
    /// True while a client that has moved waits for its PATH_CHALLENGE.
    pub(super) has_moved_client: Cell<bool>,
    /// Connections whose close is in the batch.
    pub(super) closing: RefCell<Vec<Rc<Shared>>>,
    pub(super) waker: RefCell<Option<Waker>>,
    pub(super) statistics: Cell<EndpointStatistics>,
}

/// Counters of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointStatistics {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Handshakes that have failed, or were refused.
    pub refused: u64,
    /// Retry packets.
    pub retries: u64,
    /// Stateless resets.
    pub resets: u64,
    /// Datagrams that were dropped because of a limit.
    pub dropped: u64,
    /// Panics of the engine.
    pub panics: u64,
}

impl EndpointState {
    pub(crate) fn count(&self, count: impl FnOnce(&mut EndpointStatistics)) {
        let mut statistics = self.statistics.get();
        count(&mut statistics);
        self.statistics.set(statistics);
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Adds a connection that the engine has accepted.
    pub(crate) fn add(self: &Rc<Self>, driver: &mut Driver, accepted: EngineConnection) -> Rc<Shared> {
        let serial = driver.next_serial;
        driver.next_serial += 1;
        let this: Weak<Self> = Rc::downgrade(self);
        let handle = accepted.handle;
        let shared = Shared::new(accepted, serial, this);
        driver.handshakes += 1;
        let mut table = self.table.borrow_mut();
        if table.len() <= handle.0 {
            table.resize(handle.0 + 1, None);
        }
        if let Some(slot) = table.get_mut(handle.0) {
            *slot = Some(shared.clone());
        }
        drop(table);
        shared.call(|engine| shared.exchange(engine, driver));
        shared
    }

    pub(super) fn find(&self, handle: ConnectionHandle, serial: u64) -> Option<Rc<Shared>> {
        let table = self.table.borrow();
        table.get(handle.0)?.as_ref().filter(|shared| shared.serial == serial).cloned()
    }

    /// Adds a connection to the queue, unless it is there or gone.
    pub(crate) fn queue(&self, handle: ConnectionHandle, serial: u64) {
        let Some(shared) = self.find(handle, serial) else { return };
        if !shared.is_queued.replace(true) {
            self.queue.borrow_mut().push_back(shared);
            self.wake();
        }
    }

    /// Notes that the packets of closes were sent, if none is left in the batch.
    pub(super) fn note_closes_sent(&self, batch: &TransmitBatch) {
        if batch.is_empty() {
            self.closing.take().iter().for_each(|shared| shared.close_sent());
        }
    }

    /// Calls the engine. `None` if it has panicked: what the panic concerns has been ended.
    pub(crate) fn guard<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        // State that a panic may leave half changed is dropped.
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(done) => Some(done),
            Err(_) => {
                self.count(|statistics| statistics.panics += 1);
                self.recover();
                None
            }
        }
    }

    /// Ends the connections that a panic concerns.
    fn recover(&self) {
        let is_of_endpoint = self.driver.borrow().is_busy;
        if is_of_endpoint {
            let all = std::mem::take(&mut *self.table.borrow_mut());
            self.queue.borrow_mut().clear();
            let old = {
                let mut driver = self.driver.borrow_mut();
                let mut new = Driver::new(driver.config.clone(), driver.clock.clone(), driver.epoch + 1);
                new.is_accepting = driver.is_accepting;
                std::mem::replace(&mut *driver, new)
            };
            for shared in all.into_iter().flatten() {
                shared.ended(ConnectionError::EngineFailed);
                shared.free();
            }
            // Parts of the connection may be half changed: a second panic here must not end the loop.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
            return;
        }
        let broken: Vec<_> =
            self.table.borrow().iter().flatten().filter(|shared| shared.is_broken()).cloned().collect();
        for shared in broken {
            self.forget(&shared);
        }
    }

    /// Ends a connection in which the engine has panicked.
    pub(super) fn forget(&self, shared: &Rc<Shared>) {
        shared.ended(ConnectionError::EngineFailed);
        let mut driver = self.driver.borrow_mut();
        driver.uncount(shared);
        driver.with_engine(|engine| engine.handle_event(shared.handle, engine::EndpointEvent::drained()));
        drop(driver);
        if let Some(slot) = self.table.borrow_mut().get_mut(shared.handle.0) {
            *slot = None;
        }
        let _ = catch_unwind(AssertUnwindSafe(|| shared.free()));
    }

    /// Removes connections that the engine has forgotten.
    pub(super) fn remove_drained(&self) {
        let drained = std::mem::take(&mut self.driver.borrow_mut().drained);
        for handle in drained {
            let shared = self.table.borrow_mut().get_mut(handle.0).and_then(Option::take);
            if let Some(shared) = shared {
                // A connection that is drained without an event timed out while it was closing.
                shared.ended(ConnectionError::TimedOut);
                self.driver.borrow_mut().uncount(&shared);
                shared.free();
            }
        }
    }
}
