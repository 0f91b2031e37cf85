//! `js_filter`: a function changes the bytes of a session, in both directions.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tw_connect::relay::RelaySide;
use tw_script::{CallKind, Effect};
use tw_stream::plan::{FilterEvent, FilterPiece, LocalFuture, RunningFilter, SessionFilter};
use tw_stream::session::{SessionStatus, StreamSession};

use crate::call_report::Failed;
use crate::request_call::{Progress, ScriptFunction};
use crate::session_call::SessionCall;
use crate::session_exit;
use crate::stream_session;

/// Filter of the sessions of a server.
pub(crate) struct ScriptFilter(pub(crate) ScriptFunction);

/// Filter of one session.
struct ScriptSessionFilter {
    call: SessionCall,
    function: ScriptFunction,
    interest: Interest,
}

/// Sides whose pieces the function wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interest {
    /// The function may not have run yet.
    Unknown,
    Known {
        from_client: bool,
        from_server: bool,
    },
}

impl SessionFilter for ScriptFilter {
    fn begin<'a>(
        &'a self,
        s: &'a mut StreamSession,
    ) -> LocalFuture<'a, Result<Box<dyn RunningFilter>, SessionStatus>> {
        Box::pin(async {
            let snapshot = stream_session::snapshot(s);
            let call = SessionCall::start(s, &self.0, CallKind::StreamFilter, snapshot);
            let call = call.await.map_err(status)?;
            Ok(Box::new(ScriptSessionFilter { call, function: self.0.clone(), interest: Interest::Unknown })
                as Box<dyn RunningFilter>)
        })
    }
}

fn status(Failed { status }: Failed) -> SessionStatus {
    SessionStatus(status)
}

impl RunningFilter for ScriptSessionFilter {
    fn wants(&self, from: RelaySide) -> bool {
        match (self.interest, from) {
            // The script process sends back what the function does not want.
            (Interest::Unknown, _) => true,
            (Interest::Known { from_client, .. }, RelaySide::Client) => from_client,
            (Interest::Known { from_server, .. }, RelaySide::Server) => from_server,
        }
    }

    fn push(&mut self, s: &StreamSession, from: RelaySide, piece: &FilterPiece) -> Result<(), SessionStatus> {
        self.call.send_event(s, &piece.data, piece.is_last, from == RelaySide::Client).map_err(status)
    }

    fn poll_event(
        &mut self,
        s: &mut StreamSession,
        cx: &mut Context<'_>,
    ) -> Poll<Result<FilterEvent, SessionStatus>> {
        loop {
            match ready!(self.call.poll_next(s, cx)).map_err(status)? {
                Progress::Effect(Effect::StreamSend { data, from_client, .. }) => {
                    let to = if from_client { RelaySide::Server } else { RelaySide::Client };
                    let data = Bytes::from(data.into_vec());
                    return Poll::Ready(Ok(FilterEvent::Send { to, data }));
                }
                Progress::Effect(Effect::Subscribe { from_client, from_upstream }) => {
                    self.interest = Interest::Known { from_client, from_server: from_upstream };
                }
                Progress::Effect(Effect::ExitHook) => session_exit::add_hook(s, &self.function),
                // Other effects belong to other kinds of calls.
                Progress::Effect(_) => {}
                Progress::Handled => {
                    if self.interest == Interest::Unknown {
                        self.interest = Interest::Known { from_client: false, from_server: false };
                    }
                    return Poll::Ready(Ok(FilterEvent::Handled));
                }
                Progress::Done(_) => return Poll::Ready(Ok(FilterEvent::Ended)),
            }
        }
    }
}
