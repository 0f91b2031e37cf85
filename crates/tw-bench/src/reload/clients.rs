//! Keep-alive clients at full load that count exactly: responses with their times, and failures.
//!
//! Each connection sends its next request as soon as it has a response. A connection that the server closes cleanly
//! between two requests, or after a response that announces it, is opened again, as by any client. A request without
//! a response has failed.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;

use crate::Outcome;
use crate::exec::pin;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// A request without an answer for so long has failed.
const TIMEOUT: Duration = Duration::from_secs(10);
const EVENT_COUNT: usize = 256;
/// Interval at which idle clients look at the time.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Results of the requests of one phase.
#[derive(Debug, Default, Clone)]
pub(super) struct Counts {
    pub(super) answered: u64,
    /// Without an answer, or with another than 200.
    pub(super) failed: u64,
    /// Connections that were reset.
    pub(super) resets: u64,
    /// Connections that were closed cleanly and opened again.
    pub(super) reopened: u64,
    /// Answers by latency in steps of 10 µs.
    latencies: BTreeMap<u32, u64>,
}

impl Counts {
    /// The latency that this share of the answers does not exceed.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let wanted_number = (self.answered as f64 * share).ceil() as u64;
        let mut seen_count = 0;
        let step = self.latencies.iter().find(|(_, count)| {
            seen_count += **count;
            seen_count >= wanted_number
        });
        Duration::from_micros(step.map_or(0, |(step, _)| 10 * (u64::from(*step) + 1)))
    }

    fn answer(&mut self, latency: Duration) {
        self.answered += 1;
        *self.latencies.entry((latency.as_micros() / 10) as u32).or_default() += 1;
    }
}

/// Running clients. [`finish`](Self::finish) ends them; dropping this does not.
pub(super) struct Clients {
    phase: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Counts>, String>>,
}

impl Clients {
    /// Starts `count` clients on one core; requests count for phase 0 of `phases`.
    pub(super) fn start(addr: SocketAddr, count: usize, phases: usize, cpu: usize) -> Outcome<Self> {
        let phase = Arc::<AtomicUsize>::default();
        let stop = Arc::<AtomicBool>::default();
        let mut load = Load {
            addr,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            connections: (0..count).map(|_| None).collect(),
            counts: vec![Counts::default(); phases],
            phase: phase.clone(),
        };
        let stopped = stop.clone();
        let run = move || {
            pin(cpu).map_err(|error| error.to_string())?;
            load.run(&stopped).map_err(|error| error.to_string())?;
            Ok(load.counts)
        };
        let thread = std::thread::Builder::new().name("clients".into()).spawn(run)?;
        Ok(Self { phase, stop, thread })
    }

    /// Counts responses from now on for another phase.
    pub(super) fn enter(&self, phase: usize) {
        self.phase.store(phase, Relaxed);
    }

    /// Ends them; the counts of each phase.
    pub(super) fn finish(self) -> Outcome<Vec<Counts>> {
        self.stop.store(true, Relaxed);
        let counts = self.thread.join().map_err(|_| "the clients panicked")?;
        Ok(counts?)
    }
}

/// One connection with a request on its way.
struct Connection {
    socket: TcpStream,
    sent: Instant,
    got: Vec<u8>,
}

/// Next step of a connection.
enum Next {
    /// Wait for the rest of the response.
    Wait,
    /// Open the connection again.
    Reopen,
}

struct Load {
    addr: SocketAddr,
    epoll: OwnedFd,
    /// `None` is to be opened.
    connections: Vec<Option<Connection>>,
    counts: Vec<Counts>,
    phase: Arc<AtomicUsize>,
}

impl Load {
    fn counts(&mut self) -> &mut Counts {
        let phase = self.phase.load(Relaxed).min(self.counts.len() - 1);
        &mut self.counts[phase]
    }

    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENT_COUNT);
        while !stop.load(Relaxed) {
            for at in 0..self.connections.len() {
                self.look_after(at);
            }
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let at = event.data.u64() as usize;
                if let Some(mut connection) = self.connections[at].take() {
                    match self.turn(&mut connection) {
                        Next::Wait => self.connections[at] = Some(connection),
                        Next::Reopen => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Opens a connection that is closed, and gives one up that waits for too long.
    fn look_after(&mut self, at: usize) {
        match &self.connections[at] {
            Some(connection) if connection.sent.elapsed() < TIMEOUT => {}
            Some(_) => {
                self.counts().failed += 1;
                self.connections[at] = None;
            }
            None => match self.open(at) {
                Ok(connection) => self.connections[at] = Some(connection),
                Err(_) => self.counts().failed += 1,
            },
        }
    }

    fn open(&self, at: usize) -> io::Result<Connection> {
        let mut socket = TcpStream::connect_timeout(&self.addr, TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        epoll::add(&self.epoll, &socket, EventData::new_u64(at as u64), EventFlags::IN)?;
        let sent = Instant::now();
        socket.write_all(REQUEST)?;
        Ok(Connection { socket, sent, got: Vec::new() })
    }

    /// Reads the available bytes, and sends the next request once the response is complete.
    fn turn(&mut self, connection: &mut Connection) -> Next {
        let mut buffer = [0; 4096];
        loop {
            match connection.socket.read(&mut buffer) {
                Ok(0) => {
                    self.counts().failed += 1;
                    return Next::Reopen;
                }
                Ok(count) => connection.got.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Wait,
                Err(_) => return self.was_reset(),
            }
            let Some(answer) = Answer::parse(&connection.got) else { continue };
            match answer.status {
                200 => self.counts().answer(connection.sent.elapsed()),
                _ => self.counts().failed += 1,
            }
            connection.got.clear();
            if answer.closes || is_closed(&connection.socket) {
                self.counts().reopened += 1;
                return Next::Reopen;
            }
            connection.sent = Instant::now();
            if connection.socket.write_all(REQUEST).is_err() {
                return self.was_reset();
            }
        }
    }

    fn was_reset(&mut self) -> Next {
        let counts = self.counts();
        counts.failed += 1;
        counts.resets += 1;
        Next::Reopen
    }
}

/// Returns `true` if the server has closed a connection cleanly, as a client sees it before it sends a request.
pub(super) fn is_closed(socket: &TcpStream) -> bool {
    let mut byte = [0];
    matches!(recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((0, _)))
}

/// A complete response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) closes: bool,
    /// `X-Turn`: the configuration it was made by.
    pub(super) turn: Option<u64>,
}

impl Answer {
    /// Reads a response with `Content-Length`; `None` if it is not complete.
    pub(super) fn parse(got: &[u8]) -> Option<Self> {
        let end = got.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&got[..end]);
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let mut length = 0;
        let mut closes = false;
        let mut turn = None;
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            match name {
                "Content-Length" => length = value.parse().ok()?,
                "Connection" => closes = value == "close",
                "X-Turn" => turn = value.parse().ok(),
                _ => {}
            }
        }
        (got.len() >= end + length).then_some(Self { status, closes, turn })
    }
}

/// Connection that sends requests on demand.
pub(super) struct OnDemandClient {
    addr: SocketAddr,
    socket: TcpStream,
}

impl OnDemandClient {
    /// Connects, and sends one request.
    pub(super) fn open(addr: SocketAddr) -> Outcome<Self> {
        let mut patient = Self { addr, socket: connect(addr)? };
        patient.exchange()?;
        Ok(patient)
    }

    /// Returns `true` if the connection is still open.
    pub(super) fn is_open(&self) -> bool {
        !is_closed(&self.socket)
    }

    /// Sends a request, on a new connection if the old one was closed cleanly.
    pub(super) fn send_requests(&mut self) -> Outcome<Answer> {
        if !self.is_open() {
            self.socket = connect(self.addr)?;
        }
        self.exchange()
    }

    fn exchange(&mut self) -> Outcome<Answer> {
        self.socket.write_all(REQUEST)?;
        let mut got = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer)? {
                0 => return Err("closed without an answer".into()),
                count => got.extend_from_slice(&buffer[..count]),
            }
            if let Some(answer) = Answer::parse(&got) {
                return Ok(answer);
            }
        }
    }
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&addr, TIMEOUT)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_last_byte() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\nX-Turn: 7\r\n\r\nabc";
        for end in 0..text.len() {
            assert_eq!(Answer::parse(&text[..end]), None);
        }
        assert_eq!(Answer::parse(text), Some(Answer { status: 200, closes: true, turn: Some(7) }));
    }

    #[test]
    fn quantiles_are_the_ends_of_their_steps() {
        let mut counts = Counts::default();
        (0..100).for_each(|us| counts.answer(Duration::from_micros(10 * us)));
        let at = |share| counts.quantile(share).as_micros();
        assert_eq!((at(0.5), at(0.99), at(1.0)), (500, 990, 1000));
        assert_eq!(Counts::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn unanswered_requests_are_counted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let cpu = rustix::thread::sched_getcpu();
        let clients = Clients::start(addr, 1, 1, cpu).unwrap();
        let answer = |text: &str| {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; REQUEST.len()]).unwrap();
            socket.write_all(text.as_bytes()).unwrap();
        };
        answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
        answer("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx");
        answer("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let (last, _) = listener.accept().unwrap();
        let counts = clients.finish().unwrap().remove(0);
        drop(last);
        assert_eq!((counts.answered, counts.failed, counts.resets, counts.reopened), (1, 2, 0, 2));
    }
}
