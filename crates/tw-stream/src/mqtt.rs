//! The CONNECT packet of MQTT, versions 3.1, 3.1.1 and 5.0, with which each connection begins (MQTT 5.0 section 3.1): read from bytes
//! that may be incomplete, and written anew with other fields. No I/O.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// First byte of the packet: its type, and flags that are reserved.
const CONNECT: u8 = 0x10;
/// Bytes of a length at most (section 1.5.5).
const LENGTH_MAX: usize = 4;
/// Version of the protocol in which there are properties.
const VERSION_5: u8 = 5;
const HAS_USERNAME: u8 = 0x80;
const HAS_PASSWORD: u8 = 0x40;
const HAS_WILL: u8 = 0x04;
const RESERVED: u8 = 0x01;

/// First bytes of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstPacket<'a> {
    /// More are needed.
    Incomplete,
    /// A CONNECT packet, and its bytes.
    Connect(Connect<'a>, usize),
    /// Something else.
    Other,
}

/// Fields of a CONNECT packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect<'a> {
    /// Name and version of the protocol.
    protocol: &'a [u8],
    flags: u8,
    /// Keep-alive time and properties.
    header: &'a [u8],
    /// Identifier of the client.
    pub client_id: &'a [u8],
    /// Properties, topic and payload of the will.
    will: &'a [u8],
    /// Name of the user.
    pub username: Option<&'a [u8]>,
    /// Password of the user.
    pub password: Option<&'a [u8]>,
}

/// Reads the first bytes of a client.
pub fn first_packet(bytes: &[u8]) -> FirstPacket<'_> {
    match bytes.split_first() {
        None => return FirstPacket::Incomplete,
        Some((&CONNECT, _)) => {}
        Some(_) => return FirstPacket::Other,
    }
    let mut rest = bytes.get(1..).unwrap_or_default();
    let len = match length(&mut rest) {
        Ok(Some(len)) => len,
        Ok(None) => return FirstPacket::Incomplete,
        Err(InvalidLength) => return FirstPacket::Other,
    };
    let header = bytes.len() - rest.len();
    match rest.get(..len) {
        None => FirstPacket::Incomplete,
        Some(body) => {
            connect(body).map_or(FirstPacket::Other, |connect| FirstPacket::Connect(connect, header + len))
        }
    }
}

impl Connect<'_> {
    /// Appends the packet. `None` if a field or the packet is longer than it can be.
    pub fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        let mut body = self.protocol.to_vec();
        let mut flags = self.flags & !(HAS_USERNAME | HAS_PASSWORD);
        flags |= if self.username.is_some() { HAS_USERNAME } else { 0 };
        flags |= if self.password.is_some() { HAS_PASSWORD } else { 0 };
        body.push(flags);
        body.extend_from_slice(self.header);
        put_string(&mut body, self.client_id)?;
        body.extend_from_slice(self.will);
        for field in [self.username, self.password].into_iter().flatten() {
            put_string(&mut body, field)?;
        }
        out.push(CONNECT);
        put_length(out, body.len())?;
        out.extend_from_slice(&body);
        Some(())
    }
}

/// Reads what follows the length; `None` if it is malformed.
fn connect(body: &[u8]) -> Option<Connect<'_>> {
    let mut rest = body;
    string(&mut rest)?;
    let version = *take(&mut rest, 1)?.first()?;
    let protocol = before(body, rest)?;
    let flags = *take(&mut rest, 1)?.first()?;
    if flags & RESERVED != 0 {
        return None;
    }
    let begin = rest;
    take(&mut rest, 2)?;
    if version == VERSION_5 {
        properties(&mut rest)?;
    }
    let header = before(begin, rest)?;
    let client_id = string(&mut rest)?;
    let begin = rest;
    if flags & HAS_WILL != 0 {
        if version == VERSION_5 {
            properties(&mut rest)?;
        }
        string(&mut rest)?;
        string(&mut rest)?;
    }
    let will = before(begin, rest)?;
    let username = if flags & HAS_USERNAME != 0 { Some(string(&mut rest)?) } else { None };
    let password = if flags & HAS_PASSWORD != 0 { Some(string(&mut rest)?) } else { None };
    rest.is_empty().then_some(Connect { protocol, flags, header, client_id, will, username, password })
}

/// The beginning of `all` in front of its end `rest`.
fn before<'a>(all: &'a [u8], rest: &[u8]) -> Option<&'a [u8]> {
    all.get(..all.len().checked_sub(rest.len())?)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(first)
}

/// Takes a string or binary data: two bytes of length, and the content.
fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u16::from_be_bytes(*take(bytes, 2)?.first_chunk()?);
    take(bytes, len.into())
}

/// Skips properties.
fn properties(bytes: &mut &[u8]) -> Option<()> {
    let len = length(bytes).ok()??;
    take(bytes, len).map(|_| ())
}

/// More bytes than a length has.
struct InvalidLength;

/// Takes a length; `None` if it is incomplete.
fn length(bytes: &mut &[u8]) -> Result<Option<usize>, InvalidLength> {
    let mut value = 0;
    for at in 0..LENGTH_MAX {
        let Some((byte, rest)) = bytes.split_first() else { return Ok(None) };
        *bytes = rest;
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some(value));
        }
    }
    Err(InvalidLength)
}

fn put_length(out: &mut Vec<u8>, mut len: usize) -> Option<()> {
    for _ in 0..LENGTH_MAX {
        let byte = (len & 0x7f) as u8;
        len >>= 7;
        out.push(if len > 0 { byte | 0x80 } else { byte });
        if len == 0 {
            return Some(());
        }
    }
    None
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    out.extend_from_slice(&u16::try_from(text.len()).ok()?.to_be_bytes());
    out.extend_from_slice(text);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(version: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
        let body = [&[0, 4], &b"MQTT"[..], &[version, flags, 0, 60], rest].concat();
        let mut packet = vec![CONNECT];
        put_length(&mut packet, body.len()).unwrap();
        [packet, body].concat()
    }

    #[test]
    fn fields_are_read_however_the_packet_is_split() {
        let plain = packet(4, 2, b"\0\x02id");
        let full = packet(4, 0xc6, b"\0\x02id\0\x01t\0\x02pp\0\x01u\0\x03pwd");
        let five = packet(5, 0xc6, b"\x02ab\0\x02id\x01z\0\x01t\0\0\0\x01u\0\x03pwd");
        let long = [b"\0\x02id\0\x01t\x01\x00", &[7; 256][..]].concat();
        let long = packet(4, 6, &long);
        for (packet, user) in [(plain, false), (full, true), (five, true), (long, false)] {
            for end in 0..packet.len() {
                assert_eq!(first_packet(&packet[..end]), FirstPacket::Incomplete, "{end}");
            }
            let more = [&packet[..], b"more"].concat();
            let FirstPacket::Connect(connect, len) = first_packet(&more) else { panic!("{packet:?}") };
            assert_eq!((connect.client_id, len), (&b"id"[..], packet.len()));
            assert_eq!(connect.username.is_some() && connect.password == Some(b"pwd"), user);
            let mut bytes = Vec::new();
            connect.write(&mut bytes).unwrap();
            assert_eq!(bytes, packet);
        }
    }

    #[test]
    fn fields_are_replaced() {
        let bytes = packet(4, 2, b"\0\x02id");
        let FirstPacket::Connect(connect, _) = first_packet(&bytes) else { panic!("no packet") };
        let changed = Connect { client_id: b"other", username: Some(b"u"), ..connect };
        let mut bytes = Vec::new();
        changed.write(&mut bytes).unwrap();
        assert_eq!(bytes, packet(4, 0x82, b"\0\x05other\0\x01u"));
        let long = vec![0; 65_536];
        assert_eq!(Connect { client_id: &long, ..changed }.write(&mut bytes), None);
    }

    #[test]
    fn other_bytes_are_no_packet() {
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            vec![0x20, 0],
            vec![CONNECT, 0xff, 0xff, 0xff, 0xff],
            vec![CONNECT, 0],
            packet(4, 3, b"\0\x02id"),
            packet(4, 2, b"\0\x02i"),
            packet(4, 2, b"\0\x02idx"),
            packet(4, 0x82, b"\0\x02id"),
            packet(5, 2, b"\xff\xff\xff\xff\0\x02id"),
        ] {
            assert_eq!(first_packet(&bytes), FirstPacket::Other, "{bytes:?}");
        }
    }
}
