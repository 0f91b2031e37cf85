//! Data that the tasks of one loop share without a lock. No task continues with data that a panic left half changed.
//!
//! A [`RefCell`] gives back what a panic was changing: the task that panicked is gone, and the next one finds a table whose
//! halves do not agree. Here the process ends, as with a [`Whole`](crate::Whole). To change the value costs 1 to 2 ns more
//! than with a `RefCell`, to look at it nothing that can be measured.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::thread;

use crate::whole::{break_process, stand_still};

/// A value of one thread, changed by one borrower at a time.
#[derive(Default)]
pub struct WholeCell<T> {
    is_broken: Cell<bool>,
    value: RefCell<T>,
}

/// The value, for who changes it.
pub struct WholeRefMut<'a, T> {
    // Dropped first: the process is broken before anybody else has the value.
    _watch: Watch<'a, T>,
    value: RefMut<'a, T>,
}

/// Sees a panic that changes the value.
struct Watch<'a, T> {
    is_broken: &'a Cell<bool>,
    /// A destructor may use the value while its thread panics for another reason, and leave it whole.
    was_panicking: bool,
    what: PhantomData<T>,
}

impl<T> WholeCell<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> Self {
        Self { is_broken: Cell::new(false), value: RefCell::new(value) }
    }

    /// The value, to look at. Panics where [`RefCell::borrow`] does.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.check();
        self.value.borrow()
    }

    /// The value, to change. Panics where [`RefCell::borrow_mut`] does.
    pub fn borrow_mut(&self) -> WholeRefMut<'_, T> {
        self.check();
        let value = self.value.borrow_mut();
        let watch =
            Watch { is_broken: &self.is_broken, was_panicking: thread::panicking(), what: PhantomData };
        WholeRefMut { _watch: watch, value }
    }

    /// Whoever comes to what is half changed goes no further.
    fn check(&self) {
        if self.is_broken.get() {
            stand_still();
        }
    }
}

impl<T> Deref for WholeRefMut<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for WholeRefMut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Watch<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            self.is_broken.set(true);
            break_process(std::any::type_name::<T>());
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for WholeCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_that_changes_the_value_is_the_last_to_use_it() {
        let cell = WholeCell::new(1);
        *cell.borrow_mut() += 1;
        assert_eq!(*cell.borrow(), 2);
        let fails = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
        // To look is not to change, and one borrower is one.
        assert!(fails(&|| {
            let _value = cell.borrow();
            panic!("expected");
        }));
        assert!(fails(&|| {
            let _value = cell.borrow();
            drop(cell.borrow_mut());
        }));
        *cell.borrow_mut() += 1;
        assert_eq!(*cell.borrow(), 3);

        assert!(fails(&|| {
            *cell.borrow_mut() = 7;
            let mut value = cell.borrow_mut();
            *value += 1;
            panic!("expected");
        }));
        assert!(fails(&|| drop(cell.borrow())) && fails(&|| drop(cell.borrow_mut())));
    }

    #[test]
    fn who_is_dropped_by_a_panic_elsewhere_may_change_it() {
        struct GiveBack<'a>(&'a WholeCell<u32>);
        impl Drop for GiveBack<'_> {
            fn drop(&mut self) {
                *self.0.borrow_mut() -= 1;
            }
        }
        let cell = WholeCell::new(2);
        let panic = AssertUnwindSafe(|| {
            let _one = GiveBack(&cell);
            panic!("expected");
        });
        assert!(catch_unwind(panic).is_err());
        assert_eq!(*cell.borrow_mut(), 1);
    }
}
