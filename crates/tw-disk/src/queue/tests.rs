use super::*;
use JobClass::{Evict, Fill, Hit, Scan};
use std::ops::Range;

type Jobs = Queue<&'static str>;

fn push(q: &mut Jobs, class: JobClass, source: u64, job: &'static str) -> Ticket {
    q.push(class, JobSource::new(source), NO_DEVICE, job, false).unwrap()
}

/// Takes and ends jobs one after the other until nothing is left.
fn drain(q: &mut Jobs) -> Vec<&'static str> {
    let mut order = Vec::new();
    while let Some((ticket, job)) = q.take(Runner::default()) {
        order.push(job);
        q.done(ticket);
    }
    order
}

fn take_all(q: &mut Jobs) -> Vec<(Ticket, &'static str)> {
    std::iter::from_fn(|| q.take(Runner::default())).collect()
}

#[test]
fn caps_follow_from_slots() {
    // slots, share, limit, per class
    let cases = [
        (0, 1, 1, [1, 1, 1, 1]),
        (1, 1, 1, [1, 1, 1, 1]),
        (2, 1, 1, [2, 1, 1, 1]),
        (4, 2, 3, [4, 3, 2, 1]),
        (16, 8, 14, [16, 14, 8, 4]),
        (32, 16, 28, [32, 28, 16, 8]),
    ];
    for (slots, share, limit, class) in cases {
        assert_eq!(
            Caps::of(slots, None),
            Caps { slots: slots.max(1), share, limit, class, device: share },
            "{slots}"
        );
    }
}

#[test]
fn classes_come_in_order_and_first_come_first_served_within() {
    let mut q = Jobs::new(1, 100, None);
    push(&mut q, Hit, 9, "gate");
    for (class, source, job) in [
        (Scan, 1, "scan"),
        (Evict, 2, "evict"),
        (Fill, 3, "fill 1"),
        (Fill, 3, "fill 2"),
        (Hit, 4, "hit 1"),
        (Hit, 4, "hit 2"),
    ] {
        push(&mut q, class, source, job);
    }
    assert_eq!(drain(&mut q), ["gate", "hit 1", "hit 2", "fill 1", "fill 2", "evict", "scan"]);
}

#[test]
fn sources_take_turns() {
    let mut q = Jobs::new(1, 100, None);
    push(&mut q, Hit, 9, "gate");
    for job in ["a1", "a2", "a3"] {
        push(&mut q, Hit, 1, job);
    }
    push(&mut q, Hit, 2, "b1");
    push(&mut q, Hit, 2, "b2");
    push(&mut q, Hit, 3, "c1");
    assert_eq!(drain(&mut q), ["gate", "a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[test]
fn one_source_leaves_room_for_others() {
    // Four slots: a source may hold three, and only two while another waits.
    let mut q = Jobs::new(4, 100, None);
    for job in ["a1", "a2", "a3", "a4"] {
        push(&mut q, Hit, 1, job);
    }
    assert_eq!((q.running(), q.waiting()), (3, 1));
    push(&mut q, Hit, 2, "b1");
    assert_eq!((q.running(), q.waiting()), (4, 1));
    push(&mut q, Hit, 2, "b2");
    let running = take_all(&mut q);
    assert_eq!(running.iter().map(|(_, job)| *job).collect::<Vec<_>>(), ["a1", "a2", "a3", "b1"]);
    // A slot falls free: b is below its share, a is not.
    q.done(running[0].0);
    assert_eq!(q.take(Runner::default()).unwrap().1, "b2");
    q.done(running[1].0);
    assert_eq!(q.take(Runner::default()).unwrap().1, "a4");
}

#[test]
fn a_capped_source_gives_way_to_a_lower_class() {
    let mut q = Jobs::new(4, 100, None);
    for job in ["a1", "a2"] {
        push(&mut q, Hit, 1, job);
    }
    push(&mut q, Hit, 2, "b1");
    push(&mut q, Hit, 3, "c1");
    let running = take_all(&mut q);
    push(&mut q, Hit, 1, "a3");
    push(&mut q, Fill, 4, "d1");
    q.done(running[2].0);
    assert_eq!(q.take(Runner::default()).unwrap().1, "d1");
}

#[test]
fn no_source_may_fill_an_idle_queue() {
    let mut q = Jobs::new(4, 100, None);
    for job in ["1", "2", "3", "4", "5"] {
        push(&mut q, Hit, 0, job);
    }
    assert_eq!((q.running(), q.waiting()), (4, 1));
}

#[test]
fn lower_classes_leave_room_for_hits() {
    for (class, at_most) in [(Hit, 8), (Fill, 7), (Evict, 4), (Scan, 2)] {
        let mut q = Jobs::new(8, 100, None);
        for source in 1..=8 {
            push(&mut q, class, source, "x");
        }
        assert_eq!(q.running(), at_most, "{class:?}");
    }
}

#[test]
fn the_lowest_class_does_not_starve() {
    let mut q = Jobs::new(1, 1000, None);
    push(&mut q, Hit, 9, "gate");
    push(&mut q, Scan, 1, "scan");
    (0..BOTTOM_UP_EVERY).for_each(|_| {
        push(&mut q, Hit, 2, "hit");
    });
    let order = drain(&mut q);
    let at = order.iter().position(|job| *job == "scan").unwrap();
    assert!(at < BOTTOM_UP_EVERY as usize, "{at}");
}

#[test]
fn full_queue_refuses_jobs_that_cannot_start_at_once() {
    let mut q = Jobs::new(4, 0, None);
    for job in ["a1", "a2", "a3"] {
        push(&mut q, Hit, 1, job);
    }
    // The source is at its limit: its next job would have to wait, another's would not.
    let full = q.push(Hit, JobSource::new(1), NO_DEVICE, "a4", false).unwrap_err();
    assert_eq!((full.job, full.waiting), ("a4", 0));
    push(&mut q, Hit, 2, "b1");
    assert!(q.push(Hit, JobSource::new(3), NO_DEVICE, "c1", false).is_err());
    q.push(Hit, JobSource::new(3), NO_DEVICE, "close", true).unwrap();
    assert_eq!(q.waiting(), 1);
}

#[test]
fn queued_jobs_can_be_cancelled() {
    let mut q = Jobs::new(1, 100, None);
    let gate = push(&mut q, Hit, 1, "gate");
    let waiting = push(&mut q, Hit, 1, "waiting");
    let last = push(&mut q, Fill, 2, "last");
    assert_eq!(q.cancel(waiting), Some("waiting"));
    assert_eq!(q.cancel(waiting), None);
    // A started job gives its slot to the next.
    assert_eq!(q.cancel(gate), Some("gate"));
    let (taken, job) = q.take(Runner::default()).unwrap();
    assert_eq!((taken, job), (last, "last"));
    assert_eq!(q.cancel(taken), None);
    q.done(taken);
    q.done(taken);
    assert_eq!((q.running(), q.waiting()), (0, 0));
    // The slots are used again, with other tickets.
    let again = push(&mut q, Hit, 1, "again");
    assert_ne!(again, taken);
    assert_eq!(q.cancel(taken), None);
    assert_eq!(drain(&mut q), ["again"]);
}

#[test]
fn resizing_loses_nothing() {
    let mut q = Jobs::new(1, 100, None);
    for source in 1..=6 {
        push(&mut q, Hit, source, "x");
    }
    assert!(q.resize(3, 0, None) && !q.resize(3, 0, None));
    assert_eq!((q.running(), q.waiting()), (3, 3));
    assert!(q.resize(1, 0, None));
    let running = take_all(&mut q);
    assert_eq!(running.len(), 3);
    for (ticket, _) in &running[..2] {
        q.done(*ticket);
        assert!(!q.has_started());
    }
    q.done(running[2].0);
    assert_eq!(drain(&mut q).len(), 3);
}

/// Checks the invariants that must hold after every operation.
fn check(q: &Queue<u64>, taken: &[Ticket]) {
    let mut per_class = [0; CLASSES];
    let mut per_key: HashMap<(u32, JobSource), u32> = HashMap::new();
    let mut per_device: HashMap<u32, (u32, u32, usize)> = HashMap::new();
    for slot in q.slots.iter().filter(|slot| slot.state != SlotState::Free) {
        let key = &q.keys[slot.key as usize];
        let (running, hung, waiting) = per_device.entry(key.device).or_default();
        match slot.state {
            SlotState::Waiting => *waiting += 1,
            SlotState::Hung => *hung += 1,
            _ => {
                *running += 1;
                per_class[slot.class.index()] += 1;
            }
        }
        *per_key.entry((key.device, key.source)).or_default() += u32::from(slot.state != SlotState::Waiting);
    }
    assert_eq!(per_class, q.running);
    let waiting = q.slots.iter().filter(|slot| slot.state == SlotState::Waiting).count();
    assert_eq!(waiting, q.waiting);
    let held_count = |slot: &&Slot<u64>| matches!(slot.state, SlotState::Taken | SlotState::Hung);
    assert_eq!(q.slots.iter().filter(held_count).count(), taken.len());
    for (&of, &key) in &q.by_source {
        let key = &q.keys[key as usize];
        assert_eq!(key.running, per_key.get(&of).copied().unwrap_or(0));
        assert_eq!(key.level, q.level_of(key.source, key.running));
        assert!(
            key.running > 0 || key.waiting.iter().any(|list| !list.is_empty()),
            "an idle source was kept"
        );
    }
    for (number, device) in q.devices.iter().enumerate() {
        let expected = per_device.get(&(number as u32)).copied().unwrap_or_default();
        assert_eq!((device.running, device.hung, device.waiting), expected, "device {number}");
        assert_eq!(q.hanging.contains(&(number as u32)), device.hung > 0);
    }
    // Work conserving: a free slot means that no waiting job may have it.
    if q.running() < q.caps.slots {
        for slot in q.slots.iter().filter(|slot| slot.state == SlotState::Waiting) {
            let key = &q.keys[slot.key as usize];
            assert!(!q.would_start(slot.class, key.source, key.device));
        }
    }
}

#[test]
fn random_operations_keep_counters_consistent() {
    for seed in 1..=200_u64 {
        let mut random = seed;
        let mut next = |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % end
        };
        let share = |n: u64| (n > 0).then_some(n as u32);
        let mut q = Queue::new(1 + next(9) as u32, next(20) as usize, share(next(4)));
        let mut open: Vec<Ticket> = Vec::new();
        let mut taken: Vec<Ticket> = Vec::new();
        let mut pushed = 0_u64;
        let mut ended = 0_u64;
        for job in 0..400_u64 {
            match next(13) {
                0..=4 => {
                    let class = JobClass::ALL[next(4) as usize];
                    let source = JobSource::new(next(4));
                    if let Ok(ticket) = q.push(class, source, next(4) as u32, job, next(20) == 0) {
                        open.push(ticket);
                        pushed += 1;
                    }
                }
                5 | 6 => {
                    taken.extend(q.take(Runner::default()).map(|(ticket, _)| ticket));
                }
                7 if !taken.is_empty() => {
                    let ticket = taken.swap_remove(next(taken.len() as u64) as usize);
                    q.done(ticket);
                    ended += 1;
                }
                8 if !open.is_empty() => {
                    let ticket = open.swap_remove(next(open.len() as u64) as usize);
                    ended += u64::from(q.cancel(ticket).is_some());
                }
                9 if next(5) == 0 => _ = q.resize(1 + next(9) as u32, next(20) as usize, share(next(4))),
                10 | 11 => {
                    q.tick();
                    for overdue in q.overdue(1 + next(5), |_| 0) {
                        assert!(q.hang(overdue.ticket, next(3) > 0).is_some());
                    }
                }
                12 => ended += (0..4).map(|device| q.refuse_waiting(device).len() as u64).sum::<u64>(),
                _ => {}
            }
            check(&q, &taken);
        }
        while pushed > ended {
            match q.take(Runner::default()) {
                Some((ticket, _)) => taken.push(ticket),
                None => {
                    let ticket = taken.pop().expect("a job that is nowhere");
                    q.done(ticket);
                    ended += 1;
                }
            }
            check(&q, &taken);
        }
        assert!(q.by_source.is_empty());
    }
}

/// A job of a source of its own.
fn push_on(q: &mut Queue<u64>, device: u32, job: u64) -> Ticket {
    q.push(Hit, JobSource::new(job + 1), device, job, false).unwrap()
}

fn push_all(q: &mut Queue<u64>, device: u32, jobs: Range<u64>) {
    for job in jobs {
        push_on(q, device, job);
    }
}

fn take_jobs(q: &mut Queue<u64>) -> Vec<Ticket> {
    std::iter::from_fn(|| q.take(Runner::default())).map(|(ticket, _)| ticket).collect()
}

/// Ticks until what was taken before is overdue, and notes that it hangs. The number of jobs that do.
fn hang_all(q: &mut Queue<u64>, is_replaced: bool) -> usize {
    (0..10).for_each(|_| q.tick());
    let overdue = q.overdue(10, |_| 0);
    overdue.iter().filter(|overdue| q.hang(overdue.ticket, is_replaced).is_some()).count()
}

#[test]
fn device_has_its_share_of_slots_and_its_queue_blocks_no_other() {
    // (slots, device_threads, share of one device)
    for (slots, given, share) in
        [(1, None, 1), (2, None, 1), (5, None, 3), (32, None, 16), (32, Some(4), 4), (8, Some(99), 8)]
    {
        let mut q = Queue::new(slots, 100, given);
        push_all(&mut q, 1, 0..60);
        assert_eq!((q.running(), q.waiting()), (share, 60 - share as usize), "{slots} {given:?}");
        push_all(&mut q, 2, 60..60 + u64::from(slots - share));
        assert_eq!(q.running(), (2 * share).min(slots), "{slots} {given:?}");
    }
}

#[test]
fn full_queue_of_one_device_refuses_no_other() {
    let mut q = Queue::new(4, 3, None);
    push_all(&mut q, 1, 0..5);
    assert!(q.push(Hit, JobSource::new(9), 1, 9, false).is_err());
    push_all(&mut q, 2, 10..15);
    assert_eq!((q.running(), q.waiting()), (4, 6));
}

#[test]
fn hung_job_releases_its_slot_and_the_device_gets_one_probe_at_a_time() {
    let mut q = Queue::new(4, 100, None);
    let jobs: Vec<Ticket> = (0..6).map(|job| push_on(&mut q, 1, job)).collect();
    let taken = take_jobs(&mut q);
    assert_eq!(taken.len(), 2);
    // A job is not overdue before its time, nor while it makes progress.
    (0..9).for_each(|_| q.tick());
    assert_eq!(q.overdue(10, |_| 0), []);
    q.tick();
    assert_eq!(q.overdue(10, |_| 1), []);
    assert!(!q.is_hung(1));
    assert_eq!((0..10).map(|_| q.tick()).count(), 10);
    let overdue = q.overdue(10, |_| 1);
    assert_eq!(overdue.iter().map(|overdue| overdue.ticket).collect::<Vec<_>>(), taken);
    for (at, overdue) in overdue.iter().enumerate() {
        assert_eq!(q.hang(overdue.ticket, true), Some(at as u64));
    }
    assert!(q.is_hung(1));
    assert_eq!((q.hung_on(1), q.replaced(), q.running()), (2, 2, 1));
    // Other jobs wait for the probe, but only for a short time.
    assert!(!q.is_vain(1) && q.refuse_waiting(1).is_empty());
    assert_eq!(take_jobs(&mut q), [jobs[2]]);
    (0..PROBE_TICKS).for_each(|_| q.tick());
    assert!(q.is_vain(1));
    assert_eq!(q.refuse_waiting(1).len(), 3);
    assert_eq!((q.waiting(), q.running()), (0, 1));
    // Other devices have all remaining slots.
    push_all(&mut q, 2, 10..20);
    assert_eq!(q.running(), 3);
    assert!(!q.is_hung(2) && !q.is_vain(2));
    // The probe answers: the device works, although two are still away.
    q.done(jobs[2]);
    assert!(!q.is_hung(1) && !q.is_vain(1));
    push_all(&mut q, 1, 20..26);
    assert_eq!(q.running(), 4);
    taken.iter().for_each(|ticket| q.done(*ticket));
    assert_eq!((q.hung(), q.replaced(), q.hung_on(1)), (0, 0, 0));
}

#[test]
fn hung_device_occupies_its_slots_and_a_few_probes() {
    for is_replaced in [true, false] {
        let mut q = Queue::new(32, 100_000, None);
        let mut hung = 0;
        for round in 0..40 {
            push_all(&mut q, 1, round * 5..(round + 1) * 5);
            take_jobs(&mut q);
            hung += hang_all(&mut q, is_replaced);
            q.refuse_waiting(1);
        }
        assert_eq!((hung, q.hung_on(1), q.waiting()), (20, 20, q.waiting()), "{is_replaced}");
        // A hung job whose thread was not replaced still occupies its slot.
        assert_eq!((q.replaced(), q.running()), if is_replaced { (20, 0) } else { (0, 20) });
        assert!(q.is_vain(1));
        push_all(&mut q, 2, 5000..5060);
        assert_eq!(q.running(), if is_replaced { 16 } else { 32 });
    }
}

#[test]
fn device_with_progressing_jobs_is_not_hung() {
    let mut q = Queue::new(8, 100, None);
    let stuck = push_on(&mut q, 1, 1);
    let other = push_on(&mut q, 1, 2);
    take_jobs(&mut q);
    (0..5).for_each(|_| q.tick());
    q.done(other);
    (0..5).for_each(|_| q.tick());
    for overdue in q.overdue(10, |_| 0) {
        assert_eq!(overdue.ticket, stuck);
        q.hang(overdue.ticket, true);
    }
    assert_eq!((q.hung_on(1), q.is_hung(1)), (1, false));
    push_all(&mut q, 1, 3..7);
    assert_eq!(q.running(), 4);
}

#[test]
fn mandatory_jobs_wait_for_a_hung_device() {
    let mut q = Queue::new(2, 100, None);
    push_on(&mut q, 1, 1);
    take_jobs(&mut q);
    hang_all(&mut q, true);
    push_on(&mut q, 1, 2);
    take_jobs(&mut q);
    q.push(Fill, JobSource::NONE, 1, 3, true).unwrap();
    push_on(&mut q, 1, 4);
    (0..PROBE_TICKS).for_each(|_| q.tick());
    assert_eq!(q.refuse_waiting(1), [4]);
    assert_eq!((q.waiting(), q.waiting_in_vain()), (1, 1));
}
