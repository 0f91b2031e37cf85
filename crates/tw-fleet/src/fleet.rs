//! A fleet as configurations and requests see it: a place to publish purges, and the state of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Notify, mpsc, oneshot};
use tw_base::FatalMutex;
use tw_tls::SharedSecrets;

use crate::record::FleetPurge;
use crate::settings::FleetSettings;
use crate::status::FleetStatus;
use crate::store_operation::StoreOperation;

/// Rotations after which a secret that no other one followed is not used any more.
const SECRET_AGE_MAX: u64 = 3;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges that wait for the engine of a fleet at the same time.
    const PUBLISHING_MAX: usize = 4096, count, "503: a further one is applied on this node only";
}

/// Result of publishing a purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The log has it.
    Published,
    /// The queue on disk has it; it is published when the engine is there again.
    Queued,
    /// Neither has it, for this reason.
    Unpublished(String),
}

/// Purge on its way to the log.
pub(crate) struct Outgoing {
    pub(crate) purge: FleetPurge,
    pub(crate) reply: oneshot::Sender<PublishOutcome>,
}

/// A fleet. It outlives configurations that do not change it.
pub struct Fleet {
    settings: FleetSettings,
    outbox: FatalMutex<Option<mpsc::UnboundedSender<Outgoing>>>,
    publishing: AtomicUsize,
    pub(crate) store_outbox: FatalMutex<Option<mpsc::UnboundedSender<StoreOperation>>>,
    /// Operations of stores that wait for an answer.
    pub(crate) operations: AtomicUsize,
    pub(crate) status: FatalMutex<FleetStatus>,
    pub(crate) secrets: Arc<SharedSecrets>,
    /// Notified once something uses the secrets.
    pub(crate) secrets_used: Notify,
}

/// One of those that wait.
pub(crate) struct Place<'a>(pub(crate) &'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fleet({})", self.settings.name)
    }
}

impl Fleet {
    /// A fleet without an agent.
    pub fn new(settings: FleetSettings) -> Self {
        let age_max = settings.secret_rotation.as_secs().saturating_mul(SECRET_AGE_MAX);
        Self {
            settings,
            secrets: Arc::new(SharedSecrets::new(age_max)),
            secrets_used: Notify::new(),
            outbox: FatalMutex::default(),
            publishing: AtomicUsize::new(0),
            store_outbox: FatalMutex::default(),
            operations: AtomicUsize::new(0),
            status: FatalMutex::default(),
        }
    }

    /// Settings.
    pub fn settings(&self) -> &FleetSettings {
        &self.settings
    }

    /// State of the node.
    pub fn status(&self) -> FleetStatus {
        self.status.lock().clone()
    }

    /// Secrets that all nodes share. The agent gets them from the engine from now on; there are none before that.
    pub fn use_secrets(&self) -> Arc<SharedSecrets> {
        self.secrets_used.notify_one();
        self.secrets.clone()
    }

    /// Calls `see` with the state of the node, which does not change meanwhile: it must not wait.
    pub fn see_status<T>(&self, see: impl FnOnce(&FleetStatus) -> T) -> T {
        see(&self.status.lock())
    }

    /// Notes which node holds a lease, for the status.
    pub fn set_lease_holder(&self, lease: &str, node: Option<String>) {
        self.status.lock().leases.insert(lease.to_owned(), node);
    }

    /// Publishes a purge that this node has applied. Waits until the log has it, or the queue on disk; no longer than
    /// `publish_timeout` and a disk need.
    pub async fn publish(&self, purge: FleetPurge) -> PublishOutcome {
        let outcome = self.try_publish(purge).await;
        if let PublishOutcome::Unpublished(_) = &outcome {
            self.status.lock().unpublished += 1;
        }
        outcome
    }

    async fn try_publish(&self, purge: FleetPurge) -> PublishOutcome {
        let is_full = self.publishing.fetch_add(1, Relaxed) >= PUBLISHING_MAX;
        let _place = Place(&self.publishing);
        if is_full {
            return PublishOutcome::Unpublished("too many purges wait for the engine".to_owned());
        }
        let (reply, outcome) = oneshot::channel();
        let is_sent = {
            let outbox = self.outbox.lock();
            outbox.as_ref().is_some_and(|outbox| outbox.send(Outgoing { purge, reply }).is_ok())
        };
        match outcome.await {
            Ok(outcome) if is_sent => outcome,
            _ => PublishOutcome::Unpublished("this process does not follow the fleet".to_owned()),
        }
    }

    /// Connects an agent: purges and operations of stores go to it from now on.
    pub(crate) fn connect(
        &self,
    ) -> (mpsc::UnboundedReceiver<Outgoing>, mpsc::UnboundedReceiver<StoreOperation>) {
        let (outbox, purges) = mpsc::unbounded_channel();
        *self.outbox.lock() = Some(outbox);
        let (outbox, operations) = mpsc::unbounded_channel();
        *self.store_outbox.lock() = Some(outbox);
        (purges, operations)
    }
}
