//! Client hello of a connection that the engine does not know yet, collected from Initial packets (RFC 9001, section 5).
//!
//! ```text
//! datagram ─► Initial packets of this connection ─ keys of its ID ─► CRYPTO frames ─► hello, once it is whole
//! ```
//! A hello with a key share of ML-KEM does not fit into one datagram. The server that it names decides on the certificate, so the
//! engine gets the datagrams only after the choice.

use rustls::quic::{DirectionalKeys, Version};

use crate::varint::read_varint;
use crate::version::{VERSION_1, initial_suite};

/// Largest client hello; the buffer of the engine has this size, too.
pub(crate) const HELLO_SIZE_MAX: usize = 16 << 10;
/// Largest number of parts of a hello that are not yet joined.
pub(crate) const HELLO_PARTS_MAX: usize = 32;
/// Least number of bytes of a datagram with an Initial packet.
const DATAGRAM_MIN: usize = 1200;

/// Header of a packet up to its connection IDs, the same in all versions (RFC 8999).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LongHeader<'a> {
    first: u8,
    pub(crate) version: u32,
    pub(crate) destination: &'a [u8],
}

impl<'a> LongHeader<'a> {
    /// Reads the header; `None` for packets with a short header and for what is none. Leaves the bytes behind it.
    pub(crate) fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first()?;
        if first & 0x80 == 0 {
            return None;
        }
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (destination, rest) = split_id(rest)?;
        let (_source, rest) = split_id(rest)?;
        *bytes = rest;
        Some(Self { first: *first, version: u32::from_be_bytes(*version), destination })
    }

    /// True for an Initial packet of version 1.
    pub(crate) fn is_initial(&self) -> bool {
        self.version == VERSION_1 && self.first & 0x30 == 0
    }
}

fn split_id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// Client hello as far as it has arrived.
pub(crate) struct HelloReader {
    keys: DirectionalKeys,
    destination: Box<[u8]>,
    bytes: Vec<u8>,
    /// Parts of `bytes` that have arrived, in order and not joined.
    parts: Vec<(usize, usize)>,
}

/// State of a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Parts are missing.
    Partial,
    /// All of it is there, or it cannot become a hello any more: TLS decides.
    Whole,
}

impl HelloReader {
    /// A reader for packets to this connection ID, which the client has chosen.
    pub(crate) fn new(destination: &[u8]) -> Self {
        let keys = initial_suite().keys(destination, rustls::Side::Server, Version::V1).remote;
        Self { keys, destination: destination.into(), bytes: Vec::new(), parts: Vec::new() }
    }

    /// Takes the packets of a datagram. Others than those of this connection, and forged ones, are passed over.
    pub(crate) fn read(&mut self, datagram: &[u8]) -> Progress {
        if datagram.len() >= DATAGRAM_MIN {
            let mut rest = datagram;
            while let Some(()) = self.read_packet(&mut rest) {}
        }
        self.progress()
    }

    /// Connection ID that packets are read for.
    pub(crate) fn destination(&self) -> &[u8] {
        &self.destination
    }

    /// Bytes of the handshake from the first one on, without gaps.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        let len = self.contiguous();
        self.bytes.truncate(len);
        self.bytes
    }

    /// Reads one packet; `None` at the end.
    fn read_packet(&mut self, bytes: &mut &[u8]) -> Option<()> {
        let whole = *bytes;
        let header = LongHeader::read(bytes)?;
        if !header.is_initial() {
            return None;
        }
        let is_own = header.destination == &*self.destination;
        let token = usize::try_from(read_varint(bytes)?).ok()?;
        *bytes = bytes.get(token..)?;
        let len = usize::try_from(read_varint(bytes)?).ok()?;
        let number_at = whole.len() - bytes.len();
        *bytes = bytes.get(len..)?;
        if is_own {
            let mut packet = whole.get(..number_at.checked_add(len)?)?.to_vec();
            if let Some(payload) = self.open(&mut packet, number_at) {
                let payload = payload.to_vec();
                self.read_frames(&payload);
            }
        }
        Some(())
    }

    /// Removes the protection of a packet, and returns its payload.
    fn open<'a>(&self, packet: &'a mut [u8], number_at: usize) -> Option<&'a [u8]> {
        let (header, rest) = packet.split_at_mut_checked(number_at)?;
        let (number, sampled) = rest.split_at_mut_checked(4)?;
        let sample = sampled.get(..self.keys.header.sample_len())?;
        let first = header.first_mut()?;
        self.keys.header.decrypt_in_place(sample, first, number).ok()?;
        let number_len = usize::from(*first & 3) + 1;
        let value = number.iter().take(number_len).fold(0, |value, byte| value << 8 | u64::from(*byte));
        let (header, payload) = packet.split_at_mut_checked(number_at + number_len)?;
        self.keys.packet.decrypt_in_place(value, header, payload).ok()
    }

    /// Reads the frames that Initial packets may have.
    fn read_frames(&mut self, mut bytes: &[u8]) -> Option<()> {
        loop {
            match read_varint(&mut bytes)? {
                // PADDING, PING
                0 | 1 => {}
                // ACK, of packets that do not exist yet.
                kind @ (2 | 3) => {
                    let (_largest, _delay) = (read_varint(&mut bytes)?, read_varint(&mut bytes)?);
                    let (ranges, _first) = (read_varint(&mut bytes)?, read_varint(&mut bytes)?);
                    for _ in 0..ranges {
                        let (_gap, _len) = (read_varint(&mut bytes)?, read_varint(&mut bytes)?);
                    }
                    for _ in 0..if kind == 3 { 3 } else { 0 } {
                        read_varint(&mut bytes)?;
                    }
                }
                6 => {
                    let offset = usize::try_from(read_varint(&mut bytes)?).ok()?;
                    let len = usize::try_from(read_varint(&mut bytes)?).ok()?;
                    let (data, rest) = bytes.split_at_checked(len)?;
                    bytes = rest;
                    self.store(offset, data)?;
                }
                _ => return None,
            }
        }
    }

    fn store(&mut self, offset: usize, data: &[u8]) -> Option<()> {
        let end = offset.checked_add(data.len()).filter(|end| *end <= HELLO_SIZE_MAX)?;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(offset..end)?.copy_from_slice(data);
        // Parts that touch or overlap the new one are merged with it.
        let (mut begin, mut joined_end) = (offset, end);
        self.parts.retain(|(from, to)| {
            let is_apart = *to < begin || *from > joined_end;
            if !is_apart {
                (begin, joined_end) = (begin.min(*from), joined_end.max(*to));
            }
            is_apart
        });
        if self.parts.len() < HELLO_PARTS_MAX {
            self.parts.push((begin, joined_end));
        }
        Some(())
    }

    /// Number of bytes without a gap.
    fn contiguous(&self) -> usize {
        self.parts.iter().find(|(from, _)| *from == 0).map_or(0, |(_, to)| *to)
    }

    fn progress(&self) -> Progress {
        let there = self.contiguous();
        let is_whole = match self.bytes.get(..there) {
            Some([1, high, middle, low, ..]) => {
                let len = u32::from_be_bytes([0, *high, *middle, *low]) as usize + 4;
                there >= len || len > HELLO_SIZE_MAX
            }
            Some([first, ..]) => *first != 1,
            _ => false,
        };
        if is_whole { Progress::Whole } else { Progress::Partial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> HelloReader {
        HelloReader::new(&[1; 8])
    }

    #[test]
    fn hello_is_whole_in_any_order_of_its_parts() {
        let mut hello = vec![1, 0, 0, 96];
        hello.extend((0..96).map(|at| at as u8));
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let mut reader = reader();
            for (at, part) in order.into_iter().enumerate() {
                assert_eq!(reader.progress(), Progress::Partial, "{order:?}");
                let begin = part * 25;
                reader.store(begin, &hello[begin..begin + 25]).unwrap();
                // A part that is there already changes nothing.
                reader.store(begin, &hello[begin..begin + 10]).unwrap();
                assert_eq!(reader.progress() == Progress::Whole, at == 3, "{order:?}");
            }
            assert_eq!(reader.into_bytes(), hello);
        }
    }

    #[test]
    fn oversized_hello_is_left_to_tls() {
        let mut reader = reader();
        assert_eq!(reader.store(HELLO_SIZE_MAX - 1, b"ab"), None);
        reader.store(0, &[1, 1, 0, 0]).unwrap();
        assert_eq!(reader.progress(), Progress::Whole);
        let mut reader = self::reader();
        reader.store(0, &[2]).unwrap();
        assert_eq!(reader.progress(), Progress::Whole);
    }

    #[test]
    fn long_headers() {
        let initial = [0xc0, 0, 0, 0, 1, 2, 7, 8, 1, 9, 0];
        let mut rest = &initial[..];
        let header = LongHeader::read(&mut rest).unwrap();
        assert_eq!((header.version, header.destination, rest), (1, &[7, 8][..], &[0][..]));
        assert!(header.is_initial());
        for end in 0..10 {
            assert_eq!(LongHeader::read(&mut &initial[..end]), None, "{end}");
        }
        assert_eq!(LongHeader::read(&mut &[0x40, 0, 0, 0, 1, 0, 0][..]), None);
    }
}
