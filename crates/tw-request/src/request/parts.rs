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

    /// Borrows the value of this type. Costs a comparison for each part of the list, which has a few.
    pub fn find<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.iter().find_map(|part| part.downcast_ref())
    }

    /// Stores `part` and replaces one of the same type.
    pub fn put<T: Send + Sync + 'static>(&mut self, part: Arc<T>) {
        self.0.retain(|object| !object.is::<T>());
        self.0.push(part);
    }
}
