//! State of `mail` on one loop.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use tw_connect::UpstreamConnections;
use tw_core::event_loop::LoopCore;
use tw_net::Addr;

use crate::config::{GenerationRef, LoopGeneration};

/// State of `mail` on one loop, beside the state that every protocol shares.
pub struct MailLoop {
    pub(crate) core: Rc<LoopCore>,
    /// Connections to auth servers, and the choice among them.
    pub(crate) upstreams: Rc<UpstreamConnections>,
    generation: RefCell<Rc<LoopGeneration>>,
}

impl MailLoop {
    /// State of a loop that begins with a configuration.
    pub(crate) fn begin(core: Rc<LoopCore>, generation: GenerationRef) -> Self {
        let upstreams = UpstreamConnections::new(core.clone());
        Self { core, upstreams, generation: RefCell::new(LoopGeneration::new(generation)) }
    }

    /// Sets the configuration of new sessions.
    pub(crate) fn replace_generation(&self, generation: GenerationRef) {
        self.generation.replace(LoopGeneration::new(generation));
    }

    /// Returns the configuration of new sessions.
    pub(crate) fn generation(&self) -> Rc<LoopGeneration> {
        self.generation.borrow().clone()
    }

    /// Returns true if sessions begin on this listening address.
    pub fn listens_on(&self, address: &Addr) -> bool {
        self.generation.borrow().listening.find(address).is_some()
    }
}

impl Deref for MailLoop {
    type Target = LoopCore;

    fn deref(&self) -> &LoopCore {
        &self.core
    }
}
