//! Filters of the bytes of sessions (`js_filter`): pieces of either side go through the filter, which may send others in their place, and at any
//! time.
//!
//! ```text
//! client ─ piece ─► push ─► filter ─► Send ─► server          server ─ piece ─► push ─► filter ─► Send ─► client
//!                             └─► Handled: the next piece may follow
//! ```

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tw_connect::relay::RelaySide;
use tw_core::session::Session;
use tw_log::Level;

use crate::plan::{FilterEvent, FilterPiece, RunningFilter};
use crate::session::{SendFailure, StreamSession};
use crate::status::SessionStatus;

tw_base::limits! {
    /// Limits of filters.
    pub(crate) const LIMITS;

    /// Bytes that a filter has sent to one side of a session and that the side has not taken.
    const OUTPUT_MAX: usize = 16 << 20, bytes, "the session ends with status 500";
    /// Bytes of these from which on the filter gets no further pieces.
    pub(crate) const OUTPUT_KEPT_MAX: usize = 64 << 10, bytes, "the side that sends has to wait";
}

/// Filter of one session with the pieces that it has not seen yet.
pub(crate) struct FilterQueue {
    filter: Option<Box<dyn RunningFilter>>,
    /// Pieces that were pushed, and the side of each.
    pushed: VecDeque<(RelaySide, FilterPiece)>,
}

/// Effect of an event on a side.
pub(crate) enum FilterOutput {
    /// Bytes for this side.
    Bytes(RelaySide, Bytes),
    /// This side has ended, and the filter has seen all that came from it.
    End(RelaySide),
}

impl FilterQueue {
    /// Begins to filter the bytes of `s`; without a filter, all of them pass.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(crate) async fn begin(s: &mut StreamSession) -> Result<Option<Self>, SessionStatus> {
        let client = s.client.clone();
        match &client.server().plan.filter {
            None => Ok(None),
            Some(filter) => Ok(Some(Self { filter: Some(filter.begin(s).await?), pushed: VecDeque::new() })),
        }
    }

    /// Returns true if the filter has to see the pieces of a side.
    pub(crate) fn wants(&self, from: RelaySide) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.wants(from))
    }

    /// Returns true if the filter has not seen a piece of this side yet.
    pub(crate) fn is_busy(&self, side: RelaySide) -> bool {
        self.pushed.iter().any(|(pushed, _)| *pushed == side)
    }

    /// Gives a piece to the filter.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(crate) fn push(
        &mut self,
        s: &StreamSession,
        from: RelaySide,
        piece: FilterPiece,
    ) -> Result<(), SessionStatus> {
        if let Some(filter) = &mut self.filter {
            filter.push(s, from, &piece)?;
        }
        self.pushed.push_back((from, piece));
        Ok(())
    }

    /// Takes the events that are there, and hands what comes of them to `take`.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(crate) fn poll(
        &mut self,
        s: &mut StreamSession,
        cx: &mut Context<'_>,
        mut take: impl FnMut(FilterOutput),
    ) -> Result<(), SessionStatus> {
        while let Some(filter) = &mut self.filter {
            let Poll::Ready(event) = filter.poll_event(s, cx) else { return Ok(()) };
            match event? {
                FilterEvent::Send { to, data } => take(FilterOutput::Bytes(to, data)),
                FilterEvent::Handled => {
                    if let Some((side, FilterPiece { is_last: true, .. })) = self.pushed.pop_front() {
                        take(FilterOutput::End(side));
                    }
                }
                FilterEvent::Ended => {
                    self.filter = None;
                    for (side, piece) in self.pushed.drain(..) {
                        take(FilterOutput::Bytes(side.other(), piece.data));
                        if piece.is_last {
                            take(FilterOutput::End(side));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Checks the bytes that wait for a side.
///
/// # Errors
/// The filter has sent too many of them.
pub(crate) fn check_output(s: &StreamSession, waiting: usize) -> Result<(), SessionStatus> {
    if waiting <= OUTPUT_MAX {
        return Ok(());
    }
    s.log(
        Level::Error,
        format_args!("the filter of the session has sent {waiting} bytes that were not taken yet"),
    );
    Err(SessionStatus::INTERNAL_SERVER_ERROR)
}

/// Reason why a text could not be sent to a client.
#[derive(Debug)]
pub enum FilteredSendFailure {
    /// The text could not be sent.
    Send(SendFailure),
    /// The filter has ended the session, which was logged.
    Filter(SessionStatus),
}

/// Sends a text to the client as the whole answer, by way of the filter of the server.
///
/// # Errors
/// The text could not be sent, or the filter has ended the session.
pub async fn send(
    s: &mut StreamSession,
    text: Vec<u8>,
    timeout: Duration,
) -> Result<(), FilteredSendFailure> {
    let failed = FilteredSendFailure::Filter;
    let mut outputs = vec![Bytes::from(text)];
    if let Some(mut queue) = FilterQueue::begin(s).await.map_err(failed)? {
        let data = outputs.pop().unwrap_or_default();
        outputs = filter_answer(s, &mut queue, data).await.map_err(failed)?;
    }
    for output in outputs {
        s.send(&output, timeout).await.map_err(FilteredSendFailure::Send)?;
    }
    Ok(())
}

/// Has a filter see an answer, and returns what it sends to the client until it has.
async fn filter_answer(
    s: &mut StreamSession,
    queue: &mut FilterQueue,
    data: Bytes,
) -> Result<Vec<Bytes>, SessionStatus> {
    let mut outputs = Vec::new();
    let mut waiting = 0;
    queue.push(s, RelaySide::Server, FilterPiece { data, is_last: true })?;
    std::future::poll_fn(|cx| {
        let polled = queue.poll(s, cx, |output| {
            if let FilterOutput::Bytes(RelaySide::Client, data) = output {
                waiting += data.len();
                outputs.push(data);
            }
        });
        match polled.and_then(|()| check_output(s, waiting)) {
            Ok(()) if queue.is_busy(RelaySide::Server) => Poll::Pending,
            result => Poll::Ready(result),
        }
    })
    .await?;
    Ok(outputs)
}
