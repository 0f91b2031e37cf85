//! `js_periodic` of stream: one function of a server.

use std::sync::Arc;

use tw_stream::plan::{BackgroundTask, LocalFuture};
use tw_stream::session::StreamSession;

use crate::periodic::{self, Periodic};
use crate::request_call::ScriptFunction;

/// Task that calls a function.
pub(crate) struct ServerPeriodic {
    pub(crate) periodic: Periodic,
    pub(crate) function: ScriptFunction,
}

impl BackgroundTask for ServerPeriodic {
    fn runs_on(&self, event_loop: usize) -> bool {
        self.periodic.runs_on(event_loop)
    }

    fn run(self: Arc<Self>, session: Box<dyn Fn() -> StreamSession>) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let begin = || {
                let mut s = session();
                let function = self.function.clone();
                Box::pin(async move { periodic::call(&mut s, &function).await }) as LocalFuture<'static, ()>
            };
            let report = || periodic::report_overrun(&session(), &self.function.name);
            self.periodic.run(periodic::random(), begin, report).await;
        })
    }
}
