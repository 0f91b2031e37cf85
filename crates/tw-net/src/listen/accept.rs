//! Taking connections from a listening socket on a loop.
//!
//! A socket that other loops have, too, wakes one of them for a connection, not all (see [`tw_rt::gate`]). Where the loop
//! has no gate left, tokio watches the socket, and all are woken.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno as Os;
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tw_base::Errno;
use tw_rt::gate::{GatedListener, WakeMode};
use tw_rt::{FirstBytes, Socket};

use crate::Addr;

use super::{AcceptingLoops, ListenSocket};

/// Pause of accepting after an error (nginx's `accept_mutex_delay`).
const PAUSE: Duration = Duration::from_millis(500);
/// The kernel wakes the loop that has watched the socket longest. After so many connections a loop watches it anew, so
/// that the others have theirs (nginx's number).
const TAKEN_IN_A_ROW: u32 = 16;

/// A connection just taken: on no loop yet.
#[derive(Debug)]
pub struct Accepted {
    /// Non-blocking.
    pub socket: OwnedFd,
    /// Address of the client.
    pub peer: Addr,
}

impl Accepted {
    /// Returns the connection on the loop of this thread, and the address of the peer.
    pub fn into_socket(self, first: FirstBytes) -> (Socket, Addr) {
        let stream = match &self.peer {
            Addr::Inet(_) => Socket::tcp(self.socket, first),
            Addr::Unix(_) => Socket::unix(self.socket, first),
        };
        (stream, self.peer)
    }

    /// The address it came to. One system call.
    pub fn local_addr(&self) -> io::Result<Addr> {
        Ok(Some(rustix::net::getsockname(&self.socket)?).into())
    }
}

/// `accept()` failed. Displays as nginx writes it: `accept4() failed (24: Too many open files)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptError {
    errno: Errno,
}

impl AcceptError {
    /// The error of the system.
    pub fn errno(&self) -> i32 {
        self.errno.0
    }

    /// Returns true if descriptors ran out (level `crit`), false for a fault of the socket itself (level `alert`).
    pub fn is_exhaustion(&self) -> bool {
        [Os::MFILE, Os::NFILE].iter().any(|os| os.raw_os_error() == self.errno.0)
    }
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accept4() failed ({})", self.errno)
    }
}

impl std::error::Error for AcceptError {}

/// Accepts connections from one listening socket on the loop that created it.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    addr: Addr,
    share: AcceptingLoops,
    /// Connections accepted since the socket was last moved to the end of the epoll queue.
    taken: u32,
    next: AcceptStep,
}

/// Step of the next call before it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcceptStep {
    /// Waits for a notification.
    Wait,
    /// Lets others run.
    Yield,
    Pause,
}

#[derive(Debug)]
enum Listener {
    Gated(GatedListener),
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// Prepares the loop of this thread for `count` sockets; those that are more wake every loop. See
    /// [`tw_rt::gate::prepare`] for when.
    pub fn prepare(count: usize) {
        tw_rt::gate::prepare(count);
    }

    /// Brings `socket` to the loop of this thread, which waits for connections from the first [`accept`](Self::accept) on.
    pub fn new(socket: ListenSocket) -> io::Result<Self> {
        let addr = socket.addr().clone();
        let share = socket.shared_with();
        let wakes = match share {
            AcceptingLoops::Alone => WakeMode::All,
            AcceptingLoops::All => WakeMode::One,
        };
        let listener = match GatedListener::new(OwnedFd::from(socket), wakes) {
            Ok(gated) => Listener::Gated(gated),
            Err(fd) => match addr {
                Addr::Inet(_) => Listener::Tcp(TcpListener::from_std(fd.into())?),
                Addr::Unix(_) => Listener::Unix(UnixListener::from_std(fd.into())?),
            },
        };
        Ok(Self { listener, addr, share, taken: 0, next: AcceptStep::Wait })
    }

    /// The next connection, non-blocking and close-on-exec. Waits until there is one; connections that ended before
    /// they were taken are passed over. Between two calls other tasks run. After an error, log it and call again: the pause
    /// it needs is in here.
    pub async fn accept(&mut self) -> Result<Accepted, AcceptError> {
        match std::mem::replace(&mut self.next, AcceptStep::Wait) {
            AcceptStep::Wait => {}
            AcceptStep::Yield => tw_rt::yield_now().await,
            AcceptStep::Pause => tw_rt::time::sleep(PAUSE).await,
        }
        loop {
            match self.wait_and_take().await {
                Ok(accepted) => {
                    self.next = match self.listener {
                        // The loop looks at a gate once a turn, so this listener needs no yield of its own.
                        Listener::Gated(_) => AcceptStep::Wait,
                        Listener::Tcp(_) | Listener::Unix(_) => AcceptStep::Yield,
                    };
                    return Ok(accepted);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || is_the_peers(&e) => {}
                Err(e) => return Err(self.failed(&e)),
            }
        }
    }

    /// Accepts another connection, if one is pending (`multi_accept`).
    pub fn try_accept(&mut self) -> Option<Result<Accepted, AcceptError>> {
        loop {
            match self.take() {
                Ok(accepted) => return Some(Ok(accepted)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) if is_the_peers(&e) => {}
                Err(e) => return Some(Err(self.failed(&e))),
            }
        }
    }

    /// Stops wake-ups for connections until the next [`accept`](Self::accept).
    pub fn pause(&mut self) {
        if let Listener::Gated(gated) = &mut self.listener {
            // If the gate cannot be closed, connections wake the loop in vain.
            let _ = gated.set_open(false);
        }
    }

    /// Skips the pause after an error: the missing resource may be available once other tasks have run.
    pub fn skip_error_pause(&mut self) {
        self.next = AcceptStep::Yield;
    }

    fn failed(&mut self, error: &io::Error) -> AcceptError {
        // DIFF(nginx): nginx pauses only when descriptors run out. Whatever else it is, it is there again at once, and
        // without a pause the loop would do nothing but fail.
        self.next = AcceptStep::Pause;
        self.pause();
        AcceptError { errno: Errno::from(error) }
    }

    async fn wait_and_take(&mut self) -> io::Result<Accepted> {
        match &mut self.listener {
            Listener::Gated(gated) => {
                if self.taken >= TAKEN_IN_A_ROW && self.share == AcceptingLoops::All {
                    self.taken = 0;
                    gated.to_the_end()?;
                }
                gated.set_open(true)?;
                gated.ready().await?;
                self.take()
            }
            Listener::Tcp(listener) => of_tcp(listener.accept().await?),
            Listener::Unix(listener) => of_unix(listener.accept().await?),
        }
    }

    fn take(&mut self) -> io::Result<Accepted> {
        let mut cx = Context::from_waker(Waker::noop());
        match &mut self.listener {
            Listener::Gated(gated) => {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let (socket, peer) = acceptfrom_with(gated.as_fd(), flags)?;
                self.taken += 1;
                Ok(Accepted { socket, peer: peer.into() })
            }
            Listener::Tcp(listener) => match listener.poll_accept(&mut cx) {
                Poll::Ready(accepted) => of_tcp(accepted?),
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
            Listener::Unix(listener) => match listener.poll_accept(&mut cx) {
                Poll::Ready(accepted) => of_unix(accepted?),
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Returns the loops that accept from its socket.
    pub fn shared_with(&self) -> AcceptingLoops {
        self.share
    }

    /// The address it listens on.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }
}

fn of_tcp((stream, peer): (TcpStream, SocketAddr)) -> io::Result<Accepted> {
    Ok(Accepted { socket: stream.into_std()?.into(), peer: peer.into() })
}

fn of_unix((stream, peer): (UnixStream, tokio::net::unix::SocketAddr)) -> io::Result<Accepted> {
    let peer = Addr::Unix(peer.as_pathname().map(Into::into));
    Ok(Accepted { socket: stream.into_std()?.into(), peer })
}

/// Returns true if the connection is at fault and not the listening socket: accept(2) asks to treat errors that the network
/// left on a waiting connection like no connection.
fn is_the_peers(error: &io::Error) -> bool {
    let network = [
        Os::CONNABORTED,
        Os::INTR,
        Os::NETDOWN,
        Os::PROTO,
        Os::NOPROTOOPT,
        Os::HOSTDOWN,
        Os::NONET,
        Os::HOSTUNREACH,
        Os::NETUNREACH,
    ];
    Os::from_io_error(error).is_some_and(|errno| network.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::ListenOptions;
    use std::cell::Cell;
    use std::future::Future;
    use std::net::Ipv4Addr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use tw_rt::{LoopOptions, LoopThread, Subject, spawn_local};

    /// Once on a loop with gates, once on one without.
    fn on_loop<Fut: Future<Output = ()> + 'static>(main: impl Fn() -> Fut + Clone + Send + 'static) {
        for gates in [0, 2] {
            let main = main.clone();
            let worker = LoopThread::<()>::start(LoopOptions::new(0), move |_| {
                Acceptor::prepare(gates);
                main()
            });
            worker.unwrap().join().unwrap();
        }
    }

    fn listening() -> ListenSocket {
        let addr = Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        ListenSocket::open(&addr, &ListenOptions::default(), &mut |report| panic!("{report}")).unwrap()
    }

    fn connect(acceptor: &Acceptor) -> std::net::TcpStream {
        std::net::TcpStream::connect(acceptor.addr().inet().unwrap()).unwrap()
    }

    #[test]
    fn accepted_connections_have_their_peer_address() {
        on_loop(|| async {
            let mut acceptor = Acceptor::new(listening()).unwrap();
            for _ in 0..3 {
                let client = connect(&acceptor);
                let accepted = acceptor.accept().await.unwrap();
                assert_eq!(accepted.peer, Addr::from(client.local_addr().unwrap()));
                assert_eq!(accepted.local_addr().unwrap(), *acceptor.addr());
                let flags = rustix::io::fcntl_getfd(&accepted.socket).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
                let flags = rustix::fs::fcntl_getfl(&accepted.socket).unwrap();
                assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
            }
        });
    }

    #[test]
    fn unix_sockets_too() {
        on_loop(|| async {
            let path = std::env::temp_dir().join(format!("tw-net-{}-accept.sock", std::process::id()));
            let addr = Addr::Unix(Some(path.as_path().into()));
            let socket =
                ListenSocket::open(&addr, &ListenOptions::default(), &mut |r| panic!("{r}")).unwrap();
            let mut acceptor = Acceptor::new(socket).unwrap();
            let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(acceptor.accept().await.unwrap().peer, Addr::Unix(None));
        });
    }

    /// Counts the turns of another task while three waiting connections are accepted.
    #[test]
    fn accept_yields_between_calls_and_try_accept_does_not() {
        on_loop(move || async move {
            let mut acceptor = Acceptor::new(listening()).unwrap();
            let _clients = [connect(&acceptor), connect(&acceptor), connect(&acceptor)];
            let turns = Rc::new(Cell::new(0));
            let counter = Rc::clone(&turns);
            spawn_local(Subject { kind: "other", id: 0 }, async move {
                loop {
                    counter.set(counter.get() + 1);
                    tw_rt::yield_now().await;
                }
            });
            acceptor.accept().await.unwrap();
            let before = turns.get();
            acceptor.try_accept().unwrap().unwrap();
            assert_eq!(turns.get(), before);
            acceptor.accept().await.unwrap();
            assert!(turns.get() > before);
            assert!(acceptor.try_accept().is_none());
        });
    }

    /// The test program once more, alone: a limit on descriptors would hit every other test too.
    const OUT_OF_DESCRIPTORS: &str = "TW_NET_TEST_OUT_OF_DESCRIPTORS";

    #[test]
    fn descriptor_exhaustion_is_reported_and_accepting_continues() {
        if std::env::var_os(OUT_OF_DESCRIPTORS).is_none() {
            let name = "listen::accept::tests::running_out_of_descriptors_is_told_and_accepting_goes_on";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let status = alone.args(["--exact", name]).env(OUT_OF_DESCRIPTORS, "1").status().unwrap();
            assert!(status.success());
            return;
        }
        on_loop(|| async {
            let mut acceptor = Acceptor::new(listening()).unwrap();
            let _client = connect(&acceptor);
            let limit = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
            let error = acceptor.accept().await.unwrap_err();
            assert!(error.is_exhaustion());
            assert_eq!(error.to_string(), "accept4() failed (24: Too many open files)");
            setrlimit(Resource::Nofile, limit).unwrap();
            // The connection is still there, and no new event is needed to see it.
            acceptor.accept().await.unwrap();

            let _client = connect(&acceptor);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
            acceptor.accept().await.unwrap_err();
            assert_eq!(acceptor.next, AcceptStep::Pause);
            setrlimit(Resource::Nofile, limit).unwrap();
            acceptor.skip_error_pause();
            assert_eq!(acceptor.next, AcceptStep::Yield);
            acceptor.accept().await.unwrap();
        });
    }

    /// Idle loops that all listen on one socket; what they were woken for 100 connections.
    fn wakes_of_loops() -> usize {
        let socket = listening();
        let addr = socket.addr().inet().unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let workers = [(); 4].map(|()| {
            let socket = socket.try_clone().unwrap();
            let taken = taken.clone();
            let worker = LoopThread::<()>::start(LoopOptions::new(0), move |mut inbox| {
                Acceptor::prepare(1);
                async move {
                    spawn_local(Subject { kind: "accept", id: 0 }, async move {
                        let mut acceptor = Acceptor::new(socket).unwrap();
                        while acceptor.accept().await.is_ok() {
                            taken.fetch_add(1, Relaxed);
                        }
                    });
                    inbox.recv().await;
                }
            });
            worker.unwrap()
        });
        for number in 1..=100 {
            drop(std::net::TcpStream::connect(addr).unwrap());
            while taken.load(Relaxed) < number {
                std::thread::yield_now();
            }
        }
        let turns = workers.iter().map(|worker| worker.stats().blocked.snapshot().count() as usize).sum();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        turns
    }

    #[test]
    fn a_connection_wakes_one_of_many_loops() {
        let turns = wakes_of_loops();
        // Each loop begins with a turn, and a loop that is about to sleep when a connection comes may look in vain.
        assert!(turns < 150, "{turns}");
    }

    #[test]
    fn errors_of_pending_connections_are_skipped() {
        let cases =
            [(Os::CONNABORTED, true), (Os::HOSTUNREACH, true), (Os::MFILE, false), (Os::INVAL, false)];
        for (errno, expected) in cases {
            assert_eq!(is_the_peers(&errno.into()), expected, "{errno:?}");
        }
    }
}
