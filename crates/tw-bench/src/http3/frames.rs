//! Frames of the load: requests written beforehand, and a reader of responses that counts their content.

use bytes::Bytes;

/// Start of the control stream: its type, and SETTINGS without any (RFC 9114, sections 6.2.1 and 7.2.4).
pub(crate) const SETTINGS: &[u8] = &[0, 4, 0];
/// Types of frames (RFC 9114, section 7.2).
const DATA: u64 = 0;
const HEADERS: u64 = 1;
/// Field section that begins with `:status: 200`: a prefix without a dynamic table, and entry 25 of the static one (RFC 9204).
const STATUS_200: [u8; 3] = [0, 0, 0xd9];
/// Longest frame header: two integers.
const HEAD_MAX: usize = 16;

/// A HEADERS frame with a GET request to `localhost` for a short path (RFC 9204, section 4.5).
pub(crate) fn get(path: &str) -> Bytes {
    // Prefix; `:method: GET` and `:scheme: https`, which are entries of the static table.
    let mut section = vec![0, 0, 0xd1, 0xd7];
    // Values of names of the static table: `:authority` is entry 0, `:path` is entry 1.
    for (name, value) in [(0x50, "localhost"), (0x51, path)] {
        section.push(name);
        section.push(value.len() as u8);
        section.extend_from_slice(value.as_bytes());
    }
    [&[HEADERS as u8, section.len() as u8][..], &section].concat().into()
}

/// Reader of the frames of one response.
#[derive(Debug, Default)]
pub(crate) struct ResponseReader {
    /// Bytes of DATA frames.
    pub(crate) content: u64,
    /// First bytes of the first field section.
    status: Vec<u8>,
    /// Frame header of which more is to come.
    head: Vec<u8>,
    /// Type of the current frame, and bytes of it that are to come.
    kind: u64,
    rest: u64,
}

impl ResponseReader {
    /// True for a response with the status 200.
    pub(crate) fn is_ok(&self) -> bool {
        self.status == STATUS_200
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.rest == 0 {
                bytes = self.read_head(bytes);
                continue;
            }
            let count = bytes.len().min(usize::try_from(self.rest).unwrap_or(usize::MAX));
            let (own, behind) = bytes.split_at(count);
            match self.kind {
                DATA => self.content += own.len() as u64,
                HEADERS => {
                    let missing = STATUS_200.len().saturating_sub(self.status.len()).min(own.len());
                    self.status.extend_from_slice(&own[..missing]);
                }
                _ => {}
            }
            self.rest -= count as u64;
            bytes = behind;
        }
    }

    /// Adds bytes to the frame header until it is whole; returns those behind it.
    fn read_head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let head_len = self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(HEAD_MAX - head_len)]);
        let mut rest = &self.head[..];
        match (take_integer(&mut rest), take_integer(&mut rest)) {
            (Some(kind), Some(len)) => {
                let used = self.head.len() - rest.len();
                (self.kind, self.rest) = (kind, len);
                self.head.clear();
                &bytes[used - head_len..]
            }
            _ => &[],
        }
    }
}

/// Takes an integer of variable length (RFC 9000, section 16); `None` if it is cut.
fn take_integer(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1_usize << (bytes.first()? >> 6);
    let (octets, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let value = octets.iter().fold(0_u64, |value, octet| value << 8 | u64::from(*octet));
    Some(value & (u64::MAX >> (66 - 8 * len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_counted_however_it_is_cut() {
        let head = [1, 4, 0, 0, 0xd9, 0xd1];
        let data = [&[0, 0x40, 0x64][..], &[7; 100], &[0x21, 2, 9, 9, 0, 1, 5]].concat();
        let response = [&head[..], &data].concat();
        for size in 1..response.len() {
            let mut reader = ResponseReader::default();
            response.chunks(size).for_each(|part| reader.read(part));
            assert_eq!((reader.content, reader.is_ok()), (101, true), "{size}");
        }
        let mut reader = ResponseReader::default();
        reader.read(&[1, 3, 0, 0, 0xdb]);
        assert!(!reader.is_ok());
    }

    #[test]
    fn request_is_a_frame_of_fields_without_a_table() {
        assert_eq!(&get("/1k")[..], b"\x01\x14\x00\x00\xd1\xd7\x50\x09localhost\x51\x03/1k");
    }
}
