//! Origin that records every byte, and answers each request that the strict reader finds.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tw_testkit::origin::{Conn, origin};
use tw_testkit::wait;

use super::{End, strict};

/// Bytes received on each connection since the last [`Recorder::take`].
#[derive(Clone, Default)]
pub(super) struct Recorder {
    connections: Arc<Mutex<Vec<Record>>>,
}

#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
    /// True if every request that has begun is complete, or the connection has ended.
    is_whole: bool,
}

impl Recorder {
    /// Starts a recorder.
    pub(super) fn start() -> (Self, SocketAddr) {
        let recorder = Self::default();
        let of_conn = recorder.clone();
        let addr = origin(move |conn| of_conn.record(conn));
        (recorder, addr)
    }

    fn record(&self, mut conn: Conn) {
        // `take` empties records and does not remove them, so the index stays valid.
        let at = {
            let mut all = self.connections.lock().unwrap();
            all.push(Record::default());
            all.len() - 1
        };
        self.answer(&mut conn, at);
        self.connections.lock().unwrap()[at].is_whole = true;
    }

    /// Records at `at`, and answers, until the connection ends or goes wrong.
    fn answer(&self, conn: &mut Conn, at: usize) {
        let mut mine = Vec::new();
        let mut answered = 0;
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = conn.reader.read(&mut piece) {
            mine.extend_from_slice(&piece[..n]);
            let reading = strict::read(&mine);
            let mut all = self.connections.lock().unwrap();
            all[at].bytes.extend_from_slice(&piece[..n]);
            all[at].is_whole = reading.end == End::Nothing;
            drop(all);
            for observed_request in &reading.requests[answered..] {
                let body = if observed_request.method == "HEAD" { "" } else { "ok" };
                conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}"));
            }
            answered = reading.requests.len();
            if matches!(reading.end, End::Wrong(_)) {
                return conn
                    .send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            }
        }
    }

    /// Bytes received since the last call, by connection. Waits for the end of requests that have begun: a second piece
    /// alone would be malformed.
    pub(super) fn take(&self) -> Vec<Vec<u8>> {
        let are_whole = || self.connections.lock().unwrap().iter().all(|record| record.is_whole);
        assert!(wait::until(wait::TIMEOUT, are_whole), "a request goes on that its client has left");
        let mut all = self.connections.lock().unwrap();
        all.iter_mut()
            .map(|record| std::mem::take(&mut record.bytes))
            .filter(|bytes| !bytes.is_empty())
            .collect()
    }
}
