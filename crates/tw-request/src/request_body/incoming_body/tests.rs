//! Bodies of a scripted client: no connection, no clock.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Instant;

use super::*;
use crate::config::location::MinRate;

/// Event of a scripted client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// These bytes are there without a wait.
    Bytes(&'static str),
    /// Nothing is there.
    Pause,
    /// The timeout of the wait is over.
    Timeout,
    /// The client is gone.
    Loss,
}

/// Body of a scripted client, after whose events the body has ended.
struct ScriptedInput {
    events: VecDeque<Event>,
    bytes: Bytes,
    received: u64,
    precedes_next_request: bool,
    /// Timeouts of the waits that were begun.
    waits: Vec<Duration>,
}

impl ScriptedInput {
    fn poll_event(&mut self) -> Poll<Result<(), InputError>> {
        match self.events.pop_front() {
            Some(Event::Bytes(bytes)) => self.bytes = bytes.into(),
            Some(Event::Loss) => return Poll::Ready(Err(InputError::Closed)),
            Some(Event::Timeout) => {
                self.events.push_front(Event::Timeout);
                return Poll::Pending;
            }
            Some(Event::Pause) => return Poll::Pending,
            None => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl BodyInput for ScriptedInput {
    fn take(&mut self, want: usize, max_size: u64) -> Result<Piece, InputError> {
        if self.bytes.is_empty() {
            return Ok(if self.events.is_empty() { Piece::End } else { Piece::NeedMore });
        }
        let piece = self.bytes.split_to(want.min(self.bytes.len()));
        let received = self.received;
        self.received += piece.len() as u64;
        if max_size > 0 && self.received > max_size {
            return Err(InputError::TooLarge { received, coming: piece.len() as u64 });
        }
        Ok(Piece::Data(piece))
    }

    fn receive(&mut self, _: usize) -> Result<Received, InputError> {
        match self.poll_event() {
            Poll::Ready(received) => received.map(|()| Received::Some),
            Poll::Pending => Ok(Received::Nothing),
        }
    }

    fn poll_receive(&mut self, _: usize, _: &mut Context<'_>) -> Poll<Result<(), InputError>> {
        self.poll_event()
    }

    fn begin_wait(&mut self, timeout: Duration) {
        self.waits.push(timeout);
    }

    fn poll_timeout(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.events.front() == Some(&Event::Timeout) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn arrived(&self) -> u64 {
        self.received + self.bytes.len() as u64
    }

    fn announced(&self) -> u64 {
        self.arrived()
    }

    fn is_pending(&self) -> bool {
        !(self.bytes.is_empty() && self.events.is_empty())
    }

    fn precedes_next_request(&self) -> bool {
        self.precedes_next_request
    }

    fn discard(&mut self) -> Result<(), InputError> {
        self.received += std::mem::take(&mut self.bytes).len() as u64;
        Ok(())
    }
}

fn scripted(events: &[Event]) -> Box<IncomingBody<ScriptedInput>> {
    IncomingBody::new(ScriptedInput {
        events: events.iter().copied().collect(),
        bytes: Bytes::new(),
        received: 0,
        precedes_next_request: true,
        waits: Vec::new(),
    })
}

const LIMITS: BodyLimits = BodyLimits { max_size: 8, timeout: Duration::from_secs(60), min_rate: None };

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(std::task::Waker::noop()))
}

/// Pieces of at most four bytes up to the end, an error, or a wait.
fn pieces(body: &mut IncomingBody<ScriptedInput>, limits: BodyLimits) -> String {
    let mut text = String::new();
    loop {
        match poll(body.next(4, limits)) {
            Poll::Ready(Ok(Some(piece))) => text = text + std::str::from_utf8(&piece).unwrap() + " ",
            Poll::Ready(Ok(None)) => return text + "end",
            Poll::Ready(Err(error)) => return format!("{text}{error:?}"),
            Poll::Pending => return text + "waits",
        }
    }
}

#[test]
fn pieces_are_taken_as_they_arrive() {
    use Event::{Bytes, Loss, Pause, Timeout};
    for (events, expected) in [
        (&[][..], "end"),
        (&[Bytes("hello")], "hell o end"),
        (&[Bytes("ab"), Bytes("cd")], "ab cd end"),
        (&[Bytes("ab"), Pause, Pause, Bytes("cd")], "ab waits"),
        (&[Bytes("ab"), Timeout], "ab Timeout"),
        (&[Bytes("ab"), Loss, Bytes("cd")], "ab Closed"),
        (&[Bytes("12345678"), Bytes("9")], "1234 5678 TooLarge { received: 8, coming: 1 }"),
    ] {
        assert_eq!(pieces(&mut scripted(events), LIMITS), expected, "{events:?}");
    }
}

#[test]
fn dropped_wait_loses_no_byte() {
    use Event::{Bytes, Pause};
    let mut body = scripted(&[Bytes("ab"), Pause, Pause, Bytes("cd")]);
    assert_eq!(pieces(&mut body, LIMITS), "ab waits");
    assert_eq!(pieces(&mut body, LIMITS), "cd end");
    assert_eq!(body.input.waits, [LIMITS.timeout]);
}

#[test]
fn piece_at_hand_needs_no_wait() {
    use Event::{Bytes, Pause};
    let mut body = scripted(&[Pause, Bytes(""), Bytes(""), Bytes("ab")]);
    assert!(body.at_hand(4, LIMITS).is_none(), "nothing has arrived");
    assert!(body.at_hand(4, LIMITS).is_none(), "two times, only framing has arrived");
    assert!(matches!(body.at_hand(4, LIMITS), Some(Ok(Some(piece))) if piece == "ab"));
    assert!(matches!(body.at_hand(4, LIMITS), Some(Ok(None))));
    assert!(body.input.waits.is_empty());
}

#[test]
fn slow_client_is_given_the_time_of_its_rate() {
    use Event::{Bytes, Timeout};
    let rate = MinRate { rate: 1, grace: Duration::from_secs(5) };
    let limits = BodyLimits { min_rate: Some(rate), ..LIMITS };
    let mut body = scripted(&[Bytes("ab"), Timeout]);
    assert_eq!(pieces(&mut body, limits), "ab TooSlow");
    assert_eq!(body.input.waits, [Duration::from_secs(7)], "five seconds, and one for each byte");
}

#[test]
fn observers_learn_of_bytes_and_waits() {
    use Event::{Bytes, Pause};
    let mut body = scripted(&[Bytes("hello"), Pause, Pause, Bytes("!")]);
    let progress = BodyProgress::default();
    let deadline = Rc::new(RequestDeadline::new(Instant::now()));
    body.note_progress(progress.clone());
    body.note_waits(deadline.clone());
    assert_eq!(pieces(&mut body, LIMITS), "hell o waits");
    assert_eq!((progress.received(), deadline.awaits_body()), (5, true));
    assert_eq!(pieces(&mut body, LIMITS), "! end");
    assert_eq!(progress.received(), 6);
    let mut body = scripted(&[Pause, Bytes("a")]);
    body.note_waits(deadline.clone());
    assert_eq!(pieces(&mut body, LIMITS), "a end");
    assert!(!deadline.awaits_body(), "the wait is over");
}

#[test]
fn rest_is_drained_if_the_next_request_follows() {
    use Event::{Bytes, Loss, Pause, Timeout};
    const TIME: Duration = Duration::from_secs(30);
    let drained = |body: &mut IncomingBody<ScriptedInput>| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(body.drain(TIME, TIME))
    };
    assert_eq!(drained(&mut scripted(&[Bytes("ab"), Pause, Bytes("cd")])), Drained::Yes);
    assert_eq!(drained(&mut scripted(&[Bytes("ab"), Loss])), Drained::No);
    assert_eq!(drained(&mut scripted(&[Bytes("ab"), Timeout])), Drained::No);
    let mut stream = scripted(&[Bytes("ab")]);
    stream.input.precedes_next_request = false;
    assert_eq!(drained(&mut stream), Drained::No);
    assert!(stream.input.is_pending(), "a stream is reset instead");
}
