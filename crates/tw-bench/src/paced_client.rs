//! Client with a fixed request rate, however long a response takes: latency as a user would notice it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tw_testkit::{Client, wait};

use super::Outcome;
use super::exec::pin;
use super::spans::Spans;

/// Request and its rate.
pub(super) struct PacedClient {
    pub(super) path: &'static str,
    /// Bytes of the body.
    pub(super) size: usize,
    /// Between two requests to the same server.
    pub(super) tick: Duration,
    /// Requests to each server before any counts.
    pub(super) warm_count: usize,
    /// Requests to each server that count.
    pub(super) count: usize,
    /// Over TLS, to a server called `localhost`; plain without.
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl PacedClient {
    /// Sends requests to the servers in turn, each at its own rate, from one core. Measures from the first byte of a
    /// request to the last of its response.
    pub(super) fn send_requests(&self, servers: &[(&str, SocketAddr)], cpu: usize) -> Outcome<Vec<Spans>> {
        let sent = thread::scope(|scope| {
            let client = scope.spawn(|| {
                pin(cpu).and_then(|()| self.request_all(servers)).map_err(|error| error.to_string())
            });
            client.join().unwrap_or_else(|_| Err("the client panicked".to_owned()))
        });
        Ok(sent?)
    }

    fn request_all(&self, servers: &[(&str, SocketAddr)]) -> Outcome<Vec<Spans>> {
        let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.path);
        let connect = |&(_, addr): &(&str, SocketAddr)| match &self.tls {
            Some(config) => Client::connect_tls(addr, config, "localhost"),
            None => Client::connect(addr),
        };
        let mut clients = servers.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        let mut spans = vec![Vec::with_capacity(self.count); servers.len()];
        let gap = self.tick / u32::try_from(servers.len())?;
        let mut next = Instant::now();
        for nth in 0..self.warm_count + self.count {
            for ((client, spans), (name, _)) in clients.iter_mut().zip(&mut spans).zip(servers) {
                next += gap;
                wait::pause(next.saturating_duration_since(Instant::now()));
                let start = Instant::now();
                client.send(&request)?;
                let response = client.read_response().map_err(|e| format!("{name}: {e}"))?;
                let taken = start.elapsed();
                if response.status != 200 || response.body.len() != self.size {
                    return Err(format!("{name}: not the file: {}", response.head).into());
                }
                if nth >= self.warm_count {
                    spans.push(taken);
                }
            }
        }
        Ok(spans.into_iter().map(Spans::new).collect())
    }
}
