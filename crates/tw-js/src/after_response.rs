//! Work of scripts that follows the response, before the access log is written: functions that have answered and go on, and then the
//! functions of `njs.on('exit')`.

use std::cell::RefCell;
use std::rc::Rc;

use tw_request::plan::{LocalFuture, LogStep};
use tw_request::request::Request;
use tw_script::CallKind;

use crate::request_call::{Failed, Progress, RequestCall, ScriptFunction};
use crate::request_scripts::RequestScripts;
use crate::snapshot;

/// Calls of one request that have answered and go on.
#[derive(Default)]
struct AnsweredCalls(RefCell<Vec<RequestCall>>);

/// Lets a call go on behind the response of its request, which is that of a client.
pub(crate) fn continue_later(r: &mut Request, call: RequestCall) {
    let calls = r.extensions.get::<AnsweredCalls>().unwrap_or_else(|| {
        let calls = Rc::<AnsweredCalls>::default();
        r.extensions.put(calls.clone());
        calls
    });
    calls.0.borrow_mut().push(call);
}

/// Runs what is left.
pub(crate) struct AfterResponse;

impl LogStep for AfterResponse {
    fn run<'a>(&'a self, r: &'a mut Request) -> LocalFuture<'a, ()> {
        Box::pin(async {
            if r.extensions.get::<RequestScripts>().is_none() {
                return;
            }
            // A failure was logged, and there is nobody else to tell.
            let calls = r.extensions.get::<AnsweredCalls>();
            for mut call in calls.into_iter().flat_map(|calls| calls.0.take()) {
                let _ = finish(r, &mut call).await;
            }
            for hook in RequestScripts::of(r).take_exit_hooks() {
                let _ = exit(r, &hook).await;
            }
        })
    }
}

async fn exit(r: &mut Request, hook: &ScriptFunction) -> Result<(), Failed> {
    let snapshot = snapshot::of_request(r, None);
    let mut call = RequestCall::start(r, hook, CallKind::Exit, snapshot).await?;
    finish(r, &mut call).await
}

/// Lets a call run to its end. Effects come too late for the response.
async fn finish(r: &mut Request, call: &mut RequestCall) -> Result<(), Failed> {
    while !matches!(call.next(r).await?, Progress::Done(_)) {}
    Ok(())
}
