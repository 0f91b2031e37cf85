//! One connection of the control API: one request, one response.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::{read, write};
use serde_json::{Value, json};
use tailwater_commands::output::json_response;
use tw_http::{Framing, HeadLimits, Method, Progress as HeadProgress, RequestHead};

use super::token::Token;
use crate::master::control;

/// Time to send a request, and to take a response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the outcome of a purge.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(120);
/// Size of a body.
const BODY_SIZE_MAX: u64 = 16 << 10;
/// Bytes of one read.
const READ_SIZE: usize = 4 << 10;

/// A complete request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) path: Vec<u8>,
    pub(super) body: Vec<u8>,
}

/// Response to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiResponse {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// Progress of a connection.
pub(super) enum Progress {
    /// The connection waits for an event.
    Pending,
    /// A request is complete; the connection waits for [`Connection::respond`].
    Request(ApiRequest),
    /// The response was sent, or the client is gone or too slow.
    Ended,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: u64,
    stream: OwnedFd,
    deadline: Instant,
    /// True if the client wants no body (HEAD).
    is_head: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Reading(Box<RequestHead>),
    /// The master works on the request.
    Working,
    /// A worker process works on the request. Its outcome arrives on the socket.
    Waiting(UnixStream),
    Writing(Vec<u8>),
}

impl Connection {
    pub(super) fn new(number: u64, stream: OwnedFd, now: Instant) -> Self {
        let state = State::Reading(Box::default());
        Self { number, stream, deadline: now + TIMEOUT, is_head: false, state }
    }

    /// The connection to the client.
    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Event to wait for.
    pub(super) fn event(&self) -> PollFd<'_> {
        match &self.state {
            State::Reading(_) | State::Working => PollFd::new(&self.stream, PollFlags::IN),
            State::Waiting(outcome) => PollFd::new(outcome, PollFlags::IN),
            State::Writing(_) => PollFd::new(&self.stream, PollFlags::OUT),
        }
    }

    /// Time at which it is closed if nothing happens.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sends the response.
    pub(super) fn respond(&mut self, response: &ApiResponse, now: Instant) {
        self.state = State::Writing(response.bytes(self.is_head));
        self.deadline = now + TIMEOUT;
    }

    /// Waits for the outcome of a purge, which arrives on `outcome`.
    pub(super) fn wait_for(&mut self, outcome: UnixStream) {
        self.state = State::Waiting(outcome);
        self.deadline += OUTCOME_TIMEOUT;
    }

    /// Reads and writes as much as is possible now.
    pub(super) fn advance(&mut self, token: Option<&Token>, now: Instant) -> Progress {
        if let State::Reading(head) = &mut self.state {
            match read_request(&self.stream, head, token) {
                Ok(None) => {}
                Ok(Some(request)) => {
                    self.is_head = request.method == Method::Head;
                    self.state = State::Working;
                    return Progress::Request(request);
                }
                Err(ReadFailure::Gone) => return Progress::Ended,
                Err(ReadFailure::Refused(status, text)) => {
                    self.respond(&ApiResponse::error(status, text), now);
                }
            }
        }
        if let State::Waiting(outcome) = &self.state
            && is_readable(outcome)
            && let Ok(outcome) = outcome.try_clone()
        {
            self.respond(&outcome_response(outcome), now);
        }
        if let State::Writing(rest) = &mut self.state {
            loop {
                if rest.is_empty() {
                    return Progress::Ended;
                }
                match write(&self.stream, rest) {
                    Ok(count) => drop(rest.drain(..count)),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => break,
                    Err(_) => return Progress::Ended,
                }
            }
        }
        if now >= self.deadline { Progress::Ended } else { Progress::Pending }
    }
}

/// Reason why there is no request.
enum ReadFailure {
    /// The client has closed the connection.
    Gone,
    /// Status of the response, and a text about the reason.
    Refused(u16, &'static str),
}

/// Reads what has arrived. Returns the request once it is complete.
fn read_request(
    stream: &OwnedFd,
    head: &mut RequestHead,
    token: Option<&Token>,
) -> Result<Option<ApiRequest>, ReadFailure> {
    let refused = |status, text| Err(ReadFailure::Refused(status, text));
    loop {
        let mut bytes = [0; READ_SIZE];
        match read(stream, &mut bytes) {
            Ok(0) => return Err(ReadFailure::Gone),
            Ok(count) => head.push(bytes.get(..count).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(_) => return Err(ReadFailure::Gone),
        }
        match head.parse(&HeadLimits::default()) {
            Ok(HeadProgress::NeedMore) => continue,
            Ok(HeadProgress::Complete) => {}
            Err(error) => return refused(error.status(), "invalid request"),
        }
        // Requests of web pages are refused, whatever the user of the browser may do.
        if head.field("Origin").is_some() || head.field("Sec-Fetch-Site").is_some() {
            return refused(403, "requests of web pages are not accepted");
        }
        if token.is_some_and(|token| !token.is_in(head.field("Authorization"))) {
            return refused(401, "a token is required (Authorization: Bearer)");
        }
        let length = match head.framing() {
            Framing::None => 0,
            Framing::Length(length) if length <= BODY_SIZE_MAX => length,
            Framing::Length(_) => return refused(413, "the body is too large"),
            Framing::Chunked => return refused(411, "a body needs a Content-Length"),
        };
        let body = head.rest();
        if (body.len() as u64) < length {
            continue;
        }
        let body =
            usize::try_from(length).ok().and_then(|length| body.get(..length)).unwrap_or_default().to_vec();
        return Ok(Some(ApiRequest { method: head.method(), path: head.path().to_vec(), body }));
    }
}

fn is_readable(stream: &UnixStream) -> bool {
    let mut event = [PollFd::new(stream, PollFlags::IN)];
    rustix::event::poll(&mut event, Some(&rustix::event::Timespec::default())).is_ok_and(|count| count > 0)
}

/// Response for the outcome of a purge. It is written at once and closed, so reading it does not wait.
fn outcome_response(outcome: UnixStream) -> ApiResponse {
    let (status, said) =
        match control::read_answer(outcome, "the worker process has ended before the purge was over") {
            Ok(said) => (200, said),
            Err(said) => (422, said),
        };
    ApiResponse { status, body: logs(said.iter().map(|fault| (fault.level, &*fault.message))) }
}

/// Messages as nginx's API has them.
pub(super) fn logs<'a>(messages: impl Iterator<Item = (tw_log::Level, &'a str)>) -> Value {
    let lines: Vec<_> = messages.map(|(level, message)| format!("[{level}] {message}")).collect();
    json!({ "logs": lines })
}

impl ApiResponse {
    pub(super) fn ok(body: Value) -> Self {
        Self { status: 200, body }
    }

    pub(super) fn error(status: u16, text: &str) -> Self {
        Self { status, body: json_response::error(status, text) }
    }

    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let body = self.body.to_string();
        let mut text = json_response::head(self.status, body.len());
        if !is_head {
            text.push_str(&body);
        }
        text.into_bytes()
    }
}

impl From<io::Error> for ApiResponse {
    fn from(error: io::Error) -> Self {
        Self::error(500, &format!("{}", tw_base::Errno::from(&error)))
    }
}
