//! Record of a session over datagrams that another process has begun.
//!
//! The record comes from a process of the same user, but perhaps of another version, so it is read strictly.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tw_core::event_loop::{HandedSession, HandoverVerdict, LoopCore};
use tw_net::{Addr, adopt_datagrams};
use tw_rt::DatagramSocket;

/// First byte of a record. Another one is another form.
const VERSION: u8 = 1;

/// Largest number in a record: one that can be counted on from.
const COUNT_MAX: u64 = 1 << 56;

/// Longest time in a record.
const TIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Facts about a session that another process has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Listening address of the configuration.
    pub(crate) listen: SocketAddr,
    pub(crate) client: SocketAddr,
    /// Address that answers come from, if the listening socket has several.
    pub(crate) local: Option<IpAddr>,
    pub(crate) upstream: SocketAddr,
    /// Number of loops of the process.
    pub(crate) loop_count: u64,
    /// True if the datagrams of the client may arrive on another loop than the one with the session.
    pub(crate) is_moved: bool,
    pub(crate) counts: ExchangeCounts,
    /// Time since the begin of the session.
    pub(crate) elapsed: Duration,
    /// Time until there was a socket to the upstream server.
    pub(crate) connected: Option<Duration>,
    /// Time until its first datagram was there.
    pub(crate) first_byte: Option<Duration>,
}

/// Datagrams and bytes of a session.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExchangeCounts {
    pub(crate) requests: u64,
    pub(crate) responses: u64,
    pub(crate) from_client: u64,
    pub(crate) to_client: u64,
    pub(crate) from_server: u64,
    pub(crate) to_server: u64,
}

impl SessionRecord {
    /// The bytes for the other process; `None` if there are none.
    pub fn write(&self) -> Option<Vec<u8>> {
        postcard::to_extend(self, vec![VERSION]).ok()
    }

    /// Reads the bytes of another process. `None` if they have another form or impossible values.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (&VERSION, bytes) = bytes.split_first()? else { return None };
        let (record, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        let ExchangeCounts { requests, responses, from_client, to_client, from_server, to_server } =
            record.counts;
        let counts = [requests, responses, from_client, to_client, from_server, to_server];
        let times = [Some(record.elapsed), record.connected, record.first_byte];
        let is_possible = rest.is_empty()
            && counts.iter().all(|count| *count <= COUNT_MAX)
            && times.iter().flatten().all(|time| *time <= TIME_MAX)
            && [record.listen, record.client, record.upstream].iter().all(|address| address.port() != 0);
        is_possible.then_some(record)
    }
}

/// A session that another process has begun, and that waits for its socket to be taken. Dropping it refuses the session.
pub(crate) struct InheritedSession {
    pub(crate) record: SessionRecord,
    /// `None` once it was accepted.
    pub(crate) handed: Option<HandedSession>,
    /// Loop that counts what becomes of it.
    pub(crate) core: Rc<LoopCore>,
}

impl InheritedSession {
    pub(crate) fn record(&self) -> &SessionRecord {
        &self.record
    }

    /// Begin of the session in the other process.
    pub(crate) fn begun(&self) -> Instant {
        let now = tw_rt::clock::now();
        now.checked_sub(self.record.elapsed).unwrap_or(now)
    }

    /// Returns true if the datagrams of the client may arrive on another loop.
    pub(crate) fn is_moved(&self) -> bool {
        self.record.is_moved || self.record.loop_count != self.core.process().main.worker_count() as u64
    }

    /// Takes the socket to the upstream server. `None` if it is not connected to that.
    pub(crate) fn adopt_socket(&mut self) -> Option<DatagramSocket> {
        let socket = self.handed.as_mut()?.socket.take()?;
        adopt_datagrams(socket, &Addr::Inet(self.record.upstream)).ok()
    }

    /// Takes the session over. `None` if the other process has given up and serves it itself.
    pub(crate) fn accept(mut self) -> Option<SessionRecord> {
        if self.handed.take()?.accept() == HandoverVerdict::Refused {
            self.core.tally.datagram_sessions_not_taken_over.add(1);
            return None;
        }
        self.core.tally.datagram_sessions_taken_over.add(1);
        Some(self.record.clone())
    }
}

impl Drop for InheritedSession {
    fn drop(&mut self) {
        if self.handed.is_some() {
            self.core.tally.datagram_sessions_not_taken_over.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SessionRecord {
        SessionRecord {
            listen: "0.0.0.0:53".parse().unwrap(),
            client: "[2001:db8::1]:4000".parse().unwrap(),
            local: Some("192.0.2.1".parse().unwrap()),
            upstream: "192.0.2.2:53".parse().unwrap(),
            loop_count: 4,
            is_moved: true,
            counts: ExchangeCounts {
                requests: 3,
                responses: 2,
                from_client: 30,
                ..ExchangeCounts::default()
            },
            elapsed: Duration::from_millis(1500),
            connected: Some(Duration::from_micros(20)),
            first_byte: None,
        }
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let bytes = record().write().unwrap();
        assert!(bytes.len() < 200, "{}", bytes.len());
        assert_eq!(SessionRecord::read(&bytes), Some(record()));
    }

    #[test]
    fn unknown_cut_and_impossible_records_are_refused() {
        let bytes = record().write().unwrap();
        for len in 0..bytes.len() {
            assert_eq!(SessionRecord::read(&bytes[..len]), None, "{len}");
        }
        assert_eq!(SessionRecord::read(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(SessionRecord::read(&[&[VERSION + 1], &bytes[1..]].concat()), None);
        type Change = fn(&mut SessionRecord);
        let changes: [Change; 4] = [
            |record| record.counts.to_server = u64::MAX,
            |record| record.elapsed = Duration::MAX,
            |record| record.first_byte = Some(Duration::MAX),
            |record| record.upstream.set_port(0),
        ];
        for change in changes {
            let mut record = record();
            change(&mut record);
            assert_eq!(SessionRecord::read(&record.write().unwrap()), None, "{record:?}");
        }
    }
}
