//! Many simultaneous requests for the same large response, which is not cached yet.
//!
//! With `proxy_cache_lock on` the origin should get one request, and the response should go to all clients as it
//! arrives: no client waits for its end, and there is no copy in memory per client.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;
use serde_json::{Value, json};

use super::contestants::{Caches, NGINX, OURS};
use crate::Outcome;
use crate::contestant::{Contestant, present};
use crate::exec::{RunPlacement, pin, raise_open_files};
use crate::proxy::origin::LARGE;
use crate::report::{Report, Table, number, progress, span};
use crate::spans::Spans;
use crate::turns::Turns;
use crate::usage;

const LOCK: &str = "proxy_cache_lock on;";
/// Bytes taken at once.
const RECV_SIZE: usize = 256 << 10;
/// Time without any bytes after which the transfer counts as stalled.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A head that does not end within this size is none.
const HEAD_MAX: usize = 16 << 10;

/// Number of clients, size and directory.
pub(super) struct Plan {
    pub(super) clients: usize,
    pub(super) size: u64,
    pub(super) server_cpu: usize,
    pub(super) load_cpu: usize,
}

/// Results of one server.
struct Score {
    name: String,
    /// Number of requests to the origin.
    origin_requests: u64,
    /// Until the first byte of the body.
    first: Spans,
    /// Until the last one.
    last: Spans,
    cpu: Duration,
    /// Most memory ever resident, before and after, in bytes.
    idle_peak: u64,
    peak: u64,
}

/// Measures, and adds a table and a target.
pub(super) fn run(report: &mut Report, caches: &Caches, plan: &Plan) -> Outcome {
    let files = raise_open_files()?;
    if (plan.clients as u64).saturating_mul(2) > files {
        return Err(format!("{} clients are too many: only {files} files may be open", plan.clients).into());
    }
    let mut results = Vec::new();
    for contestant in present([caches.ours(OURS, LOCK), caches.nginx(NGINX, LOCK)]) {
        results.push(measure(&contestant, caches, plan)?);
    }
    progress("");
    let title = format!("{} clients, one response of {} MiB", plan.clients, number(mebibytes(plan.size)));
    let columns =
        ["origin asked", "first byte p50", "max", "last byte max", "MB/s", "CPU s", "peak RSS MB", "idle"];
    let mut table = Table::new(&title, &columns);
    let mut numbers = Vec::new();
    for result in &results {
        let whole = result.last.percentile(1.0);
        let rate = plan.clients as f64 * plan.size as f64 / whole.as_secs_f64() / 1e6;
        let cells = vec![
            result.origin_requests.to_string(),
            span(result.first.percentile(0.5)),
            span(result.first.percentile(1.0)),
            span(whole),
            number(rate),
            number(result.cpu.as_secs_f64()),
            number(result.peak as f64 / 1e6),
            number(result.idle_peak as f64 / 1e6),
        ];
        table.row(&result.name, cells);
        numbers.push(json!({
            "name": result.name,
            "origin_asked": result.origin_requests,
            "first_byte_p50_us": result.first.percentile(0.5).as_micros() as u64,
            "first_byte_max_us": result.first.percentile(1.0).as_micros() as u64,
            "last_byte_max_us": whole.as_micros() as u64,
            "bytes_per_second": rate * 1e6,
            "server_cpu_us": result.cpu.as_micros() as u64,
            "idle_peak_resident_bytes": result.idle_peak,
            "peak_resident_bytes": result.peak,
        }));
    }
    report.case(&table, Value::Array(numbers));
    if let Some(ours) = results.first() {
        report.target(format!("{title}: origin asked"), ours.origin_requests as f64);
    }
    Ok(())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn measure(contestant: &Contestant, caches: &Caches, plan: &Plan) -> Outcome<Score> {
    let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
    progress(&format!("{}: {} clients", server.name, plan.clients));
    let origin_requests = caches.origin_requests()?;
    let idle_peak = usage::peak(server.pid())?;
    let cpu = usage::cpu_time(server.pid())?;
    let addr = server.addr();
    let clients = plan.clients;
    let size = plan.size;
    let came = thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            pin(plan.load_cpu).and_then(|()| crowd(addr, clients, size)).map_err(|error| error.to_string())
        });
        crowd.join().unwrap_or_else(|_| Err("the clients panicked".to_owned()))
    });
    let (first, last) = came.map_err(|error| format!("{}: {error}", server.name))?;
    Ok(Score {
        name: server.name.clone(),
        origin_requests: caches.origin_requests()? - origin_requests,
        first,
        last,
        cpu: usage::cpu_time(server.pid())? - cpu,
        idle_peak,
        peak: usage::peak(server.pid())?,
    })
}

/// One that waits for its response.
struct Client {
    socket: OwnedFd,
    head: Head,
    /// Remaining bytes of the body.
    remaining: u64,
    first: Option<Duration>,
}

/// Head, possibly incomplete.
enum Head {
    Comes(Vec<u8>),
    Read,
}

/// Sends one request per client at once. Returns the times until the first and until the last byte of each response.
fn crowd(server: SocketAddr, count: usize, size: u64) -> Outcome<(Spans, Spans)> {
    const WAIT: Timespec = Timespec { tv_sec: SILENCE_MAX.as_secs().cast_signed(), tv_nsec: 0 };
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let stream = TcpStream::connect(server)?;
        stream.set_nonblocking(true)?;
        let socket = OwnedFd::from(stream);
        epoll::add(&epoll, &socket, EventData::new_u64(number as u64), EventFlags::IN)?;
        clients.push(Client { socket, head: Head::Comes(Vec::new()), remaining: size, first: None });
    }
    let request = format!("GET {LARGE} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let began = Instant::now();
    for client in &clients {
        rustix::io::write(&client.socket, request.as_bytes())?;
    }
    let mut events = Turns::events();
    let mut scratch = vec![0; RECV_SIZE];
    let mut first = Vec::with_capacity(count);
    let mut last = Vec::with_capacity(count);
    while last.len() < count {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&WAIT)) {
            Ok(0) => return Err(format!("{} clients wait for more", count - last.len()).into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let Some(client) = clients.get_mut(event.data.u64() as usize) else { continue };
            if client.remaining == 0 {
                continue;
            }
            client.take(&mut scratch, began)?;
            if client.remaining == 0 {
                epoll::delete(&epoll, &client.socket)?;
                first.extend(client.first);
                last.push(began.elapsed());
            }
        }
    }
    Ok((Spans::new(first), Spans::new(last)))
}

impl Client {
    /// Reads the available bytes.
    fn take(&mut self, scratch: &mut [u8], began: Instant) -> Outcome {
        let count = match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
            Ok((0, _)) => return Err(format!("closed with {} bytes to come", self.remaining).into()),
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut body_count = count;
        if let Head::Comes(head) = &mut self.head {
            head.extend_from_slice(scratch.get(..count).unwrap_or_default());
            let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else {
                return if head.len() > HEAD_MAX { Err("a head without an end".into()) } else { Ok(()) };
            };
            if !head.starts_with(b"HTTP/1.1 200 ") {
                return Err(String::from_utf8_lossy(&head[..end]).into_owned().into());
            }
            body_count = head.len() - end - 4;
            self.head = Head::Read;
        }
        if body_count > 0 && self.first.is_none() {
            self.first = Some(began.elapsed());
        }
        self.remaining = self.remaining.checked_sub(body_count as u64).ok_or("more than the response")?;
        Ok(())
    }
}
