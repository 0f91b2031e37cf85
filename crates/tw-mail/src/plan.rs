//! A server compiled to flat lists: what runs for its sessions, and nothing else.
//!
//! Built once at load by the modules' `install`; a module that is off is not in any list.

use std::sync::Arc;

use tw_core::access_check::{AccessCheck, AccessPlan, AccessStage, PostAcceptPlan};
use tw_core::log::{LogPlan, SessionLogger};

use crate::counters::MailCounters;
use crate::health_check::HealthCheck;
use crate::protocol::SessionOfMail;

/// Handlers of the sessions of one server.
#[derive(Default)]
pub struct Plan {
    pub(crate) post_accept: Vec<Arc<dyn AccessCheck<SessionOfMail>>>,
    pub(crate) access: Vec<Arc<dyn AccessCheck<SessionOfMail>>>,
    pub(crate) limits: Vec<Arc<dyn AccessCheck<SessionOfMail>>>,
    pub(crate) loggers: Vec<Arc<dyn SessionLogger<SessionOfMail>>>,
    pub(crate) counters: Option<Arc<dyn MailCounters>>,
    pub(crate) health_check: Option<Arc<HealthCheck>>,
}

impl Plan {
    /// Sets the counters of the sessions of the server.
    pub fn set_counters(&mut self, counters: Arc<dyn MailCounters>) {
        self.counters = Some(counters);
    }

    /// Sets the health check of the auth servers.
    pub fn set_health_check(&mut self, check: Arc<HealthCheck>) {
        self.health_check = Some(check);
    }
}

impl AccessPlan<SessionOfMail> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<SessionOfMail>>) {
        let phase = match stage {
            AccessStage::Limits => &mut self.limits,
            AccessStage::Access => &mut self.access,
        };
        phase.push(check);
    }
}

impl PostAcceptPlan<SessionOfMail> for Plan {
    fn add_post_accept(&mut self, check: Arc<impl AccessCheck<SessionOfMail>>) {
        self.post_accept.push(check);
    }
}

impl LogPlan<SessionOfMail> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<SessionOfMail>>) {
        self.loggers.push(logger);
    }
}
