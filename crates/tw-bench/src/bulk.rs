//! Clients that read large responses and count their bytes over time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::wait;

use super::Outcome;
use super::data::Random;
use super::exec::pin;

/// Time over which bytes are added up.
pub(super) const BIN: Duration = Duration::from_millis(250);
/// Longest wait before a client looks whether its time is over.
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes read at once.
const READ_SIZE: usize = 128 << 10;
/// Stack of a client: it has nothing but a head and counters on it.
const STACK_SIZE: usize = 128 << 10;

/// A load of clients, each with one connection and one request at a time.
pub(super) struct Bulk<'a> {
    pub(super) server: SocketAddr,
    pub(super) clients: usize,
    /// First and last moment of the load.
    pub(super) span: (Instant, Instant),
    /// Path of a request, from a random number.
    pub(super) path: &'a (dyn Fn(u64) -> String + Sync),
    pub(super) cpu: usize,
}

/// Result of a load.
pub(super) struct BulkResult {
    began: Instant,
    /// Bytes of each [`BIN`].
    bins: Vec<u64>,
    /// Begin of each request, and the time until its last byte; of those under way in the end until then.
    pub(super) requests: Vec<(Instant, Duration)>,
}

impl Bulk<'_> {
    /// Puts the load on, and waits for its end.
    pub(super) fn run(&self) -> Outcome<BulkResult> {
        let (began, end) = self.span;
        let count = (end - began).as_millis() / BIN.as_millis() + 1;
        let bins: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let ended = thread::scope(|scope| {
            let bins = &bins;
            let mut threads = Vec::new();
            for number in 0..self.clients {
                let one = move || self.client(number, bins).map_err(|error| error.to_string());
                threads.push(thread::Builder::new().stack_size(STACK_SIZE).spawn_scoped(scope, one)?);
            }
            let ends: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
                .collect();
            Ok::<_, io::Error>(ends.into_iter().collect::<Result<Vec<_>, _>>())
        })??;
        let bins = bins.into_iter().map(AtomicU64::into_inner).collect();
        Ok(BulkResult { began, bins, requests: ended.concat() })
    }

    fn client(&self, number: usize, bins: &[AtomicU64]) -> Outcome<Vec<(Instant, Duration)>> {
        pin(self.cpu)?;
        wait::pause(self.span.0.saturating_duration_since(Instant::now()));
        let mut stream = TcpStream::connect(self.server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut random = Random::new(number as u64);
        let mut requests = Vec::new();
        let mut buffer = vec![0; READ_SIZE];
        while Instant::now() < self.span.1 {
            let path = (self.path)(random.next());
            let start = Instant::now();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
            self.response(&mut stream, &mut buffer, bins).map_err(|error| format!("{path}: {error}"))?;
            requests.push((start, start.elapsed()));
        }
        Ok(requests)
    }

    /// Reads a response, or what arrives of it until the end of the load.
    fn response(&self, stream: &mut TcpStream, buffer: &mut [u8], bins: &[AtomicU64]) -> Outcome {
        let mut head = Vec::new();
        let mut missing = loop {
            let Some(len) = self.read(stream, buffer, bins)? else { return Ok(()) };
            head.extend_from_slice(&buffer[..len]);
            if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&head[..at]).into_owned();
                let size = content_length(&text).ok_or_else(|| format!("not the file: {text}"))?;
                break size.checked_sub(head.len() - at - 4).ok_or("more than the file")?;
            }
        };
        while missing > 0 {
            let Some(len) = self.read(stream, buffer, bins)? else { return Ok(()) };
            missing = missing.checked_sub(len).ok_or("more than the file")?;
        }
        Ok(())
    }

    /// Reads and counts some bytes; `None` at the end of the load.
    fn read(&self, stream: &mut TcpStream, buffer: &mut [u8], bins: &[AtomicU64]) -> Outcome<Option<usize>> {
        loop {
            if Instant::now() >= self.span.1 {
                return Ok(None);
            }
            match stream.read(buffer) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(len) => {
                    let bin = (Instant::now() - self.span.0).as_millis() / BIN.as_millis();
                    if let Some(bin) = bins.get(usize::try_from(bin)?) {
                        bin.fetch_add(len as u64, Relaxed);
                    }
                    return Ok(Some(len));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Length of the body of a successful response.
fn content_length(head: &str) -> Option<usize> {
    let mut lines = head.split("\r\n");
    lines.next().filter(|line| line.split(' ').nth(1) == Some("200"))?;
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

impl BulkResult {
    /// Megabytes per second in each bin, by the seconds since `origin`.
    pub(super) fn series(&self, origin: Instant) -> Vec<(f64, f64)> {
        let offset = (self.began - origin).as_secs_f64();
        let bin = BIN.as_secs_f64();
        // The last bin is not whole.
        let whole = self.bins.iter().take(self.bins.len().saturating_sub(1)).enumerate();
        whole.map(|(nth, bytes)| (offset + (nth as f64 + 0.5) * bin, *bytes as f64 / 1e6 / bin)).collect()
    }

    /// Megabytes per second of a time, in seconds since `origin`.
    pub(super) fn rate(&self, origin: Instant, from: f64, to: f64) -> f64 {
        let series = self.series(origin);
        let rates = series.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, rate)| *rate);
        let (sum, count) = rates.fold((0.0, 0), |(sum, count), rate| (sum + rate, count + 1));
        sum / f64::from(count)
    }

    /// Durations of the requests that began in a time.
    pub(super) fn spans(&self, from: Instant, to: Instant) -> Vec<Duration> {
        self.requests.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, span)| *span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_that_of_a_successful_response() {
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\nServer: a\r\ncontent-length: 12", Some(12)),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 12", None),
            ("HTTP/1.1 200 OK\r\nServer: a", None),
        ] {
            assert_eq!(content_length(head), expected, "{head}");
        }
    }

    #[test]
    fn rates_are_those_of_whole_bins() {
        let began = Instant::now();
        let read = BulkResult { began, bins: vec![250_000, 500_000, 7], requests: Vec::new() };
        assert_eq!(read.series(began), [(0.125, 1.0), (0.375, 2.0)]);
        assert_eq!(read.rate(began, 0.0, 0.5), 1.5);
        assert!(read.rate(began, 5.0, 6.0).is_nan());
    }
}
