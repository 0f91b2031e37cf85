//! `js_access` and `js_preread` of stream: a function decides whether a session may go on.
//!
//! ```text
//! call ─► s.on('upload') ─► bytes of the client that were read ─► function ─► more bytes … ─► s.done()
//! ```
//! The function sees all bytes that were read so far each time, first at once; they stay for the content of the session.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tw_core::session::Session;
use tw_log::Level;
use tw_script::{CallKind, Effect};
use tw_stream::plan::{LocalFuture, SessionStep, StepDecision};
use tw_stream::preread::{self, PrereadTime};
use tw_stream::session::{SessionStatus, StreamSession};

use crate::call_report::Failed;
use crate::request_call::{Progress, ScriptFunction};
use crate::session_call::SessionCall;
use crate::session_exit;
use crate::stream_session;

/// Code of `s.decline()`.
const DECLINED: i32 = -5;

/// Step of a phase that a function decides.
pub(crate) struct ScriptStep {
    pub(crate) function: ScriptFunction,
    /// `StreamAccess` or `StreamPreread`.
    pub(crate) kind: CallKind,
}

/// State of the call of one session.
#[derive(Default)]
struct PhaseCall {
    /// Code of `s.done()` and its aliases.
    code: Option<i32>,
    is_subscribed: bool,
    /// True if the function has to see the bytes that were read.
    has_news: bool,
    /// True while the function looks at bytes.
    is_busy: bool,
}

/// Reason why a phase goes on.
enum Woken {
    Called(Result<Progress, Failed>),
    Readable(Result<(), SessionStatus>),
}

impl SessionStep for ScriptStep {
    fn run<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, StepDecision> {
        Box::pin(async { self.decide(s).await.unwrap_or_else(StepDecision::End) })
    }
}

impl ScriptStep {
    async fn decide(&self, s: &mut StreamSession) -> Result<StepDecision, SessionStatus> {
        let failed = |Failed { status }| SessionStatus(status);
        let snapshot = stream_session::snapshot(s);
        let call = SessionCall::start(s, &self.function, self.kind, snapshot);
        let mut call = call.await.map_err(failed)?;
        let time = PrereadTime::start(s);
        let mut state = PhaseCall::default();
        loop {
            if state.has_news && !state.is_busy {
                let read = s.preread.clone();
                call.send_event(s, &read, false, true).map_err(failed)?;
                (state.has_news, state.is_busy) = (false, true);
            }
            match wait(s, &mut call, &time, state.wants_bytes()).await {
                Woken::Called(progress) => match progress.map_err(failed)? {
                    Progress::Effect(Effect::ExitHook) => session_exit::add_hook(s, &self.function),
                    Progress::Effect(effect) => state.apply(&effect),
                    Progress::Handled => state.is_busy = false,
                    Progress::Done(_) => return Ok(self.decision(s, state.code)),
                },
                Woken::Readable(ready) => {
                    ready?;
                    let max = s.server().settings.preread_buffer_size;
                    state.has_news = preread::read(s, max)?;
                }
            }
        }
    }

    fn decision(&self, s: &StreamSession, code: Option<i32>) -> StepDecision {
        match code {
            Some(0) => StepDecision::PhaseDone,
            Some(DECLINED) => StepDecision::Pass,
            Some(code) => {
                let status = u16::try_from(code).map_or(SessionStatus::INTERNAL_SERVER_ERROR, SessionStatus);
                StepDecision::End(status)
            }
            None => {
                let function = &self.function.name;
                s.log(Level::Error, format_args!("js: \"{function}\" has decided nothing"));
                StepDecision::End(SessionStatus::INTERNAL_SERVER_ERROR)
            }
        }
    }
}

impl PhaseCall {
    /// Returns true if the function waits for bytes of the client.
    fn wants_bytes(&self) -> bool {
        self.is_subscribed && !self.is_busy && !self.has_news && self.code.is_none()
    }

    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Subscribe { from_client, .. } => {
                self.has_news |= *from_client && !self.is_subscribed;
                self.is_subscribed = *from_client;
            }
            Effect::StreamDone { code } => self.code = Some(*code),
            // Other effects belong to other kinds of calls.
            _ => {}
        }
    }
}

/// Waits for the function, and for bytes of the client if it wants some. Of a session over datagrams, all of them are there.
async fn wait(s: &mut StreamSession, call: &mut SessionCall, time: &PrereadTime, wants_bytes: bool) -> Woken {
    let client = s.client.clone();
    let transport = s.transport.connection().cloned();
    let mut readable = pin!(async {
        match transport {
            _ if !wants_bytes => pending().await,
            Some(transport) => time.readable(&client, &transport).await,
            None => Ok(()),
        }
    });
    poll_fn(|cx| {
        if let Poll::Ready(progress) = call.poll_next(s, cx) {
            return Poll::Ready(Woken::Called(progress));
        }
        readable.as_mut().poll(cx).map(Woken::Readable)
    })
    .await
}
