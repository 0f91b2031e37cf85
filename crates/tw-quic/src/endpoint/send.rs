//! Packets of a connection that is in the queue, and its timer.

use std::cmp::Reverse;
use std::rc::Rc;
use std::time::Instant;

use super::state::EndpointState;
use crate::qlog::Direction;
use crate::shared::{Closing, Made, Shared};
use crate::transmit::{Outgoing, TransmitBatch};

/// Bytes of one connection before others have their turn; the last message may exceed it.
const VISIT_SIZE: usize = 128 << 10;

/// Result of letting a connection send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// Nothing is left, or nothing may be sent now.
    Whole,
    /// There may be more.
    Cut,
}

impl EndpointState {
    /// Lets a connection send, and sets its timer.
    pub(super) fn visit(&self, shared: &Rc<Shared>, now: Instant, batch: &mut TransmitBatch) -> Visit {
        if shared.is_broken() {
            self.count(|statistics| statistics.panics += 1);
            self.forget(shared);
            return Visit::Whole;
        }
        shared.record(|recorder| recorder.set_time(now));
        let visit = shared.call(|engine| {
            shared.execute_close(engine, now);
            let (mut visit, mut made) = (Visit::Cut, 0);
            while made < VISIT_SIZE && !batch.is_full() {
                let mut buffer = batch.buffer();
                match shared.make_message(engine, now, &mut buffer) {
                    Made::Message(transmit) => {
                        let message = Outgoing::new(buffer, transmit);
                        made += message.bytes.len();
                        let Outgoing { bytes, segment, ecn, .. } = &message;
                        shared.record(|recorder| {
                            recorder.datagrams(Direction::Sent, bytes.len(), *segment, *ecn);
                        });
                        batch.push(message);
                    }
                    Made::Dropped => {
                        made += buffer.len();
                        batch.give_back(buffer);
                    }
                    Made::Nothing => {
                        batch.give_back(buffer);
                        visit = Visit::Whole;
                        break;
                    }
                }
            }
            if shared.closing.get() == Closing::Executed && !batch.is_full() {
                self.closing.borrow_mut().push(shared.clone());
            }
            let mut driver = self.driver.borrow_mut();
            shared.exchange(engine, &mut driver);
            if let Some(at) = shared.next_timeout(engine) {
                // A timer that is later than the one that is set is looked at when that one is due.
                if shared.armed.get().is_none_or(|armed| at < armed) {
                    shared.armed.set(Some(at));
                    driver.timers.push(Reverse((at, shared.handle.0, shared.serial)));
                }
            }
            visit
        });
        visit.unwrap_or(Visit::Whole)
    }
}
