//! `njs.on('exit')` in stream: functions that a script has registered run at the end of the session, behind the log.

use std::cell::RefCell;
use std::rc::Rc;

use tw_core::session::Session;
use tw_script::CallKind;
use tw_stream::plan::{LocalFuture, SessionStep, StepDecision};
use tw_stream::session::StreamSession;

use crate::call_report::Failed;
use crate::held_contexts::HeldContexts;
use crate::request_call::{EXIT_HOOK, Progress, ScriptFunction};
use crate::session_call::SessionCall;
use crate::stream_session;

/// Scripts that want to be called at the end of one session.
#[derive(Default)]
struct ExitHooks(RefCell<Vec<ScriptFunction>>);

/// Notes that the script of `function` wants to be called at the end of the session.
pub(crate) fn add_hook(s: &mut StreamSession, function: &ScriptFunction) {
    let hooks = s.held_by_module::<ExitHooks>().unwrap_or_else(|| {
        let own = Rc::<ExitHooks>::default();
        s.hold(own.clone());
        own
    });
    let mut hooks = hooks.0.borrow_mut();
    if !hooks.iter().any(|known| known.set.id == function.set.id) {
        hooks.push(ScriptFunction { name: EXIT_HOOK.into(), ..function.clone() });
    }
}

/// Returns true if a script wants to be called at the end of the session.
fn has_hooks(s: &StreamSession) -> bool {
    s.held::<ExitHooks>().is_some_and(|hooks| !hooks.0.borrow().is_empty())
}

/// Step in front of the content that releases the contexts of a session which calls no function any more: script processes have few of them,
/// and sessions may last long.
pub(crate) struct ReleaseStep;

impl SessionStep for ReleaseStep {
    fn run<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, StepDecision> {
        if !s.server().plan.has_late_steps()
            && !has_hooks(s)
            && let Some(contexts) = s.held::<HeldContexts>()
        {
            contexts.release();
        }
        Box::pin(std::future::ready(StepDecision::Pass))
    }
}

/// Step at the end of a session that runs what scripts have registered.
pub(crate) struct ExitStep;

impl SessionStep for ExitStep {
    fn run<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, StepDecision> {
        Box::pin(async {
            let hooks = s.held_by_module::<ExitHooks>();
            for hook in hooks.into_iter().flat_map(|hooks| hooks.0.take()) {
                // A failure was logged, and there is nobody else to tell.
                let _ = exit(s, &hook).await;
            }
            StepDecision::Pass
        })
    }
}

async fn exit(s: &mut StreamSession, hook: &ScriptFunction) -> Result<(), Failed> {
    let snapshot = stream_session::snapshot(s);
    let mut call = SessionCall::start(s, hook, CallKind::Exit, snapshot).await?;
    // Effects come too late for the session.
    while !matches!(call.next(s).await?, Progress::Done(_)) {}
    Ok(())
}
