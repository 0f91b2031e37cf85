//! The bare cost of a request on the loop: answers every request head with one fixed 1 KiB response.
//!
//! `echo_http ADDRESS SECONDS [WORKERS]` serves for so long and prints the processor time per request of its threads.
//! No parsing beyond the blank line, no log, no configuration: what a server adds above the loop is measured
//! against this.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpListener;
use tw_rt::{Deadline, FirstBytes, Inbox, LoopOptions, LoopThread, Socket, Subject, TaskGroup, clock};

const KEEPALIVE: Duration = Duration::from_secs(75);
const SEND: Duration = Duration::from_secs(60);
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nServer: tailwater\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    Content-Type: text/plain\r\nContent-Length: 1024\r\nConnection: keep-alive\r\n\r\n";
const BODY: &[u8] = &[b'x'; 1024];

async fn connection(stream: Socket, requests: Arc<AtomicU64>) -> io::Result<()> {
    stream.set_nodelay();
    let mut deadline = Deadline::new();
    loop {
        deadline.set(KEEPALIVE);
        if deadline.guard(stream.readable()).await.is_err() {
            return Ok(());
        }
        let mut buf = Vec::with_capacity(1024);
        match stream.try_read(&mut buf) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        }
        if !buf.ends_with(b"\r\n\r\n") {
            return Ok(());
        }
        deadline.set(SEND);
        let sent = stream.try_write_vectored(&[IoSlice::new(HEAD), IoSlice::new(BODY)])?;
        if sent < HEAD.len() + BODY.len() {
            return Ok(());
        }
        requests.fetch_add(1, Relaxed);
    }
}

async fn serve(listener: std::net::TcpListener, requests: Arc<AtomicU64>, mut inbox: Inbox<()>) {
    let listener = TcpListener::from_std(listener).expect("the listener is non-blocking");
    let group = TaskGroup::new();
    let connections = group.clone();
    group.spawn(Subject { kind: "accept", id: 0 }, async move {
        let mut id = 0;
        while let Ok((stream, _)) = listener.accept().await {
            id += 1;
            let requests = Arc::clone(&requests);
            connections.spawn(Subject { kind: "connection", id }, async move {
                // A connection that breaks is the client's matter.
                if let Ok(stream) = stream.into_std() {
                    let _ = connection(Socket::tcp(stream.into(), FirstBytes::Later), requests).await;
                }
            });
        }
    });
    inbox.recv().await;
}

fn listen(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    socket.bind(&addr.into())?;
    socket.listen(511)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let addr = args.next().and_then(|a| a.parse().ok()).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080)));
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(10);
    let workers = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let requests = Arc::new(AtomicU64::new(0));
    let workers: Vec<LoopThread<()>> = (0..workers)
        .map(|index| {
            let listener = listen(addr)?;
            let requests = Arc::clone(&requests);
            LoopThread::start(LoopOptions::new(index), |inbox| serve(listener, requests, inbox))
        })
        .collect::<io::Result<_>>()?;

    let end = clock::now() + Duration::from_secs(seconds);
    while clock::now() < end {
        std::thread::park_timeout(end - clock::now());
    }
    let mut turns = tw_base::hist::Snapshot::empty();
    for worker in &workers {
        turns.merge(&worker.stats().blocked.snapshot());
    }
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let used_us = used.tv_sec as f64 * 1e6 + used.tv_nsec as f64 / 1e3;
    let served = requests.load(Relaxed);
    report(&format!(
        "{served} requests, {:.2} us of processor time each; {} turns, half of them up to {:?} us, p99 {:?} us\n",
        used_us / served as f64,
        turns.count(),
        turns.quantile_ns(0.5).map(|ns| ns / 1000),
        turns.quantile_ns(0.99).map(|ns| ns / 1000),
    ))
}

fn report(line: &str) -> io::Result<()> {
    io::Write::write_all(&mut io::stdout(), line.as_bytes())
}
