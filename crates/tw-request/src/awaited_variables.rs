//! Steps of a plan that give awaited variables their values, before a handler, a filter or the log reads them.

use tw_core::vars::AwaitVariable;

use crate::body::Body;
use crate::plan::{AccessPurpose, Handler, LocalFuture, LogStep, Outcome, ResponseStep, Step};
use crate::request::Request;

/// Computes awaited variables.
#[derive(Clone)]
pub(crate) struct AwaitedVariables(pub(crate) Box<[AwaitVariable<Request>]>);

impl AwaitedVariables {
    async fn compute(&self, r: &mut Request) {
        for compute in &self.0 {
            compute(r).await;
        }
    }
}

impl Handler for AwaitedVariables {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Wait(Box::pin(async {
            self.compute(r).await;
            Outcome::Pass
        }))
    }

    // The handler only computes variables, and lets nobody in.
    fn access_purpose(&self) -> AccessPurpose {
        AccessPurpose::Protection
    }
}

impl ResponseStep for AwaitedVariables {
    fn run<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>> {
        Box::pin(async {
            self.compute(r).await;
            Ok(body)
        })
    }
}

impl LogStep for AwaitedVariables {
    fn run<'a>(&'a self, r: &'a mut Request) -> LocalFuture<'a, ()> {
        Box::pin(self.compute(r))
    }
}
