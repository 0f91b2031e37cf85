//! The serving part of a process: loops, pools and logs, and the configuration they use.
//!
//! A worker process has one (see [`process`]), and so has the only process under `master_process off`. Nothing here
//! needs privileges: files and sockets come from the master.

mod acme;
mod disk_faults;
mod fleet;
mod life_signs;
mod loops;
pub(crate) mod memory;
mod metrics_clients;
mod pools;
pub(crate) mod process;
pub(crate) mod purging;
pub(crate) mod sandbox;
pub(crate) mod session_handover;
mod start;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tailwater_commands::cli::Purge;
use tailwater_commands::output::console::{Console, Fault};
use tw_app::{Config, Generation};
use tw_base::Errno;
use tw_conf::MemoryFiles;
use tw_core::config_thread::ConfigThread;
use tw_core::event_loop::{HandedSession, HandoverPhase, ProcessLinks, Reloads};
use tw_core::pools::Disks;
use tw_core::shared_objects::SharedObjects;
use tw_disk::Pool;
use tw_log::{Level, Sinks};
use tw_rt::affinity::Affinity;
use tw_rt::available_memory;
use tw_sys::heap::purge;
use tw_sys::program::Copier;

use crate::sockets::Sockets;

use acme::Acme;
use fleet::Fleets;
use loops::{Loops, WantedLoops};
use metrics_clients::MetricsClients;
use purging::{PurgeOutcome, PurgesInProgress};
use session_handover::Handover;

/// Longest wait of a fast stop for loops. They need a few milliseconds, unless one hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait at the end for jobs of pools. None of them belongs to a request when the loops have ended.
const POOL_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait at the end for logs. A slower disk loses their last lines.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time in which a worker process ends after it was told to.
pub(crate) const SHUTDOWN_TIMEOUT: Duration =
    STOP_TIMEOUT.saturating_add(POOL_TIMEOUT).saturating_add(LOG_TIMEOUT);

/// Parts of a running server.
pub(crate) struct Server {
    config_thread: ConfigThread,
    generation: Generation,
    sockets: Arc<Sockets>,
    pools: Vec<Pool>,
    affinity: Affinity,
    /// Process that copies the program, if a reload may need that.
    copier: Option<Copier>,
    loops: Loops,
    purging: PurgesInProgress,
    metrics_clients: MetricsClients,
    acme: Acme,
    fleets: Fleets,
    /// Handover of sessions to the next process, once this one leaves.
    handover: Option<Handover>,
}

impl Server {
    /// Starts pools and loops, which serve when they are told to [begin](Self::begin). The logs of `config` are open. Without a
    /// copier no reload changes `worker_memory_lock`: a process that has given up its rights could not make one.
    pub(crate) fn start(
        config: Config,
        sockets: Arc<Sockets>,
        affinity: Affinity,
        copier: Option<Copier>,
        sinks: &Sinks,
        console: &Console,
    ) -> Result<Self, Fault> {
        // First, because a failure is reported once.
        sinks.report_to((*config.error_log).clone());
        sinks.start().map_err(|error| Fault::emerg(error.to_string()))?;
        let pools = pools::next(&config.main.pools, &[], &config.error_log)?;
        if let Some(default) = pools.first() {
            // The default pool is in every configuration, and files stay open when other pools end.
            default.inherit();
        }
        let disks = Disks::new(pools.iter().cloned(), config.ring).into();
        disk_faults::set(&config.main.disk_faults, &config.error_log);
        available_memory::set_budget(config.main.memory_budget);
        let config_thread =
            ConfigThread::start(purge).map_err(|error| failed("starting a thread", &error))?;
        let generation = config.publish(1, disks, &config_thread);
        let mut loops = Loops::new(sinks).map_err(|error| failed("starting the watchdog", &error))?;
        memory::allow_files(&generation, generation.main.worker_count(), console);
        let mut acme = Acme::default();
        acme.follow(&generation, console);
        let wanted_loops = WantedLoops { generation: &generation, sockets: &sockets, affinity: &affinity };
        loops.serve(&wanted_loops, console)?;
        let purging = PurgesInProgress::default();
        Ok(Self {
            config_thread,
            generation,
            sockets,
            pools,
            affinity,
            copier,
            loops,
            purging,
            metrics_clients: MetricsClients::default(),
            acme,
            fleets: Fleets::default(),
            handover: None,
        })
    }

    /// Lets the loops accept connections.
    pub(crate) fn begin(&mut self, console: &Console) {
        // First, so that requests find it.
        self.fleets.begin(&self.generation, console);
        self.loops.begin();
        self.acme.begin();
    }

    /// Closes every file that is open for the next request.
    pub(crate) fn close_files(&self) {
        self.loops.close_files();
    }

    /// Begins a purge, which waits for no loop. `answer` gets what came of it.
    pub(crate) fn purge(&self, order: Purge, answer: impl FnOnce(PurgeOutcome) + Send + 'static) {
        self.purging.begin(&self.generation, order, answer);
    }

    /// Sends a client of the control API the numbers of this process, and closes the connection.
    pub(crate) fn send_metrics(&self, client: OwnedFd) {
        self.metrics_clients.serve(client, self.loops.counts(), self.generation.clone());
    }

    /// Sends a client the state of the fleets, and closes the connection.
    pub(crate) fn send_fleet_status(&self, client: OwnedFd) {
        fleet::send_status(client, &self.generation);
    }

    /// Serves by `config` from now on. On an error everything is as before.
    pub(crate) fn change(
        &mut self,
        config: Config,
        sockets: Arc<Sockets>,
        affinity: Affinity,
        sinks: &Sinks,
        console: &Console,
    ) -> Result<(), Fault> {
        let pools = pools::next(&config.main.pools, &self.pools, &config.error_log)?;
        let relock = config.main.memory_lock != self.generation.main.memory_lock;
        let disks = Disks::new(pools.iter().cloned(), config.ring).into();
        let generation = config.publish(self.generation.id + 1, disks, &self.config_thread);
        if relock {
            // `memory::lock` unlocks all memory. Files that are known as locked have to be so, so all of them are given
            // up first.
            generation.locks.set_max(0);
            // Stacks that loops have locked are unlocked, too, but the loops are started anew.
            memory::lock(&generation, self.copier.as_ref(), console);
        }
        let loops = WantedLoops { generation: &generation, sockets: &sockets, affinity: &affinity };
        let kept_count = if relock { 0 } else { self.generation.main.worker_count() };
        let loops_to_start = generation.main.worker_count().saturating_sub(kept_count);
        memory::allow_files(&generation, loops_to_start, console);
        self.acme.follow(&generation, console);
        if let Err(fault) = self.loops.serve(&loops, console) {
            self.acme.follow(&self.generation, console);
            memory::allow_files(&self.generation, 0, console);
            return Err(fault);
        }
        // No step fails from here on.
        available_memory::set_budget(generation.main.memory_budget);
        pools::resize(&generation.main.pools, &pools, console);
        if disk_faults::set(&generation.main.disk_faults, &generation.error_log) {
            // Open files are not affected.
            self.loops.close_files();
        }
        sinks.report_to((*generation.error_log).clone());
        self.generation = generation;
        self.fleets.follow(&self.generation, console);
        self.sockets = sockets;
        self.pools = pools;
        self.affinity = affinity;
        self.loops.wait_until_served(self.generation.id);
        Ok(())
    }

    /// Generation that it serves.
    pub(crate) fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Runs the loading of another configuration, which gets the one that is served, where it disturbs no loop.
    pub(crate) fn load<T: Send + 'static>(
        &self,
        load: impl FnOnce(&SharedObjects) -> T + Send + 'static,
    ) -> T {
        let previous = self.generation.clone();
        self.config_thread.run(move || load(&previous.shared_objects))
    }

    /// Does the same, and calls `meanwhile` as often as `every` until it is loaded.
    pub(crate) fn load_while<T: Send + 'static>(
        &self,
        load: impl FnOnce(&SharedObjects) -> T + Send + 'static,
        every: Duration,
        meanwhile: impl FnMut(),
    ) -> T {
        let previous = self.generation.clone();
        self.config_thread.run_while(move || load(&previous.shared_objects), every, meanwhile)
    }

    /// Puts what `files` have into the place of certificates that are followed. The error is in words of the log.
    pub(crate) fn renew(&self, files: MemoryFiles) -> Result<(), String> {
        let generation = self.generation.clone();
        self.config_thread.run(move || tw_tls_settings::renew(generation.watched_certificates(), &files))
    }

    /// Connections that are open.
    pub(crate) fn connections(&self) -> u64 {
        self.loops.connections()
    }

    /// Returns `true` if every loop turns, or is idle.
    pub(crate) fn is_turning(&self, now: Instant) -> bool {
        self.loops.are_turning(now)
    }

    /// Other worker processes with connections over the same sockets.
    pub(crate) fn links(&self) -> &ProcessLinks {
        self.loops.links()
    }

    /// Records which process receives the datagrams of connections.
    pub(crate) fn set_received_elsewhere(&self, is_received_elsewhere: bool) {
        self.loops.set_received_elsewhere(is_received_elsewhere);
    }

    /// Gives a datagram of another process to the loop of its connection.
    pub(crate) fn take_from_process(&self, packet: &[u8]) {
        self.loops.take_from_process(packet);
    }

    /// Notes that another process receives from the same sockets now and passes nothing on.
    pub(crate) fn set_replaced(&self) {
        self.loops.set_replaced();
    }

    /// Sets the numbers of reloads, for metrics.
    pub(crate) fn set_reloads(&self, reloads: Reloads) {
        self.loops.set_reloads(reloads);
    }

    /// Gives a session over datagrams of the process before to the loop with this number.
    pub(crate) fn take_over(&self, loop_index: usize, session: HandedSession) {
        self.loops.take_over(loop_index, session);
    }

    /// Lets all loops leave, which end with their last connection, or after `worker_shutdown_timeout`. Sessions over datagrams are offered to
    /// the process at the other end of `next`.
    pub(crate) fn release_loops(&mut self, next: Option<OwnedFd>) {
        self.handover = next.map(Handover::new);
        let phase = self.handover.as_mut().map(|handover| handover.step(&self.generation.error_log));
        self.loops.quit(self.generation.main.shutdown_timeout, &phase.unwrap_or_default());
        self.acme.retire();
        self.fleets.retire();
    }

    /// Begins the handover of sessions once the next process says that it takes them.
    pub(crate) fn hand_over(&mut self) {
        let Some(handover) = self.handover.as_mut().filter(|handover| handover.is_waiting()) else { return };
        match handover.step(&self.generation.error_log) {
            HandoverPhase::Expected => {}
            phase => self.loops.hand_over(&phase),
        }
    }

    /// Readable when [`hand_over`](Self::hand_over) has something to do.
    pub(crate) fn next_process(&self) -> Option<BorrowedFd<'_>> {
        self.handover.as_ref().and_then(Handover::next_process)
    }

    /// Gives up its hold on the sockets: another server may have the addresses.
    pub(crate) fn close_sockets(&mut self) {
        self.sockets = Arc::default();
    }

    /// Returns `true` if all loops have ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.loops.is_empty()
    }

    /// Looks after loops that have ended or whose time is over.
    pub(crate) fn reap(&mut self, console: &Console) {
        let loops =
            WantedLoops { generation: &self.generation, sockets: &self.sockets, affinity: &self.affinity };
        self.loops.reap(&loops, console);
        self.loops.expire(Instant::now());
    }

    /// Time of the next [`reap`](Self::reap) or [`hand_over`](Self::hand_over), if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let handover = self.handover.as_ref().and_then(Handover::deadline);
        self.loops.deadline().into_iter().chain(handover).min()
    }

    /// Ends every loop and closes its connections, and ends the pools.
    pub(crate) fn stop(&mut self) {
        self.loops.stop(STOP_TIMEOUT);
        if let Some(handover) = self.handover.take() {
            handover.end();
        }
        self.stop_pools();
    }

    /// Lets the pools do what the loops have left to them: files of bodies that were cut are still to be removed. A disk
    /// that takes longer than [`POOL_TIMEOUT`] is not waited for.
    fn stop_pools(&mut self) {
        let pools = std::mem::take(&mut self.pools);
        let (over, is_over) = mpsc::channel::<()>();
        let end = move || {
            pools.into_iter().for_each(Pool::shutdown);
            drop(over);
        };
        // If no thread can be started, the pools end with the process.
        if thread::Builder::new().name("end".to_owned()).spawn(end).is_ok() {
            // No message is ever sent: receiving fails when all pools have ended, or when the time is over.
            let _ = is_over.recv_timeout(POOL_TIMEOUT);
        }
    }
}

fn failed(what: &str, error: &io::Error) -> Fault {
    Fault::emerg(format!("{what} failed ({})", Errno::from(error)))
}

/// Readable when [`Server::reap`] has something to do.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.loops.as_fd()
    }
}

/// The last thing a process does: it says so, and writes the logs to their end.
pub(crate) fn say_exit(sinks: &Sinks, console: &Console) {
    console.report(Level::Notice, format_args!("exit"));
    // Lines that cannot be written in time were counted by their log.
    let _ = sinks.flush_and_close(Instant::now() + LOG_TIMEOUT);
}
