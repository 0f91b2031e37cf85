//! Connections that we open: a socket that has begun to connect, never one that is waited for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use socket2::{Domain, SockAddr, Socket as RawSocket, Type};
use tw_rt::{DatagramPeers, DatagramSocket, FirstBytes, Socket};

use crate::Addr;

/// Options of a connection to be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The address to come from. Port 0: the kernel chooses one per destination.
    pub bind: Option<SocketAddr>,
    /// True if that address need not be ours (`IP_TRANSPARENT`, a privileged option).
    pub transparent: bool,
    /// `SO_KEEPALIVE`
    pub keepalive: bool,
    /// `SO_RCVBUF`, bytes.
    pub receive_buffer: Option<usize>,
    /// `SO_SNDBUF`, bytes.
    pub send_buffer: Option<usize>,
}

/// Begins a connection to `to`. The first write is possible once it is there; what became of it, [`Socket::take_error`]
/// tells. Never waits: three to four system calls.
///
/// # Errors
/// Fails as `socket()`, `bind()` and `connect()` do: no descriptor or port left, an address that is not ours, a Unix socket
/// without a listener or with a full queue (`EAGAIN`).
pub fn connect(to: &Addr, options: &ConnectOptions) -> io::Result<Socket> {
    match to {
        Addr::Inet(to) => {
            let socket = RawSocket::new(Domain::for_address(*to), Type::STREAM.nonblocking(), None)?;
            prepare(&socket, options)?;
            bind(&socket, options)?;
            begin(&socket, &(*to).into())?;
            let socket = Socket::connecting_tcp(socket.into());
            // Callers send complete messages, so delaying their last segment (Nagle's algorithm) gains nothing.
            socket.set_nodelay();
            Ok(socket)
        }
        Addr::Unix(Some(path)) => {
            let socket = RawSocket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
            prepare(&socket, options)?;
            begin(&socket, &SockAddr::unix(path)?)?;
            Ok(Socket::unix(OwnedFd::from(socket), FirstBytes::Later))
        }
        Addr::Unix(None) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// Connects a datagram socket to `to`: it has a port of its own, and exchanges datagrams with that address alone. Never waits.
///
/// # Errors
/// Fails as `socket()`, `bind()` and `connect()` do, such as without a route.
pub fn connect_datagrams(to: &Addr, options: &ConnectOptions) -> io::Result<DatagramSocket> {
    let (domain, to) = match to {
        Addr::Inet(to) => (Domain::for_address(*to), (*to).into()),
        Addr::Unix(Some(path)) => (Domain::UNIX, SockAddr::unix(path)?),
        Addr::Unix(None) => return Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    let socket = RawSocket::new(domain, Type::DGRAM.nonblocking(), None)?;
    prepare(&socket, &ConnectOptions { keepalive: false, ..options.clone() })?;
    match domain {
        // A server can answer an address only: the kernel chooses one.
        Domain::UNIX => rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new_unnamed())?,
        _ => {
            bind(&socket, options)?;
            // Before Linux 5.0 this fails, and each datagram comes as a message of its own.
            let _ = tw_sys::sockopt::set_udp_gro(&socket, true);
        }
    }
    socket.connect(&to)?;
    DatagramSocket::new(socket.into(), DatagramPeers::One)
}

/// Takes over a non-blocking datagram socket that another process has connected to `to`.
///
/// # Errors
/// `InvalidInput` if the socket is not one for datagrams or is connected to another address; the error of `getsockopt`.
pub fn adopt_datagrams(socket: OwnedFd, to: &Addr) -> io::Result<DatagramSocket> {
    let is_datagram = rustix::net::sockopt::socket_type(&socket)? == rustix::net::SocketType::DGRAM;
    if !is_datagram || Addr::from(rustix::net::getpeername(&socket)?) != *to {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    DatagramSocket::new(socket, DatagramPeers::One)
}

/// Binds the socket to the address it is to come from.
fn bind(socket: &RawSocket, options: &ConnectOptions) -> io::Result<()> {
    let Some(from) = options.bind else { return Ok(()) };
    if options.transparent {
        match from {
            SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
            SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
        }
    } else if from.port() == 0 {
        // Before Linux 4.2 this fails, and fewer ports are available.
        let _ = tw_sys::sockopt::set_ip_bind_address_no_port(socket, true);
    }
    socket.bind(&from.into())
}

fn prepare(socket: &RawSocket, options: &ConnectOptions) -> io::Result<()> {
    if options.keepalive {
        socket.set_keepalive(true)?;
    }
    if let Some(size) = options.receive_buffer {
        socket.set_recv_buffer_size(size)?;
    }
    if let Some(size) = options.send_buffer {
        socket.set_send_buffer_size(size)?;
    }
    Ok(())
}

fn begin(socket: &RawSocket, to: &SockAddr) -> io::Result<()> {
    match socket.connect(to) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::unix::net::UnixListener;

    use tw_testkit::ports::Port;

    use super::*;

    fn on_loop<T: 'static>(test: impl AsyncFnOnce() -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built").block_on(test())
    }

    #[test]
    fn connect_reports_its_error() {
        on_loop(async || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let to = Addr::Inet(listener.local_addr().unwrap());
            let options = ConnectOptions {
                bind: Some(SocketAddr::from(([127, 0, 0, 9], 0))),
                keepalive: true,
                ..ConnectOptions::default()
            };
            let socket = connect(&to, &options).unwrap();
            socket.writable().await.unwrap();
            socket.take_error().unwrap();
            assert_eq!(socket.try_write(b"hello").unwrap(), 5);
            let (mut accepted, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), "127.0.0.9");
            let mut came = [0; 5];
            accepted.read_exact(&mut came).unwrap();
            assert_eq!(&came, b"hello");
            // No other process starts to listen on a reserved port, as one may on a port whose listener was closed.
            let nobody = Port::reserve().unwrap();
            let to = Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, nobody.number())));
            let refused = connect(&to, &ConnectOptions::default()).unwrap();
            refused.writable().await.unwrap();
            assert_eq!(
                refused.take_error().unwrap_err().raw_os_error(),
                Some(rustix::io::Errno::CONNREFUSED.raw_os_error())
            );
        });
    }

    #[test]
    fn unix_sockets_answer_at_once() {
        on_loop(async || {
            let path = std::env::temp_dir().join(format!("tw-net-{}-connect.sock", std::process::id()));
            let listener = UnixListener::bind(&path).unwrap();
            let to = Addr::Unix(Some(path.clone().into()));
            let socket = connect(&to, &ConnectOptions::default()).unwrap();
            assert_eq!(socket.try_write(b"x").unwrap(), 1);
            let (mut accepted, _) = listener.accept().unwrap();
            let mut came = [0; 1];
            accepted.read_exact(&mut came).unwrap();
            std::fs::remove_file(&path).unwrap();
            let error = connect(&to, &ConnectOptions::default()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        });
    }
}
