//! Keep-alive: how long, and for how many requests, a connection stays open.

use std::marker::PhantomData;
use std::time::Duration;

use tw_conf::{Args, Directive, Setting, record};

use super::contexts::ALL;

/// Keep-alive settings.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// `keepalive_timeout`; zero turns keep-alive off.
    pub timeout: Duration,
    /// `keepalive_min_timeout`: so long an idle connection is kept whatever happens.
    pub min_timeout: Duration,
    /// Second value of `keepalive_timeout`: sent as `Keep-Alive: timeout=`.
    pub header: Option<Duration>,
    /// `keepalive_requests`
    pub requests: u64,
    /// `keepalive_time`
    pub time: Duration,
    /// `keepalive_disable`: bits of [`DISABLE_MSIE6`] and [`DISABLE_SAFARI`].
    pub disable: u32,
}

/// `keepalive_disable msie6`
pub const DISABLE_MSIE6: u32 = 1;
/// `keepalive_disable safari`
pub const DISABLE_SAFARI: u32 = 2;

/// Keep-alive settings as written.
#[derive(Default)]
pub(super) struct Raw {
    keepalive_timeout: Setting<(Duration, Option<Duration>)>,
    keepalive_min_timeout: Setting<Duration>,
    keepalive_requests: Setting<u64>,
    keepalive_time: Setting<Duration>,
    keepalive_disable: Setting<u32>,
}

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time a connection waits for the next request.
    directive "keepalive_timeout", "it is closed";
    /// Requests of one connection.
    directive "keepalive_requests", "it is closed after the response";
    /// Age of a connection that is used again.
    directive "keepalive_time", "it is closed after the response";
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::new("keepalive_timeout", "timeout [header_timeout]", ALL, Args::range(1, 2))
            .default("75s")
            .doc("Time for which an idle connection stays open; the second value is sent to the client.")
            .set(|raw, node, _| {
                raw.as_mut().keepalive_timeout.set_with(node, |node| {
                    let header = match node.args.get(1) {
                        Some(word) => Some(word.sec().ok_or_else(|| node.error("invalid value"))?),
                        None => None,
                    };
                    Ok((node.msec()?, header))
                })
            }),
        record::time("keepalive_min_timeout", ALL)
            .default("0")
            .since("1.27.4")
            .doc("Time for which an idle connection stays open even if the loop ends or has too many connections.")
            .set(|raw, node, _| raw.as_mut().keepalive_min_timeout.set_msec(node)),
        record::number("keepalive_requests", ALL)
            .default("1000")
            .since("0.8.0")
            .doc("Requests after which a connection is closed.")
            .set(|raw, node, _| raw.as_mut().keepalive_requests.set_number(node)),
        record::time("keepalive_time", ALL)
            .default("1h")
            .since("1.19.10")
            .doc("Age after which a connection is closed with the next response.")
            .set(|raw, node, _| raw.as_mut().keepalive_time.set_msec(node)),
        record::new("keepalive_disable", "none | browser …", ALL, Args::at_least(1))
            .default("msie6")
            .doc("Browsers that get no keep-alive.")
            .set(|raw, node, cx| {
                raw.as_mut().keepalive_disable.add_bits(
                    node,
                    &[("none", 0), ("msie6", DISABLE_MSIE6), ("safari", DISABLE_SAFARI)],
                    cx,
                )
            }),
    ];
}

impl KeepAlive {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>) -> Self {
        let (timeout, header) =
            raw.keepalive_timeout.or(outer.map(|o| (o.timeout, o.header)), (Duration::from_secs(75), None));
        Self {
            timeout,
            min_timeout: raw.keepalive_min_timeout.or(outer.map(|o| o.min_timeout), Duration::ZERO),
            header,
            requests: raw.keepalive_requests.or(outer.map(|o| o.requests), 1000),
            time: raw.keepalive_time.or(outer.map(|o| o.time), Duration::from_secs(3600)),
            disable: raw.keepalive_disable.or(outer.map(|o| o.disable), DISABLE_MSIE6),
        }
    }
}
