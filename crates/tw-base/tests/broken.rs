//! A panic that holds a lock, in a process of its own: nothing here can be undone.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tw_base::{FatalMutex, FatalMutexGuard, fatal_mutex};

fn panic_with<T>(lock: &FatalMutex<T>) {
    let panic = AssertUnwindSafe(|| {
        let _held = lock.lock();
        panic!("expected");
    });
    assert!(catch_unwind(panic).is_err());
}

/// Locks while its thread panics, as a count that is given back does.
struct GiveBack<'a>(&'a FatalMutex<u32>);

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
    }
}

#[test]
fn panic_that_holds_a_lock_poisons_the_process() {
    // Without a handler that ends the process, the next thread to lock panics.
    let left: FatalMutex<u8> = FatalMutex::new(1);
    panic_with(&left);
    assert!(catch_unwind(AssertUnwindSafe(|| *left.lock())).is_err());
    assert!(left.try_lock_if_unpoisoned().is_none() && left.lock_if_unpoisoned().is_none());

    let (sender, reports) = mpsc::channel();
    let sender = Mutex::new(sender);
    fatal_mutex::on_poison(move |what| sender.lock().unwrap().send(what).unwrap());

    // A panic elsewhere may lock on its way out.
    let count = FatalMutex::new(2);
    let panic = AssertUnwindSafe(|| {
        let _one = GiveBack(&count);
        panic!("expected");
    });
    assert!(catch_unwind(panic).is_err());
    assert_eq!(*count.lock(), 1);
    assert_eq!(reports.try_recv(), Err(mpsc::TryRecvError::Empty));

    // One thread waits for a notification, and another one locks later.
    let kept = Arc::new(FatalMutex::new(0_u32));
    let changed = Arc::new(Condvar::new());
    let passed = Arc::new(AtomicBool::new(false));
    let (waits, is_waiting) = mpsc::channel();
    let waiter = {
        let kept = kept.clone();
        let changed = changed.clone();
        let passed = passed.clone();
        thread::spawn(move || {
            let mut value = kept.lock();
            waits.send(()).unwrap();
            while *value == 0 {
                value = FatalMutexGuard::wait(value, &changed);
            }
            passed.store(true, SeqCst);
        })
    };
    is_waiting.recv().unwrap();
    panic_with(&FatalMutex::new(String::new()));
    assert_eq!(reports.recv_timeout(Duration::from_secs(10)), Ok("alloc::string::String"));
    // The break is reported once.
    panic_with_whole(&FatalMutex::new(0_u8));
    assert_eq!(reports.try_recv(), Err(mpsc::TryRecvError::Empty));

    *kept.lock_if_unpoisoned().unwrap() = 1;
    changed.notify_all();
    let later = {
        let kept = kept.clone();
        let passed = passed.clone();
        thread::spawn(move || {
            let _value = kept.lock();
            passed.store(true, SeqCst);
        })
    };
    // A test cannot show that a thread never goes on, but it can show that both have released the lock.
    for _ in 0..1000 {
        assert_eq!(*kept.lock_if_unpoisoned().unwrap(), 1);
        thread::yield_now();
    }
    assert!(!waiter.is_finished() && !later.is_finished() && !passed.load(SeqCst));
    assert!(kept.try_lock_if_unpoisoned().is_some(), "the last words of a broken process pass");
}

fn panic_with_whole<T>(lock: &FatalMutex<T>) {
    let panic = AssertUnwindSafe(|| {
        let _held = lock.lock_if_unpoisoned().unwrap();
        panic!("expected");
    });
    assert!(catch_unwind(panic).is_err());
}
