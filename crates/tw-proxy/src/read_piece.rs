//! Next piece of a response body: read from the connection, and parsed by the codec.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_connect::failure::UpstreamFailure;
use tw_connect::read_rate::ReadRate;
use tw_connect::reading::read_some;
use tw_connect::upstream_connection::ReadOutcome;

use super::codec::{Codec, Event};
use super::exchange::Exchange;
use tw_request::event_loop::Loop;
use tw_request::upstream_response::UpstreamResponse;

/// Limits of reading from an upstream server.
pub(super) struct Reading<'a> {
    /// Bytes of one read.
    pub(super) max: usize,
    /// Longest time for which the server may send nothing.
    pub(super) timeout: Duration,
    /// Rate limit.
    pub(super) rate: Option<&'a mut ReadRate>,
}

/// The next piece of a body; `None` at the end. Sends on what is left of the request meanwhile.
pub(super) fn poll_piece<C: Codec>(
    exchange: &mut Exchange<C>,
    event_loop: &Loop,
    answer: &mut UpstreamResponse,
    reading: Reading<'_>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, UpstreamFailure>> {
    let Reading { max, timeout, mut rate } = reading;
    let Exchange { connection, codec, input, sending, .. } = exchange;
    sending.drive(cx);
    if sending.has_failed() {
        return Poll::Ready(Err(UpstreamFailure::Unsent));
    }
    let mut read_len = 0;
    loop {
        match codec.read(input, answer)? {
            Event::Body(piece) => return Poll::Ready(Ok(Some(piece))),
            Event::End => return Poll::Ready(Ok(None)),
            Event::NeedMore | Event::Interim | Event::Head => {}
        }
        // The bytes read held nothing of the body, such as chunk framing. An upstream server may send any number of
        // them, so other tasks get their turn.
        if read_len > 0 && !event_loop.budget.may_copy(read_len) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let room = match &mut rate {
            Some(rate) => {
                let room = ready!(rate.poll_room(cx));
                // The server is not late while the rate limit stops reading.
                if rate.has_paused() {
                    connection.begin_reading(timeout);
                }
                room.min(max)
            }
            None => max,
        };
        let (read, came) = read_some(&event_loop.buffers, connection, room)?;
        if let Some(rate) = &mut rate {
            rate.count(came.len());
        }
        match read {
            ReadOutcome::Some => {
                read_len = came.len();
                *input = came;
                connection.begin_reading(timeout);
            }
            ReadOutcome::Nothing => ready!(connection.poll_readable(cx))?,
            ReadOutcome::Closed => return Poll::Ready(codec.closed().map(|()| None)),
        }
    }
}
