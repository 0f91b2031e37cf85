//! Power cuts at every operation of a cache.

use super::*;

const SEEDS: u64 = 150;

/// Number of lives: a crash of a device takes longer, because all of it is one file.
pub(super) fn seeds() -> u64 {
    if DEVICE.get() { SEEDS / 10 } else { SEEDS }
}

/// One life, which is cut off after so many operations.
async fn cut_off(seed: u64, calls: u64, loss: Loss, pool: &Pool) -> u64 {
    let (sim, truth, mut random) = (new_sim(seed), Truth::default(), Random::new(seed));
    let process = Process::start(door(&sim, pool), 1_800_000_000_000).await;
    process.load().await;
    sim.fail_power_after(calls);
    let before = sim.calls();
    let fillings = RefCell::new(Vec::new());
    for page in 0..4 {
        process.store(process.begin(&truth, page)).await;
    }
    for _ in 0..25 {
        process.step(&truth, &mut random, &fillings).await;
    }
    let needed = sim.calls() - before;
    drop(fillings);
    drop(process);
    sim.restart(loss);
    let process = Process::start(door(&sim, pool), 1_800_000_001_000).await;
    let when = format!("seed {seed}, cut off after {calls} operations, {loss:?} is lost");
    recover(&process, &truth, &sim, &mut random, &when).await;
    needed
}

#[test]
fn a_crash_at_every_operation_is_outlived() {
    crash_everywhere();
}

#[test]
fn segments_outlive_a_crash_at_every_operation() {
    STORE.set(LOG);
    crash_everywhere();
}

#[test]
fn segments_past_the_page_cache_outlive_a_crash_at_every_operation() {
    STORE.set(LOG);
    DIRECT.set(true);
    crash_everywhere();
}

#[test]
fn segments_on_a_device_outlive_a_crash_at_every_operation() {
    STORE.set(LOG);
    DEVICE.set(true);
    crash_everywhere();
}

fn crash_everywhere() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    for seed in 0..if DEVICE.get() { 1 } else { 4 } {
        let needed = block_on(cut_off(seed, u64::MAX / 2, Loss::Nothing, &pool));
        assert!(needed > 30, "{needed}");
        for calls in 0..needed {
            for loss in [Loss::Nothing, Loss::Ordered] {
                block_on(cut_off(seed, calls, loss, &pool));
            }
        }
    }
}
