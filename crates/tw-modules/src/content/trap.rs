//! `trap`: causes faults on purpose, for tests of their handling. Only with debug assertions. Content phase.
//!
//! A directive, because tests are written as configurations; and a module of its own, so that a release does not
//! contain it.

use std::io;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use tw_base::FatalMutex;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::module::Settings;
use tw_request::body::{Body, Pull};
use tw_request::plan::{Handler, LocalFuture, Outcome, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::request_body::{self, BodyLimits, Source};
use tw_rt::watch;

/// State that all loops share.
static SHARED: FatalMutex<u64> = FatalMutex::new(0);

/// Fault to cause.
#[derive(Clone, Copy)]
enum Fault {
    /// A request panics.
    Panic,
    /// A request panics while it changes state shared by all loops.
    Break,
    /// A request panics while it changes state shared by the requests of its loop.
    Tear,
    /// A request runs and does not end.
    Spin,
    /// A request waits in the kernel for ever.
    Wait,
    /// No fault: the response is the body of the request, while that is still being received.
    Echo,
}

/// `trap` as written.
#[derive(Default)]
pub(crate) struct Raw {
    failure: Setting<Fault>,
}

/// `trap` of one location.
pub(crate) struct Trap {
    failure: Option<Fault>,
}

impl Settings<Http> for Trap {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("trap", "panic | break | tear | spin | wait | echo", LOCATION, Args::exact(1))
            .doc("Goes wrong on purpose.")
            .set(|raw, node, _| {
                let faults = [
                    ("panic", Fault::Panic),
                    ("break", Fault::Break),
                    ("tear", Fault::Tear),
                    ("spin", Fault::Spin),
                    ("wait", Fault::Wait),
                    ("echo", Fault::Echo),
                ];
                raw.failure.set_one_of(node, &faults)
            })];

    fn resolve(raw: Raw, _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { failure: raw.failure.take() })
    }

    fn are_shared(&self) -> bool {
        self.failure.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.failure.is_some() {
            plan.set_content(self.clone());
        }
    }
}

impl Handler for Trap {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        match self.failure {
            None => {}
            Some(Fault::Panic) => panics(),
            Some(Fault::Break) => breaks(),
            Some(Fault::Tear) => tears(r),
            Some(Fault::Spin) => watch::operation("trap", spins),
            Some(Fault::Wait) => watch::operation("trap", waits),
            Some(Fault::Echo) => {
                let echo = Echo { terms: r.body_limits(), source: r.body.take() };
                return Step::Now(Outcome::Respond(Body::Pull(Box::new(echo))));
            }
        }
        Step::status(204)
    }
}

/// The body of a request as a response.
struct Echo {
    source: Source,
    terms: BodyLimits,
}

impl Pull for Echo {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            let piece = self.source.next(want, self.terms).await;
            if !matches!(piece, Ok(Some(_))) {
                r.body.give_back(std::mem::take(&mut self.source));
            }
            piece
                .map_err(|error| io::Error::other(format!("status {}", request_body::read::failed(r, error))))
        })
    }

    fn flushes(&self) -> bool {
        true
    }
}

#[inline(never)]
fn panics() {
    panic!("the trap was sprung");
}

#[inline(never)]
fn breaks() {
    let mut shared = SHARED.lock();
    *shared += 1;
    panic!("the trap was sprung {} times", *shared);
}

#[inline(never)]
fn tears(r: &Request) {
    let files = r.client().event_loop.files.borrow_mut();
    panic!("the trap was sprung with {} files", files.len());
}

#[inline(never)]
fn spins() {
    loop {
        std::hint::spin_loop();
    }
}

#[inline(never)]
fn waits() {
    loop {
        thread::park();
    }
}
