//! Store of configurations for commands, which wait.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::FleetSettings;
use crate::engine::{Engine, EngineError, Session};
use crate::nats::{EngineKind, Nats};
use crate::store::{CONFIGURATION, Entry, Store, StoreWatch};

/// Longest time of an operation.
const PATIENCE: Duration = Duration::from_secs(10);

type NatsStore = <<Nats as Engine>::Session as Session>::Store;

/// Connection of a command to the store of configurations. Not for a thread that runs an event loop.
pub struct ConfigurationClient {
    runtime: Runtime,
    tasks: LocalSet,
    engine: Nats,
    store: Option<NatsStore>,
}

impl ConfigurationClient {
    /// A client of the engine of a fleet; it connects with the first operation.
    ///
    /// # Errors
    /// The settings cannot be used, or the engine is not NATS.
    pub fn new(settings: &FleetSettings) -> Result<Self, EngineError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| EngineError::io("epoll_create()", &error))?;
        if settings.engine.servers.kind() == EngineKind::Etcd {
            let why = "configurations need NATS as the engine of the fleet, and this one has etcd";
            return Err(EngineError::Refused(why.to_owned()));
        }
        let engine =
            Nats::new(&settings.engine, &settings.name, &settings.node).map_err(EngineError::Lost)?;
        Ok(Self { runtime, tasks: LocalSet::new(), engine, store: None })
    }

    /// Does one operation; after a lost connection the next one connects again.
    fn run<T>(
        &mut self,
        operation: impl AsyncFnOnce(&NatsStore) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let Self { runtime, tasks, engine, store } = self;
        let done = tasks.block_on(runtime, async {
            let done = timeout(PATIENCE, async {
                if store.is_none() {
                    *store = Some(engine.connect().await?.open_store(&CONFIGURATION).await?);
                }
                match store {
                    Some(store) => operation(store).await,
                    None => Err(EngineError::Lost("not connected yet".to_owned())),
                }
            });
            done.await.unwrap_or_else(|_| Err(EngineError::Lost("the engine does not answer".to_owned())))
        });
        if matches!(done, Err(EngineError::Lost(_))) {
            self.store = None;
        }
        done
    }

    /// All entries that have a value.
    ///
    /// # Errors
    /// Fails as the engine does.
    pub fn entries(&mut self) -> Result<Vec<Entry>, EngineError> {
        self.run(async |store| {
            let mut watch = store.watch().await?;
            let mut entries: Vec<Entry> = Vec::new();
            loop {
                let changes = watch.next().await?;
                for entry in changes.entries {
                    entries.retain(|known| known.key != entry.key);
                    entries.push(entry);
                }
                if changes.is_complete {
                    entries.retain(|entry| entry.value.is_some());
                    return Ok(entries);
                }
            }
        })
    }

    /// Value of a key.
    ///
    /// # Errors
    /// Fails as the engine does.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.run(async |store| Ok(store.get(key).await?.and_then(|entry| entry.value)))
    }

    /// Sets a value, if the key has this version; `None` is any.
    ///
    /// # Errors
    /// Fails as the engine does.
    pub fn set(&mut self, key: &str, value: &[u8], expected: Option<u64>) -> Result<(), EngineError> {
        self.run(async |store| store.set(key, value, expected).await.map(drop))
    }

    /// Removes a value, whatever its version.
    ///
    /// # Errors
    /// Fails as the engine does.
    pub fn remove(&mut self, key: &str) -> Result<(), EngineError> {
        self.run(async |store| store.remove(key, None).await)
    }

    /// Waits, while the connection stays alive.
    pub fn pause(&self, length: Duration) {
        // The pause begins inside of the runtime, which has its timer.
        self.tasks.block_on(&self.runtime, async { sleep(length).await });
    }
}
