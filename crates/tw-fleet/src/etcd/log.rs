//! Log of a fleet in etcd: numbered keys. A record is added by a transaction that also moves the number of the last one.

use std::rc::Rc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use tw_rt::time::{sleep, timeout};

use super::api::{Api, KeyValue, PAGE, Watch, decode, encode, end_of, has_revision, put};
use super::session::EtcdSession;
use crate::engine::{EngineError, Log, LogReader, LogRecord, LogState};
use crate::host::random_word;
use crate::nats::shown;
use crate::record::RECORD_SIZE_MAX;

/// Attempts to add a record while other nodes add theirs.
const ATTEMPTS_MAX: u32 = 50;
/// Time without a record after which the reader looks if the watch has missed one.
const LOOK: Duration = Duration::from_secs(5);
/// Records after which those are removed that are too many.
const TRIM_INTERVAL: u64 = 1000;

/// Number of the last record, as the last transaction of this node has left it.
#[derive(Default)]
pub(super) struct Appending(Option<Last>);

/// Entry of the last number.
#[derive(Clone)]
struct Last {
    number: u64,
    /// Revision of the entry.
    revision: u64,
    /// Identity of the log.
    identity: String,
}

/// Reader of the log.
pub(crate) struct EtcdReader {
    api: Rc<Api>,
    /// Number of the next record.
    next: u64,
    watch: Option<Watch>,
}

impl Api {
    fn last_key(&self) -> String {
        format!("{}last", self.prefix)
    }

    fn log_prefix(&self) -> String {
        format!("{}log/", self.prefix)
    }

    fn record_key(&self, number: u64) -> String {
        format!("{}{number:020}", self.log_prefix())
    }

    async fn last(&self) -> Result<Last, EngineError> {
        let reply = self.range(&self.last_key(), None, 1).await?;
        let end = || EngineError::Lost("the log is gone".to_owned());
        let entry = reply.kvs.first().ok_or_else(end)?;
        let value = String::from_utf8(decode(&entry.value)?).unwrap_or_default();
        let (number, identity) = value.split_once(' ').ok_or_else(end)?;
        let number = number.parse().map_err(|_| end())?;
        let identity = shown(identity.as_bytes());
        Ok(Last { number, revision: entry.mod_revision, identity })
    }

    fn record(&self, entry: &KeyValue, pending: u64) -> Result<LogRecord, EngineError> {
        let key = String::from_utf8(decode(&entry.key)?).unwrap_or_default();
        let number = key.strip_prefix(&self.log_prefix()).and_then(|digits| digits.parse().ok());
        let sequence =
            number.ok_or_else(|| EngineError::Lost("a record of the log has no number".to_owned()))?;
        let payload = decode(&entry.value)?;
        let time_ns = mark(&payload);
        let payload = Some(payload).filter(|payload| payload.len() <= RECORD_SIZE_MAX);
        Ok(LogRecord { sequence, time_ns, pending, payload })
    }
}

/// Number that tells a record from another one with the same number: etcd has no times, and after it was restored, its revisions come
/// again.
fn mark(payload: &[u8]) -> u64 {
    let digest = digest(&SHA256, payload);
    digest.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl EtcdSession {
    /// Makes sure that the log exists.
    pub(super) async fn create_log(&self) -> Result<(), EngineError> {
        let key = self.api.last_key();
        let word = random_word().map_err(|error| EngineError::io("getrandom()", &error))?;
        let value = format!("0 {word}");
        self.api.txn(&[has_revision(&key, 0)], &[put(&key, value.as_bytes(), None)]).await.map(|_| ())
    }

    async fn number_of(&self, id_key: &str) -> Result<Option<u64>, EngineError> {
        let reply = self.api.range(id_key, None, 1).await?;
        let Some(entry) = reply.kvs.first() else { return Ok(None) };
        let number = decode(&entry.value)?;
        Ok(str::from_utf8(&number).ok().and_then(|text| text.parse().ok()))
    }

    /// Removes records that are too many.
    async fn trim(&self, last: u64) -> Result<(), EngineError> {
        let Some(first) = last.checked_sub(self.api.settings.max_messages) else { return Ok(()) };
        let key = self.api.record_key(0);
        let end = self.api.record_key(first + 1);
        let body = json!({ "key": encode(key.as_bytes()), "range_end": encode(end.as_bytes()) });
        self.api.call::<Value>("/v3/kv/deleterange", &body).await.map(|_| ())
    }
}

impl Log for EtcdSession {
    type Reader = EtcdReader;

    async fn state(&self) -> Result<LogState, EngineError> {
        let last = self.api.last().await?;
        let prefix = self.api.log_prefix();
        let first = self.api.range(&prefix, Some(&end_of(&prefix)), 1).await?;
        let first = first.kvs.first().map(|entry| self.api.record(entry, 0)).transpose()?;
        let first = first.map_or(last.number.saturating_add(1), |record| record.sequence);
        let number = last.number.max(first.saturating_sub(1));
        Ok(LogState { identity: last.identity, first, last: number })
    }

    async fn record_time(&self, sequence: u64) -> Result<Option<u64>, EngineError> {
        let reply = self.api.range(&self.api.record_key(sequence), None, 1).await?;
        let payload = reply.kvs.first().map(|entry| decode(&entry.value)).transpose()?;
        Ok(payload.map(|payload| mark(&payload)))
    }

    async fn append(&self, id: &str, payload: &[u8]) -> Result<u64, EngineError> {
        let id_key = format!("{}id/{id}", self.api.prefix);
        let last_key = self.api.last_key();
        let lease = self.api.lease(self.api.settings.max_age).await?;
        // This node appends one record at a time, because its concurrent appends would only conflict with each other.
        let mut appending = self.appending.lock().await;
        for attempt in 0..ATTEMPTS_MAX {
            let last = match appending.0.take() {
                Some(last) => last,
                None => {
                    if let Some(number) = self.number_of(&id_key).await? {
                        return Ok(number);
                    }
                    self.api.last().await?
                }
            };
            let number = last.number + 1;
            let text = number.to_string();
            let compare = [has_revision(&last_key, last.revision), has_revision(&id_key, 0)];
            let operations = [
                put(&last_key, format!("{text} {}", last.identity).as_bytes(), None),
                put(&self.api.record_key(number), payload, Some(&lease)),
                put(&id_key, text.as_bytes(), Some(&lease)),
            ];
            let reply = self.api.txn(&compare, &operations).await?;
            if reply.succeeded {
                appending.0 = Some(Last { number, revision: reply.header.revision, ..last });
                if number.is_multiple_of(TRIM_INTERVAL) {
                    // Records that could not be removed are removed by the next trim.
                    let _ = self.trim(number).await;
                }
                return Ok(number);
            }
            sleep(Duration::from_millis(u64::from(attempt.min(20)))).await;
        }
        Err(EngineError::Lost("other nodes append too much".to_owned()))
    }

    async fn read_from(&self, sequence: u64) -> Result<EtcdReader, EngineError> {
        Ok(EtcdReader { api: self.api.clone(), next: sequence.max(1), watch: None })
    }
}

impl EtcdReader {
    /// Reads keys until all are read; then the watch begins behind them.
    async fn page(&mut self) -> Result<Vec<LogRecord>, EngineError> {
        let key = self.api.record_key(self.next);
        let prefix = self.api.log_prefix();
        let reply = self.api.range(&key, Some(&end_of(&prefix)), PAGE).await?;
        let mut pending = reply.count;
        let mut records = Vec::new();
        for entry in &reply.kvs {
            pending = pending.saturating_sub(1);
            records.push(self.api.record(entry, pending)?);
        }
        if pending == 0 {
            self.watch = Some(self.api.watch(&prefix, reply.header.revision + 1).await?);
        }
        Ok(records)
    }
}

impl LogReader for EtcdReader {
    async fn next(&mut self) -> Result<Vec<LogRecord>, EngineError> {
        let mut records = Vec::new();
        while records.is_empty() {
            if self.api.is_closed.get() {
                return Err(EngineError::Lost("the connection was closed".to_owned()));
            }
            let Some(watch) = &mut self.watch else {
                records = self.page().await?;
                if records.is_empty() && self.watch.is_none() {
                    return Err(EngineError::Lost("the log cannot be read".to_owned()));
                }
                continue;
            };
            match timeout(LOOK, watch.next()).await {
                Ok(events) => {
                    for event in events?.iter().filter(|event| !event.is_removal()) {
                        records.push(self.api.record(&event.kv, 0)?);
                    }
                }
                // No event has arrived: the log has no new record, or the watch is dead. In the second case the keys
                // are read again.
                Err(_) if self.api.last().await?.number >= self.next => self.watch = None,
                Err(_) => {}
            }
        }
        if let Some(last) = records.last() {
            self.next = last.sequence.saturating_add(1);
        }
        Ok(records)
    }
}
