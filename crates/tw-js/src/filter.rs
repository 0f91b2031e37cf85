//! `js_header_filter` and `js_body_filter`: functions change the head and the body of a response, before all other filters.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use tw_request::body::{AlreadyLogged, Body, Pull};
use tw_request::plan::{LocalFuture, ResponseStep};
use tw_request::request::{Ranges, Request};
use tw_script::{CallKind, Effect};

use crate::request_call::{Failed, Progress, RequestCall, ScriptFunction};
use crate::snapshot;

/// Filters of one location.
pub(crate) struct ResponseFilter {
    pub(crate) header: Option<ScriptFunction>,
    /// The function and the kind of its calls.
    pub(crate) body: Option<(ScriptFunction, CallKind)>,
}

/// Body that a function changes.
struct FilteredBody {
    /// `None` if it could not be started, which was logged.
    call: Option<RequestCall>,
    /// Set if the last bytes of the body come with the mark of the end. As in nginx, a body of an upstream server ends with an empty piece.
    ends_with_bytes: bool,
    function: ScriptFunction,
    kind: CallKind,
    body: Body,
    /// Pieces that the function has sent.
    ready: VecDeque<Bytes>,
    state: FilterState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FilterState {
    /// The function sees the pieces.
    Filtering,
    /// The function has said that it is done: pieces pass.
    Passing,
    /// The last piece was sent.
    Ended,
}

impl ResponseStep for ResponseFilter {
    fn run<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>> {
        Box::pin(async move {
            if let Body::Upgraded(_) = body {
                return Ok(body);
            }
            // The length that the body has is known only here, and the function may remove it.
            let had_length = body.len();
            if let Some(function) = &self.header {
                r.response.content_length = had_length;
                self.filter_head(r, function).await.map_err(|Failed { status }| status)?;
            }
            let Some((function, kind)) = &self.body else {
                let is_length_removed = self.header.is_some() && r.response.content_length.is_none();
                return Ok(if is_length_removed && had_length != Some(0) {
                    without_length(body)
                } else {
                    body
                });
            };
            // The length and parts of a body that a function makes are not known.
            r.state.ranges = Ranges::Refused;
            r.response.content_length = None;
            Ok(Body::Pull(Box::new(FilteredBody {
                call: None,
                ends_with_bytes: r.upstream.attempts.is_empty()
                    && matches!(body, Body::Empty | Body::Bytes(_) | Body::File(_)),
                function: function.clone(),
                kind: *kind,
                body,
                ready: VecDeque::new(),
                state: FilterState::Filtering,
            })))
        })
    }
}

impl ResponseFilter {
    async fn filter_head(&self, r: &mut Request, function: &ScriptFunction) -> Result<(), Failed> {
        let status = r.state.error_status.unwrap_or(r.response.status);
        let head = snapshot::response_head(r, status);
        let snapshot = snapshot::of_request(r, Some(head));
        let mut call = RequestCall::start(r, function, CallKind::HeaderFilter, snapshot).await?;
        while !matches!(call.next(r).await?, Progress::Done(_)) {}
        Ok(())
    }
}

/// A body whose length is not announced.
fn without_length(body: Body) -> Body {
    struct Unannounced(Body);

    impl Pull for Unannounced {
        fn next<'a>(
            &'a mut self,
            want: usize,
            r: &'a mut Request,
        ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
            self.0.next(want, r)
        }

        fn flushes(&self) -> bool {
            self.0.flushes()
        }
    }

    Body::Pull(Box::new(Unannounced(body)))
}

impl FilteredBody {
    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            match self.state {
                FilterState::Ended => return Ok(None),
                FilterState::Passing => return self.body.next(want, r).await,
                FilterState::Filtering => {}
            }
            let piece = self.body.next(want, r).await?;
            if piece.as_ref().is_some_and(Bytes::is_empty) {
                return Ok(piece);
            }
            let is_last = piece.is_none() || self.ends_with_bytes && self.body.is_empty();
            let data = piece.unwrap_or_default();
            self.filter(r, &data, is_last).await.map_err(|_| io::Error::other(AlreadyLogged))?;
            if is_last {
                self.state = FilterState::Ended;
            }
        }
    }

    /// Has the function see a piece, and takes what it sends.
    async fn filter(&mut self, r: &mut Request, data: &[u8], is_last: bool) -> Result<(), Failed> {
        if self.call.is_none() {
            let status = r.state.error_status.unwrap_or(r.response.status);
            let head = snapshot::response_head(r, status);
            let snapshot = snapshot::of_request(r, Some(head));
            self.call = Some(RequestCall::start(r, &self.function, self.kind, snapshot).await?);
        }
        let Some(call) = &mut self.call else { return Ok(()) };
        call.send_event(r, data, is_last)?;
        loop {
            match call.next(r).await? {
                Progress::Effect(Effect::SendBuffer { data, .. }) if !data.is_empty() => {
                    self.ready.push_back(data.into_vec().into());
                }
                Progress::Effect(Effect::FilterDone) => self.state = FilterState::Passing,
                Progress::Effect(_) => {}
                Progress::Handled => break,
                Progress::Done(_) => {
                    self.state = FilterState::Passing;
                    break;
                }
            }
        }
        if self.state == FilterState::Passing {
            // The function sees no further piece.
            self.call = None;
        }
        Ok(())
    }
}

impl Pull for FilteredBody {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.piece(want, r))
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }
}
