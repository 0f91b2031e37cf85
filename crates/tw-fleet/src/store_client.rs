//! Stores for other threads: operations go to the thread of the fleet, which has the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{mpsc, oneshot};

use crate::engine::EngineError;
use crate::fleet::{Fleet, Place};
use crate::store::{self, Entry, Store, StoreChanges, StoreSettings, StoreWatch};
use crate::store_operation::{OperationKind, Reply, StoreOperation};

/// Changes that wait for the reader of a watch. With more, the connection does not ask for further ones.
const CHANGES_MAX: usize = 4;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Operations on stores of a fleet at the same time, watches included.
    const OPERATIONS_MAX: usize = 1024, count, "a further one fails";
}

/// Store of a fleet, usable on any thread.
#[derive(Clone)]
pub struct StoreClient {
    fleet: Arc<Fleet>,
    settings: &'static StoreSettings,
}

/// Watch of a [`StoreClient`].
pub struct StoreClientWatch {
    changes: mpsc::Receiver<Result<StoreChanges, EngineError>>,
}

impl Fleet {
    /// Store of the fleet with these settings.
    pub fn store(self: &Arc<Self>, settings: &'static StoreSettings) -> StoreClient {
        StoreClient { fleet: self.clone(), settings }
    }
}

impl StoreClient {
    /// Fleet of the store.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    async fn call<T>(&self, kind: impl FnOnce(Reply<T>) -> OperationKind) -> Result<T, EngineError> {
        let is_full = self.fleet.operations.fetch_add(1, Relaxed) >= OPERATIONS_MAX;
        let _place = Place(&self.fleet.operations);
        if is_full {
            return Err(EngineError::Refused("too many operations wait for the engine".to_owned()));
        }
        let (reply, outcome) = oneshot::channel();
        self.fleet.send_operation(StoreOperation { settings: self.settings, kind: kind(reply) })?;
        outcome.await.unwrap_or_else(|_| Err(closed_error()))
    }
}

fn closed_error() -> EngineError {
    EngineError::Lost("this process does not follow the fleet".to_owned())
}

impl Store for StoreClient {
    type Watch = StoreClientWatch;

    async fn get(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        self.call(|reply| OperationKind::Get(key.to_owned(), reply)).await
    }

    async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
        store::check(self.settings, key, value)?;
        self.call(|reply| OperationKind::Set(key.to_owned(), value.to_vec(), expected, reply)).await
    }

    async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
        self.call(|reply| OperationKind::Remove(key.to_owned(), expected, reply)).await
    }

    async fn watch(&self) -> Result<StoreClientWatch, EngineError> {
        let (sender, changes) = mpsc::channel(CHANGES_MAX);
        self.fleet
            .send_operation(StoreOperation { settings: self.settings, kind: OperationKind::Watch(sender) })?;
        Ok(StoreClientWatch { changes })
    }
}

impl StoreWatch for StoreClientWatch {
    async fn next(&mut self) -> Result<StoreChanges, EngineError> {
        self.changes.recv().await.unwrap_or_else(|| Err(closed_error()))
    }
}

impl Fleet {
    fn send_operation(&self, operation: StoreOperation) -> Result<(), EngineError> {
        match &*self.store_outbox.lock() {
            Some(outbox) => outbox.send(operation).map_err(|_| closed_error()),
            None => Err(closed_error()),
        }
    }
}
