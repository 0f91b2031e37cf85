//! Scenarios of the simulation.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::World;
use super::world::Content;
use crate::fleet::PublishOutcome;

const SECOND: Duration = Duration::from_secs(1);

/// Puts everything in order and waits until all nodes have what they miss.
fn heal(world: &mut World) {
    for at in 0..world.members.len() {
        world.members[at].disk.borrow_mut().set_failing(false);
        world.members[at].cache.fails.store(false, SeqCst);
        if world.members[at].process.is_none() {
            world.start(at);
        }
        let link = format!("{} {at}", world.members[at].name);
        world.server.set_link(&link, true);
    }
    world.server.lost_replies.set(0);
    world.server.delay_max.set(Duration::from_millis(20));
    world.run(30 * SECOND);
    for at in 0..world.members.len() {
        let status = world.status(at);
        assert!(status.engine.is_some() && status.queued == 0 && status.lag == 0, "{at}: {status:?}");
    }
}

/// One random event.
fn happen(world: &mut World, snapshot: &mut Content, last_loss: &mut Duration) {
    let count = world.members.len();
    let at = world.random.below(count);
    let link = format!("{} {at}", world.members[at].name);
    match world.random.below(100) {
        0..50 if world.members[at].process.is_some() => {
            let tags = 1 + world.random.below(3);
            world.order(at, tags);
        }
        50..58 => world.server.set_link(&link, false),
        58..72 => world.server.set_link(&link, true),
        72..75 => {
            // A partition: a third of the nodes at once.
            for other in (0..count).filter(|other| other % 3 == at % 3) {
                world.server.set_link(&format!("{} {other}", world.members[other].name), false);
            }
        }
        75..79 if world.members[at].process.is_some() => world.crash(at),
        79..85 if world.members[at].process.is_none() => world.start(at),
        85..87 => {
            let fails = world.random.happens(50);
            world.members[at].cache.fails.store(fails, SeqCst);
        }
        87..89 => {
            let fails = world.random.happens(50);
            world.members[at].disk.borrow_mut().set_failing(fails);
        }
        89 => world.server.restart(),
        90 => *snapshot = world.server.content.borrow().clone(),
        91 | 92 if world.time.now() > *last_loss + 15 * SECOND => {
            *last_loss = world.time.now();
            // An old snapshot, or the last writes although they were acknowledged.
            let before = if world.random.happens(50) {
                snapshot.clone()
            } else {
                let mut content = world.server.content.borrow().clone();
                let rest = content.records.len().saturating_sub(1 + world.random.below(20));
                content.records.truncate(rest);
                content.last = content.records.last().map_or(0, |record| record.sequence);
                let last = content.last;
                content.history.retain(|record| record.sequence <= last);
                content
            };
            let lost = world.server.restore(before);
            world.note_lost(&lost);
        }
        93 if world.time.now() > *last_loss + 15 * SECOND && world.random.happens(20) => {
            *last_loss = world.time.now();
            let lost = world.server.recreate();
            *snapshot = Content::default();
            world.note_lost(&lost);
        }
        94 => {
            // An empty log that went back to the position of a node looks like one that did not.
            let rest = 1 + world.random.below(50);
            world.server.drop_old_records(rest);
        }
        95 => {
            let hours = world.random.below(48) as i64 - 24;
            world.server.clock_ns.set(hours * 3_600_000_000_000);
        }
        96 => {
            let percent = world.random.below(40);
            world.server.lost_replies.set(percent);
        }
        97 => {
            let millis = world.random.below(3000) as u64;
            world.server.delay_max.set(Duration::from_millis(millis));
        }
        98 => world.server.delay_max.set(Duration::from_millis(20)),
        _ => {}
    }
}

/// A run of random faults.
fn chaos(seed: u64, nodes: usize, seconds: u64) -> (usize, String) {
    let mut world = World::new(seed, nodes);
    world.run(2 * SECOND);
    let mut snapshot = Content::default();
    let mut last_loss = Duration::ZERO;
    let end = world.time.now() + Duration::from_secs(seconds);
    while world.time.now() < end {
        happen(&mut world, &mut snapshot, &mut last_loss);
        let pause = world.random.below(100) as u64;
        world.run(Duration::from_millis(pause));
    }
    heal(&mut world);
    (world.check(seed), world.digest())
}

#[test]
fn hundred_nodes_apply_every_purge_or_are_stale() {
    let (applied, digest) = chaos(1, 100, 60);
    assert!(applied > 1000, "{applied}");
    assert_eq!(chaos(1, 100, 60).1, digest, "the same seed gives the same run");
}

#[test]
fn small_fleets_apply_every_purge_or_are_stale() {
    // TAILWATER_SEEDS=1000:2000 tries others.
    let seeds = std::env::var("TAILWATER_SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|seeds| {
        let (first, end) = seeds.split_once(':')?;
        Some(first.parse().ok()?..end.parse().ok()?)
    });
    for seed in seeds.unwrap_or(100..140) {
        chaos(seed, 5, 60);
    }
}

#[test]
fn acknowledged_writes_that_are_lost_are_published_again() {
    let mut world = World::new(5, 3);
    world.run(2 * SECOND);
    // The engine acknowledges to node 0, whose reader gets nothing any more: the record is lost before any node has
    // read it.
    let before = world.server.content.borrow().clone();
    world.server.delivers.set(false);
    world.order(0, 1);
    while world.server.content.borrow().last == before.last {
        world.run(Duration::from_millis(1));
    }
    while world.ordered[&0].outcome.borrow().is_none() {
        world.run(Duration::from_micros(100));
    }
    assert_eq!(*world.ordered[&0].outcome.borrow(), Some(PublishOutcome::Published));
    let lost = world.server.restore(before);
    world.note_lost(&lost);
    world.server.delivers.set(true);
    heal(&mut world);
    assert_eq!(world.check(5), 3);
    assert_eq!(world.status(0).lost, 1);
    assert!(world.members.iter().all(|member| member.cache.applied.lock().unwrap().stale_count == 1));
}

#[test]
fn node_that_was_away_for_a_week_is_stale() {
    let mut world = World::new(6, 4);
    world.run(2 * SECOND);
    world.order(0, 1);
    world.run(2 * SECOND);
    world.crash(3);
    world.order(0, 1);
    world.run(2 * SECOND);
    // Retention: the engine has dropped records that node 3 has not read.
    world.server.clock_ns.set(7 * 86_400 * 1_000_000_000);
    world.server.drop_old_records(1);
    world.order(1, 1);
    world.run(2 * SECOND);
    world.server.drop_old_records(1);
    world.run(2 * SECOND);
    world.start(3);
    heal(&mut world);
    world.check(6);
    let applied = world.members[3].cache.applied.lock().unwrap();
    assert!(!applied.purges.contains(&1) && applied.stale_count == 2, "{:?}", applied.purges);
    assert_eq!(
        world.members[2].cache.applied.lock().unwrap().stale_count,
        1,
        "the others have missed nothing"
    );
}

#[test]
fn flood_of_tags_reaches_all_nodes() {
    let mut world = World::new(7, 20);
    world.run(2 * SECOND);
    for round in 0..1000 {
        world.order(round % 20, 100);
        if round == 300 {
            (0..20)
                .filter(|at| at % 2 == 0)
                .for_each(|at| world.server.set_link(&format!("node-{at} {at}"), false));
        }
        world.run(Duration::from_millis(20));
    }
    heal(&mut world);
    assert_eq!(world.check(7), 20 * 100_000);
    assert!(world.members.iter().all(|member| member.cache.applied.lock().unwrap().stale_count == 1));
}

#[test]
fn two_nodes_with_one_name_are_reported() {
    let mut world = World::new(8, 3);
    let twin = world.add("node-1");
    world.run(60 * SECOND);
    for at in [1, twin] {
        let log = world.members[at].log.lock().unwrap().join("\n");
        assert!(log.contains("error fleet \"edge\": another server has the name \"node-1\", too"), "{log}");
        assert!(world.status(at).has_name_conflict);
    }
    for at in [0, 2] {
        assert!(!world.status(at).has_name_conflict);
        assert!(!world.members[at].log.lock().unwrap().iter().any(|line| line.contains("another server")));
    }
    // Purges reach both nevertheless.
    world.order(1, 1);
    world.order(twin, 1);
    world.run(5 * SECOND);
    world.check(8);
    world.crash(twin);
    world.members.remove(twin);
    world.run(60 * SECOND);
    assert!(!world.status(1).has_name_conflict, "it is over");
    // A restart is none.
    world.crash(2);
    world.start(2);
    world.run(60 * SECOND);
    assert!(!world.status(2).has_name_conflict);
}
