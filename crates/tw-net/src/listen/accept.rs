//! Taking connections from a listening socket on a loop.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno as Os;
use tokio::net::{TcpListener, UnixListener};
use tw_log::Errno;
use tw_rt::{Addr, Stream};

use super::ListenSocket;

/// How long accepting pauses after an error (nginx's `accept_mutex_delay`).
const PAUSE: Duration = Duration::from_millis(500);

/// A connection just taken.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, registered with this loop.
    pub stream: Stream,
    /// Who connected.
    pub peer: Addr,
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

    /// Whether descriptors ran out (level `crit`) or something is wrong with the socket itself (level `alert`).
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

/// Takes connections from one listening socket on the loop that made it.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    addr: Addr,
    multi_accept: bool,
    next: Next,
}

/// What the next call does before it accepts.
#[derive(Debug)]
enum Next {
    Accept,
    Yield,
    Pause,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// Registers `socket` with the loop of this thread.
    ///
    /// `multi_accept`: take all waiting connections before other tasks run; otherwise one, then everything else that
    /// is ready, then the next.
    pub fn new(socket: ListenSocket, multi_accept: bool) -> io::Result<Self> {
        let addr = socket.addr().clone();
        let fd = OwnedFd::from(socket);
        let listener = match addr {
            Addr::Inet(_) => Listener::Tcp(TcpListener::from_std(fd.into())?),
            Addr::Unix(_) => Listener::Unix(UnixListener::from_std(fd.into())?),
        };
        Ok(Self { listener, addr, multi_accept, next: Next::Accept })
    }

    /// The next connection, non-blocking and close-on-exec. Waits until there is one; connections that ended before
    /// they were taken are passed over. After an error, log it and call again: the pause it needs is in here.
    pub async fn accept(&mut self) -> Result<Accepted, AcceptError> {
        match std::mem::replace(&mut self.next, Next::Accept) {
            Next::Accept => {}
            Next::Yield => tw_rt::yield_now().await,
            Next::Pause => tokio::time::sleep(PAUSE).await,
        }
        loop {
            let accepted = match &self.listener {
                Listener::Tcp(listener) => {
                    listener.accept().await.map(|(stream, peer)| (stream.into(), peer.into()))
                }
                Listener::Unix(listener) => {
                    listener.accept().await.map(|(stream, peer)| (stream.into(), peer.into()))
                }
            };
            match accepted {
                Ok((stream, peer)) => {
                    if !self.multi_accept {
                        self.next = Next::Yield;
                    }
                    return Ok(Accepted { stream, peer });
                }
                Err(e) if is_the_peers(&e) => {}
                Err(e) => {
                    let error = AcceptError { errno: Errno::from(&e) };
                    // DIFF(nginx): nginx pauses only when descriptors run out. Whatever else it is, it is there again
                    // at once, and without a pause the loop would do nothing but fail.
                    self.next = Next::Pause;
                    return Err(error);
                }
            }
        }
    }

    /// The address it listens on.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }
}

/// Whether the connection is at fault and not the listening socket: accept(2) asks to treat errors that the network
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
    use std::net::{Ipv4Addr, SocketAddr};
    use std::rc::Rc;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use tw_rt::{Subject, Worker, WorkerOptions, spawn_local};

    fn on_loop<Fut: Future<Output = ()> + 'static>(main: impl FnOnce() -> Fut + Send + 'static) {
        let worker = Worker::<()>::start(WorkerOptions::new(0), |_| main()).unwrap();
        worker.join().unwrap();
    }

    fn listening() -> ListenSocket {
        let addr = Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        ListenSocket::open(&addr, &ListenOptions::default(), &mut |report| panic!("{report}")).unwrap()
    }

    fn connect(acceptor: &Acceptor) -> std::net::TcpStream {
        std::net::TcpStream::connect(acceptor.addr().inet().unwrap()).unwrap()
    }

    #[test]
    fn connections_come_with_their_peers_address() {
        on_loop(|| async {
            let mut acceptor = Acceptor::new(listening(), false).unwrap();
            for _ in 0..3 {
                let client = connect(&acceptor);
                let accepted = acceptor.accept().await.unwrap();
                assert_eq!(accepted.peer, Addr::from(client.local_addr().unwrap()));
                assert_eq!(accepted.stream.local_addr().unwrap(), *acceptor.addr());
                assert!(
                    rustix::io::fcntl_getfd(&accepted.stream).unwrap().contains(rustix::io::FdFlags::CLOEXEC)
                );
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
            let mut acceptor = Acceptor::new(socket, true).unwrap();
            let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(acceptor.accept().await.unwrap().peer, Addr::Unix(None));
        });
    }

    /// How often another task runs while three waiting connections are taken.
    fn turns_of_others(multi_accept: bool) {
        on_loop(move || async move {
            let mut acceptor = Acceptor::new(listening(), multi_accept).unwrap();
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
            acceptor.accept().await.unwrap();
            acceptor.accept().await.unwrap();
            assert_eq!(turns.get() > before, !multi_accept);
        });
    }

    #[test]
    fn multi_accept_decides_whether_others_run_in_between() {
        turns_of_others(true);
        turns_of_others(false);
    }

    /// The test program once more, alone: a limit on descriptors would hit every other test too.
    const OUT_OF_DESCRIPTORS: &str = "TW_NET_TEST_OUT_OF_DESCRIPTORS";

    #[test]
    fn running_out_of_descriptors_is_told_and_accepting_goes_on() {
        if std::env::var_os(OUT_OF_DESCRIPTORS).is_none() {
            let name = "listen::accept::tests::running_out_of_descriptors_is_told_and_accepting_goes_on";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let status = alone.args(["--exact", name]).env(OUT_OF_DESCRIPTORS, "1").status().unwrap();
            assert!(status.success());
            return;
        }
        on_loop(|| async {
            let mut acceptor = Acceptor::new(listening(), false).unwrap();
            let _client = connect(&acceptor);
            let limit = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
            let error = acceptor.accept().await.unwrap_err();
            assert!(error.is_exhaustion());
            assert_eq!(error.to_string(), "accept4() failed (24: Too many open files)");
            setrlimit(Resource::Nofile, limit).unwrap();
            // The connection is still there, and no new event is needed to see it.
            acceptor.accept().await.unwrap();
        });
    }

    #[test]
    fn faults_of_a_waiting_connection_are_passed_over() {
        let cases =
            [(Os::CONNABORTED, true), (Os::HOSTUNREACH, true), (Os::MFILE, false), (Os::INVAL, false)];
        for (errno, expected) in cases {
            assert_eq!(is_the_peers(&errno.into()), expected, "{errno:?}");
        }
    }
}
