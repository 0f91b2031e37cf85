//! A server compiled to flat lists: what runs for its sessions, and nothing else.
//!
//! Built once at load by the modules' `install`; a module that is off is not in any list.

use std::sync::Arc;

use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::log::{LogPlan, SessionLogger};

use crate::session::MailSession;

/// Handlers of the sessions of one server.
#[derive(Default)]
pub struct Plan {
    pub(crate) post_accept: Vec<Box<dyn Check>>,
    pub(crate) access: Vec<Box<dyn Check>>,
    pub(crate) limits: Vec<Box<dyn Check>>,
    pub(crate) loggers: Vec<Box<dyn Record>>,
}

impl Plan {
    /// Appends a handler that runs before all others.
    pub fn add_post_accept(&mut self, check: Arc<impl AccessCheck<MailSession>>) {
        self.post_accept.push(Box::new(check));
    }
}

/// An access check without its type.
pub(crate) trait Check: Send + Sync {
    fn check(&self, s: &mut MailSession) -> AccessDecision;
}

impl<C: AccessCheck<MailSession>> Check for Arc<C> {
    fn check(&self, s: &mut MailSession) -> AccessDecision {
        AccessCheck::check(&**self, s)
    }
}

/// A session logger without its type.
pub(crate) trait Record: Send + Sync {
    fn record(&self, s: &MailSession);
}

impl<L: SessionLogger<MailSession>> Record for Arc<L> {
    fn record(&self, s: &MailSession) {
        SessionLogger::record(&**self, s);
    }
}

impl AccessPlan<MailSession> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<MailSession>>) {
        let phase = match stage {
            AccessStage::Limits => &mut self.limits,
            AccessStage::Access => &mut self.access,
        };
        phase.push(Box::new(check));
    }
}

impl LogPlan<MailSession> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<MailSession>>) {
        self.loggers.push(Box::new(logger));
    }
}
