//! MPEG transport streams (ISO/IEC 13818-1): tables, packets of elementary streams, clock references. Bytes in, bytes out.
//!
//! ```text
//! PAT, PMT │ PES: header, data ─ packets of 188 bytes ─┐ PES ─ …        one PES at a time is cut into packets
//! ```
//! Each stream begins anew: the first packet of each PID announces that its counter does not continue an earlier one.

use std::collections::VecDeque;

/// Bytes of a packet.
pub(super) const PACKET_LEN: usize = 188;
/// Bytes of a packet behind its header.
const BODY_LEN: usize = PACKET_LEN - 4;
/// Ticks in a second.
pub(super) const CLOCK_HZ: u64 = 90_000;
/// Time stamp of time 0: early enough for what an edit list moves to before it.
const BASE: i64 = 2 * CLOCK_HZ as i64;
/// Time between a clock reference and the decoding of what arrives with it.
const LEAD: u64 = CLOCK_HZ * 7 / 10;
/// PID of the program map table.
const PMT_PID: u16 = 0x1000;
/// PID of the first elementary stream.
const FIRST_PID: u16 = 0x100;
/// Streams of one segment: video, audio.
pub(super) const STREAMS: usize = 2;

/// An elementary stream, by its position in the program map table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamId(pub(super) usize);

/// Data of one or more samples, to be sent as a PES.
#[derive(Debug, Clone, Copy)]
pub(super) struct PesHeader {
    pub(super) stream: StreamId,
    pub(super) is_video: bool,
    /// True if decoding can begin here.
    pub(super) is_key: bool,
    /// Times of presentation and decoding, in ticks from the beginning of the movie.
    pub(super) presented: i64,
    pub(super) decoded: i64,
}

/// Packets that are made of a PES bit by bit.
pub(super) struct Packets {
    /// Counters of PAT, PMT and the streams; `None` before the first packet.
    tables: [Option<u8>; 2],
    counters: [Option<u8>; STREAMS],
    /// The PES that is being sent, and how much of it was.
    pes: Vec<u8>,
    sent: usize,
    header: Option<PesHeader>,
    /// Tables that were not sent yet.
    ready: VecDeque<u8>,
}

/// First packet of a PES, or what it says in front of its data.
#[derive(Debug, Clone, Copy, Default)]
struct Adaptation {
    is_discontinuous: bool,
    is_random_access: bool,
    clock: Option<u64>,
}

impl Packets {
    /// Begins with the tables of streams of these types, of which the first carries the clock.
    pub(super) fn new(stream_types: &[u8]) -> Self {
        let mut new = Self {
            tables: [None; 2],
            counters: [None; STREAMS],
            pes: Vec::new(),
            sent: 0,
            header: None,
            ready: VecDeque::new(),
        };
        // The program association table lists one program and the PID of its map.
        let [high, low] = (0xe000 | PMT_PID).to_be_bytes();
        new.push_table(0, &section(0, &[0, 1, high, low]));
        let [high, low] = (0xe000 | FIRST_PID).to_be_bytes();
        let mut map = vec![high, low, 0xf0, 0];
        for (stream_type, pid) in stream_types.iter().zip(FIRST_PID..) {
            let [high, low] = (0xe000 | pid).to_be_bytes();
            map.extend_from_slice(&[*stream_type, high, low, 0xf0, 0]);
        }
        new.push_table(1, &section(2, &map));
        new
    }

    fn push_table(&mut self, table: usize, section: &[u8]) {
        // A pointer in front of it, and stuffing behind it.
        let mut content = [&[0], section].concat();
        let adaptation = Adaptation { is_discontinuous: true, ..Adaptation::default() };
        content.resize(BODY_LEN - adaptation.len(), 0xff);
        let mut out = Vec::with_capacity(PACKET_LEN);
        let pid = if table == 0 { 0 } else { PMT_PID };
        push_packet(pid, true, adaptation, &content, &mut self.tables[table], &mut out);
        self.ready.extend(out);
    }

    /// Returns true if there are no packets to take.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.header.is_none()
    }

    /// Begins a PES; the one before must have been taken.
    pub(super) fn begin(&mut self, header: PesHeader, data: &[u8]) {
        self.pes.clear();
        header.push(data.len(), &mut self.pes);
        self.pes.extend_from_slice(data);
        self.sent = 0;
        self.header = Some(header);
    }

    /// Appends the next packets, until `out` has about `want` bytes.
    pub(super) fn take(&mut self, want: usize, out: &mut Vec<u8>) {
        out.extend(self.ready.drain(..));
        while out.len() < want
            && let Some(header) = self.header
        {
            let StreamId(stream) = header.stream;
            let Some(counter) = self.counters.get_mut(stream) else { return self.header = None };
            let is_first = self.sent == 0;
            let adaptation = Adaptation {
                is_discontinuous: counter.is_none(),
                is_random_access: is_first && header.is_key,
                clock: (is_first && stream == 0)
                    .then(|| stamp(header.decoded).wrapping_sub(LEAD) & STAMP_MASK),
            };
            let rest = self.pes.get(self.sent..).unwrap_or_default();
            let pid = FIRST_PID + stream as u16;
            self.sent += push_packet(pid, is_first, adaptation, rest, counter, out);
            if self.sent >= self.pes.len() {
                self.header = None;
            }
        }
    }
}

impl Adaptation {
    /// Bytes of the field, without stuffing.
    fn len(&self) -> usize {
        match self {
            Self { is_discontinuous: false, is_random_access: false, clock: None } => 0,
            Self { clock: None, .. } => 2,
            Self { clock: Some(_), .. } => 8,
        }
    }

    /// Appends the field in `len` bytes.
    fn push(&self, len: usize, out: &mut Vec<u8>) {
        let end = out.len() + len;
        if len > 0 {
            out.push((len - 1) as u8);
        }
        if len > 1 {
            let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
            out.push(
                flag(self.is_discontinuous, 0x80)
                    | flag(self.is_random_access, 0x40)
                    | flag(self.clock.is_some(), 0x10),
            );
        }
        if let Some(clock) = self.clock {
            // 33 bits, 6 reserved ones, and 9 of a finer clock.
            out.extend_from_slice(&(clock << 31 | 0x3f << 25).to_be_bytes()[..6]);
        }
        out.resize(end, 0xff);
    }
}

/// Appends a packet with the beginning of `data`; returns how much of it.
fn push_packet(
    pid: u16,
    is_first: bool,
    adaptation: Adaptation,
    data: &[u8],
    counter: &mut Option<u8>,
    out: &mut Vec<u8>,
) -> usize {
    let count = data.len().min(BODY_LEN - adaptation.len());
    let adaptation_len = BODY_LEN - count;
    let number = counter.map_or(0, |number| (number + 1) & 0x0f);
    *counter = Some(number);
    let [high, low] = pid.to_be_bytes();
    let control = if adaptation_len > 0 { 0x30 } else { 0x10 };
    out.extend_from_slice(&[0x47, high | if is_first { 0x40 } else { 0 }, low, control | number]);
    adaptation.push(adaptation_len, out);
    out.extend_from_slice(data.get(..count).unwrap_or_default());
    count
}

/// Bits of a time stamp.
const STAMP_MASK: u64 = (1 << 33) - 1;

/// Time stamp of a time in ticks.
fn stamp(ticks: i64) -> u64 {
    ticks.wrapping_add(BASE) as u64 & STAMP_MASK
}

impl PesHeader {
    fn push(&self, data_len: usize, out: &mut Vec<u8>) {
        let has_both = self.presented != self.decoded;
        let times_len = if has_both { 10 } else { 5 };
        // A length that does not fit is left open, which video may.
        let len = u16::try_from(3 + times_len + data_len).unwrap_or(0);
        let [high, low] = len.to_be_bytes();
        let id = if self.is_video { 0xe0 } else { 0xc0 };
        out.extend_from_slice(&[
            0,
            0,
            1,
            id,
            high,
            low,
            0x80,
            if has_both { 0xc0 } else { 0x80 },
            times_len as u8,
        ]);
        push_stamp(if has_both { 0x30 } else { 0x20 }, stamp(self.presented), out);
        if has_both {
            push_stamp(0x10, stamp(self.decoded), out);
        }
    }
}

/// Appends a time stamp: 3, 15 and 15 bits, each with a marker behind them.
fn push_stamp(prefix: u8, stamp: u64, out: &mut Vec<u8>) {
    let part = |shift: u32| (((stamp >> shift) as u16) << 1 | 1).to_be_bytes();
    out.push(prefix | ((stamp >> 30) as u8 & 7) << 1 | 1);
    out.extend_from_slice(&part(15));
    out.extend_from_slice(&part(0));
}

/// A section of a table: its head, content and checksum.
fn section(table_id: u8, content: &[u8]) -> Vec<u8> {
    // Number of the stream or program, version 0, and one section.
    let len = (content.len() + 9) as u16;
    let [high, low] = (0xb000 | len).to_be_bytes();
    let mut section = vec![table_id, high, low, 0, 1, 0xc1, 0, 0];
    section.extend_from_slice(content);
    let checksum = crc(&section);
    section.extend_from_slice(&checksum.to_be_bytes());
    section
}

/// CRC-32 as MPEG has it: the most significant bits first.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 24, |crc, _| {
            let poly = if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 };
            crc << 1 ^ poly
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIDEO: PesHeader =
        PesHeader { stream: StreamId(0), is_video: true, is_key: true, presented: 3600, decoded: 0 };

    fn all(packets: &mut Packets, want: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !packets.is_empty() {
            let mut out = Vec::new();
            packets.take(want, &mut out);
            all.append(&mut out);
        }
        all
    }

    /// PID and payload of a packet.
    fn payload(packet: &[u8]) -> (u16, &[u8]) {
        assert_eq!((packet.len(), packet[0]), (PACKET_LEN, 0x47));
        let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
        let skipped = if packet[3] & 0x20 != 0 { 1 + usize::from(packet[4]) } else { 0 };
        (pid, &packet[4 + skipped..])
    }

    #[test]
    fn checksum_of_mpeg() {
        assert_eq!(crc(b"123456789"), 0x0376_e6e7);
        assert_eq!(crc(&section(0, &[0, 1, 0xf0, 0])), 0, "a section with its checksum");
    }

    #[test]
    fn tables_name_the_streams() {
        let out = all(&mut Packets::new(&[0x1b, 0x0f]), 1);
        let tables: Vec<_> = out.chunks(PACKET_LEN).map(payload).collect();
        let pat = tables[0];
        let pmt = tables[1];
        assert_eq!((tables.len(), pat.0, pmt.0), (2, 0, PMT_PID));
        assert_eq!(pat.1[..13], [0, 0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xf0, 0]);
        assert_eq!(pmt.1[9..23], [0xe1, 0, 0xf0, 0, 0x1b, 0xe1, 0, 0xf0, 0, 0x0f, 0xe1, 1, 0xf0, 0]);
        assert_eq!((pmt.1[3], pmt.1[27]), (23, 0xff));
    }

    #[test]
    fn data_of_any_length_fills_packets() {
        for len in (0..400).chain([65_500, 70_000]) {
            for stream in 0..STREAMS {
                let mut packets = Packets::new(&[0x1b, 0x0f]);
                all(&mut packets, 1);
                let data: Vec<u8> = (0..len).map(|n: usize| n as u8).collect();
                let header = PesHeader { stream: StreamId(stream), ..VIDEO };
                for round in 0..2 {
                    packets.begin(header, &data);
                    let out = all(&mut packets, 1000);
                    let mut pes = Vec::new();
                    for (number, packet) in out.chunks(PACKET_LEN).enumerate() {
                        let (pid, payload) = payload(packet);
                        assert_eq!(pid, FIRST_PID + stream as u16);
                        assert_eq!(packet[1] & 0x40 != 0, number == 0, "the beginning of a PES");
                        let is_new = round == 0 && number == 0;
                        assert_eq!(packet[3] & 0x20 != 0 && packet[4] > 0 && packet[5] & 0x80 != 0, is_new);
                        pes.extend_from_slice(payload);
                    }
                    assert_eq!(pes[19..], data, "{len}");
                    let announced = usize::from(u16::from_be_bytes([pes[4], pes[5]]));
                    assert!(announced == pes.len() - 6 || announced == 0 && len > 65_500, "{len}");
                }
            }
        }
    }

    #[test]
    fn counters_go_on_and_the_clock_precedes_decoding() {
        let mut packets = Packets::new(&[0x1b]);
        all(&mut packets, 1);
        packets.begin(VIDEO, &[0; 10_000]);
        let out = all(&mut packets, 1);
        for (number, packet) in out.chunks(PACKET_LEN).enumerate() {
            assert_eq!(usize::from(packet[3] & 0x0f), number % 16);
        }
        // Discontinuity, random access and a clock.
        assert_eq!((out[4], out[5]), (7, 0xd0));
        let clock = u64::from_be_bytes([0, 0, out[6], out[7], out[8], out[9], out[10], out[11]]) >> 15;
        assert_eq!(clock, 2 * CLOCK_HZ - LEAD);
        let (_, pes) = payload(&out[..PACKET_LEN]);
        let stamp = |at: usize| {
            let part = |at: usize| u64::from(u16::from_be_bytes([pes[at], pes[at + 1]])) >> 1;
            u64::from(pes[at] >> 1 & 7) << 30 | part(at + 1) << 15 | part(at + 3)
        };
        assert_eq!((pes[9] >> 4, stamp(9), pes[14] >> 4, stamp(14)), (3, 183_600, 1, 180_000));
    }

    #[test]
    fn stamps_wrap_at_33_bits() {
        assert_eq!(stamp(-1), 2 * CLOCK_HZ - 1);
        assert_eq!(stamp((1 << 33) - BASE), 0);
        assert_eq!(stamp(i64::MAX), stamp(i64::MAX) & STAMP_MASK);
    }
}
