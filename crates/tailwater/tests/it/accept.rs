//! How connections come to loops: shared and sharded sockets, and what a reload does to them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use tw_testkit::{Signal, wait};

use crate::server;

/// One connection for one request; the body of the answer.
fn short(addr: SocketAddr) -> std::io::Result<String> {
    let mut client = TcpStream::connect(addr)?;
    client.set_read_timeout(Some(wait::PATIENCE))?;
    client.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    Ok(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
}

#[test]
fn no_connection_is_lost_while_loops_and_their_sockets_come_and_go() {
    let conf = |loops: u32, reuseport: &str, text: u32| {
        format!(
            "user root; worker_processes {loops}; \
             http {{ server {{ listen 127.0.0.1:{{port}} {reuseport}; return 200 {text}; }} }}"
        )
    };
    let mut server = server().start(&conf(4, "reuseport", 0)).unwrap();
    let (addr, over, served) = (server.addr(), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients = [(); 4].map(|()| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let text = short(addr)?;
                    assert!(text.parse::<u32>().is_ok(), "{text:?}");
                    served.fetch_add(1, Relaxed);
                }
                std::io::Result::Ok(())
            })
        });
        let changes =
            [(1, "reuseport"), (3, "reuseport"), (2, ""), (4, "reuseport"), (1, ""), (2, "reuseport")];
        for (text, (loops, reuseport)) in (1..).zip(changes.into_iter().cycle().take(18)) {
            server.write_conf(&conf(loops, reuseport, text)).unwrap();
            server.signal(Signal::HUP).unwrap();
            let expected = text.to_string();
            let is_new = || (0..8).all(|_| short(addr).is_ok_and(|text| text == expected));
            assert!(wait::until(wait::PATIENCE, is_new), "{}", server.error_log());
        }
        over.store(true, Relaxed);
        for client in clients {
            client.join().unwrap().expect("no connection is refused or reset");
        }
    });
    assert!(served.load(Relaxed) > 0);
}
