//! Store of configurations for commands, which wait.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tw_rt::time::{sleep, timeout};

use crate::engine::{Engine, EngineError, Session};
use crate::etcd::EtcdEngine;
use crate::nats::Nats;
use crate::server_list::EngineKind;
use crate::settings::FleetSettings;
use crate::store::{CONFIGURATION, Entry, Store, StoreChanges, StoreWatch};

/// Longest time of an operation.
const PATIENCE: Duration = Duration::from_secs(10);

type NatsSession = <Nats as Engine>::Session;
type EtcdSession = <EtcdEngine as Engine>::Session;
type NatsStore = <NatsSession as Session>::Store;
type EtcdStore = <EtcdSession as Session>::Store;

/// Engine of one kind or the other.
enum AnyEngine {
    Nats(Box<Nats>),
    Etcd(EtcdEngine),
}

/// Connection with the store of configurations. A store ends with its connection.
enum Opened {
    Nats(NatsStore, #[expect(dead_code, reason = "it lasts as long as this")] Box<NatsSession>),
    Etcd(EtcdStore, #[expect(dead_code, reason = "it lasts as long as this")] Box<EtcdSession>),
}

/// Watch of a store of one kind or the other.
enum AnyWatch {
    Nats(<NatsStore as Store>::Watch),
    Etcd(<EtcdStore as Store>::Watch),
}

impl AnyEngine {
    async fn open(&self) -> Result<Opened, EngineError> {
        Ok(match self {
            Self::Nats(engine) => {
                let session = engine.connect().await?;
                Opened::Nats(session.open_store(&CONFIGURATION).await?, Box::new(session))
            }
            Self::Etcd(engine) => {
                let session = engine.connect().await?;
                Opened::Etcd(session.open_store(&CONFIGURATION).await?, Box::new(session))
            }
        })
    }
}

impl Store for Opened {
    type Watch = AnyWatch;

    async fn get(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        match self {
            Self::Nats(store, _) => store.get(key).await,
            Self::Etcd(store, _) => store.get(key).await,
        }
    }

    async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
        match self {
            Self::Nats(store, _) => store.set(key, value, expected).await,
            Self::Etcd(store, _) => store.set(key, value, expected).await,
        }
    }

    async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
        match self {
            Self::Nats(store, _) => store.remove(key, expected).await,
            Self::Etcd(store, _) => store.remove(key, expected).await,
        }
    }

    async fn watch(&self) -> Result<AnyWatch, EngineError> {
        Ok(match self {
            Self::Nats(store, _) => AnyWatch::Nats(store.watch().await?),
            Self::Etcd(store, _) => AnyWatch::Etcd(store.watch().await?),
        })
    }
}

impl StoreWatch for AnyWatch {
    async fn next(&mut self) -> Result<StoreChanges, EngineError> {
        match self {
            Self::Nats(watch) => watch.next().await,
            Self::Etcd(watch) => watch.next().await,
        }
    }
}

/// Connection of a command to the store of configurations. Not for a thread that runs an event loop.
pub struct ConfigurationClient {
    runtime: Runtime,
    tasks: LocalSet,
    engine: AnyEngine,
    store: Option<Opened>,
}

impl ConfigurationClient {
    /// A client of the engine of a fleet; it connects with the first operation.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub fn new(settings: &FleetSettings) -> Result<Self, EngineError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| EngineError::io("epoll_create()", &error))?;
        let FleetSettings { name, node, engine, .. } = settings;
        let engine = match engine.servers.kind() {
            EngineKind::Nats => Nats::new(engine, name, node).map(|nats| AnyEngine::Nats(Box::new(nats))),
            EngineKind::Etcd => EtcdEngine::new(engine, name).map(AnyEngine::Etcd),
        };
        let engine = engine.map_err(EngineError::Lost)?;
        Ok(Self { runtime, tasks: LocalSet::new(), engine, store: None })
    }

    /// Does one operation; after a lost connection the next one connects again.
    fn run<T>(
        &mut self,
        operation: impl AsyncFnOnce(&Opened) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let Self { runtime, tasks, engine, store } = self;
        let done = tasks.block_on(runtime, async {
            let done = timeout(PATIENCE, async {
                if store.is_none() {
                    *store = Some(engine.open().await?);
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
                    entries.retain(|known_entry| known_entry.key != entry.key);
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
