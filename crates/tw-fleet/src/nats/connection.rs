//! Connection to a server: the greeting, one subscription for all replies, and signs of life.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, spawn_local};
use tw_net::Transport;
use tw_rt::time::timeout;
use zeroize::Zeroizing;

use super::credentials::{Authentication, sign};
use super::engine::Nats;
use super::parser::{Message, Parser, ServerOperation, shown};
use crate::announcement::ANNOUNCEMENT_SIZE_MAX;
use crate::engine::EngineError;
use crate::transport::{connect, receive, secure, transmit};

/// Time without a byte after which a ping is sent; and again until the connection counts as lost.
const PING_INTERVAL: Duration = Duration::from_secs(5);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time in which the engine of a fleet has to take a connection.
    const GREETING_TIME_MAX: Duration = Duration::from_secs(10), time, "the next server is tried";
    /// Time in which the engine of a fleet has to answer.
    const REPLY_TIME_MAX: Duration = Duration::from_secs(10), time, "the connection is closed, and made again";
    /// Bytes that wait to be sent to the engine of a fleet.
    const OUTPUT_SIZE_MAX: usize = 16 << 20, bytes, "a purge is kept in the queue on disk";
}

/// Greeting of a server, as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Info {
    server_name: String,
    version: String,
    nonce: String,
    tls_required: bool,
    tls_available: bool,
    auth_required: bool,
    headers: bool,
    jetstream: bool,
    max_payload: usize,
}

/// Connection, which ends when this is dropped.
pub(super) struct Connection {
    shared: Rc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

struct Shared {
    transport: Transport,
    output: RefCell<Vec<u8>>,
    has_output: Notify,
    /// Beginning of the subjects of replies, with the dot.
    inbox: String,
    next: Cell<u64>,
    routes: RefCell<HashMap<u64, Route>>,
    /// Subject of announcements, once they are published or read, and the reason if the server refuses that.
    announced: RefCell<Option<String>>,
    refused: RefCell<Option<String>>,
    /// Words of the server about inboxes that are not permitted, or whose request is not, as long as the inboxes exist.
    refusals: RefCell<HashMap<u64, String>>,
    /// Reason of the end.
    lost: RefCell<Option<String>>,
    /// Name and version of the server, for messages.
    server: String,
    payload_max: usize,
}

/// Way of messages to their reader.
struct Route {
    sender: mpsc::Sender<Message>,
    kind: InboxKind,
    subject: String,
    /// Subject of the last request whose replies come here.
    asked: String,
}

/// Subject that replies come to, and the replies.
pub(super) struct Inbox {
    pub(super) subject: String,
    replies: mpsc::Receiver<Message>,
    number: u64,
    kind: InboxKind,
    shared: Rc<Shared>,
}

/// Way of messages to an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InboxKind {
    /// Replies, which have its subject.
    Replies,
    /// Messages of a stream, which have subjects of their own: it has a subscription.
    Stream,
    /// Announcements of all nodes. Those for which there is no room are dropped.
    Announcements,
}

/// Beginning of errors about one subject, after which the server keeps the connection.
const NOT_PERMITTED: &str = "Permissions Violation";

/// Number of the subscription of all replies. Those of streams are above.
const REPLIES: u64 = 1;

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.routes.borrow_mut().remove(&self.number);
        self.shared.refusals.borrow_mut().remove(&self.number);
        if self.kind != InboxKind::Replies {
            // A connection that is gone has no subscriptions.
            let _ = self.shared.send(format!("UNSUB {}\r\n", self.number).as_bytes());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.shared.end("the connection was closed".to_owned());
    }
}

impl Connection {
    /// Connects to a server and introduces this node.
    pub(super) async fn open(engine: &Nats, host: &str, port: u16) -> Result<Self, EngineError> {
        let to = format!("{host}:{port}");
        match timeout(GREETING_TIME_MAX, greet(engine, host, port)).await {
            Ok(Ok((transport, parser, info))) => Self::start(transport, parser, &info),
            Ok(Err(EngineError::Lost(why))) => Err(EngineError::Lost(format!("{why}, engine: {to}"))),
            Ok(Err(EngineError::Refused(why))) => Err(EngineError::Refused(format!("{why}, engine: {to}"))),
            Ok(Err(EngineError::Conflict)) => Err(EngineError::Conflict),
            Err(_) => {
                let why = format!("no connection within {} s, engine: {to}", GREETING_TIME_MAX.as_secs());
                Err(EngineError::Lost(why))
            }
        }
    }

    fn start(transport: Transport, parser: Parser, info: &Info) -> Result<Self, EngineError> {
        if !info.headers || !info.jetstream {
            return Err(EngineError::Refused(
                "it has no JetStream, which its option \"jetstream\" starts".to_owned(),
            ));
        }
        let shared = Rc::new(Shared {
            transport,
            output: RefCell::default(),
            has_output: Notify::new(),
            inbox: format!("_INBOX.{}.", random_word()?),
            next: Cell::new(REPLIES + 1),
            routes: RefCell::default(),
            announced: RefCell::default(),
            refused: RefCell::default(),
            refusals: RefCell::default(),
            lost: RefCell::default(),
            server: shown(format!("{} {}", info.server_name, info.version).as_bytes()),
            payload_max: info.max_payload,
        });
        shared.send(format!("SUB {}* {REPLIES}\r\n", shared.inbox).as_bytes())?;
        let reading = shared.clone();
        let writing = shared.clone();
        let tasks = [
            spawn_local(async move {
                let why = reading.read(parser).await;
                reading.end(why);
            }),
            spawn_local(async move {
                let why = writing.write().await;
                writing.end(why);
            }),
        ];
        Ok(Self { shared, tasks })
    }

    /// Name and version of the server.
    pub(super) fn server(&self) -> &str {
        &self.shared.server
    }

    /// Largest message that the server takes.
    pub(super) fn payload_max(&self) -> usize {
        self.shared.payload_max
    }

    /// Subject for replies, of which this many may wait to be read; with more the connection ends.
    pub(super) fn inbox(&self, kind: InboxKind, replies_max: usize) -> Result<Inbox, EngineError> {
        self.shared.check()?;
        let number = self.shared.next.get();
        self.shared.next.set(number + 1);
        let (sender, replies) = mpsc::channel(replies_max);
        let subject = match kind {
            InboxKind::Replies => format!("{}{number}", self.shared.inbox),
            // The subject is not one of those that the subscription for replies receives, too.
            InboxKind::Stream => format!("{}stream.{number}", self.shared.inbox),
            InboxKind::Announcements => self.shared.announced.borrow().clone().unwrap_or_default(),
        };
        let route = Route { sender, kind, subject: subject.clone(), asked: String::new() };
        self.shared.routes.borrow_mut().insert(number, route);
        let inbox = Inbox { subject, replies, number, kind, shared: self.shared.clone() };
        if kind != InboxKind::Replies {
            self.shared.send(format!("SUB {} {number}\r\n", inbox.subject).as_bytes())?;
        }
        Ok(inbox)
    }

    /// Sets the subject of announcements.
    ///
    /// # Errors
    /// The server has refused it before.
    pub(super) fn use_announcements(&self, subject: &str) -> Result<(), EngineError> {
        self.shared.announced.borrow_mut().get_or_insert_with(|| subject.to_owned());
        match &*self.shared.refused.borrow() {
            Some(why) => Err(EngineError::Refused(why.clone())),
            None => Ok(()),
        }
    }

    /// Bytes that wait for the server.
    pub(super) fn waiting(&self) -> usize {
        self.shared.output.borrow().len()
    }

    /// Sends a message, with a subject for replies and headers.
    pub(super) fn publish(
        &self,
        subject: &str,
        reply: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<(), EngineError> {
        let mut out = Vec::with_capacity(payload.len() + 200);
        if headers.is_empty() {
            out.extend_from_slice(format!("PUB {subject} {reply} {}\r\n", payload.len()).as_bytes());
        } else {
            let mut head = String::from("NATS/1.0\r\n");
            headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
            head.push_str("\r\n");
            let whole = head.len() + payload.len();
            out.extend_from_slice(format!("HPUB {subject} {reply} {} {whole}\r\n", head.len()).as_bytes());
            out.extend_from_slice(head.as_bytes());
        }
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
        self.shared.send(&out)
    }

    /// Sends a request whose replies come to an inbox. If it is not permitted, the inbox says so.
    pub(super) fn ask(
        &self,
        subject: &str,
        inbox: &Inbox,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<(), EngineError> {
        if let Some(route) = self.shared.routes.borrow_mut().get_mut(&inbox.number) {
            subject.clone_into(&mut route.asked);
        }
        self.publish(subject, &inbox.subject, headers, payload)
    }

    /// Sends a request and waits for its reply.
    pub(super) async fn request(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<Message, EngineError> {
        let mut inbox = self.inbox(InboxKind::Replies, 1)?;
        self.ask(subject, &inbox, headers, payload)?;
        match timeout(REPLY_TIME_MAX, inbox.next()).await {
            Ok(reply) => reply,
            Err(_) => {
                // Either it has lost the request or hangs: another connection finds out.
                self.shared.end(format!("no reply within {} s", REPLY_TIME_MAX.as_secs()));
                Err(self.shared.error())
            }
        }
    }
}

impl Inbox {
    /// The next reply.
    pub(super) async fn next(&mut self) -> Result<Message, EngineError> {
        self.replies.recv().await.ok_or_else(|| match self.shared.refusals.borrow().get(&self.number) {
            Some(why) => EngineError::Refused(why.clone()),
            None => self.shared.error(),
        })
    }

    /// The next reply, if it is there.
    pub(super) fn take(&mut self) -> Option<Message> {
        self.replies.try_recv().ok()
    }
}

impl Shared {
    fn check(&self) -> Result<(), EngineError> {
        if self.lost.borrow().is_some() { Err(self.error()) } else { Ok(()) }
    }

    fn error(&self) -> EngineError {
        let why = self.lost.borrow().clone();
        EngineError::Lost(why.unwrap_or_else(|| "the connection is closed".to_owned()))
    }

    fn send(&self, bytes: &[u8]) -> Result<(), EngineError> {
        self.check()?;
        let mut output = self.output.borrow_mut();
        if output.len() + bytes.len() > OUTPUT_SIZE_MAX {
            return Err(EngineError::Lost("the engine takes too little".to_owned()));
        }
        output.extend_from_slice(bytes);
        self.has_output.notify_one();
        Ok(())
    }

    /// Ends the connection: all who wait for replies get an error.
    fn end(&self, why: String) {
        self.lost.borrow_mut().get_or_insert(why);
        self.routes.borrow_mut().clear();
        self.has_output.notify_one();
    }

    /// Reads until the connection ends. Returns the reason.
    async fn read(&self, mut parser: Parser) -> String {
        let mut is_pinged = false;
        let mut buffer = Vec::new();
        loop {
            loop {
                match parser.next() {
                    Ok(None) => break,
                    Ok(Some(operation)) => {
                        if let Err(why) = self.take(operation) {
                            return why;
                        }
                    }
                    Err(_) => return "it sends what is not the protocol of NATS".to_owned(),
                }
            }
            buffer.clear();
            match timeout(PING_INTERVAL, receive(&self.transport, &mut buffer)).await {
                Ok(Ok(())) => is_pinged = false,
                Ok(Err(error)) => return error.to_string(),
                Err(_) if is_pinged => return "it does not answer a ping".to_owned(),
                Err(_) => {
                    is_pinged = true;
                    if let Err(error) = self.send(b"PING\r\n") {
                        return error.to_string();
                    }
                }
            }
            if self.lost.borrow().is_some() {
                return String::new();
            }
            parser.push(&buffer);
        }
    }

    fn take(&self, operation: ServerOperation) -> Result<(), String> {
        match operation {
            ServerOperation::Message(message) => {
                let number = match message.subscription {
                    REPLIES => {
                        message.subject.strip_prefix(&self.inbox).and_then(|number| number.parse().ok())
                    }
                    of_stream => Some(of_stream),
                };
                let routes = self.routes.borrow();
                let Some(route) = number.and_then(|number: u64| routes.get(&number)) else { return Ok(()) };
                let message = match route.kind {
                    InboxKind::Announcements => announcement(message),
                    InboxKind::Replies | InboxKind::Stream => message,
                };
                match route.sender.try_send(message) {
                    Err(mpsc::error::TrySendError::Full(_)) if route.kind != InboxKind::Announcements => {
                        Err("it sends more than was asked for".to_owned())
                    }
                    _ => Ok(()),
                }
            }
            ServerOperation::Ping => self.send(b"PONG\r\n").map_err(|error| error.to_string()),
            ServerOperation::Error(text) if text.starts_with(NOT_PERMITTED) => self.refuse(&text),
            ServerOperation::Error(text) => Err(format!("the engine says: {text}")),
            ServerOperation::Info(_) | ServerOperation::Pong | ServerOperation::Acknowledged => Ok(()),
        }
    }

    /// Ends what is not permitted, by the subject that the server names. Everything else goes on: a user may have the right to the log and
    /// to no store. Without replies nothing does.
    fn refuse(&self, text: &str) -> Result<(), String> {
        if is_named(text, &format!("{}*", self.inbox)) {
            return Err(format!("the engine says: {text}"));
        }
        if self.announced.borrow().as_ref().is_some_and(|subject| is_named(text, subject)) {
            *self.refused.borrow_mut() = Some(text.to_owned());
        }
        let mut refusals = self.refusals.borrow_mut();
        self.routes.borrow_mut().retain(|number, route| {
            let is_refused = is_named(text, &route.subject) || is_named(text, &route.asked);
            if is_refused {
                refusals.insert(*number, text.to_owned());
            }
            !is_refused
        });
        Ok(())
    }

    /// Writes until the connection ends. Returns the reason.
    async fn write(&self) -> String {
        loop {
            self.has_output.notified().await;
            loop {
                let output = std::mem::take(&mut *self.output.borrow_mut());
                if output.is_empty() {
                    break;
                }
                if let Err(error) = transmit(&self.transport, &output).await {
                    return error.to_string();
                }
            }
            if self.lost.borrow().is_some() {
                return String::new();
            }
        }
    }
}

/// An announcement as it waits to be read, without what nobody reads: one that is too large has no content.
fn announcement(message: Message) -> Message {
    let payload = message.payload.filter(|payload| payload.len() <= ANNOUNCEMENT_SIZE_MAX);
    Message { payload, ..Message::of_headers(Vec::new()) }
}

/// Returns true for an error that names a subject, as `… to "subject"`. The end of a long error was cut off.
fn is_named(error: &str, subject: &str) -> bool {
    let Some((_, quoted)) = error.split_once('"') else { return false };
    match quoted.split_once('"') {
        Some((named, _)) => named == subject,
        None => subject.starts_with(quoted),
    }
}

/// Connects and exchanges greetings.
async fn greet(engine: &Nats, host: &str, port: u16) -> Result<(Transport, Parser, Info), EngineError> {
    let socket = connect(&engine.names, host, port).await?;
    let mut transport = Transport::Plain(socket);
    let mut parser = Parser::default();
    let info = match next_operation(&transport, &mut parser).await? {
        ServerOperation::Info(text) => serde_json::from_slice::<Info>(&text)
            .map_err(|_| EngineError::Lost("its greeting is not that of NATS".to_owned()))?,
        _ => return Err(EngineError::Lost("it does not greet as NATS does".to_owned())),
    };
    match &engine.tls {
        Some(config) => {
            if !info.tls_required && !info.tls_available {
                return Err(EngineError::Refused("it has no TLS".to_owned()));
            }
            if !parser.is_empty() {
                // Bytes sent before the TLS handshake are not authenticated by the certificate.
                return Err(EngineError::Lost("it sends something before the TLS handshake".to_owned()));
            }
            let Transport::Plain(socket) = transport else {
                return Err(EngineError::Lost("the connection is encrypted already".to_owned()));
            };
            transport = secure(socket, config.clone(), host).await?;
        }
        None if info.tls_required => {
            return Err(EngineError::Refused("it requires TLS: \"tls on\" is not set".to_owned()));
        }
        None => {}
    }
    let mut hello = Zeroizing::new(Vec::with_capacity(4096));
    hello.extend_from_slice(b"CONNECT ");
    serde_json::to_writer(&mut *hello, &introduction(engine, &info)?)
        .map_err(|_| EngineError::Refused("it cannot be greeted".to_owned()))?;
    hello.extend_from_slice(b"\r\nPING\r\n");
    transmit(&transport, &hello).await?;
    loop {
        match next_operation(&transport, &mut parser).await? {
            ServerOperation::Pong => return Ok((transport, parser, info)),
            ServerOperation::Error(text) => return Err(EngineError::Refused(text)),
            ServerOperation::Ping => transmit(&transport, b"PONG\r\n").await?,
            _ => {}
        }
    }
}

/// Arguments of CONNECT.
fn introduction(engine: &Nats, info: &Info) -> Result<Value, EngineError> {
    let mut hello = json!({
        "verbose": false, "pedantic": false, "tls_required": engine.tls.is_some(), "lang": "rust",
        "name": format!("tailwater {}", engine.node), "version": env!("CARGO_PKG_VERSION"),
        "protocol": 1, "headers": true, "no_responders": true, "echo": true,
    });
    let mut set = |name: &str, value: String| {
        if let Some(hello) = hello.as_object_mut() {
            hello.insert(name.to_owned(), value.into());
        }
    };
    match &engine.settings.authentication {
        Authentication::Anonymous if info.auth_required => {
            let why = "it requires a login: neither \"credentials\" nor \"token_file\" nor \"user\" is set";
            return Err(EngineError::Refused(why.to_owned()));
        }
        Authentication::Anonymous => {}
        Authentication::Token(token) => set("auth_token", token.to_string()),
        Authentication::Password(user, password) => {
            set("user", user.clone());
            set("pass", password.to_string());
        }
        Authentication::Key { seed, jwt } => {
            let (key, signature) = sign(seed, &info.nonce)
                .ok_or_else(|| EngineError::Refused("the seed of \"credentials\" is damaged".to_owned()))?;
            match jwt {
                Some(jwt) => set("jwt", jwt.to_string()),
                None => set("nkey", key),
            }
            set("sig", signature);
        }
    }
    Ok(hello)
}

async fn next_operation(transport: &Transport, parser: &mut Parser) -> Result<ServerOperation, EngineError> {
    let mut buffer = Vec::new();
    loop {
        match parser.next() {
            Ok(Some(operation)) => return Ok(operation),
            Ok(None) => {}
            Err(_) => return Err(EngineError::Lost("it does not speak the protocol of NATS".to_owned())),
        }
        buffer.clear();
        receive(transport, &mut buffer).await?;
        parser.push(&buffer);
    }
}

/// Word that no other client of the server has.
fn random_word() -> Result<String, EngineError> {
    crate::host::random_word().map_err(|error| EngineError::io("getrandom()", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_wait_in_little_memory() {
        let message = |headers: usize, size: usize| Message {
            subject: "s".repeat(10_000),
            subscription: 7,
            reply: Some("r".repeat(10_000)),
            headers: vec![b'h'; headers],
            payload: Some(vec![b'x'; size]),
        };
        let kept = announcement(message(1_000_000, ANNOUNCEMENT_SIZE_MAX));
        assert_eq!(kept.payload.map(|payload| payload.len()), Some(ANNOUNCEMENT_SIZE_MAX));
        assert!(kept.subject.is_empty() && kept.reply.is_none() && kept.headers.is_empty());
        assert_eq!(announcement(message(0, ANNOUNCEMENT_SIZE_MAX + 1)).payload, None);
    }

    #[test]
    fn errors_name_a_subject() {
        let error = "Permissions Violation for Publish to \"$JS.API.STREAM.INFO.S\"";
        assert!(is_named(error, "$JS.API.STREAM.INFO.S"));
        assert!(!is_named(error, "$JS.API.STREAM.INFO") && !is_named(error, "$JS.API.STREAM.INFO.S2"));
        assert!(!is_named(error, "") && !is_named("Permissions Violation", ""));
        let subject = "k".repeat(300);
        let other = "x".repeat(300);
        let cut = shown(format!("Permissions Violation for Publish to \"{subject}\"").as_bytes());
        assert!(is_named(&cut, &subject) && !is_named(&cut, &other) && !is_named(&cut, "k"));
    }
}
