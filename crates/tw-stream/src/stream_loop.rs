//! State of `stream` on one loop that sessions use, whatever their configuration.

use std::any::Any;
use std::cell::OnceCell;
use std::ops::Deref;
use std::rc::Rc;

use tw_connect::UpstreamConnections;
use tw_core::event_loop::LoopCore;

use crate::datagram_client::DatagramSessions;
use crate::loop_services::LoopServices;

/// State of `stream` on one loop, beside the state that every protocol shares.
pub struct StreamLoop {
    pub(crate) core: Rc<LoopCore>,
    /// Connections to upstream servers, and the choice among servers.
    pub(crate) upstreams: Rc<UpstreamConnections>,
    /// Sessions over datagrams.
    pub(crate) datagram_sessions: Rc<DatagramSessions>,
    services: OnceCell<Rc<dyn LoopServices>>,
}

impl StreamLoop {
    pub(crate) fn new(core: Rc<LoopCore>) -> Rc<Self> {
        let upstreams = UpstreamConnections::new(core.clone());
        let datagram_sessions = DatagramSessions::new(&core);
        Rc::new(Self { core, upstreams, datagram_sessions, services: OnceCell::new() })
    }

    /// Sets the services of the application. Called once.
    pub(crate) fn set_services(&self, services: Rc<dyn LoopServices>) {
        let _ = self.services.set(services);
    }

    /// State of HTTP on the loop, for modules that know its type and send requests; `None` without an application.
    pub fn http(&self) -> Option<Rc<dyn Any>> {
        self.services.get()?.http()
    }

    /// The services of the application; `None` without one.
    pub(crate) fn services(&self) -> Option<&Rc<dyn LoopServices>> {
        self.services.get()
    }
}

impl Deref for StreamLoop {
    type Target = LoopCore;

    fn deref(&self) -> &LoopCore {
        &self.core
    }
}
