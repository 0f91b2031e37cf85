//! Operations on stores that other threads want: the thread of the fleet does them.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::engine::{Engine, EngineError, Session};
use crate::node::Node;
use crate::store::{Store, StoreSettings, StoreWatch};
use crate::store_operation::{OperationKind, StoreOperation};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time of an operation on a store of a fleet.
    ///
    /// Longest time of an operation: another connection may have to be made.
    const OPERATION_TIME_MAX: Duration = Duration::from_secs(15), time, "it fails";
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
        let known_store = self.stores.borrow().get(settings.name).cloned();
        if let Some(store) = known_store {
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
