//! One loop, as HTTP sees it.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use tw_core::event_loop::LoopCore;

use crate::http::Http;
use crate::http::generation::{GenerationRef, LoopGeneration};

/// State of HTTP on one loop, beside the state that every protocol shares.
pub struct Loop {
    core: Rc<LoopCore>,
    /// Connections, files and buffers.
    pub app: Http,
    generation: RefCell<Rc<LoopGeneration>>,
}

impl Loop {
    pub(crate) fn with(core: Rc<LoopCore>, http: Http, generation: GenerationRef) -> Self {
        Self { core, app: http, generation: RefCell::new(LoopGeneration::new(generation)) }
    }

    /// Returns the configuration that serves new requests.
    pub fn generation(&self) -> Rc<LoopGeneration> {
        self.generation.borrow().clone()
    }

    /// State that every protocol shares.
    pub(crate) fn core(&self) -> &Rc<LoopCore> {
        &self.core
    }

    pub(crate) fn replace_generation(&self, generation: GenerationRef) {
        *self.generation.borrow_mut() = LoopGeneration::new(generation);
    }
}

impl Deref for Loop {
    type Target = LoopCore;

    fn deref(&self) -> &LoopCore {
        &self.core
    }
}
