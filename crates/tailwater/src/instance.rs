//! A running server.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_conf::Diagnostic;
use tw_net::listen::{Purpose, open_all};
use tw_rt::signal::{Signal, Signals};
use tw_rt::{Worker, WorkerOptions};
use tw_server::core::main::LoopGuard;
use tw_server::http::generation::Generation;
use tw_server::pools::Disks;
use tw_server::worker::{Counts, Order, run as run_worker};

use crate::conf::Names;

pub(crate) fn run(names: &Names) -> io::Result<()> {
    let (tree, diagnostics, config) = names.load();
    let config = config.map_err(|error| {
        io::Error::other(Diagnostic { error: &error, sources: &tree.sources }.terminal(false))
    })?;
    drop(diagnostics);
    let sinks = tw_log::Sinks::new();
    config.logs.open(&sinks).map_err(io::Error::other)?;
    let signals = Signals::take()?;
    let wanted: Vec<_> = config.listens.iter().map(|l| (l.address.clone(), l.options.clone())).collect();
    let mut said = String::new();
    let sockets = open_all(&wanted, Purpose::Serve, &mut |report| said = report.to_string())
        .ok_or_else(|| io::Error::other(said))?;
    sinks.start().map_err(io::Error::other)?;
    sinks.report_to((*config.error_log).clone());
    let pools = config
        .main
        .pools
        .iter()
        .map(|pool| tw_disk::Pool::new(&pool.name, pool.threads, pool.max_queue).map_err(Into::into))
        .collect::<io::Result<Vec<_>>>()?;
    for path in &config.temp_paths {
        let _ = path;
    }
    let generation = Arc::new(Generation { id: 1, config, disks: Disks::new(pools) });
    let counts = Arc::new(Counts::default());
    let mut workers = Vec::new();
    for index in 0..generation.main.worker_count() {
        let mut own = Vec::new();
        for (socket, listen) in sockets.iter().zip(&generation.listens) {
            own.push(match (listen.options.reuseport, index) {
                (true, 1..) => socket.sibling(&listen.options, &mut |_| {}).map_err(io::Error::other)?,
                _ => socket.try_clone()?,
            });
        }
        let mut options = WorkerOptions::new(index);
        options.stall_threshold = generation.main.stall_threshold;
        options.guard = match generation.main.loop_guard {
            LoopGuard::Off => tw_rt::LoopGuard::Off,
            LoopGuard::Log => tw_rt::LoopGuard::Log,
            LoopGuard::Enforce => tw_rt::LoopGuard::Enforce,
        };
        let (all, generation) = (counts.clone(), generation.clone());
        let worker = Worker::<Order>::start(options, move |orders| {
            run_worker(index, all, generation, own, orders)
        })?;
        counts.add_loop(worker.stats().clone());
        workers.push(worker);
    }
    loop {
        match signals.wait(None)?.map(|received| received.signal) {
            Some(Signal::Term | Signal::Int) => break,
            Some(Signal::Quit) => {
                workers.iter().for_each(|worker| drop(worker.send(Order::Quit)));
                break;
            }
            Some(Signal::Usr1) => sinks.reopen(),
            _ => {}
        }
    }
    for worker in workers {
        let _ = worker.join();
    }
    let _ = sinks.flush_and_close(Instant::now() + Duration::from_secs(5));
    Ok(())
}
