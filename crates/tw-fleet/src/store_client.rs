//! Stores for other threads: operations go to the thread of the fleet, which has the connection.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use crate::agent::Node;
use crate::engine::{Engine, EngineError, Session};
use crate::fleet::{Fleet, Place};
use crate::store::{self, Entry, Store, StoreChanges, StoreSettings, StoreWatch};

/// Changes that wait for the reader of a watch. With more, the connection does not ask for further ones.
const CHANGES_MAX: usize = 4;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Operations on stores of a fleet at the same time, watches included.
    const OPERATIONS_MAX: usize = 1024, count, "a further one fails";
    /// Time of an operation on a store of a fleet.
    ///
    /// Longest time of an operation: another connection may have to be made.
    const OPERATION_TIME_MAX: Duration = Duration::from_secs(15), time, "it fails";
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

/// Operation on its way to the thread of the fleet.
pub(crate) struct StoreOperation {
    settings: &'static StoreSettings,
    kind: OperationKind,
}

type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

enum OperationKind {
    Get(String, Reply<Option<Entry>>),
    Set(String, Vec<u8>, Option<u64>, Reply<u64>),
    Remove(String, Option<u64>, Reply<()>),
    Watch(mpsc::Sender<Result<StoreChanges, EngineError>>),
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
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> EngineError {
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
        self.changes.recv().await.unwrap_or_else(|| Err(gone()))
    }
}

impl Fleet {
    fn send_operation(&self, operation: StoreOperation) -> Result<(), EngineError> {
        match &*self.store_outbox.lock() {
            Some(outbox) => outbox.send(operation).map_err(|_| gone()),
            None => Err(gone()),
        }
    }
}

impl<E: Engine + 'static> Node<E> {
    /// Does what other threads want of stores, each operation in a task of its own.
    pub(crate) async fn serve_stores(
        self: Rc<Self>,
        mut operations: mpsc::UnboundedReceiver<StoreOperation>,
    ) {
        while let Some(operation) = operations.recv().await {
            let node = self.clone();
            spawn_local(async move { node.operate(operation).await });
        }
    }

    async fn operate(&self, StoreOperation { settings, kind }: StoreOperation) {
        let opened = self.opened_store(settings);
        // The receiver of the outcome may be gone, which is no error.
        match kind {
            OperationKind::Get(key, reply) => {
                let _ = reply.send(self.before(async { opened.await?.get(&key).await }).await);
            }
            OperationKind::Set(key, value, expected, reply) => {
                let set = async { opened.await?.set(&key, &value, expected).await };
                let _ = reply.send(self.before(set).await);
            }
            OperationKind::Remove(key, expected, reply) => {
                let _ = reply.send(self.before(async { opened.await?.remove(&key, expected).await }).await);
            }
            OperationKind::Watch(sender) => {
                let began = self.before(async { opened.await?.watch().await }).await;
                let mut watch = match began {
                    Ok(watch) => watch,
                    Err(error) => return drop(sender.send(Err(error)).await),
                };
                loop {
                    let Some(changes) = unless_closed(&sender, watch.next()).await else { return };
                    let is_over = changes.is_err();
                    if sender.send(changes).await.is_err() || is_over {
                        return;
                    }
                }
            }
        }
    }

    /// A store of the connection; waits a moment for one.
    pub(crate) async fn opened_store(
        &self,
        settings: &StoreSettings,
    ) -> Result<Rc<<E::Session as Session>::Store>, EngineError> {
        let session = self.some_session().await?;
        let known = self.stores.borrow().get(settings.name).cloned();
        if let Some(store) = known {
            return Ok(store);
        }
        let store = Rc::new(session.open_store(settings).await?);
        let is_current = self.session.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, &session));
        if is_current {
            self.stores.borrow_mut().insert(settings.name, store.clone());
        }
        Ok(store)
    }

    async fn some_session(&self) -> Result<Rc<E::Session>, EngineError> {
        let connected = async {
            loop {
                let changed = self.session_changed.notified();
                if let Some(session) = self.session.borrow().clone() {
                    return session;
                }
                changed.await;
            }
        };
        let session = self.host.timeout(self.fleet.settings().publish_timeout, connected).await;
        session.ok_or_else(|| {
            let why = self.fleet.status.lock().last_error.clone();
            EngineError::Lost(why.unwrap_or_else(|| "not connected yet".to_owned()))
        })
    }

    /// Result of an operation, which may not take longer than all may.
    async fn before<T>(
        &self,
        operation: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let outcome = self.host.timeout(OPERATION_TIME_MAX, operation).await;
        outcome.unwrap_or_else(|| Err(EngineError::Lost("the engine does not answer".to_owned())))
    }
}

/// Result of `operation`; `None` if the receiver goes before.
async fn unless_closed<T, R>(sender: &mpsc::Sender<R>, operation: impl Future<Output = T>) -> Option<T> {
    let mut operation = pin!(operation);
    let mut closed = pin!(sender.closed());
    poll_fn(|cx| match operation.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => closed.as_mut().poll(cx).map(|()| None),
    })
    .await
}
