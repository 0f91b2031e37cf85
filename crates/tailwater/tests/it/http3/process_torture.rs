//! Downloads by many clients that change their ports, while the server is reloaded, upgraded, and its worker processes are replaced and killed.
//!
//! Each body is complete and right. Only a download from a worker process that was killed may fail, and its client is told by a stateless reset.
//!
//! `cargo xtask torture` has more downloads; `TAILWATER_DOWNLOADS` is how many, and `TAILWATER_TORTURE_SEED` is of which seed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use quinn_proto::ConnectionError;
use tw_testkit::quic::ClientSettings;
use tw_testkit::{Client, Random, Signal, wait};

use super::process_change::{Site, conf, content};
use crate::support::env_number;
use crate::support::http3::{Both, Http3Client};
use crate::support::process::kill;
use crate::support::upgrade::{master, upgrade};

const DOWNLOADS_DEFAULT: u64 = 16;
/// Downloads for each upgrade and each kill; there are ten times as many reloads.
const DOWNLOADS_OF_CHANGE: u64 = 40;
/// Reloads for each upgrade.
const RELOADS_OF_UPGRADE: u64 = 10;
/// Clients at the same time.
const CLIENTS: u64 = 8;
const LARGE: usize = 3 << 20;
/// Part of a body after which its client may change its port.
const PART: usize = 256 << 10;
const PARTS: u64 = (LARGE / PART) as u64;

/// Time after which a silent client sends something.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Further connections for a download whose server accepts no more requests.
const ATTEMPTS_MAX: usize = 3;

/// Change of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Reload,
    /// Reload with something that needs another worker process.
    Replacement,
    Upgrade,
    Kill,
}

/// Progress of all clients and of the changes.
struct Progress {
    address: SocketAddr,
    settings: ClientSettings,
    total: u64,
    changes: u64,
    /// Parts that have arrived, of all downloads.
    parts: AtomicU64,
    /// Downloads that were begun.
    begun: AtomicU64,
    /// Changes that are done.
    changed: AtomicU64,
    killed: Mutex<HashSet<u32>>,
    moves: AtomicU64,
    resets: AtomicU64,
    /// Handshakes that a kill has cut: they have no reset.
    cut_handshakes: AtomicU64,
    done: AtomicU64,
}

/// Failure of a download.
#[derive(Debug)]
enum Failed {
    /// No connection.
    Handshake,
    /// Lost before the response, as by a server that leaves and accepts no more requests.
    Early,
    /// Lost while the process with this number served it.
    Lost(u32, Option<ConnectionError>),
}

impl Progress {
    /// Lets a client wait until the changes have come as far as the downloads.
    fn keep_step(&self) {
        let due = self.parts.load(SeqCst) * self.changes / (self.total * PARTS);
        assert!(wait::until(20 * wait::TIMEOUT, || self.changed.load(SeqCst) + 2 >= due), "no change");
    }

    /// Downloads the large body.
    fn download(&self, settings: &ClientSettings, random: &mut Random) -> Result<(), Failed> {
        let client = Http3Client::connect(settings, self.address);
        let mut client = client.map_err(|_| Failed::Handshake)?;
        if client.is_leaving() {
            return Err(Failed::Early);
        }
        let id = client.begin("GET", "/large", &[], true);
        let mut process = None;
        for part in 1..=PARTS {
            let len = part as usize * PART;
            let arrived = until(&mut client, |both| {
                process = process.or_else(|| both.field(id, "x-process")?.parse().ok());
                both.is_ended(id) || both.body_len(id) >= len
            });
            if arrived.is_none() {
                let lost = client.udp.client.lost.clone();
                return Err(process.map_or(Failed::Early, |process| Failed::Lost(process, lost)));
            }
            self.parts.fetch_add(1, SeqCst);
            if random.below(3) == 0 {
                client.change_port();
                self.moves.fetch_add(1, SeqCst);
            }
            self.keep_step();
        }
        let response = client.finish(id);
        assert!(response.is_ok_and(|response| response.body == content(LARGE)), "a body is wrong");
        client.close();
        Ok(())
    }

    /// Downloads until there have been enough.
    fn run_client(&self, seed: u64) {
        let mut random = Random::new(seed);
        loop {
            let number = self.begun.fetch_add(1, SeqCst);
            if number >= self.total {
                return;
            }
            let settings = ClientSettings { seed: number as u8, ..self.settings.clone() };
            let mut outcome = self.download(&settings, &mut random);
            for _ in 0..ATTEMPTS_MAX {
                if let Err(Failed::Early) = outcome {
                    outcome = self.download(&settings, &mut random);
                }
            }
            match outcome {
                Ok(()) => drop(self.done.fetch_add(1, SeqCst)),
                Err(Failed::Lost(pid, Some(ConnectionError::Reset)))
                    if self.killed.lock().unwrap().contains(&pid) =>
                {
                    self.resets.fetch_add(1, SeqCst);
                }
                Err(Failed::Handshake) if !self.killed.lock().unwrap().is_empty() => {
                    self.cut_handshakes.fetch_add(1, SeqCst);
                }
                Err(failed) => panic!("download {number}: {failed:?}"),
            }
        }
    }

    /// Changes the server.
    fn change(&self, site: &mut Site, change: Change, number: u64) {
        match change {
            Change::Reload | Change::Replacement => {
                let env =
                    if change == Change::Replacement { format!("env A{number};") } else { String::new() };
                let conf = conf(&format!("worker_processes {}; {env}", 1 + number % 4), number);
                site.server.write_conf(&conf).unwrap();
                let server = &site.server;
                kill(master(server).unwrap(), Signal::HUP);
                let version = || Client::get(server.addr(), "/version").map(|response| response.text());
                let is_new = || (0..8).all(|_| version().is_ok_and(|version| version == number.to_string()));
                assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
            }
            Change::Upgrade => drop(upgrade(&site.server, || site.serving())),
            Change::Kill => {
                let pid = site.serving();
                self.killed.lock().unwrap().insert(pid);
                kill(pid, Signal::KILL);
                let is_new = || ![0, pid].contains(&site.serving());
                assert!(wait::until(wait::TIMEOUT, is_new), "{}", site.server.error_log());
            }
        }
        self.changed.fetch_add(1, SeqCst);
    }
}

/// Waits for something of a response. `None` if the connection is lost or silent.
fn until(client: &mut Http3Client, mut has_come: impl FnMut(&Both<'_>) -> bool) -> Option<()> {
    let mut asked = Instant::now();
    let outcome = client.until(|both| {
        // A client that only reads would not find that the server is gone.
        if asked.elapsed() > PING_INTERVAL {
            asked = Instant::now();
            both.ping();
        }
        (has_come(both) || both.lost().is_some()).then(|| both.lost().is_none())
    });
    outcome.ok()?.then_some(())
}

/// Changes in their order: reloads, and between them an upgrade and a kill for each ten.
fn changes(rounds: u64) -> Vec<Change> {
    let mut all = Vec::new();
    for _ in 0..rounds {
        for reload in 0..RELOADS_OF_UPGRADE {
            all.push(if reload == 1 { Change::Replacement } else { Change::Reload });
            match reload {
                4 => all.push(Change::Upgrade),
                8 => all.push(Change::Kill),
                _ => {}
            }
        }
    }
    all
}

#[test]
fn downloads_survive_every_change_of_the_server() {
    let total = env_number("TAILWATER_DOWNLOADS", DOWNLOADS_DEFAULT);
    let seed = env_number("TAILWATER_TORTURE_SEED", 1);
    let changes = changes(total.div_ceil(DOWNLOADS_OF_CHANGE));
    let mut site = Site::start("worker_processes 2;", LARGE);
    let progress = Progress {
        address: site.server.addr_of(1),
        settings: site.settings.clone(),
        total,
        changes: changes.len() as u64,
        parts: AtomicU64::new(0),
        begun: AtomicU64::new(0),
        changed: AtomicU64::new(0),
        killed: Mutex::default(),
        moves: AtomicU64::new(0),
        resets: AtomicU64::new(0),
        cut_handshakes: AtomicU64::new(0),
        done: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let progress = &progress;
        for client in 0..CLIENTS {
            scope.spawn(move || progress.run_client(seed << 8 | client));
        }
        for (number, change) in (1..).zip(&changes) {
            // Changes are spread over the downloads.
            let due = number * total * PARTS / (progress.changes + 1);
            // Parts that a kill has cut are missing in the count.
            let _ = wait::until(wait::TIMEOUT, || progress.parts.load(SeqCst) >= due.saturating_sub(PARTS));
            progress.change(&mut site, *change, number);
        }
    });
    let count = |of: &AtomicU64| of.load(SeqCst);
    let kills = progress.killed.lock().unwrap().len();
    let of = |kind: Change| changes.iter().filter(|change| **change == kind).count();
    println!(
        "{} of {total} downloads, {} changes of port, {} reloads, {} replacements, {} upgrades, {kills} kills: {} resets, {} handshakes \
         cut",
        count(&progress.done),
        count(&progress.moves),
        of(Change::Reload),
        of(Change::Replacement),
        of(Change::Upgrade),
        count(&progress.resets),
        count(&progress.cut_handshakes),
    );
    let lost = count(&progress.resets) + count(&progress.cut_handshakes);
    assert_eq!(count(&progress.done) + lost, total);
    // Only downloads that were in progress at a kill are lost.
    assert!(lost <= CLIENTS * kills as u64);
}
