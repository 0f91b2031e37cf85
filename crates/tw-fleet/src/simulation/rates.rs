//! Scenarios of shared rates: what a hundred nodes let pass together, with leaky buckets as `limit_req` has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tw_testkit::Random;

use super::World;
use crate::agent::AgentCommand;
use crate::announcement::Announcement;
use crate::announcer::SharedParts;
use crate::shared_rate::{RateKey, SharedRate};

const SECOND: Duration = Duration::from_secs(1);
/// Time between two rounds of requests.
const STEP: Duration = Duration::from_millis(20);
/// Requests of the whole fleet in a second.
const RATE: u64 = 1000;
/// Requests that a node lets pass at once.
const BURST: f64 = 5.0;

/// Leaky bucket of one key on one node.
#[derive(Default)]
struct Bucket {
    /// Requests above the rate, and the time of the last one that passed.
    state: Option<(f64, Duration)>,
}

impl Bucket {
    fn passes(&mut self, share: f64, now: Duration) -> bool {
        let excess = match self.state {
            None => 0.0,
            Some((excess, last)) => {
                (excess - RATE as f64 * share * (now - last).as_secs_f64() + 1.0).max(0.0)
            }
        };
        if excess > BURST {
            return false;
        }
        self.state = Some((excess, now));
        true
    }
}

/// A fleet with one rate, and clients.
struct Clients {
    world: World,
    random: Random,
    rates: Vec<Arc<SharedRate>>,
    buckets: BTreeMap<(usize, u64), Bucket>,
    /// Requests that passed, by key.
    passed: BTreeMap<u64, u64>,
}

impl Clients {
    fn new(seed: u64, count: usize) -> Self {
        let world = World::new(seed, count);
        let mut this = Self {
            world,
            random: Random::new(seed ^ 0x5eed),
            rates: Vec::new(),
            buckets: BTreeMap::new(),
            passed: BTreeMap::new(),
        };
        for at in 0..count {
            let rate = this.rate_of(at);
            this.rates.push(rate);
        }
        this
    }

    /// Gives the process of a node its rate.
    fn rate_of(&mut self, at: usize) -> Arc<SharedRate> {
        let process = self.world.members[at].process.as_ref().unwrap();
        let multiplier = self.random.next_number();
        let rate = SharedRate::with_multiplier("z", process.node.fleet.clone(), RATE * 1000, multiplier);
        let rate = Arc::new(rate);
        self.share(at, rate.clone());
        rate
    }

    /// Sets the rate of a node, as each reload does.
    fn share(&self, at: usize, rate: Arc<SharedRate>) {
        let process = self.world.members[at].process.as_ref().unwrap();
        let parts = SharedParts { rates: vec![rate], peers: Vec::new() };
        process.commands.send(AgentCommand::Share(parts)).unwrap();
        process.woken.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn restart(&mut self, at: usize) {
        self.world.start(at);
        self.rates[at] = self.rate_of(at);
        // A new process has new buckets.
        self.buckets.retain(|(of, _), _| *of != at);
    }

    /// One request, so long after now.
    fn request(&mut self, at: usize, key: u64, after: Duration) {
        if self.world.members[at].process.is_none() {
            return;
        }
        let now = self.world.time.now() + after;
        let share = self.rates[at].count(RateKey::of(&key.to_be_bytes()), now.as_millis() as u64);
        let passes = self.buckets.entry((at, key)).or_default().passes(share.part(), now);
        *self.passed.entry(key).or_default() += u64::from(passes);
    }

    /// Requests of a key for so long: `demand` has the requests of each node in a second. Returns those that passed in a second, as a
    /// part of the rate.
    fn ask(&mut self, key: u64, demand: &[f64], length: Duration) -> f64 {
        let before = self.passed.get(&key).copied().unwrap_or(0);
        let end = self.world.time.now() + length;
        while self.world.time.now() < end {
            for (at, demand) in demand.iter().enumerate() {
                let expected = demand * STEP.as_secs_f64();
                let certain = expected as usize;
                let draw = self.random.below(1_000_000) as f64;
                let more = draw < (expected - certain as f64) * 1e6;
                // Requests come one after the other: of many at the same moment, a bucket lets only its burst pass.
                let count = u32::try_from(certain + usize::from(more)).unwrap();
                for nth in 0..count {
                    self.request(at, key, STEP * nth / count);
                }
            }
            self.world.run(STEP);
        }
        (self.passed.get(&key).copied().unwrap_or(0) - before) as f64 / (RATE as f64 * length.as_secs_f64())
    }

    fn link(&self, at: usize, is_up: bool) {
        self.world.server.set_link(&format!("{} {at}", self.world.members[at].name), is_up);
    }
}

/// Demand that differs from node to node: some ask a hundred times more than others.
fn uneven(random: &mut Random, count: usize, total: f64) -> Vec<f64> {
    let weights: Vec<f64> = (0..count).map(|_| 10_f64.powf(random.below(1000) as f64 / 500.0)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum * total).collect()
}

#[test]
fn hundred_nodes_let_the_whole_rate_pass_and_no_more() {
    let mut clients = Clients::new(1, 100);
    clients.world.run(3 * SECOND);
    let demand = uneven(&mut Random::new(1), 100, 4.0 * RATE as f64);
    clients.ask(1, &demand, 5 * SECOND);
    let passed = clients.ask(1, &demand, 10 * SECOND);
    assert!((0.95..=1.05).contains(&passed), "{passed}");
    // Demand below the rate passes, however uneven it is.
    let demand = uneven(&mut Random::new(2), 100, 0.7 * RATE as f64);
    clients.ask(2, &demand, 5 * SECOND);
    let passed = clients.ask(2, &demand, 10 * SECOND);
    assert!((0.63..=0.72).contains(&passed), "{passed}");
    // One node has all demand, although its equal share would be a hundredth.
    let mut demand = vec![0.0; 100];
    demand[17] = 2.0 * RATE as f64;
    clients.ask(3, &demand, 3 * SECOND);
    let passed = clients.ask(3, &demand, 5 * SECOND);
    assert!((0.97..=1.03).contains(&passed), "{passed}");
    // The demand moves to another node. That node has an equal share until its announcement has come back, and a
    // growing share while the demand of the first node is forgotten.
    demand.swap(17, 71);
    let passed: Vec<f64> = (0..5).map(|_| clients.ask(3, &demand, SECOND)).collect();
    println!("moved to another of 100 nodes, second by second: {passed:?}");
    assert!(passed.iter().all(|passed| *passed <= 1.05), "{passed:?}");
    assert!(passed[2] >= 0.7 && passed[4] >= 0.95, "{passed:?}");
}

#[test]
fn new_key_on_all_nodes_does_not_have_the_rate_on_each() {
    let mut clients = Clients::new(6, 20);
    clients.world.run(3 * SECOND);
    let demand = vec![RATE as f64; 20];
    let passed: Vec<f64> = (0..5).map(|_| clients.ask(1, &demand, SECOND)).collect();
    println!("new key on 20 nodes, second by second: {passed:?}");
    // Each node lets its burst and one more request pass.
    let bursts = 20.0 * (BURST + 1.0) / RATE as f64;
    assert!(passed[0] <= 1.1 + bursts, "{passed:?}");
    assert!(passed[1..].iter().all(|passed| (0.95..=1.05).contains(passed)), "{passed:?}");
}

#[test]
fn reloads_do_not_change_shares() {
    let mut clients = Clients::new(9, 5);
    clients.world.run(3 * SECOND);
    let demand = [0.4, 0.4, 0.0, 0.0, 0.0].map(|part| part * RATE as f64);
    clients.ask(1, &demand, 3 * SECOND);
    for _ in 0..100 {
        clients.share(0, clients.rates[0].clone());
        clients.ask(1, &demand, 2 * STEP);
        let now = clients.world.time.now().as_millis() as u64;
        let share = clients.rates[0].count(RateKey::of(&1_u64.to_be_bytes()), now).part();
        assert!((0.4..=0.6).contains(&share), "{share}");
    }
}

#[test]
fn client_that_moves_all_the_time_gets_no_more_than_the_rate() {
    for move_ms in [100, 250, 500, 1000, 2000, 5000] {
        let mut clients = Clients::new(7, 10);
        clients.world.run(3 * SECOND);
        let mut passed = 0.0;
        let moves = 60_000 / move_ms;
        for nth in 0..moves {
            let mut demand = vec![0.0; 10];
            demand[nth as usize % 10] = 4.0 * RATE as f64;
            passed += clients.ask(1, &demand, Duration::from_millis(move_ms)) / moves as f64;
        }
        println!("moves every {move_ms} ms among 10 nodes: {passed}");
        // Less passes, because a node whose demand the others do not know has an equal share, which is used a tenth of
        // the time.
        assert!((0.02..=1.0).contains(&passed), "{move_ms}: {passed}");
    }
    // Requests that go to all nodes in turn find all of the rate.
    let mut clients = Clients::new(8, 10);
    clients.world.run(3 * SECOND);
    let demand = vec![0.4 * RATE as f64; 10];
    clients.ask(1, &demand, 3 * SECOND);
    let passed = clients.ask(1, &demand, 10 * SECOND);
    assert!((0.98..=1.02).contains(&passed), "{passed}");
    // A client that has the rate on one node and touches all others for half a second, as often as it pays.
    let mut most = 0.0_f64;
    for pause_ms in [500_u32, 1000, 2000, 4000] {
        let mut clients = Clients::new(9, 10);
        clients.world.run(3 * SECOND);
        let mut one = vec![0.0; 10];
        one[0] = 2.0 * RATE as f64;
        clients.ask(1, &one, 5 * SECOND);
        let all = vec![2.0 * RATE as f64; 10];
        let mut passed = 0.0;
        let length = f64::from(500 + pause_ms);
        for _ in 0..20 {
            passed += clients.ask(1, &all, SECOND / 2) * 500.0 / length / 20.0;
            let pause = Duration::from_millis(pause_ms.into());
            passed += clients.ask(1, &one, pause) * f64::from(pause_ms) / length / 20.0;
        }
        println!("all nodes for 500 ms, one for {pause_ms} ms: {passed}");
        most = most.max(passed);
    }
    assert!(most <= 1.3, "{most}");
}

#[test]
fn nodes_that_are_cut_off_have_equal_shares() {
    let mut clients = Clients::new(2, 20);
    clients.world.run(3 * SECOND);
    let demand = vec![RATE as f64; 20];
    clients.ask(1, &demand, 3 * SECOND);
    // Half of the nodes hear nothing any more. They have half of the rate, and the others have the rest.
    (0..10).for_each(|at| clients.link(at, false));
    clients.ask(1, &demand, 6 * SECOND);
    let passed = clients.ask(1, &demand, 10 * SECOND);
    assert!((0.95..=1.05).contains(&passed), "{passed}");
    let state = clients.rates[15].state();
    assert_eq!((state.nodes, state.away, state.is_shared), (20, 10, true));
    let state = clients.rates[5].state();
    assert_eq!((state.nodes, state.is_shared), (20, false));
    // The engine is away for all, for longer than nodes are remembered.
    (0..20).for_each(|at| clients.link(at, false));
    clients.world.run(400 * SECOND);
    let passed = clients.ask(1, &demand, 10 * SECOND);
    assert!((0.95..=1.05).contains(&passed), "{passed}");
    // A restart meanwhile does not forget how many there are.
    clients.world.crash(3);
    clients.restart(3);
    clients.world.run(SECOND);
    assert_eq!((clients.rates[3].state().nodes, clients.rates[3].state().is_shared), (20, false));
    (0..20).for_each(|at| clients.link(at, true));
    clients.world.run(10 * SECOND);
    assert!(clients.rates.iter().all(|rate| rate.state().is_shared && rate.state().away == 0));
    let passed = clients.ask(1, &demand, 5 * SECOND);
    assert!((0.95..=1.05).contains(&passed), "{passed}");
}

#[test]
fn nodes_that_are_gone_are_forgotten() {
    let mut clients = Clients::new(3, 4);
    clients.world.run(3 * SECOND);
    clients.world.crash(3);
    clients.world.run(10 * SECOND);
    assert_eq!((clients.rates[0].state().nodes, clients.rates[0].state().away), (4, 1));
    clients.world.run(300 * SECOND);
    assert_eq!((clients.rates[0].state().nodes, clients.rates[0].state().away), (3, 0));
    // A node that leaves in order announces that.
    let process = clients.world.members[2].process.as_ref().unwrap();
    process.commands.send(AgentCommand::Retire).unwrap();
    process.woken.0.store(true, std::sync::atomic::Ordering::SeqCst);
    clients.world.run(SECOND);
    assert_eq!((clients.rates[0].state().nodes, clients.rates[0].state().away), (2, 0));
}

#[test]
fn node_that_lies_about_its_demand_cannot_starve_others() {
    let mut clients = Clients::new(4, 10);
    clients.world.run(3 * SECOND);
    let key = RateKey::of(&1_u64.to_be_bytes()).number();
    let mut lie = Announcement::new("liar", "word");
    lie.rates.insert("z".to_owned(), vec![(key, u64::MAX); 500]);
    let mut demand = vec![0.0; 10];
    demand[0] = 2.0 * RATE as f64;
    demand[1] = 0.1 * RATE as f64;
    let mut passed = 0.0;
    for round in 0..60 {
        clients.world.server.say(&lie.encode());
        // Unreadable announcements do no more harm than that.
        clients.world.server.say(&[b'['; 5000]);
        let one = clients.ask(1, &demand, SECOND / 4);
        passed += if round >= 20 { one / 40.0 } else { 0.0 };
    }
    // The rate is shared by the liar, a node that asks for all of it, and one that asks for a tenth.
    assert!((0.45..=0.6).contains(&passed), "{passed}");
    assert!(clients.world.status(0).unreadable_announcements > 10);
}

#[test]
fn flood_of_keys_does_not_make_a_limit_disappear() {
    let mut clients = Clients::new(5, 10);
    clients.world.run(3 * SECOND);
    let demand = vec![0.4 * RATE as f64; 10];
    let mut next = 1000;
    let mut passed = 0.0;
    for round in 0..20 {
        for at in 0..10 {
            for _ in 0..5_000 {
                next += 1;
                let share = clients.rates[at].count(RateKey::of(&u64::to_be_bytes(next)), 0);
                assert!(share.part() <= 0.11);
            }
        }
        let one = clients.ask(1, &demand, SECOND / 4);
        passed += if round >= 8 { one / 12.0 } else { 0.0 };
    }
    assert!((0.9..=1.1).contains(&passed), "{passed}");
}

/// Random faults, demand that moves all the time, clocks that differ. Returns the largest sums over windows of 5 and of 60 s, as parts
/// of the rate, and a text of everything that passed.
fn chaos(seed: u64, count: usize, seconds: u64) -> (f64, f64, String) {
    let mut clients = Clients::new(seed, count);
    clients.world.run(3 * SECOND);
    let mut random = Random::new(seed);
    let mut seen_values = Vec::new();
    let mut down = Vec::new();
    let mut demand = uneven(&mut random, count, 3.0 * RATE as f64);
    for _ in 0..seconds {
        let at = random.below(count);
        match random.below(12) {
            0 => clients.link(at, false),
            1..4 => clients.link(at, true),
            // A third of the nodes at once.
            4 => (0..count).filter(|other| other % 3 == at % 3).for_each(|other| clients.link(other, false)),
            5 => (0..count).for_each(|other| clients.link(other, true)),
            6 if clients.world.members[at].process.is_some() => {
                clients.world.crash(at);
                down.push(at);
            }
            7 => {
                if let Some(at) = down.pop() {
                    clients.restart(at);
                }
            }
            8 => clients.world.server.lost_announcements.set(random.below(50)),
            9 => clients.world.server.delay_max.set(Duration::from_millis(random.below(800) as u64)),
            10 => clients.world.server.delay_max.set(Duration::from_millis(20)),
            _ => clients.world.server.restart(),
        }
        if random.happens(30) {
            let total = [0.5, 2.0, 5.0][random.below(3)] * RATE as f64;
            demand = uneven(&mut random, count, total);
        }
        seen_values.push(clients.ask(1, &demand, SECOND));
    }
    let most = |length: usize| {
        let sums = seen_values
            .windows(length.min(seen_values.len()))
            .map(|seen_values| seen_values.iter().sum::<f64>() / seen_values.len() as f64);
        sums.fold(0.0, f64::max)
    };
    (most(5), most(60), format!("{:?} {:?}", clients.passed, seen_values))
}

#[test]
fn faults_do_not_let_much_more_than_the_rate_pass() {
    let (short, long, digest) = chaos(1, 100, 60);
    println!("100 nodes: {short} in 5 s, {long} in 60 s");
    assert!(short < 1.2 && long < 1.05, "{short} {long}");
    assert_eq!(chaos(1, 100, 60).2, digest, "the same seed gives the same run");
    let mut short = 0.0_f64;
    let mut long = 0.0_f64;
    for seed in 0..20 {
        let (one_short, one_long, _) = chaos(seed, 7, 120);
        (short, long) = (short.max(one_short), long.max(one_long));
    }
    println!("7 nodes: {short} in 5 s, {long} in 60 s");
    assert!(short < 1.2 && long < 1.05, "{short} {long}");
}
