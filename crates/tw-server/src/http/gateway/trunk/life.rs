//! The task of a trunk.
//!
//! ```text
//! opening ─► open: frames come and go ─┬─ no request for too long, one trunk too many ─► GOAWAY ─► closed
//!    └─► failed                        └─ its server ends it, breaks the protocol, floods ─────────► closed
//! ```

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection};
use tw_net::Transport;
use tw_rt::Deadline;

use super::io::Io;
use super::{Fate, LIST_FACTOR, REQUEST_WAITING_MAX, STREAM_WINDOW, STREAMS_MAX, State, TRUNK_WINDOW, Trunk};
use crate::event_loop::Loop;
use crate::http::frames::{Frames, Gathers};
use crate::http::gateway::fault::{Fault, Stage};
use crate::http::gateway::link::Link;
use crate::http::gateway::secure::{Doers, Secured};

/// How long a server may take to hear that nothing more comes.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// How a trunk is opened.
pub(super) struct Opening {
    /// Time for the connection and the handshake.
    pub(super) timeout: Duration,
    /// How it is secured, if it is.
    pub(super) secured: Option<(Secured, Doers)>,
}

/// Opens `trunk` and keeps it for as long as it is of use.
pub(super) async fn run(home: Rc<Loop>, trunk: Rc<Trunk>, opening: Opening) {
    let guard = Unlisted { home: home.clone(), trunk: trunk.clone() };
    let transport = match open(&trunk, opening).await {
        Ok(transport) => transport,
        Err((fault, stage)) => return trunk.settle(State::Failed(Rc::new(fault), stage)),
    };
    let io = Io::new(transport, home.clone());
    let (requests, connection) = match builder(&trunk).handshake(Frames(io.clone())).await {
        Ok(begun) => begun,
        Err(_) => return trunk.settle(State::Failed(Rc::new(Fault::Closed), Stage::Connecting)),
    };
    trunk.settle(State::Open(requests));
    let mut life = Life {
        home,
        trunk: trunk.clone(),
        io,
        connection,
        stage: LifeStage::Open,
        deadline: Deadline::new(),
    };
    let why = poll_fn(|cx| life.poll(cx)).await;
    // Before its streams learn of it, so that they can say why.
    trunk.settle(State::Closed(why));
    drop(life);
    drop(guard);
}

async fn open(trunk: &Trunk, opening: Opening) -> Result<Transport, (Fault, Stage)> {
    let Opening { timeout, secured } = opening;
    let secured = secured.as_ref().map(|(secured, by)| (secured, by));
    Link::carry(&trunk.to, &trunk.options, timeout, secured).await
}

fn builder(trunk: &Trunk) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(TRUNK_WINDOW)
        .max_header_list_size(trunk.list_size.saturating_mul(LIST_FACTOR as u32))
        .max_send_buffer_size(REQUEST_WAITING_MAX);
    builder
}

/// A trunk whose task has ended is nobody's, however it has ended.
struct Unlisted {
    home: Rc<Loop>,
    trunk: Rc<Trunk>,
}

impl Drop for Unlisted {
    fn drop(&mut self) {
        self.home.app.trunks.remove(&self.trunk);
        if matches!(*self.trunk.state.borrow(), State::Opening | State::Open(_)) {
            self.trunk.settle(State::Closed(None));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LifeStage {
    Open,
    /// No request is under way; the time until it is closed runs.
    Idle,
    /// Its server hears that nothing more comes.
    Closing,
}

/// A trunk that is open.
struct Life {
    home: Rc<Loop>,
    trunk: Rc<Trunk>,
    io: Rc<Io>,
    connection: Connection<Frames<Io>, Bytes>,
    stage: LifeStage,
    deadline: Deadline,
}

impl Life {
    /// Goes on; ready when the trunk is closed, with the reason if its server is to blame.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<&'static str>> {
        let mut life = self.trunk.life.borrow_mut();
        if !life.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *life = Some(cx.waker().clone());
        }
        drop(life);
        loop {
            if let Poll::Ready(closed) = Pin::new(&mut self.connection).poll(cx) {
                // What it has still said, as far as the socket takes it.
                let _ = self.io.poll_out(cx);
                return Poll::Ready(closed.err().and_then(|error| why(&error)));
            }
            if self.io.is_flooded(self.trunk.worth.get()) {
                return Poll::Ready(Some("upstream sent too many frames without content"));
            }
            match self.io.poll_out(cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if !self.rest(cx) {
                return if self.stage == LifeStage::Closing && self.deadline.poll_elapsed(cx).is_ready() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            }
        }
    }

    /// Rests while no request is under way. Whether there is something to say now.
    fn rest(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stage == LifeStage::Closing {
            return false;
        }
        if !self.trunk.is_idle() {
            self.stage = LifeStage::Open;
            return false;
        }
        if self.stage == LifeStage::Open {
            self.stage = LifeStage::Idle;
            self.deadline.set(self.trunk.keepalive.timeout);
        }
        let is_over = self.trunk.fate.get() == Fate::Retired
            || self.home.app.trunks.has_too_many_idle(&self.trunk)
            || self.deadline.poll_elapsed(cx).is_ready();
        if is_over {
            self.stage = LifeStage::Closing;
            self.deadline.set(LAST_WAIT);
            self.home.app.trunks.remove(&self.trunk);
            // Without anybody who could make requests, the crate says goodbye.
            self.trunk.settle(State::Closed(None));
        }
        is_over
    }
}

/// What its server has done to the connection.
fn why(error: &h2::Error) -> Option<&'static str> {
    if error.is_library() {
        return Some(error.reason().map_or("upstream broke HTTP/2", described));
    }
    match error.get_io().map(io::Error::kind) {
        Some(io::ErrorKind::InvalidData) => Some("upstream broke TLS"),
        _ => None,
    }
}

/// What a server has done wrong that is told this reason.
pub(super) fn described(reason: h2::Reason) -> &'static str {
    match reason {
        h2::Reason::FLOW_CONTROL_ERROR => "upstream violated flow control",
        h2::Reason::FRAME_SIZE_ERROR => "upstream sent http2 frame with invalid length",
        h2::Reason::COMPRESSION_ERROR => "upstream sent invalid http2 header block",
        h2::Reason::STREAM_CLOSED => "upstream sent frame for closed stream",
        h2::Reason::ENHANCE_YOUR_CALM => "upstream sent too many http2 frames",
        _ => "upstream sent invalid http2 frame",
    }
}
