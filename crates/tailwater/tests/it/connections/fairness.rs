//! Fairness within a loop: a small response beside many large bodies.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use tw_testkit::Client;

use crate::support::{server, start_server};

const BULK_CLIENTS: usize = 100;
const LARGE: usize = 32 << 20;
/// Maximum size of one piece for a client.
const PIECE: u64 = 256 << 10;

/// Clients that read large bodies without end, and the number of bytes they have read.
struct Crowd {
    taken: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Connects them to a server and waits until each has received something.
    fn come(addr: SocketAddr, target: &str) -> Self {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(100);
        let mut clients: Vec<_> = (0..BULK_CLIENTS)
            .map(|_| {
                let mut client = TcpStream::connect(addr).unwrap();
                client.write_all(request.as_bytes()).unwrap();
                let mut first = [0];
                client.read_exact(&mut first).unwrap();
                client.set_nonblocking(true).unwrap();
                client
            })
            .collect();
        let (taken, is_over) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let counts = taken.clone();
        let ends = is_over.clone();
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while !ends.load(Relaxed) {
                for client in &mut clients {
                    match client.read(&mut buffer) {
                        Ok(n) => _ = counts.fetch_add(n as u64, Relaxed),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
                    }
                }
            }
        });
        Self { taken, is_over, reader: Some(reader) }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

/// Bytes that the crowd reads while a small request is answered: the median of many requests.
fn taken_meanwhile(crowd: &Crowd, client: &mut Client) -> u64 {
    let mut meanwhile: Vec<_> = (0..41)
        .map(|_| {
            let before = crowd.taken();
            client.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert_eq!(client.read_response().unwrap().status, 200);
            let meanwhile = crowd.taken() - before;
            // The next one comes at another point of the round.
            while crowd.taken() < before + meanwhile + 3 * PIECE {
                thread::yield_now();
            }
            meanwhile
        })
        .collect();
    meanwhile.sort_unstable();
    meanwhile[meanwhile.len() / 2]
}

#[test]
fn small_request_waits_for_few_pieces_of_large_bodies() {
    for sendfile in ["off", "on"] {
        let server = start_server(
            server().file("html/large", vec![b'x'; LARGE]).file("html/small", "small"),
            &format!("sendfile {sendfile};"),
        );
        let crowd = Crowd::come(server.addr(), "/large");
        let taken = taken_meanwhile(&crowd, &mut server.connect().unwrap());
        let round = BULK_CLIENTS as u64 * PIECE;
        assert!(taken < round / 4, "sendfile {sendfile}: {taken} of a round of {round}");
    }
}
