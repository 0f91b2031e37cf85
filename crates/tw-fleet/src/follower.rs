//! Following of the log: connections one after the other, the comparison with the position, and purges in order.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};
use tw_log::Level;

use crate::agent::{SUMMARY_INTERVAL, UNAPPLIED_MAX};
use crate::directory::SavedPosition;
use crate::engine::{Engine, EngineError, Log, LogReader, LogRecord};
use crate::node::{Node, Role};
use crate::position::{Continuity, Position, judge};
use crate::record::{FleetPurge, FleetPurgeMode, FleetPurgeScope, FleetRecord, RecordError, RecordKind};

/// Shortest and longest pause between two connections.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Age of a connection after whose end the pauses begin with the shortest.
const STABLE: Duration = Duration::from_secs(10);

/// Reason for stale caches.
const GAP: &str = "the log has dropped records that this node has not read";

impl<E: Engine + 'static> Node<E> {
    /// Connects again and again, and applies the log.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut pause = RETRY_MIN;
        while self.role.get() == Role::Active {
            let began = self.host.now();
            let error = match self.engine.connect().await {
                Ok(session) => self.follow(Rc::new(session)).await,
                Err(error) => error,
            };
            let had_session = self.session.borrow_mut().take().is_some();
            if had_session {
                self.stores.borrow_mut().clear();
                self.away_since.set(self.host.now());
                self.session_changed.notify_waiters();
            }
            {
                let mut status = self.fleet.status.lock();
                (status.engine, status.last_error) = (None, Some(error.to_string()));
            }
            if had_session {
                // Every loss of the connection is reported.
                self.logged.borrow_mut().remove("connect");
            }
            let rest = "serving goes on, and purges of this node are queued";
            self.log_some(
                Level::Error,
                "connect",
                format_args!("no connection to the engine: {error}; {rest}"),
            );
            pause = if had_session && self.host.now().saturating_sub(began) >= STABLE {
                RETRY_MIN
            } else {
                (pause * 2).min(RETRY_MAX)
            };
            // Nodes that lost the engine at the same time do not come back at the same time.
            self.host.sleep(pause.mul_f64(0.5 + self.host.jitter() / 2.0)).await;
        }
    }

    /// Applies the log of a connection until that ends.
    async fn follow(self: &Rc<Self>, session: Rc<E::Session>) -> EngineError {
        match self.try_follow(&session).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_follow(
        self: &Rc<Self>,
        session: &Rc<E::Session>,
    ) -> Result<std::convert::Infallible, EngineError> {
        self.load();
        let log = session.state().await?;
        let position = self.state.borrow().as_ref().and_then(|state| state.position.clone());
        let time = match &position {
            Some(position) if (log.first..=log.last).contains(&position.sequence) => {
                session.record_time(position.sequence).await?
            }
            _ => None,
        };
        let continuity = judge(position.as_ref(), &log, time);
        let sequence = match (continuity, &position) {
            (Continuity::Continues, Some(position)) => position.sequence,
            (Continuity::FirstTime, _) => log.last,
            _ => log.first.saturating_sub(1),
        };
        let time_ns = match (continuity, &position) {
            (Continuity::Continues, Some(position)) => position.time_ns,
            (Continuity::FirstTime, _) if log.first <= log.last => {
                session.record_time(log.last).await?.unwrap_or(0)
            }
            _ => 0,
        };
        if let Some(reason) = continuity.reason() {
            self.make_stale(continuity, reason).await;
        }
        if continuity.restarts() {
            // Nodes that were away when the log lost records cannot notice that.
            // Nodes with the same position append it once. A further loss is another one, although the log may end as before.
            let (sequence, time_ns) =
                position.as_ref().map_or((0, 0), |position| (position.sequence, position.time_ns));
            let id = format!("lost-{}-{}-{sequence}-{time_ns}", log.identity, log.last);
            let payload = self.record(id.clone(), RecordKind::Lost).encode();
            match session.append(&id, &payload).await {
                Err(EngineError::Lost(why)) => return Err(EngineError::Lost(why)),
                Err(error) => self.log(Level::Error, format_args!("other nodes cannot be notified: {error}")),
                Ok(at) => {
                    self.recent.borrow_mut().insert(&id);
                    let lost = self.unconfirmed.borrow_mut().take_all();
                    self.republish(lost);
                    self.unconfirmed.borrow_mut().insert(at, &id, &payload);
                }
            }
        }
        // The engine may have lost records that were never read back.
        let lost = self
            .unconfirmed
            .borrow_mut()
            .take_after(log.last.saturating_add(u64::from(continuity.restarts())));
        self.republish(lost);
        self.set_position(Position { identity: log.identity, sequence, time_ns });
        self.admit_new_caches().await;
        let mut reader = session.read_from(sequence.saturating_add(1)).await?;
        {
            let mut status = self.fleet.status.lock();
            status.engine = Some(self.engine.server(session));
            status.connections += 1;
            status.lag = log.last.saturating_sub(sequence);
        }
        *self.session.borrow_mut() = Some(session.clone());
        self.session_changed.notify_waiters();
        self.has_work.notify_one();
        self.log(Level::Notice, format_args!("connected to the engine, at sequence {sequence}"));
        let watching = AbortOnDrop(spawn_local(self.clone().watch_summaries()));
        let hearing = AbortOnDrop(spawn_local(self.clone().hear_all(session.clone())));
        let ended = loop {
            if self.role.get() == Role::Retired {
                // The connection is for purges that are published.
                break self.wait_for_end(session).await;
            }
            match reader.next().await {
                Ok(records) if self.role.get() == Role::Active => self.apply(records).await,
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        drop((watching, hearing));
        Err(ended)
    }

    /// Waits until the connection ends.
    async fn wait_for_end(&self, session: &Rc<E::Session>) -> EngineError {
        loop {
            self.host.sleep(SUMMARY_INTERVAL).await;
            if let Err(error) = session.state().await {
                return error;
            }
        }
    }

    /// Reads the position, once.
    fn load(&self) {
        if self.state.borrow().is_some() {
            return;
        }
        let state = self.host.saved_position().unwrap_or_else(|error| {
            self.log(Level::Error, format_args!("{error}"));
            SavedPosition::default()
        });
        *self.state.borrow_mut() = Some(state);
    }

    fn set_position(&self, position: Position) {
        {
            let mut status = self.fleet.status.lock();
            status.sequence = position.sequence;
        }
        if let Some(state) = &mut *self.state.borrow_mut() {
            state.position = Some(position);
        }
        self.is_changed.set(true);
    }

    /// Makes everything stale that caches have which were not in the fleet before.
    pub(crate) async fn admit_new_caches(&self) {
        let names = self.caches.borrow().names();
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let new: Vec<_> = {
            let mut state = self.state.borrow_mut();
            let Some(state) = &mut *state else { return };
            let new: Vec<_> =
                names.iter().filter(|name| !state.caches.contains(&text(name))).cloned().collect();
            if new.is_empty() && state.caches.len() == names.len() {
                return;
            }
            state.caches = names.iter().map(|name| text(name)).collect();
            new
        };
        self.is_changed.set(true);
        for name in new {
            self.log(
                Level::Notice,
                format_args!("cache \"{}\" joins, everything stored in it is stale", tw_log::Text(&name)),
            );
            self.add_unapplied(stale(&name));
        }
        self.apply_unapplied().await;
    }

    /// Makes everything stale in all caches.
    async fn make_stale(&self, continuity: Continuity, reason: &str) {
        let is_first = continuity == Continuity::FirstTime;
        let level = if is_first { Level::Notice } else { Level::Warn };
        self.log(level, format_args!("{reason}: everything stored in its caches is stale"));
        self.fleet.status.lock().resets += u64::from(!is_first);
        self.add_stale();
        self.apply_unapplied().await;
    }

    fn add_stale(&self) {
        let names = self.caches.borrow().names();
        names.iter().for_each(|name| self.add_unapplied(stale(name)));
        // The purged caches are noted, because one that joins later has entries from before the loss.
        if let Some(state) = &mut *self.state.borrow_mut() {
            state.caches = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        }
    }

    fn add_unapplied(&self, purge: FleetPurge) {
        let mut unapplied = self.unapplied.borrow_mut();
        let of_cache = unapplied.entry(purge.cache.clone()).or_default();
        if of_cache.len() >= UNAPPLIED_MAX {
            of_cache.clear();
            let scope = FleetPurgeScope::Prefix(Vec::new());
            of_cache.push(FleetPurge { cache: purge.cache, scope, mode: FleetPurgeMode::Hard });
        } else {
            of_cache.push(purge);
        }
    }

    /// Applies what is not applied. What fails stays.
    pub(crate) async fn apply_unapplied(&self) {
        self.applying.set(self.applying.get() + 1);
        let work = std::mem::take(&mut *self.unapplied.borrow_mut());
        let caches = self.caches.borrow().clone();
        for (name, purges) in work {
            if let Err(error) = caches.purge(&name, purges.clone()).await {
                let shown = tw_log::Text(&name);
                self.log_some(Level::Crit, "apply", format_args!("{error} while purging, cache \"{shown}\""));
                self.fleet.status.lock().is_unsaved = true;
                purges.into_iter().for_each(|purge| self.add_unapplied(purge));
            }
        }
        self.applying.set(self.applying.get() - 1);
    }

    /// Applies records in order.
    async fn apply(self: &Rc<Self>, records: Vec<LogRecord>) {
        let Some(mut position) = self.state.borrow().as_ref().and_then(|state| state.position.clone()) else {
            return;
        };
        let names: HashSet<Vec<u8>> = self.caches.borrow().names().into_iter().collect();
        let mut applied = 0_u64;
        let mut pending = 0;
        for record in records {
            pending = record.pending;
            if record.sequence <= position.sequence {
                continue;
            }
            if record.sequence != position.sequence.saturating_add(1) {
                self.log(Level::Warn, format_args!("{GAP}: everything stored in its caches is stale"));
                self.fleet.status.lock().resets += 1;
                self.add_stale();
            }
            (position.sequence, position.time_ns) = (record.sequence, record.time_ns);
            let decoded = record.payload.as_deref().map_or(Err(RecordError::Foreign), FleetRecord::decode);
            let id = decoded.as_ref().ok().map(|record| &*record.id);
            let lost = self.unconfirmed.borrow_mut().confirm(record.sequence, id);
            self.republish(lost);
            match decoded {
                Ok(record) if !self.recent.borrow_mut().insert(&record.id) => {}
                Ok(FleetRecord { kind: RecordKind::Lost, node, .. }) => {
                    let node = tw_log::Text(node.as_bytes());
                    self.log(
                        Level::Warn,
                        format_args!("the log has lost records, says node \"{node}\": everything stored in its caches is stale"),
                    );
                    self.fleet.status.lock().resets += 1;
                    self.add_stale();
                }
                Ok(FleetRecord { kind: RecordKind::Purge(purge), .. }) => {
                    if names.contains(&purge.cache) {
                        applied += 1;
                        self.add_unapplied(purge);
                    }
                }
                Err(error) => {
                    let sequence = record.sequence;
                    let then = if error == RecordError::Newer {
                        ": everything stored in its caches is stale"
                    } else {
                        ""
                    };
                    self.log_some(
                        Level::Warn,
                        "record",
                        format_args!("record {sequence} of the log is not understood, {error}{then}"),
                    );
                    self.fleet.status.lock().unreadable += 1;
                    if error == RecordError::Newer {
                        self.fleet.status.lock().resets += 1;
                        self.add_stale();
                    }
                }
            }
        }
        self.apply_unapplied().await;
        self.set_position(position);
        self.has_work.notify_one();
        let mut status = self.fleet.status.lock();
        status.lag = pending;
        status.applied += applied;
        if applied > 0 {
            status.last_purge = self.host.unix_ms();
        }
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A purge that makes all of a cache stale.
fn stale(cache: &[u8]) -> FleetPurge {
    FleetPurge {
        cache: cache.to_vec(),
        scope: FleetPurgeScope::Prefix(Vec::new()),
        mode: FleetPurgeMode::Soft,
    }
}
