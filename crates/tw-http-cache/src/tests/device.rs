//! Devices whose opening is given up.

use super::process::cache_path;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use tw_disk::Op;
use tw_testkit::wait;

use super::*;
use crate::store::segments::DeviceContentUse;

#[test]
fn device_whose_opening_was_given_up_is_still_another_one() {
    STORE.set(LOG);
    DEVICE.set(true);
    let (sim, pool) = (new_sim(1), Pool::new("threads", 2, 1000).unwrap());
    let note = c"/cache/device";
    sim.put(note, b"fedcba9876543210fedcba9876543210\n").unwrap();
    let before = sim.content(note);
    let disk = Disk::simulated(pool, Aio::Threads, sim.clone());
    let zone = CacheZone::new(&cache_path(0));
    let store = &zone.store;
    let use_of = |_: &[u8]| DeviceContentUse::Keep;
    let (stall, began) = (sim.stall(Op::Fsync), Instant::now());
    block_on(async {
        let mut open = Box::pin(store.open_device(&disk, use_of));
        poll_fn(|cx| {
            assert!(open.as_mut().poll(cx).is_pending());
            // A job that no thread has begun is given up with its future.
            if sim.content(note) != before && stall.held_calls() > 0 {
                return Poll::Ready(());
            }
            assert!(began.elapsed() < wait::TIMEOUT, "no call is held");
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    });
    drop(stall);
    // The lock of the note is held until the operation has ended.
    let opened = wait::some(wait::TIMEOUT, || block_on(store.open_device(&disk, use_of)).ok());
    assert!(sim.content(note) != before);
    assert!(opened.unwrap().is_some());
}
