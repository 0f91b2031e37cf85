//! A server compiled to flat lists: what runs for its sessions, in the order of the phases, and nothing else.
//!
//! Built once at load by the modules' `install`; a module that is off is not in any list.

use std::pin::Pin;
use std::sync::Arc;

use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::log::{LogPlan, SessionLogger};

use crate::health::HealthCheck;
use crate::meter::ServerCounters;
use crate::preread::PrereadHandler;
use crate::session::{SessionStatus, StreamSession};

/// Boxed future of one loop; it may borrow the session.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Serves a session: the content phase. A server has one.
pub trait ContentHandler: Send + Sync {
    /// Serves `s` until it is over.
    fn serve<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, SessionStatus>;
}

/// Handlers of the sessions of one server.
#[derive(Default)]
pub struct Plan {
    pub(crate) preaccess: Vec<Box<dyn Check>>,
    pub(crate) access: Vec<Box<dyn Check>>,
    pub(crate) preread: Vec<Arc<dyn PrereadHandler>>,
    pub(crate) content: Option<Arc<dyn ContentHandler>>,
    pub(crate) loggers: Vec<Box<dyn Record>>,
    pub(crate) counters: Option<Arc<dyn ServerCounters>>,
    pub(crate) health_check: Option<Arc<HealthCheck>>,
}

impl Plan {
    /// Appends a handler that looks at the first bytes of the client.
    pub fn add_preread(&mut self, handler: Arc<dyn PrereadHandler>) {
        self.preread.push(handler);
    }

    /// Sets the handler of the content phase. Of several modules in one block the last holds.
    pub fn set_content(&mut self, handler: Arc<dyn ContentHandler>) {
        self.content = Some(handler);
    }

    /// Sets the counters of the sessions of the server.
    pub fn set_counters(&mut self, counters: Arc<dyn ServerCounters>) {
        self.counters = Some(counters);
    }

    /// Sets the health check of the group that the sessions of the server are passed to.
    pub fn set_health_check(&mut self, check: Arc<HealthCheck>) {
        self.health_check = Some(check);
    }
}

/// An access check without its type.
pub(crate) trait Check: Send + Sync {
    fn check(&self, s: &mut StreamSession) -> AccessDecision;
}

impl<C: AccessCheck<StreamSession>> Check for Arc<C> {
    fn check(&self, s: &mut StreamSession) -> AccessDecision {
        AccessCheck::check(&**self, s)
    }
}

/// A session logger without its type.
pub(crate) trait Record: Send + Sync {
    fn record(&self, s: &StreamSession);
}

impl<L: SessionLogger<StreamSession>> Record for Arc<L> {
    fn record(&self, s: &StreamSession) {
        SessionLogger::record(&**self, s);
    }
}

impl AccessPlan<StreamSession> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<StreamSession>>) {
        let phase = match stage {
            AccessStage::Limits => &mut self.preaccess,
            AccessStage::Access => &mut self.access,
        };
        phase.push(Box::new(check));
    }
}

impl LogPlan<StreamSession> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<StreamSession>>) {
        self.loggers.push(Box::new(logger));
    }
}
