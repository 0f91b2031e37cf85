//! Values of modules in a plan.

use std::any::Any;
use std::sync::Arc;

/// Values that modules keep in a plan, one of each type.
#[derive(Default)]
pub struct PlanParts(Vec<Arc<dyn Any + Send + Sync>>);

impl PlanParts {
    /// The value of this type. Costs a comparison for each value, of which there are few.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.iter().find_map(|part| part.clone().downcast().ok())
    }

    /// Stores a value, in the place of one of the same type.
    pub fn put<T: Send + Sync + 'static>(&mut self, part: Arc<T>) {
        self.0.retain(|part| !part.is::<T>());
        self.0.push(part);
    }
}
