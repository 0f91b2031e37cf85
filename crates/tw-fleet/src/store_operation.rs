//! Operations on stores on their way to the thread of the fleet.

use tokio::sync::{mpsc, oneshot};

use crate::engine::EngineError;
use crate::store::{Entry, StoreChanges, StoreSettings};

/// Operation on its way to the thread of the fleet.
pub(crate) struct StoreOperation {
    pub(crate) settings: &'static StoreSettings,
    pub(crate) kind: OperationKind,
}

/// Receiver of the outcome.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// Kind of an operation, with the receiver of its outcome.
pub(crate) enum OperationKind {
    Get(String, Reply<Option<Entry>>),
    Set(String, Vec<u8>, Option<u64>, Reply<u64>),
    Remove(String, Option<u64>, Reply<()>),
    Watch(mpsc::Sender<Result<StoreChanges, EngineError>>),
}
