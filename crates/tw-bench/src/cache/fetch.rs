//! Client that requests many responses once each, to fill a cache.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::{Client, wait};

use crate::Outcome;
use crate::exec::pin;
use crate::proxy::origin::OriginFile;

/// Connections, each with a thread of its own.
const CONNECTIONS: usize = 8;

/// Requests from `server` the responses below the path of `file` with these numbers. `tick` is the time between two of them;
/// zero for no pause. Returns when all have arrived.
pub(super) fn fetch(
    server: SocketAddr,
    file: OriginFile,
    numbers: Range<usize>,
    tick: Duration,
    cpu: usize,
) -> Outcome {
    let OriginFile { path, size } = file;
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let one = || -> Outcome {
        pin(cpu)?;
        let mut client = Client::connect(server)?;
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= numbers.len() {
                return Ok(());
            }
            let due = began + tick * u32::try_from(nth)?;
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                wait::pause(early);
            }
            let number = numbers.start + nth;
            client.send(format!("GET {path}/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
            let response = client.read_response()?;
            if response.status != 200 || response.body.len() != size {
                return Err(format!("{path}/{number}: not the response: {}", response.head).into());
            }
        }
    };
    let ended = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CONNECTIONS).map(|_| scope.spawn(|| one().map_err(|error| error.to_string()))).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned())));
        // All of them, so that none is left without having been looked at.
        ends.fold(Ok(()), Result::and)
    });
    Ok(ended?)
}
