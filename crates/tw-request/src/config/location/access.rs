//! Combination of the handlers of the access phase: `satisfy`, `auth_delay`.

use std::marker::PhantomData;
use std::time::Duration;

use tw_conf::{Args, Directive, Setting, record};

use super::contexts::ALL;

/// Settings of the access phase.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// `satisfy`
    pub satisfy: Satisfy,
    /// `auth_delay`: how long a 401 is held back, so that guessing passwords takes long.
    pub delay: Duration,
}

/// `satisfy`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Satisfy {
    /// Every handler must let the request pass.
    All,
    /// One that grants access is enough.
    Any,
}

/// Settings of the access phase as written.
#[derive(Default)]
pub(super) struct Raw {
    satisfy: Setting<Satisfy>,
    delay: Setting<Duration>,
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::new("satisfy", "all | any", ALL, Args::exact(1))
            .default("all")
            .doc("Requires that all modules that control access let a request pass, or that one of them grants it.")
            .set(|raw, node, _| {
                raw.as_mut().satisfy.set_one_of(node, &[("all", Satisfy::All), ("any", Satisfy::Any)])
            }),
        record::new("auth_delay", "time", ALL, Args::exact(1))
            .default("0s")
            .since("1.17.10")
            .doc("Delay of responses with the status 401.")
            .set(|raw, node, _| raw.as_mut().delay.set_msec(node)),
    ];
}

impl Access {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>) -> Self {
        Self {
            satisfy: raw.satisfy.or(outer.map(|o| o.satisfy), Satisfy::All),
            delay: raw.delay.or(outer.map(|o| o.delay), Duration::ZERO),
        }
    }
}
