//! `js_periodic`: functions that are called in intervals, on behalf of nobody.
//!
//! ```text
//! start ─ jitter ─► call ─ interval + jitter ─► call …        the next call waits a little for the one before, and ends it then
//! ```

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tw_base::Rng;
use tw_conf::{ConfError, Node, Span, Word, units};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_log::Level;
use tw_request::plan::LocalFuture;
use tw_rt::Deadline;
use tw_script::{CallKind, Snapshot};

use crate::request_call::{Progress, ScriptFunction};
use crate::script_session::ScriptSession;
use crate::session_call::SessionCall;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Time of a call of `js_periodic`, if it runs into the time of the next one.
    const OVERLAP_MAX: Duration = Duration::from_secs(1), time, "the call is ended, and the next one begins";
}

/// Delay of the first call beside its jitter, as in nginx.
const FIRST_DELAY: Duration = Duration::from_millis(1);

/// `js_periodic` as written.
#[derive(Debug, Clone)]
pub(crate) struct RawPeriodic {
    pub(crate) function: Word,
    interval: Duration,
    jitter: Duration,
    /// `worker_affinity`, with its place.
    affinity: Option<(Affinity, Span)>,
}

/// Loops that call a function.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Affinity {
    All,
    /// One digit for each loop.
    Mask(Box<[bool]>),
}

/// `js_periodic`
#[derive(Clone)]
pub(crate) struct Periodic {
    pub(crate) function: Arc<str>,
    interval: Duration,
    jitter: Duration,
    /// Without one, the first loop calls the function.
    affinity: Option<Affinity>,
}

impl RawPeriodic {
    /// Reads the directive.
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        let function = node.arg(0)?.clone();
        let mut written =
            Self { function, interval: Duration::from_secs(5), jitter: Duration::ZERO, affinity: None };
        for word in node.args.iter().skip(1) {
            let invalid = || node.invalid_parameter(word);
            if let Some(value) = word.param("interval") {
                let interval = units::msec(value).filter(|interval| !interval.is_zero());
                written.interval = interval.ok_or_else(invalid)?;
            } else if let Some(value) = word.param("jitter") {
                written.jitter = units::msec(value).ok_or_else(invalid)?;
            } else if let Some(value) = word.param("worker_affinity") {
                written.affinity = Some((Affinity::read(node, value)?, word.span));
            } else {
                return Err(invalid());
            }
        }
        Ok(written)
    }

    /// Checks the directive against the number of loops.
    pub(crate) fn resolve<P: Protocol>(
        &self,
        function: Arc<str>,
        cx: &Resolve<'_, P>,
    ) -> Result<Periodic, ConfError> {
        if let Some((Affinity::Mask(mask), span)) = &self.affinity
            && mask.len() != cx.loops()
        {
            let message =
                "the number of \"worker_processes\" is not equal to the size of \"worker_affinity\" mask";
            return Err(ConfError::new(message).at(*span));
        }
        let affinity = self.affinity.as_ref().map(|(affinity, _)| affinity.clone());
        Ok(Periodic { function, interval: self.interval, jitter: self.jitter, affinity })
    }
}

impl Affinity {
    fn read(node: &Node, text: &[u8]) -> Result<Self, ConfError> {
        if text == b"all" {
            return Ok(Self::All);
        }
        let digit = |digit: &u8| match digit {
            b'0' => Ok(false),
            b'1' => Ok(true),
            other => {
                let other = char::from(*other);
                Err(node.fail(format!("invalid character \"{other}\" in \"worker_affinity=\"")))
            }
        };
        text.iter().map(digit).collect::<Result<_, _>>().map(Self::Mask)
    }
}

impl Periodic {
    /// Returns true if the loop of this number calls the function.
    pub(crate) fn runs_on(&self, event_loop: usize) -> bool {
        match &self.affinity {
            None => event_loop == 0,
            Some(Affinity::All) => true,
            Some(Affinity::Mask(mask)) => mask.get(event_loop).copied().unwrap_or_default(),
        }
    }

    fn jitter(&self, random: &mut Rng) -> Duration {
        match u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX) {
            0 => Duration::ZERO,
            most => Duration::from_millis(random.below(most)),
        }
    }

    /// Calls the function again and again. `begin` begins one call, and `report` reports one that was not over in time. Ends with the
    /// configuration, whose task it is.
    pub(crate) async fn run(
        &self,
        mut random: Rng,
        mut begin: impl FnMut() -> LocalFuture<'static, ()>,
        report: impl Fn(),
    ) {
        let mut timer = Deadline::new();
        let mut patience = Deadline::new();
        timer.set(FIRST_DELAY + self.jitter(&mut random));
        let mut running: Option<LocalFuture<'static, ()>> = None;
        loop {
            poll_fn(|cx| {
                // The next wait looks at its end.
                let _ = poll_running(&mut running, cx);
                timer.poll_elapsed(cx)
            })
            .await;
            // A busy machine is no reason to end a call that would be over soon.
            poll_fn(|cx| match poll_running(&mut running, cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => patience.poll_elapsed(cx),
            })
            .await;
            if running.take().is_some() {
                report();
            }
            timer.set(self.interval + self.jitter(&mut random));
            patience.set(OVERLAP_MAX);
            running = Some(begin());
        }
    }
}

/// Polls a call, and drops it at its end. Ready without one.
fn poll_running(running: &mut Option<LocalFuture<'static, ()>>, cx: &mut Context<'_>) -> Poll<()> {
    if let Some(call) = running {
        ready!(call.as_mut().poll(cx));
        *running = None;
    }
    Poll::Ready(())
}

/// Calls a function for `s`, which stands for nobody, until the call is over.
pub(crate) async fn call<S: ScriptSession>(s: &mut S, function: &ScriptFunction) {
    let call = SessionCall::start(s, function, CallKind::Periodic, Snapshot::None).await;
    // A failure was logged, and there is nobody else to tell.
    let Ok(mut call) = call else { return };
    while matches!(call.next(s).await, Ok(Progress::Effect(_) | Progress::Handled)) {}
}

/// Reports a call that was not over when the next one was due.
pub(crate) fn report_overrun<S: ScriptSession>(s: &S, function: &str) {
    s.log(
        Level::Error,
        format_args!("js periodic \"{function}\" is already running, killing previous instance"),
    );
}

/// Source of random numbers. Without random bytes of the system, all sources give the same.
pub(crate) fn random() -> Rng {
    let mut seed = [0; 8];
    // The kernel has random bytes once it has started, and does not wait for them here.
    let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::NONBLOCK);
    Rng::seeded(u64::from_ne_bytes(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn periodic(affinity: Option<Affinity>) -> Periodic {
        let (interval, jitter) = (Duration::from_secs(1), Duration::from_millis(10));
        Periodic { function: "main.f".into(), interval, jitter, affinity }
    }

    #[test]
    fn loops_are_those_of_the_mask() {
        for (affinity, expected) in [
            (None, [true, false, false]),
            (Some(Affinity::All), [true, true, true]),
            (Some(Affinity::Mask([false, true].into())), [false, true, false]),
        ] {
            assert_eq!([0, 1, 2].map(|event_loop| periodic(affinity.clone()).runs_on(event_loop)), expected);
        }
    }

    #[test]
    fn jitter_is_below_its_limit() {
        let mut random = Rng::seeded(1);
        let mut jitters = (0..1000).map(|_| periodic(None).jitter(&mut random));
        assert!(jitters.all(|jitter| jitter < Duration::from_millis(10)));
    }
}
