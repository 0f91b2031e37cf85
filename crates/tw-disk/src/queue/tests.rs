use super::*;
use Class::{Evict, Fill, Hit, Scan};

type Jobs = Queue<&'static str>;

fn push(q: &mut Jobs, class: Class, source: u64, job: &'static str) -> Ticket {
    q.push(class, Source::new(source), job, false).unwrap()
}

/// Takes and ends jobs one after the other until nothing is left.
fn drain(q: &mut Jobs) -> Vec<&'static str> {
    let mut order = Vec::new();
    while let Some((ticket, job)) = q.take() {
        order.push(job);
        q.done(ticket);
    }
    order
}

fn take_all(q: &mut Jobs) -> Vec<(Ticket, &'static str)> {
    std::iter::from_fn(|| q.take()).collect()
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
        assert_eq!(Caps::of(slots), Caps { slots: slots.max(1), share, limit, class }, "{slots}");
    }
}

#[test]
fn classes_come_in_order_and_first_come_first_served_within() {
    let mut q = Jobs::new(1, 100);
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
    let mut q = Jobs::new(1, 100);
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
    let mut q = Jobs::new(4, 100);
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
    assert_eq!(q.take().unwrap().1, "b2");
    q.done(running[1].0);
    assert_eq!(q.take().unwrap().1, "a4");
}

#[test]
fn a_capped_source_gives_way_to_a_lower_class() {
    let mut q = Jobs::new(4, 100);
    for job in ["a1", "a2"] {
        push(&mut q, Hit, 1, job);
    }
    push(&mut q, Hit, 2, "b1");
    push(&mut q, Hit, 3, "c1");
    let running = take_all(&mut q);
    push(&mut q, Hit, 1, "a3");
    push(&mut q, Fill, 4, "d1");
    q.done(running[2].0);
    assert_eq!(q.take().unwrap().1, "d1");
}

#[test]
fn no_source_may_fill_an_idle_queue() {
    let mut q = Jobs::new(4, 100);
    for job in ["1", "2", "3", "4", "5"] {
        push(&mut q, Hit, 0, job);
    }
    assert_eq!((q.running(), q.waiting()), (4, 1));
}

#[test]
fn lower_classes_leave_room_for_hits() {
    for (class, at_most) in [(Hit, 8), (Fill, 7), (Evict, 4), (Scan, 2)] {
        let mut q = Jobs::new(8, 100);
        for source in 1..=8 {
            push(&mut q, class, source, "x");
        }
        assert_eq!(q.running(), at_most, "{class:?}");
    }
}

#[test]
fn the_lowest_class_does_not_starve() {
    let mut q = Jobs::new(1, 1000);
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
fn refuses_when_full_but_never_what_can_start() {
    let mut q = Jobs::new(4, 0);
    for job in ["a1", "a2", "a3"] {
        push(&mut q, Hit, 1, job);
    }
    // The source is at its limit: its next job would have to wait, another's would not.
    let full = q.push(Hit, Source::new(1), "a4", false).unwrap_err();
    assert_eq!((full.job, full.waiting), ("a4", 0));
    push(&mut q, Hit, 2, "b1");
    assert!(q.push(Hit, Source::new(3), "c1", false).is_err());
    q.push(Hit, Source::new(3), "close", true).unwrap();
    assert_eq!(q.waiting(), 1);
}

#[test]
fn cancels_what_is_not_taken() {
    let mut q = Jobs::new(1, 100);
    let gate = push(&mut q, Hit, 1, "gate");
    let waiting = push(&mut q, Hit, 1, "waiting");
    let last = push(&mut q, Fill, 2, "last");
    assert_eq!(q.cancel(waiting), Some("waiting"));
    assert_eq!(q.cancel(waiting), None);
    // A started job gives its slot to the next.
    assert_eq!(q.cancel(gate), Some("gate"));
    let (taken, job) = q.take().unwrap();
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
    let mut q = Jobs::new(1, 100);
    for source in 1..=6 {
        push(&mut q, Hit, source, "x");
    }
    q.resize(3, 0);
    assert_eq!((q.running(), q.waiting()), (3, 3));
    q.resize(1, 0);
    let running = take_all(&mut q);
    assert_eq!(running.len(), 3);
    for (ticket, _) in &running[..2] {
        q.done(*ticket);
        assert!(!q.has_started());
    }
    q.done(running[2].0);
    assert_eq!(drain(&mut q).len(), 3);
}

/// What must hold after every operation.
fn check(q: &Queue<u64>, taken: &[(Ticket, Class, u64)]) {
    let mut per_class = [0; CLASSES];
    let mut per_source: HashMap<u64, u32> = HashMap::new();
    for slot in q.slots.iter().filter(|slot| matches!(slot.place, Place::Started | Place::Taken)) {
        per_class[slot.class.index()] += 1;
        *per_source.entry(q.keys[slot.key as usize].source.key()).or_default() += 1;
    }
    assert_eq!(per_class, q.running);
    let waiting = q.slots.iter().filter(|slot| slot.place == Place::Waiting).count();
    assert_eq!(waiting, q.waiting);
    assert_eq!(q.slots.iter().filter(|slot| slot.place == Place::Taken).count(), taken.len());
    for (&source, &key) in &q.by_source {
        let key = &q.keys[key as usize];
        assert_eq!(key.running, per_source.get(&source.key()).copied().unwrap_or(0));
        assert_eq!(key.level, q.level_of(source, key.running));
        assert!(
            key.running > 0 || key.waiting.iter().any(|list| !list.is_empty()),
            "an idle source was kept"
        );
    }
    // Work conserving: a free slot means that nobody who waits may have it.
    if q.running() < q.caps.slots {
        for slot in q.slots.iter().filter(|slot| slot.place == Place::Waiting) {
            assert!(!q.would_start(slot.class, q.keys[slot.key as usize].source));
        }
    }
}

#[test]
fn random_operations_keep_the_books() {
    for seed in 1..=200_u64 {
        let mut random = seed;
        let mut next = |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % end
        };
        let mut q = Queue::new(1 + next(9) as u32, next(20) as usize);
        let mut open: Vec<Ticket> = Vec::new();
        let mut taken: Vec<(Ticket, Class, u64)> = Vec::new();
        let (mut pushed, mut ended) = (0_u64, 0_u64);
        for job in 0..400_u64 {
            match next(10) {
                0..=4 => {
                    let (class, source) = (Class::ALL[next(4) as usize], Source::new(next(4)));
                    if let Ok(ticket) = q.push(class, source, job, next(20) == 0) {
                        open.push(ticket);
                        pushed += 1;
                    }
                }
                5 | 6 => {
                    if let Some((ticket, job)) = q.take() {
                        taken.push((ticket, Hit, job));
                    }
                }
                7 if !taken.is_empty() => {
                    let (ticket, ..) = taken.swap_remove(next(taken.len() as u64) as usize);
                    q.done(ticket);
                    ended += 1;
                }
                8 if !open.is_empty() => {
                    let ticket = open.swap_remove(next(open.len() as u64) as usize);
                    ended += u64::from(q.cancel(ticket).is_some());
                }
                9 if next(5) == 0 => q.resize(1 + next(9) as u32, next(20) as usize),
                _ => {}
            }
            check(&q, &taken);
        }
        while pushed > ended {
            match q.take() {
                Some((ticket, _)) => taken.push((ticket, Hit, 0)),
                None => {
                    let (ticket, ..) = taken.pop().expect("a job that is nowhere");
                    q.done(ticket);
                    ended += 1;
                }
            }
            check(&q, &taken);
        }
        assert!(q.by_source.is_empty());
    }
}
