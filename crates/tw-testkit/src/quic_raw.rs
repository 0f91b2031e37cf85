//! QUIC client that writes its packets itself, for frames and headers that no correct client sends. It completes a handshake and
//! understands answers, but never sends anything again.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Connection, DirectionalKeys, KeyChange, Keys, Version};
use rustls::{ClientConfig, Side};

/// Least size of a datagram with an Initial packet.
const DATAGRAM_MIN: usize = 1200;
/// Bytes of packet numbers that are sent.
const NUMBER_LEN: usize = 4;
/// Bytes of the tag of a packet.
const TAG_LEN: usize = 16;
/// Part of a client hello in one datagram.
const CRYPTO_SIZE: usize = 1000;

/// Encryption level of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Initial packets.
    Initial,
    /// Handshake packets.
    Handshake,
    /// Packets with a short header.
    Application,
}

/// State of one level.
#[derive(Default)]
struct Space {
    keys: Option<Keys>,
    next_number: u64,
    /// Largest number that was received.
    received: Option<u64>,
    /// Bytes of CRYPTO that were given to TLS, and later ones.
    crypto_read: u64,
    crypto_parts: BTreeMap<u64, Vec<u8>>,
    crypto_sent: u64,
}

/// End of a connection by the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// Error of the transport.
    Transport(u64),
    /// Error of the application.
    Application(u64),
}

/// Client that writes its packets itself.
pub struct RawClient {
    tls: ClientConnection,
    spaces: [Space; 3],
    /// Connection ID that packets are sent to.
    pub destination: Vec<u8>,
    /// Own connection ID.
    pub source: Vec<u8>,
    /// Token of Initial packets.
    pub token: Vec<u8>,
    /// Frames that have arrived at each level, by their types: the last one, without its type.
    pub frames: Vec<(Level, u64, Vec<u8>)>,
    /// End, if the server has closed the connection.
    pub closed: Option<Closed>,
    /// Connection IDs that the server has issued, by their numbers.
    pub issued: BTreeMap<u64, Vec<u8>>,
    pending: Vec<Vec<u8>>,
}

/// A transport parameter.
pub type Parameter = (u64, Vec<u8>);

/// Parameters of an ordinary client.
#[must_use]
pub fn parameters(source: &[u8]) -> Vec<Parameter> {
    let number = |value| varint(value);
    vec![
        (0x0f, source.to_vec()),
        (0x01, number(30_000)),
        (0x04, number(1 << 20)),
        (0x05, number(1 << 16)),
        (0x06, number(1 << 16)),
        (0x07, number(1 << 16)),
        (0x08, number(16)),
        (0x09, number(16)),
        (0x0e, number(4)),
    ]
}

/// An integer of variable length.
#[must_use]
pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (0x4000 | value as u16).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
        _ => (0xc000_0000_0000_0000 | value).to_be_bytes().to_vec(),
    }
}

/// A frame of a type and integers.
#[must_use]
pub fn frame(kind: u64, numbers: &[u64]) -> Vec<u8> {
    let mut out = varint(kind);
    numbers.iter().for_each(|number| out.extend(varint(*number)));
    out
}

fn read(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(number.iter().skip(1).fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
}

fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (part, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    *bytes = rest;
    Some(part)
}

impl RawClient {
    /// A client that is about to send its hello.
    ///
    /// # Panics
    /// The configuration cannot be used.
    #[must_use]
    pub fn new(config: Arc<ClientConfig>, name: &str, parameters: &[Parameter], source: &[u8]) -> Self {
        Self::to(&[0x5a; 8], config, name, parameters, source)
    }

    /// A client whose first packet goes to this connection ID.
    ///
    /// # Panics
    /// The configuration cannot be used.
    #[must_use]
    pub fn to(
        destination: &[u8],
        config: Arc<ClientConfig>,
        name: &str,
        parameters: &[Parameter],
        source: &[u8],
    ) -> Self {
        let mut params = Vec::new();
        for (id, value) in parameters {
            params.extend(varint(*id));
            params.extend(varint(value.len() as u64));
            params.extend(value);
        }
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let tls = ClientConnection::new(config, Version::V1, name, params).expect("TLS 1.3");
        let mut client = Self {
            tls,
            spaces: Default::default(),
            destination: destination.to_vec(),
            source: source.to_vec(),
            token: Vec::new(),
            frames: Vec::new(),
            closed: None,
            issued: BTreeMap::new(),
            pending: Vec::new(),
        };
        client.spaces[0].keys = Some(initial_keys(destination));
        client.write_tls(Level::Initial);
        client
    }

    /// Uses the keys of [`destination`](Self::destination) for Initial packets.
    pub fn set_initial_keys(&mut self) {
        self.spaces[0].keys = Some(initial_keys(&self.destination));
    }

    /// Datagrams of the handshake that are to be sent.
    #[must_use]
    pub fn datagrams(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.pending)
    }

    /// True once the keys of the application are there.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.spaces[2].keys.is_some() && !self.tls.is_handshaking()
    }

    /// A datagram with one packet of these frames; `None` without keys.
    #[must_use]
    pub fn datagram(&mut self, level: Level, frames: &[u8]) -> Option<Vec<u8>> {
        self.datagram_with(level, frames, |_| {})
    }

    /// A datagram with a header that `change` has seen before it is protected.
    #[must_use]
    pub fn datagram_with(
        &mut self,
        level: Level,
        frames: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Vec<u8>> {
        let space = &mut self.spaces[level as usize];
        let keys = &space.keys.as_ref()?.local;
        let number = space.next_number;
        space.next_number += 1;
        let mut payload = frames.to_vec();
        let token_len = varint(self.token.len() as u64).len() + self.token.len();
        let header_len = 1 + 4 + 1 + self.destination.len() + 1 + self.source.len() + token_len + 2;
        if level == Level::Initial {
            payload.resize(payload.len().max(DATAGRAM_MIN - header_len - NUMBER_LEN - TAG_LEN), 0);
        }
        let mut header = Vec::new();
        match level {
            Level::Application => {
                header.push(0x40 | (NUMBER_LEN as u8 - 1));
                header.extend(&self.destination);
            }
            Level::Initial | Level::Handshake => {
                let kind = if level == Level::Initial { 0 } else { 2 };
                header.push(0xc0 | kind << 4 | (NUMBER_LEN as u8 - 1));
                header.extend(1u32.to_be_bytes());
                for id in [&self.destination, &self.source] {
                    header.push(id.len() as u8);
                    header.extend(id);
                }
                if level == Level::Initial {
                    header.extend(varint(self.token.len() as u64));
                    header.extend(&self.token);
                }
                let len = NUMBER_LEN + payload.len() + TAG_LEN;
                header.extend((0x4000 | len as u16).to_be_bytes());
            }
        }
        header.extend((number as u32).to_be_bytes());
        change(&mut header);
        Some(protect(keys, number, header, payload))
    }

    /// Takes a datagram of the server, and makes those that it calls for.
    pub fn receive(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while !rest.is_empty()
            && let Some(level) = self.read_packet(&mut rest)
        {
            // A later packet of the same datagram may need the keys.
            self.read_tls(level);
        }
    }

    /// Reads one packet and returns its level; `None` if it cannot be read.
    fn read_packet(&mut self, bytes: &mut &[u8]) -> Option<Level> {
        let whole = *bytes;
        let first = *whole.first()?;
        let (level, number_at, end) = if first & 0x80 == 0 {
            (Level::Application, 1 + self.source.len(), whole.len())
        } else {
            let mut rest = whole.get(5..)?;
            let _destination = {
                let len = *rest.first()?;
                rest = &rest[1..];
                take(&mut rest, u64::from(len))?
            };
            let source = {
                let len = *rest.first()?;
                rest = &rest[1..];
                take(&mut rest, u64::from(len))?
            };
            let level = match (first >> 4) & 3 {
                0 => Level::Initial,
                2 => Level::Handshake,
                _ => return None,
            };
            if level == Level::Initial {
                // The server has chosen its ID.
                self.destination = source.to_vec();
                let token = read(&mut rest)?;
                take(&mut rest, token)?;
            }
            let len = usize::try_from(read(&mut rest)?).ok()?;
            let number_at = whole.len() - rest.len();
            (level, number_at, number_at + len)
        };
        *bytes = whole.get(end..)?;
        let mut packet = whole[..end].to_vec();
        let space = &self.spaces[level as usize];
        let keys = &space.keys.as_ref()?.remote;
        let sample = packet.get(number_at + 4..number_at + 4 + keys.header.sample_len())?.to_vec();
        let (head, number) = packet.split_at_mut(number_at);
        keys.header.decrypt_in_place(&sample, &mut head[0], &mut number[..4]).ok()?;
        let len = usize::from(head[0] & 3) + 1;
        let sent = number[..len].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let value = expand(sent, len, space.received.map_or(0, |largest| largest + 1));
        let (header, payload) = packet.split_at_mut(number_at + len);
        let payload = keys.packet.decrypt_in_place(value, header, payload).ok()?.to_vec();
        let received = &mut self.spaces[level as usize].received;
        *received = Some(received.map_or(value, |largest| largest.max(value)));
        self.read_frames(level, &payload);
        Some(level)
    }

    fn read_frames(&mut self, level: Level, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let kind = read(&mut bytes)?;
            let before = bytes;
            match kind {
                0 => continue,
                1 | 0x1e => {}
                2 | 3 => {
                    let (_, _) = (read(&mut bytes)?, read(&mut bytes)?);
                    let (ranges, _) = (read(&mut bytes)?, read(&mut bytes)?);
                    for _ in 0..ranges * 2 + if kind == 3 { 3 } else { 0 } {
                        read(&mut bytes)?;
                    }
                }
                4 => drop((read(&mut bytes)?, read(&mut bytes)?, read(&mut bytes)?)),
                5 | 0x11 | 0x15 => drop((read(&mut bytes)?, read(&mut bytes)?)),
                6 => {
                    let offset = read(&mut bytes)?;
                    let len = read(&mut bytes)?;
                    let data = take(&mut bytes, len)?.to_vec();
                    self.spaces[level as usize].crypto_parts.insert(offset, data);
                }
                7 => {
                    let len = read(&mut bytes)?;
                    take(&mut bytes, len)?;
                }
                8..=0xf => {
                    read(&mut bytes)?;
                    if kind & 4 != 0 {
                        read(&mut bytes)?;
                    }
                    let len = if kind & 2 != 0 { read(&mut bytes)? } else { bytes.len() as u64 };
                    take(&mut bytes, len)?;
                }
                0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => drop(read(&mut bytes)?),
                0x18 => {
                    let (sequence, _) = (read(&mut bytes)?, read(&mut bytes)?);
                    let len = *take(&mut bytes, 1)?.first()?;
                    let id = take(&mut bytes, u64::from(len))?.to_vec();
                    take(&mut bytes, 16)?;
                    self.issued.insert(sequence, id);
                }
                0x1a | 0x1b => drop(take(&mut bytes, 8)?),
                0x1c | 0x1d => {
                    let code = read(&mut bytes)?;
                    if kind == 0x1c {
                        read(&mut bytes)?;
                    }
                    let len = read(&mut bytes)?;
                    take(&mut bytes, len)?;
                    let closed =
                        if kind == 0x1c { Closed::Transport(code) } else { Closed::Application(code) };
                    self.closed = Some(closed);
                }
                _ => return None,
            }
            let len = before.len() - bytes.len();
            self.frames.push((level, kind, before[..len].to_vec()));
        }
        Some(())
    }

    /// Gives TLS what has arrived, and sends what it answers.
    fn read_tls(&mut self, level: Level) {
        let space = &mut self.spaces[level as usize];
        let mut ready = Vec::new();
        while let Some((&offset, part)) = space.crypto_parts.first_key_value() {
            if offset > space.crypto_read {
                break;
            }
            let known_value = usize::try_from(space.crypto_read - offset).unwrap_or(usize::MAX);
            ready.extend(part.get(known_value..).unwrap_or_default());
            space.crypto_read = space.crypto_read.max(offset + part.len() as u64);
            space.crypto_parts.remove(&offset);
        }
        if !ready.is_empty() && self.tls.read_hs(&ready).is_ok() {
            self.write_tls(level);
        }
    }

    fn write_tls(&mut self, mut level: Level) {
        loop {
            let mut out = Vec::new();
            let change = self.tls.write_hs(&mut out);
            let is_done = out.is_empty() && change.is_none();
            for part in out.chunks(CRYPTO_SIZE) {
                let offset = self.spaces[level as usize].crypto_sent;
                self.spaces[level as usize].crypto_sent += part.len() as u64;
                let mut frames = self.acknowledgement(level);
                frames.extend(frame(6, &[offset, part.len() as u64]));
                frames.extend(part);
                let datagram = self.datagram(level, &frames);
                self.pending.extend(datagram);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    level = Level::Handshake;
                    self.spaces[1].keys = Some(keys);
                }
                Some(KeyChange::OneRtt { keys, .. }) => self.spaces[2].keys = Some(keys),
                None => {}
            }
            if is_done {
                return;
            }
        }
    }

    /// An ACK frame for what has arrived, if anything has.
    #[must_use]
    pub fn acknowledgement(&self, level: Level) -> Vec<u8> {
        match self.spaces[level as usize].received {
            Some(largest) => frame(2, &[largest, 0, 0, 0]),
            None => Vec::new(),
        }
    }

    /// Facts of TLS.
    #[must_use]
    pub fn tls(&self) -> &ClientConnection {
        &self.tls
    }

    /// TLS as either side's connection.
    #[must_use]
    pub fn into_tls(self) -> Connection {
        self.tls.into()
    }
}

/// Packet number of which the last `len` bytes were sent (RFC 9000, section A.3).
fn expand(sent: u64, len: usize, expected: u64) -> u64 {
    let window = 1u64 << (8 * len);
    let candidate = (expected & !(window - 1)) | sent;
    if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

fn initial_keys(destination: &[u8]) -> Keys {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().and_then(|suite| suite.quic_suite()).expect("it is a suite of QUIC");
    suite.keys(destination, Side::Client, Version::V1)
}

/// Encrypts a packet, whose header ends with its number.
fn protect(keys: &DirectionalKeys, number: u64, header: Vec<u8>, mut payload: Vec<u8>) -> Vec<u8> {
    let tag = keys.packet.encrypt_in_place(number, &header, &mut payload).expect("a packet can be encrypted");
    let number_at = header.len() - NUMBER_LEN;
    let mut packet = header;
    packet.extend(payload);
    packet.extend(tag.as_ref());
    let sample = packet[number_at + 4..number_at + 4 + keys.header.sample_len()].to_vec();
    let (head, rest) = packet.split_at_mut(number_at);
    keys.header
        .encrypt_in_place(&sample, &mut head[0], &mut rest[..NUMBER_LEN])
        .expect("a header can be protected");
    packet
}
