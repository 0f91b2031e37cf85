//! Eviction of idle connections when `worker_connections` are used up or the process runs out of file descriptors.
//!
//! Connections to upstream servers count among `worker_connections`, idle ones too. Those are closed first, the
//! oldest first, and to free a descriptor also cached files without readers. Then clients are closed that are idle
//! between requests or only linger (`lingering_close`), the longest idle first. A loop that has no descriptor and
//! none of these asks the other loops.

use std::fmt;
use std::time::{Duration, Instant};

use tw_disk::{DiskError, Errno};
use tw_log::Level;
use tw_net::AcceptError;

use super::balance::SiblingRequest;
use super::connections::{ConnectionPermit, ConnectionsExhausted, Eviction};
use super::loop_core::LoopCore;

/// Time for other loops to close connections: a few turns. No second request is sent before it is over.
const SIBLING_TIME: Duration = Duration::from_millis(10);

impl LoopCore {
    /// Reserves one of `worker_connections` for a connection to an upstream server.
    ///
    /// # Errors
    /// All are in use, and none is idle.
    pub fn reserve_upstream_connection(&self) -> Result<ConnectionPermit, ConnectionsExhausted> {
        self.ensure_connection_available()?;
        self.tally.upstream_open.add(1);
        Ok(ConnectionPermit(self.tally.share()))
    }

    /// Makes sure that one more connection can be opened, and closes idle ones if all are in use.
    ///
    /// # Errors
    /// All are in use, and none is idle.
    pub(super) fn ensure_connection_available(&self) -> Result<(), ConnectionsExhausted> {
        let limit = self.connections_max();
        if self.connections_in_use() >= limit && self.evict_idle_connection(limit) == Eviction::NothingIdle {
            return Err(ConnectionsExhausted { limit });
        }
        Ok(())
    }

    /// Number of connections to clients and to upstream servers.
    pub(super) fn connections_in_use(&self) -> u64 {
        self.connections.len() as u64 + self.tally.upstream_open.value()
    }

    /// Closes idle connections where `limit` connections are open.
    // DIFF(nginx): nginx begins when less than a sixteenth is free, because a connection it closes may linger.
    fn evict_idle_connection(&self, limit: u64) -> Eviction {
        // DIFF(nginx): idle connections to upstream servers are closed, too, and first.
        let eviction = match self.evict_resource(|resources| resources.close_idle_upstream()) {
            Eviction::Done => Eviction::Done,
            Eviction::NothingIdle => self.connections.close_idle_clients(),
        };
        if eviction == Eviction::Done {
            self.log_once_a_second(
                Level::Warn,
                format_args!("{limit} worker_connections are not enough, reusing connections"),
            );
        }
        eviction
    }

    /// Frees descriptors after a connection could not be accepted for want of one.
    // DIFF(nginx): nginx only waits until there is one.
    pub(super) fn free_descriptors(&self, error: AcceptError) -> Eviction {
        if !error.is_exhaustion() {
            return Eviction::NothingIdle;
        }
        let eviction = self.free_own_descriptors();
        match eviction {
            Eviction::Done => {
                self.log_once_a_second(Level::Warn, format_args!("{error}, reusing connections"));
            }
            Eviction::NothingIdle => {
                self.request_descriptors_from_siblings();
            }
        }
        eviction
    }

    /// Frees a descriptor after a file could not be opened or created for want of one. Returns when another try makes
    /// sense, or at once if nothing can be closed.
    pub async fn free_descriptor(&self) -> Eviction {
        if self.free_own_descriptors() == Eviction::Done {
            // Connections close when their tasks run.
            tw_rt::requeue().await;
            return Eviction::Done;
        }
        let now = tw_rt::clock::now();
        let is_due = |requested_at: Instant| now.saturating_duration_since(requested_at) >= SIBLING_TIME;
        if self.connections.requested_at.get().is_none_or(is_due) {
            self.connections.requested_at.set(Some(now));
            if self.request_descriptors_from_siblings() == SiblingRequest::NoSiblings {
                return Eviction::NothingIdle;
            }
        }
        tw_rt::time::sleep(SIBLING_TIME).await;
        Eviction::Done
    }

    /// Runs `attempt`, which needs a descriptor, and once more if there was none and one could be freed.
    ///
    /// # Errors
    /// Error of the last attempt.
    pub async fn retry_with_descriptor<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let first = attempt().await;
        let Err(DiskError::Os { errno: Errno::MFILE | Errno::NFILE, .. }) = &first else { return first };
        match self.free_descriptor().await {
            Eviction::Done => attempt().await,
            Eviction::NothingIdle => first,
        }
    }

    /// Frees descriptors for a loop that has nothing to close.
    pub(super) fn free_descriptors_for_sibling(&self) {
        if self.free_own_descriptors() == Eviction::Done {
            // The other loop pauses before it asks again, which limits these log lines.
            tw_log::warn!(
                self.process().error_log,
                "another loop has no descriptor left, reusing connections"
            );
        }
    }

    fn free_own_descriptors(&self) -> Eviction {
        match self.evict_resource(|resources| resources.free_descriptor()) {
            Eviction::Done => Eviction::Done,
            Eviction::NothingIdle => self.connections.close_idle_clients(),
        }
    }

    /// Writes a line about connections into the error log, at most one a second.
    pub fn log_once_a_second(&self, level: Level, message: fmt::Arguments<'_>) {
        let now = tw_rt::clock::unix().secs;
        if self.connections.warned_at.replace(now) != now {
            tw_log::write_at!(self.process().error_log, level, "{message}");
        }
    }
}
