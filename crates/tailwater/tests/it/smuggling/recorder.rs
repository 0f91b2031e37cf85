//! An origin that keeps every byte it is sent, and answers each request that the strict reader finds in them.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tw_testkit::origin::{Conn, origin};

use super::{End, strict};

/// What came on each connection since it was last asked for.
#[derive(Clone, Default)]
pub(super) struct Recorder {
    connections: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// Starts one.
    pub(super) fn start() -> (Self, SocketAddr) {
        let recorder = Self::default();
        let of_conn = recorder.clone();
        let addr = origin(move |conn| of_conn.record(conn));
        (recorder, addr)
    }

    fn record(&self, mut conn: Conn) {
        // A connection goes on into the record that is there: nobody sends on one after it was taken.
        let at = {
            let mut all = self.connections.lock().unwrap();
            all.push(Vec::new());
            all.len() - 1
        };
        let (mut mine, mut answered, mut piece) = (Vec::new(), 0, [0; 4096]);
        while let Ok(n @ 1..) = conn.reader.read(&mut piece) {
            mine.extend_from_slice(&piece[..n]);
            self.connections.lock().unwrap()[at].extend_from_slice(&piece[..n]);
            let reading = strict::read(&mine);
            for seen in &reading.requests[answered..] {
                let body = if seen.method == "HEAD" { "" } else { "ok" };
                conn.say(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}"));
            }
            answered = reading.requests.len();
            if matches!(reading.end, End::Wrong(_)) {
                return conn
                    .say("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            }
        }
    }

    /// What was sent since the last time, by connection.
    pub(super) fn take(&self) -> Vec<Vec<u8>> {
        let mut all = self.connections.lock().unwrap();
        all.iter_mut().map(std::mem::take).filter(|bytes| !bytes.is_empty()).collect()
    }
}
