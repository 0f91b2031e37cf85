//! Loads on relays, each on the core of the load, with a thread for each connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind};
use tw_testkit::{Client, wait};

use super::peer::{BULK, ECHO};
use super::{MEGABYTE, no_spans};
use crate::Outcome;
use crate::contestant::Running;
use crate::exec::pin;
use crate::spans::Spans;
use crate::static_files::Plan;

/// Bytes of a message.
const MESSAGE_SIZE: usize = 64;
/// Threads of a load.
const THREADS: usize = 32;
/// Datagrams that a client has under way at once.
const DATAGRAMS_UNDER_WAY: usize = 16;
/// An answer that takes longer is lost.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A datagram that takes longer is lost.
const DATAGRAM_MAX: Duration = Duration::from_millis(200);
const READ_SIZE: usize = 1 << 20;
/// Time between two messages beside large transfers.
const MESSAGE_TICK: Duration = Duration::from_millis(5);

/// Name in the certificate of relays that terminate TLS.
pub(super) const TLS_NAME: &str = "localhost";

/// Target of a load.
pub(crate) struct LoadTarget<'a> {
    pub(crate) server: &'a Running,
    pub(crate) plan: &'a Plan,
    /// Settings of clients of relays that terminate TLS.
    pub(crate) tls: Option<&'a Arc<ClientConfig>>,
}

impl<'a> LoadTarget<'a> {
    /// A target without TLS.
    pub(crate) fn plain(server: &'a Running, plan: &'a Plan) -> Self {
        Self { server, plan, tls: None }
    }

    fn tls(&self) -> Outcome<&'a Arc<ClientConfig>> {
        Ok(self.tls.ok_or("the load has no certificates")?)
    }
}

/// Result of a load.
pub(crate) struct Served {
    /// Units that were served.
    pub(crate) count: f64,
    pub(crate) took: Duration,
    /// Duration of each unit, if that was measured.
    pub(crate) spans: Spans,
}

/// One large transfer to the client, in megabytes.
pub(super) fn transfer(&LoadTarget { server, plan, .. }: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = server.addr();
    let cpu = plan.load_cpu;
    let span = Duration::from_secs(plan.seconds);
    let thread = thread::spawn(move || download(addr, cpu, span, &AtomicBool::new(false)));
    let (bytes, took) = joined(thread.join())?;
    Ok(Served { count: bytes / MEGABYTE, took, spans: no_spans() })
}

/// A connection for each message.
pub(crate) fn connect(&LoadTarget { server, plan, .. }: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = server.addr();
    repeat(plan, move || {
        Ok(move || {
            let mut stream = stream(addr)?;
            exchange(&mut stream)
        })
    })
}

/// A connection for each text that the server sends before it closes.
pub(crate) fn text(&LoadTarget { server, plan, .. }: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = server.addr();
    repeat(plan, move || {
        let mut bytes = Vec::new();
        Ok(move || {
            bytes.clear();
            match stream(addr)?.read_to_end(&mut bytes)? {
                0 => Err("a session without a text".into()),
                _ => Ok(()),
            }
        })
    })
}

/// A connection with a resumed handshake for each message.
pub(super) fn tls_connect(target: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = target.server.addr();
    let tls = target.tls()?;
    repeat(target.plan, move || {
        // A store of its own for each thread: few tickets are kept for one name.
        let mut own = ClientConfig::clone(tls);
        own.resumption = Resumption::in_memory_sessions(1);
        let own = Arc::new(own);
        exchange_secured(&mut Client::connect_tls(addr, &own, TLS_NAME)?)?;
        Ok(move || {
            let mut client = Client::connect_tls(addr, &own, TLS_NAME)?;
            exchange_secured(&mut client)?;
            match client.session().and_then(|session| session.handshake_kind()) {
                Some(HandshakeKind::Resumed) => Ok(()),
                other => Err(format!("no resumed handshake: {other:?}").into()),
            }
        })
    })
}

/// Messages over TLS on connections that stay open.
pub(super) fn tls_message(target: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = target.server.addr();
    let tls = target.tls()?;
    repeat(target.plan, move || {
        let mut client = Client::connect_tls(addr, tls, TLS_NAME)?;
        Ok(move || exchange_secured(&mut client))
    })
}

/// One large transfer over TLS to the client, in megabytes.
pub(super) fn tls_transfer(target: &LoadTarget<'_>) -> Outcome<Served> {
    let &LoadTarget { server, plan, .. } = target;
    let addr = server.addr();
    let cpu = plan.load_cpu;
    let span = Duration::from_secs(plan.seconds);
    let tls = Arc::clone(target.tls()?);
    let read = move || -> Outcome<(f64, Duration)> {
        pin(cpu)?;
        let mut client = Client::connect_tls(addr, &tls, TLS_NAME)?;
        client.send([BULK])?;
        let mut bytes = 0.0;
        let began = Instant::now();
        while began.elapsed() < span {
            bytes += client.read_bytes(READ_SIZE)?.len() as f64;
        }
        Ok((bytes, began.elapsed()))
    };
    let (bytes, took) = joined(thread::spawn(move || read().map_err(|error| error.to_string())).join())?;
    Ok(Served { count: bytes / MEGABYTE, took, spans: no_spans() })
}

fn exchange_secured(client: &mut Client) -> Outcome {
    client.send([ECHO; MESSAGE_SIZE])?;
    client.read_bytes(MESSAGE_SIZE)?;
    Ok(())
}

/// Messages on connections that stay open.
pub(super) fn message(&LoadTarget { server, plan, .. }: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = server.addr();
    repeat(plan, move || {
        let mut stream = stream(addr)?;
        Ok(move || exchange(&mut stream))
    })
}

/// Datagrams and their echo; those that are lost are not counted.
pub(super) fn datagram(&LoadTarget { server, plan, .. }: &LoadTarget<'_>) -> Outcome<Served> {
    let addr = server.addr();
    let span = Duration::from_secs(plan.seconds);
    let cpu = plan.load_cpu;
    let began = Instant::now();
    let counts = threads(THREADS, move |_| {
        pin(cpu).map_err(|error| error.to_string())?;
        let count = exchange_datagrams(addr, span).map_err(|error| error.to_string())?;
        Ok(count)
    })?;
    Ok(Served { count: counts.iter().sum::<usize>() as f64, took: began.elapsed(), spans: no_spans() })
}

fn exchange_datagrams(addr: SocketAddr, span: Duration) -> Outcome<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(addr)?;
    socket.set_read_timeout(Some(DATAGRAM_MAX))?;
    let began = Instant::now();
    let mut count = 0;
    let mut bytes = [ECHO; MESSAGE_SIZE];
    while began.elapsed() < span {
        for _ in 0..DATAGRAMS_UNDER_WAY {
            socket.send(&bytes)?;
        }
        // The rest of a round in which one was lost is lost, too.
        count += (0..DATAGRAMS_UNDER_WAY).take_while(|_| socket.recv(&mut bytes).is_ok()).count();
    }
    Ok(count)
}

/// Messages at a fixed rate beside transfers; the durations of the messages, and the bytes of the transfers.
pub(super) fn beside(server: &Running, bulks: usize, span: Duration, cpu: usize) -> Outcome<(Spans, f64)> {
    let addr = server.addr();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let bulk: Vec<_> = (0..bulks).map(|_| scope.spawn(|| download(addr, cpu, span * 2, &over))).collect();
        let spans = paced(addr, span);
        over.store(true, Relaxed);
        let mut bytes = 0.0;
        for thread in bulk {
            bytes += joined(thread.join())?.0;
        }
        Ok((spans?, bytes))
    })
}

fn paced(addr: SocketAddr, span: Duration) -> Outcome<Spans> {
    let mut stream = stream(addr)?;
    let began = Instant::now();
    let mut spans = Vec::new();
    let mut due = Instant::now();
    while began.elapsed() < span {
        let sent = Instant::now();
        exchange(&mut stream)?;
        spans.push(sent.elapsed());
        due += MESSAGE_TICK;
        wait::pause(due.saturating_duration_since(Instant::now()));
    }
    Ok(Spans::new(spans))
}

/// Connections through which bytes went once in both directions.
pub(super) fn open(server: &Running, count: usize) -> Outcome<Vec<TcpStream>> {
    let one = || {
        let mut stream = stream(server.addr())?;
        exchange(&mut stream)?;
        Ok(stream)
    };
    (0..count).map(|_| one()).collect()
}

/// Repeats what `begin` makes, on several threads, until the time is over.
fn repeat<W>(plan: &Plan, begin: impl Fn() -> Outcome<W> + Sync) -> Outcome<Served>
where
    W: FnMut() -> Outcome,
{
    let span = Duration::from_secs(plan.seconds);
    let cpu = plan.load_cpu;
    let began = Instant::now();
    let work = || -> Outcome<Vec<Duration>> {
        pin(cpu)?;
        let mut work = begin()?;
        let mut spans = Vec::new();
        while began.elapsed() < span {
            let start = Instant::now();
            work()?;
            spans.push(start.elapsed());
        }
        Ok(spans)
    };
    let spans = threads(THREADS, |_| work().map_err(|error| error.to_string()))?;
    let spans = Spans::new(spans.concat());
    Ok(Served { count: spans.count() as f64, took: began.elapsed(), spans })
}

/// Results of several threads.
fn threads<T: Send>(count: usize, work: impl Fn(usize) -> Result<T, String> + Sync) -> Outcome<Vec<T>> {
    let work = &work;
    let results: Result<Vec<T>, String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|nth| scope.spawn(move || work(nth))).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned())));
        // All of them, so that none is left running.
        ends.collect::<Vec<_>>().into_iter().collect()
    });
    Ok(results?)
}

/// Bytes that one connection gets, and the time that takes.
fn download(
    addr: SocketAddr,
    cpu: usize,
    span: Duration,
    over: &AtomicBool,
) -> Result<(f64, Duration), String> {
    let read = || -> Outcome<(f64, Duration)> {
        pin(cpu)?;
        let mut stream = stream(addr)?;
        stream.write_all(&[BULK])?;
        let mut bytes = 0.0;
        let mut buffer = vec![0; READ_SIZE];
        let began = Instant::now();
        while began.elapsed() < span && !over.load(Relaxed) {
            match stream.read(&mut buffer)? {
                0 => return Err("the transfer ended".into()),
                count => bytes += count as f64,
            }
        }
        Ok((bytes, began.elapsed()))
    };
    read().map_err(|error| error.to_string())
}

fn stream(addr: SocketAddr) -> Outcome<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream) -> Outcome {
    let mut bytes = [ECHO; MESSAGE_SIZE];
    stream.write_all(&bytes)?;
    Ok(stream.read_exact(&mut bytes)?)
}

fn joined<T>(result: thread::Result<Result<T, String>>) -> Outcome<T> {
    Ok(result.unwrap_or_else(|_| Err("a client panicked".to_owned()))?)
}
