//! Threads that select, fail, give up and wait at random: no permit is lost, no limit is exceeded, no request waits
//! forever.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::thread;

use super::*;
use crate::{LeastTime, NoPeer, TimeKind};

const THREADS: u64 = 4;
const PEERS: u8 = 3;
const MAX_CONNS: u32 = 2;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Work of one thread; connections are counted a second time, by address.
fn work(group: &Group, seed: u64, clock: &AtomicU64, counts: &[AtomicU32]) {
    let mut rng = Rng::seeded(seed);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut leases: Vec<Lease> = Vec::new();
    for _ in 0..3000 {
        let mut selection =
            group.start_selection(BalanceKey::Text(rng.next().to_le_bytes().to_vec()), None, 0);
        let mut found_lease = group.select(&mut selection, clock.fetch_add(1, SeqCst), &mut rng);
        // A thread without a lease waits until another thread gives one back.
        if found_lease.is_err() && leases.is_empty() {
            found_lease = wait(group, &mut selection, clock, &mut rng, &waker);
        }
        if let Ok(lease) = found_lease {
            let now = counts[usize::from(number(&lease)) - 1].fetch_add(1, SeqCst) + 1;
            assert!(now <= MAX_CONNS, "{now}");
            leases.push(lease);
        }
        while leases.len() > rng.below(3) as usize {
            let lease = leases.swap_remove(rng.below(leases.len() as u64) as usize);
            counts[usize::from(number(&lease)) - 1].fetch_sub(1, SeqCst);
            let now = clock.fetch_add(1, SeqCst);
            let outcomes = [PeerOutcome::Failed, PeerOutcome::Next, PeerOutcome::Success];
            match outcomes.get(rng.below(4) as usize) {
                Some(outcome) => {
                    lease.done(*outcome, now);
                }
                None => drop(lease),
            }
        }
    }
    leases.iter().for_each(|lease| {
        counts[usize::from(number(lease)) - 1].fetch_sub(1, SeqCst);
    });
}

fn wait(
    group: &Group,
    selection: &mut PeerSelection,
    clock: &AtomicU64,
    rng: &mut Rng,
    waker: &Waker,
) -> Result<Lease, NoPeer> {
    let mut waiting = group.enqueue(THREADS as usize).ok_or(NoPeer)?;
    // Some requests leave the queue, woken or not.
    let leaves = rng.below(4) == 0;
    loop {
        let lease = group.select(selection, clock.fetch_add(1, SeqCst), rng);
        if lease.is_ok() || leaves {
            return lease;
        }
        while waiting.poll_woken(&mut Context::from_waker(waker)).is_pending() {
            thread::park();
        }
    }
}

#[test]
fn permits_are_never_lost_and_limits_never_passed() {
    let time = LeastTime { by: TimeKind::LastByte, inflight: true };
    for method in [
        BalanceMethod::RoundRobin,
        BalanceMethod::LeastConn,
        BalanceMethod::HashConsistent,
        BalanceMethod::LeastTime(time),
    ] {
        let limited = |n| with(n, |params| (params.max_conns, params.max_fails) = (MAX_CONNS, 0));
        let group = group(method, (1..=PEERS).map(limited).collect());
        let clock = AtomicU64::new(0);
        let counts = [const { AtomicU32::new(0) }; PEERS as usize];
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let group = &group;
                let clock = &clock;
                let counts = &counts;
                scope.spawn(move || work(group, seed, clock, counts));
            }
        });
        assert_eq!(group.queue_len(), 0);
        for peer in group.snapshot(clock.load(SeqCst)).peers {
            assert_eq!(peer.connections, 0, "{method:?}");
            assert!(peer.requests > 0, "{method:?}");
        }
        assert!(counts.iter().all(|count| count.load(SeqCst) == 0));
    }
}
