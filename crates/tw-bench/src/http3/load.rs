//! Loads over HTTP/3: many requests on connections that stay, and a connection for each request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use rustls::ClientConfig;

use super::client::{Answer, Happened, Request};
use super::clients::Clients;
use super::frames;
use crate::Outcome;
use crate::contestant::Running;
use crate::exec::on_core;
use crate::h2load::{Amount, LoadResult};
use crate::spans::Spans;
use crate::usage;

/// A response, or a handshake, that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A load to put on a server.
pub(super) struct Load<'a> {
    pub(super) server: &'a Running,
    pub(super) tls: &'a Arc<ClientConfig>,
    pub(super) path: &'a str,
    pub(super) connections: usize,
    pub(super) amount: Amount,
    pub(super) kind: Kind,
    /// Datagrams of 100 that are lost in each direction.
    pub(super) lost_percent: usize,
    pub(super) cpu: usize,
}

/// Use of the connections.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Connections that stay open, each with so many requests at the same time. Handshakes are no part of the result.
    Kept { streams: usize },
    /// One request on each, then a new one. `rate` limits the handshakes in a second.
    OneRequest { rate: Option<f64> },
}

/// Results of a load.
pub(super) struct Served {
    pub(super) result: LoadResult,
    /// Handshakes that were completed.
    pub(super) handshakes: u64,
    /// From each request to its last byte, or from the start of its connection if that is new.
    pub(super) latencies: Spans,
    /// Processor time of the server meanwhile.
    pub(super) cpu: Duration,
    /// Share of the time in which the load was busy: near 1, it is the limit.
    pub(super) busy: f64,
}

impl Load<'_> {
    /// Puts the load on and waits for its end.
    pub(super) fn run(&self) -> Outcome<Served> {
        self.run_until(|| false)
    }

    /// As [`run`](Self::run), but connections with one request end once `is_over` says so.
    pub(super) fn run_until(&self, is_over: impl Fn() -> bool + Send) -> Outcome<Served> {
        on_core(self.cpu, || match self.kind {
            Kind::Kept { streams } => self.kept(streams),
            Kind::OneRequest { rate } => self.one_request(rate, is_over),
        })
    }

    /// Clients without connections, and the request.
    fn clients(&self) -> Outcome<(Clients, Request)> {
        const SEED: u64 = 1;
        let clients = Clients::new(self.server.addr(), self.tls)?.with_loss(self.lost_percent, SEED);
        Ok((clients, Request { number: 0, bytes: frames::get(self.path) }))
    }

    fn kept(&self, streams: usize) -> Outcome<Served> {
        let (mut clients, request) = self.clients()?;
        let keys = clients.connect_all(self.connections)?;
        let mut tally = Tally::start(self.server)?;
        let (span, count) = match self.amount {
            Amount::Seconds(seconds) => (Duration::from_secs(seconds.max(1)), u64::MAX),
            Amount::Requests(count) => (PATIENCE, count),
        };
        let bytes = clients.bytes;
        let mut begun = count.min((self.connections * streams) as u64);
        for key in keys.iter().cycle().take(usize::try_from(begun)?) {
            clients.send(*key, &request);
        }
        let mut until = tally.start + span;
        while Instant::now() < until && tally.done() < count {
            for (key, event) in clients.turn(until)? {
                match event {
                    Happened::Connected => {}
                    Happened::Answered(answer) => {
                        tally.add(&answer, answer.took);
                        if begun < count {
                            begun += 1;
                            clients.send(key, &request);
                        }
                        if let Amount::Requests(_) = self.amount {
                            until = Instant::now() + span;
                        }
                    }
                    Happened::Failed => tally.failed += 1,
                }
            }
        }
        if let Amount::Requests(count) = self.amount {
            // Requests that never ended have failed.
            tally.failed += count - tally.done().min(count);
        }
        tally.handshakes = keys.len() as u64;
        tally.finish(self.server, clients.bytes - bytes)
    }

    /// Connections with one request each.
    fn one_request(&self, rate: Option<f64>, is_over: impl Fn() -> bool) -> Outcome<Served> {
        let Amount::Seconds(seconds) = self.amount else { return Err("handshakes are not counted".into()) };
        let (mut clients, request) = self.clients()?;
        let mut since = Vec::new();
        // The first datagrams of a server that has just started may be lost.
        for key in clients.connect_all(1)? {
            clients.close(key);
        }
        let mut tally = Tally::start(self.server)?;
        let until = tally.start + Duration::from_secs(seconds.max(1));
        let every = Duration::from_secs_f64(rate.map_or(0.0, |rate| 1.0 / rate));
        let mut next = tally.start;
        let mut open = 0;
        loop {
            let now = Instant::now();
            if now >= until || is_over() {
                break;
            }
            while open < self.connections && next <= now {
                let key = clients.connect()?;
                since.resize(since.len().max(key + 1), now);
                since[key] = now;
                clients.send(key, &request);
                open += 1;
                next += every;
            }
            let wake = if open < self.connections { until.min(next) } else { until };
            for (key, event) in clients.turn(wake)? {
                match event {
                    Happened::Connected => tally.handshakes += 1,
                    Happened::Answered(answer) => {
                        tally.add(&answer, since[key].elapsed());
                        clients.close(key);
                        open -= 1;
                    }
                    Happened::Failed => {
                        tally.failed += 1;
                        clients.close(key);
                        open -= 1;
                    }
                }
            }
        }
        let bytes = clients.bytes;
        tally.finish(self.server, bytes)
    }
}

/// Counters of a load that runs.
struct Tally {
    start: Instant,
    /// Processor time of the server at the start.
    server_before: Duration,
    /// Processor time of this thread at the start.
    load_before: Duration,
    requests: u64,
    failed: u64,
    handshakes: u64,
    latencies: Vec<Duration>,
}

impl Tally {
    fn start(server: &Running) -> Outcome<Self> {
        Ok(Self {
            server_before: usage::cpu_time(server.pid())?,
            load_before: thread_time()?,
            start: Instant::now(),
            requests: 0,
            failed: 0,
            handshakes: 0,
            latencies: Vec::new(),
        })
    }

    fn done(&self) -> u64 {
        self.requests + self.failed
    }

    fn add(&mut self, answer: &Answer, took: Duration) {
        if answer.is_ok {
            self.requests += 1
        } else {
            self.failed += 1
        }
        self.latencies.push(took);
    }

    fn finish(self, server: &Running, bytes: u64) -> Outcome<Served> {
        let took = self.start.elapsed();
        let busy = thread_time()?.saturating_sub(self.load_before);
        let cpu = usage::cpu_time(server.pid())?.saturating_sub(self.server_before);
        let per_second = self.requests as f64 / took.as_secs_f64();
        Ok(Served {
            result: LoadResult { requests: self.requests, failed: self.failed, per_second, bytes },
            handshakes: self.handshakes,
            latencies: Spans::new(self.latencies),
            cpu,
            busy: busy.as_secs_f64() / took.as_secs_f64(),
        })
    }
}

/// Processor time of the calling thread.
fn thread_time() -> Outcome<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}
