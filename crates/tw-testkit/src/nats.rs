//! Scripted NATS server with the part of JetStream that a fleet uses, in memory. Its streams can be trimmed, shortened and made anew, as
//! engines that lose data do, and it can refuse, stall and send nonsense.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A NATS server.
pub struct FakeNats {
    /// Address, the same after a restart.
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    is_up: AtomicBool,
    is_stalled: AtomicBool,
    listener: TcpListener,
}

#[derive(Default)]
struct State {
    streams: HashMap<String, Stream>,
    readers: HashMap<String, StreamReader>,
    connections: HashMap<u64, Connection>,
    pulls: Vec<Pull>,
    next: u64,
    /// User and password that are required.
    login: Option<(String, String)>,
    /// Patterns of subjects that nobody may publish to.
    forbidden: Vec<String>,
    /// Bytes that a new connection gets instead of a greeting.
    greeting: Option<Vec<u8>>,
}

#[derive(Clone)]
struct Stream {
    created: u64,
    subjects: Vec<String>,
    max_per_subject: bool,
    messages: Vec<StoredMessage>,
    last: u64,
    /// Identifiers of messages.
    ids: HashMap<String, u64>,
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

struct StreamReader {
    stream: String,
    next: u64,
    delivered: u64,
}

struct Connection {
    out: TcpStream,
    subscriptions: Vec<(String, String)>,
}

struct Pull {
    connection: u64,
    reader: String,
    inbox: String,
    remaining: u64,
    until: Instant,
    beat: Instant,
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| u64::try_from(span.as_nanos()).unwrap_or(0))
}

fn rfc3339(ns: u64) -> String {
    let days = ns / 1_000_000_000 / 86_400;
    let second = ns / 1_000_000_000 % 86_400;
    // Conversion of days to a civil date; years begin in March.
    let era = days + 719_468;
    let cycle = era / 146_097;
    let day = era % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let part = (5 * day + 2) / 153;
    let month = if part < 10 { part + 3 } else { part - 9 };
    let year = year + cycle * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        day - (153 * part + 2) / 5 + 1,
        second / 3600,
        second / 60 % 60,
        second % 60,
        ns % 1_000_000_000
    )
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..4).map(move |at| {
                if at <= chunk.len() {
                    char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize])
                } else {
                    '='
                }
            })
        })
        .collect()
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

impl FakeNats {
    /// Starts a server on a free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            is_up: AtomicBool::new(true),
            is_stalled: AtomicBool::new(false),
            listener,
        });
        let accepting = shared.clone();
        let ticking = Arc::downgrade(&shared);
        thread::spawn(move || accept(&accepting));
        thread::spawn(move || {
            while let Some(shared) = ticking.upgrade() {
                shared.lock().tick();
                drop(shared);
                crate::wait::pause(Duration::from_millis(50));
            }
        });
        Self { addr, shared }
    }

    /// Address for a configuration.
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr)
    }

    /// Ends all connections, and refuses new ones until it is [back](Self::come_back). Streams stay.
    pub fn go_away(&self) {
        self.shared.is_up.store(false, SeqCst);
        self.disconnect();
    }

    /// Takes connections again.
    pub fn come_back(&self) {
        self.shared.is_up.store(true, SeqCst);
    }

    /// Ends all connections; readers are lost.
    pub fn disconnect(&self) {
        let mut state = self.shared.lock();
        for connection in state.connections.values() {
            let _ = connection.out.shutdown(Shutdown::Both);
        }
        state.connections.clear();
        state.pulls.clear();
        state.readers.clear();
    }

    /// Answers nothing while it is stalled, but keeps connections.
    pub fn stall(&self, is_stalled: bool) {
        self.shared.is_stalled.store(is_stalled, SeqCst);
    }

    /// Requires a user and a password.
    pub fn require_login(&self, user: &str, password: &str) {
        self.shared.lock().login = Some((user.to_owned(), password.to_owned()));
    }

    /// Refuses messages to subjects of this pattern, as a server does for a user without the permission.
    pub fn forbid(&self, pattern: &str) {
        self.shared.lock().forbidden.push(pattern.to_owned());
    }

    /// Greets with these bytes.
    pub fn greet_with(&self, bytes: Option<&[u8]>) {
        self.shared.lock().greeting = bytes.map(<[u8]>::to_vec);
    }

    /// Sends bytes to all connections.
    pub fn send_all(&self, bytes: &[u8]) {
        self.shared
            .lock()
            .connections
            .values()
            .for_each(|connection| drop((&connection.out).write_all(bytes)));
    }

    /// Sends a message to all subscriptions of its subject, as another client does.
    pub fn say(&self, subject: &str, payload: &[u8]) {
        self.shared.lock().announce(subject, payload);
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// Messages of the log, the only stream that is no bucket.
    pub fn log(&self) -> Vec<StoredMessage> {
        self.shared.lock().log().map(|log| log.messages.clone()).unwrap_or_default()
    }

    /// Drops the messages of the log up to this one.
    pub fn trim_log(&self, sequence: u64) {
        if let Some(log) = self.shared.lock().log() {
            log.messages.retain(|message| message.sequence > sequence);
        }
    }

    /// Takes the log back to the state in which this was the last message.
    pub fn rewind_log(&self, sequence: u64) {
        if let Some(log) = self.shared.lock().log() {
            log.messages.retain(|message| message.sequence <= sequence);
            log.ids.retain(|_, candidate| *candidate <= sequence);
            log.last = sequence;
        }
    }

    /// Loses everything.
    pub fn forget_all(&self) {
        self.shared.lock().streams.clear();
    }

    /// Takes a value out of a bucket, as an engine does that has lost it; `None` if it is not there.
    pub fn lose_value(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        let mut state = self.shared.lock();
        let stream = state.streams.get_mut(&format!("KV_{bucket}"))?;
        let subject = format!("$KV.{bucket}.{key}");
        let at = stream.messages.iter().rposition(|message| message.subject == subject)?;
        Some(stream.messages.remove(at).payload)
    }

    /// Values of a bucket by key.
    pub fn values(&self, bucket: &str) -> HashMap<String, Vec<u8>> {
        let state = self.shared.lock();
        let prefix = format!("$KV.{bucket}.");
        let messages = state.streams.get(&format!("KV_{bucket}")).map(|stream| stream.messages.clone());
        let key = |message: &StoredMessage| message.subject.strip_prefix(&prefix).map(str::to_owned);
        messages.unwrap_or_default().into_iter().filter_map(|m| Some((key(&m)?, m.payload))).collect()
    }

    /// Sets a value of a bucket, whatever it is.
    pub fn set_value(&self, bucket: &str, key: &str, value: &[u8]) {
        let mut state = self.shared.lock();
        state.store(&format!("$KV.{bucket}.{key}"), Vec::new(), value.to_vec());
        state.deliver();
    }

    /// Appends a message to the log, whatever it is.
    pub fn append(&self, payload: &[u8]) {
        let mut state = self.shared.lock();
        if let Some(subject) = state.log().and_then(|log| log.subjects.first().cloned()) {
            state.store(&subject, Vec::new(), payload.to_vec());
            state.deliver();
        }
    }
}

impl Drop for FakeNats {
    fn drop(&mut self) {
        self.go_away();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(shared: &Arc<Shared>) {
    while let Ok((stream, _)) = shared.listener.accept() {
        if !shared.is_up.load(SeqCst) {
            continue;
        }
        let shared = shared.clone();
        thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let number = {
                let mut state = shared.lock();
                state.next += 1;
                let number = state.next;
                let info = json!({
                    "server_name": "fake", "version": "2.15.0", "headers": true, "jetstream": true, "max_payload": 1 << 20,
                    "nonce": "abc", "auth_required": state.login.is_some(),
                });
                let greeting =
                    state.greeting.clone().unwrap_or_else(|| format!("INFO {info}\r\n").into_bytes());
                let Ok(mut out) = stream.try_clone() else { return };
                let _ = out.write_all(&greeting);
                state.connections.insert(number, Connection { out, subscriptions: Vec::new() });
                number
            };
            serve(&shared, number, stream);
            let mut state = shared.lock();
            state.connections.remove(&number);
            state.pulls.retain(|pull| pull.connection != number);
        });
    }
}

/// Serves a connection to its end.
fn serve(shared: &Shared, number: u64, stream: TcpStream) {
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        while shared.is_stalled.load(SeqCst) {
            crate::wait::pause(Duration::from_millis(10));
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.first().copied() {
            Some("CONNECT") => {
                let text = line.trim_start_matches("CONNECT ");
                let hello: Value = serde_json::from_str(text).unwrap_or_default();
                let mut state = shared.lock();
                if let Some((user, password)) = state.login.clone()
                    && (hello["user"] != *user || hello["pass"] != *password)
                {
                    state.send(number, b"-ERR 'Authorization Violation'\r\n");
                    return;
                }
            }
            Some("PING") => shared.lock().send(number, b"PONG\r\n"),
            Some("SUB") => {
                if let (Some(connection), [_, subject, sid]) =
                    (shared.lock().connections.get_mut(&number), &words[..])
                {
                    connection.subscriptions.push(((*subject).to_owned(), (*sid).to_owned()));
                }
            }
            Some("UNSUB") => {
                if let Some(connection) = shared.lock().connections.get_mut(&number) {
                    connection.subscriptions.retain(|(_, sid)| *sid != words[1]);
                }
            }
            Some(kind @ ("PUB" | "HPUB")) => {
                let size = |at: usize| words[words.len() - at].parse::<usize>().unwrap_or(0);
                let sizes = if kind == "PUB" { 1 } else { 2 };
                let head = if sizes == 2 { size(2) } else { 0 };
                let whole = size(1);
                let mut content = vec![0; whole + 2];
                if input.read_exact(&mut content).is_err() {
                    return;
                }
                content.truncate(whole);
                let payload = content.split_off(head);
                let reply = (words.len() == 3 + sizes).then(|| words[2]);
                shared.lock().publish(number, words[1], reply, content, payload);
            }
            _ => {}
        }
    }
}

impl State {
    fn log(&mut self) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|(name, _)| !name.starts_with("KV_")).map(|(_, stream)| stream)
    }

    fn send(&mut self, number: u64, bytes: &[u8]) {
        if let Some(connection) = self.connections.get(&number) {
            let _ = (&connection.out).write_all(bytes);
        }
    }

    /// Sends a message to the subscription of an inbox.
    fn reply(&mut self, number: u64, inbox: &str, subject: &str, ack: &str, headers: &[u8], payload: &[u8]) {
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

    fn store(&mut self, subject: &str, headers: Vec<u8>, payload: Vec<u8>) -> Option<(String, u64, bool)> {
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

    fn publish(
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
    fn announce(&mut self, subject: &str, payload: &[u8]) {
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
    fn is_other_version(&self, subject: &str, headers: &[u8]) -> bool {
        let text = String::from_utf8_lossy(headers).into_owned();
        let expected =
            text.lines().find_map(|line| line.strip_prefix("Nats-Expected-Last-Subject-Sequence: "));
        let Some(expected) = expected.and_then(|version| version.parse::<u64>().ok()) else { return false };
        let messages = self.streams.values().flat_map(|stream| &stream.messages);
        let last =
            messages.filter(|message| message.subject == subject).map(|message| message.sequence).max();
        last.unwrap_or(0) != expected
    }

    fn call(&mut self, number: u64, call: &str, inbox: &str, body: &Value) -> Option<Value> {
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
    fn deliver(&mut self) {
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

    fn tick(&mut self) {
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
    fn info(&self) -> Value {
        let first = self.messages.first().map_or(self.last + 1, |message| message.sequence);
        json!({ "created": rfc3339(self.created), "state": { "first_seq": first, "last_seq": self.last } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_texts_of_json() {
        assert_eq!(rfc3339(1_700_000_000_000_000_001), "2023-11-14T22:13:20.000000001Z");
        assert_eq!(rfc3339(951_782_400_000_000_000), "2000-02-29T00:00:00.000000000Z");
        assert_eq!([base64(b""), base64(b"a"), base64(b"ab"), base64(b"abc")], ["", "YQ==", "YWI=", "YWJj"]);
    }
}
