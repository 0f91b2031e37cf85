//! Values that modules attach to a request, by type.

use std::any::Any;
use std::rc::Rc;

/// Values of modules: at most one of each type, dropped with the request, so a value can be a guard. A subrequest shares the
/// values that its parent had when it began.
#[derive(Default, Clone)]
pub struct Extensions {
    own: Vec<Rc<dyn Any>>,
    /// Values shared with background requests.
    common: Vec<Rc<dyn Any>>,
}

impl Extensions {
    /// The value of this type.
    pub fn get<T: 'static>(&self) -> Option<Rc<T>> {
        let all = || self.own.iter().chain(&self.common);
        all().find(|state| state.is::<T>())?.clone().downcast().ok()
    }

    /// Stores `state` and replaces one of the same type.
    pub fn put<T: 'static>(&mut self, state: Rc<T>) {
        self.own.retain(|object| !object.is::<T>());
        self.own.push(state);
    }

    /// Stores a value that is no guard: background requests, which may outlive this one, share it. A type is stored by one of
    /// the two functions.
    pub fn put_common<T: 'static>(&mut self, state: Rc<T>) {
        self.common.retain(|object| !object.is::<T>());
        self.common.push(state);
    }

    /// Drops the values that background requests do not share.
    pub(super) fn leave_own(&mut self) {
        self.own.clear();
    }

    /// Drops all values.
    pub(super) fn clear(&mut self) {
        self.own.clear();
        self.common.clear();
    }
}
