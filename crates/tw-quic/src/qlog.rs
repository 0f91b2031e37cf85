//! Record of a connection for debugging (qlog): JSON text sequences (RFC 7464) of version 0.3 of the schema, which tools read.
//!
//! Packets are seen where they are encrypted and decrypted, datagrams where the endpoint has them, and the state of recovery after the
//! engine was called. Content of streams, tokens and keys are not recorded.

mod frames;

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use engine::crypto::{CryptoError, KeyPair, Keys, PacketKey};
use quinn_proto as engine;
use tw_base::FatalMutex;

pub(crate) use self::frames::{FRAMES_MAX, RANGES_MAX};
use crate::error::ConnectionError;

/// Bytes of records from which they are given to the writer before the engine returns.
const BUFFER_SIZE: usize = 16 << 10;

/// Writer of the records of one connection, several at once. It must not wait.
pub type RecordWriter = Box<dyn FnMut(&[u8]) + Send>;

/// Recorder of one connection. Its lock is free: all uses are on the loop of the connection.
pub(crate) struct Recorder(FatalMutex<Records>);

struct Records {
    write: RecordWriter,
    start: Instant,
    now: Instant,
    out: Vec<u8>,
    metrics: Metrics,
}

/// State of recovery and of the path, in the units of the schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Metrics {
    rtt: Duration,
    min_rtt: Duration,
    congestion_window: u64,
    lost_packets: u64,
    mtu: u16,
}

/// Direction of packets and datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Sent,
    Received,
}

/// Kind of packets, which have keys of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Initial,
    Handshake,
    ZeroRtt,
    OneRtt,
}

/// Progress of a client to a new address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Migration {
    /// The client uses a new address, which is not validated.
    Started,
    /// The client has returned to the old address.
    Abandoned,
    Complete,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Received => "received",
        })
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initial => "initial",
            Self::Handshake => "handshake",
            Self::ZeroRtt => "0RTT",
            Self::OneRtt => "1RTT",
        })
    }
}

/// Text of a JSON string.
struct Json<'a>(&'a [u8]);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(self.0).chars().try_for_each(|char| match char {
            '"' | '\\' => write!(f, "\\{char}"),
            '\0'..='\x1f' => write!(f, "\\u{:04x}", u32::from(char)),
            _ => write!(f, "{char}"),
        })
    }
}

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A duration in milliseconds.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:03}", micros / 1000, micros % 1000)
    }
}

impl Recorder {
    /// Begins the record of a connection. `unix` is the time since 1970 at `now`.
    pub(crate) fn new(
        now: Instant,
        unix: Duration,
        original_destination: &[u8],
        write: RecordWriter,
    ) -> Self {
        let mut records = Records { write, start: now, now, out: Vec::new(), metrics: Metrics::default() };
        let (time, id) = (Millis(unix), Hex(original_destination));
        records.put(format_args!(
            r#"{{"qlog_version":"0.3","qlog_format":"JSON-SEQ","title":"tailwater","trace":{{"vantage_point":{{"type":"server"}},"common_fields":{{"protocol_type":["QUIC"],"time_format":"relative","reference_time":{time},"ODCID":"{id}","group_id":"{id}"}}}}}}"#
        ));
        Self(FatalMutex::new(records))
    }

    /// Records that a client connects, with its first datagram.
    pub(crate) fn started(&self, peer: SocketAddr, destination: &[u8], first_len: u64) {
        let mut records = self.0.lock();
        let (ip, port, id) = (peer.ip().to_canonical(), peer.port(), Hex(destination));
        let version = if ip.is_ipv4() { "v4" } else { "v6" };
        records.event(
            "connectivity:connection_started",
            format_args!(r#""ip_version":"{version}","src_ip":"{ip}","src_port":{port},"dst_cid":"{id}""#),
        );
        records.event(
            "transport:datagrams_received",
            format_args!(r#""count":1,"raw":[{{"length":{first_len}}}]"#),
        );
    }

    /// Sets the time of what is recorded next.
    pub(crate) fn set_time(&self, now: Instant) {
        self.0.lock().now = now;
    }

    /// Records datagrams: `len` bytes, each with `segment` of them but the last.
    pub(crate) fn datagrams(&self, direction: Direction, len: usize, segment: Option<u16>, ecn: u8) {
        let mut records = self.0.lock();
        let segment = segment.map_or(len, usize::from).max(1);
        let ecn = match ecn & 3 {
            0 => "Not-ECT",
            1 => "ECT(1)",
            2 => "ECT(0)",
            _ => "CE",
        };
        let count = len.div_ceil(segment);
        records.begin_event(format_args!("transport:datagrams_{direction}"));
        records.add(format_args!(r#""count":{count},"ecn":"{ecn}","raw":["#));
        for n in 0..count {
            let comma = if n == 0 { "" } else { "," };
            let length = segment.min(len - n * segment);
            records.add(format_args!(r#"{comma}{{"length":{length}}}"#));
        }
        records.add(format_args!("]"));
        records.end_event();
    }

    /// Records a packet with its plain payload. `len` counts the header, the payload and the tag.
    fn packet(&self, direction: Direction, kind: PacketKind, number: u64, len: usize, payload: &[u8]) {
        let mut records = self.0.lock();
        records.begin_event(format_args!("transport:packet_{direction}"));
        let payload_len = payload.len();
        records.add(format_args!(
            r#""header":{{"packet_type":"{kind}","packet_number":{number}}},"raw":{{"length":{len},"payload_length":{payload_len}}},"frames":["#
        ));
        frames::write(payload, &mut records.out);
        records.add(format_args!("]"));
        records.end_event();
    }

    /// Records the state of recovery where it has changed.
    pub(crate) fn recovery(&self, stats: &engine::ConnectionStats) {
        let mut records = self.0.lock();
        let path = &stats.path;
        let new = Metrics {
            rtt: path.rtt,
            min_rtt: path.min_rtt,
            congestion_window: path.cwnd,
            lost_packets: path.lost_packets,
            mtu: path.current_mtu,
        };
        let old = std::mem::replace(&mut records.metrics, new);
        if old.mtu != new.mtu {
            records.event("connectivity:mtu_updated", format_args!(r#""old":{},"new":{}"#, old.mtu, new.mtu));
        }
        if (Metrics { mtu: new.mtu, ..old }) != new {
            let (rtt, min_rtt, window) = (Millis(new.rtt), Millis(new.min_rtt), new.congestion_window);
            let lost = new.lost_packets;
            records.event(
                "recovery:metrics_updated",
                format_args!(
                    r#""smoothed_rtt":{rtt},"min_rtt":{min_rtt},"congestion_window":{window},"lost_packets":{lost}"#
                ),
            );
        }
    }

    /// Records that the handshake is complete.
    pub(crate) fn established(&self) {
        self.0
            .lock()
            .event("connectivity:connection_state_updated", format_args!(r#""new":"handshake_complete""#));
    }

    /// Records a change of the client's address.
    pub(crate) fn migration(&self, what: Migration, peer: SocketAddr) {
        let state = match what {
            Migration::Started => "probing_started",
            Migration::Abandoned => "probing_abandoned",
            Migration::Complete => "migration_complete",
        };
        let (ip, port) = (peer.ip().to_canonical(), peer.port());
        let version = if ip.is_ipv4() { "v4" } else { "v6" };
        self.0.lock().event(
            "connectivity:migration_state_updated",
            format_args!(
                r#""new":"{state}","path_remote":{{"ip_{version}":"{ip}","port_{version}":{port}}}"#
            ),
        );
    }

    /// Records the end of the connection. `code` is the error code of this side, if it has closed it.
    pub(crate) fn closed(&self, error: &ConnectionError, code: Option<u64>) {
        let mut records = self.0.lock();
        let name = "connectivity:connection_closed";
        match error {
            ConnectionError::ClosedByPeer { code, reason } => records.event(
                name,
                format_args!(r#""owner":"remote","application_code":{code},"reason":"{}""#, Json(reason)),
            ),
            ConnectionError::FailedAtPeer { code, reason } => records.event(
                name,
                format_args!(r#""owner":"remote","connection_code":{code},"reason":"{}""#, Json(reason)),
            ),
            ConnectionError::Violation { code, reason } => records.event(
                name,
                format_args!(
                    r#""owner":"local","connection_code":{code},"reason":"{}","trigger":"error""#,
                    Json(reason.as_bytes())
                ),
            ),
            ConnectionError::Reset => {
                records.event(name, format_args!(r#""owner":"remote","trigger":"stateless_reset""#));
            }
            ConnectionError::TimedOut => {
                records.event(name, format_args!(r#""owner":"local","trigger":"idle_timeout""#));
            }
            ConnectionError::Closed => {
                let code = code.unwrap_or_default();
                records.event(name, format_args!(r#""owner":"local","application_code":{code}"#));
            }
            ConnectionError::EngineFailed => {
                records.event(name, format_args!(r#""owner":"local","trigger":"error""#));
            }
        }
    }

    /// Gives the records to the writer.
    pub(crate) fn flush(&self) {
        self.0.lock().flush();
    }
}

impl Records {
    /// Adds a whole record.
    fn put(&mut self, text: fmt::Arguments<'_>) {
        self.out.push(b'\x1e');
        self.add(text);
        self.end();
    }

    fn event(&mut self, name: &str, data: fmt::Arguments<'_>) {
        self.begin_event(format_args!("{name}"));
        self.add(data);
        self.end_event();
    }

    fn begin_event(&mut self, name: fmt::Arguments<'_>) {
        let time = Millis(self.now.saturating_duration_since(self.start));
        self.out.push(b'\x1e');
        self.add(format_args!(r#"{{"time":{time},"name":"{name}","data":{{"#));
    }

    fn end_event(&mut self) {
        self.out.extend_from_slice(b"}}");
        self.end();
    }

    fn add(&mut self, text: fmt::Arguments<'_>) {
        // A vector takes everything.
        let _ = self.out.write_fmt(text);
    }

    fn end(&mut self) {
        self.out.push(b'\n');
        if self.out.len() >= BUFFER_SIZE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.out.is_empty() {
            (self.write)(&self.out);
            self.out.clear();
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Key of packets that are recorded.
struct RecordedKey {
    key: Box<dyn PacketKey>,
    kind: PacketKind,
    recorder: Arc<Recorder>,
}

impl PacketKey for RecordedKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let payload = buf.get(header_len..buf.len().saturating_sub(self.tag_len())).unwrap_or_default();
        self.recorder.packet(Direction::Sent, self.kind, packet, buf.len(), payload);
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let len = header.len() + payload.len();
        self.key.decrypt(packet, header, payload)?;
        self.recorder.packet(Direction::Received, self.kind, packet, len, payload);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

/// Key whose packets are recorded, if there is a recorder.
pub(crate) fn recorded(
    recorder: Option<&Arc<Recorder>>,
    kind: PacketKind,
    key: Box<dyn PacketKey>,
) -> Box<dyn PacketKey> {
    match recorder {
        None => key,
        Some(recorder) => Box::new(RecordedKey { key, kind, recorder: recorder.clone() }),
    }
}

/// Keys whose packets are recorded, if there is a recorder.
pub(crate) fn recorded_keys(recorder: Option<&Arc<Recorder>>, kind: PacketKind, keys: Keys) -> Keys {
    let Keys { header, packet: KeyPair { local, remote } } = keys;
    let (local, remote) = (recorded(recorder, kind, local), recorded(recorder, kind, remote));
    Keys { header, packet: KeyPair { local, remote } }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use bytes::Bytes;

    use super::*;

    #[test]
    fn records_are_a_text_sequence_with_relative_times() {
        let output: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = output.clone();
        let lock = |output: &Mutex<Vec<u8>>| -> Vec<u8> {
            output.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        let write = move |bytes: &[u8]| sink.lock().unwrap().extend_from_slice(bytes);
        let now = Instant::now();
        let recorder = Recorder::new(now, Duration::from_millis(1_500), &[0xab, 1], Box::new(write));
        recorder.started(([192, 0, 2, 1], 7).into(), &[2], 1200);
        recorder.set_time(now + Duration::from_micros(1_050));
        recorder.datagrams(Direction::Sent, 2500, Some(1200), 2);
        recorder.packet(Direction::Sent, PacketKind::OneRtt, 3, 40, &[1, 0, 0]);
        let reason = Bytes::from_static(b"a \"b\"\n");
        recorder.closed(&ConnectionError::ClosedByPeer { code: 256, reason }, None);
        assert_eq!(lock(&output), b"");
        drop(recorder);
        let text = String::from_utf8(lock(&output)).unwrap();
        let records: Vec<_> = text.split('\x1e').skip(1).map(str::trim_end).collect();
        assert!(records[0].contains(r#""reference_time":1500.000,"ODCID":"ab01""#), "{text}");
        assert_eq!(
            records[1],
            r#"{"time":0.000,"name":"connectivity:connection_started","data":{"ip_version":"v4","src_ip":"192.0.2.1","src_port":7,"dst_cid":"02"}}"#
        );
        assert_eq!(
            records[3],
            r#"{"time":1.050,"name":"transport:datagrams_sent","data":{"count":3,"ecn":"ECT(0)","raw":[{"length":1200},{"length":1200},{"length":100}]}}"#
        );
        assert_eq!(
            records[4],
            r#"{"time":1.050,"name":"transport:packet_sent","data":{"header":{"packet_type":"1RTT","packet_number":3},"raw":{"length":40,"payload_length":3},"frames":[{"frame_type":"ping"},{"frame_type":"padding","payload_length":2}]}}"#
        );
        assert!(records[5].ends_with(r#""application_code":256,"reason":"a \"b\"\u000a"}}"#), "{text}");
    }
}
