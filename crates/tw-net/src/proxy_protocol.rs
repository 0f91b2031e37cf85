//! The PROXY protocol, versions 1 and 2: addresses of the client of a proxy. No I/O.
//!
//! Source: "The PROXY protocol, versions 1 & 2" by HAProxy Technologies; limits as in nginx.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Addr;
use crate::listen::SocketKind;

/// Longest header of either version that is taken, in bytes.
pub const MAX_HEADER: usize = 4096;

/// Longest header of version 1 with its line end: the longest addresses and ports there are.
const MAX_V1: usize = 107;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length.
const V2_FIXED: usize = 16;

/// A whole header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Both ends of the connection that the proxy took. `None` when the proxy speaks for itself (a health check) or
    /// does not know: then the connection's own addresses count.
    pub addrs: Option<Addrs>,
    /// The rest of a version 2 header: type, length, value; unchecked.
    tlvs: Box<[u8]>,
}

/// Both ends of a proxied connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addrs {
    /// The client: `$proxy_protocol_addr` and `$proxy_protocol_port`.
    pub src: SocketAddr,
    /// Address that the client connected to: `$proxy_protocol_server_addr` and `$proxy_protocol_server_port`.
    pub dst: SocketAddr,
}

/// Why a header is refused. Displays as nginx's log line. The connection must be closed: no answer makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Not a header at all, or a malformed one of version 1; with its first line.
    Broken(Box<[u8]>),
    /// A version 2 header that is too short for the addresses it announces.
    Short,
    /// The signature of version 2 with another version number.
    Version(u8),
    /// Over [`MAX_HEADER`].
    TooLarge,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(line) => write!(f, "broken header: \"{}\"", line.escape_ascii()),
            Self::Short => f.write_str("header is too short"),
            Self::Version(version) => write!(f, "unknown PROXY protocol version: {version}"),
            Self::TooLarge => f.write_str("header is too large"),
        }
    }
}

impl std::error::Error for HeaderError {}

/// Reads a header at the start of what a connection sent so far. `Ok(None)`: more bytes are needed; else the header
/// and its length. Never asks for more than [`MAX_HEADER`] bytes.
pub fn parse(sent: &[u8]) -> Result<Option<(Header, usize)>, HeaderError> {
    let common = sent.len().min(SIGNATURE.len());
    if sent.get(..common) == SIGNATURE.get(..common) {
        return parse_v2(sent);
    }
    parse_v1(sent)
}

fn broken(sent: &[u8]) -> HeaderError {
    let line = sent.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    HeaderError::Broken(line.get(..MAX_V1).unwrap_or(line).into())
}

fn parse_v1(sent: &[u8]) -> Result<Option<(Header, usize)>, HeaderError> {
    const START: &[u8] = b"PROXY ";
    let common = sent.len().min(START.len());
    if sent.get(..common) != START.get(..common) {
        return Err(broken(sent));
    }
    let within = sent.get(..MAX_V1).unwrap_or(sent);
    let end = within.windows(2).position(|pair| pair == b"\r\n");
    // A line ends with both bytes; the second may be on its way.
    let text = match end {
        Some(end) => within.get(..end).unwrap_or_default(),
        None => within.strip_suffix(b"\r").unwrap_or(within),
    };
    // DIFF(nginx): nginx passes over them behind `UNKNOWN`, and so over the request line that follows a line that ends wrong.
    if text.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Err(broken(sent));
    }
    let Some(end) = end else {
        return if within.len() == MAX_V1 { Err(broken(sent)) } else { Ok(None) };
    };
    let line = within.get(START.len()..end).unwrap_or_default();
    let addrs = match line.strip_prefix(b"UNKNOWN") {
        Some(_) => None,
        None => Some(std::str::from_utf8(line).ok().and_then(addrs_v1).ok_or_else(|| broken(sent))?),
    };
    Ok(Some((Header { addrs, tlvs: Box::default() }, end + 2)))
}

/// `TCP4 SRC DST SRC_PORT DST_PORT`, with single spaces.
// DIFF(nginx): addresses must be addresses, of the family announced. nginx takes any letters of an address.
fn addrs_v1(line: &str) -> Option<Addrs> {
    let mut words = line.split(' ');
    let ip: fn(&str) -> Option<IpAddr> = match words.next()? {
        "TCP4" => |word| word.parse().ok().map(IpAddr::V4),
        "TCP6" => |word| word.parse().ok().map(IpAddr::V6),
        _ => return None,
    };
    let src = ip(words.next()?)?;
    let dst = ip(words.next()?)?;
    let src_port = port(words.next()?)?;
    let dst_port = port(words.next()?)?;
    let addrs = Addrs { src: SocketAddr::new(src, src_port), dst: SocketAddr::new(dst, dst_port) };
    words.next().is_none().then_some(addrs)
}

fn port(word: &str) -> Option<u16> {
    // `parse` alone would take a plus sign.
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

fn parse_v2(sent: &[u8]) -> Result<Option<(Header, usize)>, HeaderError> {
    let Some(&[version_command, family_transport, len_high, len_low]) =
        sent.get(SIGNATURE.len()..V2_FIXED).and_then(<[u8]>::first_chunk)
    else {
        return Ok(None);
    };
    if version_command >> 4 != 2 {
        return Err(HeaderError::Version(version_command >> 4));
    }
    let len = V2_FIXED + usize::from(u16::from_be_bytes([len_high, len_low]));
    if len > MAX_HEADER {
        return Err(HeaderError::TooLarge);
    }
    let Some(rest) = sent.get(V2_FIXED..len) else { return Ok(None) };
    const PROXY: u8 = 1;
    const STREAM: u8 = 1;
    const INET: u8 = 1;
    const INET6: u8 = 2;
    let (addrs, tlvs) = match (version_command & 0xf, family_transport & 0xf, family_transport >> 4) {
        (PROXY, STREAM, INET) => {
            let (addrs, tlvs) =
                addrs_v2::<4>(rest, |ip| Ipv4Addr::from(ip).into()).ok_or(HeaderError::Short)?;
            (Some(addrs), tlvs)
        }
        (PROXY, STREAM, INET6) => {
            let (addrs, tlvs) =
                addrs_v2::<16>(rest, |ip| Ipv6Addr::from(ip).into()).ok_or(HeaderError::Short)?;
            (Some(addrs), tlvs)
        }
        // "LOCAL", datagrams, Unix sockets and undefined values are skipped as a whole.
        _ => (None, <&[u8]>::default()),
    };
    Ok(Some((Header { addrs, tlvs: tlvs.into() }, len)))
}

/// Source and destination address of `N` bytes, then source and destination port; and what follows.
fn addrs_v2<const N: usize>(rest: &[u8], ip: fn([u8; N]) -> IpAddr) -> Option<(Addrs, &[u8])> {
    let (src, rest) = rest.split_first_chunk::<N>()?;
    let (dst, rest) = rest.split_first_chunk::<N>()?;
    let (src_port, rest) = rest.split_first_chunk()?;
    let (dst_port, rest) = rest.split_first_chunk()?;
    let addrs = Addrs {
        src: SocketAddr::new(ip(*src), u16::from_be_bytes(*src_port)),
        dst: SocketAddr::new(ip(*dst), u16::from_be_bytes(*dst_port)),
    };
    Some((addrs, rest))
}

/// A value of a version 2 header, as `$proxy_protocol_tlv_NAME` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tlv {
    /// The value of this type.
    Type(u8),
    /// The value of this type within the value that describes the client's TLS.
    Ssl(u8),
    /// Result of the verification of the client's certificate, as a decimal number; 0 means success.
    SslVerify,
}

/// The values of a header are cut off. Displays as a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenTlv;

impl fmt::Display for BrokenTlv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken PROXY protocol TLV")
    }
}

impl std::error::Error for BrokenTlv {}

/// Type of the value that describes the client's TLS. It begins with one byte of flags and four of `verify`.
const TLV_SSL: u8 = 0x20;
const TLV_SSL_FIXED: usize = 5;

impl Tlv {
    /// The value with this name: `alpn`, `authority`, `unique_id`, `ssl`, `netns`, `ssl_verify`, `ssl_version`,
    /// `ssl_cn`, `ssl_cipher`, `ssl_sig_alg`, `ssl_key_alg`, or a type as `0xea` and `ssl_0x21`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (in_ssl, name) = match name.strip_prefix("ssl_") {
            Some(name) => (true, name),
            None => (false, name),
        };
        let number = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        let number = match (in_ssl, name) {
            (true, "verify") => return Some(Tlv::SslVerify),
            (true, "version") => 0x21,
            (true, "cn") => 0x22,
            (true, "cipher") => 0x23,
            (true, "sig_alg") => 0x24,
            (true, "key_alg") => 0x25,
            (false, "alpn") => 0x01,
            (false, "authority") => 0x02,
            (false, "unique_id") => 0x05,
            (false, "ssl") => TLV_SSL,
            (false, "netns") => 0x30,
            (_, name) => number(name.strip_prefix("0x")?)?,
        };
        Some(if in_ssl { Tlv::Ssl(number) } else { Tlv::Type(number) })
    }
}

impl Header {
    /// The first value of that kind; `None` when the proxy sent none.
    pub fn tlv(&self, which: Tlv) -> Result<Option<Cow<'_, [u8]>>, BrokenTlv> {
        let in_ssl = match which {
            Tlv::Type(number) => return Ok(find(&self.tlvs, number)?.map(Cow::Borrowed)),
            Tlv::Ssl(number) => Some(number),
            Tlv::SslVerify => None,
        };
        let Some(ssl) = find(&self.tlvs, TLV_SSL)? else { return Ok(None) };
        let ([_flags, verify @ ..], inner) = ssl.split_first_chunk::<TLV_SSL_FIXED>().ok_or(BrokenTlv)?;
        match in_ssl {
            Some(number) => Ok(find(inner, number)?.map(Cow::Borrowed)),
            None => Ok(Some(u32::from_be_bytes(*verify).to_string().into_bytes().into())),
        }
    }
}

/// The value of the first entry of this type: one byte of type, two of length, the value.
fn find(mut tlvs: &[u8], number: u8) -> Result<Option<&[u8]>, BrokenTlv> {
    while let Some((kind, rest)) = tlvs.split_first() {
        let (len, rest) = rest.split_first_chunk().ok_or(BrokenTlv)?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len))).ok_or(BrokenTlv)?;
        if *kind == number {
            return Ok(Some(value));
        }
        tlvs = rest;
    }
    Ok(None)
}

/// Appends a version 1 header that says `src` connected to `dst`.
pub fn write_v1(out: &mut Vec<u8>, src: &Addr, dst: &Addr) {
    let (Some(src), Some(dst)) = (src.inet(), dst.inet()) else {
        out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        return;
    };
    let (family, src_ip, dst_ip) = match (src.ip(), dst.ip()) {
        (src @ IpAddr::V4(_), dst @ IpAddr::V4(_)) => ("TCP4", src, dst),
        // DIFF(nginx): a client address that was replaced (realip) may be of the other family, and version 1 has one
        // for both. nginx writes each as it is.
        (src, dst) => ("TCP6", to_v6(src), to_v6(dst)),
    };
    write!(out, "PROXY {family} {src_ip} {dst_ip} {} {}\r\n", src.port(), dst.port())
        .expect("writing to memory does not fail");
}

/// Appends a version 2 header that says `src` connected to `dst`, or sent a datagram there, with these values and a checksum behind
/// them.
pub fn write_v2(out: &mut Vec<u8>, kind: SocketKind, src: &Addr, dst: &Addr, tlvs: &[(u8, Vec<u8>)]) {
    let begin = out.len();
    out.extend_from_slice(&SIGNATURE);
    let mut body = Vec::new();
    let (command, family) = match (src.inet(), dst.inet()) {
        (Some(src), Some(dst)) => {
            // If both addresses are IPv4-mapped, as on an IPv6 socket, they are sent as IPv4 addresses.
            let family = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    body.extend_from_slice(&src.octets());
                    body.extend_from_slice(&dst.octets());
                    FAMILY_INET
                }
                (one, other) => {
                    for ip in [one, other] {
                        match to_v6(ip) {
                            IpAddr::V6(ip) => body.extend_from_slice(&ip.octets()),
                            IpAddr::V4(_) => {}
                        }
                    }
                    FAMILY_INET6
                }
            };
            body.extend_from_slice(&src.port().to_be_bytes());
            body.extend_from_slice(&dst.port().to_be_bytes());
            let transport = match kind {
                SocketKind::Stream => 1,
                SocketKind::Datagram => 2,
            };
            (VERSION_2_PROXY, family | transport)
        }
        _ => (VERSION_2_LOCAL, FAMILY_UNSPECIFIED),
    };
    for (kind, value) in tlvs {
        put_tlv(&mut body, *kind, value);
    }
    put_tlv(&mut body, TLV_CRC32C, &[0; 4]);
    out.extend_from_slice(&[command, family]);
    // Names and protocols of a handshake are some hundred bytes at most.
    out.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(&body);
    let sum = crc32c(&out[begin..]);
    let end = out.len() - 4;
    out[end..].copy_from_slice(&sum.to_be_bytes());
}

/// Appends a value with its type and length; one that is too long is left out.
pub fn put_tlv(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if let Ok(len) = u16::try_from(value.len()) {
        out.push(kind);
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(value);
    }
}

/// Checksum of version 2 (CRC-32C, RFC 9260 appendix A). A header has some hundred bytes, for which no table is needed.
fn crc32c(bytes: &[u8]) -> u32 {
    const REVERSED: u32 = 0x82f6_3b78;
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (REVERSED & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

/// Version 2, command LOCAL: a connection of the proxy itself, or of a client without an IP address.
const VERSION_2_LOCAL: u8 = 0x20;
/// Version 2, command PROXY.
const VERSION_2_PROXY: u8 = 0x21;
/// Families, without the transport protocol.
const FAMILY_INET: u8 = 0x10;
const FAMILY_INET6: u8 = 0x20;
const FAMILY_UNSPECIFIED: u8 = 0x00;
/// Type of the checksum.
const TLV_CRC32C: u8 = 0x03;

fn to_v6(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
        IpAddr::V6(_) => ip,
    }
}

#[cfg(test)]
mod tests;
