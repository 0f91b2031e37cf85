//! Clients of HTTP/3: one with the frames of `tw-http3`, and a raw one for input that breaks rules.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::ConnectionError;
use rustls::version::TLS13;
use tw_http3::{
    Config, Connection, FIELD_CODING, Incoming, LocalStream, Pseudo, Signal, Stream, StreamError,
};
use tw_testkit::Server;
use tw_testkit::quic::{ClientSettings, QuicClient, UdpClient};
use tw_testkit::server::Builder;
use tw_testkit::tls::Authority;

use super::{server, start};

/// A server over QUIC and TCP, and the authority of its certificate.
pub(crate) struct Http3Server {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
}

/// Starts a server with `/a.txt` and with `content` in its `server` block.
pub(crate) fn start_http3(content: &str) -> Http3Server {
    start_http3_with(server().file("html/a.txt", "hello"), "", content)
}

/// Starts a server with `http` in its `http` block and `content` in its `server` block.
pub(crate) fn start_http3_with(files: Builder, http: &str, content: &str) -> Http3Server {
    let authority = Authority::new();
    let files = files.certificate("one", &authority.certify(&["localhost"]));
    let conf = format!(
        "ssl_certificate one.crt; ssl_certificate_key one.key; {http}
         server {{ listen 127.0.0.1:{{port}} quic reuseport; listen 127.0.0.1:{{port}} ssl; \
         server_name localhost; root html; {content} }}"
    );
    Http3Server { server: start(files, &conf), authority }
}

impl Http3Server {
    pub(crate) fn settings(&self) -> ClientSettings {
        http3_settings(&self.authority.client(&[&TLS13]), "localhost")
    }

    pub(crate) fn client(&self) -> Http3Client {
        Http3Client::connect(&self.settings(), self.server.addr()).unwrap()
    }

    /// A connection whose handshake is not complete.
    pub(crate) fn raw_unconnected(&self) -> UdpClient {
        UdpClient::connect(&self.settings(), self.server.addr()).unwrap()
    }

    pub(crate) fn raw(&self) -> UdpClient {
        let mut udp = self.raw_unconnected();
        udp.connected().unwrap();
        udp
    }
}

/// Settings of a client of the server `name` that trusts whom `tls` trusts.
pub(crate) fn http3_settings(tls: &rustls::ClientConfig, name: &str) -> ClientSettings {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    ClientSettings::new(Arc::new(tls), name)
}

/// Code of a connection that ends without an error (RFC 9114, section 8.1).
const H3_NO_ERROR: u32 = 0x100;

/// A client with frames.
pub(crate) struct Http3Client {
    pub(crate) udp: UdpClient,
    wire: Wire,
}

/// State between the frames and the transport.
struct Wire {
    frames: Connection,
    requests: BTreeMap<u64, Exchange>,
    local: [Option<u64>; 2],
    /// Received bytes of each stream that the frames have got.
    passed: BTreeMap<u64, usize>,
    /// Streams whose end the frames have got.
    ended: HashSet<u64>,
    is_over: bool,
}

struct Exchange {
    stream: Stream,
    is_sent: bool,
    response: Response,
    end: Option<Result<(), StreamError>>,
}

/// A response, as far as it has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) interim: Vec<u16>,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl Http3Client {
    pub(crate) fn connect(settings: &ClientSettings, server: SocketAddr) -> io::Result<Self> {
        let mut client = Self::connect_early(settings, server)?;
        client.udp.connected()?;
        Ok(client)
    }

    /// A client whose handshake is not complete: it may send early data.
    pub(crate) fn connect_early(settings: &ClientSettings, server: SocketAddr) -> io::Result<Self> {
        let udp = UdpClient::connect(settings, server)?;
        let wire = Wire {
            frames: Connection::client(Config { list_max: 64 << 10 }),
            requests: BTreeMap::new(),
            local: [None; 2],
            passed: BTreeMap::new(),
            ended: HashSet::new(),
            is_over: false,
        };
        Ok(Self { udp, wire })
    }

    /// Sends from another port from now on, and lets the server know it.
    pub(crate) fn change_port(&mut self) {
        self.udp.rebind().unwrap();
        self.udp.client.engine.connection.ping();
    }

    /// Closes the connection.
    pub(crate) fn close(mut self) {
        self.udp.client.close(H3_NO_ERROR, Instant::now());
        self.until(|_| Some(())).unwrap();
    }

    /// Begins a request on a new stream, and returns its number.
    pub(crate) fn begin(&mut self, method: &str, path: &str, fields: &[(&str, &str)], ends: bool) -> u64 {
        let pseudo =
            [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
        self.begin_with(&[&pseudo, fields].concat(), ends)
    }

    /// Begins a request of any fields.
    pub(crate) fn begin_with(&mut self, fields: &[(&str, &str)], ends: bool) -> u64 {
        let id = self.open().unwrap();
        self.begin_on(id, fields, ends);
        id
    }

    /// Opens a stream; `None` if the server has closed the connection.
    pub(crate) fn open(&mut self) -> Option<u64> {
        let open = |both: &mut Both<'_>| match both.client.lost {
            Some(_) => Some(None),
            None => both.client.open_bidi().map(Some),
        };
        self.until(open).unwrap()
    }

    /// Begins a request on a stream.
    pub(crate) fn begin_on(&mut self, id: u64, fields: &[(&str, &str)], ends: bool) {
        let write = |writer: &mut tw_http3::FieldWriter<'_>| {
            fields.iter().for_each(|(name, value)| writer.push(name.as_bytes(), value.as_bytes()));
        };
        let stream = self.wire.frames.send_request(id, write, ends).unwrap();
        let exchange = Exchange { stream, is_sent: false, response: Response::default(), end: None };
        self.wire.requests.insert(id, exchange);
    }

    /// Begins a request without a body on a stream that can be opened at once.
    pub(crate) fn begin_now(&mut self, method: &str, path: &str) -> u64 {
        let id = self.udp.client.open_bidi().unwrap();
        let pseudo =
            [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
        self.begin_on(id, &pseudo, true);
        id
    }

    /// Sends content of a request.
    pub(crate) fn send(&mut self, id: u64, bytes: &[u8], ends: bool) {
        let stream = &self.wire.requests[&id].stream;
        stream.send_data(Bytes::copy_from_slice(bytes), ends).unwrap();
    }

    /// Ends a request with trailers.
    pub(crate) fn send_trailers(&mut self, id: u64, name: &str, value: &str) {
        let stream = &self.wire.requests[&id].stream;
        stream.send_head(|fields| fields.push(name.as_bytes(), value.as_bytes()), true).unwrap();
    }

    /// Gives a request up.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.wire.requests[&id].stream.reset(tw_http3::ErrorCode::REQUEST_CANCELLED);
        self.until(|_| Some(())).unwrap();
    }

    /// Moves bytes until `done` has a result.
    pub(crate) fn until<T>(&mut self, mut done: impl FnMut(&mut Both<'_>) -> Option<T>) -> io::Result<T> {
        let wire = &mut self.wire;
        self.udp.until(|client| {
            wire.pump(client);
            done(&mut Both { client, wire })
        })
    }

    /// Waits for the end of a response.
    pub(crate) fn finish(&mut self, id: u64) -> Result<Response, StreamError> {
        let end = self.until(|both| both.wire.requests[&id].end).unwrap();
        let exchange = self.wire.requests.remove(&id).unwrap();
        end.map(|()| exchange.response)
    }

    /// Waits until as many bytes of the body have come.
    pub(crate) fn body(&mut self, id: u64, len: usize) -> Vec<u8> {
        let body = |both: &mut Both<'_>| {
            let body = &both.wire.requests[&id].response.body;
            (body.len() >= len).then(|| body.clone())
        };
        self.until(body).unwrap()
    }

    /// Waits until one of two responses has ended, and returns the received bytes of both bodies.
    pub(crate) fn received_until_one_ends(&mut self, ids: [u64; 2]) -> [usize; 2] {
        let received = |both: &mut Both<'_>| {
            let exchanges = ids.map(|id| &both.wire.requests[&id]);
            let has_ended = exchanges.iter().any(|exchange| exchange.end.is_some());
            has_ended.then(|| exchanges.map(|exchange| exchange.response.body.len()))
        };
        self.until(received).unwrap()
    }

    /// Waits for an interim response.
    pub(crate) fn interim(&mut self, id: u64) -> u16 {
        self.until(|both| both.wire.requests[&id].response.interim.first().copied()).unwrap()
    }

    /// Sends a request with a body, and returns the response.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let id = self.begin(method, path, fields, body.is_empty());
        if !body.is_empty() {
            self.send(id, body, true);
        }
        self.finish(id).unwrap()
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    /// Waits until the server has closed the connection, and returns its error code.
    pub(crate) fn closed(&mut self) -> u64 {
        self.until(|both| closed(both.client)).unwrap()
    }

    /// Returns true if the server accepts no more requests.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.wire.frames.is_open()
    }

    /// Waits until the server accepts no more requests.
    pub(crate) fn until_leaving(&mut self) {
        let left = self.until(|both| (!both.wire.frames.is_open()).then_some(()));
        assert!(left.is_ok(), "{left:?}, control stream: {:x?}", self.udp.client.received.get(&3));
    }

    /// Waits until the server accepts the extended CONNECT method.
    pub(crate) fn wait_settings(&mut self) {
        self.until(|both| both.wire.frames.has_connect_protocol().then_some(())).unwrap();
    }
}

/// Both halves of a client, while bytes are moved.
pub(crate) struct Both<'a> {
    client: &'a mut QuicClient,
    wire: &'a mut Wire,
}

impl Both<'_> {
    /// Lets the server acknowledge something.
    pub(crate) fn ping(&mut self) {
        self.client.engine.connection.ping();
    }

    /// Reason of the end of the connection, once there is one.
    pub(crate) fn lost(&self) -> Option<ConnectionError> {
        self.client.lost.clone()
    }

    /// Bytes of the body of a response that have come.
    pub(crate) fn body_len(&self, id: u64) -> usize {
        self.wire.requests[&id].response.body.len()
    }

    /// Value of a field of a response, if its head has come.
    pub(crate) fn field(&self, id: u64, name: &str) -> Option<&str> {
        self.wire.requests[&id].response.field(name)
    }

    /// Returns true if nothing more of a response comes.
    pub(crate) fn is_ended(&self, id: u64) -> bool {
        self.wire.requests[&id].end.is_some()
    }
}

/// Error code with which the server has closed the connection.
pub(crate) fn closed(client: &QuicClient) -> Option<u64> {
    match &client.lost {
        Some(ConnectionError::ApplicationClosed(close)) => Some(close.error_code.into_inner()),
        Some(other) => panic!("the transport has failed: {other}"),
        None => None,
    }
}

impl Wire {
    fn pump(&mut self, client: &mut QuicClient) {
        if client.lost.is_some() {
            if !std::mem::replace(&mut self.is_over, true) {
                self.frames.fail(tw_http3::ConnectionError::Closed);
            }
            self.read();
            return;
        }
        for (which, place) in
            [LocalStream::Control, LocalStream::QpackDecoder].into_iter().zip(&mut self.local)
        {
            while self.frames.out_len(which) > 0 {
                let Some(id) = place.or_else(|| client.open_uni()) else { break };
                *place = Some(id);
                let mut written_len = 0;
                self.frames.write(which, |bytes| {
                    written_len = client.write(id, bytes);
                    written_len
                });
                if written_len == 0 {
                    break;
                }
            }
        }
        for (id, exchange) in &mut self.requests {
            while let Some(bytes) = exchange.stream.output() {
                let written_len = client.write(*id, &bytes);
                exchange.stream.consume(written_len);
                if written_len == 0 {
                    break;
                }
            }
            if exchange.stream.is_finished() && !std::mem::replace(&mut exchange.is_sent, true) {
                client.finish(*id);
            }
        }
        for (id, bytes) in &client.received {
            let passed = self.passed.entry(*id).or_default();
            if *passed < bytes.len() {
                let new = Bytes::copy_from_slice(&bytes[*passed..]);
                *passed = bytes.len();
                let _ = self.frames.receive(*id, new, false);
            }
        }
        for (id, end) in &client.ended {
            if self.ended.insert(*id) {
                let _ = match end {
                    None => self.frames.receive(*id, Bytes::new(), true),
                    Some(code) => self.frames.receive_reset(*id, (*code).into()),
                };
            }
        }
        self.read();
        while let Some(signal) = self.frames.next_signal() {
            match signal {
                Signal::Reset { stream, code } => client.reset(stream, u64::from(code) as u32),
                Signal::StopSending { stream, code } => client.stop(stream, u64::from(code) as u32),
            }
        }
    }

    /// Reads the responses.
    fn read(&mut self) {
        let cx = Context::from_waker(Waker::noop());
        for exchange in self.requests.values_mut().filter(|exchange| exchange.end.is_none()) {
            while let Poll::Ready(came) = exchange.stream.poll_incoming(&cx) {
                match came {
                    Ok(Some(Incoming::Head(list))) if list.status() < 200 => {
                        exchange.response.interim.push(list.status());
                    }
                    Ok(Some(Incoming::Head(list))) => {
                        assert_eq!(list.malformed(), None);
                        assert!(list.pseudo(Pseudo::Status).is_some());
                        exchange.response.status = list.status();
                        exchange.response.fields = fields_of(&list);
                    }
                    Ok(Some(Incoming::Data(bytes))) => exchange.response.body.extend_from_slice(&bytes),
                    Ok(Some(Incoming::Trailers(list))) => exchange.response.trailers = fields_of(&list),
                    Ok(None) => exchange.end = Some(Ok(())),
                    Err(error) => exchange.end = Some(Err(error)),
                }
                if exchange.end.is_some() {
                    break;
                }
            }
        }
    }
}

fn fields_of(list: &tw_http3::FieldSection) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    list.iter().map(|(name, value)| (text(name), text(value))).collect()
}

/// A frame of a short type and length.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() < 64);
    [&[kind, payload.len() as u8][..], payload].concat()
}

/// A `HEADERS` frame.
pub(crate) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    tw_fields::encode_section(
        &FIELD_CODING,
        |writer| fields.iter().for_each(|(name, value)| writer.push(name.as_bytes(), value.as_bytes())),
        |section| frame(1, section),
    )
}

/// A `HEADERS` frame of a request.
pub(crate) fn request_head(method: &str, path: &str) -> Vec<u8> {
    headers(&[(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)])
}

/// Opens a unidirectional stream of this type, and sends bytes on it.
pub(crate) fn send_uni(udp: &mut UdpClient, bytes: &[u8]) -> u64 {
    let stream = udp.until(QuicClient::open_uni).unwrap();
    send_on(udp, stream, bytes, false);
    stream
}

/// Opens a request stream, and sends bytes on it.
pub(crate) fn send_bidi(udp: &mut UdpClient, bytes: &[u8], fin: bool) -> u64 {
    let stream = udp.until(QuicClient::open_bidi).unwrap();
    send_on(udp, stream, bytes, fin);
    stream
}

pub(crate) fn send_on(udp: &mut UdpClient, stream: u64, mut bytes: &[u8], fin: bool) {
    udp.until(|client| {
        let written_len = if bytes.is_empty() { 0 } else { client.write(stream, bytes) };
        bytes = &bytes[written_len..];
        (bytes.is_empty() || client.lost.is_some()).then_some(())
    })
    .unwrap();
    if fin {
        udp.until(|client| {
            client.finish(stream);
            Some(())
        })
        .unwrap();
    }
}
