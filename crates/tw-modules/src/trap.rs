//! `trap`: goes wrong on purpose, for tests of what happens then. Only where debug assertions are on. Content phase.
//!
//! A directive, because configurations are how tests say what they want; and a module of its own, so that a release has
//! not a word of it.

use std::sync::Arc;
use std::thread;

use tw_base::Whole;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_rt::watch;
use tw_server::http::plan::{Handler, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;

/// What all loops share.
static SHARED: Whole<u64> = Whole::new(0);

/// What goes wrong.
#[derive(Clone, Copy)]
enum Fault {
    /// A request panics.
    Panic,
    /// A request panics while it changes what all loops share.
    Break,
    /// A request runs and does not end.
    Spin,
    /// A request waits in the kernel, for what does not come.
    Wait,
}

/// `trap` as written.
#[derive(Default)]
pub(crate) struct Raw {
    fault: Setting<Fault>,
}

/// `trap` of one location.
pub(crate) struct Trap {
    fault: Option<Fault>,
}

impl Settings for Trap {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("trap", "panic | break | spin | wait", LOCATION, Args::exact(1))
            .doc("Goes wrong on purpose.")
            .set(|raw, node, _| {
                let faults = [
                    ("panic", Fault::Panic),
                    ("break", Fault::Break),
                    ("spin", Fault::Spin),
                    ("wait", Fault::Wait),
                ];
                raw.fault.set_one_of(node, &faults)
            })];

    fn resolve(raw: Raw, _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { fault: raw.fault.take() })
    }

    fn are_shared(&self) -> bool {
        self.fault.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.fault.is_some() {
            plan.set_content(self.clone());
        }
    }
}

impl Handler for Trap {
    fn handle<'a>(&'a self, _: &'a mut Request) -> Step<'a> {
        match self.fault {
            None => {}
            Some(Fault::Panic) => panics(),
            Some(Fault::Break) => breaks(),
            Some(Fault::Spin) => watch::operation("trap", spins),
            Some(Fault::Wait) => watch::operation("trap", waits),
        }
        Step::status(204)
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
