//! Objects of modules that live as long as the process and outlive a configuration: zones of counters, caches,
//! upstream groups.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

type Object = Arc<dyn Any + Send + Sync>;

/// Objects by type and name. A configuration holds those it uses, so one that none uses any more is dropped.
#[derive(Default)]
pub struct SharedObjects(HashMap<(TypeId, Box<[u8]>), Object>);

impl SharedObjects {
    /// The object of this name: the one in use already, the `previous` one if it `fits`, or a new one.
    pub fn keep<T: Send + Sync + 'static>(
        &mut self,
        previous: &Self,
        name: &[u8],
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        match self.try_keep(previous, name, fits, || Ok::<T, Infallible>(make())) {
            Ok(object) => object,
            Err(never) => match never {},
        }
    }

    /// As [`keep`](Self::keep), for an object that may fail to be made.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn try_keep<T: Send + Sync + 'static, E>(
        &mut self,
        previous: &Self,
        name: &[u8],
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let key = (TypeId::of::<T>(), name.into());
        let find_known =
            |objects: &Self| objects.0.get(&key).and_then(|object| object.clone().downcast::<T>().ok());
        if let Some(object) = find_known(self) {
            return Ok(object);
        }
        let object = match find_known(previous).filter(|object| fits(object)) {
            Some(object) => object,
            None => Arc::new(make()?),
        };
        self.0.insert(key, object.clone());
        Ok(object)
    }

    /// The object of this name, if it is in use.
    pub fn find<T: Send + Sync + 'static>(&self, name: &[u8]) -> Option<Arc<T>> {
        self.0.get(&(TypeId::of::<T>(), name.into()))?.clone().downcast().ok()
    }

    /// Every object of one type with its name, in the order of the names: for metrics and documents.
    pub fn of_type<T: Send + Sync + 'static>(&self) -> Vec<(&[u8], &T)> {
        let mut results = Vec::new();
        for ((_, name), object) in &self.0 {
            if let Some(object) = object.downcast_ref::<T>() {
                results.push((&**name, object));
            }
        }
        results.sort_by_key(|(name, _)| *name);
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_reused_while_they_fit() {
        let none = SharedObjects::default();
        let mut first = SharedObjects::default();
        let mut second = SharedObjects::default();
        let one = first.keep(&none, b"a", |_| true, || 1_u32);
        assert!(Arc::ptr_eq(&one, &first.keep(&none, b"a", |_| false, || 2)));
        assert_eq!(*first.keep(&none, b"b", |_| true, || 3_u32), 3);
        assert_eq!(*first.keep(&none, b"a", |_| true, || 4_u64), 4, "another type has other names");
        assert_eq!(first.of_type::<u32>(), [(&b"a"[..], &1), (b"b", &3)]);
        assert!(Arc::ptr_eq(&one, &second.keep(&first, b"a", |n| *n == 1, || 5)));
        assert_eq!(*second.keep(&first, b"b", |n| *n == 1, || 6_u32), 6);
        assert_eq!(second.try_keep(&first, b"c", |_: &u32| true, || Err("no")), Err("no"));
        assert_eq!(second.find::<u32>(b"c"), None, "what failed can be tried again");
    }
}
