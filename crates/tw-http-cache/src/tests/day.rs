//! Days of a server on the simulated disk: many lives behind each other on one directory, with times of faults of the disk, power
//! cuts, clean restarts, and pauses in which no server runs. The clock is virtual: each step takes some seconds of it.
//!
//! `TAILWATER_DAYS` is the number of days, each of another seed.

use super::*;

/// Days of each store, if `TAILWATER_DAYS` does not say another number.
const DAYS: u64 = 6;
/// Length of a day, in milliseconds of the virtual clock.
const DAY_MS: u64 = 24 * 3_600_000;
/// Longest step, and longest time of faults, of a life and of a pause between two.
const STEP_MS: u64 = 90_000;
const FAULTS_MS: u64 = 3_600_000;
const LIFE_MS: u64 = 4 * 3_600_000;
const PAUSE_MS: u64 = 600_000;

/// Numbers of a day.
#[derive(Debug, Default)]
struct Day {
    lives: u64,
    power_cuts: u64,
    fault_times: u64,
    steps: u64,
    hits: u64,
}

fn span(random: &mut Random, longest: u64) -> u64 {
    1 + random.below(usize::try_from(longest).unwrap()) as u64
}

async fn day(seed: u64, pool: &Pool) -> Day {
    let (sim, truth, mut random) = (new_sim(seed), Truth::default(), Random::new(seed));
    let begin = 1_800_000_000_000 + seed * DAY_MS;
    let (mut now, mut day) = (begin, Day::default());
    while now < begin + DAY_MS {
        let when = format!("day {seed}, {} s", (now - begin) / 1000);
        println!("{when}");
        day.lives += 1;
        let process = Process::start(door(&sim, pool), now).await;
        recover(&process, &truth, &sim, &mut random, &when).await;
        let ends = now + span(&mut random, LIFE_MS);
        let is_clean = random.happens(30);
        let mut faults_end = None;
        let fillings = RefCell::new(Vec::new());
        while now < ends && !sim.is_down() {
            now += span(&mut random, STEP_MS);
            day.steps += 1;
            match faults_end {
                Some(end) if now >= end => {
                    sim.set_faults(Faults::NONE);
                    faults_end = None;
                    // Whatever it did, nothing is wrong when it works again.
                    for page in 0..PAGES {
                        process.get(&truth, page).await;
                    }
                }
                Some(_) => {}
                None if random.happens(2) => {
                    sim.set_faults(Faults::MANY);
                    day.fault_times += 1;
                    faults_end = Some(now + span(&mut random, FAULTS_MS));
                }
                None => {}
            }
            if random.happens(3) && !is_clean {
                sim.fail_power_after(random.below(60) as u64);
                day.power_cuts += 1;
            }
            process.step(&truth, &mut random, &fillings).await;
        }
        sim.set_faults(Faults::NONE);
        let mut before = Vec::new();
        if is_clean && !sim.is_down() {
            for page in 0..PAGES {
                before.push(process.get(&truth, page).await);
            }
        } else {
            sim.fail_power_after(0);
        }
        drop(fillings);
        drop(process);
        let loss =
            if before.is_empty() { random.one_of(&[Loss::Nothing, Loss::Ordered]) } else { Loss::Nothing };
        sim.restart(loss);
        now += span(&mut random, PAUSE_MS);
        if !before.is_empty() {
            let process = Process::start(door(&sim, pool), now).await;
            process.load().await;
            for (page, before) in before.iter().enumerate() {
                let is_kept = before.is_none() || process.get(&truth, page).await == *before;
                assert!(is_kept, "{when}: page {page} was lost by a clean restart");
                day.hits += u64::from(before.is_some());
            }
            drop(process);
            sim.restart(Loss::Nothing);
            now += 1000;
        }
    }
    day
}

fn days() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    let days = std::env::var("TAILWATER_DAYS").ok().and_then(|days| days.parse().ok()).unwrap_or(DAYS);
    let mut all = Day::default();
    for seed in 0..days {
        let day = block_on(day(seed, &pool));
        all.lives += day.lives;
        all.power_cuts += day.power_cuts;
        all.fault_times += day.fault_times;
        all.steps += day.steps;
        all.hits += day.hits;
    }
    println!("{days} days: {all:?}");
    assert!(all.hits > days && all.power_cuts > days && all.fault_times > days, "{all:?}");
}

#[test]
fn a_day_of_faults_loses_nothing() {
    days();
}

#[test]
fn a_day_of_faults_loses_nothing_in_segments() {
    STORE.set(LOG);
    days();
}
