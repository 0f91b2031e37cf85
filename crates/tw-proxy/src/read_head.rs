//! Head of a response: read while the request is still being sent, and parsed by the codec.

use std::future::poll_fn;
use std::task::{Poll, ready};

use bytes::Bytes;
use tw_base::memory;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::reading::{READ_SIZE, read_some};
use tw_connect::upstream_connection::ReadOutcome;

use super::codec::{Codec, Event};
use super::early_hints;
use super::exchange::{Exchange, record_traffic};
use super::send_request::SendError;
use super::upstream_request::UpstreamRequest;
use super::warnings::log_warnings;
use tw_request::request::Request;

/// Sends the request and reads, whichever is possible, until the head is complete. The bytes read behind it are the input of the
/// exchange then.
pub(super) async fn read_head<C: Codec>(
    r: &mut Request,
    exchange: &mut Exchange<C>,
    request: &UpstreamRequest<'_, C>,
) -> Result<(), SendError> {
    let event_loop = r.client().event_loop.clone();
    let Exchange { connection, sending, codec, input: rest, .. } = exchange;
    let settings = request.settings;
    // The read timeout starts when the request is sent, and is one span for the whole head (nginx: the same).
    let mut is_timed = false;
    let mut unsent = None;
    let mut hinted = 0;
    // Bytes behind the head are read with it: with a rate limit, or while memory is tight, no more than a head may have.
    let is_limited = request.response.is_some_and(|response| response.limit_rate.is_some());
    let max = || {
        if is_limited || memory::level() != memory::MemoryLevel::Plenty {
            settings.buffer_size
        } else {
            READ_SIZE
        }
    };
    poll_fn(|cx| {
        if unsent.is_none()
            && let Poll::Ready(Err(error)) = sending.poll(cx)
        {
            match error {
                // The server may have responded before it closed.
                SendError::Upstream(UpstreamFailure::Send(_)) => unsent = Some(error),
                error => return Poll::Ready(Err(error)),
            }
        }
        // The traffic is recorded for the log, in case the request is cancelled while it waits.
        record_traffic(r, connection);
        if !is_timed && sending.is_over() {
            connection.begin_reading(settings.timeouts.read);
            is_timed = true;
        }
        loop {
            let waited = match &unsent {
                // Everything that a stream received is in its queue by now.
                Some(_) if connection.stream().is_some() => Ok(()),
                // A socket may have bytes that the loop has not been notified of yet, or an end, which it is notified of, too.
                _ if is_timed => ready!(connection.poll_readable(cx)),
                _ => ready!(connection.poll_input(cx)),
            };
            let (read, input) = match waited.and_then(|()| read_some(&event_loop.buffers, connection, max()))
            {
                Ok(came) => came,
                // The failure to send came first.
                Err(failure) => return Poll::Ready(Err(unsent.take().unwrap_or(failure.into()))),
            };
            match read {
                ReadOutcome::Some => {}
                ReadOutcome::Nothing => match unsent.take_if(|_| connection.stream().is_some()) {
                    Some(failure) => return Poll::Ready(Err(failure)),
                    None => continue,
                },
                ReadOutcome::Closed => {
                    let failure = unsent.take().unwrap_or(SendError::Upstream(UpstreamFailure::Closed));
                    return Poll::Ready(Err(failure));
                }
            }
            let size = input.len();
            if let Some(behind) = parse_head(r, codec, input, request, &mut hinted)? {
                *rest = behind;
                return Poll::Ready(Ok(()));
            }
            // Interim responses, or an application's error output, may be of any length in front of a head.
            if !event_loop.budget.may_copy(size) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Parses `input` up to the end of the head, and forwards early hints. Returns the bytes behind the head; `None` if it is not
/// complete. `hinted` counts the bytes of early hints.
fn parse_head<C: Codec>(
    r: &mut Request,
    codec: &mut C,
    mut input: Bytes,
    request: &UpstreamRequest<'_, C>,
    hinted: &mut usize,
) -> Result<Option<Bytes>, UpstreamFailure> {
    loop {
        let event = codec.read(&mut input, &mut r.upstream.answer);
        let warnings = std::mem::take(&mut r.upstream.answer.warnings);
        log_warnings(r, warnings, AttemptStage::ReadingHead);
        match event? {
            Event::NeedMore => return Ok(None),
            Event::Interim => {
                if let Some(response) = request.response {
                    early_hints::forward(r, response, request.settings.buffer_size, hinted);
                }
            }
            Event::Head => return Ok(Some(input)),
            Event::Body(_) | Event::End => {
                debug_assert!(false, "a codec returns the head first");
                return Ok(None);
            }
        }
    }
}
