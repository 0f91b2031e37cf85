//! State that parts of the server above the request keep on a loop.

use std::any::Any;

/// Values of the parts of the server that have state on a loop, one of each type, in the order of their use.
#[derive(Default)]
pub struct LoopParts(Vec<Box<dyn Any>>);

impl LoopParts {
    /// Adds the state of one part.
    #[must_use]
    pub fn with<T: 'static>(mut self, part: T) -> Self {
        self.0.push(Box::new(part));
        self
    }

    /// Borrows the state of one part; `None` if the application has none. Costs a comparison for each part before it.
    pub fn find<T: 'static>(&self) -> Option<&T> {
        self.0.iter().find_map(|part| part.downcast_ref())
    }
}
