//! Store of a fleet in etcd: a key for each value, whose version is the revision of its last change.

use std::rc::Rc;

use serde_json::json;

use super::api::{Api, KeyValue, PAGE, Watch, decode, encode, end_of, has_revision, put};
use crate::engine::EngineError;
use crate::store::{self, Entry, Store, StoreChanges, StoreSettings, StoreWatch};

/// Store of a fleet.
pub(crate) struct EtcdStore {
    api: Rc<Api>,
    settings: StoreSettings,
    /// Beginning of its keys, with the slash.
    prefix: String,
}

/// Watch of a store.
pub(crate) struct EtcdStoreWatch {
    api: Rc<Api>,
    settings: StoreSettings,
    prefix: String,
    /// First key of the next page; `None` once all are read.
    page: Option<String>,
    /// Revision of the first page: changes since then come by the watch.
    revision: u64,
    watch: Option<Watch>,
}

/// Entry of a key, if it is one of ours.
fn entry(
    settings: &StoreSettings,
    prefix: &str,
    pair: &KeyValue,
    is_removal: bool,
) -> Result<Option<Entry>, EngineError> {
    let key = String::from_utf8(decode(&pair.key)?).unwrap_or_default();
    let value = if is_removal { None } else { Some(decode(&pair.value)?) };
    let key = key.strip_prefix(prefix);
    Ok(key.and_then(|key| store::admit(settings, key, value, pair.mod_revision)))
}

impl EtcdStore {
    pub(super) fn new(api: Rc<Api>, settings: &StoreSettings) -> Self {
        let name = if settings.name.is_empty() { "summaries" } else { settings.name };
        let prefix = format!("{}store/{name}/", api.prefix);
        Self { api, settings: *settings, prefix }
    }
}

impl Store for EtcdStore {
    type Watch = EtcdStoreWatch;

    async fn get(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        store::check(&self.settings, key, b"")?;
        let reply = self.api.range(&format!("{}{key}", self.prefix), None, 1).await?;
        match reply.kvs.first() {
            Some(pair) => entry(&self.settings, &self.prefix, pair, false),
            None => Ok(None),
        }
    }

    async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
        store::check(&self.settings, key, value)?;
        let key = format!("{}{key}", self.prefix);
        let lease = match self.settings.age_max {
            Some(age) => Some(self.api.lease(age).await?),
            None => None,
        };
        let compare: Vec<_> = expected.map(|version| has_revision(&key, version)).into_iter().collect();
        let reply = self.api.txn(&compare, &[put(&key, value, lease.as_deref())]).await?;
        if reply.succeeded { Ok(reply.header.revision) } else { Err(EngineError::Conflict) }
    }

    async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
        store::check(&self.settings, key, b"")?;
        let key = format!("{}{key}", self.prefix);
        let compare: Vec<_> = expected.map(|version| has_revision(&key, version)).into_iter().collect();
        let removal = json!({ "request_delete_range": { "key": encode(key.as_bytes()) } });
        let reply = self.api.txn(&compare, &[removal]).await?;
        if reply.succeeded { Ok(()) } else { Err(EngineError::Conflict) }
    }

    async fn watch(&self) -> Result<EtcdStoreWatch, EngineError> {
        let api = self.api.clone();
        let settings = self.settings;
        let prefix = self.prefix.clone();
        let page = Some(prefix.clone());
        Ok(EtcdStoreWatch { api, settings, prefix, page, revision: 0, watch: None })
    }
}

impl StoreWatch for EtcdStoreWatch {
    async fn next(&mut self) -> Result<StoreChanges, EngineError> {
        let mut entries = Vec::new();
        if let Some(page) = self.page.take() {
            let reply = self.api.range(&page, Some(&end_of(&self.prefix)), PAGE).await?;
            if self.revision == 0 {
                self.revision = reply.header.revision;
            }
            for pair in &reply.kvs {
                entries.extend(entry(&self.settings, &self.prefix, pair, false)?);
            }
            if reply.count > reply.kvs.len() as u64
                && let Some(last) = reply.kvs.last()
            {
                // The first key behind the last one.
                let last = String::from_utf8(decode(&last.key)?).unwrap_or_default();
                self.page = Some(format!("{last}\0"));
            }
            return Ok(StoreChanges { entries, is_complete: self.page.is_none() });
        }
        if self.watch.is_none() {
            self.watch = Some(self.api.watch(&self.prefix, self.revision + 1).await?);
        }
        while let (Some(watch), true) = (&mut self.watch, entries.is_empty()) {
            for event in watch.next().await? {
                entries.extend(entry(&self.settings, &self.prefix, &event.kv, event.is_removal())?);
            }
        }
        Ok(StoreChanges { entries, is_complete: true })
    }
}
