//! State of the scripted server: streams, their readers, connections, and what is sent to them.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::encoding::{base64, rfc3339};

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct State {
    pub(super) streams: HashMap<String, Stream>,
    pub(super) readers: HashMap<String, StreamReader>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) pulls: Vec<Pull>,
    pub(super) next: u64,
    /// User and password that are required.
    pub(super) login: Option<(String, String)>,
    /// Patterns of subjects that nobody may publish to.
    pub(super) forbidden: Vec<String>,
    /// Bytes that a new connection gets instead of a greeting.
    pub(super) greeting: Option<Vec<u8>>,
}

#[derive(Clone)]
pub(super) struct Stream {
    pub(super) created: u64,
    pub(super) subjects: Vec<String>,
    pub(super) max_per_subject: bool,
    pub(super) messages: Vec<StoredMessage>,
    pub(super) last: u64,
    /// Identifiers of messages.
    pub(super) ids: HashMap<String, u64>,
}

/// Message of a stream.
#[derive(Clone)]
pub struct StoredMessage {
    /// Sequence.
    pub sequence: u64,
    /// Time in nanoseconds since 1970.
    pub time_ns: u64,
    /// Subject.
    pub subject: String,
    /// Headers.
    pub headers: Vec<u8>,
    /// Content.
    pub payload: Vec<u8>,
}

pub(super) struct StreamReader {
    pub(super) stream: String,
    pub(super) next: u64,
    pub(super) delivered: u64,
}

pub(super) struct Connection {
    pub(super) out: TcpStream,
    pub(super) subscriptions: Vec<(String, String)>,
}

pub(super) struct Pull {
    pub(super) connection: u64,
    pub(super) reader: String,
    pub(super) inbox: String,
    pub(super) remaining: u64,
    pub(super) until: Instant,
    pub(super) beat: Instant,
}

fn matches(pattern: &str, subject: &str) -> bool {
    if let Some(prefix) = pattern.strip_suffix('>') {
        return subject.starts_with(prefix);
    }
    match pattern.strip_suffix('*') {
        Some(prefix) => subject.strip_prefix(prefix).is_some_and(|rest| !rest.contains('.')),
        None => pattern == subject,
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| u64::try_from(span.as_nanos()).unwrap_or(0))
}

impl State {
    pub(super) fn log(&mut self) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|(name, _)| !name.starts_with("KV_")).map(|(_, stream)| stream)
    }

    pub(super) fn send(&mut self, number: u64, bytes: &[u8]) {
        if let Some(connection) = self.connections.get(&number) {
            let _ = (&connection.out).write_all(bytes);
        }
    }

    /// Sends a message to the subscription of an inbox.
    pub(super) fn reply(
        &mut self,
        number: u64,
        inbox: &str,
        subject: &str,
        ack: &str,
        headers: &[u8],
        payload: &[u8],
    ) {
        let Some(connection) = self.connections.get(&number) else { return };
        let Some((_, sid)) = connection.subscriptions.iter().find(|(pattern, _)| matches(pattern, inbox))
        else {
            return;
        };
        let whole = headers.len() + payload.len();
        let head = if headers.is_empty() {
            format!("MSG {subject} {sid} {ack} {whole}\r\n")
        } else {
            format!("HMSG {subject} {sid} {ack} {} {whole}\r\n", headers.len())
        };
        let bytes = [head.as_bytes(), headers, payload, b"\r\n"].concat();
        self.send(number, &bytes);
    }

    pub(super) fn store(
        &mut self,
        subject: &str,
        headers: Vec<u8>,
        payload: Vec<u8>,
    ) -> Option<(String, u64, bool)> {
        let of_subject = |stream: &Stream| stream.subjects.iter().any(|pattern| matches(pattern, subject));
        let (name, stream) = self.streams.iter_mut().find(|(_, stream)| of_subject(stream))?;
        let text = String::from_utf8_lossy(&headers).into_owned();
        let id = text.lines().find_map(|line| line.strip_prefix("Nats-Msg-Id: "));
        if let Some(known_value) = id.and_then(|id| stream.ids.get(id)) {
            return Some((name.clone(), *known_value, true));
        }
        if let Some(id) = id {
            stream.ids.insert(id.to_owned(), stream.last + 1);
        }
        if stream.max_per_subject {
            stream.messages.retain(|message| message.subject != subject);
        }
        stream.last += 1;
        let sequence = stream.last;
        let subject = subject.to_owned();
        stream.messages.push(StoredMessage { sequence, time_ns: now_ns(), subject, headers, payload });
        Some((name.clone(), sequence, false))
    }

    pub(super) fn publish(
        &mut self,
        number: u64,
        subject: &str,
        reply: Option<&str>,
        headers: Vec<u8>,
        payload: Vec<u8>,
    ) {
        if self.forbidden.iter().any(|pattern| matches(pattern, subject)) {
            let error = format!("-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n");
            return self.send(number, error.as_bytes());
        }
        let Some(inbox) = reply else { return self.announce(subject, &payload) };
        let body: Value = serde_json::from_slice(&payload).unwrap_or_default();
        let answer = match subject.strip_prefix("$JS.API.") {
            Some(call) => self.call(number, call, inbox, &body),
            None if self.is_other_version(subject, &headers) => Some(
                json!({ "error": { "code": 400, "err_code": 10071, "description": "wrong last sequence" } }),
            ),
            None => match self.store(subject, headers, payload) {
                Some((stream, seq, duplicate)) => {
                    Some(json!({ "stream": stream, "seq": seq, "duplicate": duplicate }))
                }
                None => {
                    self.reply(number, inbox, inbox, "", b"NATS/1.0 503\r\n\r\n", b"");
                    None
                }
            },
        };
        if let Some(answer) = answer {
            self.reply(number, inbox, inbox, "", b"", answer.to_string().as_bytes());
        }
        self.deliver();
    }

    /// Sends a message to all subscriptions of its subject.
    pub(super) fn announce(&mut self, subject: &str, payload: &[u8]) {
        let mut to = Vec::new();
        for (number, connection) in &self.connections {
            let meant = connection.subscriptions.iter().filter(|(pattern, _)| matches(pattern, subject));
            to.extend(meant.map(|(_, sid)| (*number, sid.clone())));
        }
        for (number, sid) in to {
            let head = format!("MSG {subject} {sid} {}\r\n", payload.len());
            self.send(number, &[head.as_bytes(), payload, b"\r\n"].concat());
        }
    }

    /// True if the headers name another version of the subject than the last one.
    pub(super) fn is_other_version(&self, subject: &str, headers: &[u8]) -> bool {
        let text = String::from_utf8_lossy(headers).into_owned();
        let expected =
            text.lines().find_map(|line| line.strip_prefix("Nats-Expected-Last-Subject-Sequence: "));
        let Some(expected) = expected.and_then(|version| version.parse::<u64>().ok()) else { return false };
        let messages = self.streams.values().flat_map(|stream| &stream.messages);
        let last =
            messages.filter(|message| message.subject == subject).map(|message| message.sequence).max();
        last.unwrap_or(0) != expected
    }

    pub(super) fn call(&mut self, number: u64, call: &str, inbox: &str, body: &Value) -> Option<Value> {
        let missing =
            || Some(json!({ "error": { "code": 404, "err_code": 10059, "description": "not found" } }));
        if let Some(name) = call.strip_prefix("STREAM.CREATE.") {
            let texts = |value: &Value| {
                value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|text| text.as_str().map(str::to_owned))
                    .collect()
            };
            let stream = Stream {
                created: now_ns(),
                subjects: texts(&body["subjects"]),
                max_per_subject: body["max_msgs_per_subject"] == 1,
                messages: Vec::new(),
                last: 0,
                ids: HashMap::new(),
            };
            return Some(self.streams.entry(name.to_owned()).or_insert(stream).info());
        }
        if let Some(name) = call.strip_prefix("STREAM.INFO.") {
            return self.streams.get(name).map_or_else(missing, |stream| Some(stream.info()));
        }
        if let Some(name) = call.strip_prefix("STREAM.MSG.GET.") {
            let Some(stream) = self.streams.get(name) else { return missing() };
            let is_meant = |message: &&StoredMessage| match body["last_by_subj"].as_str() {
                Some(subject) => message.subject == subject,
                None => body["seq"] == message.sequence,
            };
            let Some(stored_message) = stream.messages.iter().rev().find(is_meant) else { return missing() };
            return Some(json!({ "message": {
                "seq": stored_message.sequence, "time": rfc3339(stored_message.time_ns), "subject": stored_message.subject,
                "data": base64(&stored_message.payload), "hdrs": base64(&stored_message.headers),
            } }));
        }
        if let Some(name) = call.strip_prefix("CONSUMER.CREATE.") {
            let Some(stream) = self.streams.get(name) else { return missing() };
            let pending = stream.messages.len();
            self.next += 1;
            let reader = format!("reader{}", self.next);
            let next = body["config"]["opt_start_seq"].as_u64().unwrap_or(1);
            self.readers.insert(reader.clone(), StreamReader { stream: name.to_owned(), next, delivered: 0 });
            return Some(
                json!({ "stream_name": name, "name": reader, "config": {}, "num_pending": pending }),
            );
        }
        if let Some((_, reader)) =
            call.strip_prefix("CONSUMER.MSG.NEXT.").and_then(|rest| rest.rsplit_once('.'))
        {
            if !self.readers.contains_key(reader) {
                self.reply(number, inbox, inbox, "", b"NATS/1.0 503\r\n\r\n", b"");
                return None;
            }
            let until = Instant::now() + Duration::from_nanos(body["expires"].as_u64().unwrap_or(0));
            self.pulls.push(Pull {
                connection: number,
                reader: reader.to_owned(),
                inbox: inbox.to_owned(),
                remaining: body["batch"].as_u64().unwrap_or(1),
                until,
                beat: Instant::now() + HEARTBEAT,
            });
            return None;
        }
        Some(json!({ "error": { "code": 400, "err_code": 1, "description": "unknown call" } }))
    }

    /// Gives readers what they wait for.
    pub(super) fn deliver(&mut self) {
        let mut pulls = std::mem::take(&mut self.pulls);
        for pull in &mut pulls {
            while pull.remaining > 0 {
                let Some(reader) = self.readers.get_mut(&pull.reader) else { break };
                let Some(stream) = self.streams.get(&reader.stream) else { break };
                let first = stream.messages.partition_point(|message| message.sequence < reader.next);
                let Some(message) = stream.messages.get(first).cloned() else { break };
                let pending = stream.messages.len() - first - 1;
                reader.next = message.sequence + 1;
                reader.delivered += 1;
                let ack = format!(
                    "$JS.ACK.{}.{}.1.{}.{}.{}.{pending}",
                    reader.stream, pull.reader, message.sequence, reader.delivered, message.time_ns
                );
                pull.remaining -= 1;
                self.reply(
                    pull.connection,
                    &pull.inbox,
                    &message.subject,
                    &ack,
                    &message.headers,
                    &message.payload,
                );
            }
        }
        pulls.retain(|pull| pull.remaining > 0);
        self.pulls.extend(pulls);
    }

    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        let mut pulls = std::mem::take(&mut self.pulls);
        for pull in &mut pulls {
            if now >= pull.until {
                pull.remaining = 0;
                self.reply(
                    pull.connection,
                    &pull.inbox,
                    &pull.inbox,
                    "",
                    b"NATS/1.0 408 Request Timeout\r\n\r\n",
                    b"",
                );
            } else if now >= pull.beat {
                pull.beat = now + HEARTBEAT;
                self.reply(
                    pull.connection,
                    &pull.inbox,
                    &pull.inbox,
                    "",
                    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
                    b"",
                );
            }
        }
        pulls.retain(|pull| pull.remaining > 0);
        self.pulls.extend(pulls);
    }
}

impl Stream {
    pub(super) fn info(&self) -> Value {
        let first = self.messages.first().map_or(self.last + 1, |message| message.sequence);
        json!({ "created": rfc3339(self.created), "state": { "first_seq": first, "last_seq": self.last } })
    }
}
