//! Requests and responses over a scripted stream: no connection, no frames.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tw_base::memory::MemoryHolder;
use tw_connect::ReadOutcome;
use tw_connect::relay::RelayEnd;
use tw_core::event_loop::{BodySize, Buffers};
use tw_fields::{FieldCoding, FieldWriter, Incoming};
use tw_http::{Fields, Version};
use tw_net::{Addr, TcpInfo};

use super::stream_body::{Expects, StreamBody};
use super::*;
use tw_http_testkit::with_request;
use tw_request::body::{Body, Upgraded};
use tw_request::client::Client;
use tw_request::client_gone::ClientGone;
use tw_request::http_version::HttpVersion;
use tw_request::local_future::LocalFuture;
use tw_request::request::{After, Request};
use tw_request::request_body::{BodyInput, InputError, Piece};
use tw_request::send_error::SendError;
use tw_request::wire::Wire;

static PROTOCOL: StreamProtocol = StreamProtocol {
    name: "HTTP/9",
    debug_name: "http9",
    version: Version::HTTP_2,
    counted_as: HttpVersion::Http2,
    holder: MemoryHolder::Http2,
    is_spoken: |_, _, _| true,
};

/// Fields as text, one after the other, without those that depend on the clock or the version of the server.
static TEXT: FieldCoding = FieldCoding {
    prefix: b"",
    field: |out, name, value| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if !["date", "server"].contains(&&*name) {
            out.extend_from_slice(format!(" {name}:{}", String::from_utf8_lossy(value)).as_bytes());
        }
    },
    status: |out, status| out.extend_from_slice(status.to_string().as_bytes()),
};

/// Stream that notes what it is to do, whose client sends scripted parts, and takes so many bytes of a response at once.
struct ScriptedStream {
    client: Rc<Client>,
    state: StreamState,
    cost: ClientCost,
    incoming: RefCell<VecDeque<Incoming>>,
    room: Cell<usize>,
    is_gone: Cell<bool>,
    done: RefCell<Vec<String>>,
}

impl ScriptedStream {
    fn new(r: &Request) -> Rc<Self> {
        Rc::new(Self {
            client: r.client().clone(),
            state: StreamState::new(),
            cost: ClientCost::default(),
            incoming: RefCell::default(),
            room: Cell::new(usize::MAX),
            is_gone: Cell::new(false),
            done: RefCell::default(),
        })
    }

    fn note(&self, done: impl fmt::Display) {
        self.done.borrow_mut().push(done.to_string());
    }

    /// All that was done since the last call.
    fn take_done(&self) -> String {
        self.done.take().join("; ")
    }
}

/// Reset by the client.
#[derive(Debug)]
struct ClientReset;

impl fmt::Display for ClientReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reset")
    }
}

impl std::error::Error for ClientReset {}

/// The stream as a connection.
struct ScriptedTunnel {
    stream: Rc<ScriptedStream>,
    input: TunnelInput,
}

impl RelayEnd for ScriptedTunnel {
    fn read(&self, _: &Buffers, _: usize) -> io::Result<(ReadOutcome, Bytes)> {
        self.input.read(&*self.stream)
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        self.stream.send_data(bytes.clone(), 0, false).map_err(tunnel_error)?;
        Ok(bytes.len())
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.poll_readable(&*self.stream, cx)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Wire<Request, Body> for ScriptedStream {
    fn poll_gone(&self, _: &mut Context<'_>) -> Poll<ClientGone> {
        if self.is_gone.get() {
            return Poll::Ready(ClientGone::new(io::Error::other(ClientReset)));
        }
        Poll::Pending
    }

    fn begin_sleep(&self, _: Duration) {}

    fn poll_sleep(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn send<'r>(self: Rc<Self>, r: &'r mut Request, body: Body) -> Option<LocalFuture<'r, ()>> {
        Some(Box::pin(send_response(self, r, body)))
    }

    fn inform(&self, r: &mut Request) {
        send_early_hints(self, r);
    }

    fn status_if_cut(&self) -> u16 {
        CLIENT_CLOSED_REQUEST
    }

    fn holder(&self) -> MemoryHolder {
        PROTOCOL.holder
    }

    fn local_addr(&self) -> Option<Addr> {
        None
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }
}

impl RequestStream for ScriptedStream {
    const PROTOCOL: &'static StreamProtocol = &PROTOCOL;
    const FILE_PIECE_MAX: usize = 1 << 10;
    type Permit = ();
    type Error = ClientReset;
    type Tunnel = ScriptedTunnel;

    fn state(&self) -> &StreamState {
        &self.state
    }

    fn client(&self) -> &Rc<Client> {
        &self.client
    }

    fn moved_peer(&self) -> Option<Addr> {
        None
    }

    fn set_request_priority(&self, value: &[u8]) {
        self.note(format_args!("request priority {}", String::from_utf8_lossy(value)));
    }

    fn set_response_priority(&self, value: &[u8]) {
        self.note(format_args!("priority {}", String::from_utf8_lossy(value)));
    }

    fn cost(&self) -> &ClientCost {
        &self.cost
    }

    fn forget(&self) {
        self.note("forget");
    }

    fn reset(&self, reason: ResetReason) {
        self.note(format_args!("reset {reason:?}"));
    }

    fn is_malformed(&self) -> bool {
        self.state.is_malformed()
    }

    fn end_malformed(&self, cut: Option<ResetReason>) {
        self.note(format_args!("malformed {cut:?}"));
    }

    fn tunnel(self: &Rc<Self>, frame_size: usize) -> ScriptedTunnel {
        assert!(frame_size > 0);
        ScriptedTunnel { stream: self.clone(), input: TunnelInput::default() }
    }

    fn poll_incoming(&self, _: &mut Context<'_>) -> Poll<Result<Option<Incoming>, ClientReset>> {
        if self.is_gone.get() {
            return Poll::Ready(Err(ClientReset));
        }
        Poll::Ready(Ok(self.incoming.borrow_mut().pop_front()))
    }

    fn has_ended(&self) -> bool {
        self.incoming.borrow().is_empty()
    }

    fn is_local(_: &ClientReset) -> bool {
        false
    }

    fn send_fields(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError> {
        let mut block = Vec::new();
        write(&mut FieldWriter::new(&mut block, &TEXT));
        let fields = String::from_utf8_lossy(&block);
        self.note(format_args!("head {}{}", fields.trim_start(), if ends { " end" } else { "" }));
        Ok(block.len())
    }

    fn send_data(&self, bytes: Bytes, _: usize, ends: bool) -> Result<usize, SendError> {
        if self.is_gone.get() {
            return Err(SendError::Gone(io::Error::other(ClientReset)));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.note(format_args!("data {text}{}", if ends { " end" } else { "" }));
        Ok(9)
    }

    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    async fn flush_part(&self, _: Duration) -> Result<bool, SendError> {
        Ok(true)
    }

    fn unsent(&self) -> usize {
        0
    }

    async fn wait_for_client(&self, _: Duration) -> Result<(), SendError> {
        Err(SendError::Timeout)
    }

    async fn wait_for_loop(&self, _: BodySize) {}

    async fn wait_for_turn(&self, _: BodySize) -> Result<(), SendError> {
        Ok(())
    }

    fn room_now(&self, want: usize) -> usize {
        want.min(self.room.get())
    }

    async fn wait_for_room(&self, _: &mut Option<()>, want: usize, _: BodySize) -> Result<usize, SendError> {
        Ok(self.room_now(want))
    }
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// All that is done to send the response that `prepare` makes of an empty one.
fn sent(
    request: &str,
    prepare: impl FnOnce(&mut Request, &Rc<ScriptedStream>) -> Body + Send + 'static,
) -> (String, bool) {
    let request = format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n");
    with_request("server { }", &request, move |r| {
        let stream = ScriptedStream::new(r);
        r.response.reset(200);
        let body = prepare(r, &stream);
        assert!(poll(send_response(stream.clone(), r, body)).is_ready());
        (stream.take_done(), r.costs.sent.complete)
    })
}

fn hello(r: &mut Request) -> Body {
    r.response.content_length = Some(5);
    Body::Bytes("hello".into())
}

#[test]
fn end_of_a_response_leaves_with_its_last_bytes() {
    let whole = sent("GET /", |r, _| hello(r));
    assert_eq!(whole, ("head 200 content-length:5; data hello end".to_owned(), true));
    let empty = sent("GET /", |r, _| {
        r.response.content_length = Some(0);
        Body::Empty
    });
    assert_eq!(empty, ("head 200 content-length:0 end".to_owned(), true));
    assert_eq!(sent("HEAD /", |r, _| hello(r)), ("head 200 content-length:5 end".to_owned(), true));
}

#[test]
fn piece_is_sent_as_there_is_room() {
    let pieces = sent("GET /", |r, stream| {
        stream.room.set(3);
        hello(r)
    });
    assert_eq!(pieces, ("head 200 content-length:5; data hel; data lo end".to_owned(), true));
}

#[test]
fn response_of_another_length_is_cut() {
    let short = sent("GET /", |r, _| {
        r.response.content_length = Some(9);
        Body::Bytes("hello".into())
    });
    assert_eq!(short, ("head 200 content-length:9; data hello".to_owned(), false));
    let long = sent("GET /", |r, _| {
        r.response.content_length = Some(4);
        Body::Bytes("hello".into())
    });
    assert_eq!(long, ("head 200 content-length:4".to_owned(), false));
}

#[test]
fn trailers_end_the_response() {
    let trailers = sent("GET /", |r, _| {
        let mut fields = Fields::default();
        fields.append("X-Sum", "1");
        r.response.trailers = Some(fields);
        Body::Bytes("hello".into())
    });
    assert_eq!(trailers, ("head 200; data hello; head x-sum:1 end".to_owned(), true));
}

#[test]
fn response_to_a_requested_tunnel_is_no_success() {
    let refused = sent("GET /", |r, stream| {
        stream.state.set_intent(Intent::Tunnel);
        hello(r)
    });
    assert_eq!(refused, ("head 501 content-length:0 end".to_owned(), true));
}

/// Protocol that sends back what comes.
struct Echo;

impl Upgraded for Echo {
    fn run<'a>(
        self: Box<Self>,
        r: &'a mut Request,
        client: &'a dyn RelayEnd,
        _: Bytes,
    ) -> LocalFuture<'a, ()> {
        let event_loop = r.client().event_loop.clone();
        Box::pin(async move {
            loop {
                let (outcome, bytes) = client.read(&event_loop.buffers, 100).unwrap();
                match outcome {
                    ReadOutcome::Some => assert_eq!(client.try_write(&bytes).unwrap(), bytes.len()),
                    ReadOutcome::Closed => return,
                    ReadOutcome::Nothing => panic!("everything is there"),
                }
            }
        })
    }
}

#[test]
fn stream_becomes_a_tunnel_if_its_client_has_asked_for_that() {
    let switch = |r: &mut Request| {
        r.response.reset(101);
        r.response.fields.append("Upgrade", "echo");
        r.response.fields.append("X-One", "1");
        Body::Upgraded(Box::new(Echo))
    };
    let tunnel = sent("GET /", move |r, stream| {
        stream.state.set_intent(Intent::Tunnel);
        let parts = ["one", "", "two"].map(|part| Incoming::Data(part.into()));
        stream.incoming.borrow_mut().extend(parts);
        switch(r)
    });
    // Such a response is never complete: the stream is reset in the end.
    assert_eq!(tunnel, ("head 200 x-one:1; data one; data two".to_owned(), false));
    assert_eq!(sent("GET /", move |r, _| switch(r)), (String::new(), false));
}

#[test]
fn early_hints_precede_a_response_only() {
    let done = with_request("server { }", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |r| {
        let stream = ScriptedStream::new(r);
        send_early_hints(&*stream, r);
        r.upstream.answer.fields.append("Link", "</a>");
        send_early_hints(&*stream, r);
        stream.state.set_progress(Progress::Body);
        send_early_hints(&*stream, r);
        stream.take_done()
    });
    assert_eq!(done, "head 103 link:</a>");
}

#[test]
fn failed_response_ends_the_request() {
    let (done, after) = with_request("server { }", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |r| {
        let stream = ScriptedStream::new(r);
        stream.is_gone.set(true);
        r.response.reset(200);
        let body = hello(r);
        assert!(poll(send_response(stream.clone(), r, body)).is_ready());
        stream_end::end(&*stream, r.costs.sent.complete, 200);
        (stream.take_done(), r.state.after)
    });
    assert_eq!((done.as_str(), after), ("head 200 content-length:5; forget", After::Abort));
}

/// Pieces of at most four bytes of a body that is announced with this length.
fn taken(length: Option<u64>, parts: &'static [&'static str], is_gone: bool) -> String {
    with_request("server { }", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", move |r| {
        let stream = ScriptedStream::new(r);
        stream.incoming.borrow_mut().extend(parts.iter().map(|part| Incoming::Data((*part).into())));
        stream.is_gone.set(is_gone);
        let mut body = StreamBody::new(stream, length, Expects::Nothing);
        let mut text = String::new();
        loop {
            match body.take(4, 10) {
                Ok(Piece::Data(piece)) => text = text + std::str::from_utf8(&piece).unwrap() + " ",
                Ok(Piece::End) => return text + "end",
                Ok(Piece::NeedMore) => {
                    if let Err(error) = body.receive(4) {
                        return format!("{text}{error:?}");
                    }
                }
                Err(error) => return format!("{text}{error:?}"),
            }
        }
    })
}

#[test]
fn body_of_a_stream_has_its_announced_length() {
    for (length, parts, expected) in [
        (None, &["hello"][..], "hell o end"),
        (None, &[], "end"),
        (Some(5), &["he", "", "llo"], "he llo end"),
        (Some(5), &["hell"], "hell TooShort { received: 4, length: 5 }"),
        (Some(3), &["hell"], "TooLong"),
        (Some(3), &["hel", "l"], "TooLong"),
        (Some(11), &["hell"], "TooLarge { received: 0, coming: 11 }"),
        (None, &["0123456789", "x"], "0123 4567 89 TooLarge { received: 10, coming: 1 }"),
    ] {
        assert_eq!(taken(length, parts, false), expected, "{length:?} {parts:?}");
    }
    assert_eq!(taken(None, &["a"], true), format!("{:?}", InputError::Closed));
}
