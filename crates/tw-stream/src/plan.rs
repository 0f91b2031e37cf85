//! A server compiled to flat lists: what runs for its sessions, in the order of the phases, and nothing else.
//!
//! Built once at load by the modules' `install`; a module that is off is not in any list.

mod awaited;
mod filter;
mod parts;
mod steps;

use std::sync::Arc;

use tw_connect::UpstreamGroup;
use tw_connect::health::CheckFailure;
use tw_core::access_check::{AccessCheck, AccessPlan, AccessStage, PostAcceptPlan};
use tw_core::log::{LogPlan, SessionLogger};
use tw_core::session_meter::ServerCounters;
use tw_core::vars::VariableUses;
use tw_net::Addr;
use tw_upstream::HealthCheckParams;

use crate::protocol::Stream;
use crate::session::StreamSession;
use crate::status::SessionStatus;

pub use self::filter::{FilterEvent, FilterPiece, RunningFilter, SessionFilter};
pub use self::parts::PlanParts;
pub(crate) use self::steps::{AccessEntry, PrereadEntry, run_access, run_steps};
pub use self::steps::{BackgroundTask, SessionStep, StepDecision};
pub use crate::local_future::LocalFuture;

/// Serves a session: the content phase. A server has one.
pub trait ContentHandler: Send + Sync {
    /// Serves `s` until it is over.
    fn serve<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, SessionStatus>;

    /// Returns true if it continues sessions that another process has begun.
    fn takes_over(&self) -> bool {
        false
    }

    /// Describes the effect on sessions for `--explain`: subject of each line, empty if it continues the one before, and text.
    fn explain(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Describes the effect on the session `s`, whose variables have values.
    fn explain_session(&self, _s: &StreamSession) -> Vec<(&'static str, String)> {
        self.explain()
    }
}

/// Looks at the bytes of a client that have arrived so far ([`StreamSession::preread`]).
pub trait PrereadHandler: Send + Sync {
    /// Decides whether they are enough. Never waits.
    fn preread(&self, s: &mut StreamSession) -> PrereadStep;

    /// Bytes that it may need at most.
    fn size_max(&self, s: &StreamSession) -> usize {
        s.server().settings.preread_buffer_size
    }
}

/// Decision of a preread handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrereadStep {
    /// The bytes are not for this handler: the next one looks.
    Pass,
    /// Done: no other handler looks.
    Done,
    /// More bytes are needed.
    More,
    /// The session ends. The handler has logged the reason.
    End(SessionStatus),
}

/// Health check of a group that the sessions of a server are passed to.
pub(crate) trait GroupHealthCheck: Send + Sync {
    /// The group.
    fn group(&self) -> &Arc<UpstreamGroup<Stream>>;

    /// Intervals and thresholds.
    fn params(&self) -> HealthCheckParams;

    /// Name of the `match` block; empty without one.
    fn criteria_name(&self) -> &str;

    /// Checks the peer at `addr`. `s` is the session in whose place that is done.
    fn probe<'a>(&'a self, s: &'a StreamSession, addr: &'a Addr)
    -> LocalFuture<'a, Result<(), CheckFailure>>;
}

/// Names of the modules whose handlers are in a plan, by phase. Each has the place of its first handler.
#[derive(Default)]
pub(crate) struct PlannedModules {
    preaccess: Vec<(&'static str, usize)>,
    access: Vec<(&'static str, usize)>,
    preread: Vec<(&'static str, usize)>,
    pub(crate) content: Option<&'static str>,
    pub(crate) log: Vec<&'static str>,
}

impl PlannedModules {
    /// The phases in front of the content, with the modules of each.
    pub(crate) fn before_content(&self) -> [(&'static str, Vec<&'static str>); 3] {
        let phases = [("preaccess", &self.preaccess), ("access", &self.access), ("preread", &self.preread)];
        phases.map(|(phase, modules)| (phase, modules.iter().map(|(module, _)| *module).collect()))
    }
}

/// Handlers of the sessions of one server.
#[derive(Default)]
pub struct Plan {
    pub(crate) post_accept: Vec<Arc<dyn AccessCheck<StreamSession>>>,
    pub(crate) preaccess: Vec<AccessEntry>,
    pub(crate) access: Vec<AccessEntry>,
    pub(crate) preread: Vec<PrereadEntry>,
    /// Steps in front of the content.
    pub(crate) content_steps: Vec<Arc<dyn SessionStep>>,
    /// Steps behind these, by which modules give up what they hold for a session.
    pub(crate) release_steps: Vec<Arc<dyn SessionStep>>,
    pub(crate) content: Option<Arc<dyn ContentHandler>>,
    /// Filter of the bytes of sessions.
    pub(crate) filter: Option<Arc<dyn SessionFilter>>,
    /// Steps in front of the log.
    pub(crate) log_steps: Vec<Arc<dyn SessionStep>>,
    pub(crate) loggers: Vec<Arc<dyn SessionLogger<StreamSession>>>,
    /// Steps behind the log, at the end of a session.
    pub(crate) end_steps: Vec<Arc<dyn SessionStep>>,
    /// Tasks that run as long as the configuration is that of new sessions.
    pub(crate) tasks: Vec<Arc<dyn BackgroundTask>>,
    pub(crate) modules: PlannedModules,
    pub(crate) counters: Option<Arc<dyn ServerCounters>>,
    pub(crate) health_check: Option<Arc<dyn GroupHealthCheck>>,
    /// Values of modules, by their types.
    pub parts: PlanParts,
    /// Variables that the modules read.
    pub(crate) variable_uses: VariableUses,
}

impl Plan {
    /// Has the module of this name add its handlers.
    pub(crate) fn install(&mut self, module: &'static str, install: impl FnOnce(&mut Self)) {
        let lens = |plan: &Self| [plan.preaccess.len(), plan.access.len(), plan.preread.len()];
        let before = lens(self);
        let log_before = self.loggers.len();
        let content = self.content.take();
        install(self);
        let after = lens(self);
        let PlannedModules { preaccess, access, preread, content: content_module, log } = &mut self.modules;
        for (modules, (before, after)) in
            [preaccess, access, preread].into_iter().zip(before.into_iter().zip(after))
        {
            if before < after {
                modules.push((module, before));
            }
        }
        if log_before < self.loggers.len() {
            log.push(module);
        }
        match self.content {
            Some(_) => *content_module = Some(module),
            None => self.content = content,
        }
    }

    /// Appends a handler that looks at the first bytes of the client.
    pub fn add_preread(&mut self, handler: Arc<dyn PrereadHandler>) {
        self.preread.push(PrereadEntry::Handler(handler));
    }

    /// Appends a step of the preread phase that may wait.
    pub fn add_preread_step(&mut self, step: Arc<dyn SessionStep>) {
        self.preread.push(PrereadEntry::Step(step));
    }

    /// Appends a step of the access phase that may wait.
    pub fn add_access_step(&mut self, step: Arc<dyn SessionStep>) {
        self.access.push(AccessEntry::Step(step));
    }

    /// Appends a step before the content, by which a module gives up what it holds for a session; its decision has no effect.
    pub fn add_release_step(&mut self, step: Arc<dyn SessionStep>) {
        self.release_steps.push(step);
    }

    /// Returns true if something of a module runs for a session while the content does, or behind it.
    pub fn has_late_steps(&self) -> bool {
        self.filter.is_some() || !self.log_steps.is_empty()
    }

    /// Appends a step behind the log, whose decision has no effect.
    pub fn add_end_step(&mut self, step: Arc<dyn SessionStep>) {
        self.end_steps.push(step);
    }

    /// Sets the filter of the bytes of sessions.
    pub fn set_filter(&mut self, filter: Arc<dyn SessionFilter>) {
        self.filter = Some(filter);
    }

    /// Adds a task that each loop runs as long as the configuration is that of new sessions.
    pub fn add_task(&mut self, task: Arc<dyn BackgroundTask>) {
        self.tasks.push(task);
    }

    /// Sets the handler of the content phase. Of several modules in one block the last holds.
    pub fn set_content(&mut self, handler: Arc<dyn ContentHandler>) {
        self.content = Some(handler);
    }

    /// Sets the counters of the sessions of the server.
    pub fn set_counters(&mut self, counters: Arc<dyn ServerCounters>) {
        self.counters = Some(counters);
    }
}

impl AccessPlan<StreamSession> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<StreamSession>>) {
        let phase = match stage {
            AccessStage::Limits => &mut self.preaccess,
            AccessStage::Access => &mut self.access,
        };
        phase.push(AccessEntry::Check(check));
    }
}

impl PostAcceptPlan<StreamSession> for Plan {
    fn add_post_accept(&mut self, check: Arc<impl AccessCheck<StreamSession>>) {
        self.post_accept.push(check);
    }
}

impl LogPlan<StreamSession> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<StreamSession>>) {
        self.loggers.push(logger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handler with the name of its module.
    struct Handler(&'static str);

    impl ContentHandler for Handler {
        fn serve<'a>(&'a self, _: &'a mut StreamSession) -> LocalFuture<'a, SessionStatus> {
            Box::pin(async { SessionStatus::OK })
        }

        fn explain(&self) -> Vec<(&'static str, String)> {
            vec![("module", self.0.to_owned())]
        }
    }

    impl PrereadHandler for Handler {
        fn preread(&self, _: &mut StreamSession) -> PrereadStep {
            PrereadStep::Pass
        }
    }

    #[test]
    fn plan_names_the_modules_of_its_handlers() {
        let mut plan = Plan::default();
        plan.install("off", |_| {});
        plan.install("first", |plan| {
            plan.add_preread(Arc::new(Handler("first")));
            plan.set_content(Arc::new(Handler("first")));
        });
        plan.install("second", |plan| plan.set_content(Arc::new(Handler("second"))));
        plan.install("third", |plan| plan.add_preread(Arc::new(Handler("third"))));
        let [preaccess, access, preread] = plan.modules.before_content();
        assert!(preaccess.1.is_empty() && access.1.is_empty());
        assert_eq!(preread, ("preread", vec!["first", "third"]));
        assert_eq!(plan.modules.content, Some("second"), "of several modules the last holds");
        let explained = plan.content.map(|content| content.explain());
        assert_eq!(explained, Some(vec![("module", "second".to_owned())]));
        assert_eq!((plan.preread.len(), plan.loggers.len()), (2, 0));
    }
}
