//! Lingering close: what a client still sends is read before its connection is closed, so that it sees the response.

use std::marker::PhantomData;
use std::time::Duration;

use tw_conf::{Args, Directive, Setting, record};

use super::contexts::ALL;

/// `lingering_close` and companions.
#[derive(Debug, Clone, Copy)]
pub struct Lingering {
    /// `lingering_close`
    pub close: LingeringClose,
    /// `lingering_time`
    pub time: Duration,
    /// `lingering_timeout`
    pub timeout: Duration,
}

/// `lingering_close`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LingeringClose {
    /// Close at once.
    Off,
    /// Read and ignore what a client may still be sending.
    On,
    /// Always.
    Always,
}

/// Lingering close as written.
#[derive(Default)]
pub(super) struct Raw {
    lingering_close: Setting<LingeringClose>,
    lingering_time: Setting<Duration>,
    lingering_timeout: Setting<Duration>,
}

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time in which what a client still sends is read and ignored.
    directive "lingering_time", "the connection is closed";
    /// Time between two reads of what is ignored.
    directive "lingering_timeout", "the connection is closed";
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::new("lingering_close", "off | on | always", ALL, Args::exact(1))
            .default("on")
            .since("1.1.0")
            .doc("Reads and ignores what a client still sends before its connection is closed.")
            .set(|raw, node, _| {
                raw.as_mut().lingering_close.set_one_of(
                    node,
                    &[
                        ("off", LingeringClose::Off),
                        ("on", LingeringClose::On),
                        ("always", LingeringClose::Always),
                    ],
                )
            }),
        record::time("lingering_time", ALL)
            .default("30s")
            .doc("Longest lingering close.")
            .set(|raw, node, _| raw.as_mut().lingering_time.set_msec(node)),
        record::time("lingering_timeout", ALL)
            .default("5s")
            .doc("Longest silence during a lingering close.")
            .set(|raw, node, _| raw.as_mut().lingering_timeout.set_msec(node)),
    ];
}

impl Lingering {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>) -> Self {
        Self {
            close: raw.lingering_close.or(outer.map(|o| o.close), LingeringClose::On),
            time: raw.lingering_time.or(outer.map(|o| o.time), Duration::from_secs(30)),
            timeout: raw.lingering_timeout.or(outer.map(|o| o.timeout), Duration::from_secs(5)),
        }
    }
}
