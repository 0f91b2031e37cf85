//! Parts that rooms above keep in a plan or in a configuration, by type.

use std::any::Any;
use std::sync::Arc;

/// At most one value of each type.
#[derive(Default)]
pub struct Parts(Vec<Arc<dyn Any + Send + Sync>>);

impl Parts {
    /// Returns the value of this type. Searches all of them: not for each request.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.iter().find_map(|part| part.clone().downcast().ok())
    }

    /// Stores `part` and replaces one of the same type.
    pub fn put<T: Send + Sync + 'static>(&mut self, part: Arc<T>) {
        self.0.retain(|known| !known.is::<T>());
        self.0.push(part);
    }
}
