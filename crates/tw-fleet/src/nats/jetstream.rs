//! JetStream over a connection: its API, the stream of the log, and readers of streams. Requests and replies are JSON.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tw_rt::time::timeout;

use super::announcements::NatsAnnouncements;
use super::bucket::Bucket;
use super::connection::{Connection, Inbox, InboxKind};
use super::parser::{Message, shown};
use crate::engine::{EngineError, Log, LogReader, LogRecord, LogState, Session};
use crate::settings::EngineSettings;
use crate::store::StoreSettings;

/// Messages that are asked for at once.
const BATCH: usize = 128;
/// Time of one question for messages.
const PULL_TIME: Duration = Duration::from_secs(30);
/// Signs of life while there are no messages.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Time without one after which the connection counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time after which the server drops a reader that asks for nothing.
const READER_TIME: Duration = Duration::from_secs(60);
/// Time for which the server recognises a record that was sent twice.
const DUPLICATES: Duration = Duration::from_secs(120);

/// Stream or message that does not exist.
const NOT_FOUND: u64 = 404;
/// The last sequence of a subject is another one than was expected.
const WRONG_LAST_SEQUENCE: u64 = 10071;

/// Log and stores of one fleet.
pub(crate) struct JetStream {
    pub(super) api: Rc<JetStreamApi>,
    fleet: Box<str>,
    settings: EngineSettings,
    /// Stream of the log.
    stream: String,
    /// Subject of its records.
    subject: String,
    /// Subject of announcements, which no stream stores.
    pub(super) announced: String,
}

/// API of JetStream over a connection.
pub(super) struct JetStreamApi(pub(super) Rc<Connection>);

/// Reader of a stream.
pub(super) struct Pull {
    connection: Rc<Connection>,
    subject: String,
    inbox: Inbox,
    /// Messages that were asked for and have not come.
    remaining: usize,
}

/// Reader of the log.
pub(crate) struct JetStreamReader(Pull);

#[derive(Deserialize)]
struct ApiError {
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct ApiReply<T> {
    error: Option<ApiError>,
    #[serde(flatten)]
    reply: Option<T>,
}

#[derive(Deserialize)]
struct StreamInfo {
    created: String,
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamState {
    first_seq: u64,
    last_seq: u64,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    name: String,
    /// Messages that it is going to deliver.
    #[serde(default)]
    num_pending: u64,
}

#[derive(Deserialize)]
struct Published {
    seq: u64,
}

#[derive(Deserialize)]
struct StoredReply {
    message: StoredMessage,
}

#[derive(Deserialize)]
pub(super) struct StoredMessage {
    pub(super) seq: u64,
    time: String,
    /// Content in base64.
    #[serde(default)]
    pub(super) data: String,
    /// Headers in base64.
    #[serde(default)]
    pub(super) hdrs: String,
}

pub(super) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl JetStream {
    /// Makes sure that the stream of the log exists.
    pub(super) async fn new(
        connection: Connection,
        fleet: &str,
        settings: &EngineSettings,
    ) -> Result<Self, EngineError> {
        let this = Self {
            api: Rc::new(JetStreamApi(Rc::new(connection))),
            fleet: fleet.into(),
            settings: settings.clone(),
            stream: format!("TAILWATER_{fleet}"),
            subject: format!("tailwater.{fleet}.log"),
            announced: format!("tailwater.{fleet}.nodes"),
        };
        let log = json!({
            "name": this.stream, "subjects": [this.subject], "retention": "limits", "storage": "file",
            "discard": "old", "num_replicas": settings.replicas, "max_age": nanoseconds(settings.max_age),
            "max_msgs": settings.max_messages, "max_msg_size": crate::record::RECORD_SIZE_MAX + 1024,
            "duplicate_window": nanoseconds(DUPLICATES.min(settings.max_age)), "deny_delete": true,
        });
        this.api.ensure(&this.stream, &log).await?;
        Ok(this)
    }

    /// Name and version of the server.
    pub(crate) fn server(&self) -> &str {
        self.api.0.server()
    }
}

impl Session for JetStream {
    type Store = Bucket;
    type Announcements = NatsAnnouncements;

    async fn open_store(&self, settings: &StoreSettings) -> Result<Bucket, EngineError> {
        Bucket::open(self.api.clone(), &self.fleet, &self.settings, settings).await
    }

    fn announce(&self, payload: &[u8]) -> Result<(), EngineError> {
        NatsAnnouncements::publish(&self.api.0, &self.announced, payload)
    }

    async fn announcements(&self) -> Result<NatsAnnouncements, EngineError> {
        NatsAnnouncements::subscribe(&self.api.0, &self.announced)
    }
}

impl JetStreamApi {
    /// Creates a stream if it does not exist. One that exists stays as it is, whatever its limits.
    pub(super) async fn ensure(&self, name: &str, config: &Value) -> Result<(), EngineError> {
        let stream_info =
            self.call::<StreamInfo>(&format!("$JS.API.STREAM.INFO.{name}"), &Value::Null).await?;
        if stream_info.is_none() {
            let made = self.call::<StreamInfo>(&format!("$JS.API.STREAM.CREATE.{name}"), config).await?;
            made.ok_or_else(|| EngineError::Refused(format!("stream \"{name}\" could not be created")))?;
        }
        Ok(())
    }

    /// Calls the API; `None` for something that does not exist.
    async fn call<T: DeserializeOwned>(&self, subject: &str, body: &Value) -> Result<Option<T>, EngineError> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let reply = self.0.request(subject, &[], &body).await?;
        read(&reply)
    }

    /// Stores a message. Returns its sequence.
    pub(super) async fn publish(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<u64, EngineError> {
        if payload.len() > self.0.payload_max() {
            return Err(EngineError::Refused(format!("a message of {} bytes is too large", payload.len())));
        }
        let reply = self.0.request(subject, headers, payload).await?;
        let published = read::<Published>(&reply)?;
        published
            .map(|published| published.seq)
            .ok_or_else(|| EngineError::Refused("it has no such stream".to_owned()))
    }

    /// Begins to read a stream. Returns the reader, and the number of messages that are there.
    pub(super) async fn pull(&self, stream: &str, mut config: Value) -> Result<(Pull, u64), EngineError> {
        if let Some(config) = config.as_object_mut() {
            config.insert("ack_policy".to_owned(), "none".into());
            config.insert("replay_policy".to_owned(), "instant".into());
            config.insert("inactive_threshold".to_owned(), nanoseconds(READER_TIME).into());
            config.insert("mem_storage".to_owned(), true.into());
            config.insert("num_replicas".to_owned(), 1.into());
        }
        let body = json!({ "stream_name": stream, "config": config });
        let made = self.call::<ConsumerInfo>(&format!("$JS.API.CONSUMER.CREATE.{stream}"), &body).await?;
        let made = made.ok_or_else(|| EngineError::Lost(format!("stream \"{stream}\" is gone")))?;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if made.name.is_empty() || !made.name.bytes().all(is_word) {
            return Err(EngineError::Lost("it has an invalid name for a reader".to_owned()));
        }
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{}", made.name);
        let inbox = self.0.inbox(InboxKind::Stream, 2 * BATCH)?;
        Ok((Pull { connection: self.0.clone(), subject, inbox, remaining: 0 }, made.num_pending))
    }

    /// A message of a stream; `None` if it is not there.
    pub(super) async fn stored(
        &self,
        stream: &str,
        which: &Value,
    ) -> Result<Option<StoredMessage>, EngineError> {
        let reply = self.call::<StoredReply>(&format!("$JS.API.STREAM.MSG.GET.{stream}"), which).await?;
        Ok(reply.map(|reply| reply.message))
    }
}

/// Reads a reply of the API; `None` for something that does not exist.
fn read<T: DeserializeOwned>(reply: &Message) -> Result<Option<T>, EngineError> {
    if reply.status() == Some(503) {
        return Err(EngineError::Lost("JetStream is not available there, or may not be used".to_owned()));
    }
    let Some(payload) = &reply.payload else {
        return Err(EngineError::Refused("its reply is too large".to_owned()));
    };
    let read = serde_json::from_slice::<ApiReply<T>>(payload);
    let reply = read.map_err(|_| EngineError::Lost("its reply is not that of JetStream".to_owned()))?;
    match (reply.error, reply.reply) {
        (Some(error), _) if error.err_code == WRONG_LAST_SEQUENCE => Err(EngineError::Conflict),
        (Some(error), _) if error.code == NOT_FOUND => Ok(None),
        (Some(error), _) => Err(EngineError::Refused(shown(error.description.as_bytes()))),
        (None, Some(reply)) => Ok(Some(reply)),
        (None, None) => Err(EngineError::Lost("its reply lacks something".to_owned())),
    }
}

/// Nanoseconds since 1970 of a time as JSON has it.
fn time_ns(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok()
}

impl Log for JetStream {
    type Reader = JetStreamReader;

    async fn state(&self) -> Result<LogState, EngineError> {
        let info = self
            .api
            .call::<StreamInfo>(&format!("$JS.API.STREAM.INFO.{}", self.stream), &Value::Null)
            .await?;
        let info = info.ok_or_else(|| EngineError::Lost(format!("stream \"{}\" is gone", self.stream)))?;
        let StreamState { first_seq, last_seq } = info.state;
        let first = if first_seq == 0 { last_seq.saturating_add(1) } else { first_seq };
        Ok(LogState { identity: shown(info.created.as_bytes()), first, last: last_seq })
    }

    async fn record_time(&self, sequence: u64) -> Result<Option<u64>, EngineError> {
        let stored = self.api.stored(&self.stream, &json!({ "seq": sequence })).await?;
        Ok(stored.and_then(|message| time_ns(&message.time)))
    }

    async fn append(&self, id: &str, payload: &[u8]) -> Result<u64, EngineError> {
        let headers = [("Nats-Msg-Id", id), ("Nats-Expected-Stream", &*self.stream)];
        self.api.publish(&self.subject, &headers, payload).await
    }

    async fn read_from(&self, sequence: u64) -> Result<JetStreamReader, EngineError> {
        let config = json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": sequence.max(1) });
        let (pull, _) = self.api.pull(&self.stream, config).await?;
        Ok(JetStreamReader(pull))
    }
}

impl Pull {
    /// The next messages. Waits until there are some.
    pub(super) async fn next(&mut self) -> Result<Vec<Message>, EngineError> {
        let mut messages = Vec::new();
        while messages.is_empty() {
            if self.remaining == 0 {
                let body = json!({
                    "batch": BATCH, "expires": nanoseconds(PULL_TIME), "idle_heartbeat": nanoseconds(HEARTBEAT),
                });
                self.connection.ask(&self.subject, &self.inbox, &[], body.to_string().as_bytes())?;
                self.remaining = BATCH;
            }
            let mut next = match timeout(SILENCE_MAX, self.inbox.next()).await {
                Ok(next) => Some(next?),
                Err(_) => return Err(EngineError::Lost("it gives no sign of life".to_owned())),
            };
            while let Some(message) = next {
                // Messages of the stream have a subject for acknowledgements; all others are words of the server.
                if message.reply.is_some() {
                    self.remaining = self.remaining.saturating_sub(1);
                    messages.push(message);
                } else {
                    match message.status() {
                        Some(100) => {}
                        // The time of the question is over, or nothing is there.
                        Some(404 | 408) => self.remaining = 0,
                        Some(_) | None => {
                            return Err(EngineError::Lost(format!(
                                "reading ends: {}",
                                message.status_text()
                            )));
                        }
                    }
                }
                next = self.inbox.take();
            }
        }
        Ok(messages)
    }
}

/// Sequence, time and number of those behind, as the subject for acknowledgements has them:
/// `$JS.ACK.[domain.account.]stream.reader.tries.sequence.number.time.pending[.random]`.
pub(super) fn record(message: &Message) -> Option<LogRecord> {
    let mut words: VecDeque<&str> = message.reply.as_deref()?.split('.').collect();
    if words.len() >= 11 {
        words.drain(2..4);
    }
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let is_ack = words.front() == Some(&"$JS") && words.get(1) == Some(&"ACK");
    if !is_ack || words.len() < 9 {
        return None;
    }
    Some(LogRecord {
        sequence: number(5)?,
        time_ns: number(7)?,
        pending: number(8)?,
        payload: message.payload.clone(),
    })
}

impl LogReader for JetStreamReader {
    async fn next(&mut self) -> Result<Vec<LogRecord>, EngineError> {
        let messages = self.0.next().await?;
        let records: Option<Vec<LogRecord>> = messages.iter().map(record).collect();
        records.ok_or_else(|| EngineError::Lost("a record of the log has no sequence".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(reply: &str, headers: &str, payload: &str) -> Message {
        Message {
            subject: "s".to_owned(),
            subscription: 1,
            reply: Some(reply.to_owned()),
            headers: headers.as_bytes().to_vec(),
            payload: Some(payload.as_bytes().to_vec()),
        }
    }

    #[test]
    fn records_have_the_sequence_of_the_stream() {
        let log_record = record(&message("$JS.ACK.S.C.1.17.3.1700000000000000001.4", "", "x")).unwrap();
        assert_eq!(
            (log_record.sequence, log_record.time_ns, log_record.pending),
            (17, 1_700_000_000_000_000_001, 4)
        );
        let log_record = record(&message("$JS.ACK.hub.ACC.S.C.1.18.3.5.0.random", "", "x")).unwrap();
        assert_eq!((log_record.sequence, log_record.time_ns, log_record.pending), (18, 5, 0));
        for reply in ["", "$JS.ACK", "$JS.ACK.S.C.1.x.3.5.4", "$JS.ACK.S.C.1.17.3.5", "a.b.S.C.1.17.3.5.4"] {
            assert_eq!(record(&message(reply, "", "")), None, "{reply}");
        }
    }

    #[test]
    fn replies_are_errors_nothing_or_values() {
        let read_text = |payload: &str| {
            read::<Published>(&message("", "", payload))
                .map(|published| published.map(|published| published.seq))
        };
        assert_eq!(read_text(r#"{"stream":"S","seq":7,"duplicate":true}"#), Ok(Some(7)));
        assert_eq!(
            read_text(r#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#),
            Ok(None)
        );
        assert_eq!(
            read_text(r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}"#),
            Err(EngineError::Conflict)
        );
        assert_eq!(
            read_text(r#"{"error":{"code":500,"description":"no\nroom"}}"#),
            Err(EngineError::Refused("no room".to_owned()))
        );
        assert!(matches!(read_text("{}"), Err(EngineError::Lost(_))));
        assert!(matches!(read_text("[]"), Err(EngineError::Lost(_))));
        assert!(matches!(
            read::<Published>(&message("", "NATS/1.0 503\r\n\r\n", "")),
            Err(EngineError::Lost(_))
        ));
    }

    #[test]
    fn times_of_json() {
        assert_eq!(time_ns("1970-01-01T00:00:01.000000002Z"), Some(1_000_000_002));
        assert_eq!(time_ns("yesterday"), None);
    }
}
