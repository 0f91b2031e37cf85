//! Frames on the socket: the length of a message in four bytes (little endian), then the message.

use std::fmt;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

tw_base::limits! {
    /// Limits of frames.
    pub(crate) const LIMITS;

    /// Bytes of one message between a loop and its script process.
    ///
    /// A body of `client_max_body_size` or a source fits; memory for it is taken as its bytes arrive.
    pub(crate) const FRAME_SIZE_MAX: usize = 64 << 20, bytes, "the operation fails; a script process that sends more is ended";
}

/// Bytes of the length in front of a message.
const HEAD_SIZE: usize = 4;
/// Consumed bytes that the reader keeps before it moves the rest to the front.
const COMPACT_SIZE: usize = 64 << 10;

/// Reason why bytes are no message. The connection cannot be used afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The frame is larger than its limit.
    TooLarge,
    /// The frame is no message, or has bytes behind it.
    Malformed,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "the message is too large",
            Self::Malformed => "the message is malformed",
        })
    }
}

impl std::error::Error for FrameError {}

/// Appends to a buffer that belongs to somebody else.
struct Appender<'a>(&'a mut Vec<u8>);

impl Flavor for Appender<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends the frame of a message to `out`.
///
/// # Errors
/// The message is larger than the limit; `out` is unchanged.
pub fn encode<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    let result = append(message, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn append<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_SIZE]);
    postcard::serialize_with_flavor(message, Appender(out)).map_err(|_| FrameError::Malformed)?;
    let size = out.len() - start - HEAD_SIZE;
    if size > FRAME_SIZE_MAX {
        return Err(FrameError::TooLarge);
    }
    let head = u32::try_from(size).map_err(|_| FrameError::TooLarge)?.to_le_bytes();
    if let Some(place) = out.get_mut(start..start + HEAD_SIZE) {
        place.copy_from_slice(&head);
    }
    Ok(())
}

/// Splits received bytes into messages.
///
/// Memory grows with the bytes that have arrived, not with the length that a frame announces.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Bytes at the front that belong to messages which were taken.
    start: usize,
}

impl FrameReader {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start > COMPACT_SIZE {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message, or `None` if its bytes have not arrived yet.
    ///
    /// # Errors
    /// The bytes are no message.
    pub fn next_message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        let Some((head, rest)) = rest.split_first_chunk::<HEAD_SIZE>() else { return Ok(None) };
        let size = u32::from_le_bytes(*head) as usize;
        if size > FRAME_SIZE_MAX {
            return Err(FrameError::TooLarge);
        }
        let Some(bytes) = rest.get(..size) else { return Ok(None) };
        let (message, behind) = postcard::take_from_bytes(bytes).map_err(|_| FrameError::Malformed)?;
        if !behind.is_empty() {
            return Err(FrameError::Malformed);
        }
        self.start += HEAD_SIZE + size;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // One large message does not keep its memory for good.
            self.buffer.shrink_to(COMPACT_SIZE);
        }
        Ok(Some(message))
    }

    /// Bytes that have arrived and belong to no message yet.
    pub fn pending_size(&self) -> usize {
        self.buffer.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteBuf, Effect, HostMessage, ProcessMessage};

    fn send(size: usize) -> ProcessMessage {
        ProcessMessage::Effect { call: 7, effect: Effect::Send { data: ByteBuf::from(vec![b'x'; size]) } }
    }

    #[test]
    fn messages_survive_any_split() {
        let messages = [send(0), ProcessMessage::Hello { protocol: 1 }, send(300)];
        let mut bytes = Vec::new();
        for message in &messages {
            encode(message, &mut bytes).unwrap();
        }
        for split in 0..=bytes.len() {
            let mut reader = FrameReader::default();
            let mut seen = Vec::new();
            for part in [&bytes[..split], &bytes[split..]] {
                reader.push(part);
                while let Some(message) = reader.next_message::<ProcessMessage>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages, "split at {split}");
            assert_eq!(reader.pending_size(), 0);
        }
    }

    #[test]
    fn announced_length_takes_no_memory() {
        let mut reader = FrameReader::default();
        reader.push(&(FRAME_SIZE_MAX as u32).to_le_bytes());
        assert_eq!(reader.next_message::<ProcessMessage>(), Ok(None));
        assert!(reader.buffer.capacity() < 1024);
        let mut reader = FrameReader::default();
        reader.push(&(FRAME_SIZE_MAX as u32 + 1).to_le_bytes());
        assert_eq!(reader.next_message::<ProcessMessage>(), Err(FrameError::TooLarge));
    }

    #[test]
    fn bytes_behind_a_message_are_an_error() {
        let mut bytes = Vec::new();
        encode(&ProcessMessage::Handled { call: 1 }, &mut bytes).unwrap();
        bytes[0] += 1;
        bytes.push(0);
        let mut reader = FrameReader::default();
        reader.push(&bytes);
        assert_eq!(reader.next_message::<ProcessMessage>(), Err(FrameError::Malformed));
    }

    #[test]
    fn too_large_message_leaves_the_buffer_unchanged() {
        let mut bytes = b"before".to_vec();
        assert_eq!(encode(&send(FRAME_SIZE_MAX), &mut bytes), Err(FrameError::TooLarge));
        assert_eq!(bytes, b"before");
    }

    #[test]
    fn list_beyond_its_limit_is_refused() {
        let field = |count: usize| ProcessMessage::Effect {
            call: 1,
            effect: Effect::SetResponseField {
                name: ByteBuf::from("a"),
                values: vec![ByteBuf::new(); count],
            },
        };
        for (count, is_accepted) in [(65_536, true), (65_537, false)] {
            let mut bytes = Vec::new();
            encode(&field(count), &mut bytes).unwrap();
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            assert_eq!(reader.next_message::<ProcessMessage>().is_ok(), is_accepted, "{count}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut rng = tw_base::Rng::seeded(7);
        for _ in 0..20_000 {
            let size = rng.below(200) as usize;
            let body: Vec<u8> = (0..size)
                .map(|_| rng.below(256) as u8 & if size.is_multiple_of(2) { 255 } else { 15 })
                .collect();
            let mut bytes = (size as u32).to_le_bytes().to_vec();
            bytes.extend_from_slice(&body);
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            let _ = reader.next_message::<ProcessMessage>();
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            let _ = reader.next_message::<HostMessage>();
        }
    }
}
