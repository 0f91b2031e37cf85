//! Scripted NATS server with the part of JetStream that a fleet uses, in memory. Its streams can be trimmed, shortened and made anew, as
//! engines that lose data do, and it can refuse, stall and send nonsense.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use self::state::{Connection, State};

pub use self::state::StoredMessage;

mod encoding;
mod state;

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
