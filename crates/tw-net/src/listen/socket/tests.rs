use super::*;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tw_testkit::wait::{TIMEOUT, until};

fn no_reports(report: ListenReport) {
    panic!("{report}");
}

fn any_port() -> Addr {
    Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tw-net-{}-{name}.sock", std::process::id()))
}

#[test]
fn options_reach_the_kernel() {
    let options = ListenOptions {
        rcvbuf: Some(32 << 10),
        sndbuf: Some(48 << 10),
        deferred: true,
        keepalive: Keepalive::On {
            idle: Some(Duration::from_secs(300)),
            interval: Some(Duration::from_secs(15)),
            count: Some(4),
        },
        fastopen: Some(7),
        ..ListenOptions::default()
    };
    let listening = ListenSocket::open(&any_port(), &options, &mut no_reports).unwrap();
    let socket = &listening.socket;
    // The kernel doubles the requested sizes.
    assert_eq!(socket.recv_buffer_size().unwrap(), 64 << 10);
    assert_eq!(socket.send_buffer_size().unwrap(), 96 << 10);
    assert!(socket.keepalive().unwrap());
    assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), Duration::from_secs(300));
    assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), Duration::from_secs(15));
    assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), 4);
    assert_eq!(tw_sys::sockopt::tcp_fastopen(socket).unwrap(), 7);
    assert!(tw_sys::sockopt::tcp_defer_accept(socket).unwrap() > 0);
    assert!(socket.nonblocking().unwrap() && socket.is_listener().unwrap());
    assert!(rustix::io::fcntl_getfd(socket).unwrap().contains(rustix::io::FdFlags::CLOEXEC));

    listening.configure(&ListenOptions { keepalive: Keepalive::Off, ..options }, &mut no_reports);
    assert!(!socket.keepalive().unwrap());
}

#[test]
fn ipv6_socket_accepts_ipv4_only_if_configured() {
    let addr: Addr = "[::]:0".parse::<SocketAddr>().unwrap().into();
    for ipv6only in [true, false] {
        let options = ListenOptions { ipv6only, ..ListenOptions::default() };
        let takes_ipv4 = || {
            let listening = ListenSocket::open(&addr, &options, &mut no_reports).unwrap();
            assert_eq!(listening.socket.only_v6().unwrap(), ipv6only);
            let port = listening.addr().inet().unwrap().port();
            std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        };
        // Another process may have the IPv4 port.
        assert!((0..3).any(|_| takes_ipv4() != ipv6only), "{ipv6only}");
    }
}

#[test]
fn an_address_in_use_is_an_error_in_nginxs_words_even_between_our_own_sockets() {
    let options = ListenOptions::default();
    let first = ListenSocket::open(&any_port(), &options, &mut no_reports).unwrap();
    let _sibling = first.sibling(&options, &mut no_reports).unwrap();
    let error = ListenSocket::open(first.addr(), &options, &mut no_reports).unwrap_err();
    let expected = format!(
        "bind() to {} failed (98: Address already in use); another process listens there",
        first.addr()
    );
    assert_eq!((error.to_string(), error.errno()), (expected, 98));
}

#[test]
fn siblings_and_explicit_reuseport_share_an_address() {
    let shared = ListenOptions { reuseport: true, ..ListenOptions::default() };
    let first = ListenSocket::open(&any_port(), &shared, &mut no_reports).unwrap();
    let second = ListenSocket::open(first.addr(), &shared, &mut no_reports).unwrap();
    let third = second.sibling(&shared, &mut no_reports).unwrap();
    assert_eq!((first.addr(), first.addr()), (second.addr(), third.addr()));
}

#[test]
fn the_kernel_spreads_connections_over_siblings() {
    let options = ListenOptions::default();
    let first = ListenSocket::open(&any_port(), &options, &mut no_reports).unwrap();
    let second = first.sibling(&options, &mut no_reports).unwrap();
    let addr = first.addr().inet().unwrap();
    let _clients: Vec<_> = (0..64).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
    let count = |listening: &ListenSocket| std::iter::from_fn(|| listening.socket.accept().ok()).count();
    let mut one = 0;
    let mut two = 0;
    assert!(until(TIMEOUT, || {
        (one, two) = (one + count(&first), two + count(&second));
        one + two >= 64
    }));
    // All 64 connections come to one socket once in 2^63 runs.
    assert!(one > 0 && two > 0 && one + two == 64, "{one} {two}");
}

#[test]
fn opening_all_gives_up_after_five_tries_and_tests_ignore_addresses_in_use() {
    let options = ListenOptions::default();
    let taken = ListenSocket::open(&any_port(), &options, &mut no_reports).unwrap();
    let wanted_values = [(any_port(), options.clone()), (taken.addr().clone(), options.clone())];
    let mut lines = Vec::new();
    assert!(open_all(&wanted_values, Purpose::Serve, &mut |report| lines.push(report.to_string())).is_none());
    assert_eq!(lines.iter().filter(|line| line.starts_with("bind() to ")).count(), 5);
    assert_eq!(lines.iter().filter(|line| *line == "try again to bind() after 500ms").count(), 4);
    assert_eq!(lines.last().map(String::as_str), Some("still could not bind()"));

    let opened = open_all(&wanted_values, Purpose::Test, &mut no_reports).unwrap();
    assert_eq!(opened.len(), 1);
}

#[test]
fn other_bind_errors_are_not_retried() {
    // 192.0.2.0/24 is set aside for documentation (RFC 5737): no interface has it.
    let wanted_values = [(Addr::Inet(SocketAddr::from(([192, 0, 2, 1], 80))), ListenOptions::default())];
    let mut lines = Vec::new();
    assert!(open_all(&wanted_values, Purpose::Test, &mut |report| lines.push(report.to_string())).is_none());
    assert_eq!(
        lines,
        [
            "bind() to 192.0.2.1:80 failed (99: Cannot assign requested address); no interface of this machine has \
          that address"
        ]
    );
}

#[test]
fn a_unix_socket_is_open_to_everybody_and_its_file_stays_until_removed() {
    let path = socket_path("mode");
    let addr = Addr::Unix(Some(path.as_path().into()));
    let options = ListenOptions::default();
    let listening = ListenSocket::open(&addr, &options, &mut no_reports).unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o666);

    let in_use = ListenSocket::open(&addr, &options, &mut no_reports).unwrap_err().to_string();
    assert!(
        in_use.ends_with("failed (98: Address already in use); another process listens there"),
        "{in_use}"
    );
    drop(listening);
    // A process that another test starts at this moment has a copy of it until its own program begins.
    let stale = || ListenSocket::open(&addr, &options, &mut no_reports).unwrap_err().to_string();
    assert!(until(TIMEOUT, || stale().contains("no process listens on this socket file")), "{}", stale());

    std::fs::remove_file(&path).unwrap();
    let listening = ListenSocket::open(&addr, &options, &mut no_reports).unwrap();
    listening.remove_file(&mut no_reports);
    assert!(!path.exists());
}

#[test]
fn testing_a_unix_socket_leaves_no_file() {
    let path = socket_path("test");
    let wanted_values = [(Addr::Unix(Some(path.as_path().into())), ListenOptions::default())];
    assert_eq!(open_all(&wanted_values, Purpose::Test, &mut no_reports).unwrap().len(), 1);
    assert!(!path.exists());
}

#[test]
fn stream_and_datagram_sockets_share_an_address() {
    let stream = ListenSocket::open(&any_port(), &ListenOptions::default(), &mut no_reports).unwrap();
    let datagram = ListenOptions { kind: SocketKind::Datagram, ..ListenOptions::default() };
    let open = || ListenSocket::open(stream.addr(), &datagram, &mut no_reports);
    let socket = open().unwrap();
    assert_eq!((socket.addr(), socket.kind()), (stream.addr(), SocketKind::Datagram));
    assert!(open().unwrap_err().is_in_use());
    let restored = ListenSocket::from_fd(socket.try_clone().unwrap().into()).unwrap();
    assert_eq!((restored.addr(), restored.kind()), (stream.addr(), SocketKind::Datagram));
    let of_one_loop = socket.sibling(&datagram, &mut no_reports).unwrap();
    assert_eq!(of_one_loop.kind(), SocketKind::Datagram);
}

#[test]
fn sockets_are_restored_from_descriptors() {
    let listening = ListenSocket::open(&any_port(), &ListenOptions::default(), &mut no_reports).unwrap();
    let addr = listening.addr().clone();
    let again = ListenSocket::from_fd(listening.try_clone().unwrap().into()).unwrap();
    assert_eq!(*again.addr(), addr);

    let (one, _other) = UnixStream::pair().unwrap();
    assert!(ListenSocket::from_fd(one.into()).is_err());
    assert!(ListenSocket::from_fd(std::fs::File::open("/dev/null").unwrap().into()).is_err());
}

#[test]
fn failing_options_are_reported_and_skipped() {
    let path = socket_path("options");
    let options = ListenOptions { fastopen: Some(1), ..ListenOptions::default() };
    let addr = Addr::Unix(Some(path.as_path().into()));
    let mut lines = Vec::new();
    let listening =
        ListenSocket::open(&addr, &options, &mut |report| lines.push(report.to_string())).unwrap();
    listening.remove_file(&mut no_reports);
    let expected = format!(
        "setsockopt(TCP_FASTOPEN, 1) unix:{} failed (95: Operation not supported), ignored",
        path.display()
    );
    assert_eq!(lines, [expected]);
}
