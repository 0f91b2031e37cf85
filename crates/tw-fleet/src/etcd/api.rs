//! Calls of the JSON gateway of etcd: keys, transactions, leases and watches.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tw_http::base64::{self, Alphabet};

use super::http::{HttpClient, Stream};
use crate::engine::EngineError;
use crate::nats::shown;
use crate::settings::EngineSettings;

/// Values that are asked for at once.
pub(super) const PAGE: usize = 16;

/// Time for which a lease is used for further values. Each of them lives so much longer than it has to.
const LEASE_USE: Duration = Duration::from_secs(600);

/// Calls of the API.
pub(super) struct Api {
    pub(super) http: HttpClient,
    /// Beginning of all keys, with the slash.
    pub(super) prefix: String,
    pub(super) settings: EngineSettings,
    /// True once something was lost: whoever reads gets an error, and another connection is made.
    pub(super) is_closed: Cell<bool>,
    pub(super) closed: Notify,
    /// Leases by their time, and when they were made.
    pub(super) leases: RefCell<HashMap<u64, (String, Instant)>>,
}

/// Watch of keys.
pub(super) struct Watch {
    stream: Stream,
    api: Rc<Api>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: u64,
}

/// Key with its value; both in base64.
#[derive(Debug, Deserialize)]
pub(super) struct KeyValue {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    #[serde(default, deserialize_with = "number")]
    pub(super) mod_revision: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct RangeReply {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
    #[serde(default, deserialize_with = "number")]
    pub(super) count: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct TxnReply {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
}

#[derive(Debug, Deserialize)]
struct LeaseReply {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Debug, Deserialize)]
struct WatchMessage {
    result: Option<WatchResult>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct WatchResult {
    #[serde(default)]
    created: bool,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default, deserialize_with = "number")]
    compact_revision: u64,
    #[serde(default)]
    events: Vec<WatchEvent>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WatchEvent {
    #[serde(default, rename = "type")]
    pub(super) kind: String,
    pub(super) kv: KeyValue,
}

impl WatchEvent {
    pub(super) fn is_removal(&self) -> bool {
        self.kind == "DELETE"
    }
}

/// Number that JSON has as a text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| serde::de::Error::custom("no number"))
}

pub(super) fn encode(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&base64::encode(bytes)).into_owned()
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    match base64::decode(text.as_bytes(), Alphabet::Standard, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(EngineError::Lost("it sends what is no base64".to_owned())),
    }
}

/// First key behind all that begin like this; the beginning ends with a slash.
pub(super) fn end_of(prefix: &str) -> String {
    format!("{}0", prefix.trim_end_matches('/'))
}

impl Api {
    /// Calls the API.
    pub(super) async fn call<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, EngineError> {
        let done = self.try_call(path, body).await;
        if let Err(EngineError::Lost(_)) = done {
            self.close();
        }
        done
    }

    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.closed.notify_waiters();
    }

    async fn try_call<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, EngineError> {
        let (status, text) = self.http.post(path, body.to_string().as_bytes()).await?;
        if status != 200 {
            return Err(failure(status, &text));
        }
        serde_json::from_slice(&text)
            .map_err(|_| EngineError::Lost("its answer is not that of etcd".to_owned()))
    }

    /// Values of keys from `key` on; of `key` alone without an end.
    pub(super) async fn range(
        &self,
        key: &str,
        end: Option<&str>,
        limit: usize,
    ) -> Result<RangeReply, EngineError> {
        let mut body = json!({ "key": encode(key.as_bytes()), "limit": limit });
        if let (Some(end), Some(body)) = (end, body.as_object_mut()) {
            body.insert("range_end".to_owned(), encode(end.as_bytes()).into());
        }
        self.call("/v3/kv/range", &body).await
    }

    /// Does all operations, if all comparisons are true.
    pub(super) async fn txn(&self, compare: &[Value], operations: &[Value]) -> Result<TxnReply, EngineError> {
        self.call("/v3/kv/txn", &json!({ "compare": compare, "success": operations })).await
    }

    /// Watches keys for changes from a revision on.
    pub(super) async fn watch(self: &Rc<Self>, prefix: &str, revision: u64) -> Result<Watch, EngineError> {
        let body = json!({ "create_request": {
            "key": encode(prefix.as_bytes()), "range_end": encode(end_of(prefix).as_bytes()),
            "start_revision": revision.to_string(), "fragment": true,
        } });
        let stream = self.http.stream("/v3/watch", body.to_string().as_bytes()).await?;
        Ok(Watch { stream, api: self.clone() })
    }

    /// A lease for values that disappear after this time, or up to ten minutes later.
    pub(super) async fn lease(&self, time: Duration) -> Result<String, EngineError> {
        let seconds = time.as_secs().max(1);
        let row = self.leases.borrow().get(&seconds).cloned();
        if let Some((id, _)) = row.filter(|(_, made)| made.elapsed() < LEASE_USE) {
            return Ok(id);
        }
        let ttl = (seconds + LEASE_USE.as_secs()).to_string();
        let reply: LeaseReply = self.call("/v3/lease/grant", &json!({ "TTL": ttl, "ID": "0" })).await?;
        if !reply.id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(EngineError::Lost("its lease has no number".to_owned()));
        }
        self.leases.borrow_mut().insert(seconds, (reply.id.clone(), Instant::now()));
        Ok(reply.id)
    }
}

/// Operation that sets a value.
pub(super) fn put(key: &str, value: &[u8], lease: Option<&str>) -> Value {
    let key = encode(key.as_bytes());
    let value = encode(value);
    json!({ "request_put": { "key": key, "value": value, "lease": lease.unwrap_or("0") } })
}

/// Comparison of the revision of the last change of a key; 0 if it does not exist.
pub(super) fn has_revision(key: &str, revision: u64) -> Value {
    json!({
        "key": encode(key.as_bytes()), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
    })
}

/// Error of an answer with this status.
fn failure(status: u16, text: &[u8]) -> EngineError {
    /// Codes of gRPC.
    const UNAVAILABLE: u64 = 14;
    const UNAUTHENTICATED: u64 = 16;
    let value: Value = serde_json::from_slice(text).unwrap_or_default();
    let message = value.get("message").or_else(|| value.get("error")).and_then(Value::as_str);
    let message = shown(message.unwrap_or("it says no reason").as_bytes());
    match value.get("code").and_then(Value::as_u64) {
        // A token is over after some time, and another server may be there.
        Some(UNAVAILABLE | UNAUTHENTICATED) => EngineError::Lost(format!("{message} ({status})")),
        None if status >= 500 => EngineError::Lost(format!("{message} ({status})")),
        _ => EngineError::Refused(format!("{message} ({status})")),
    }
}

impl Watch {
    /// The next changes. Empty for a message without any.
    pub(super) async fn next(&mut self) -> Result<Vec<WatchEvent>, EngineError> {
        let lost = || EngineError::Lost("the connection was closed".to_owned());
        let message = {
            let mut next = pin!(self.stream.next());
            let mut closed = pin!(self.api.closed.notified());
            poll_fn(|cx| match next.as_mut().poll(cx) {
                Poll::Ready(message) => Poll::Ready(message),
                // `closed` is registered only by its first poll, so `is_closed` is read after that.
                Poll::Pending if closed.as_mut().poll(cx).is_ready() || self.api.is_closed.get() => {
                    Poll::Ready(Err(lost()))
                }
                Poll::Pending => Poll::Pending,
            })
            .await?
        };
        let message: WatchMessage = serde_json::from_slice(&message)
            .map_err(|_| EngineError::Lost("its watch is not that of etcd".to_owned()))?;
        if let Some(error) = message.error {
            let why = error.get("message").and_then(Value::as_str).unwrap_or("no reason");
            return Err(EngineError::Lost(format!("a watch has failed: {}", shown(why.as_bytes()))));
        }
        let Some(result) = message.result else { return Ok(Vec::new()) };
        if result.canceled || result.compact_revision > 0 {
            // The reader begins again with the keys.
            let why = shown(result.cancel_reason.as_bytes());
            return Err(EngineError::Lost(format!("a watch was canceled: {why}")));
        }
        if result.created {
            return Ok(Vec::new());
        }
        Ok(result.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_lost_or_refused() {
        let of = |status, text: &str| failure(status, text.as_bytes());
        assert_eq!(
            of(
                400,
                r#"{"error":"etcdserver: authentication failed, invalid user ID or password","code":3,"message":"etcdserver: authentication failed, invalid user ID or password"}"#
            ),
            EngineError::Refused(
                "etcdserver: authentication failed, invalid user ID or password (400)".to_owned()
            )
        );
        assert!(matches!(
            of(401, r#"{"error":"etcdserver: invalid auth token","code":16}"#),
            EngineError::Lost(_)
        ));
        assert!(matches!(of(503, "busy"), EngineError::Lost(_)));
        assert!(matches!(
            of(403, r#"{"message":"etcdserver: permission denied","code":7}"#),
            EngineError::Refused(_)
        ));
    }

    #[test]
    fn numbers_are_texts_or_numbers() {
        let header: Header = serde_json::from_str(r#"{"revision":"7","raft_term":"9"}"#).unwrap();
        assert_eq!(header.revision, 7);
        assert!(serde_json::from_str::<Header>(r#"{"revision":"-1"}"#).is_err());
        assert_eq!(end_of("tailwater/a/log/"), "tailwater/a/log0");
    }
}
