//! State of HTTP on one loop: the part that requests use. `http::application` makes it and runs the loop.

mod background_count;
mod loop_parts;
mod spare_requests;

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use tw_base::FatalCell;
use tw_connect::UpstreamConnections;
use tw_core::event_loop::LoopCore;
use tw_http::date::DateCache;

use self::background_count::BackgroundCount;
pub use self::loop_parts::LoopParts;
pub(crate) use self::spare_requests::LIMITS;
use self::spare_requests::SpareRequests;
use crate::files::FileTable;
use crate::protocol::{GenerationRef, LoopGeneration};

/// State of HTTP on one loop, beside the state that every protocol shares.
pub struct Loop {
    core: Rc<LoopCore>,
    generation: RefCell<Rc<LoopGeneration>>,
    /// Open files.
    pub files: FatalCell<FileTable>,
    /// Memory for the next requests.
    pub requests: RefCell<SpareRequests>,
    /// Requests that run beside others.
    pub background: BackgroundCount,
    /// Connections to upstream servers.
    pub upstreams: Rc<UpstreamConnections>,
    /// Dates of heads, written as they are asked for.
    pub dates: DateCache,
    parts: LoopParts,
}

impl Loop {
    /// Creates the state of a loop that starts with `generation`. `parts` is the state of what stands above the request.
    pub fn with(core: Rc<LoopCore>, generation: GenerationRef, files: FileTable, parts: LoopParts) -> Self {
        Self {
            generation: RefCell::new(LoopGeneration::new(generation)),
            files: FatalCell::new(files),
            requests: RefCell::default(),
            background: BackgroundCount::default(),
            upstreams: UpstreamConnections::new(core.clone()),
            dates: DateCache::default(),
            parts,
            core,
        }
    }

    /// Returns the configuration that serves new requests.
    pub fn generation(&self) -> Rc<LoopGeneration> {
        self.generation.borrow().clone()
    }

    /// State that every protocol shares.
    pub fn core(&self) -> &Rc<LoopCore> {
        &self.core
    }

    /// State of a part of the server above the request, which the application has added. Costs a comparison.
    pub fn part<T: 'static>(&self) -> &T {
        self.parts.find().expect("the application adds the state of each part when it makes the loop")
    }

    /// Serves new requests by `generation` from now on.
    pub fn replace_generation(&self, generation: GenerationRef) {
        *self.generation.borrow_mut() = LoopGeneration::new(generation);
    }
}

impl Deref for Loop {
    type Target = LoopCore;

    fn deref(&self) -> &LoopCore {
        &self.core
    }
}
