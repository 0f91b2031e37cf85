//! `overload`: refuses a part of the requests while an event loop has more to do than it can (nginx has no counterpart). Preaccess
//! phase.
//!
//! The measure is the queue time of a loop: the time from the moment at which a connection is ready until the loop turns to it. A task of
//! each loop samples it by the delay of its own timer. A queue that was long at any moment says little, since a burst is served a moment
//! later; a queue that was never short for a whole interval is one that only grows. So the smallest sample of an interval decides, as in
//! CoDel (RFC 8289), and the part that is refused grows in each interval that is too slow, and falls in the others.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tw_base::{Counter, Limit};
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record, units};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::VarDef;
use tw_log::Level;
use tw_module_support::refusal;
use tw_request::plan::Plan;
use tw_request::protocol::Http;
use tw_request::request::Request;
use tw_rt::clock;
use tw_server::http::BackgroundTask;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Time between two samples of a queue time, and the number of samples of an interval of 100 ms, as in RFC 8289.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
const SAMPLES: u32 = 10;
/// Smallest `delay`: timers of a loop are exact to a millisecond or two.
const DELAY_MIN: Duration = Duration::from_millis(5);
/// Requests of which a part is refused: the unit of [`LoopLoad::refused`].
const PARTS: u32 = 1_024;
/// Largest part that is refused. Some requests always pass, so that their clients learn first that it is over.
const REFUSED_MAX: u32 = PARTS * 19 / 20;
/// Seconds until a refused client may try again. An overload that begins to be refused is over within an interval or two.
const RETRY_AFTER: u32 = 1;
/// Variable with the decision about a request.
const STATUS: &str = "overload_status";

/// `overload` as written.
#[derive(Default)]
pub(crate) struct Raw {
    threshold: Setting<Option<Threshold>>,
}

/// Parameters of `overload`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Threshold {
    delay: Duration,
    status: u16,
}

/// `overload` of one block.
pub(crate) struct Overload {
    limit: Option<(Threshold, Arc<Load>)>,
    slot: u16,
}

/// Loads of all loops against one queue time.
struct Load {
    delay: Duration,
    /// One for each loop, made by the first task.
    loops: OnceLock<Box<[LoopLoad]>>,
    refusals: Arc<Refusals>,
}

/// Refused requests of one queue time. They outlive configurations.
#[derive(Default)]
struct Refusals(Counter);

/// Load of one loop; only that loop writes it.
#[derive(Default)]
struct LoopLoad {
    /// Smallest queue time of the last interval, in milliseconds.
    queue_ms: AtomicU32,
    /// Requests to refuse, of [`PARTS`].
    refused: AtomicU32,
    /// Parts of the next refusal that requests have added up.
    due: AtomicU32,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Time that ready connections wait for their event loop.
    parameter "overload", "delay=", "none", "a part of the requests is refused with 503";
}

impl Settings<Http> for Overload {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("overload", "delay=time [status=code] | off", ALL, Args::range(1, 2))
            .default("off")
            .since("Tailwater 0.2")
            .doc("Refuses a part of the requests while connections that are ready wait for their event loop longer than this time: with 503, or another status from 400 to 599.")
            .set(|raw, node, _| raw.threshold.set_with(node, read))];

    const VARIABLES: &'static [VarDef<Request>] = &[VarDef::stored(
        STATUS,
        "What overload decided: PASSED or REJECTED; nothing while no loop is overloaded.",
    )];

    const METRICS: &'static [Metric] = &[
        Metric {
            name: "overload_refused_total",
            kind: MetricKind::Counter,
            labels: &["delay"],
            doc: "Requests that overload refused, by its delay in milliseconds.",
            read: |scrape, out| {
                for load in scrape.shared_objects::<Load>() {
                    out.value(&[&load.delay.as_millis().to_string()], load.refusals.0.value());
                }
            },
        },
        Metric {
            name: "overload_refused_percent",
            kind: MetricKind::Gauge,
            labels: &["delay", "worker"],
            doc: "Part of the requests that a loop refuses now.",
            read: |scrape, out| {
                each_loop(scrape, out, |load| u64::from(load.refused.load(Relaxed) * 100 / PARTS));
            },
        },
        Metric {
            name: "overload_queue_ms",
            kind: MetricKind::Gauge,
            labels: &["delay", "worker"],
            doc: "Smallest time in the last 100 ms that ready connections have waited for their loop, in milliseconds.",
            read: |scrape, out| each_loop(scrape, out, |load| load.queue_ms.load(Relaxed).into()),
        },
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Http>) -> Result<Self, ConfError> {
        let slot = cx.slot(STATUS);
        let limit = match raw.threshold.take() {
            None => outer.and_then(|outer| outer.limit.clone()),
            Some(None) => None,
            Some(Some(threshold)) => Some((threshold, Load::declare(threshold.delay, cx))),
        };
        Ok(Self { limit, slot })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.limit.is_some() {
            plan.add_access_check(AccessStage::Limits, self.clone());
        }
    }
}

/// Reads `overload`.
fn read(node: &Node) -> Result<Option<Threshold>, ConfError> {
    let mut delay = None;
    let mut status = 503;
    for word in &node.args {
        if *word.bytes == *b"off" && node.args.len() == 1 {
            return Ok(None);
        }
        if let Some(value) = word.param("delay") {
            let time = units::msec(value).filter(|time| *time >= DELAY_MIN);
            delay = Some(time.ok_or_else(|| {
                node.invalid_parameter(word)
                    .hint(format!("the smallest delay is {} ms", DELAY_MIN.as_millis()))
            })?);
        } else if let Some(value) = word.param("status") {
            status = match units::number(value) {
                Some(code @ 400..=599) => code as u16,
                _ => return Err(node.invalid_parameter(word)),
            };
        } else {
            return Err(node.invalid_parameter(word));
        }
    }
    let delay = delay.ok_or_else(|| node.error("must have \"delay\" parameter"))?;
    Ok(Some(Threshold { delay, status }))
}

/// A value of each loop, with its labels.
fn each_loop(scrape: &Scrape<'_>, out: &mut Samples<'_>, value: impl Fn(&LoopLoad) -> u64) {
    for load in scrape.shared_objects::<Load>() {
        let delay = load.delay.as_millis().to_string();
        for (index, of_loop) in load.loops.get().into_iter().flatten().enumerate() {
            out.value(&[&delay, &index.to_string()], value(of_loop));
        }
    }
}

impl Load {
    /// The load that all blocks with this `delay` share, and the tasks that measure it.
    fn declare(delay: Duration, cx: &mut Resolve<'_, Http>) -> Arc<Self> {
        let name = format!("overload {}", delay.as_millis());
        let refusals = cx.keep(name.as_bytes(), |_| true, Refusals::default);
        // The number of loops may be another one in each configuration.
        let make = || Self { delay, loops: OnceLock::new(), refusals };
        let load = cx.keep(name.as_bytes(), |_| false, make);
        let measured = load.clone();
        let task = || {
            BackgroundTask::on_every_loop(move |event_loop| {
                let load = measured.clone();
                let index = event_loop.index;
                let count = event_loop.generation().process.main.worker_count().max(index + 1);
                Box::pin(async move { load.measure(index, count).await })
            })
        };
        cx.keep(name.as_bytes(), |_| false, task);
        load
    }

    /// Measures the queue time of one of `count` loops, as long as the configuration is used.
    async fn measure(&self, index: usize, count: usize) {
        let loops = self.loops.get_or_init(|| (0..count).map(|_| LoopLoad::default()).collect());
        let Some(of_loop) = loops.get(index) else { return };
        loop {
            let mut smallest = Duration::MAX;
            for _ in 0..SAMPLES {
                let due = clock::precise() + SAMPLE_EVERY;
                tw_rt::time::sleep(SAMPLE_EVERY).await;
                smallest = smallest.min(clock::precise().saturating_duration_since(due));
            }
            of_loop.end_interval(smallest, self.delay);
        }
    }
}

impl LoopLoad {
    /// Ends an interval with this smallest queue time. The part that is refused grows by a quarter of what is left, and falls by an
    /// eighth: it reaches its end in a second or two, and does not swing between all and nothing.
    fn end_interval(&self, smallest: Duration, delay: Duration) {
        self.queue_ms.store(u32::try_from(smallest.as_millis()).unwrap_or(u32::MAX), Relaxed);
        let refused = self.refused.load(Relaxed);
        let refused = if smallest > delay {
            (refused + (PARTS - refused) / 4).min(REFUSED_MAX)
        } else {
            // The last step is one to zero.
            refused - refused.div_ceil(8)
        };
        self.refused.store(refused, Relaxed);
    }

    /// Decides about the next request: of each [`PARTS`] requests as many are refused as `refused` says, evenly.
    fn refuses_next(&self) -> bool {
        let due = self.due.load(Relaxed) + self.refused.load(Relaxed);
        self.due.store(due % PARTS, Relaxed);
        due >= PARTS
    }
}

impl AccessCheck<Request> for Overload {
    fn check(&self, r: &mut Request) -> AccessDecision {
        let Some((Threshold { status, .. }, load)) = &self.limit else { return AccessDecision::Pass };
        let index = r.client().event_loop.index;
        let Some(of_loop) = load.loops.get().and_then(|loops| loops.get(index)) else {
            return AccessDecision::Pass;
        };
        if of_loop.refused.load(Relaxed) == 0 {
            return AccessDecision::Pass;
        }
        // A request that was refused may have a page in another location.
        match refusal::decide_once(r, self.slot, |_, _| of_loop.refuses_next()) {
            None => AccessDecision::Pass,
            Some(false) => {
                r.set_slot(self.slot, "PASSED");
                AccessDecision::Pass
            }
            Some(true) => {
                load.refusals.0.add(1);
                let ms = of_loop.queue_ms.load(Relaxed);
                r.log(
                    Level::Info,
                    format_args!("refusing request, connections wait {ms} ms for their event loop"),
                );
                r.set_slot(self.slot, "REJECTED");
                AccessDecision::Refused { status: *status, retry_after: Some(RETRY_AFTER) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_part_grows_while_the_queue_is_never_short_and_falls_to_nothing() {
        let load = LoopLoad::default();
        let delay = Duration::from_millis(20);
        let run = |smallest: u64, intervals: u32| {
            for _ in 0..intervals {
                load.end_interval(Duration::from_millis(smallest), delay);
            }
            load.refused.load(Relaxed)
        };
        assert_eq!(run(20, 1), 0);
        assert_eq!(run(21, 1), 256);
        assert_eq!(run(1_000, 1), 448);
        assert_eq!(run(1_000, 50), REFUSED_MAX);
        assert_eq!(load.queue_ms.load(Relaxed), 1_000);
        assert!(run(0, 10) < PARTS / 2);
        assert_eq!(run(0, 50), 0);
    }

    #[test]
    fn requests_are_refused_evenly() {
        for refused in [0, 1, 100, 512, REFUSED_MAX] {
            let load = LoopLoad::default();
            load.refused.store(refused, Relaxed);
            let count = |requests: u32| (0..requests).filter(|_| load.refuses_next()).count() as u32;
            let first = count(PARTS / 2);
            let second = count(PARTS / 2);
            assert_eq!(first + second, refused);
            assert!(first.abs_diff(second) <= 1, "{first} and {second}");
        }
    }
}
