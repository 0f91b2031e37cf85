//! The other end of a script process: loads modules, starts calls, answers operations.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tw_script::{
    ByteBuf, Call, CallKind, Dictionary, DictionaryType, Effect, Environment, Field, FrameReader,
    HostMessage, HttpSnapshot, Import, Load, LoadError, Module, Operation, OperationError, Outcome,
    ProcessMessage, Reply, Settings, Snapshot, Source, encode,
};

/// Longest wait for a message.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A host with one socket.
pub(crate) struct Host {
    socket: UnixStream,
    reader: FrameReader,
    messages: VecDeque<ProcessMessage>,
    next_call: u64,
}

/// Everything that happened in a call.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) effects: Vec<Effect>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) outcome: Option<Outcome>,
}

impl Ended {
    /// Lines of the log.
    pub(crate) fn log(&self) -> Vec<String> {
        let line = |effect: &Effect| match effect {
            Effect::Log { message, .. } => Some(String::from_utf8_lossy(message).into_owned()),
            _ => None,
        };
        self.effects.iter().filter_map(line).collect()
    }

    /// Text of the response of `r.return()`.
    pub(crate) fn text(&self) -> String {
        let text = |effect: &Effect| match effect {
            Effect::Return { text, .. } => {
                text.as_ref().map(|text| String::from_utf8_lossy(text).into_owned())
            }
            _ => None,
        };
        self.effects.iter().find_map(text).unwrap_or_else(|| panic!("no response: {self:?}"))
    }

    pub(crate) fn exception(&self) -> &tw_script::Exception {
        match &self.outcome {
            Some(Outcome::Exception(exception)) => exception,
            other => panic!("no exception: {other:?}"),
        }
    }
}

impl Host {
    /// A host and the socket of its process.
    pub(crate) fn pair() -> (Self, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        let host =
            Self { socket: ours, reader: FrameReader::default(), messages: VecDeque::new(), next_call: 1 };
        (host, theirs.into())
    }

    /// A host whose process is a thread of this one.
    pub(crate) fn in_thread() -> Self {
        let (mut host, theirs) = Self::pair();
        std::thread::spawn(move || tailwater_scripts::serve(vec![theirs]).unwrap());
        assert!(matches!(host.receive(), Some(ProcessMessage::Hello { .. })));
        host
    }

    pub(crate) fn send(&mut self, message: &HostMessage) {
        self.send_together(std::slice::from_ref(message));
    }

    /// Sends messages that the process reads at once.
    pub(crate) fn send_together(&mut self, messages: &[HostMessage]) {
        let mut frames = Vec::new();
        messages.iter().for_each(|message| encode(message, &mut frames).unwrap());
        self.socket.write_all(&frames).unwrap();
    }

    /// The next message, or `None` at the end of the process.
    pub(crate) fn receive(&mut self) -> Option<ProcessMessage> {
        loop {
            while let Some(message) = self.reader.next_message().unwrap() {
                self.messages.push_back(message);
            }
            if let Some(message) = self.messages.pop_front() {
                return Some(message);
            }
            let mut bytes = [0; 65536];
            let size = match self.socket.read(&mut bytes) {
                Ok(size) => size,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
                Err(error) => panic!("no message: {error}"),
            };
            if size == 0 {
                return None;
            }
            self.reader.push(&bytes[..size]);
        }
    }

    /// Returns whether no byte arrives in this time.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.socket.set_read_timeout(Some(time)).unwrap();
        let result = self.socket.read(&mut [0]);
        self.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        result.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Loads one module, named `test`.
    pub(crate) fn load(&mut self, source: &str) -> Result<(), LoadError> {
        self.load_with(source, &[], settings())
    }

    /// Loads a module and those that it imports.
    pub(crate) fn load_with(
        &mut self,
        source: &str,
        others: &[(&str, &str)],
        settings: Settings,
    ) -> Result<(), LoadError> {
        let mut sources =
            vec![Source { path: "/js/test.js".to_owned(), text: source.as_bytes().to_vec().into() }];
        let other = |(path, text): &(&str, &str)| Source {
            path: format!("/js/{path}"),
            text: text.as_bytes().to_vec().into(),
        };
        sources.extend(others.iter().map(other));
        let import = |(path, _): &(&str, &str)| Import {
            referrer: "/js/test.js".to_owned(),
            specifier: format!("./{path}"),
            path: format!("/js/{path}"),
        };
        let dictionary = |name: &str, kind, has_timeout| Dictionary {
            name: name.to_owned(),
            capacity: 65536,
            kind,
            has_timeout,
        };
        let environment = Environment {
            version: "1.31.6".to_owned(),
            version_number: 1_031_006,
            conf_prefix: "/etc/nginx/".to_owned(),
            pid: 42,
            env: vec![Field::new("HOME", "/root")],
            dictionaries: vec![
                dictionary("strings", DictionaryType::String, true),
                dictionary("numbers", DictionaryType::Number, false),
            ],
            ..Environment::default()
        };
        self.send(&HostMessage::Load(Box::new(Load {
            script: 1,
            modules: vec![Module { name: "test".to_owned(), path: "/js/test.js".to_owned() }],
            sources,
            imports: others.iter().map(import).collect(),
            settings,
            environment,
        })));
        loop {
            match self.receive() {
                Some(ProcessMessage::Loaded { script: 1, result }) => return result,
                Some(ProcessMessage::Effect { call: 0, effect: Effect::Log { .. } }) => {}
                other => panic!("no answer to a load: {other:?}"),
            }
        }
    }

    /// Starts a call; returns its number.
    pub(crate) fn start(&mut self, kind: CallKind, function: &str, context: u64, snapshot: Snapshot) -> u64 {
        let (call, message) = self.call(kind, function, context, snapshot);
        self.send(&message);
        call
    }

    /// Message that starts a call, and its number.
    pub(crate) fn call(
        &mut self,
        kind: CallKind,
        function: &str,
        context: u64,
        snapshot: Snapshot,
    ) -> (u64, HostMessage) {
        let call = self.next_call;
        self.next_call += 1;
        let function = function.to_owned();
        (call, HostMessage::Call(Box::new(Call { call, script: 1, context, function, kind, snapshot })))
    }

    /// Runs a call to its end, or to the end of the process.
    pub(crate) fn run(
        &mut self,
        kind: CallKind,
        function: &str,
        answer: &mut dyn FnMut(&Operation) -> Result<Reply, OperationError>,
    ) -> Ended {
        let call = self.start(kind, function, 0, request());
        self.finish(call, answer)
    }

    /// Follows a call to its end.
    pub(crate) fn finish(
        &mut self,
        call: u64,
        answer: &mut dyn FnMut(&Operation) -> Result<Reply, OperationError>,
    ) -> Ended {
        let mut ended = Ended::default();
        loop {
            match self.receive() {
                Some(ProcessMessage::Effect { call: of, effect }) => {
                    assert!(of == call || of == 0, "an effect of call {of}");
                    ended.effects.push(effect);
                }
                Some(ProcessMessage::Operation { call: of, token, operation }) => {
                    assert_eq!(of, call);
                    let result = answer(&operation);
                    ended.operations.push(operation);
                    self.send(&HostMessage::Reply { call, token, result });
                }
                Some(ProcessMessage::Done { call: of, outcome }) if of == call => {
                    ended.outcome = Some(outcome);
                    return ended;
                }
                Some(ProcessMessage::Handled { .. }) => {}
                None => return ended,
                other => panic!("unexpected message {other:?}"),
            }
        }
    }

    /// Runs `js_content`.
    pub(crate) fn content(&mut self, function: &str) -> Ended {
        self.run(CallKind::Content, function, &mut no_answer)
    }
}

/// Refuses every operation.
pub(crate) fn no_answer(operation: &Operation) -> Result<Reply, OperationError> {
    Err(OperationError::Error(format!("unexpected operation {operation:?}")))
}

pub(crate) fn settings() -> Settings {
    Settings { timeout_ms: 100, memory_size: 16 << 20, context_reuse_count: 128 }
}

/// A request that most tests use.
pub(crate) fn request() -> Snapshot {
    Snapshot::Http(Box::new(HttpSnapshot {
        method: b"POST".to_vec().into(),
        uri: b"/a b".to_vec().into(),
        args: b"a=1&b=%32&A=3&b=4&B=two%20words".to_vec().into(),
        request_line: b"POST /a%20b?a=1 HTTP/1.1".to_vec().into(),
        http_version: b"1.1".to_vec().into(),
        remote_address: b"127.0.0.1".to_vec().into(),
        is_internal: false,
        fields: vec![
            Field::new("Host", "example.com"),
            Field::new("X-Foo", "one"),
            Field::new("x-foo", "two"),
            Field::new("Cookie", "a=1"),
            Field::new("Cookie", "b=2"),
            Field::new("User-Agent", "first"),
            Field::new("User-Agent", "second"),
        ],
        response: None,
    }))
}

/// A host whose process has loaded this module.
pub(crate) fn script(source: &str) -> Host {
    let mut host = Host::in_thread();
    host.load(source).unwrap();
    host
}

/// An answer with a value.
pub(crate) fn value(text: &str) -> Result<Reply, OperationError> {
    Ok(Reply::Value(Some(ByteBuf::from(text.as_bytes().to_vec()))))
}

/// Result of a variable function.
pub(crate) fn set(host: &mut Host, function: &str) -> Option<Outcome> {
    host.run(CallKind::Set, function, &mut no_answer).outcome
}

/// Outcome with a string.
pub(crate) fn text(text: &str) -> Option<Outcome> {
    Some(Outcome::Value(Some(ByteBuf::from(text.as_bytes().to_vec()))))
}
