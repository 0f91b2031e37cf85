//! Socket options that neither `rustix` nor `socket2` wraps.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// The kernel's facts about a TCP connection: the part nginx shows as `$tcpinfo_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// Mean deviation of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// Congestion window in segments.
    pub snd_cwnd: u32,
    /// Receive window the kernel aims at, in bytes.
    pub rcv_space: u32,
    /// Segments retransmitted during the whole connection.
    pub total_retrans: u32,
}

/// `TCP_DEFER_ACCEPT`: the kernel hands a connection over only when its first bytes are there.
/// `seconds` is how long it waits for them (rounded up to retransmission steps); 0 turns it off.
pub fn set_tcp_defer_accept(fd: impl AsFd, seconds: u32) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, clamp(seconds))
}

/// `TCP_DEFER_ACCEPT` as set: 0 when off. The kernel answers in rounded seconds.
pub fn tcp_defer_accept(fd: impl AsFd) -> io::Result<u32> {
    Ok(int(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)?.unsigned_abs())
}

/// `TCP_FASTOPEN` on a listening socket: how many connections may wait that have not finished the handshake.
pub fn set_tcp_fastopen(fd: impl AsFd, queue: u32) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, clamp(queue))
}

/// `TCP_FASTOPEN` of a listening socket: the length of its queue, 0 when off.
pub fn tcp_fastopen(fd: impl AsFd) -> io::Result<u32> {
    Ok(int(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN)?.unsigned_abs())
}

/// `IP_BIND_ADDRESS_NO_PORT`: a later `bind()` to port 0 picks no port yet, so that `connect()` may share ports
/// between different peers. For outgoing connections with a chosen source address.
pub fn set_ip_bind_address_no_port(fd: impl AsFd, on: bool) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, libc::c_int::from(on))
}

/// `SO_PASSRIGHTS`, as all architectures but SPARC and PA-RISC number it.
const SO_PASSRIGHTS: libc::c_int = 83;

/// `SO_PASSRIGHTS`: whether whoever sends to this Unix socket may send descriptors; otherwise `sendmsg()` fails there with
/// `EPERM`. Errors: `ENOPROTOOPT` before Linux 6.16.
pub fn set_pass_rights(fd: impl AsFd, on: bool) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, libc::c_int::from(on))
}

/// `TCP_INFO`. Errors: `ENOPROTOOPT`/`EOPNOTSUPP` when the socket is not TCP.
pub fn tcp_info(fd: impl AsFd) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointer and `len` describe one writable `tcp_info`; the kernel writes at most `len` bytes.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `tcp_info` holds integers only, for which zero bytes are valid; older kernels leave the tail zero.
    let info = unsafe { info.assume_init() };
    Ok(TcpInfo {
        rtt_us: info.tcpi_rtt,
        rttvar_us: info.tcpi_rttvar,
        snd_cwnd: info.tcpi_snd_cwnd,
        rcv_space: info.tcpi_rcv_space,
        total_retrans: info.tcpi_total_retrans,
    })
}

/// Bytes that the peer of a TCP connection has acknowledged in all: `tcpi_bytes_acked` of `TCP_INFO`, which `libc` does not name
/// everywhere. Errors: `ENOPROTOOPT`/`EOPNOTSUPP` when the socket is not TCP.
pub fn tcp_bytes_acked(fd: impl AsFd) -> io::Result<u64> {
    /// Place of the number: 8 fields of one byte, 24 of four bytes and two of eight are before it (`linux/tcp.h`).
    const PLACE: usize = (8 + 24 * 4 + 2 * 8) / 8;
    let mut info = [0_u64; PLACE + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the pointer and `len` describe writable memory; the kernel writes at most `len` bytes.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if rc == 0 { Ok(info[PLACE]) } else { Err(io::Error::last_os_error()) }
}

/// `IP_PKTINFO` or, for an IPv6 socket, `IPV6_RECVPKTINFO`: tells with each datagram which local address it was sent to.
pub fn set_receive_local_address(fd: impl AsFd, is_ipv6: bool) -> io::Result<()> {
    if is_ipv6 {
        set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        set_int(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// `IP_RECVTOS` or, for an IPv6 socket, `IPV6_RECVTCLASS`: tells with each datagram its mark of congestion.
pub fn set_receive_ecn(fd: impl AsFd, is_ipv6: bool) -> io::Result<()> {
    if is_ipv6 {
        set_int(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }
    // A socket of IPv6 may receive from IPv4, too.
    set_int(&fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
}

/// `IP_MTU_DISCOVER` or, for an IPv6 socket, `IPV6_MTU_DISCOVER`: datagrams are never fragmented, and their size is the sender's.
pub fn set_dont_fragment(fd: impl AsFd, is_ipv6: bool) -> io::Result<()> {
    if is_ipv6 {
        set_int(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
    }
    set_int(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
}

/// `UDP_GRO`: the kernel may hand over several datagrams of one size and sender as one message, see
/// [`ReceivedMessage::segment`](crate::datagram::ReceivedMessage). Errors: not known before Linux 5.0.
pub fn set_udp_gro(fd: impl AsFd, on: bool) -> io::Result<()> {
    set_int(fd, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(on))
}

fn clamp(value: u32) -> libc::c_int {
    libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX)
}

fn set_int(fd: impl AsFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let value: *const libc::c_int = &value;
    // SAFETY: the pointer and `len` describe one readable `c_int` that outlives the call.
    let rc = unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, value.cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn int(fd: impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let to: *mut libc::c_int = &mut value;
    // SAFETY: the pointer and `len` describe one writable `c_int` that outlives the call.
    let rc = unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, to.cast(), &mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn acknowledged_bytes_are_those_that_arrived() {
        use std::io::{Read as _, Write as _};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let before = tcp_bytes_acked(&client).unwrap();
        client.write_all(&[7; 5000]).unwrap();
        server.read_exact(&mut [0; 5000]).unwrap();
        let until = std::time::Instant::now() + tw_testkit::wait::TIMEOUT;
        while tcp_bytes_acked(&client).unwrap() != before + 5000 {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_bytes_acked(&unix).is_err());
    }

    #[test]
    fn listening_options_read_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(tcp_defer_accept(&listener).unwrap(), 0);
        set_tcp_defer_accept(&listener, 1).unwrap();
        assert!(tcp_defer_accept(&listener).unwrap() >= 1);
        set_tcp_fastopen(&listener, 5).unwrap();
        assert_eq!(tcp_fastopen(&listener).unwrap(), 5);
        set_ip_bind_address_no_port(&listener, true).unwrap();
    }

    #[test]
    fn tcp_info_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&client).unwrap();
        assert!(info.snd_cwnd > 0 && info.rcv_space > 0, "{info:?}");

        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_info(&unix).is_err());
    }
}
