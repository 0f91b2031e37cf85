//! Key-value bucket of JetStream as a store: a stream with one message for each subject.

use std::rc::Rc;

use serde_json::json;
use tw_http::base64::{self, Alphabet};

use super::jetstream::{JetStreamApi, Pull, nanoseconds, record};
use super::parser::Message;
use crate::engine::EngineError;
use crate::settings::EngineSettings;
use crate::store::{self, Entry, Store, StoreChanges, StoreSettings, StoreWatch};

/// Bytes of a message beside its value: subject and headers.
const OVERHEAD: usize = 1024;

/// Header of a message that removes its key.
const OPERATION: &str = "KV-Operation";

/// Store of a fleet.
pub(crate) struct Bucket {
    api: Rc<JetStreamApi>,
    settings: StoreSettings,
    stream: String,
    /// Beginning of the subjects of its keys, with the dot.
    keys: String,
}

/// Watch of a bucket.
pub(crate) struct BucketWatch {
    pull: Pull,
    keys: String,
    settings: StoreSettings,
    /// True once everything of the beginning has come.
    is_complete: bool,
    /// True if the first answer is due although there is no message.
    is_empty: bool,
}

/// Name of the bucket. Names of stores have no `-`, so the names of two fleets and two stores are never the same.
fn bucket_name(fleet: &str, store: &str) -> String {
    if store.is_empty() { format!("tailwater-{fleet}") } else { format!("tailwater_{store}-{fleet}") }
}

impl Bucket {
    /// Opens a bucket, or creates it.
    pub(super) async fn open(
        api: Rc<JetStreamApi>,
        fleet: &str,
        engine: &EngineSettings,
        settings: &StoreSettings,
    ) -> Result<Self, EngineError> {
        let name = bucket_name(fleet, settings.name);
        let stream = format!("KV_{name}");
        let keys = format!("$KV.{name}.");
        let config = json!({
            "name": stream, "subjects": [format!("{keys}>")], "retention": "limits", "storage": "file",
            "discard": "new", "num_replicas": engine.replicas, "max_msgs_per_subject": 1,
            "max_age": settings.age_max.map_or(0, nanoseconds), "max_msg_size": settings.value_size_max + OVERHEAD,
            "max_bytes": settings.size_max, "allow_rollup_hdrs": true, "deny_delete": true, "allow_direct": true,
        });
        api.ensure(&stream, &config).await?;
        Ok(Self { api, settings: *settings, stream, keys })
    }

    async fn publish(
        &self,
        key: &str,
        value: &[u8],
        expected: Option<u64>,
        operation: Option<&str>,
    ) -> Result<u64, EngineError> {
        store::check(&self.settings, key, value)?;
        let version = expected.map(|version| version.to_string());
        let mut headers = Vec::new();
        headers.extend(version.as_deref().map(|version| ("Nats-Expected-Last-Subject-Sequence", version)));
        headers.extend(operation.map(|operation| (OPERATION, operation)));
        self.api.publish(&format!("{}{key}", self.keys), &headers, value).await
    }
}

impl Store for Bucket {
    type Watch = BucketWatch;

    async fn get(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        store::check(&self.settings, key, b"")?;
        let subject = format!("{}{key}", self.keys);
        let Some(message) = self.api.stored(&self.stream, &json!({ "last_by_subj": subject })).await? else {
            return Ok(None);
        };
        let damaged = || EngineError::Lost("a value of the store is damaged".to_owned());
        let decode = |text: &str| {
            let mut bytes = Vec::new();
            base64::decode(text.as_bytes(), Alphabet::Standard, &mut bytes).map_err(|_| damaged())?;
            Ok(bytes)
        };
        let headers = Message::of_headers(decode(&message.hdrs)?);
        let value = match headers.header(OPERATION) {
            Some(_) => None,
            None => Some(decode(&message.data)?),
        };
        Ok(store::admit(&self.settings, key, value, message.seq))
    }

    async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
        self.publish(key, value, expected, None).await
    }

    async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
        self.publish(key, b"", expected, Some("DEL")).await.map(|_| ())
    }

    async fn watch(&self) -> Result<BucketWatch, EngineError> {
        let config =
            json!({ "deliver_policy": "last_per_subject", "filter_subject": format!("{}>", self.keys) });
        let (pull, pending) = self.api.pull(&self.stream, config).await?;
        let keys = self.keys.clone();
        let settings = self.settings;
        Ok(BucketWatch { pull, keys, settings, is_complete: pending == 0, is_empty: pending == 0 })
    }
}

impl StoreWatch for BucketWatch {
    async fn next(&mut self) -> Result<StoreChanges, EngineError> {
        if std::mem::take(&mut self.is_empty) {
            return Ok(StoreChanges { entries: Vec::new(), is_complete: true });
        }
        let mut entries = Vec::new();
        for message in self.pull.next().await? {
            let Some(place) = record(&message) else {
                return Err(EngineError::Lost("a value of the store has no version".to_owned()));
            };
            // Only the last value of each key is delivered, so a message with no others pending completes the
            // beginning.
            self.is_complete |= place.pending == 0;
            let value = if message.header(OPERATION).is_some() { None } else { message.payload };
            let key = message.subject.strip_prefix(&self.keys);
            entries.extend(key.and_then(|key| store::admit(&self.settings, key, value, place.sequence)));
        }
        Ok(StoreChanges { entries, is_complete: self.is_complete })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_two_fleets_differ() {
        assert_eq!(bucket_name("edge", ""), "tailwater-edge");
        assert_eq!(bucket_name("edge", "certificates"), "tailwater_certificates-edge");
        assert_ne!(bucket_name("certificates-edge", ""), bucket_name("edge", "certificates"));
    }
}
