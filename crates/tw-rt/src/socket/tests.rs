use super::*;
use std::io::{Read, Write};
use std::net::Ipv4Addr;

use tokio::net::TcpListener;

use crate::testing::on_loop;

async fn tcp_pair() -> (Socket, std::net::TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    (Socket::tcp(stream.into_std().unwrap().into(), FirstBytes::Likely), peer)
}

fn unix_pair() -> (Socket, std::os::unix::net::UnixStream) {
    let (ours, peer) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Socket::unix(ours.into(), FirstBytes::Later), peer)
}

async fn check_read(stream: &Socket, mut peer: impl Write) {
    let mut buf = Vec::with_capacity(8);
    assert_eq!(stream.try_read(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);

    peer.write_all(b"0123456789").unwrap();
    stream.readable().await.unwrap();
    // A full buffer leaves the stream ready: the rest needs no new event.
    assert_eq!(stream.try_read(&mut buf).unwrap(), 8);
    buf.clear();
    stream.readable().await.unwrap();
    assert_eq!(stream.try_read(&mut buf).unwrap(), 2);
    assert_eq!(buf, b"89");
    // A short read has emptied the socket.
    assert_eq!(stream.try_read(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);

    peer.write_all(b"ab").unwrap();
    drop(peer);
    buf.clear();
    stream.readable().await.unwrap();
    assert_eq!(stream.try_read(&mut buf).unwrap(), 2);
    stream.readable().await.unwrap();
    assert_eq!(stream.try_read(&mut buf).unwrap(), 0);
}

#[test]
fn reads_follow_readiness() {
    on_loop(|| async {
        let (stream, peer) = tcp_pair().await;
        check_read(&stream, peer).await;
        let (stream, peer) = unix_pair();
        check_read(&stream, peer).await;
    });
}

#[test]
fn unread_input_is_known_when_the_poll_budget_is_spent() {
    on_loop(|| async {
        let (stream, mut peer) = tcp_pair().await;
        let mut buf = Vec::with_capacity(8);
        assert!(stream.try_read(&mut buf).is_err() && !stream.may_have_input());
        peer.write_all(b"x").unwrap();
        stream.readable().await.unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let is_spent = || stream.poll_readable(&mut cx).is_pending();
        assert!(std::iter::repeat_with(is_spent).take(1000).any(|is_spent| is_spent));
        assert!(stream.may_have_input());
    });
}

async fn check_write(stream: &Socket, mut peer: impl Read + Send + 'static) {
    stream.writable().await.unwrap();
    let parts = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
    assert_eq!(stream.try_write_vectored(&parts).unwrap(), 8);
    let mut got = [0; 8];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"headbody");

    // Once the socket is full, it has to become writable again by itself.
    let data = vec![b'x'; 1 << 20];
    let mut sent = 0;
    loop {
        match stream.try_write(&data) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
    stream.writable().await.unwrap();
    sent += stream.try_write(b"end").unwrap();
    stream.shutdown_write().unwrap();
    assert_eq!(reader.join().unwrap(), sent as u64);
}

#[test]
fn writes_follow_readiness() {
    on_loop(|| async {
        let (stream, peer) = tcp_pair().await;
        check_write(&stream, peer).await;
        let (stream, peer) = unix_pair();
        check_write(&stream, peer).await;
    });
}

#[test]
fn writing_to_a_peer_that_is_gone_is_an_error_not_a_signal() {
    on_loop(|| async {
        let (stream, peer) = unix_pair();
        drop(peer);
        stream.writable().await.unwrap();
        assert_eq!(stream.try_write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_reset_close_reaches_the_peer_as_a_reset() {
    on_loop(|| async {
        let (stream, mut peer) = tcp_pair().await;
        stream.reset_on_close().unwrap();
        drop(stream);
        assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn addresses_and_options() {
    on_loop(|| async {
        let (stream, peer) = tcp_pair().await;
        assert_eq!(stream.peer_addr().unwrap(), Some(peer.local_addr().unwrap().into()));
        assert_eq!(stream.local_addr().unwrap(), peer.peer_addr().unwrap().into());
        stream.set_nopush(true).unwrap();
        stream
            .with_fd(|fd| {
                assert!(sockopt::tcp_cork(fd)?);
                Ok(())
            })
            .unwrap();
        assert!(stream.tcp_info().is_some_and(|info| info.snd_cwnd > 0));

        let (stream, _peer) = unix_pair();
        stream.set_nodelay();
        stream.try_write(b"first").unwrap();
        stream.try_write(b"second").unwrap();
        stream.set_nopush(true).unwrap();
        assert_eq!(stream.tcp_info(), None);
    });
}

#[test]
fn close_is_seen_behind_unread_input() {
    async fn check(socket: Socket, mut peer: impl Write) {
        let still_open = |socket: &Socket| {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(socket.poll_closed(&mut cx).is_pending());
        };
        still_open(&socket);
        peer.write_all(b"next request").unwrap();
        socket.readable().await.unwrap();
        still_open(&socket);
        still_open(&socket);
        assert!(socket.may_have_input());
        let mut buf = Vec::with_capacity(5);
        assert_eq!(socket.try_read(&mut buf).unwrap(), 5);
        still_open(&socket);
        drop(peer);
        poll_fn(|cx| socket.poll_closed(cx)).await;
        let mut rest = Vec::with_capacity(100);
        socket.readable().await.unwrap();
        assert_eq!(socket.try_read(&mut rest).unwrap(), 7);
        assert_eq!((&*buf, &*rest), (&b"next "[..], &b"request"[..]));
        socket.readable().await.unwrap();
        assert_eq!(socket.try_read(&mut rest).unwrap(), 0);
    }
    on_loop(|| async {
        let (socket, peer) = tcp_pair().await;
        check(socket, peer).await;
        let (socket, peer) = unix_pair();
        check(socket, peer).await;
    });
}

#[test]
fn close_and_failure_are_seen_without_input() {
    on_loop(|| async {
        let (socket, peer) = tcp_pair().await;
        drop(peer);
        let error = poll_fn(|cx| socket.poll_closed(cx)).await;
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let (socket, peer) = tcp_pair().await;
        sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        let error = poll_fn(|cx| socket.poll_closed(cx)).await;
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn nodelay_is_set_before_the_second_write() {
    on_loop(|| async {
        let is_set = |stream: &Socket| stream.with_fd(|fd| Ok(sockopt::tcp_nodelay(fd)?)).unwrap();
        let (stream, _peer) = tcp_pair().await;
        stream.set_nodelay();
        assert!(!is_set(&stream));
        stream.try_write(b"first").unwrap();
        assert!(!is_set(&stream), "the first write leaves at once in any case");
        stream.try_write(b"second").unwrap();
        assert!(is_set(&stream));

        let (begun, _peer) = tcp_pair().await;
        begun.try_write(b"first").unwrap();
        begun.set_nodelay();
        begun.try_write_vectored(&[IoSlice::new(b"second")]).unwrap();
        assert!(is_set(&begun));

        let (cloned, _peer) = tcp_pair().await;
        cloned.set_nodelay();
        drop(cloned.try_clone().unwrap());
        assert!(is_set(&cloned), "writes by another descriptor are not seen");

        let (unwanted, _peer) = tcp_pair().await;
        unwanted.try_write(b"first").unwrap();
        unwanted.try_write(b"second").unwrap();
        assert!(!is_set(&unwanted));
    });
}

#[test]
fn error_is_found_where_the_loop_has_seen_one() {
    on_loop(|| async {
        let (stream, peer) = tcp_pair().await;
        // A close with unread bytes is a reset.
        stream.try_write(b"unread").unwrap();
        let waits = poll_fn(|cx| Poll::Ready(stream.poll_readable(cx).is_pending()));
        // Bytes that may be there are tried first; the loop watches from then on.
        let _ = stream.try_read(&mut Vec::with_capacity(1));
        assert!(waits.await);
        stream.writable().await.unwrap();
        stream.take_error().unwrap();
        drop(peer);
        stream.readable().await.unwrap();
        assert_eq!(stream.take_error().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}
