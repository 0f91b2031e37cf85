//! Publishing of purges: to the log, or to the queue on disk while the engine is away.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_local};
use tw_log::Level;

use crate::engine::{Engine, EngineError, Log};
use crate::fleet::{Outgoing, PublishOutcome};
use crate::node::{Node, QueuedPurge, Role};
use crate::record::{FleetRecord, RECORD_SIZE_MAX, RecordKind};
use crate::unconfirmed::PublishedRecord;

/// Purges of the queue that are published together.
const DRAINED_AT_ONCE: usize = 256;
/// Pause after the engine has refused a purge of the queue.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);
/// Entries that are written to the disk together.
const WRITTEN_AT_ONCE: usize = 4096;

impl<E: Engine + 'static> Node<E> {
    /// Publishes what requests and commands purge, each in a task of its own.
    pub(crate) async fn publish_all(self: Rc<Self>, mut purges: mpsc::UnboundedReceiver<Outgoing>) {
        while let Some(Outgoing { purge, reply }) = purges.recv().await {
            let node = self.clone();
            spawn_local(async move {
                // The purge was applied on this node before it was queued for publishing.
                node.fleet.status.lock().last_purge = node.host.unix_ms();
                let outcome = node.publish(RecordKind::Purge(purge)).await;
                if outcome == PublishOutcome::Published {
                    node.fleet.status.lock().published += 1;
                }
                // The receiver may be gone, which is no error.
                let _ = reply.send(outcome);
            });
        }
    }

    /// A record of this node.
    pub(crate) fn record(&self, id: String, kind: RecordKind) -> FleetRecord {
        FleetRecord { id, node: self.fleet.settings().node.to_string(), time_ms: self.host.unix_ms(), kind }
    }

    async fn publish(self: &Rc<Self>, kind: RecordKind) -> PublishOutcome {
        let Ok(id) = self.host.random_word() else {
            return PublishOutcome::Unpublished("there are no random numbers".to_owned());
        };
        let payload = self.record(id.clone(), kind).encode();
        if payload.len() > RECORD_SIZE_MAX {
            return PublishOutcome::Unpublished(format!("a purge of {} bytes is too large", payload.len()));
        }
        // The record is applied on this node already, and its ID is recognised when it is read back.
        self.recent.borrow_mut().insert(&id);
        let patience = self.fleet.settings().publish_timeout;
        let away = self.host.now().saturating_sub(self.away_since.get());
        // After some time without the engine, purges do not wait for it any more.
        let is_away = self.session.borrow().is_none() && away > patience;
        let patience = if is_away { Duration::ZERO } else { patience };
        let why = if self.unconfirmed.borrow().has_room() {
            match self.host.timeout(patience, self.append(&id, &payload)).await {
                Some(Ok(())) => return PublishOutcome::Published,
                Some(Err(error)) => error.to_string(),
                None => "the engine does not answer".to_owned(),
            }
        } else {
            "too many purges were not read back".to_owned()
        };
        let (done, is_queued) = oneshot::channel();
        self.to_queue.borrow_mut().push((payload, done));
        self.has_queued.notify_one();
        match is_queued.await {
            Ok(Ok(())) => PublishOutcome::Queued,
            Ok(Err(error)) => PublishOutcome::Unpublished(format!("{why}; {error}")),
            Err(_) => PublishOutcome::Unpublished(why),
        }
    }

    /// Appends to the log; waits for a connection as long as there is none.
    async fn append(&self, id: &str, payload: &[u8]) -> Result<(), EngineError> {
        loop {
            let changed = self.session_changed.notified();
            let session = self.session.borrow().clone();
            match session {
                None => changed.await,
                Some(session) => match self.append_on(&session, id, payload).await {
                    // Over another connection the same record is appended.
                    Err(EngineError::Lost(_)) => self.wait_for_another(&session).await,
                    done => return done,
                },
            }
        }
    }

    /// Appends to the log of a connection. The record is remembered until it is read back.
    async fn append_on(&self, session: &Rc<E::Session>, id: &str, payload: &[u8]) -> Result<(), EngineError> {
        let sequence = session.append(id, payload).await?;
        if self.role.get() == Role::Retired {
            // A retired node reads nothing back, so the record needs no confirmation.
            return Ok(());
        }
        if self.session.borrow().as_ref().is_none_or(|current| !Rc::ptr_eq(current, session)) {
            // The log of the next connection may be one without it.
            return Err(EngineError::Lost("the connection is gone".to_owned()));
        }
        let position =
            self.state.borrow().as_ref().and_then(|state| state.position.as_ref()?.sequence.into());
        if position.is_none_or(|read: u64| read < sequence) {
            self.unconfirmed.borrow_mut().insert(sequence, id, payload);
        }
        Ok(())
    }

    /// Publishes records again that the engine has acknowledged and lost.
    pub(crate) fn republish(self: &Rc<Self>, lost: Vec<PublishedRecord>) {
        if lost.is_empty() {
            return;
        }
        let count = lost.len();
        self.fleet.status.lock().lost += count as u64;
        self.log(
            Level::Warn,
            format_args!(
                "the engine has lost {count} records that it had acknowledged, they are published again"
            ),
        );
        for (id, payload) in lost {
            let node = self.clone();
            spawn_local(async move {
                // On disk, purges outlive this process.
                let (done, is_queued) = oneshot::channel();
                node.to_queue.borrow_mut().push((payload.clone(), done));
                node.has_queued.notify_one();
                if !matches!(is_queued.await, Ok(Ok(())))
                    && let Err(error) = node.append(&id, &payload).await
                {
                    node.log(Level::Error, format_args!("a lost record cannot be published again: {error}"));
                }
            });
        }
    }

    /// Waits until `session` is not the current one.
    async fn wait_for_another(&self, session: &Rc<E::Session>) {
        loop {
            let changed = self.session_changed.notified();
            if self.session.borrow().as_ref().is_none_or(|current| !Rc::ptr_eq(current, session)) {
                return;
            }
            changed.await;
        }
    }

    /// Writes purges to the queue on disk, all that wait at once.
    pub(crate) async fn write_queue(self: Rc<Self>) {
        loop {
            self.has_queued.notified().await;
            loop {
                let mut waiting = self.to_queue.borrow_mut();
                let count = waiting.len().min(WRITTEN_AT_ONCE);
                let batch: Vec<QueuedPurge> = waiting.drain(..count).collect();
                drop(waiting);
                if batch.is_empty() {
                    break;
                }
                let (payloads, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                let outcome = match &mut *self.disk.borrow_mut() {
                    None => Err("another process has the queue".to_owned()),
                    Some(disk) => {
                        let appended = disk.append_to_queue(&payloads);
                        self.fleet.status.lock().queued = disk.queued_count() as u64;
                        appended
                    }
                };
                if let Err(error) = &outcome {
                    self.log_some(Level::Error, "queue", format_args!("a purge cannot be queued: {error}"));
                }
                replies.into_iter().for_each(|reply| drop(reply.send(outcome.clone())));
                self.has_work.notify_one();
            }
        }
    }

    /// Publishes what is in the queue, while there is a connection.
    pub(crate) async fn drain_queue(self: Rc<Self>) {
        loop {
            let (batch, waiting) = match &*self.disk.borrow() {
                Some(disk) => (disk.first_of_queue(DRAINED_AT_ONCE), disk.queued_count()),
                None => (Vec::new(), 0),
            };
            let session = self.session.borrow().clone();
            let is_ready = !batch.is_empty() && self.unconfirmed.borrow().has_room();
            let (Some(session), true) = (session, is_ready) else {
                self.has_work.notified().await;
                continue;
            };
            let count = batch.len();
            let mut tasks = JoinSet::new();
            for payload in batch {
                let node = self.clone();
                let session = session.clone();
                tasks.spawn_local(async move {
                    let id = FleetRecord::decode(&payload).map_or_else(|_| String::new(), |record| record.id);
                    node.append_on(&session, &id, &payload).await
                });
            }
            let mut failure = None;
            while let Some(done) = tasks.join_next().await {
                match done {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => failure = Some(error),
                    Err(_) => failure = Some(EngineError::Lost("a fault of this program".to_owned())),
                }
            }
            match failure {
                None => {
                    let mut removed = Ok(());
                    if let Some(disk) = &mut *self.disk.borrow_mut() {
                        removed = disk.remove_from_queue(count);
                        let mut status = self.fleet.status.lock();
                        status.queued = disk.queued_count() as u64;
                        status.published += count as u64;
                    }
                    if let Err(error) = removed {
                        self.log_some(
                            Level::Error,
                            "queue",
                            format_args!("the queue cannot be emptied: {error}"),
                        );
                    }
                    if waiting == count {
                        self.log(Level::Notice, format_args!("all queued purges are published"));
                    }
                }
                Some(EngineError::Lost(_)) => self.wait_for_another(&session).await,
                Some(error) => {
                    self.log_some(
                        Level::Error,
                        "drain",
                        format_args!("queued purges cannot be published: {error}"),
                    );
                    self.host.sleep(AFTER_REFUSAL).await;
                }
            }
        }
    }
}
